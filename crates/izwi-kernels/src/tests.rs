//! Every level against the portable one, at sizes with remainders.

use std::mem::MaybeUninit;

use half::{bf16, f16};

use crate::arch::{Element, Isa, IsaLevel, Kernel, LANES, dispatch, forced};
use crate::attention::{PagedCache, PagedQuery, Span, attention, pack_heads, paged_attention};
use crate::elementwise::{RmsNorm, apply_rope, bias_gelu, bias_gelu_tanh, layer_norm, silu_mul};
use crate::linear::panels::{self, Panels, Rows, Strides};
use crate::linear::{WeightSource, WeightType, Weights};

/// Compares the results of `work` at every supported level with those of the portable level. Small work stays on the
/// calling thread, so that the level holds for all of it.
pub(crate) fn check(name: &str, tolerance: f32, work: impl Fn() -> Vec<f32>) {
    let expected = forced::at(IsaLevel::Portable, &work);
    for level in supported() {
        let results = forced::at(level, &work);
        for (index, (a, b)) in results.iter().zip(&expected).enumerate() {
            assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{name} {level:?} [{index}]: {a} {b}");
        }
    }
}

/// As [`check`], to the bit.
fn check_exact(name: &str, work: impl Fn() -> Vec<f32>) {
    let bits = |level| forced::at(level, &work).iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
    let expected = bits(IsaLevel::Portable);
    for level in supported() {
        assert!(bits(level) == expected, "{name} {level:?}");
    }
}

fn product<W: Element>(x: Rows<'_>, weights: &Panels<W>, bias: Option<&[f32]>, y: &mut [f32]) {
    let mut written = vec![MaybeUninit::new(f32::NAN); y.len()];
    panels::product(x, weights, bias, &mut written);
    // SAFETY: every place has a number, if only the first one.
    y.iter_mut().zip(written).for_each(|(y, written)| *y = unsafe { written.assume_init() });
}

fn supported() -> impl Iterator<Item = IsaLevel> {
    IsaLevel::ALL.iter().copied().filter(|level| level.is_supported())
}

pub(crate) fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// The results of the operations that every level rounds alike.
struct Operations<'a> {
    bits: [[u32; LANES]; 2],
    to: &'a mut Vec<f32>,
}

// SAFETY: accesses only its own arrays.
unsafe impl Kernel for Operations<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let from = self.bits[0].as_ptr();
        let (a, b) = (I::load(from.cast()), I::load(self.bits[1].as_ptr().cast()));
        let results = [
            I::min(a, b),
            I::max(a, b),
            I::add(a, b),
            I::sub(a, b),
            I::mul(a, b),
            I::div(a, b),
            I::scale(a, b),
            I::load_f16(from.cast()),
            I::load_bf16(from.cast()),
            I::splat(I::sum(a)),
        ];
        for result in results {
            let mut lanes = [0f32; LANES];
            I::store(lanes.as_mut_ptr(), result);
            self.to.extend(lanes);
        }
    }
}

#[test]
fn operations_equal_the_portable_ones_on_numbers_of_every_kind() {
    let kinds = [0.0, 1.0, 2.5, 1e-40, f32::MIN_POSITIVE, 1e30, f32::INFINITY, f32::NAN];
    let kinds: Vec<u32> = kinds.iter().flat_map(|kind| [kind.to_bits(), (-kind).to_bits()]).collect();
    let others: Vec<u32> = values(4096, 5).iter().map(|x| x.to_bits().wrapping_mul(0x9e37_79b9)).collect();
    check_exact("operations", || {
        let mut results = Vec::new();
        for turn in 0..LANES {
            let bits = [
                std::array::from_fn(|lane| kinds[lane]),
                std::array::from_fn(|lane| kinds[(lane + turn) % LANES]),
            ];
            dispatch(Operations { bits, to: &mut results });
        }
        for others in others.as_chunks::<{ 2 * LANES }>().0 {
            let (a, b) = others.split_at(LANES);
            dispatch(Operations { bits: [*a.as_array().unwrap(), *b.as_array().unwrap()], to: &mut results });
        }
        // A NaN is one at every level, but its bits may differ.
        results.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }).collect()
    });
}

/// Products of pairs, exact at every level where the numbers are small integers.
struct Pairs<'a> {
    values: [[f32; LANES]; 3],
    to: &'a mut [f32; LANES],
}

// SAFETY: accesses only its own arrays.
unsafe impl Kernel for Pairs<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let [a, b, c] = &self.values;
        let (a, b, c) = (I::load(a.as_ptr()), I::load(b.as_ptr()), I::load(c.as_ptr()));
        I::store(self.to.as_mut_ptr(), I::dot_bf16_pairs(a, b, c));
    }
}

