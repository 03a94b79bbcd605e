// Draws one token for each row of logits and looks up its embedding: a threadgroup for each row.
//
// Probabilities are integers, 2^40 for the most likely token: their sums are exact in any order, so that a draw depends on
// neither the batch nor the number of threads. Top-k, top-p and the walk in the order of tokens are searches for a key,
// two bits at a time.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

struct DrawParams {
    uint codes;       // logits of a row
    uint id_bits;     // bits of a token, even
    uint first;       // setting of the first row
    uint mask_words;  // words of a row of drawn tokens; 0: no row is penalised
    uint width;       // of the embedding; 0: none
    uint entries;     // of its table
    uint dtype;       // of its table: 0 f32, 1 f16, 2 bf16
    uint has_add;
    uint add_stride;  // elements from a row of `add` to the next
    uint add_offset;  // elements before the first
    uint out_stride;
    uint out_offset;
};

// As `Setting` of sampling.rs.
struct Setting {
    uint uniform_high;     // a fraction of 2^64, in two words
    uint uniform_low;
    float temperature;     // 0: the most likely token
    uint top_k;            // 0: all
    uint top_p;            // a fraction of 2^32; 0: all
    float penalty;         // 1: none
    uint first_forbidden;  // this token and those behind it are never drawn
    uint allowed;          // except for this one
};

// A thread among those of its group.
struct Place {
    uint thread_index;
    uint threads;
    uint lane;
    uint simdgroup;
    uint simdgroups;
};

struct Tokens {
    device const float *logits;
    device const uint *drawn;
    uint codes;
    uint last_id;  // all bits of a token set
    Setting setting;
    float peak;    // largest logit divided by the temperature
    // Tokens whose logit has a smaller key are dropped by top-k.
    uint threshold;
    // Those below this pair of key and id are dropped by top-p.
    uint edge;
    uint edge_id;
};

// Orders logits as unsigned integers.
METAL_FUNC uint order_key(float logit) {
    uint bits = as_type<uint>(logit);
    return (bits & 0x80000000u) != 0u ? ~bits : bits | 0x80000000u;
}

METAL_FUNC float logit_of_key(uint key) {
    return as_type<float>((key & 0x80000000u) != 0u ? key ^ 0x80000000u : ~key);
}

// The logit of a token after penalty and restriction; no NaN and no negative zero.
METAL_FUNC float logit(thread const Tokens &tokens, uint id) {
    if (id >= tokens.setting.first_forbidden && id != tokens.setting.allowed) {
        return -INFINITY;
    }
    float value = tokens.logits[id];
    if (tokens.setting.penalty != 1.0f && ((tokens.drawn[id / 32u] >> (id % 32u)) & 1u) != 0u) {
        value = value < 0.0f ? value * tokens.setting.penalty : value / tokens.setting.penalty;
    }
    return value == value ? value + 0.0f : -INFINITY;
}

// Probability of a logit, as a fraction of 2^40 of the most likely one.
METAL_FUNC ulong mass(thread const Tokens &tokens, float logit) {
    float weight = precise::exp(logit / tokens.setting.temperature - tokens.peak);
    return weight > 0.0f ? ulong(weight * 1099511627776.0f) : 0ul;
}

// Each kind of search gives a token a key and an amount.
struct CountByLogit {
    static METAL_FUNC ulong amount(thread const Tokens &tokens, uint id, thread uint &key) {
        key = order_key(logit(tokens, id));
        return 1ul;
    }
};
struct MassByLogit {
    static METAL_FUNC ulong amount(thread const Tokens &tokens, uint id, thread uint &key) {
        float value = logit(tokens, id);
        key = order_key(value);
        return key >= tokens.threshold ? mass(tokens, value) : 0ul;
    }
};
// Of tokens at the edge of top-p.
struct MassOfTies {
    static METAL_FUNC ulong amount(thread const Tokens &tokens, uint id, thread uint &key) {
        float value = logit(tokens, id);
        key = id;
        return order_key(value) == tokens.edge ? mass(tokens, value) : 0ul;
    }
};
// Of tokens that may be drawn, the first token with the largest key.
struct MassFromStart {
    static METAL_FUNC ulong amount(thread const Tokens &tokens, uint id, thread uint &key) {
        float value = logit(tokens, id);
        uint own = order_key(value);
        key = tokens.last_id - id;
        bool is_kept = own >= tokens.threshold && (own > tokens.edge || (own == tokens.edge && id >= tokens.edge_id));
        return is_kept ? mass(tokens, value) : 0ul;
    }
};

