// Convolutions along the rows of packed sequences: dense ones as products with stored weights, and depthwise ones.
//
// A row `at` of a sequence counts from its first new one. Rows before it are in the state, mirrored, repeated or zero; the
// last rows are written to the other half of the state, for the next chunk. The table has four words of each sequence: its
// rows, its output rows, and where in the state its old rows are and its new ones go.
#include <metal_stdlib>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
using namespace metal;

constant constexpr uint NO_STATE = 0xffffffffu;

struct ConvParams {
    uint inputs;
    uint outputs;
    uint taps;
    uint dilation;      // rows between two taps
    uint stride;        // rows between two outputs
    uint rows;          // output rows of all sequences
    uint sequences;
    uint before;        // rows before the first that the first output reads; as many are kept where there is a state
    uint edge;          // rows outside: 0 the state or zero, 1 mirrored, 2 repeated
    uint row_bytes;     // of a stored row
    uint blocks;        // of 32 elements of a stored row
    uint has_bias;
    uint activation;    // 0 none, 1 SiLU, 2 GELU, 3 ReLU, 4 ELU, 5 Snake, 6 clamped to -1 to 1
    uint has_residual;
    uint writes;        // 1 the result, 2 the activated result, 3 both
    uint channels;      // of Snake: output o is of channel o % channels
};

