//! Functions of one row or one element: softmax, norms, rotary embedding, activations.

mod instance_norm;
mod lstm;
mod snake;

pub use instance_norm::{Activated, instance_norm, instance_norm_q8};
pub use lstm::lstm_step;
pub use snake::snake;

use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::linear::panels::Rows;
use crate::threads::num_threads;
use crate::threads::{SyncPtr, for_each_task};

/// Elements of one parallel task.
const TASK: usize = 32 * 1024;

/// `e^x` within 2e-7 for `x` in -86..=88, as Cephes: <https://www.netlib.org/cephes/> (`expf`). Smaller `x` give
/// `e^-86`, nothing next to a largest term of 1.
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

/// Replaces `count` values by `e^(x - max)` and returns `1 / sum`.
///
/// # Safety
/// As [`Isa`], with `count` rounded up to 16 elements valid; what is beyond `count` is overwritten.
#[inline(always)]
pub(crate) unsafe fn softmax<I: Isa>(values: *mut f32, count: usize) -> f32 {
    let padded = count.next_multiple_of(LANES);
    for at in count..padded {
        *values.add(at) = f32::NEG_INFINITY;
    }
    let mut largest = I::splat(f32::NEG_INFINITY);
    for at in (0..padded).step_by(LANES) {
        largest = I::max(largest, I::load(values.add(at)));
    }
    let mut lanes = [0f32; LANES];
    I::store(lanes.as_mut_ptr(), largest);
    let mut most = f32::NEG_INFINITY;
    for lane in lanes {
        most = most.max(lane);
    }
    let largest = I::splat(most);
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

/// `y = gelu(x + bias)` with the exact error function: `x` and `y` `[rows, width]`, `bias` `[width]`.
///
/// # Panics
/// Lengths do not fit.
pub fn bias_gelu(x: &[f32], bias: &[f32], y: &mut [f32]) {
    by_rows(x, bias.len(), y, |x, y| dispatch(Gelu::<false> { x, bias, y }));
}

/// As [`bias_gelu`], by the approximation with tanh: <https://arxiv.org/abs/1606.08415> (section 2).
///
/// # Panics
/// Lengths do not fit.
pub fn bias_gelu_tanh(x: &[f32], bias: &[f32], y: &mut [f32]) {
    by_rows(x, bias.len(), y, |x, y| dispatch(Gelu::<true> { x, bias, y }));
}

/// `y += x`.
///
/// # Panics
/// Lengths do not fit.
pub fn add_assign(x: &[f32], y: &mut [f32]) {
    by_rows(x, 1, y, |x, y| dispatch(AddTo { x, y }));
}

/// Layer norm of each row: `x` and `y` `[rows, width]`, `weight` and `bias` `[width]`.
///
/// # Panics
/// Lengths do not fit.
pub fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32, y: &mut [f32]) {
    assert_eq!(weight.len(), bias.len());
    by_rows(x, weight.len(), y, |x, y| dispatch(Norm { x, weight, bias, eps, y }));
}

/// Calls `work` with whole rows of `x` and `y`, in parallel where there are many.
fn by_rows(x: &[f32], width: usize, y: &mut [f32], work: impl Fn(&[f32], &mut [f32]) + Sync) {
    assert!(width > 0 && x.len() == y.len() && x.len().is_multiple_of(width));
    let chunk = (TASK / width).max(1) * width;
    let tasks = x.len().div_ceil(chunk);
    let out = SyncPtr(y.as_mut_ptr());
    for_each_task(
        tasks,
        num_threads(),
        || (),
        |(), task| {
            let x = &x[task * chunk..x.len().min((task + 1) * chunk)];
            // SAFETY: each task has its own chunk of `y`, which is as long as `x`.
            let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(task * chunk), x.len()) };
            work(x, y);
        },
    );
}

struct AddTo<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for AddTo<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        for at in 0..self.y.len() {
            self.y[at] += self.x[at];
        }
    }
}

