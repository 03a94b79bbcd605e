//! Functions of one row or one element: exponential, softmax, layer norm, GELU.

use super::isa::{Isa, Job, LANES, dispatch, load_part, store_part};
use super::threads::{Shared, for_each_task};

/// Elements of one parallel task.
const TASK: usize = 32 * 1024;

/// `e^x` within 2e-7 for `x` in -86..=88, as Cephes: <https://www.netlib.org/cephes/> (`expf`). Smaller `x` give
/// `e^-86`, nothing beside a largest term of 1.
#[inline(always)]
unsafe fn exp<I: Isa>(x: I::V) -> I::V {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const TERMS: [f32; 6] =
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
    let x = I::min(I::max(x, I::splat(-86.0)), I::splat(88.0));
    let n = I::fma(x, I::splat(std::f32::consts::LOG2_E), I::splat(MAGIC));
    let whole = I::sub(n, I::splat(MAGIC));
    let x = I::fma(whole, I::splat(-0.693_359_4), x);
    let x = I::fma(whole, I::splat(2.121_944_4e-4), x);
    let mut p = I::splat(TERMS[0]);
    for term in &TERMS[1..] {
        p = I::fma(p, x, I::splat(*term));
    }
    I::scale(I::fma(p, I::mul(x, x), I::add(x, I::splat(1.0))), n)
}

/// Makes `e^(x - max)` of `count` values in place and answers `1 / sum`.
///
/// # Safety
/// As [`Isa`], with `count` rounded up to 16 elements valid; what is beyond `count` is overwritten.
#[inline(always)]
pub(crate) unsafe fn softmax<I: Isa>(values: *mut f32, count: usize) -> f32 {
    let padded = count.next_multiple_of(LANES);
    (count..padded).for_each(|at| *values.add(at) = f32::NEG_INFINITY);
    let mut largest = I::splat(f32::NEG_INFINITY);
    for at in (0..padded).step_by(LANES) {
        largest = I::max(largest, I::load(values.add(at)));
    }
    let mut lanes = [0f32; LANES];
    I::store(lanes.as_mut_ptr(), largest);
    let largest = I::splat(lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let mut sum = I::splat(0.0);
    for at in (0..padded).step_by(LANES) {
        let e = exp::<I>(I::sub(I::load(values.add(at)), largest));
        I::store(values.add(at), e);
        sum = I::add(sum, e);
    }
    1.0 / I::sum(sum)
}

/// Multiplies `count` values in place.
///
/// # Safety
/// `count` elements are valid.
#[inline(always)]
pub(crate) unsafe fn scale_in_place<I: Isa>(values: *mut f32, count: usize, factor: f32) {
    let factor = I::splat(factor);
    for at in (0..count).step_by(LANES) {
        let part = count - at;
        store_part::<I>(values.add(at), I::mul(load_part::<I>(values.add(at), part, 0.0), factor), part);
    }
}

/// `gelu(x + bias)` with the exact error function, row by row; `bias` is one row.
pub(crate) fn bias_gelu(x: &[f32], bias: &[f32], y: &mut [f32]) {
    by_rows(x, bias.len(), y, |x, y| dispatch(Gelu { x, bias, y }));
}

/// Layer norm of each row of `weight.len()` elements.
pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    assert_eq!(weight.len(), bias.len());
    by_rows(x, weight.len(), y, |x, y| dispatch(Norm { x, weight, bias, eps, y }));
}

/// Whole rows of `x` and `y` to `work`, in parallel where there are many.
fn by_rows(x: &[f32], width: usize, y: &mut [f32], work: impl Fn(&[f32], &mut [f32]) + Sync) {
    assert!(width > 0 && x.len() == y.len() && x.len().is_multiple_of(width));
    let chunk = (TASK / width).max(1) * width;
    let tasks = x.len().div_ceil(chunk);
    let out = Shared(y.as_mut_ptr());
    for_each_task(
        tasks,
        rayon::current_num_threads(),
        || (),
        |(), task| {
            let x = &x[task * chunk..x.len().min((task + 1) * chunk)];
            // SAFETY: each task has its own chunk of `y`, which is as long as `x`.
            let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(task * chunk), x.len()) };
            work(x, y);
        },
    );
}

pub(crate) struct Gelu<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) y: &'a mut [f32],
}

impl Job for Gelu<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.bias.len();
        for (x, y) in self.x.chunks_exact(width).zip(self.y.chunks_exact_mut(width)) {
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let bias = load_part::<I>(self.bias.as_ptr().add(at), part, 0.0);
                let x = I::add(load_part::<I>(x.as_ptr().add(at), part, 0.0), bias);
                store_part::<I>(y.as_mut_ptr().add(at), gelu::<I>(x), part);
            }
        }
    }
}

#[inline(always)]
unsafe fn gelu<I: Isa>(x: I::V) -> I::V {
    let half = I::mul(x, I::splat(0.5));
    I::fma(half, erf::<I>(I::mul(x, I::splat(std::f32::consts::FRAC_1_SQRT_2))), half)
}

/// Rational approximation in f32, within 5e-7.
/// <https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/math.cc> (`Erf`, f32).
#[inline(always)]
unsafe fn erf<I: Isa>(x: I::V) -> I::V {
    const P: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2];
    let x = I::min(I::max(x, I::splat(-4.0)), I::splat(4.0));
    let square = I::mul(x, x);
    let mut p = I::splat(P[0]);
    for term in &P[1..] {
        p = I::fma(p, square, I::splat(*term));
    }
    let mut q = I::splat(Q[0]);
    for term in &Q[1..] {
        q = I::fma(q, square, I::splat(*term));
    }
    I::div(I::mul(x, p), q)
}

pub(crate) struct Norm<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) eps: f32,
    pub(crate) y: &'a mut [f32],
}

impl Job for Norm<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.weight.len();
        for (x, y) in self.x.chunks_exact(width).zip(self.y.chunks_exact_mut(width)) {
            let mut sum = I::splat(0.0);
            for at in (0..width).step_by(LANES) {
                sum = I::add(sum, load_part::<I>(x.as_ptr().add(at), width - at, 0.0));
            }
            let mean = I::sum(sum) / width as f32;
            let mut squares = I::splat(0.0);
            for at in (0..width).step_by(LANES) {
                let x = load_part::<I>(x.as_ptr().add(at), width - at, mean);
                let x = I::sub(x, I::splat(mean));
                squares = I::fma(x, x, squares);
            }
            let scale = I::splat(1.0 / (I::sum(squares) / width as f32 + self.eps).sqrt());
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let x = I::sub(load_part::<I>(x.as_ptr().add(at), part, mean), I::splat(mean));
                let weight = load_part::<I>(self.weight.as_ptr().add(at), part, 0.0);
                let bias = load_part::<I>(self.bias.as_ptr().add(at), part, 0.0);
                store_part::<I>(y.as_mut_ptr().add(at), I::fma(I::mul(x, scale), weight, bias), part);
            }
        }
    }
}
