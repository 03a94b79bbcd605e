// Kernels that keep or break one rule each.
#include <metal_stdlib>
using namespace metal;

constant bool scaled [[function_constant(0)]];
constant bool shifted [[function_constant(1)]];
constant bool both = scaled && shifted;

kernel void switched(
    device const float *x [[buffer(0)]],
    device float *y [[buffer(1)]],
    device const float *scale [[buffer(2), function_constant(scaled)]],
    device const float *third [[buffer(3), function_constant(both)]],
    uint i [[thread_position_in_grid]]
) {
    float value = x[i];
    if (scaled) {
        value *= scale[0];
    }
    if (both) {
        value += third[0];
    }
    y[i] = value;
}

kernel void uses_the_second(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = shifted ? 1.0 : 2.0;
}

kernel void sums(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = simd_sum(float(i));
}

kernel void sums_of_some(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = 0.0;
    if (i % 2 == 0) {
        y[i] = simd_sum(float(i));
    }
}

kernel void barrier_of_some(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (i < 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    y[i] = 1.0;
}

kernel void two_barriers(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    if (i < 32) {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = 1.0;
    } else {
        threadgroup_barrier(mem_flags::mem_threadgroup);
        y[i] = 2.0;
    }
}

kernel void keeps_16k(
    device float *y [[buffer(0)]],
    threadgroup float *more [[threadgroup(0)]],
    uint i [[thread_position_in_grid]]
) {
    threadgroup float held[4096];
    held[i] = 1.0;
    more[i] = 2.0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = held[i] + more[i];
}

kernel void keeps_too_much(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float held[8193];
    held[i] = 1.0;
    y[i] = held[i];
}

// Each threadgroup reads what none of its threads wrote.
kernel void reads_fresh_memory(
    device float *y [[buffer(0)]],
    threadgroup float *given [[threadgroup(0)]],
    uint i [[thread_position_in_grid]],
    uint in_group [[thread_position_in_threadgroup]]
) {
    threadgroup float held[32];
    y[i] = held[in_group] + given[in_group];
    held[in_group] = 1.0;
    given[in_group] = 1.0;
}

kernel void reads_beyond(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    y[i] = simd_shuffle_down(float(i), ushort(1));
}

kernel void reads_the_first(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float held[64];
    held[i] = float(i + 1);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    y[i] = held[0];
}

// The barrier is missing: right where lower threads run first.
kernel void reads_the_first_at_once(device float *y [[buffer(0)]], uint i [[thread_position_in_grid]]) {
    threadgroup float held[64];
    held[i] = float(i + 1);
    y[i] = held[0];
}

// Each threadgroup adds to what the one before it wrote, which need not have run.
kernel void reads_the_group_before(
    device float *y [[buffer(0)]],
    uint group [[threadgroup_position_in_grid]],
    uint in_group [[thread_position_in_threadgroup]]
) {
    if (in_group == 0) {
        y[group] = group == 0 ? 5.0 : y[group - 1] + 1.0;
    }
}
