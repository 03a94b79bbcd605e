//! Parameters of token sampling.

/// How tokens are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// Randomness, 0.0 for the likeliest token always.
    pub temperature: f32,
    /// Nucleus mass, above 0.0 up to 1.0.
    pub top_p: f32,
    /// Candidates kept, 0 for all.
    pub top_k: usize,
    /// Penalty of tokens that were drawn before, 1.0 for none.
    pub repetition_penalty: f32,
}

impl SamplingParams {
    /// The likeliest token always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, repetition_penalty: 1.0 };
}
