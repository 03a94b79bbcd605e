//! Turns of a conversation and what they consist of.

use std::sync::Arc;

/// One output of a conversational model: text tokens and audio frames alternate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emission {
    /// A text token.
    Token(u32),
    /// An audio frame: one code per codebook.
    Frame(Arc<[u32]>),
}

/// One part of a user's turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Text.
    Text(String),
    /// Speech: mono samples at [`ModelInfo::input_sample_rate_hz`](crate::ModelInfo::input_sample_rate_hz).
    Recording(Arc<[f32]>),
}

/// A turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// The user's messages, in order.
    User(Vec<Message>),
    /// The model's output: every [`StepOutput::emission`](crate::StepOutput::emission) of its turn, in order.
    Model(Arc<[Emission]>),
    /// The text of an answer that no model here generated: a client told it.
    Told(Arc<str>),
}
