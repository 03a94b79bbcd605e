// Causal attention over a paged pool of keys and values, and the short convolution whose state the pool's blocks keep.
//
// `step_*` computes one row of each sequence: norms and rotates the heads, writes keys and values into the pool and attends.
// `write_*` and `tile_*` do the same for any number of rows, in two dispatches. The table of a step holds, from the words
// given in the parameters on: four words of each row (position, slot, first word of its block table, one
// unused), the cosines and sines of each row, the tiles (first row, rows) and the block tables.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

constant uint MAX_HEAD = 128;   // elements of a head
constant uint MAX_SIMDGROUPS = 8;
constant uint TILE_ROWS = 8;
constant uint TILE_POSITIONS = 16;

struct AttentionParams {
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint block_size;
    uint rows_at;       // word of the table where the rows begin
    uint turns_at;      // where cosines and sines begin, head_dim words for each row
    uint tiles_at;      // where the tiles begin
    float eps;          // of the norms of heads
    uint has_norms;
    uint has_rope;
};

METAL_FUNC uint slot_of(device const uint *table, constant AttentionParams &p, uint blocks_at, uint position) {
    return table[blocks_at + position / p.block_size] * p.block_size + position % p.block_size;
}

// Normalises a head with all lanes of one simdgroup: x to `to`, both of head_dim elements.
METAL_FUNC void norm_head(
    device const float *x, device const float *weight, threadgroup float *to, constant AttentionParams &p, uint lane) {
    float squares = 0.0f;
    for (uint d = lane; d < p.head_dim; d += 32) {
        squares += x[d] * x[d];
    }
    float scale = 1.0f;
    if (p.has_norms != 0u) {
        scale = precise::rsqrt(simd_sum(squares) / float(p.head_dim) + p.eps);
    }
    for (uint d = lane; d < p.head_dim; d += 32) {
        to[d] = p.has_norms != 0u ? x[d] * scale * weight[d] : x[d];
    }
}

// Rotates element i of a head with element i + head_dim / 2.
METAL_FUNC void rotate_pair(threadgroup float *head, device const float *turn, uint i, uint half_dim) {
    float a = head[i];
    float b = head[i + half_dim];
    float c = turn[i];
    float s = turn[i + half_dim];
    head[i] = a * c - b * s;
    head[i + half_dim] = b * c + a * s;
}