/// With tanh, or with the error function.
struct Gelu<'a, const TANH: bool> {
    x: &'a [f32],
    bias: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl<const TANH: bool> Kernel for Gelu<'_, TANH> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.bias.len();
        for row in 0..self.x.len() / width {
            let (x, y) = (&self.x[row * width..][..width], &mut self.y[row * width..][..width]);
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let bias = load_part::<I>(self.bias.as_ptr().add(at), part, 0.0);
                let x = I::add(load_part::<I>(x.as_ptr().add(at), part, 0.0), bias);
                let activated = if TANH { gelu_tanh::<I>(x) } else { gelu::<I>(x) };
                store_part::<I>(y.as_mut_ptr().add(at), activated, part);
            }
        }
    }
}

#[inline(always)]
unsafe fn gelu<I: Isa>(x: I::V) -> I::V {
    let half = I::mul(x, I::splat(0.5));
    I::fma(half, erf::<I>(I::mul(x, I::splat(std::f32::consts::FRAC_1_SQRT_2))), half)
}

/// `x (1 + tanh(u)) / 2` as `x / (1 + exp(-2 u))`, with `u = sqrt(2 / π) (x + 0.044715 x³)`.
#[inline(always)]
unsafe fn gelu_tanh<I: Isa>(x: I::V) -> I::V {
    const MINUS_TWO_ROOTS: f32 = -2.0 * 0.797_884_6;
    let cube = I::mul(I::mul(x, x), I::mul(x, I::splat(0.044_715)));
    let e = exp::<I>(I::mul(I::add(x, cube), I::splat(MINUS_TWO_ROOTS)));
    I::div(x, I::add(e, I::splat(1.0)))
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

struct Norm<'a> {
    x: &'a [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Norm<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.weight.len();
        for row in 0..self.x.len() / width {
            let (x, y) = (&self.x[row * width..][..width], &mut self.y[row * width..][..width]);
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

/// Runs `work(row)` for every row of `width` elements.
fn each_row(rows: usize, width: usize, work: impl Fn(usize) + Sync) {
    let rows_of_task = (TASK / width.max(1)).max(1);
    let tasks = rows.div_ceil(rows_of_task);
    for_each_task(
        tasks,
        num_threads(),
        || (),
        |(), task| {
            (task * rows_of_task..rows.min((task + 1) * rows_of_task)).for_each(&work);
        },
    );
}

/// Root-mean-square norm.
#[derive(Debug, Clone, Copy)]
pub struct RmsNorm<'a> {
    /// `[head]`: the elements that are normalised together.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

impl RmsNorm<'_> {
    /// Norm of every `weight.len()` elements of each row: `x` `[rows, width]` with its stride, `y` `[rows, width]`.
    ///
    /// # Panics
    /// Lengths do not fit.
    pub fn forward(self, x: Rows<'_>, width: usize, y: &mut [f32]) {
        assert!(x.fits(width) && y.len() == x.count * width && width.is_multiple_of(self.weight.len()));
        let out = SyncPtr(y.as_mut_ptr());
        each_row(x.count, width, |row| {
            let x = &x.data[row * x.stride..][..width];
            // SAFETY: each row is one task's, inside `y`, whose length was checked.
            let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(row * width), width) };
            dispatch(NormRow { norm: self, x, y });
        });
    }

    /// The factor by which the root mean square of `weight.len()` elements becomes 1.
    ///
    /// # Safety
    /// As [`Isa`], with that many elements valid.
    #[inline(always)]
    unsafe fn scale<I: Isa>(&self, x: *const f32) -> f32 {
        let width = self.weight.len();
        let mut squares = I::splat(0.0);
        for at in (0..width).step_by(LANES) {
            let x = load_part::<I>(x.add(at), width - at, 0.0);
            squares = I::fma(x, x, squares);
        }
        1.0 / (I::sum(squares) / width as f32 + self.eps).sqrt()
    }

    /// `count` elements from `at` on, normalised.
    ///
    /// # Safety
    /// As [`Self::scale`].
    #[inline(always)]
    unsafe fn part<I: Isa>(&self, x: *const f32, scale: f32, at: usize, count: usize) -> I::V {
        let weight = load_part::<I>(self.weight.as_ptr().add(at), count, 0.0);
        I::mul(I::mul(load_part::<I>(x.add(at), count, 0.0), I::splat(scale)), weight)
    }
}

