//! The model's turn: from what the user said to the last of the answer.

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_core::engine::{
    AudioInput, Emission, Engine, EngineCoreRequest, Message, RequestId, StreamingOutput,
};
use std::time::Duration;
use tokio::sync::mpsc;

use crate::error::ApiError;
use crate::speech::begin;

type Chunks = mpsc::Receiver<StreamingOutput>;
pub(super) type Begun = Result<(StreamingOutput, Chunks), ApiError>;

/// What a user said, as it came.
#[derive(Debug)]
pub(super) enum Asked {
    Text(String),
    /// A WAV file.
    Audio(Bytes),
}

/// How far the model's turn is. Dropping it drops the engine's receiver, which aborts the request.
pub(super) enum Answer {
    Silent,
    /// What the user said is made into what the model hears.
    Hearing(BoxFuture<'static, Result<Message, ApiError>>),
    Beginning(BoxFuture<'static, Begun>),
    Speaking(Speech),
}

/// An answer that has begun.
pub(super) struct Speech {
    chunks: Chunks,
    pub(super) request: RequestId,
    /// Text handed to the client.
    pub(super) text: String,
    /// Chunks and samples handed to the client.
    pub(super) sent_chunks: u64,
    pub(super) sent_samples: u64,
    /// What was handed over whole.
    pub(super) said: Vec<Emission>,
    /// The client spoke over it: nothing more of it is sent but its end.
    pub(super) is_interrupted: bool,
}

/// What comes next of an answer.
pub(super) enum Next {
    Heard(Result<Message, ApiError>),
    Begun(Begun),
    Chunk(Option<StreamingOutput>),
}

impl Answer {
    /// Begins to hear what was said.
    pub(super) fn hear(engine: Engine, asked: Asked, model: String, id: RequestId) -> Self {
        let hearing = async move {
            match asked {
                Asked::Text(text) => Ok(Message::Text(text)),
                Asked::Audio(file) => {
                    let heard = engine.hear(AudioInput::File(file)).await;
                    heard.map(Message::Recording).map_err(|error| ApiError::from_engine(error, &model, &id))
                }
            }
        };
        Self::Hearing(hearing.boxed())
    }

    /// Begins to answer.
    pub(super) fn begin(engine: Engine, request: EngineCoreRequest, limit: Duration) -> Self {
        Self::Beginning(async move { begin(&engine, request, limit).await }.boxed())
    }

    /// An answer of which the first chunk is there.
    pub(super) fn begun(first: &StreamingOutput, chunks: Chunks) -> Self {
        Self::Speaking(Speech {
            chunks,
            request: first.request_id.clone(),
            text: String::new(),
            sent_chunks: 0,
            sent_samples: 0,
            said: Vec::new(),
            is_interrupted: false,
        })
    }

    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Self::Silent)
    }

    /// Waits for what comes next; for ever when there is nothing. Cancel-safe.
    pub(super) async fn next(&mut self) -> Next {
        match self {
            Self::Silent => std::future::pending().await,
            Self::Hearing(heard) => Next::Heard(heard.await),
            Self::Beginning(begun) => Next::Begun(begun.await),
            Self::Speaking(speech) => Next::Chunk(speech.chunks.recv().await),
        }
    }
}
