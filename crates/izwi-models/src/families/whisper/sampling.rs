//! Token sampling with a counter-based generator: a draw depends on seed, window, attempt and position only, not on the
//! batch, the chunking of prompts or preemption. Knows no tensor.

use crate::keywords::{Keywords, Place};
use izwi_nn::sampling::{argmax, mix};

/// A chosen token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) token: u32,
    /// Its log-probability at temperature 1 among the allowed tokens.
    pub(super) logprob: f32,
}

/// Random numbers of one attempt at one window of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Draws {
    key: u64,
}

impl Draws {
    /// Numbers of attempt `attempt` at the window that starts at mel frame `window`, under the request's `seed`.
    pub(super) fn new(seed: u64, window: usize, attempt: usize) -> Self {
        let window = mix(mix(seed).wrapping_add(window as u64));
        Self { key: mix(window.wrapping_add(attempt as u64)) }
    }

    /// A number in `[0, 1)` for the token at `position`.
    fn uniform(&self, position: usize) -> f64 {
        (mix(self.key.wrapping_add(position as u64)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// The most likely token at temperature 0, else a draw at that temperature.
    pub(super) fn choose(&self, logits: &[f32], temperature: f32, position: usize) -> Choice {
        let best = argmax(logits);
        let peak = logits[best];
        let token = if temperature > 0.0 {
            let weight = |logit: f32| f64::from(((logit - peak) / temperature).exp());
            let total: f64 = logits.iter().map(|&logit| weight(logit)).sum();
            let mut left = self.uniform(position) * total;
            let reached = logits.iter().position(|&logit| {
                left -= weight(logit);
                left < 0.0
            });
            reached.unwrap_or(best)
        } else {
            best
        };
        Choice { token: token as u32, logprob: logits[token] - peak - spread(logits, peak) }
    }
}

/// As [`Draws::choose`] with what tokens of `keywords` gain at `place`, which moves on. The log-probability has no gain.
pub(super) fn choose_with(
    keywords: Option<&Keywords>,
    place: &mut Place,
    logits: &[f32],
    choose: impl Fn(&[f32]) -> Choice,
) -> Choice {
    let Some(keywords) = keywords else { return choose(logits) };
    let mut raised = logits.to_vec();
    keywords.raise(*place, &mut raised);
    let Choice { token, .. } = choose(&raised);
    *place = keywords.next(*place, logits, token as usize);
    let peak = logits[argmax(logits)];
    Choice { token, logprob: logits[token as usize] - peak - spread(logits, peak) }
}

/// `ln Σ exp(x − peak)`.
pub(super) fn spread(logits: &[f32], peak: f32) -> f32 {
    // Sixteen running sums in a fixed order: faster than one, and the same bits on every machine.
    let mut sums = [0f32; 16];
    for logits in logits.chunks(16) {
        for (sum, logit) in sums.iter_mut().zip(logits) {
            *sum += (logit - peak).exp();
        }
    }
    sums.iter().sum::<f32>().ln()
}

/// The probability of token `id`.
pub(super) fn probability(logits: &[f32], id: u32) -> f32 {
    let peak = logits[argmax(logits)];
    (logits[id as usize] - peak - spread(logits, peak)).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_maximum() {
        let choice = Draws::new(1, 0, 0).choose(&[0.0, 2.0, f32::NEG_INFINITY, 2.0], 0.0, 5);
        assert_eq!(choice.token, 1);
        let exact = -(2.0 + (-2f32).exp()).ln();
        assert!((choice.logprob - exact).abs() < 1e-6, "{}", choice.logprob);
    }

    #[test]
    fn draws_follow_the_probabilities_and_skip_suppressed_tokens() {
        let logits: Vec<f32> = [0.1f32, 0.0, 0.6, 0.3].iter().map(|p| p.ln()).collect();
        let draws = Draws::new(3, 0, 1);
        let mut counts = [0; 4];
        (0..20_000).for_each(|position| counts[draws.choose(&logits, 1.0, position).token as usize] += 1);
        assert_eq!(counts[1], 0);
        for (count, share) in counts.iter().zip([0.1, 0.0, 0.6, 0.3]) {
            assert!((f64::from(*count) / 20_000.0 - share).abs() < 0.015, "{counts:?}");
        }
        let cold = |position| draws.choose(&logits, 0.05, position).token;
        assert!((0..1000).all(|position| cold(position) == 2));
    }

    #[test]
    fn a_draw_depends_on_seed_window_attempt_and_position() {
        let logits = [0.0; 1000];
        let token = |seed, window, attempt, position| {
            Draws::new(seed, window, attempt).choose(&logits, 1.0, position).token
        };
        let first = token(1, 2, 3, 4);
        assert_eq!(first, token(1, 2, 3, 4));
        for other in [token(9, 2, 3, 4), token(1, 9, 3, 4), token(1, 2, 9, 4), token(1, 2, 3, 9)] {
            assert_ne!(first, other);
        }
    }
}
