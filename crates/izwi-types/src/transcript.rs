//! What was heard, with its times. Plain data.

/// A stretch of speech that belongs together, about a sentence.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Segment {
    /// Start of the window it was decoded in, in seconds from the start of the recording.
    pub window_start_s: f64,
    /// Start, in seconds from the start of the recording.
    pub start_s: f64,
    /// End, in seconds from the start of the recording.
    pub end_s: f64,
    /// What was said, with the space before it that joins it to what came before.
    pub text: String,
    /// The tokens behind it, timestamps included.
    pub tokens: Vec<u32>,
    /// Temperature it was decoded at.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub avg_logprob: f32,
    /// Bytes of the window's text over bytes of the same, deflated: high when it repeats itself.
    pub compression_ratio: f32,
    /// Probability that the window holds no speech.
    pub no_speech_prob: f32,
    /// Its words; empty unless asked for.
    pub words: Vec<Word>,
}

/// One word with its times.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Word {
    /// The word with its punctuation and the space before it.
    pub text: String,
    /// Start, in seconds from the start of the recording.
    pub start_s: f64,
    /// End, in seconds from the start of the recording.
    pub end_s: f64,
    /// Mean probability of its tokens.
    pub probability: f32,
}
