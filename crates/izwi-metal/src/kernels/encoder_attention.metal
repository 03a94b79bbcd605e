// Attention of packed sequences: every row of a span attends to all positions of the span.
//
// A threadgroup of 4 simdgroups computes one head of 32 rows over tiles of 32 positions; scores stay in registers.
#include <metal_stdlib>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
using namespace metal;

struct EncoderParams {
    uint heads;
    uint head_dim;
    uint q_stride;  // elements from a row of q to the next
    uint k_stride;  // elements from a position of k to the next
    uint k_head;    // elements from a head of k to the next
    uint v_stride;
    uint v_head;
};

// Positions `start` to `start + 31` of one head as f32, zeros behind the end.
template <typename KV, uint DIM>
METAL_FUNC void load_tile(
    device const KV *from, uint stride, uint start, uint positions, uint head_dim, threadgroup float *tile,
    uint thread_index) {
    for (uint n = thread_index; n < 32 * DIM; n += 128) {
        uint at = n / DIM;
        uint d = n % DIM;
        bool is_there = start + at < positions && d < head_dim;
        tile[at * (DIM + 4) + d] = is_there ? float(from[ulong(start + at) * stride + d]) : 0.0f;
    }
}

template <typename KV, uint DIM>
METAL_FUNC void encoder_attention(
    device const float *q, device const KV *k, device const KV *v, device float *y, constant EncoderParams &p,
    constant uint *spans, uint3 group, uint thread_index, uint simdgroup, uint lane, threadgroup float *tile) {
    // The first row and the rows of q, the first position and the positions of k and v.
    constant uint *span = spans + 4 * group.z;
    uint first = group.x * 32;
    uint head = group.y;
    uint rows = span[1];
    uint positions = span[3];
    if (first >= rows) {
        return;
    }
    float scale = precise::rsqrt(float(p.head_dim));
    device const float *queries = q + ulong(span[0] + first) * p.q_stride + head * p.head_dim;
    load_tile<float, DIM>(queries, p.q_stride, 0, min(rows - first, 32u), p.head_dim, tile, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    simdgroup_float8x8 query[DIM / 8];
    simdgroup_float8x8 sums[DIM / 8];
    #pragma clang loop unroll(full)
    for (uint c = 0; c < DIM / 8; c++) {
        simdgroup_load(query[c], tile + 8 * simdgroup * (DIM + 4) + 8 * c, DIM + 4);
        query[c].thread_elements()[0] *= scale;
        query[c].thread_elements()[1] *= scale;
        sums[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
    // A lane holds two neighbours of a row of an 8x8 matrix; lanes that differ in bits 0 and 3 share the row.
    uint quad = lane / 4;
    uint line = (quad & 4) + (lane / 2) % 4;
    uint column = (quad & 2) * 2 + (lane % 2) * 2;
    device const KV *keys = k + ulong(head) * p.k_head + ulong(span[2]) * p.k_stride;
    device const KV *values = v + ulong(head) * p.v_head + ulong(span[2]) * p.v_stride;
    float peak = -1e30f;
    float total = 0.0f;
    for (uint start = 0; start < positions; start += 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_tile<KV, DIM>(keys, p.k_stride, start, positions, p.head_dim, tile, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        simdgroup_float8x8 scores[4];
        float highest = peak;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < 4; j++) {
            scores[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
            #pragma clang loop unroll(full)
            for (uint c = 0; c < DIM / 8; c++) {
                simdgroup_float8x8 key;
                simdgroup_load(key, tile + 8 * j * (DIM + 4) + 8 * c, DIM + 4, ulong2(0, 0), true);
                simdgroup_multiply_accumulate(scores[j], query[c], key, scores[j]);
            }
            #pragma clang loop unroll(full)
            for (uint e = 0; e < 2; e++) {
                if (start + 8 * j + column + e < positions) {
                    highest = max(highest, scores[j].thread_elements()[e]);
                }
            }
        }
        highest = max(highest, simd_shuffle_xor(highest, ushort(1)));
        highest = max(highest, simd_shuffle_xor(highest, ushort(8)));
        float shrink = precise::exp(peak - highest);
        float sum = 0.0f;
        #pragma clang loop unroll(full)
        for (uint j = 0; j < 4; j++) {
            #pragma clang loop unroll(full)
            for (uint e = 0; e < 2; e++) {
                bool is_there = start + 8 * j + column + e < positions;
                float weight = is_there ? precise::exp(scores[j].thread_elements()[e] - highest) : 0.0f;
                scores[j].thread_elements()[e] = weight;
                sum += weight;
            }
        }
        sum += simd_shuffle_xor(sum, ushort(1));
        sum += simd_shuffle_xor(sum, ushort(8));
        total = total * shrink + sum;
        peak = highest;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        load_tile<KV, DIM>(values, p.v_stride, start, positions, p.head_dim, tile, thread_index);
        threadgroup_barrier(mem_flags::mem_threadgroup);
        #pragma clang loop unroll(full)
        for (uint c = 0; c < DIM / 8; c++) {
            sums[c].thread_elements()[0] *= shrink;
            sums[c].thread_elements()[1] *= shrink;
            #pragma clang loop unroll(full)
            for (uint j = 0; j < 4; j++) {
                simdgroup_float8x8 value;
                simdgroup_load(value, tile + 8 * j * (DIM + 4) + 8 * c, DIM + 4);
                simdgroup_multiply_accumulate(sums[c], scores[j], value, sums[c]);
            }
        }
    }
    uint row = first + 8 * simdgroup + line;
    if (row >= rows) {
        return;
    }
    device float *to = y + (ulong(span[0] + row) * p.heads + head) * p.head_dim;
    #pragma clang loop unroll(full)
    for (uint c = 0; c < DIM / 8; c++) {
        #pragma clang loop unroll(full)
        for (uint e = 0; e < 2; e++) {
            uint d = 8 * c + column + e;
            if (d < p.head_dim) {
                to[d] = sums[c].thread_elements()[e] / total;
            }
        }
    }
}

#define ENCODER_ATTENTION(name, KV, dim)                                                                               \
    kernel void name(                                                                                                  \
        device const float *q [[buffer(0)]], device const KV *k [[buffer(1)]], device const KV *v [[buffer(2)]],       \
        device float *y [[buffer(3)]], constant EncoderParams &p [[buffer(4)]], constant uint *spans [[buffer(5)]],    \
        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],               \
        uint simdgroup [[simdgroup_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                  \
        threadgroup float tile[32 * (dim + 4)];                                                                        \
        encoder_attention<KV, dim>(q, k, v, y, p, spans, group, thread_index, simdgroup, lane, tile);                  \
    }
ENCODER_ATTENTION(encoder_attention_f32_32, float, 32)
ENCODER_ATTENTION(encoder_attention_f32_64, float, 64)
ENCODER_ATTENTION(encoder_attention_f32_128, float, 128)
ENCODER_ATTENTION(encoder_attention_f16_32, half, 32)
ENCODER_ATTENTION(encoder_attention_f16_64, half, 64)
ENCODER_ATTENTION(encoder_attention_f16_128, half, 128)
