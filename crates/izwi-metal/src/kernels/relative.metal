// Bidirectional attention with relative positions within spans of packed rows: the score of a key is the product of the
// query with the key and with the row of distances for how far apart they are, each with a bias of its own.
//
// A threadgroup computes one head of up to 16 rows of a span, a simdgroup 4 of them. The table has four words of each
// threadgroup: its first row, its rows, and the span's first row and rows; rows of a span without rows become zero.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

constant constexpr uint ROWS = 4;         // of a simdgroup
constant constexpr uint SIMDGROUPS = 4;
constant constexpr uint MAX_HEAD = 128;   // elements of a head

struct RelativeParams {
    uint heads;
    uint head_dim;
    uint longest;   // row longest - 1 of the distances is for a key at the query's own place
};

template <uint PER>
METAL_FUNC void attend_relative(
    device const float *mixed, device const float *distances, device const float *content, device const float *place,
    device float *y, constant uint *table, constant RelativeParams &p, uint head, uint tile, uint simdgroup, uint lane,
    threadgroup float *queries) {
    uint first = table[4 * tile] + simdgroup * ROWS;
    uint end = table[4 * tile] + table[4 * tile + 1];
    uint start = table[4 * tile + 2];
    uint count = table[4 * tile + 3];
    uint width = p.heads * p.head_dim;
    device const float *of_head = mixed + head * p.head_dim;
    float scale = precise::rsqrt(float(p.head_dim));
    // Of each row the query with the bias of the content, then with that of the place.
    threadgroup float *own = queries + simdgroup * ROWS * 2 * MAX_HEAD;
    float sum[ROWS][PER];
    float peak[ROWS];
    float total[ROWS];
    for (uint m = 0; m < ROWS; m++) {
        uint row = min(first + m, end - 1);
        for (uint d = lane; d < p.head_dim; d += 32) {
            float q = of_head[ulong(row) * 3 * width + d];
            own[m * 2 * MAX_HEAD + d] = (q + content[head * p.head_dim + d]) * scale;
            own[m * 2 * MAX_HEAD + MAX_HEAD + d] = (q + place[head * p.head_dim + d]) * scale;
        }
        for (uint j = 0; j < PER; j++) {
            sum[m][j] = 0.0f;
        }
        peak[m] = -3.4e38f;
        total[m] = 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint base = 0; base < count; base += 32) {
        bool is_key = base + lane < count;
        uint at = start + min(base + lane, count - 1);
        device const float *key = of_head + ulong(at) * 3 * width + width;
        device const float *apart[ROWS];
        float score[ROWS];
        for (uint m = 0; m < ROWS; m++) {
            uint row = min(first + m, end - 1);
            apart[m] = distances + ulong(p.longest - 1 + at - row) * width + head * p.head_dim;
            score[m] = 0.0f;
        }
        for (uint d = 0; d < p.head_dim; d++) {
            float k = key[d];
            for (uint m = 0; m < ROWS; m++) {
                score[m] += own[m * 2 * MAX_HEAD + d] * k + own[m * 2 * MAX_HEAD + MAX_HEAD + d] * apart[m][d];
            }
        }
        for (uint m = 0; m < ROWS; m++) {
            float value = is_key ? score[m] : -3.4e38f;
            float higher = max(peak[m], simd_max(value));
            float shrink = precise::exp(peak[m] - higher);
            score[m] = is_key ? precise::exp(value - higher) : 0.0f;
            total[m] = total[m] * shrink + simd_sum(score[m]);
            peak[m] = higher;
            for (uint j = 0; j < PER; j++) {
                sum[m][j] *= shrink;
            }
        }
        uint keys = min(32u, count - base);
        for (uint other = 0; other < keys; other++) {
            device const float *value = of_head + ulong(start + base + other) * 3 * width + 2 * width;
            float v[PER];
            for (uint j = 0; j < PER; j++) {
                uint d = lane + 32 * j;
                v[j] = d < p.head_dim ? value[d] : 0.0f;
            }
            for (uint m = 0; m < ROWS; m++) {
                float weight = simd_shuffle(score[m], ushort(other));
                for (uint j = 0; j < PER; j++) {
                    sum[m][j] += weight * v[j];
                }
            }
        }
    }
    for (uint m = 0; m < ROWS; m++) {
        for (uint j = 0; j < PER; j++) {
            uint d = lane + 32 * j;
            if (first + m < end && d < p.head_dim) {
                y[ulong(first + m) * width + head * p.head_dim + d] = count > 0 ? sum[m][j] / total[m] : 0.0f;
            }
        }
    }
}

#define RELATIVE(name, per)                                                                                            \
    kernel void name(                                                                                                  \
        device const float *mixed [[buffer(0)]], device const float *distances [[buffer(1)]],                          \
        device const float *content [[buffer(2)]], device const float *place [[buffer(3)]],                            \
        device float *y [[buffer(4)]], constant uint *table [[buffer(5)]], constant RelativeParams &p [[buffer(6)]],   \
        uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],               \
        uint lane [[thread_index_in_simdgroup]]) {                                                                     \
        threadgroup float queries[SIMDGROUPS * ROWS * 2 * MAX_HEAD];                                                   \
        attend_relative<per>(                                                                                          \
            mixed, distances, content, place, y, table, p, group.x, group.y, simdgroup, lane, queries);                \
    }
RELATIVE(relative_1, 1)
RELATIVE(relative_2, 2)
RELATIVE(relative_4, 4)
