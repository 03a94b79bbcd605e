//! Parameters of token sampling.

/// Parameters of token sampling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Temperature, 0.0 for greedy sampling.
    pub temperature: f32,
    /// Nucleus (top-p) probability mass, above 0.0 and at most 1.0.
    pub top_p: f32,
    /// Number of candidates, 0 for all.
    pub top_k: usize,
    /// Penalty of tokens that were generated before, 1.0 for none.
    pub repetition_penalty: f32,
}

impl SamplingParams {
    /// Greedy sampling.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, repetition_penalty: 1.0 };
}
