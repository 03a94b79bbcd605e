//! The snake activation `x + sin²(a x) b`, with parameters per channel.

use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// Elements of one parallel task.
const TASK: usize = 32 * 1024;

/// `y = x + b sin²(a x)`: `x` and `y` `[rows, channels]`, `a` and `b` `[channels]`.
///
/// # Panics
/// Lengths do not fit.
pub fn snake(x: &[f32], a: &[f32], b: &[f32], y: &mut [f32]) {
    let width = a.len();
    assert!(width > 0 && b.len() == width && x.len() == y.len() && x.len().is_multiple_of(width));
    let chunk = (TASK / width).max(1) * width;
    let out = SyncPtr(y.as_mut_ptr());
    let tasks = x.len().div_ceil(chunk);
    for_each_task(
        tasks,
        num_threads(),
        || (),
        |(), task| {
            let x = &x[task * chunk..x.len().min((task + 1) * chunk)];
            // SAFETY: each task has its own chunk of `y`, which is as long as `x`.
            let y = unsafe { std::slice::from_raw_parts_mut(out.get().add(task * chunk), x.len()) };
            dispatch(Snake { x, a, b, y });
        },
    );
}

struct Snake<'a> {
    x: &'a [f32],
    a: &'a [f32],
    b: &'a [f32],
    y: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Snake<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let width = self.a.len();
        for row in 0..self.x.len() / width {
            let (x, y) = (&self.x[row * width..][..width], &mut self.y[row * width..][..width]);
            for at in (0..width).step_by(LANES) {
                let part = width - at;
                let a = load_part::<I>(self.a.as_ptr().add(at), part, 0.0);
                let b = load_part::<I>(self.b.as_ptr().add(at), part, 0.0);
                let x = load_part::<I>(x.as_ptr().add(at), part, 0.0);
                let sine = sine_up_to_sign::<I>(I::mul(x, a));
                store_part::<I>(y.as_mut_ptr().add(at), I::fma(I::mul(sine, sine), b, x), part);
            }
        }
    }
}

/// `±sin(x)` within 2e-7 for `|x|` up to 10⁴: the remainder by π in three exact steps (Cephes,
/// <https://www.netlib.org/cephes/>, `sinf`), then the minimax polynomial of degree 11 on -π/2..=π/2
/// (<https://github.com/microsoft/DirectXMath/blob/main/Inc/DirectXMathMisc.inl>, `XMScalarSin`).
#[inline(always)]
pub(super) unsafe fn sine_up_to_sign<I: Isa>(x: I::V) -> I::V {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    const PI: [f32; 3] = [3.140_625, 9.675_026e-4, 1.509_958e-7];
    const TERMS: [f32; 5] = [-2.388_985_9e-8, 2.752_556_2e-6, -1.984_087_4e-4, 8.333_331e-3, -1.666_666_7e-1];
    let n = I::fma(x, I::splat(std::f32::consts::FRAC_1_PI), I::splat(MAGIC));
    let n = I::sub(n, I::splat(MAGIC));
    let mut r = x;
    for part in PI {
        r = I::fma(n, I::splat(-part), r);
    }
    let square = I::mul(r, r);
    let mut p = I::splat(TERMS[0]);
    for term in &TERMS[1..] {
        p = I::fma(p, square, I::splat(*term));
    }
    I::fma(I::mul(p, square), r, r)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_activates_alike() {
        for width in [1, 16, 37] {
            let x: Vec<f32> = values(9 * width, 4).iter().map(|x| x * 30.0).collect();
            let (a, b) = (values(width, 5), values(width, 6));
            check("snake", 1e-5, || {
                let mut y = vec![0.0; x.len()];
                snake(&x, &a, &b, &mut y);
                y
            });
        }
    }
}
