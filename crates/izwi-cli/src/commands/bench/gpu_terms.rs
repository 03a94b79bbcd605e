//! The terms of the cost model in `docs/metal.md`, measured: what a step asks of a GPU, besides its time.

use serde::{Deserialize, Serialize};

use super::batch::Round;
use super::statistics::{median, ms};
use crate::output;

/// A step of all sequences on a GPU with own kernels: its share of a round, the prefill included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct GpuTerms {
    /// Launches of own kernels.
    launches_per_step: f64,
    /// Bytes of weights that they read.
    weight_bytes_per_step: f64,
    /// Milliseconds.
    step_ms: f64,
    /// Time of a step over its launches: an upper bound of the time of one.
    us_per_launch: f64,
    /// Bytes of weights over the time of a step, in 10⁹ bytes per second: a lower bound of the bandwidth.
    weight_gb_per_s: f64,
}

impl GpuTerms {
    /// Medians of the rounds of `batch` requests; `None` if no own kernel of a GPU ran.
    pub(super) fn of(batch: usize, rounds: &[Round]) -> Option<Self> {
        let steps = |round: &Round| (round.tokens as f64 / batch as f64).max(1.0);
        let median_of = |figure: &dyn Fn(&Round) -> f64| {
            median(rounds.iter().map(|round| figure(round) / steps(round)).collect())
        };
        let launches = median_of(&|round| round.gpu_costs.launches as f64);
        let bytes = median_of(&|round| round.gpu_costs.weight_bytes as f64);
        let step_ms = median_of(&|round| ms(&round.wall)).max(f64::MIN_POSITIVE);
        (launches > 0.0).then(|| Self {
            launches_per_step: launches,
            weight_bytes_per_step: bytes,
            step_ms,
            us_per_launch: 1e3 * step_ms / launches,
            weight_gb_per_s: bytes / (step_ms * 1e6),
        })
    }

    /// The terms as a line.
    pub(super) fn line(&self) -> String {
        format!(
            "  step on the GPU: {:.2} ms; {:.0} launches, {:.2} µs for each; {} of weights, {:.1} GB/s\n",
            self.step_ms,
            self.launches_per_step,
            self.us_per_launch,
            output::format_bytes(self.weight_bytes_per_step as u64),
            self.weight_gb_per_s
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use izwi_core::engine::executor::GpuCosts;

    use super::*;

    #[test]
    fn terms_are_those_of_a_step_of_all_requests() {
        let gpu_costs = GpuCosts { launches: 6_000, weight_bytes: 20_000_000_000, flop: 0 };
        let round = Round { tokens: 20, wall: Duration::from_millis(200), gpu_costs, ..Round::default() };
        let terms = GpuTerms::of(2, &[round.clone(), round.clone(), round]).unwrap();
        assert_eq!((terms.launches_per_step, terms.weight_bytes_per_step), (600.0, 2e9));
        assert_eq!(terms.step_ms, 20.0);
        assert!((terms.us_per_launch - 33.333).abs() < 0.001, "{terms:?}");
        assert_eq!(terms.weight_gb_per_s, 100.0);
        assert!(terms.line().contains("20.00 ms; 600 launches, 33.33 µs for each"), "{}", terms.line());
        assert_eq!(GpuTerms::of(2, &[Round::default()]), None);
    }
}
