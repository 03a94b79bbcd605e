// Sums of embeddings, one row of each of several tables.
#include <metal_stdlib>
using namespace metal;

constant uint MAX_TABLES = 16;

struct EmbeddingParams {
    uint width;
    uint tables;
    uint id_row;      // elements from the id of a row to that of the next
    uint id_table;    // elements from the id of a table to that of the next
    uint has_add;
    uint add_stride;  // elements from a row of `add` to the next
    uint settings[3 * 16];  // of each table: the first entry, the entries from there, and the type (0 f32, 1 f16, 2 bf16)
};

METAL_FUNC float read_table(device const uchar *table, uint dtype, ulong at) {
    if (dtype == 0u) {
        return ((device const float *)table)[at];
    }
    if (dtype == 1u) {
        return float(((device const half *)table)[at]);
    }
    return as_type<float>(uint(((device const ushort *)table)[at]) << 16);
}

#define TABLE(n, at) device const uchar *t##n [[buffer(at)]]
kernel void embedding_sum(
    device const uint *ids [[buffer(0)]], device const float *add [[buffer(1)]], device float *y [[buffer(2)]],
    constant EmbeddingParams &p [[buffer(3)]], TABLE(0, 4), TABLE(1, 5), TABLE(2, 6), TABLE(3, 7), TABLE(4, 8),
    TABLE(5, 9), TABLE(6, 10), TABLE(7, 11), TABLE(8, 12), TABLE(9, 13), TABLE(10, 14), TABLE(11, 15), TABLE(12, 16),
    TABLE(13, 17), TABLE(14, 18), TABLE(15, 19), uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]]) {
    uint d = group.x * 256 + thread_index;
    if (d >= p.width) {
        return;
    }
    device const uchar *tables[16] = {t0, t1, t2, t3, t4, t5, t6, t7, t8, t9, t10, t11, t12, t13, t14, t15};
    float sum = 0.0f;
    for (uint t = 0; t < MAX_TABLES; t++) {
        if (t < p.tables) {
            uint id = min(ids[group.y * p.id_row + t * p.id_table], p.settings[3 * t + 1] - 1u);
            ulong at = ulong(p.settings[3 * t] + id) * p.width + d;
            float value = read_table(tables[t], p.settings[3 * t + 2], at);
            sum = t == 0u ? value : sum + value;
        }
    }
    if (p.has_add != 0u) {
        sum = add[ulong(group.y) * p.add_stride + d] + sum;
    }
    y[ulong(group.y) * p.width + d] = sum;
}
