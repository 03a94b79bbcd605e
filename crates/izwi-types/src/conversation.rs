//! Turns of a conversation and what they consist of.

use std::sync::Arc;

/// One output of a conversational model: text tokens and audio frames alternate. A model that is composed of others says
/// words and calls tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emission {
    /// A text token.
    Token(u32),
    /// An audio frame: one code per codebook.
    Frame(Arc<[u32]>),
    /// Text that is said by the end of the samples that come with it; of an answer without sound, its text.
    Said(Arc<str>),
    /// A call of a tool.
    Call(Arc<ToolCall>),
}

impl Emission {
    /// Whether it is heard, rather than read.
    pub fn is_heard(&self) -> bool {
        matches!(self, Self::Frame(_) | Self::Said(_))
    }
}

/// A call of a tool, whose result the next turn of the user has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Names it in its result.
    pub id: String,
    /// Name of the tool.
    pub name: String,
    /// A JSON object, as the model wrote it.
    pub arguments: String,
}

/// A tool that a model may call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// When to call it, and what it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub parameters: Option<String>,
}

/// Whether a model calls tools.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// It does not.
    None,
    /// One at least.
    Required,
    /// The one of this name.
    Named(String),
}

/// One part of a user's turn.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Text.
    Text(String),
    /// Speech: mono samples at [`ModelInfo::input_sample_rate_hz`](crate::ModelInfo::input_sample_rate_hz).
    Recording(Arc<[f32]>),
    /// What a tool returned.
    Result {
        /// The call.
        call_id: String,
        /// Its result, in any form.
        output: String,
    },
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
