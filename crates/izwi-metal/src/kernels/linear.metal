// Products of rows with stored weights: y = norm(x) Wᵀ, then bias, activation and residual.
//
// `linear_rows_*` reads each weight once for up to 16 rows (decode); `linear_tiles_*` multiplies tiles of 32 rows
// (prefill, encoders); `lstm_*` multiplies the states of an LSTM step after step. Sums are f32.
#include <metal_stdlib>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
using namespace metal;

struct LinearParams {
    uint inputs;
    uint outputs;       // of y
    uint rows;
    uint x_stride;      // elements from a row of x to the next
    uint row_bytes;     // of a stored row of levels or values
    uint scales;        // bytes from the start of the weights to the scales
    uint row_scales;    // scales of a stored row
    uint norm;          // 0 none, 1 root mean square, 2 layer norm
    float eps;
    uint has_bias;
    uint activation;    // 0 none, 1 SiLU, 2 GELU, 3 ReLU, 4 gated SiLU: stored rows o and o + outputs are gate and input,
                        // 5 GELU by tanh
    uint has_residual;
    uint y_stride;      // elements from a row of y and of the residual to the next
    uint has_scale;     // factors of the outputs, after the activation
};

METAL_FUNC float activate(float x, uint kind) {
    if (kind == 1u) {
        return x / (1.0f + precise::exp(-x));
    }
    if (kind == 2u) {
        // erfc by a Chebyshev fit, relative error 1.2e-7 (Numerical Recipes, 6.2).
        float z = x * 0.70710678118654752f;
        float a = abs(z);
        float t = 1.0f / (1.0f + 0.5f * a);
        float series = -a * a - 1.26551223f
            + t * (1.00002368f + t * (0.37409196f + t * (0.09678418f + t * (-0.18628806f + t * (0.27886807f
            + t * (-1.13520398f + t * (1.48851587f + t * (-0.82215223f + t * 0.17087277f))))))));
        float tail = t * precise::exp(series);
        float erf = z < 0.0f ? tail - 1.0f : 1.0f - tail;
        return 0.5f * x * (1.0f + erf);
    }
    if (kind == 3u) {
        return max(x, 0.0f);
    }
    if (kind == 5u) {
        return x / (1.0f + precise::exp(-1.5957691216f * x * (1.0f + 0.044715f * x * x)));
    }
    return x;
}

// Readers of 8 consecutive stored weights, from a multiple of 8.
struct ReadQ8 {
    template <typename Params>
    static METAL_FUNC void read(device const uchar *weights, constant Params &p, uint row, uint at, thread float *w) {
        device const char4 *levels = (device const char4 *)(weights + ulong(row) * p.row_bytes + at);
        device const half *scales = (device const half *)(weights + p.scales);
        float scale = float(scales[ulong(row) * p.row_scales + at / 32]);
        char4 a = levels[0];
        char4 b = levels[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = float(a[i]) * scale;
            w[i + 4] = float(b[i]) * scale;
        }
    }
};
struct ReadQ4 {
    template <typename Params>
    static METAL_FUNC void read(device const uchar *weights, constant Params &p, uint row, uint at, thread float *w) {
        device const uint *levels = (device const uint *)(weights + ulong(row) * p.row_bytes + at / 2);
        device const half *scales = (device const half *)(weights + p.scales);
        float scale = float(scales[ulong(row) * p.row_scales + at / 32]);
        uint eight = levels[0];
        for (uint i = 0; i < 8; i++) {
            w[i] = (float((eight >> (4 * i)) & 15u) - 8.0f) * scale;
        }
    }
};
struct ReadF16 {
    template <typename Params>
    static METAL_FUNC void read(device const uchar *weights, constant Params &p, uint row, uint at, thread float *w) {
        device const half4 *values = (device const half4 *)(weights + ulong(row) * p.row_bytes + 2 * at);
        half4 a = values[0];
        half4 b = values[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = float(a[i]);
            w[i + 4] = float(b[i]);
        }
    }
};
struct ReadBf16 {
    template <typename Params>
    static METAL_FUNC void read(device const uchar *weights, constant Params &p, uint row, uint at, thread float *w) {
        device const ushort4 *values = (device const ushort4 *)(weights + ulong(row) * p.row_bytes + 2 * at);
        ushort4 a = values[0];
        ushort4 b = values[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = as_type<float>(uint(a[i]) << 16);
            w[i + 4] = as_type<float>(uint(b[i]) << 16);
        }
    }
};
struct ReadF32 {
    template <typename Params>
    static METAL_FUNC void read(device const uchar *weights, constant Params &p, uint row, uint at, thread float *w) {
        device const float4 *values = (device const float4 *)(weights + ulong(row) * p.row_bytes + 4 * at);
        float4 a = values[0];
        float4 b = values[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = a[i];
            w[i + 4] = b[i];
        }
    }
};