#[test]
fn products_of_pairs_are_those_of_their_halves() {
    let small = |seed| values(2 * LANES, seed).iter().map(|x| (x * 30.0).round()).collect::<Vec<f32>>();
    let (a, b, c) = (small(1), small(2), small(3));
    let pair = |of: &[f32]| {
        std::array::from_fn(|lane| f32::from_bits(of[2 * lane].to_bits() >> 16 | of[2 * lane + 1].to_bits()))
    };
    let exact: Vec<f32> = (0..LANES)
        .map(|lane| a[2 * lane] * b[2 * lane] + a[2 * lane + 1] * b[2 * lane + 1] + c[lane])
        .collect();
    check_exact("pairs", || {
        let mut to = [0f32; LANES];
        dispatch(Pairs { values: [pair(&a), pair(&b), std::array::from_fn(|lane| c[lane])], to: &mut to });
        assert_eq!(to, exact[..]);
        to.to_vec()
    });
}

#[test]
fn products_at_odd_sizes() {
    for (rows, inputs, outputs) in
        [(1, 1, 1), (1, 37, 130), (2, 64, 64), (7, 33, 65), (13, 100, 17), (5, 0, 3)]
    {
        let (x, w, bias) = (values(rows * inputs, 1), values(inputs * outputs, 2), values(outputs, 3));
        let strides = Strides { input: 1, output: inputs };
        let single: Panels<f32> = Panels::pack(&w, strides, inputs, outputs);
        let half: Panels<f16> = Panels::pack(&w, strides, inputs, outputs);
        let x = Rows { data: &x, stride: inputs, count: rows };
        for precision in [WeightType::Bf16, WeightType::F16, WeightType::F32] {
            check("weights", 1e-5, || {
                let weights = Weights::pack(WeightSource::F32(&w), inputs, outputs, precision);
                let mut y = vec![0.0; rows * outputs];
                weights.product(x, Some(&bias), &mut y);
                y
            });
        }
        check("f32", 1e-5, || {
            let mut y = vec![0.0; rows * outputs];
            product(x, &single, Some(&bias), &mut y);
            y
        });
        check("f16", 1e-5, || {
            let mut y = vec![0.0; rows * outputs];
            product(x, &half, None, &mut y);
            y
        });
    }
}

#[test]
fn quantised_products_are_the_same_at_every_level() {
    for (rows, inputs, outputs) in [
        (1, 1, 1),
        (1, 32, 32),
        (2, 37, 130),
        (3, 64, 31),
        (7, 300, 65),
        (19, 96, 33),
        (50, 290, 40),
        (5, 0, 3),
    ] {
        let x: Vec<f32> = values(rows * inputs, 1).iter().map(|x| x * x * x).collect();
        let (w, bias) = (values(inputs * outputs, 2), values(outputs, 3));
        for precision in [WeightType::Q8, WeightType::Q4] {
            check_exact("few bits", || {
                let weights = Weights::pack(WeightSource::F32(&w), inputs, outputs, precision);
                let mut y = vec![0.0; rows * outputs];
                weights.product(Rows { data: &x, stride: inputs, count: rows }, Some(&bias), &mut y);
                assert!(
                    y == weights.product_to_vec(Rows { data: &x, stride: inputs, count: rows }, Some(&bias))
                );
                (0..outputs).for_each(|output| weights.push_column(output, &mut y));
                y
            });
        }
    }
}

#[test]
fn quantised_rows_are_the_same_alone_and_in_any_batch() {
    let (inputs, outputs, most) = (70, 37, 101);
    let (x, w) = (values(most * inputs, 1), values(inputs * outputs, 2));
    for precision in [WeightType::Q8, WeightType::Q4] {
        let weights = Weights::pack(WeightSource::F32(&w), inputs, outputs, precision);
        let product = |first: usize, count: usize| {
            let x = Rows { data: &x[first * inputs..], stride: inputs, count };
            weights.product_to_vec(x, None)
        };
        for level in supported() {
            forced::at(level, || {
                let alone: Vec<f32> = (0..most).flat_map(|row| product(row, 1)).collect();
                for count in (2..18).chain([47, 48, 49, 97, most]) {
                    assert!(product(0, count) == alone[..count * outputs], "{level:?}, {count} rows");
                }
            });
        }
    }
}

#[test]
fn extreme_levels_are_exact() {
    // All weights and rows at ±127 levels of scale 1: the largest sums a block can have.
    for sign in [1.0, -1.0] {
        let (w, x) = (vec![127.0; 64 * 40], vec![127.0 * sign; 2 * 64]);
        check_exact("extreme", || {
            let mut y = vec![0.0; 2 * 40];
            let weights = Weights::pack(WeightSource::F32(&w), 64, 40, WeightType::Q8);
            weights.product(Rows { data: &x, stride: 64, count: 2 }, None, &mut y);
            assert!(y.iter().all(|&y| y == sign * 64.0 * 127.0 * 127.0), "{y:?}");
            y
        });
    }
}

