// Attention of packed sequences over a window, whose keys and values a ring of the state keeps, or over themselves.
//
// A threadgroup computes the heads of one key head for one sequence: it norms and rotates queries and keys where they are,
// attends, then writes the new keys and values into the ring. No other threadgroup touches them. Long sequences without a
// ring take two dispatches, of one phase each, and a threadgroup for each block of rows.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

struct WindowParams {
    uint heads;
    uint kv_heads;
    uint head_dim;
    uint window;        // most positions that a row attends to
    uint step;          // positions that enter the window together
    uint slots;         // of a ring
    uint rows;          // of all sequences
    float eps;
    uint has_norms;
    uint phases;        // 1 norm and rotate, 2 attend, 4 keep
    uint block;         // rows of a threadgroup
};

// One sequence: its first row, its rows, where its ring of keys begins, and the position of its first row.
struct Stretch {
    uint first;
    uint rows;
    uint ring;
    uint start;
};

METAL_FUNC void turn_head(
    device float *x, device const float *turns, device const float *weight, uint row, constant WindowParams &p, uint lane) {
    uint half_dim = p.head_dim / 2;
    float scale = 1.0f;
    if (p.has_norms != 0u) {
        float squares = 0.0f;
        for (uint d = lane; d < p.head_dim; d += 32) {
            squares += x[d] * x[d];
        }
        scale = precise::rsqrt(simd_sum(squares) / float(p.head_dim) + p.eps);
    }
    for (uint i = lane; i < half_dim; i += 32) {
        float a = x[i];
        float b = x[i + half_dim];
        if (p.has_norms != 0u) {
            a *= scale * weight[i];
            b *= scale * weight[i + half_dim];
        }
        float c = turns[ulong(row) * half_dim + i];
        float s = turns[ulong(p.rows + row) * half_dim + i];
        x[i] = a * c - b * s;
        x[i + half_dim] = b * c + a * s;
    }
}

// One head of one row, by one simdgroup: lane l scores position l of every 32 and sums elements l, l + 32 and so on.
template <uint PER>
METAL_FUNC void attend_row(
    device const float *query, device const float *keys, device const float *values, device const float *ring_keys,
    device const float *ring_values, device float *y, Stretch s, uint row, constant WindowParams &p, uint lane) {
    uint stride = (p.heads + 2 * p.kv_heads) * p.head_dim;
    uint ring_stride = p.kv_heads * p.head_dim;
    float scale = precise::rsqrt(float(p.head_dim));
    uint position = s.start + row;
    uint end = (position / p.step + 1) * p.step;
    uint from = end > p.window ? end - p.window : 0;
    float sum[PER];
    for (uint j = 0; j < PER; j++) {
        sum[j] = 0.0f;
    }
    float peak = -3.4e38f;
    float total = 0.0f;
    for (uint base = from; base <= position; base += 32) {
        bool is_seen = base + lane <= position;
        uint at = min(base + lane, position);
        device const float *key =
            at < s.start ? ring_keys + ulong(at % max(p.slots, 1u)) * ring_stride : keys + ulong(at - s.start) * stride;
        float score = 0.0f;
        for (uint d = 0; d < p.head_dim; d++) {
            score += query[d] * key[d];
        }
        score = is_seen ? score * scale : -3.4e38f;
        float higher = max(peak, simd_max(score));
        float weight = is_seen ? precise::exp(score - higher) : 0.0f;
        float shrink = precise::exp(peak - higher);
        total = total * shrink + simd_sum(weight);
        peak = higher;
        for (uint j = 0; j < PER; j++) {
            sum[j] *= shrink;
        }
        uint count = min(32u, position - base + 1);
        for (uint other = 0; other < count; other++) {
            float w = simd_shuffle(weight, ushort(other));
            uint own = base + other;
            device const float *value = own < s.start ? ring_values + ulong(own % max(p.slots, 1u)) * ring_stride
                                                      : values + ulong(own - s.start) * stride;
            for (uint j = 0; j < PER; j++) {
                uint d = lane + 32 * j;
                sum[j] += d < p.head_dim ? w * value[d] : 0.0f;
            }
        }
    }
    for (uint j = 0; j < PER; j++) {
        uint d = lane + 32 * j;
        if (d < p.head_dim) {
            y[d] = sum[j] / total;
        }
    }
}