// What is taken from all elements of a row before they are normed. A layer norm does not depend on it, and squares of
// elements that are far from zero leave no digits for their variance.
METAL_FUNC float shift_of(device const float *x, constant LinearParams &p) {
    return p.norm == 2u ? x[0] : 0.0f;
}

// 8 elements of a row of `inputs`, from a multiple of 8; zeros behind the end.
METAL_FUNC void read_inputs(device const float *x, uint at, uint inputs, thread float *values) {
    if (at + 8 <= inputs) {
        for (uint i = 0; i < 8; i++) {
            values[i] = x[at + i];
        }
    } else {
        for (uint i = 0; i < 8; i++) {
            values[i] = at + i < inputs ? x[at + i] : 0.0f;
        }
    }
}

// What the norm adds up beside the products: of the shifted x the squares and the sum, of the stored row its products with the
// norm's weight and bias.
struct NormSums {
    float squares;
    float sum;
};

METAL_FUNC float finish(
    float product, float weight_sum, float bias_sum, NormSums x, constant LinearParams &p) {
    float inputs = float(p.inputs);
    if (p.norm == 1u) {
        return product * precise::rsqrt(x.squares / inputs + p.eps);
    }
    if (p.norm == 2u) {
        float mean = x.sum / inputs;
        float variance = max(x.squares / inputs - mean * mean, 0.0f);
        return (product - mean * weight_sum) * precise::rsqrt(variance + p.eps) + bias_sum;
    }
    return product;
}

// Writes element `o` of row `m`.
METAL_FUNC void write_output(
    float value, float gated, uint m, uint o, constant LinearParams &p,
    device const float *bias, device const float *residual, device const float *out_scale, device float *y) {
    if (p.has_bias != 0u) {
        value += bias[o];
        if (p.activation == 4u) {
            gated += bias[o + p.outputs];
        }
    }
    value = p.activation == 4u ? activate(value, 1u) * gated : activate(value, p.activation);
    if (p.has_scale != 0u) {
        value *= out_scale[o];
    }
    ulong at = ulong(m) * p.y_stride + o;
    if (p.has_residual != 0u) {
        value += residual[at];
    }
    y[at] = value;
}

