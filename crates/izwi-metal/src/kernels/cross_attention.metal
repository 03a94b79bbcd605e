// Attention of few rows of each sequence to the keys and values of an encoder's output, with the softmax weights of some
// heads on request; and the layout of these keys and values: heads of keys, then heads of values, `[positions, head_dim]`.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

constant uint THREADS = 256;
constant uint MAX_POSITIONS = 2048;
constant uint MAX_HEAD = 128;

struct CrossParams {
    uint heads;
    uint head_dim;  // a multiple of 4
};

// A threadgroup computes one head of one row of one sequence.
template <typename KV>
METAL_FUNC void cross_attention(
    device const float *q, device float *y, device float *recorded, constant CrossParams &p, constant uint *spans,
    constant uint *places, device const KV *window, uint3 group, uint thread_index, uint simdgroup, uint simdgroups,
    uint lane, threadgroup float *query, threadgroup float *scores, threadgroup float *parts) {
    // The first row, the rows, the positions, and where the recorded weights begin.
    constant uint *span = spans + 4 * group.z;
    uint rows = span[1];
    uint positions = span[2];
    uint head = group.x;
    if (group.y >= rows) {
        return;
    }
    ulong own = (ulong(span[0] + group.y) * p.heads + head) * p.head_dim;
    float scale = precise::rsqrt(float(p.head_dim));
    for (uint d = thread_index; d < p.head_dim; d += THREADS) {
        query[d] = q[own + d] * scale;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    device const KV *keys = window + ulong(head) * positions * p.head_dim;
    device const KV *values = window + ulong(p.heads + head) * positions * p.head_dim;
    // Four lanes compute the score of one position.
    uint part = lane % 4;
    float peak = -3.4e38f;
    for (uint start = 8 * simdgroup; start < positions; start += 8 * simdgroups) {
        uint at = start + lane / 4;
        device const KV *key = keys + ulong(min(at, positions - 1)) * p.head_dim;
        float score = 0.0f;
        for (uint d = 4 * part; d < p.head_dim; d += 16) {
            vec<KV, 4> four = ((device const vec<KV, 4> *)(key + d))[0];
            for (uint i = 0; i < 4; i++) {
                score += query[d + i] * float(four[i]);
            }
        }
        score += simd_shuffle_xor(score, ushort(1));
        score += simd_shuffle_xor(score, ushort(2));
        if (at < positions) {
            peak = max(peak, score);
            if (part == 0) {
                scores[at] = score;
            }
        }
    }
    peak = simd_max(peak);
    if (lane == 0) {
        parts[simdgroup] = peak;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint s = 0; s < simdgroups; s++) {
        peak = max(peak, parts[s]);
    }
    float total = 0.0f;
    for (uint at = thread_index; at < positions; at += THREADS) {
        float weight = precise::exp(scores[at] - peak);
        scores[at] = weight;
        total += weight;
    }
    total = simd_sum(total);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (lane == 0) {
        parts[simdgroup] = total;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    total = 0.0f;
    for (uint s = 0; s < simdgroups; s++) {
        total += parts[s];
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    // Each thread sums four elements over a share of the positions.
    uint fours = p.head_dim / 4;
    uint shares = THREADS / fours;
    uint share = thread_index / fours;
    uint d = 4 * (thread_index % fours);
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (share < shares) {
        for (uint at = share; at < positions; at += shares) {
            vec<KV, 4> four = ((device const vec<KV, 4> *)(values + ulong(at) * p.head_dim + d))[0];
            float weight = scores[at];
            for (uint i = 0; i < 4; i++) {
                sum[i] += weight * float(four[i]);
            }
        }
        for (uint i = 0; i < 4; i++) {
            parts[share * p.head_dim + d + i] = sum[i];
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = thread_index; e < p.head_dim; e += THREADS) {
        float all = 0.0f;
        for (uint s = 0; s < shares; s++) {
            all += parts[s * p.head_dim + e];
        }
        y[own + e] = all / total;
    }
    uint place = places[head];
    if (place != 0xFFFFFFFFu) {
        device float *to = recorded + span[3] + (ulong(place) * rows + group.y) * positions;
        for (uint at = thread_index; at < positions; at += THREADS) {
            to[at] = scores[at] / total;
        }
    }
}

// 16 sequences at most: each has its own buffer.
#define WINDOW(KV, n, at) device const KV *w##n [[buffer(at)]]
#define CROSS_ATTENTION(name, KV)                                                                                      \
    kernel void name(                                                                                                  \
        device const float *q [[buffer(0)]], device float *y [[buffer(1)]], device float *recorded [[buffer(2)]],      \
        constant CrossParams &p [[buffer(3)]], constant uint *spans [[buffer(4)]], constant uint *places [[buffer(5)]], \
        WINDOW(KV, 0, 6), WINDOW(KV, 1, 7), WINDOW(KV, 2, 8), WINDOW(KV, 3, 9), WINDOW(KV, 4, 10), WINDOW(KV, 5, 11),  \
        WINDOW(KV, 6, 12), WINDOW(KV, 7, 13), WINDOW(KV, 8, 14), WINDOW(KV, 9, 15), WINDOW(KV, 10, 16),                \
        WINDOW(KV, 11, 17), WINDOW(KV, 12, 18), WINDOW(KV, 13, 19), WINDOW(KV, 14, 20), WINDOW(KV, 15, 21),            \
        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],               \
        uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]],             \
        uint lane [[thread_index_in_simdgroup]]) {                                                                     \
        threadgroup float query[MAX_HEAD];                                                                             \
        threadgroup float scores[MAX_POSITIONS];                                                                       \
        threadgroup float parts[4 * THREADS];                                                                          \
        device const KV *windows[16] = {w0, w1, w2, w3, w4, w5, w6, w7, w8, w9, w10, w11, w12, w13, w14, w15};         \
        cross_attention<KV>(                                                                                           \
            q, y, recorded, p, spans, places, windows[group.z], group, thread_index, simdgroup, simdgroups, lane,      \
            query, scores, parts);                                                                                     \
    }
CROSS_ATTENTION(cross_attention_f32, float)
CROSS_ATTENTION(cross_attention_f16, half)

struct PackParams {
    uint positions;
    uint heads;
    uint head_dim;
    uint k_stride;  // elements from a position of the keys to the next
    uint v_stride;
};

// Keys and values `[positions, heads * head_dim]` by head: an element for each thread.
template <typename KV>
METAL_FUNC void pack_window(
    device const float *k, device const float *v, device KV *window, constant PackParams &p, uint at) {
    uint half_size = p.positions * p.heads * p.head_dim;
    if (at >= 2 * half_size) {
        return;
    }
    bool is_value = at >= half_size;
    uint rest = is_value ? at - half_size : at;
    uint d = rest % p.head_dim;
    uint position = rest / p.head_dim % p.positions;
    uint column = rest / p.head_dim / p.positions * p.head_dim + d;
    window[at] = is_value ? KV(v[ulong(position) * p.v_stride + column])
                          : KV(k[ulong(position) * p.k_stride + column]);
}

#define PACK_WINDOW(name, KV)                                                                                          \
    kernel void name(                                                                                                  \
        device const float *k [[buffer(0)]], device const float *v [[buffer(1)]], device KV *window [[buffer(2)]],     \
        constant PackParams &p [[buffer(3)]], uint3 group [[threadgroup_position_in_grid]],                            \
        uint thread_index [[thread_index_in_threadgroup]]) {                                                           \
        pack_window<KV>(k, v, window, p, group.x * 256 + thread_index);                                                \
    }
PACK_WINDOW(pack_window_f32, float)
PACK_WINDOW(pack_window_f16, half)
