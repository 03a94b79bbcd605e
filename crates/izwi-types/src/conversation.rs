//! Turns of a conversation and what they consist of.

use std::sync::Arc;

/// What a model that converses says at once: text and sound take turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emission {
    /// A token of text.
    Token(u32),
    /// A frame of sound: a code for each book.
    Frame(Arc<[u32]>),
}

/// A piece of what a user says.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Written.
    Text(String),
    /// Spoken: mono samples at [`ModelInfo::input_sample_rate_hz`].
    Recording(Arc<[f32]>),
}

/// A turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// What the user said, in order.
    User(Vec<Message>),
    /// What the model said: every [`StepOutput::emission`] of its turn, in order.
    Model(Arc<[Emission]>),
}
