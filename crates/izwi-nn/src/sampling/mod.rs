//! Samples tokens from logits with counter-based random numbers.
//!
//! A draw is a function of a key and a counter: batching, chunked prompts and preemption do not change it. Knows no
//! model.

mod on_device;
mod token_draws;

use std::sync::Arc;

use izwi_types::SamplingParams;

pub use on_device::FrameDraws;
pub use token_draws::{DrawLimits, TokenDraw, TokenDraws};

/// Hashes 64 bits: the finaliser of SplitMix64, <https://prng.di.unimi.it/splitmix64.c>.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Index of the largest value, the first of equals.
pub fn argmax(values: &[f32]) -> usize {
    let better = |best: usize, at: usize| if values[at] > values[best] { at } else { best };
    (0..values.len()).fold(0, better)
}

/// The natural logarithm of a token's probability at temperature 1; −∞ for one without a logit.
pub fn logprob(logits: &[f32], token: usize) -> f32 {
    let peak = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let total: f32 = logits.iter().map(|logit| (logit - peak).exp()).sum();
    logits.get(token).map_or(f32::NEG_INFINITY, |logit| logit - peak - total.ln())
}

/// Random numbers by counter.
#[derive(Debug, Clone)]
pub struct Draws {
    key: u64,
    /// Recorded numbers by counter, for parity with a reference.
    given: Option<Arc<[f64]>>,
}

impl Draws {
    /// Numbers of one seed.
    pub fn new(seed: u64) -> Self {
        Self { key: mix(seed), given: None }
    }

    /// Recorded numbers, for parity with a reference.
    pub fn recorded(numbers: Arc<[f64]>) -> Self {
        Self { key: 0, given: Some(numbers) }
    }

    /// A number in `[0, 1)`.
    pub fn uniform(&self, counter: u64) -> f64 {
        if let Some(given) = &self.given {
            return given.get(counter as usize).copied().unwrap_or_default();
        }
        (mix(self.key.wrapping_add(counter)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Parameters of one sequence's next draws.
#[derive(Debug, Clone, Copy)]
pub struct Draw<'a> {
    /// Random numbers of the sequence.
    pub draws: &'a Draws,
    /// Counter of the first draw.
    pub counter: u64,
    /// Sampling parameters of the sequence.
    pub sampling: &'a SamplingParams,
}

impl Draw<'_> {
    /// The token of draw `index`.
    pub fn choose(&self, logits: &[f32], index: usize) -> u32 {
        if self.is_greedy() {
            return argmax(logits) as u32;
        }
        choose(logits, self.sampling, self.uniform(index))
    }

    /// Whether the draws are greedy and use no random number.
    pub fn is_greedy(&self) -> bool {
        self.sampling.temperature <= 0.0
    }

    /// The random number of draw `index`; 0 if greedy.
    pub fn uniform(&self, index: usize) -> f64 {
        if self.is_greedy() { 0.0 } else { self.draws.uniform(self.counter + index as u64) }
    }
}

/// Applies a repetition penalty to the logits of tokens drawn before: positive ones are divided by `penalty`, negative ones multiplied.
/// <https://arxiv.org/abs/1909.05858> (section 4.1).
pub fn penalise(logits: &mut [f32], drawn: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    let mut drawn = drawn.to_vec();
    drawn.sort_unstable();
    drawn.dedup();
    for token in drawn {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
        }
    }
}

/// Samples a token with `uniform` after temperature, `top_k` and `top_p`; the most likely token at temperature 0. Ties at
/// the edge of `top_k` are kept; tokens at −∞ are chosen only if all are.
pub fn choose(logits: &[f32], sampling: &SamplingParams, uniform: f64) -> u32 {
    if sampling.temperature <= 0.0 {
        return argmax(logits) as u32;
    }
    let weights = weights(logits, sampling);
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut reached = 0.0;
    let chosen = weights.iter().find(|(_, weight)| {
        reached += weight;
        reached > uniform * total
    });
    chosen.or(weights.last()).map_or(0, |&(token, _)| token)
}

/// Candidates in the order of their tokens, with weights that are their probabilities up to one factor.
fn weights(logits: &[f32], sampling: &SamplingParams) -> Vec<(u32, f64)> {
    let scaled = |logit: f32| logit / sampling.temperature;
    let threshold = kth_largest(logits, sampling.top_k);
    let kept =
        logits.iter().enumerate().filter(|&(_, &logit)| logit >= threshold && logit > f32::NEG_INFINITY);
    let kept: Vec<(u32, f32)> = kept.map(|(token, &logit)| (token as u32, scaled(logit))).collect();
    let peak = kept.iter().map(|(_, logit)| *logit).fold(f32::NEG_INFINITY, f32::max);
    let mut weights: Vec<_> =
        kept.into_iter().map(|(token, logit)| (token, f64::from(logit - peak).exp())).collect();
    if sampling.top_p < 1.0 {
        keep_nucleus(&mut weights, f64::from(sampling.top_p));
    }
    weights
}

/// The smallest logit among the `k` largest; −∞ where all are kept.
fn kth_largest(logits: &[f32], k: usize) -> f32 {
    if k == 0 || k >= logits.len() {
        return f32::NEG_INFINITY;
    }
    let mut logits = logits.to_vec();
    *logits.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
}

/// Drops the least likely tokens whose probabilities together are at most `1 - top_p`; at least one stays.
fn keep_nucleus(weights: &mut Vec<(u32, f64)>, top_p: f64) {
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[a].1.total_cmp(&weights[b].1));
    let mut reached = 0.0;
    let mut dropped = vec![false; weights.len()];
    for &at in order.iter().take(order.len().saturating_sub(1)) {
        reached += weights[at].1 / total;
        if reached > 1.0 - top_p {
            break;
        }
        dropped[at] = true;
    }
    let mut dropped = dropped.into_iter();
    weights.retain(|_| !dropped.next().unwrap_or(false));
}

