//! Simulated time: what a step of the simulation costs.
//!
//! Must not know the content of a step, only how much of each kind of work it holds.

use std::time::Duration;

use super::mix;
use crate::engine::executor::SimulatedTime;

/// Work of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StepWork {
    /// Sequences that generate a token.
    pub generating: usize,
    /// Tokens of prompts, and of units.
    pub prompt_tokens: usize,
    /// Rows of encoders.
    pub encoder_rows: usize,
}

/// Time of a step as a function of its work.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CostCurve {
    /// Time of any step.
    pub fixed: Duration,
    /// Time of the tokens that N sequences generate together, at index N − 1: they share the reading of weights. Beyond
    /// the table each sequence adds as much as the last entry exceeds the one before.
    pub generating: Vec<Duration>,
    /// Time of a prompt's token, or of a unit's.
    pub prompt_token: Duration,
    /// Time of an encoder's row.
    pub encoder_row: Duration,
    /// Equal pieces of a step with a prompt or an encoder, between which it can let others go first; 0 as 1.
    pub pieces: u32,
    /// Time of cloning a voice, for a second of the recording. It is no step.
    pub cloned_second: Duration,
    /// The largest relative deviation of a step's time, 0.3 for ±30 %. Uniform, a function of `seed` and the step's number.
    pub noise: f64,
    /// Seed of the noise.
    pub seed: u64,
}

impl CostCurve {
    /// The mean time of a step.
    pub fn mean(&self, work: StepWork) -> Duration {
        let units = |time: Duration, count: usize| time.mul_f64(count as f64);
        self.fixed
            + self.generating(work.generating)
            + units(self.prompt_token, work.prompt_tokens)
            + units(self.encoder_row, work.encoder_rows)
    }

    /// The time of the step with the given number.
    pub(super) fn time(&self, work: StepWork, step: u64) -> SimulatedTime {
        let uniform = (mix(self.seed, step) >> 11) as f64 / (1u64 << 53) as f64;
        let time = self.mean(work).mul_f64((1.0 + self.noise * (2.0 * uniform - 1.0)).max(0.0));
        let is_long = work.prompt_tokens > 0 || work.encoder_rows > 0;
        SimulatedTime { time, pieces: if is_long { self.pieces.max(1) } else { 1 } }
    }

    fn generating(&self, count: usize) -> Duration {
        let table = &self.generating;
        let (Some(index), Some(&last)) = (count.checked_sub(1), table.last()) else { return Duration::ZERO };
        let before = table.len().checked_sub(2).map_or(Duration::ZERO, |index| table[index]);
        let beyond = count.saturating_sub(table.len()) as u32;
        table.get(index).copied().unwrap_or(last + last.saturating_sub(before) * beyond)
    }
}