METAL_FUNC float gelu(float x) {
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

METAL_FUNC float activate(
    float x, uint kind, uint channel, device const float *frequency, device const float *amplitude) {
    if (kind == 1u) {
        return x / (1.0f + precise::exp(-x));
    }
    if (kind == 2u) {
        return gelu(x);
    }
    if (kind == 3u) {
        return max(x, 0.0f);
    }
    if (kind == 4u) {
        return x > 0.0f ? x : precise::exp(x) - 1.0f;
    }
    if (kind == 5u) {
        float wave = precise::sin(x * frequency[channel]);
        return x + wave * wave * amplitude[channel];
    }
    if (kind == 6u) {
        return clamp(x, -1.0f, 1.0f);
    }
    return x;
}

// The sequence of an output row.
struct Sequence {
    uint first;     // its first row of x
    uint rows;
    uint own;       // the output row, counted from the sequence's first
    uint outputs;   // output rows
    uint read;
    uint write;
};

METAL_FUNC Sequence sequence_of(constant uint *table, uint sequences, uint row) {
    Sequence s = {0u, 0u, row, 0u, NO_STATE, NO_STATE};
    for (uint n = 0; n < sequences; n++) {
        s.rows = table[4 * n];
        s.outputs = table[4 * n + 1];
        s.read = table[4 * n + 2];
        s.write = table[4 * n + 3];
        if (s.own < s.outputs || n + 1 == sequences) {
            break;
        }
        s.own -= s.outputs;
        s.first += s.rows;
    }
    return s;
}

// Where a row is: 0 nowhere, it is zero; 1 in x, from the sequence's first row on; 2 in the state.
struct Place {
    uint where;
    uint row;
};

METAL_FUNC Place place_of(int at, Sequence s, uint before, uint edge) {
    Place place = {1u, uint(max(at, 0))};
    if (at < 0) {
        if (edge == 0u) {
            place.where = s.read == NO_STATE ? 0u : 2u;
            place.row = uint(int(before) + at);
        } else {
            place.row = edge == 1u ? uint(-at) : 0u;
        }
    } else if (at >= int(s.rows)) {
        if (edge == 0u) {
            place.where = 0u;
        } else {
            place.row = edge == 1u ? 2u * (s.rows - 1u) - uint(at) : s.rows - 1u;
        }
    }
    return place;
}

METAL_FUNC float input_at(
    int at, uint channel, Sequence s, device const float *x, device const float *state, constant ConvParams &p) {
    Place place = place_of(at, s, p.before, p.edge);
    if (place.where == 0u) {
        return 0.0f;
    }
    if (place.where == 2u) {
        return state[s.read + ulong(place.row) * p.inputs + channel];
    }
    return x[ulong(s.first + place.row) * p.inputs + channel];
}

// Elements k to k + 7 of the inputs of an output: tap k / inputs, channel k % inputs; zeros behind the end.
METAL_FUNC void read_inputs(
    uint k, Sequence s, device const float *x, device const float *state, constant ConvParams &p, thread float *values) {
    int first = int(s.own * p.stride) - int(p.before);
    uint count = p.taps * p.inputs;
    if (p.inputs % 8 == 0 && k < count) {
        uint channel = k % p.inputs;
        Place place = place_of(first + int(k / p.inputs * p.dilation), s, p.before, p.edge);
        if (place.where == 0u) {
            for (uint i = 0; i < 8; i++) {
                values[i] = 0.0f;
            }
            return;
        }
        device const float *row = place.where == 2u
            ? state + s.read + ulong(place.row) * p.inputs
            : x + ulong(s.first + place.row) * p.inputs;
        for (uint i = 0; i < 8; i++) {
            values[i] = row[channel + i];
        }
        return;
    }
    for (uint i = 0; i < 8; i++) {
        uint at = k + i;
        int row = first + int(at / p.inputs * p.dilation);
        values[i] = at < count ? input_at(row, at % p.inputs, s, x, state, p) : 0.0f;
    }
}

// Writes the last rows of every sequence to the other half of its state; all threads of the grid take part.
METAL_FUNC void keep_rows(
    device const float *x, device float *state, constant uint *table, constant ConvParams &p, uint thread_index,
    uint threads) {
    Sequence s = {0u, 0u, 0u, 0u, NO_STATE, NO_STATE};
    for (uint n = 0; n < p.sequences; n++) {
        s.rows = table[4 * n];
        s.read = table[4 * n + 2];
        s.write = table[4 * n + 3];
        if (s.write != NO_STATE) {
            int from = int(table[4 * n + 1] * p.stride) - int(p.before);
            for (uint at = thread_index; at < p.before * p.inputs; at += threads) {
                uint row = at / p.inputs;
                state[s.write + at] = input_at(from + int(row), at % p.inputs, s, x, state, p);
            }
        }
        s.first += s.rows;
    }
}

// Readers of 8 consecutive stored weights, from a multiple of 8.
struct ReadF16 {
    static METAL_FUNC void read(device const uchar *row, uint at, thread float *w) {
        device const half4 *values = (device const half4 *)(row + 2 * at);
        half4 a = values[0];
        half4 b = values[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = float(a[i]);
            w[i + 4] = float(b[i]);
        }
    }
};
struct ReadBf16 {
    static METAL_FUNC void read(device const uchar *row, uint at, thread float *w) {
        device const ushort4 *values = (device const ushort4 *)(row + 2 * at);
        ushort4 a = values[0];
        ushort4 b = values[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = as_type<float>(uint(a[i]) << 16);
            w[i + 4] = as_type<float>(uint(b[i]) << 16);
        }
    }
};
struct ReadF32 {
    static METAL_FUNC void read(device const uchar *row, uint at, thread float *w) {
        device const float4 *values = (device const float4 *)(row + 4 * at);
        float4 a = values[0];
        float4 b = values[1];
        for (uint i = 0; i < 4; i++) {
            w[i] = a[i];
            w[i + 4] = b[i];
        }
    }
};

METAL_FUNC void write_output(
    float value, uint m, uint o, constant ConvParams &p, device const float *bias, device const float *residual,
    device const float *frequency, device const float *amplitude, device float *y, device float *activated) {
    ulong at = ulong(m) * p.outputs + o;
    if (p.has_bias != 0u) {
        value += bias[o];
    }
    if (p.has_residual != 0u) {
        value += residual[at];
    }
    if ((p.writes & 1u) != 0u) {
        y[at] = value;
    }
    if ((p.writes & 2u) != 0u) {
        activated[at] = activate(value, p.activation, o % p.channels, frequency, amplitude);
    }
}

// A simdgroup computes 4 outputs of ROWS rows; lane l reads elements 8 l to 8 l + 7 of every 256.
template <typename Weights, uint ROWS>
METAL_FUNC void conv_rows(
    device const uchar *weights, device const float *x, device float *y, device float *activated, device float *state,
    device const float *bias, device const float *residual, device const float *frequency, device const float *amplitude,
    constant uint *table, constant ConvParams &p, uint2 group, uint simdgroup, uint simdgroups, uint lane) {
    uint first = (group.x * simdgroups + simdgroup) * 4;
    uint row = group.y * ROWS;
    if (first >= p.outputs) {
        return;
    }
    Sequence sequences[ROWS];
    float sums[4][ROWS];
    for (uint m = 0; m < ROWS; m++) {
        sequences[m] = sequence_of(table, p.sequences, min(row + m, p.rows - 1));
        for (uint o = 0; o < 4; o++) {
            sums[o][m] = 0.0f;
        }
    }
    for (uint at = lane * 8; at < p.taps * p.inputs; at += 256) {
        float w[4][8];
        for (uint o = 0; o < 4; o++) {
            Weights::read(weights + ulong(min(first + o, p.outputs - 1)) * p.row_bytes, at, w[o]);
        }
        for (uint m = 0; m < ROWS; m++) {
            float values[8];
            read_inputs(at, sequences[m], x, state, p, values);
            for (uint o = 0; o < 4; o++) {
                float sum = 0.0f;
                for (uint i = 0; i < 8; i++) {
                    sum = fma(w[o][i], values[i], sum);
                }
                sums[o][m] += sum;
            }
        }
    }
    for (uint m = 0; m < ROWS; m++) {
        float mine = 0.0f;
        for (uint o = 0; o < 4; o++) {
            float value = simd_sum(sums[o][m]);
            mine = o == lane ? value : mine;
        }
        if (row + m < p.rows && lane < 4 && first + lane < p.outputs) {
            write_output(mine, row + m, first + lane, p, bias, residual, frequency, amplitude, y, activated);
        }
    }
}

#define CONV_ROWS(name, reader, rows)                                                                                  \
    kernel void name(                                                                                                  \
        device const uchar *weights [[buffer(0)]], device const float *x [[buffer(1)]],                                \
        device float *y [[buffer(2)]], device float *activated [[buffer(3)]], device float *state [[buffer(4)]],       \
        device const float *bias [[buffer(5)]], device const float *residual [[buffer(6)]],                            \
        device const float *frequency [[buffer(7)]], device const float *amplitude [[buffer(8)]],                      \
        constant uint *table [[buffer(9)]], constant ConvParams &p [[buffer(10)]],                                     \
        uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],                          \
        uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],          \
        uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {                     \
        uint threads = 32 * simdgroups;                                                                                \
        uint own = (group.y * groups.x + group.x) * threads + thread_index;                                            \
        keep_rows(x, state, table, p, own, groups.x * groups.y * threads);                                             \
        conv_rows<reader, rows>(                                                                                       \
            weights, x, y, activated, state, bias, residual, frequency, amplitude, table, p, uint2(group.x, group.y),  \
            simdgroup, simdgroups, lane);                                                                              \
    }
