//! Schedulable work, and what one step of it yields.

use std::any::Any;
use std::sync::Arc;

use crate::{Emission, Segment};

/// How a prepared input is worked off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A prompt, then one token a step until the model or a limit ends it. Keys and values live in the paged pool.
    Autoregressive {
        /// Content key of each prompt position: equal prefixes of keys may share blocks.
        prompt: Arc<[u64]>,
        /// What the first entry costs beyond its prompt tokens, in tokens: an encoder that runs before them.
        encoder_tokens: usize,
    },
    /// Units computed whole, one a step, in order, without KV. Each entry is the unit's size in tokens.
    Units(Arc<[usize]>),
}

/// An input that is ready to be scheduled.
#[derive(Clone)]
pub struct Prepared {
    /// The amount and shape of work.
    pub work: Work,
    /// The family's own data (token ids, phonemes, reference codes …).
    pub payload: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("work", &self.work).finish_non_exhaustive()
    }
}

/// What one sequence got out of a forward pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// New mono samples at [`ModelInfo::sample_rate_hz`].
    pub samples: Vec<f32>,
    /// New text.
    pub text: String,
    /// New segments of a transcript; their texts make up `text`.
    pub segments: Vec<Segment>,
    /// Code of the language heard, once it is known.
    pub language: Option<String>,
    /// What was said, in a conversation.
    pub emission: Option<Emission>,
    /// Content key of the position that was generated, where a later prompt may go on from it.
    pub content_key: Option<u64>,
    /// Tokens generated: 0 while the prompt is being computed.
    pub generated_tokens: usize,
    /// Whether the model ended the sequence.
    pub finished: bool,
    /// Whether it was ended because it would not have ended by itself.
    pub runaway: bool,
    /// The pass is over and the sequence goes on with another one: its KV is given away, its state stays. The next
    /// entry has `begins` and starts at 0, or behind a shared prefix.
    pub next_pass: Option<Work>,
}
