//! Every instruction set against the portable twin, at sizes with remainders.

use std::cell::Cell;

use half::f16;

use super::attend::{Span, attend, pack_heads};
use super::elementwise::{bias_gelu, layer_norm};
use super::paged::{self, Cache, Query};
use super::panels::{Panels, Rows, Strides, product};

/// What a test makes the kernels on its own thread use.
#[derive(Debug, Clone, Copy)]
pub(super) enum Forced {
    Portable,
    Avx2,
}

thread_local! {
    pub(super) static FORCED: Cell<Option<Forced>> = const { Cell::new(None) };
}

/// Small work stays on the calling thread, so that the choice holds for all of it.
pub(super) fn check(name: &str, tolerance: f32, work: impl Fn() -> Vec<f32>) {
    FORCED.set(Some(Forced::Portable));
    let twin = work();
    for forced in [None, Some(Forced::Avx2)] {
        FORCED.set(forced);
        for (index, (a, b)) in work().iter().zip(&twin).enumerate() {
            assert!((a - b).abs() <= tolerance * b.abs().max(1.0), "{name} {forced:?} [{index}]: {a} {b}");
        }
    }
    FORCED.set(None);
}

pub(super) fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
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
        check("norm", if width == 1 { 1e-2 } else { 1e-5 }, || {
            let mut y = vec![0.0; x.len()];
            layer_norm(&x, &weight, &bias, 1e-5, &mut y);
            y
        });
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
            attend(&q, &[span], head_dim, &[], &mut y, &mut []);
            y
        });
        let table: Vec<u32> = (0..rows as u32).rev().collect();
        let queries: Vec<_> = (1..=rows).map(|positions| Query { positions, table: &table }).collect();
        let cache = Cache { keys: &k, values: &v, block_size: 1, heads, kv_heads: heads, head_dim };
        check("paged", 1e-5, || {
            let mut y = vec![0.0; q.len()];
            paged::attend(&q, &queries, &cache, &mut y);
            y
        });
    }
}