CONV_ROWS(conv_rows_f32_1, ReadF32, 1)
CONV_ROWS(conv_rows_f32_4, ReadF32, 4)
CONV_ROWS(conv_rows_f16_1, ReadF16, 1)
CONV_ROWS(conv_rows_f16_4, ReadF16, 4)
CONV_ROWS(conv_rows_bf16_1, ReadBf16, 1)
CONV_ROWS(conv_rows_bf16_4, ReadBf16, 4)

// A threadgroup of 4 simdgroups computes a tile of 32 rows and 32 outputs; thread t loads line t / 4 of both tiles,
// elements 8 (t % 4) to 8 (t % 4) + 7 of every 32.
template <typename Weights>
METAL_FUNC void conv_tiles(
    device const uchar *weights, device const float *x, device float *y, device float *activated, device float *state,
    device const float *bias, device const float *residual, device const float *frequency, device const float *amplitude,
    constant uint *table, constant ConvParams &p, uint2 group, uint thread_index, uint simdgroup,
    threadgroup float *tile_x, threadgroup float *tile_w) {
    uint first = group.x * 32;
    uint row = group.y * 32;
    uint line = thread_index / 4;
    uint eight = (thread_index % 4) * 8;
    device const uchar *stored = weights + ulong(min(first + line, p.outputs - 1)) * p.row_bytes;
    Sequence sequence = sequence_of(table, p.sequences, min(row + line, p.rows - 1));
    // Simdgroup s adds up the quarter of 16 rows s / 2 and 16 outputs s % 2.
    simdgroup_float8x8 sums[2][2];
    for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 2; j++) {
            sums[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
        }
    }
    uint top = (simdgroup / 2) * 16;
    uint left = (simdgroup % 2) * 16;
    for (uint start = 0; start < p.blocks * 32; start += 32) {
        float values[8];
        float w[8];
        read_inputs(start + eight, sequence, x, state, p, values);
        Weights::read(stored, start + eight, w);
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
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 2; i++) {
        for (uint j = 0; j < 2; j++) {
            simdgroup_store(sums[i][j], tile_x + (top + 8 * i) * 32 + left + 8 * j, 32);
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint n = thread_index; n < 1024; n += 128) {
        uint m = row + n / 32;
        uint o = first + n % 32;
        if (m < p.rows && o < p.outputs) {
            write_output(tile_x[n], m, o, p, bias, residual, frequency, amplitude, y, activated);
        }
    }
}