struct NormRow<'a> {
    norm: RmsNorm<'a>,
    x: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for NormRow<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.norm.weight.len();
        for row in 0..self.x.len() / width {
            let (x, y) = (&self.x[row * width..][..width], &mut self.y[row * width..][..width]);
            let scale = self.norm.scale::<I>(x.as_ptr());
            for at in (0..width).step_by(LANES) {
                let part = self.norm.part::<I>(x.as_ptr(), scale, at, width - at);
                store_part::<I>(y.as_mut_ptr().add(at), part, width - at);
            }
        }
    }
}

/// Rotary embedding of every head of rows of `width`, after the norm where there is one: `x` and `y` `[rows, width]`;
/// `turns` has for each row `[head_dim]`, the cosines of half a head and then the sines.
///
/// # Panics
/// Lengths do not fit.
pub fn apply_rope(x: Rows<'_>, width: usize, turns: &[&[f32]], norm: Option<RmsNorm<'_>>, y: &mut [f32]) {
    assert!(x.fits(width) && y.len() == x.count * width && turns.len() == x.count);
    let head = turns.first().map_or(1, |turns| turns.len());
    assert!(head > 0 && head.is_multiple_of(2) && width.is_multiple_of(head));
    assert!(turns.iter().all(|turns| turns.len() == head));
    assert!(norm.is_none_or(|norm| norm.weight.len() == head));
    let out = SyncPtr(y.as_mut_ptr());
    each_row(x.count, width, |row| {
        let x = &x.data[row * x.stride..][..width];
        // SAFETY: each row is one task's, inside `y`, whose length was checked.
        let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(row * width), width) };
        dispatch(RotateRow { x, turns: turns[row], norm, y });
    });
}

struct RotateRow<'a> {
    x: &'a [f32],
    turns: &'a [f32],
    norm: Option<RmsNorm<'a>>,
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for RotateRow<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let (head, half) = (self.turns.len(), self.turns.len() / 2);
        for row in 0..self.x.len() / head {
            let (x, y) = (&self.x[row * head..][..head], &mut self.y[row * head..][..head]);
            let (x, y) = (x.as_ptr(), y.as_mut_ptr());
            let scale = match &self.norm {
                Some(norm) => norm.scale::<I>(x),
                None => 1.0,
            };
            for at in (0..half).step_by(LANES) {
                let part = LANES.min(half - at);
                let [first, second] = match &self.norm {
                    Some(norm) => {
                        [norm.part::<I>(x, scale, at, part), norm.part::<I>(x, scale, at + half, part)]
                    }
                    None => {
                        [load_part::<I>(x.add(at), part, 0.0), load_part::<I>(x.add(at + half), part, 0.0)]
                    }
                };
                let cos = load_part::<I>(self.turns.as_ptr().add(at), part, 0.0);
                let sin = load_part::<I>(self.turns.as_ptr().add(at + half), part, 0.0);
                let turned = I::sub(I::mul(first, cos), I::mul(second, sin));
                store_part::<I>(y.add(at), turned, part);
                let turned = I::fma(second, cos, I::mul(first, sin));
                store_part::<I>(y.add(at + half), turned, part);
            }
        }
    }
}

/// `y = silu(gate) * up`: `x` `[rows, 2 * width]`, gates first, `y` `[rows, width]`.
///
/// # Panics
/// Lengths do not fit.
pub fn silu_mul(x: Rows<'_>, width: usize, y: &mut [f32]) {
    assert!(x.fits(2 * width) && y.len() == x.count * width);
    let out = SyncPtr(y.as_mut_ptr());
    each_row(x.count, 2 * width, |row| {
        let (gates, ups) = x.data[row * x.stride..][..2 * width].split_at(width);
        // SAFETY: each row is one task's, inside `y`, whose length was checked.
        let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(row * width), width) };
        dispatch(Gate { gates, ups, y });
    });
}