/// Probabilities that [`choose`] draws by, one for each token.
pub fn probabilities(logits: &[f32], sampling: &SamplingParams) -> Vec<f32> {
    let weights = weights(logits, sampling);
    let total: f64 = weights.iter().map(|(_, weight)| weight).sum();
    let mut probabilities = vec![0.0; logits.len()];
    weights.into_iter().for_each(|(token, weight)| probabilities[token as usize] = (weight / total) as f32);
    probabilities
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: SamplingParams = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };

    #[test]
    fn ties_at_the_edge_of_top_k_are_kept_and_a_nucleus_is_never_empty() {
        let logits = [1.0, 3.0, 2.0, 2.0, f32::NEG_INFINITY];
        let kept = |sampling: &SamplingParams| {
            let kept = probabilities(&logits, sampling);
            (0..kept.len()).filter(|&token| kept[token] > 0.0).collect::<Vec<_>>()
        };
        assert_eq!(kept(&SamplingParams { top_k: 2, ..ALL }), [1, 2, 3]);
        assert_eq!(kept(&ALL), [0, 1, 2, 3]);
        assert_eq!(kept(&SamplingParams { top_p: 1e-6, ..ALL }), [1]);
    }

    #[test]
    fn draws_follow_the_probabilities() {
        let logits = [0.0, 1.0, 2.0];
        let expected = probabilities(&logits, &ALL);
        let draws = Draws::new(7);
        let mut counts = [0usize; 3];
        (0..20_000).for_each(|n| counts[choose(&logits, &ALL, draws.uniform(n)) as usize] += 1);
        for (count, expected) in counts.into_iter().zip(expected) {
            assert!((count as f32 / 20_000.0 - expected).abs() < 0.015, "{counts:?}");
        }
        assert_eq!(choose(&logits, &SamplingParams::GREEDY, 0.0), 2);
        assert_ne!(Draws::new(7).uniform(0), Draws::new(8).uniform(0));
    }

    #[test]
    fn a_penalty_counts_once_and_lowers_either_sign() {
        let mut logits = [2.0, -2.0, 1.0];
        penalise(&mut logits, &[0, 0, 1, 99], 2.0);
        assert_eq!(logits, [1.0, -4.0, 1.0]);
    }
}