#define CONV_TILES(name, reader)                                                                                       \
    kernel void name(                                                                                                  \
        device const uchar *weights [[buffer(0)]], device const float *x [[buffer(1)]],                                \
        device float *y [[buffer(2)]], device float *activated [[buffer(3)]], device float *state [[buffer(4)]],       \
        device const float *bias [[buffer(5)]], device const float *residual [[buffer(6)]],                            \
        device const float *frequency [[buffer(7)]], device const float *amplitude [[buffer(8)]],                      \
        constant uint *table [[buffer(9)]], constant ConvParams &p [[buffer(10)]],                                     \
        uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],                          \
        uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]]) {        \
        threadgroup float tile_x[1024];                                                                                \
        threadgroup float tile_w[1024];                                                                                \
        uint own = (group.y * groups.x + group.x) * 128 + thread_index;                                                \
        keep_rows(x, state, table, p, own, groups.x * groups.y * 128);                                                 \
        conv_tiles<reader>(                                                                                            \
            weights, x, y, activated, state, bias, residual, frequency, amplitude, table, p, uint2(group.x, group.y),  \
            thread_index, simdgroup, tile_x, tile_w);                                                                  \
    }
CONV_TILES(conv_tiles_f32, ReadF32)
CONV_TILES(conv_tiles_f16, ReadF16)
CONV_TILES(conv_tiles_bf16, ReadBf16)

struct DepthwiseParams {
    uint inputs;        // channels of x
    uint outputs;       // channels of y: o reads channel o % inputs
    uint taps;
    uint dilation;
    uint rows;          // of all sequences
    uint sequences;
    uint before;        // as in ConvParams
    uint has_bias;
    uint activation;    // as in ConvParams, without Snake
};

// How a row of x becomes the row that is convolved, and what happens to the result.
struct Plain {
    static METAL_FUNC float input(device const float *x, uint width, uint channel) { return x[channel]; }
    static METAL_FUNC float output(float value, device const float *x, uint width, uint channel) { return value; }
    static METAL_FUNC uint parts() { return 1; }
};
// A factor, a gate and an input: factor times input is convolved, the result is gated.
struct Gated {
    static METAL_FUNC float input(device const float *x, uint width, uint channel) {
        return x[channel] * x[2 * width + channel];
    }
    static METAL_FUNC float output(float value, device const float *x, uint width, uint channel) {
        return value * x[width + channel];
    }
    static METAL_FUNC uint parts() { return 3; }
};
// A value and the argument of its sigmoid gate.
struct Glu {
    static METAL_FUNC float input(device const float *x, uint width, uint channel) {
        return x[channel] / (1.0f + precise::exp(-x[width + channel]));
    }
    static METAL_FUNC float output(float value, device const float *x, uint width, uint channel) { return value; }
    static METAL_FUNC uint parts() { return 2; }
};

template <typename Form>
METAL_FUNC float depthwise_input(
    int at, uint channel, Sequence s, device const float *x, device const float *state, constant DepthwiseParams &p) {
    Place place = place_of(at, s, p.before, 0u);
    if (place.where == 0u) {
        return 0.0f;
    }
    if (place.where == 2u) {
        return state[s.read + ulong(place.row) * p.inputs + channel];
    }
    return Form::input(x + ulong(s.first + place.row) * Form::parts() * p.inputs, p.inputs, channel);
}