template <uint PER>
METAL_FUNC void windowed(
    device float *mixed, device float *y, device float *state, device const float *turns, device const float *query_norm,
    device const float *key_norm, constant uint *table, constant WindowParams &p, uint3 group, uint thread_index,
    uint simdgroup, uint simdgroups, uint lane) {
    Stretch s = {0u, table[3 * group.y], table[3 * group.y + 1], table[3 * group.y + 2]};
    for (uint n = 0; n < group.y; n++) {
        s.first += table[3 * n];
    }
    uint kv_head = group.x;
    uint heads = p.heads / p.kv_heads;
    uint begin = min(group.z * p.block, s.rows);
    uint end = min(begin + p.block, s.rows);
    uint stride = (p.heads + 2 * p.kv_heads) * p.head_dim;
    device float *queries = mixed + ulong(s.first) * stride + kv_head * heads * p.head_dim;
    device float *keys = mixed + ulong(s.first) * stride + (p.heads + kv_head) * p.head_dim;
    device float *values = keys + p.kv_heads * p.head_dim;
    device float *ring_keys = state + s.ring + kv_head * p.head_dim;
    device float *ring_values = ring_keys + ulong(p.slots) * p.kv_heads * p.head_dim;
    if ((p.phases & 1u) != 0u) {
        for (uint n = simdgroup; n < (end - begin) * (heads + 1); n += simdgroups) {
            uint row = begin + n / (heads + 1);
            uint head = n % (heads + 1);
            if (head < heads) {
                turn_head(queries + ulong(row) * stride + head * p.head_dim, turns, query_norm, s.first + row, p, lane);
            } else {
                turn_head(keys + ulong(row) * stride, turns, key_norm, s.first + row, p, lane);
            }
        }
    }
    threadgroup_barrier(mem_flags::mem_device);
    if ((p.phases & 2u) != 0u) {
        for (uint n = simdgroup; n < (end - begin) * heads; n += simdgroups) {
            uint row = begin + n / heads;
            uint head = n % heads;
            device float *to = y + (ulong(s.first + row) * p.heads + kv_head * heads + head) * p.head_dim;
            attend_row<PER>(
                queries + ulong(row) * stride + head * p.head_dim, keys, values, ring_keys, ring_values, to, s, row, p,
                lane);
        }
    }
    threadgroup_barrier(mem_flags::mem_device);
    if ((p.phases & 4u) != 0u && p.slots > 0) {
        uint skipped = s.rows > p.slots ? s.rows - p.slots : 0;
        for (uint n = thread_index; n < (s.rows - skipped) * p.head_dim; n += 32 * simdgroups) {
            uint row = skipped + n / p.head_dim;
            uint d = n % p.head_dim;
            ulong to = ulong((s.start + row) % p.slots) * p.kv_heads * p.head_dim + d;
            ring_keys[to] = keys[ulong(row) * stride + d];
            ring_values[to] = values[ulong(row) * stride + d];
        }
    }
}

#define WINDOWED(name, per)                                                                                            \
    kernel void name(                                                                                                  \
        device float *mixed [[buffer(0)]], device float *y [[buffer(1)]], device float *state [[buffer(2)]],           \
        device const float *turns [[buffer(3)]], device const float *query_norm [[buffer(4)]],                         \
        device const float *key_norm [[buffer(5)]], constant uint *table [[buffer(6)]],                                \
        constant WindowParams &p [[buffer(7)]], uint3 group [[threadgroup_position_in_grid]],                          \
        uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],          \
        uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                     \
        windowed<per>(                                                                                                 \
            mixed, y, state, turns, query_norm, key_norm, table, p, group, thread_index, simdgroup, simdgroups, lane); \
    }
WINDOWED(windowed_1, 1)
WINDOWED(windowed_2, 2)
WINDOWED(windowed_4, 4)
WINDOWED(windowed_8, 8)