// Sums say `fma`: a compiler that may fuse a product and a sum, or not, would choose for each number of rows, and a row
// would not be the same bits in any batch.
//
// A simdgroup computes OUTPUTS stored rows for ROWS rows of x; lane l reads inputs 8 l to 8 l + 7 of every 256.
template <typename Weights, uint ROWS, uint OUTPUTS>
METAL_FUNC void linear_rows(
    device const uchar *weights, device const float *x, device float *y, constant LinearParams &p,
    device const float *norm_weight, device const float *norm_bias, device const float *bias,
    device const float *residual, device const float *out_scale, uint2 group, uint simdgroup, uint simdgroups,
    uint lane) {
    bool paired = p.activation == 4u;
    // The first element of y, and the elements of y, of this simdgroup.
    uint step = paired ? OUTPUTS / 2 : OUTPUTS;
    uint first = (group.x * simdgroups + simdgroup) * step;
    uint row = group.y * ROWS;
    if (first >= p.outputs) {
        return;
    }
    float sums[OUTPUTS][ROWS];
    float weight_sums[OUTPUTS];
    float bias_sums[OUTPUTS];
    float squares[ROWS];
    float totals[ROWS];
    uint stored[OUTPUTS];
    for (uint o = 0; o < OUTPUTS; o++) {
        uint output = min(first + (paired ? o / 2 : o), p.outputs - 1);
        stored[o] = paired && o % 2 == 1 ? output + p.outputs : output;
        weight_sums[o] = 0.0f;
        bias_sums[o] = 0.0f;
        for (uint m = 0; m < ROWS; m++) {
            sums[o][m] = 0.0f;
        }
    }
    for (uint m = 0; m < ROWS; m++) {
        squares[m] = 0.0f;
        totals[m] = 0.0f;
    }
    for (uint at = lane * 8; at < p.inputs; at += 256) {
        float w[OUTPUTS][8];
        for (uint o = 0; o < OUTPUTS; o++) {
            Weights::read(weights, p, stored[o], at, w[o]);
        }
        float scale[8];
        if (p.norm != 0u) {
            read_inputs(norm_weight, at, p.inputs, scale);
        }
        if (p.norm == 2u) {
            float shift[8];
            read_inputs(norm_bias, at, p.inputs, shift);
            for (uint o = 0; o < OUTPUTS; o++) {
                for (uint i = 0; i < 8; i++) {
                    weight_sums[o] = fma(w[o][i], scale[i], weight_sums[o]);
                    bias_sums[o] = fma(w[o][i], shift[i], bias_sums[o]);
                }
            }
        }
        for (uint m = 0; m < ROWS; m++) {
            float values[8];
            uint input = min(row + m, p.rows - 1);
            read_inputs(x + ulong(input) * p.x_stride, at, p.inputs, values);
            if (p.norm != 0u) {
                float shift = shift_of(x + ulong(input) * p.x_stride, p);
                for (uint i = 0; i < 8; i++) {
                    values[i] = at + i < p.inputs ? values[i] - shift : 0.0f;
                    squares[m] = fma(values[i], values[i], squares[m]);
                    totals[m] += values[i];
                    values[i] *= scale[i];
                }
            }
            for (uint o = 0; o < OUTPUTS; o++) {
                float sum = 0.0f;
                for (uint i = 0; i < 8; i++) {
                    sum = fma(w[o][i], values[i], sum);
                }
                sums[o][m] += sum;
            }
        }
    }
    if (p.norm == 2u) {
        for (uint o = 0; o < OUTPUTS; o++) {
            weight_sums[o] = simd_sum(weight_sums[o]);
            bias_sums[o] = simd_sum(bias_sums[o]);
        }
    }
    for (uint m = 0; m < ROWS; m++) {
        if (row + m >= p.rows) {
            return;
        }
        NormSums of = {0.0f, 0.0f};
        if (p.norm != 0u) {
            of.squares = simd_sum(squares[m]);
        }
        if (p.norm == 2u) {
            of.sum = simd_sum(totals[m]);
        }
        float mine = 0.0f;
        float gated = 0.0f;
        for (uint o = 0; o < OUTPUTS; o++) {
            float product = simd_sum(sums[o][m]);
            float value = finish(product, weight_sums[o], bias_sums[o], of, p);
            uint place = paired ? o / 2 : o;
            if (place == lane) {
                if (paired && o % 2 == 1) {
                    gated = value;
                } else {
                    mine = value;
                }
            }
        }
        if (lane < step && first + lane < p.outputs) {
            write_output(mine, gated, row + m, first + lane, p, bias, residual, out_scale, y);
        }
    }
}

#define LINEAR_ROWS(name, reader, rows, outputs)                                                                       \
    kernel void name(                                                                                                  \
        device const uchar *weights [[buffer(0)]], device const float *x [[buffer(1)]],                                \
        device float *y [[buffer(2)]], constant LinearParams &p [[buffer(3)]],                                         \
        device const float *norm_weight [[buffer(4)]], device const float *norm_bias [[buffer(5)]],                    \
        device const float *bias [[buffer(6)]], device const float *residual [[buffer(7)]],                            \
        device const float *out_scale [[buffer(8)]],                                                                   \
        uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],               \
        uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                     \
        linear_rows<reader, rows, outputs>(                                                                            \
            weights, x, y, p, norm_weight, norm_bias, bias, residual, out_scale, uint2(group.x, group.y), simdgroup,   \
            simdgroups, lane);                                                                                                     \
    }