#[test]
fn a_product_is_the_plain_sum() {
    let (x, w) = (values(3 * 50, 4), values(50 * 70, 5));
    let panels: Panels<f32> = Panels::pack(&w, Strides { input: 1, output: 50 }, 50, 70);
    let mut y = vec![0.0; 3 * 70];
    product(Rows { data: &x, stride: 50, count: 3 }, &panels, None, &mut y);
    for (index, y) in y.iter().enumerate() {
        let (row, column) = (index / 70, index % 70);
        let exact: f64 = (0..50).map(|k| f64::from(x[row * 50 + k]) * f64::from(w[column * 50 + k])).sum();
        assert!((f64::from(*y) - exact).abs() < 1e-5, "{row} {column}: {y} {exact}");
    }
}

#[test]
fn rows_may_overlap() {
    let (x, w) = (values(40, 6), values(6 * 5, 7));
    let panels: Panels<f32> = Panels::pack(&w, Strides { input: 1, output: 6 }, 6, 5);
    let mut y = vec![0.0; 9 * 5];
    product(Rows { data: &x, stride: 4, count: 9 }, &panels, None, &mut y);
    for row in 0..9 {
        let mut alone = vec![0.0; 5];
        product(Rows { data: &x[row * 4..], stride: 6, count: 1 }, &panels, None, &mut alone);
        assert_eq!(alone, y[row * 5..][..5]);
    }
}

#[test]
fn gelu_and_norm_at_odd_widths() {
    for width in [1, 15, 16, 17, 100] {
        let x: Vec<f32> = values(5 * width, 8).iter().map(|x| x * 6.0).collect();
        let (weight, bias) = (values(width, 9), values(width, 10));
        check("gelu", 1e-6, || {
            let mut y = vec![0.0; x.len()];
            bias_gelu(&x, &bias, &mut y);
            y
        });
        check("gelu by tanh", 1e-6, || {
            let mut y = vec![0.0; x.len()];
            bias_gelu_tanh(&x, &bias, &mut y);
            y
        });
        check("norm", if width == 1 { 1e-2 } else { 1e-5 }, || {
            let mut y = vec![0.0; x.len()];
            layer_norm(&x, &weight, &bias, 1e-5, &mut y);
            y
        });
    }
}

#[test]
fn root_mean_square_rotation_and_gate_at_odd_widths() {
    for half in [1, 8, 15, 16, 17, 64] {
        let width = 2 * half;
        let (x, weight) = (values(6 * width, 8), values(width, 9));
        let norm = RmsNorm { weight: &weight, eps: 1e-5 };
        let rows = Rows { data: &x, stride: 2 * width, count: 3 };
        let angles = values(half, 10);
        let turns: Vec<f32> = angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect();
        let with = |work: &dyn Fn(&mut Vec<f32>)| {
            let mut y = vec![0.0; 3 * width];
            work(&mut y);
            y
        };
        check("rms norm", 1e-5, || with(&|y| norm.forward(rows, width, y)));
        for norm in [None, Some(norm)] {
            check("apply_rope", 1e-5, || with(&|y| apply_rope(rows, width, &[&turns[..]; 3], norm, y)));
        }
        check("gate", 1e-5, || with(&|y| silu_mul(rows, width, y)));
        let plain = |row: usize, i: usize| {
            let (gate, up) = (x[row * 2 * width + i], x[row * 2 * width + width + i]);
            gate / (1.0 + (-gate).exp()) * up
        };
        let y = with(&|y| silu_mul(rows, width, y));
        assert!((0..3 * width).all(|at| (y[at] - plain(at / width, at % width)).abs() < 1e-6));
    }
}

#[test]
fn attention_at_odd_sizes() {
    for (rows, heads, head_dim) in [(1, 1, 1), (5, 2, 17), (30, 1, 64), (27, 2, 70)] {
        let width = heads * head_dim;
        let [q, k, v] = [11, 12, 13].map(|seed| values(rows * width, seed));
        let packed = pack_heads::<f32>(&k, &v, heads, head_dim, &[rows]);
        check("attend", 1e-5, || {
            let mut y = vec![0.0; q.len()];
            let span = Span { rows, heads: &packed[0] };
            attention(&q, &[span], head_dim, &[], &mut y, &mut []);
            y
        });
        let table: Vec<u32> = (0..rows as u32).rev().collect();
        let queries: Vec<_> = (1..=rows).map(|positions| PagedQuery { positions, table: &table }).collect();
        for group in [1, 2, 3, 7] {
            let q = values(rows * width * group, 14);
            let heads = (heads * group, heads);
            check("paged", 1e-5, || paged(&q, &queries, (&k, &v), heads, head_dim));
            let [k, v] = [&k, &v].map(|x| x.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>());
            check("paged bf16", 1e-5, || paged(&q, &queries, (&k, &v), heads, head_dim));
        }
    }
}

fn paged<W: Element>(
    q: &[f32],
    rows: &[PagedQuery<'_>],
    (keys, values): (&[W], &[W]),
    (heads, kv_heads): (usize, usize),
    head_dim: usize,
) -> Vec<f32> {
    let mut y = vec![0.0; q.len()];
    let cache = PagedCache { keys, values, block_size: 1, heads, kv_heads, head_dim };
    paged_attention(q, rows, &cache, &mut y);
    y
}