template <typename KV, uint PER>
METAL_FUNC void attend_step(
    device const float *mixed, device float *y, device KV *keys, device KV *values, device const float *query_norm,
    device const float *key_norm, device const uint *table, constant AttentionParams &p, uint head, uint row, uint thread_index,
    uint threads, uint simdgroup, uint simdgroups, uint lane, threadgroup float *query, threadgroup float *key,
    threadgroup float *value, threadgroup float *parts, threadgroup float *peaks, threadgroup float *totals) {
    uint group = p.heads / p.kv_heads;
    uint kv_head = head / group;
    device const uint *own = table + p.rows_at + 4 * row;
    uint position = own[0];
    uint slot = own[1];
    uint blocks_at = own[2];
    device const float *heads = mixed + ulong(row) * (p.heads + 2 * p.kv_heads) * p.head_dim;
    if (simdgroup == 0) {
        norm_head(heads + head * p.head_dim, query_norm, query, p, lane);
    }
    if (simdgroup == simdgroups - 1) {
        norm_head(heads + (p.heads + kv_head) * p.head_dim, key_norm, key, p, lane);
    }
    for (uint d = thread_index; d < p.head_dim; d += threads) {
        value[d] = float(KV(heads[(p.heads + p.kv_heads + kv_head) * p.head_dim + d]));
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (p.has_rope != 0u) {
        device const float *turn = (device const float *)(table + p.turns_at) + ulong(row) * p.head_dim;
        uint half_dim = p.head_dim / 2;
        for (uint i = thread_index; i < half_dim; i += threads) {
            rotate_pair(query, turn, i, half_dim);
            rotate_pair(key, turn, i, half_dim);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong place = (ulong(slot) * p.kv_heads + kv_head) * p.head_dim;
    for (uint d = thread_index; d < p.head_dim; d += threads) {
        KV rounded = KV(key[d]);
        key[d] = float(rounded);
        // The heads of a group compute the same key: the first one writes.
        if (head % group == 0) {
            keys[place + d] = rounded;
            values[place + d] = KV(value[d]);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float scale = precise::rsqrt(float(p.head_dim));
    float q[PER];
    float sum[PER];
    for (uint j = 0; j < PER; j++) {
        uint d = lane + 32 * j;
        q[j] = d < p.head_dim ? query[d] * scale : 0.0f;
        sum[j] = 0.0f;
    }
    float peak = -3.4e38f;
    float total = 0.0f;
    for (uint at = simdgroup; at <= position; at += simdgroups) {
        float score = 0.0f;
        float v[PER];
        if (at == position) {
            for (uint j = 0; j < PER; j++) {
                uint d = lane + 32 * j;
                score += d < p.head_dim ? q[j] * key[d] : 0.0f;
                v[j] = d < p.head_dim ? value[d] : 0.0f;
            }
        } else {
            ulong from = (ulong(slot_of(table, p, blocks_at, at)) * p.kv_heads + kv_head) * p.head_dim;
            for (uint j = 0; j < PER; j++) {
                uint d = lane + 32 * j;
                score += d < p.head_dim ? q[j] * float(keys[from + d]) : 0.0f;
                v[j] = d < p.head_dim ? float(values[from + d]) : 0.0f;
            }
        }
        score = simd_sum(score);
        float higher = max(peak, score);
        float shrink = precise::exp(peak - higher);
        float weight = precise::exp(score - higher);
        total = total * shrink + weight;
        for (uint j = 0; j < PER; j++) {
            sum[j] = sum[j] * shrink + weight * v[j];
        }
        peak = higher;
    }
    for (uint j = 0; j < PER; j++) {
        uint d = lane + 32 * j;
        if (d < p.head_dim) {
            parts[simdgroup * p.head_dim + d] = sum[j];
        }
    }
    if (lane == 0) {
        peaks[simdgroup] = peak;
        totals[simdgroup] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint d = thread_index; d < p.head_dim; d += threads) {
        float highest = peaks[0];
        for (uint s = 1; s < simdgroups; s++) {
            highest = max(highest, peaks[s]);
        }
        float all = 0.0f;
        float result = 0.0f;
        for (uint s = 0; s < simdgroups; s++) {
            float weight = precise::exp(peaks[s] - highest);
            all += weight * totals[s];
            result += weight * parts[s * p.head_dim + d];
        }
        y[(ulong(row) * p.heads + head) * p.head_dim + d] = result / all;
    }
}

#define STEP(name, KV, per)                                                                                            \
    kernel void name(                                                                                                  \
        device const float *mixed [[buffer(0)]], device float *y [[buffer(1)]], device KV *keys [[buffer(2)]],         \
        device KV *values [[buffer(3)]], device const float *query_norm [[buffer(4)]],                                 \
        device const float *key_norm [[buffer(5)]], device const uint *table [[buffer(6)]],                            \
        constant AttentionParams &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],                       \
        uint3 size [[threads_per_threadgroup]], uint thread_index [[thread_index_in_threadgroup]],                     \
        uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]],             \
        uint lane [[thread_index_in_simdgroup]]) {                                                                     \
        threadgroup float query[MAX_HEAD];                                                                                  \
        threadgroup float key[MAX_HEAD];                                                                                  \
        threadgroup float value[MAX_HEAD];                                                                                  \
        threadgroup float parts[MAX_SIMDGROUPS * MAX_HEAD];                                                                                 \
        threadgroup float peaks[MAX_SIMDGROUPS];                                                                                    \
        threadgroup float totals[MAX_SIMDGROUPS];                                                                                   \
        attend_step<KV, per>(                                                                                          \
            mixed, y, keys, values, query_norm, key_norm, table, p, group.x, group.y, thread_index, size.x, simdgroup, \
            simdgroups, lane, query, key, value, parts, peaks, totals);                                                \
    }
STEP(step_f32_2, float, 2)
STEP(step_f32_4, float, 4)
STEP(step_f16_2, half, 2)
STEP(step_f16_4, half, 4)

// Norms and rotates one head of one row: queries to `queries`, keys and values into the pool.
template <typename KV>
METAL_FUNC void write_head(
    device const float *mixed, device float *queries, device KV *keys, device KV *values, device const float *query_norm,
    device const float *key_norm, device const uint *table, constant AttentionParams &p, uint head, uint row, uint lane,
    threadgroup float *kept) {
    device const float *x = mixed + (ulong(row) * (p.heads + 2 * p.kv_heads) + head) * p.head_dim;
    uint slot = table[p.rows_at + 4 * row + 1];
    if (head >= p.heads + p.kv_heads) {
        ulong place = (ulong(slot) * p.kv_heads + head - p.heads - p.kv_heads) * p.head_dim;
        for (uint d = lane; d < p.head_dim; d += 32) {
            values[place + d] = KV(x[d]);
        }
        return;
    }
    bool is_query = head < p.heads;
    norm_head(x, is_query ? query_norm : key_norm, kept, p, lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (p.has_rope != 0u) {
        device const float *turn = (device const float *)(table + p.turns_at) + ulong(row) * p.head_dim;
        uint half_dim = p.head_dim / 2;
        for (uint i = lane; i < half_dim; i += 32) {
            rotate_pair(kept, turn, i, half_dim);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    if (is_query) {
        for (uint d = lane; d < p.head_dim; d += 32) {
            queries[(ulong(row) * p.heads + head) * p.head_dim + d] = kept[d];
        }
    } else {
        ulong place = (ulong(slot) * p.kv_heads + head - p.heads) * p.head_dim;
        for (uint d = lane; d < p.head_dim; d += 32) {
            keys[place + d] = KV(kept[d]);
        }
    }
}

#define WRITE(name, KV)                                                                                                \
    kernel void name(                                                                                                  \
        device const float *mixed [[buffer(0)]], device float *queries [[buffer(1)]], device KV *keys [[buffer(2)]],   \
        device KV *values [[buffer(3)]], device const float *query_norm [[buffer(4)]],                                 \
        device const float *key_norm [[buffer(5)]], device const uint *table [[buffer(6)]],                            \
        constant AttentionParams &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],                       \
        uint lane [[thread_index_in_simdgroup]]) {                                                                     \
        threadgroup float kept[MAX_HEAD];                                                                                   \
        write_head<KV>(                                                                                                \
            mixed, queries, keys, values, query_norm, key_norm, table, p, group.x, group.y, lane, kept);               \
    }
WRITE(write_f32, float)
WRITE(write_f16, half)

// One head of up to 8 rows of a sequence at consecutive positions, a simdgroup each, over tiles of 16 positions that the
// threadgroup loads once. Lanes 0 to 15 and 16 to 31 compute the two halves of the products with 16 keys.
template <typename KV, uint PER>
METAL_FUNC void attend_tile(
    device const float *queries, device float *y, device const KV *keys, device const KV *values, device const uint *table,
    constant AttentionParams &p, uint head, uint tile, uint thread_index, uint simdgroup, uint lane,
    threadgroup float *query, threadgroup float *tile_k, threadgroup float *tile_v) {
    uint first = table[p.tiles_at + 2 * tile];
    uint rows = table[p.tiles_at + 2 * tile + 1];
    uint kv_head = head / (p.heads / p.kv_heads);
    device const uint *of_first = table + p.rows_at + 4 * first;
    uint blocks_at = of_first[2];
    uint last = of_first[0] + rows - 1;
    bool is_row = simdgroup < rows;
    uint position = of_first[0] + min(simdgroup, rows - 1);
    uint row = first + min(simdgroup, rows - 1);
    float scale = precise::rsqrt(float(p.head_dim));
    for (uint d = lane; d < p.head_dim; d += 32) {
        query[simdgroup * p.head_dim + d] = queries[(ulong(row) * p.heads + head) * p.head_dim + d] * scale;
    }
    float sum[PER];
    for (uint j = 0; j < PER; j++) {
        sum[j] = 0.0f;
    }
    float peak = -3.4e38f;
    float total = 0.0f;
    uint half_dim = p.head_dim / 2;
    for (uint start = 0; start <= last; start += TILE_POSITIONS) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint n = thread_index; n < TILE_POSITIONS * p.head_dim; n += 32 * TILE_ROWS) {
            uint at = min(start + n / p.head_dim, last);
            ulong from = (ulong(slot_of(table, p, blocks_at, at)) * p.kv_heads + kv_head) * p.head_dim + n % p.head_dim;
            tile_k[n] = float(keys[from]);
            tile_v[n] = float(values[from]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint at = lane % TILE_POSITIONS;
        uint from = lane < TILE_POSITIONS ? 0 : half_dim;
        float score = 0.0f;
        // Lanes start at different elements, so that they read different banks.
        for (uint i = 0; i < half_dim; i++) {
            uint d = from + (i + at) % half_dim;
            score += query[simdgroup * p.head_dim + d] * tile_k[at * p.head_dim + d];
        }
        score += simd_shuffle_xor(score, ushort(16));
        bool is_seen = start + at <= position;
        score = is_seen ? score : -3.4e38f;
        float higher = max(peak, simd_max(score));
        float weight = is_seen ? precise::exp(score - higher) : 0.0f;
        float shrink = precise::exp(peak - higher);
        total = total * shrink + simd_sum(lane < TILE_POSITIONS ? weight : 0.0f);
        peak = higher;
        for (uint j = 0; j < PER; j++) {
            sum[j] *= shrink;
        }
        for (uint other = 0; other < TILE_POSITIONS; other++) {
            float w = simd_shuffle(weight, ushort(other));
            for (uint j = 0; j < PER; j++) {
                uint d = lane + 32 * j;
                sum[j] += d < p.head_dim ? w * tile_v[other * p.head_dim + d] : 0.0f;
            }
        }
    }
    if (is_row) {
        for (uint j = 0; j < PER; j++) {
            uint d = lane + 32 * j;
            if (d < p.head_dim) {
                y[(ulong(row) * p.heads + head) * p.head_dim + d] = sum[j] / total;
            }
        }
    }
}

// Queries take 4 KB, keys and values 8 KB each for heads of 128.
#define TILE(name, KV, per, width)                                                                                     \
    kernel void name(                                                                                                  \
        device const float *queries [[buffer(0)]], device float *y [[buffer(1)]], device const KV *keys [[buffer(2)]], \
        device const KV *values [[buffer(3)]], device const uint *table [[buffer(4)]],                                 \
        constant AttentionParams &p [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],                       \
        uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],          \
        uint lane [[thread_index_in_simdgroup]]) {                                                                     \
        threadgroup float query[8 * width];                                                                            \
        threadgroup float tile_k[16 * width];                                                                          \
        threadgroup float tile_v[16 * width];                                                                          \
        attend_tile<KV, per>(                                                                                          \
            queries, y, keys, values, table, p, group.x, group.y, thread_index, simdgroup, lane, query, tile_k,        \
            tile_v);                                                                                                   \
    }
TILE(tile_f32_2, float, 2, 64)
TILE(tile_f32_4, float, 4, 128)
TILE(tile_f16_2, half, 2, 64)
TILE(tile_f16_4, half, 4, 128)

struct ShortConvParams {
    uint width;
    uint taps;
    uint block_size;
    uint rows_at;       // word of the table where the rows begin
    uint spans_at;      // where the spans begin: first row, rows, and the columns to skip in the kept state, each
};

// The gated convolution of the rows of one sequence and one channel: rows are a factor, a gate and an input, `width` of
// each. A block keeps, for every channel, the products of the last `taps` positions up to the newest one computed in it.
kernel void short_conv(
    device const float *mixed [[buffer(0)]], device float *y [[buffer(1)]], device float *kept [[buffer(2)]],
    device const float *weight [[buffer(3)]], device const uint *table [[buffer(4)]],
    constant ShortConvParams &p [[buffer(5)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    uint channel = group.x * 256 + thread_index;
    if (channel >= p.width) {
        return;
    }
    device const uint *span = table + p.spans_at + 3 * group.y;
    uint first = span[0];
    uint rows = span[1];
    uint skip = span[2];
    device const uint *row = table + p.rows_at + 4 * first;
    uint start = row[0];
    float window[8];
    for (uint t = 0; t < 8; t++) {
        window[t] = 0.0f;
    }
    if (start > 0) {
        // The state after the position before, or after the first row itself (`skip` is 0).
        uint before = skip == 0 ? start : start - 1;
        uint block = table[row[2] + before / p.block_size];
        device const float *from = kept + ulong(block) * p.taps * p.width;
        for (uint t = 0; t + 1 < p.taps; t++) {
            window[t + 1] = from[(t + skip) * p.width + channel];
        }
    }
    for (uint n = 0; n < rows; n++) {
        device const float *of = mixed + ulong(first + n) * 3 * p.width + channel;
        for (uint t = 0; t + 1 < p.taps; t++) {
            window[t] = window[t + 1];
        }
        window[p.taps - 1] = of[0] * of[2 * p.width];
        float sum = 0.0f;
        for (uint t = 0; t < p.taps; t++) {
            sum += weight[t * p.width + channel] * window[t];
        }
        y[ulong(first + n) * p.width + channel] = sum * of[p.width];
        uint position = start + n;
        if (n + 1 == rows || (position + 1) % p.block_size == 0) {
            uint block = table[row[2] + position / p.block_size];
            device float *to = kept + ulong(block) * p.taps * p.width;
            for (uint t = 0; t < p.taps; t++) {
                to[t * p.width + channel] = window[t];
            }
        }
    }
}