#define LINEAR_ROWS_OF(type, reader)                                                                                   \
    LINEAR_ROWS(linear_rows_##type##_1, reader, 1, 4)                                                                  \
    LINEAR_ROWS(linear_rows_##type##_2, reader, 2, 4)                                                                  \
    LINEAR_ROWS(linear_rows_##type##_4, reader, 4, 4)                                                                  \
    LINEAR_ROWS(linear_rows_##type##_8, reader, 8, 4)                                                                  \
    LINEAR_ROWS(linear_rows_##type##_16, reader, 16, 2)
LINEAR_ROWS_OF(q8, ReadQ8)
LINEAR_ROWS_OF(q4, ReadQ4)
LINEAR_ROWS_OF(f16, ReadF16)
LINEAR_ROWS_OF(bf16, ReadBf16)
LINEAR_ROWS_OF(f32, ReadF32)

// A threadgroup of 4 simdgroups computes a tile of 32 rows and 32 stored rows; thread t loads row t / 4 of both tiles,
// inputs 8 (t % 4) to 8 (t % 4) + 7 of every 32.
template <typename Weights>
METAL_FUNC void linear_tiles(
    device const uchar *weights, device const float *x, device float *y, constant LinearParams &p,
    device const float *norm_weight, device const float *norm_bias, device const float *bias,
    device const float *residual, device const float *out_scale, uint2 group, uint thread_index, uint simdgroup,
    threadgroup float *tile_x, threadgroup float *tile_w, threadgroup float *of_rows, threadgroup float *of_outputs) {
    bool paired = p.activation == 4u;
    uint step = paired ? 16 : 32;
    uint first = group.x * step;
    uint row = group.y * 32;
    uint line = thread_index / 4;
    uint eight = (thread_index % 4) * 8;
    uint place = paired ? line % 16 : line;
    uint output = min(first + place, p.outputs - 1);
    uint stored = paired && line >= 16 ? output + p.outputs : output;
    uint input = min(row + line, p.rows - 1);
    float squares = 0.0f;
    float total = 0.0f;
    float weight_sum = 0.0f;
    float bias_sum = 0.0f;
    // Simdgroup s adds up the quarter of 16 rows s / 2 and 16 stored rows s % 2.
    simdgroup_float8x8 sums[2][2];
    for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 2; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    uint top = (simdgroup / 2) * 16;
    uint left = (simdgroup % 2) * 16;
    for (uint start = 0; start < p.inputs; start += 32) {
        uint at = start + eight;
        float values[8];
        float w[8];
        read_inputs(x + ulong(input) * p.x_stride, at, p.inputs, values);
        if (at < p.row_scales * 32) {
            Weights::read(weights, p, stored, at, w);
        } else {
            for (uint i = 0; i < 8; i++) {
                w[i] = 0.0f;
            }
        }
        if (p.norm != 0u) {
            float scale[8];
            read_inputs(norm_weight, at, p.inputs, scale);
            float shift = shift_of(x + ulong(input) * p.x_stride, p);
            for (uint i = 0; i < 8; i++) {
                values[i] = at + i < p.inputs ? values[i] - shift : 0.0f;
                squares += values[i] * values[i];
                total += values[i];
                values[i] *= scale[i];
                weight_sum += w[i] * scale[i];
            }
        }
        if (p.norm == 2u) {
            float shift[8];
            read_inputs(norm_bias, at, p.inputs, shift);
            for (uint i = 0; i < 8; i++) {
                bias_sum += w[i] * shift[i];
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint i = 0; i < 8; i++) {
            tile_x[line * 32 + eight + i] = values[i];
            tile_w[line * 32 + eight + i] = w[i];
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < 32; k += 8) {
            simdgroup_float8x8 a[2];
            simdgroup_float8x8 b[2];
            for (uint i = 0; i < 2; i++) {
                simdgroup_load(a[i], tile_x + (top + 8 * i) * 32 + k, 32);
                simdgroup_load(b[i], tile_w + (left + 8 * i) * 32 + k, 32, ulong2(0, 0), true);
            }
            for (uint i = 0; i < 2; i++) {
                for (uint j = 0; j < 2; j++) {
                    simdgroup_multiply_accumulate(sums[i][j], a[i], b[j], sums[i][j]);
                }
            }
        }
    }
    if (p.norm != 0u) {
        // Four neighbours share a line.
        squares += simd_shuffle_xor(squares, ushort(1));
        squares += simd_shuffle_xor(squares, ushort(2));
        total += simd_shuffle_xor(total, ushort(1));
        total += simd_shuffle_xor(total, ushort(2));
        weight_sum += simd_shuffle_xor(weight_sum, ushort(1));
        weight_sum += simd_shuffle_xor(weight_sum, ushort(2));
        bias_sum += simd_shuffle_xor(bias_sum, ushort(1));
        bias_sum += simd_shuffle_xor(bias_sum, ushort(2));
        if (eight == 0) {
            of_rows[2 * line] = squares;
            of_rows[2 * line + 1] = total;
            of_outputs[2 * line] = weight_sum;
            of_outputs[2 * line + 1] = bias_sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 2; j++) {
            simdgroup_store(sums[i][j], tile_x + (top + 8 * i) * 32 + left + 8 * j, 32);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint n = thread_index; n < 32 * step; n += 128) {
        uint m = n / step;
        uint o = n % step;
        if (row + m >= p.rows || first + o >= p.outputs) {
            continue;
        }
        NormSums of = {0.0f, 0.0f};
        float sum_w[2] = {0.0f, 0.0f};
        float sum_b[2] = {0.0f, 0.0f};
        if (p.norm != 0u) {
            of.squares = of_rows[2 * m];
            of.sum = of_rows[2 * m + 1];
            sum_w[0] = of_outputs[2 * o];
            sum_b[0] = of_outputs[2 * o + 1];
            if (paired) {
                sum_w[1] = of_outputs[2 * (o + 16)];
                sum_b[1] = of_outputs[2 * (o + 16) + 1];
            }
        }
        float value = finish(tile_x[m * 32 + o], sum_w[0], sum_b[0], of, p);
        float gated = paired ? finish(tile_x[m * 32 + o + 16], sum_w[1], sum_b[1], of, p) : 0.0f;
        write_output(value, gated, row + m, first + o, p, bias, residual, out_scale, y);
    }
}

#define LINEAR_TILES(type, reader)                                                                                     \
    kernel void linear_tiles_##type(                                                                                   \
        device const uchar *weights [[buffer(0)]], device const float *x [[buffer(1)]],                                \
        device float *y [[buffer(2)]], constant LinearParams &p [[buffer(3)]],                                         \
        device const float *norm_weight [[buffer(4)]], device const float *norm_bias [[buffer(5)]],                    \
        device const float *bias [[buffer(6)]], device const float *residual [[buffer(7)]],                            \
        device const float *out_scale [[buffer(8)]],                                                                   \
        uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],               \
        uint simdgroup [[simdgroup_index_in_threadgroup]]) {                                                           \
        threadgroup float tile_x[1024];                                                                                \
        threadgroup float tile_w[1024];                                                                                \
        threadgroup float of_rows[64];                                                                                 \
        threadgroup float of_outputs[64];                                                                              \
        linear_tiles<reader>(                                                                                          \
            weights, x, y, p, norm_weight, norm_bias, bias, residual, out_scale, uint2(group.x, group.y), thread_index,\
            simdgroup, tile_x, tile_w, of_rows, of_outputs);                                                           \
    }
LINEAR_TILES(q8, ReadQ8)
LINEAR_TILES(q4, ReadQ4)
LINEAR_TILES(f16, ReadF16)
LINEAR_TILES(bf16, ReadBf16)
LINEAR_TILES(f32, ReadF32)

struct LookupParams {
    uint inputs;
    uint row_bytes;
    uint scales;
    uint row_scales;
};

// Stored rows as f32: a thread reads 8 inputs of one row.
template <typename Weights>
METAL_FUNC void lookup(
    device const uchar *weights, device const uint *ids, device float *rows, constant LookupParams &p,
    uint2 group, uint lane) {
    uint at = group.x * 256 + lane * 8;
    if (at >= p.inputs) {
        return;
    }
    float w[8];
    Weights::read(weights, p, ids[group.y], at, w);
    for (uint i = 0; i < 8; i++) {
        if (at + i < p.inputs) {
            rows[ulong(group.y) * p.inputs + at + i] = w[i];
        }
    }
}

#define LOOKUP(type, reader)                                                                                           \
    kernel void lookup_##type(                                                                                         \
        device const uchar *weights [[buffer(0)]], device const uint *ids [[buffer(1)]],                               \
        device float *rows [[buffer(2)]], constant LookupParams &p [[buffer(3)]],                                      \
        uint3 group [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {                       \
        lookup<reader>(weights, ids, rows, p, uint2(group.x, group.y), lane);                                          \
    }
LOOKUP(q8, ReadQ8)
LOOKUP(q4, ReadQ4)
LOOKUP(f16, ReadF16)
LOOKUP(bf16, ReadBf16)
LOOKUP(f32, ReadF32)

// The recurrence of a bidirectional LSTM: a threadgroup computes all steps of one sequence in one direction, a simdgroup the
// four gates of a state at a time. A state sums its products in the same order in any batch.
constant constexpr uint MAX_HIDDEN = 1024;

struct LstmParams {
    uint hidden;
    uint row_bytes;
    uint scales;
    uint row_scales;
};

METAL_FUNC float sigmoid(float x) {
    return 1.0f / (1.0f + precise::exp(-x));
}

template <typename Weights>
METAL_FUNC void lstm(
    device const float *gates, device const uchar *weights, device float *y, constant LstmParams &p, constant uint *span,
    uint direction, uint simdgroup, uint simdgroups, uint lane, threadgroup float *states, threadgroup float *cells) {
    // The first row, the rows, and the rows after them, which become zero.
    uint start = span[0];
    uint steps = span[1];
    uint hidden = p.hidden;
    uint first = 32 * simdgroup + lane;
    uint threads = 32 * simdgroups;
    for (uint h = first; h < MAX_HIDDEN; h += threads) {
        states[h] = 0.0f;
        states[MAX_HIDDEN + h] = 0.0f;
        cells[h] = 0.0f;
    }
    for (uint n = first; n < span[2] * hidden; n += threads) {
        y[ulong(2u * (start + steps + n / hidden) + direction) * hidden + n % hidden] = 0.0f;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint step = 0; step < steps; step++) {
        // The states before a step are in one half, those after it go into the other.
        threadgroup const float *before = states + (step % 2u) * MAX_HIDDEN;
        threadgroup float *after = states + (1u - step % 2u) * MAX_HIDDEN;
        ulong row = 2ul * (start + (direction == 0u ? step : steps - 1u - step)) + direction;
        for (uint h = simdgroup; h < hidden; h += simdgroups) {
            float sums[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (uint at = 8 * lane; at < hidden; at += 256u) {
                float w[8];
                for (uint gate = 0; gate < 4; gate++) {
                    Weights::read(weights, p, gate * hidden + h, at, w);
                    for (uint i = 0; i < 8; i++) {
                        sums[gate] = fma(before[at + i], w[i], sums[gate]);
                    }
                }
            }
            for (uint gate = 0; gate < 4; gate++) {
                sums[gate] = simd_sum(sums[gate]);
            }
            if (lane == 0) {
                device const float *own = gates + 4ul * row * hidden + h;
                float kept = sigmoid(own[hidden] + sums[1]) * cells[h];
                float cell = fma(sigmoid(own[0] + sums[0]), precise::tanh(own[2u * hidden] + sums[2]), kept);
                float state = sigmoid(own[3u * hidden] + sums[3]) * precise::tanh(cell);
                cells[h] = cell;
                after[h] = state;
                y[row * hidden + h] = state;
            }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
}

#define LSTM(type, reader)                                                                                             \
    kernel void lstm_##type(                                                                                           \
        device const float *gates [[buffer(0)]], device const uchar *forward [[buffer(1)]],                            \
        device const uchar *backward [[buffer(2)]], device float *y [[buffer(3)]],                                     \
        constant LstmParams &p [[buffer(4)]], constant uint *spans [[buffer(5)]],                                      \
        uint3 group [[threadgroup_position_in_grid]], uint simdgroup [[simdgroup_index_in_threadgroup]],               \
        uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                     \
        threadgroup float states[2 * MAX_HIDDEN];                                                                      \
        threadgroup float cells[MAX_HIDDEN];                                                                           \
        lstm<reader>(                                                                                                  \
            gates, group.y == 0u ? forward : backward, y, p, spans + 3 * group.x, group.y, simdgroup, simdgroups,      \
            lane, states, cells);                                                                                      \
    }
LSTM(q8, ReadQ8)
LSTM(q4, ReadQ4)
LSTM(f16, ReadF16)
LSTM(bf16, ReadBf16)
LSTM(f32, ReadF32)