// A thread computes one output, then its share of the new state.
template <typename Form>
METAL_FUNC void depthwise(
    device const float *weight, device const float *x, device float *y, device float *state, device const float *bias,
    constant uint *table, constant DepthwiseParams &p, uint own, uint threads) {
    if (own < p.rows * p.outputs) {
        uint row = own / p.outputs;
        uint o = own % p.outputs;
        uint channel = o % p.inputs;
        Sequence s = sequence_of(table, p.sequences, row);
        float sum = p.has_bias != 0u ? bias[o] : 0.0f;
        for (uint tap = 0; tap < p.taps; tap++) {
            int at = int(s.own + tap * p.dilation) - int(p.before);
            sum += weight[tap * p.outputs + o] * depthwise_input<Form>(at, channel, s, x, state, p);
        }
        sum = Form::output(sum, x + ulong(s.first + s.own) * Form::parts() * p.inputs, p.inputs, channel);
        y[own] = activate(sum, p.activation, 0u, weight, weight);
    }
    Sequence s = {0u, 0u, 0u, 0u, NO_STATE, NO_STATE};
    for (uint n = 0; n < p.sequences; n++) {
        s.rows = table[4 * n];
        s.read = table[4 * n + 2];
        s.write = table[4 * n + 3];
        if (s.write != NO_STATE) {
            for (uint at = own; at < p.before * p.inputs; at += threads) {
                int row = int(s.rows + at / p.inputs) - int(p.before);
                state[s.write + at] = depthwise_input<Form>(row, at % p.inputs, s, x, state, p);
            }
        }
        s.first += s.rows;
    }
}

#define DEPTHWISE(name, form)                                                                                          \
    kernel void name(                                                                                                  \
        device const float *weight [[buffer(0)]], device const float *x [[buffer(1)]], device float *y [[buffer(2)]],  \
        device float *state [[buffer(3)]], device const float *bias [[buffer(4)]],                                     \
        constant uint *table [[buffer(5)]], constant DepthwiseParams &p [[buffer(6)]],                                 \
        uint3 group [[threadgroup_position_in_grid]], uint3 groups [[threadgroups_per_grid]],                          \
        uint thread_index [[thread_index_in_threadgroup]]) {                                                           \
        depthwise<form>(                                                                                               \
            weight, x, y, state, bias, table, p, group.x * 256 + thread_index, groups.x * 256);                        \
    }
DEPTHWISE(depthwise_plain, Plain)
DEPTHWISE(depthwise_gated, Gated)
DEPTHWISE(depthwise_glu, Glu)

struct CopyParams {
    uint from;
    uint to;
    uint count;
};

kernel void copy_elements(
    device const float *from [[buffer(0)]], device float *to [[buffer(1)]], constant CopyParams &p [[buffer(2)]],
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
    uint at = group.x * 256 + thread_index;
    if (at < p.count) {
        to[p.to + at] = from[p.from + at];
    }
}

struct Depthwise2dParams {
    uint count;     // rows of x
    uint columns;   // of x
    uint channels;
    uint shift;     // row of x around which the first output row is
    uint rows;      // of y
};

// 3 x 3 taps around every second row and column of a plane [rows, columns, channels], zeros outside.
kernel void depthwise_2d(
    device const float *weight [[buffer(0)]], device const float *x [[buffer(1)]], device float *y [[buffer(2)]],
    device const float *bias [[buffer(3)]], constant Depthwise2dParams &p [[buffer(4)]],
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
    uint halved = (p.columns + 1) / 2;
    uint own = group.x * 256 + thread_index;
    if (own >= p.rows * halved * p.channels) {
        return;
    }
    uint channel = own % p.channels;
    uint column = own / p.channels % halved;
    uint row = own / p.channels / halved;
    float sum = bias[channel];
    for (uint tap = 0; tap < 9; tap++) {
        int at = int(p.shift + 2 * row + tap / 3) - 1;
        int beside = int(2 * column + tap % 3) - 1;
        if (at >= 0 && at < int(p.count) && beside >= 0 && beside < int(p.columns)) {
            sum += weight[tap * p.channels + channel] * x[(ulong(at) * p.columns + uint(beside)) * p.channels + channel];
        }
    }
    y[own] = sum;
}