// The sum of a simdgroup's values below 2^51.
METAL_FUNC ulong sum_lanes(ulong value) {
    return (ulong(simd_sum(uint(value >> 24))) << 24) + ulong(simd_sum(uint(value & 0xFFFFFFul)));
}

// Three sums over the threadgroup. `partial` has two halves, so that one barrier suffices.
METAL_FUNC void sum_group(thread ulong *amounts, thread uint &round, threadgroup ulong *partial, Place place) {
    uint start = (round % 2u) * 96u;
    round += 1u;
    for (uint i = 0; i < 3; i++) {
        ulong sum = sum_lanes(amounts[i]);
        if (place.lane == 0u) {
            partial[start + i * 32u + place.simdgroup] = sum;
        }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint i = 0; i < 3; i++) {
        amounts[i] = 0ul;
        for (uint s = 0; s < place.simdgroups; s++) {
            amounts[i] += partial[start + i * 32u + s];
        }
    }
}

// The sum of the amounts of keys from `from`.
template <typename Kind>
METAL_FUNC ulong sum_from(
    thread const Tokens &tokens, uint from, thread uint &round, threadgroup ulong *partial, Place place) {
    ulong amounts[3] = {0ul, 0ul, 0ul};
    for (uint id = place.thread_index; id < tokens.codes; id += place.threads) {
        uint key;
        ulong amount = Kind::amount(tokens, id, key);
        amounts[0] += key >= from ? amount : 0ul;
    }
    sum_group(amounts, round, partial, place);
    return amounts[0];
}

// The largest key of `bits` bits such that the amounts of keys from it add up to `goal`; 0 if none does.
template <typename Kind>
METAL_FUNC uint search(
    thread const Tokens &tokens, uint bits, ulong goal, thread uint &round, threadgroup ulong *partial, Place place) {
    uint found = 0u;
    for (uint shift = bits; shift > 0u;) {
        shift -= 2u;
        ulong amounts[3] = {0ul, 0ul, 0ul};
        for (uint id = place.thread_index; id < tokens.codes; id += place.threads) {
            uint key;
            ulong amount = Kind::amount(tokens, id, key);
            for (uint i = 0; i < 3; i++) {
                amounts[i] += key >= found + ((i + 1u) << shift) ? amount : 0ul;
            }
        }
        sum_group(amounts, round, partial, place);
        uint digit = amounts[2] >= goal ? 3u : amounts[1] >= goal ? 2u : amounts[0] >= goal ? 1u : 0u;
        found += digit << shift;
    }
    return found;
}

// `value` times a fraction of 2^64 in two words, rounded down.
METAL_FUNC ulong times_fraction(ulong value, uint high, uint low) {
    ulong a = value >> 32;
    ulong b = value & 0xFFFFFFFFul;
    ulong c = b * high;
    ulong d = a * low + ((b * low) >> 32);
    ulong carry = ((c & 0xFFFFFFFFul) + (d & 0xFFFFFFFFul)) >> 32;
    return a * high + (c >> 32) + (d >> 32) + carry;
}

