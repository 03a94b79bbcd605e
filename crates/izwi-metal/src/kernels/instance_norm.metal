// Adaptive instance norm of packed sequences, and the activation after it: a threadgroup computes 32 channels of a sequence,
// a lane each, its simdgroups a share of the rows each.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

constant constexpr uint SIMDGROUPS = 16;

struct InstanceNormParams {
    uint channels;
    uint scale_stride;  // elements from the scales of a sequence to the next
    uint shift_stride;
    float eps;
    uint is_snake;      // else leaky ReLU
    float slope;
};

// The sum over all simdgroups of each lane's value. All threads of the threadgroup call it.
METAL_FUNC float sum_of_shares(float share, threadgroup float *shares, uint simdgroup, uint lane) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    shares[32u * simdgroup + lane] = share;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    float sum = 0.0f;
    for (uint s = 0; s < SIMDGROUPS; s++) {
        sum += shares[32u * s + lane];
    }
    return sum;
}

kernel void instance_norm(
    device const float *x [[buffer(0)]], device const float *scale [[buffer(1)]],
    device const float *shift [[buffer(2)]], device const float *frequency [[buffer(3)]],
    device const float *amplitude [[buffer(4)]], device float *y [[buffer(5)]],
    constant InstanceNormParams &p [[buffer(6)]], constant uint *spans [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint lane [[thread_index_in_simdgroup]]) {
    threadgroup float shares[32 * SIMDGROUPS];
    // Its number, the first row, the rows, and the rows after them, which become zero.
    constant uint *span = spans + 4 * group.y;
    uint rows = span[2];
    uint channel = 32u * group.x + lane;
    bool is_there = channel < p.channels;
    ulong first = ulong(span[1]) * p.channels + min(channel, p.channels - 1u);
    float share = 0.0f;
    for (uint row = simdgroup; row < rows; row += SIMDGROUPS) {
        share += x[first + ulong(row) * p.channels];
    }
    float mean = sum_of_shares(share, shares, simdgroup, lane) / float(rows);
    share = 0.0f;
    for (uint row = simdgroup; row < rows; row += SIMDGROUPS) {
        float centred = x[first + ulong(row) * p.channels] - mean;
        share = fma(centred, centred, share);
    }
    float variance = sum_of_shares(share, shares, simdgroup, lane) / float(rows);
    if (!is_there) {
        return;
    }
    float factor = (1.0f + scale[span[0] * p.scale_stride + channel]) * precise::rsqrt(variance + p.eps);
    float added = shift[span[0] * p.shift_stride + channel];
    float turns = p.is_snake != 0u ? frequency[channel] : 0.0f;
    float height = p.is_snake != 0u ? amplitude[channel] : 0.0f;
    for (uint row = simdgroup; row < rows + span[3]; row += SIMDGROUPS) {
        ulong at = first + ulong(row) * p.channels;
        float value = 0.0f;
        if (row < rows) {
            value = fma(x[at] - mean, factor, added);
            if (p.is_snake != 0u) {
                float wave = precise::sin(value * turns);
                value = fma(wave * wave, height, value);
            } else {
                value = max(value, value * p.slope);
            }
        }
        y[at] = value;
    }
}
