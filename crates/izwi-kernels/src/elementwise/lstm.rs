//! The step of an LSTM after its products. <https://docs.pytorch.org/docs/stable/generated/torch.nn.LSTM.html>.

use super::exp;
use crate::arch::{Isa, Kernel, LANES, dispatch, load_part, store_part};

/// Input, forget, cell and output gate.
const GATES: usize = 4;

/// Replaces a state: the sum of `own` and `recurrent`, `[4, hidden]` each, are the arguments of the gates input, forget, cell and
/// output.
///
/// # Panics
/// Lengths do not fit.
pub fn lstm_step([own, recurrent]: [&[f32]; 2], hidden: &mut [f32], cell: &mut [f32]) {
    let size = hidden.len();
    assert!(own.len() == GATES * size && recurrent.len() == GATES * size && cell.len() == size);
    dispatch(Step { own, recurrent, hidden, cell });
}

struct Step<'a> {
    own: &'a [f32],
    recurrent: &'a [f32],
    hidden: &'a mut [f32],
    cell: &'a mut [f32],
}

// SAFETY: accesses only its slices, whose lengths the function that makes it checks.
unsafe impl Kernel for Step<'_> {
    #[inline(always)]
    unsafe fn run<I: Isa>(self) {
        let size = self.hidden.len();
        for at in (0..size).step_by(LANES) {
            let part = size - at;
            let mut gates = [I::splat(0.0); GATES];
            for (gate, value) in gates.iter_mut().enumerate() {
                let own = load_part::<I>(self.own.as_ptr().add(gate * size + at), part, 0.0);
                let recurrent = load_part::<I>(self.recurrent.as_ptr().add(gate * size + at), part, 0.0);
                *value = I::add(own, recurrent);
            }
            let [input, forget, candidate, output] = gates;
            let before = load_part::<I>(self.cell.as_ptr().add(at), part, 0.0);
            let kept = I::mul(sigmoid::<I>(forget), before);
            let cell = I::fma(sigmoid::<I>(input), tanh::<I>(candidate), kept);
            store_part::<I>(self.cell.as_mut_ptr().add(at), cell, part);
            let hidden = I::mul(sigmoid::<I>(output), tanh::<I>(cell));
            store_part::<I>(self.hidden.as_mut_ptr().add(at), hidden, part);
        }
    }
}

#[inline(always)]
unsafe fn sigmoid<I: Isa>(x: I::V) -> I::V {
    let one = I::splat(1.0);
    I::div(one, I::add(one, exp::<I>(I::sub(I::splat(0.0), x))))
}

/// Within 2e-7, not of its own size near 0.
#[inline(always)]
unsafe fn tanh<I: Isa>(x: I::V) -> I::V {
    let one = I::splat(1.0);
    I::sub(one, I::div(I::splat(2.0), I::add(exp::<I>(I::add(x, x)), one)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{check, values};

    #[test]
    fn every_level_steps_alike_and_equals_the_formula() {
        for size in [1, 16, 37] {
            let wide = |seed| values(GATES * size, seed).iter().map(|x| 9.0 * x).collect::<Vec<f32>>();
            let (own, recurrent, before) = (wide(1), wide(2), values(size, 3));
            let run = || {
                let (mut hidden, mut cell) = (vec![0.0; size], before.clone());
                lstm_step([&own, &recurrent], &mut hidden, &mut cell);
                [hidden, cell].concat()
            };
            check("lstm", 1e-5, run);
            let ours = run();
            let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
            for at in 0..size {
                let gate = |gate: usize| own[gate * size + at] + recurrent[gate * size + at];
                let cell = sigmoid(gate(1)) * before[at] + sigmoid(gate(0)) * gate(2).tanh();
                assert!((ours[size + at] - cell).abs() < 1e-6, "{at}");
                assert!((ours[at] - sigmoid(gate(3)) * cell.tanh()).abs() < 1e-6, "{at}");
            }
        }
    }
}