// The first of the largest logits, and its key.
METAL_FUNC uint find_largest(thread const Tokens &tokens, thread uint &peak_key, threadgroup ulong *partial, Place place) {
    uint best = 0u;
    uint best_id = 0xFFFFFFFFu;
    for (uint id = place.thread_index; id < tokens.codes; id += place.threads) {
        uint key = order_key(logit(tokens, id));
        if (key > best) {
            best = key;
            best_id = id;
        }
    }
    uint largest = simd_max(best);
    best_id = simd_min(best == largest ? best_id : 0xFFFFFFFFu);
    if (place.lane == 0u) {
        partial[place.simdgroup] = (ulong(largest) << 32) | ulong(0xFFFFFFFFu - best_id);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    ulong found = 0ul;
    for (uint s = 0; s < place.simdgroups; s++) {
        found = partial[s] > found ? partial[s] : found;
    }
    peak_key = uint(found >> 32);
    return 0xFFFFFFFFu - uint(found & 0xFFFFFFFFul);
}

METAL_FUNC uint draw_row(thread Tokens &tokens, uint id_bits, threadgroup ulong *partial, Place place) {
    uint peak_key;
    uint largest = find_largest(tokens, peak_key, partial, place);
    float peak = logit_of_key(peak_key);
    if (!(tokens.setting.temperature > 0.0f) || peak == -INFINITY) {
        return largest;
    }
    tokens.peak = peak / tokens.setting.temperature;
    // The first sums are written to the half of `partial` that is free.
    uint round = 1u;
    uint top_k = tokens.setting.top_k;
    if (top_k > 0u && top_k < tokens.codes) {
        tokens.threshold = search<CountByLogit>(tokens, 32u, ulong(top_k), round, partial, place);
    }
    if (tokens.setting.top_p > 0u) {
        ulong total = sum_from<MassByLogit>(tokens, 0u, round, partial, place);
        ulong goal = max(times_fraction(total, tokens.setting.top_p, 0u), 1ul);
        tokens.edge = search<MassByLogit>(tokens, 32u, goal, round, partial, place);
        ulong above = sum_from<MassByLogit>(tokens, tokens.edge + 1u, round, partial, place);
        tokens.edge_id = search<MassOfTies>(tokens, id_bits, goal - above, round, partial, place);
    }
    ulong total = sum_from<MassFromStart>(tokens, 0u, round, partial, place);
    if (total == 0ul) {
        return largest;
    }
    ulong goal = times_fraction(total, tokens.setting.uniform_high, tokens.setting.uniform_low) + 1ul;
    return tokens.last_id - search<MassFromStart>(tokens, id_bits, goal, round, partial, place);
}

METAL_FUNC float read_table(device const uchar *table, uint dtype, ulong at) {
    if (dtype == 0u) {
        return ((device const float *)table)[at];
    }
    if (dtype == 1u) {
        return float(((device const half *)table)[at]);
    }
    return as_type<float>(uint(((device const ushort *)table)[at]) << 16);
}

kernel void draw(
    device const float *logits [[buffer(0)]], device const Setting *settings [[buffer(1)]],
    device uint *drawn [[buffer(2)]], device uint *codes [[buffer(3)]], constant DrawParams &p [[buffer(4)]],
    device const uchar *table [[buffer(5)]], device const float *add [[buffer(6)]], device float *out [[buffer(7)]],
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]],
    uint3 threads [[threads_per_threadgroup]], uint lane [[thread_index_in_simdgroup]],
    uint simdgroup [[simdgroup_index_in_threadgroup]], uint simdgroups [[simdgroups_per_threadgroup]]) {
    threadgroup ulong partial[192];
    uint row = group.x;
    Place place = {thread_index, threads.x, lane, simdgroup, simdgroups};
    device uint *own = drawn + ulong(row) * p.mask_words;
    Tokens tokens;
    tokens.logits = logits + ulong(row) * p.codes;
    tokens.drawn = own;
    tokens.codes = p.codes;
    tokens.last_id = (1u << p.id_bits) - 1u;
    tokens.setting = settings[p.first + row];
    if (p.mask_words == 0u) {
        tokens.setting.penalty = 1.0f;
    }
    tokens.threshold = 0u;
    tokens.edge = 0u;
    tokens.edge_id = 0u;
    uint code = draw_row(tokens, p.id_bits, partial, place);
    if (thread_index == 0u) {
        codes[row] = code;
        if (tokens.setting.penalty != 1.0f) {
            own[code / 32u] |= 1u << (code % 32u);
        }
    }
    ulong entry = ulong(min(code, p.entries - 1u)) * p.width;
    for (uint at = thread_index; at < p.width; at += threads.x) {
        float value = read_table(table, p.dtype, entry + at);
        if (p.has_add != 0u) {
            value += add[ulong(row) * p.add_stride + p.add_offset + at];
        }
        out[ulong(row) * p.out_stride + p.out_offset + at] = value;
    }
}