/// `y` is `x` above zero and `e^x - 1` below.
///
/// # Panics
/// Lengths do not fit.
pub fn elu(x: &[f32], y: &mut [f32]) {
    by_rows(x, 1, y, |x, y| dispatch(Elu { x, y }));
}

struct Elu<'a> {
    x: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Elu<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let zero = I::splat(0.0);
        for at in (0..self.x.len()).step_by(LANES) {
            let part = self.x.len() - at;
            let x = load_part::<I>(self.x.as_ptr().add(at), part, 0.0);
            let below = I::sub(exp::<I>(I::min(x, zero)), I::splat(1.0));
            store_part::<I>(self.y.as_mut_ptr().add(at), I::add(I::max(x, zero), below), part);
        }
    }
}

/// `value * sigmoid(gate)`.
#[inline(always)]
unsafe fn gated<I: Isa>(value: I::V, gate: I::V) -> I::V {
    I::div(value, I::add(exp::<I>(I::sub(I::splat(0.0), gate)), I::splat(1.0)))
}

/// `y = silu(x + bias)`: `x` and `y` `[rows, width]`, `bias` `[width]`.
///
/// # Panics
/// Lengths do not fit.
pub fn bias_silu(x: &[f32], bias: &[f32], y: &mut [f32]) {
    by_rows(x, bias.len(), y, |x, y| dispatch(Silu { x, bias, y }));
}

struct Silu<'a> {
    x: &'a [f32],
    bias: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Silu<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.bias.len();
        for row in 0..self.x.len() / width {
            let (x, y) = (&self.x[row * width..][..width], &mut self.y[row * width..][..width]);
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let bias = load_part::<I>(self.bias.as_ptr().add(at), part, 0.0);
                let x = I::add(load_part::<I>(x.as_ptr().add(at), part, 0.0), bias);
                store_part::<I>(y.as_mut_ptr().add(at), gated::<I>(x, x), part);
            }
        }
    }
}

/// Gated linear unit, `y = value * sigmoid(gate)`: `x` `[rows, 2 * width]`, values first, `y` `[rows, width]`.
///
/// # Panics
/// Lengths do not fit.
pub fn glu(x: Rows<'_>, width: usize, y: &mut [f32]) {
    assert!(x.fits(2 * width) && y.len() == x.count * width);
    let out = SyncPtr(y.as_mut_ptr());
    each_row(x.count, 2 * width, |row| {
        let (values, gates) = x.data[row * x.stride..][..2 * width].split_at(width);
        // SAFETY: each row is one task's, inside `y`, whose length was checked.
        let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(row * width), width) };
        dispatch(Sigmoid { values, gates, y });
    });
}

struct Sigmoid<'a> {
    values: &'a [f32],
    gates: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Sigmoid<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.y.len();
        for at in (0..width).step_by(LANES) {
            let part = width - at;
            let value = load_part::<I>(self.values.as_ptr().add(at), part, 0.0);
            let gate = load_part::<I>(self.gates.as_ptr().add(at), part, 0.0);
            store_part::<I>(self.y.as_mut_ptr().add(at), gated::<I>(value, gate), part);
        }
    }
}

struct Gate<'a> {
    gates: &'a [f32],
    ups: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Gate<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.y.len();
        for at in (0..width).step_by(LANES) {
            let part = width - at;
            let gate = load_part::<I>(self.gates.as_ptr().add(at), part, 0.0);
            let up = load_part::<I>(self.ups.as_ptr().add(at), part, 0.0);
            store_part::<I>(self.y.as_mut_ptr().add(at), I::mul(gated::<I>(gate, gate), up), part);
        }
    }
}
