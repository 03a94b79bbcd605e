//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: one recording, its text in one of several forms.
//!
//! A client that leaves drops the handler or the body, and with it the engine's request.

use std::collections::VecDeque;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use izwi_core::engine::{
    EngineCoreRequest, EngineError, FinishReason, RequestId, RequestStats, StreamingOutput, Task,
};
use izwi_core::transcript::DurationUsage;
use tokio::sync::mpsc;

use crate::dto::transcription::{TranscriptEvent, TranscriptionRequest};
use crate::error::ApiError;
use crate::listening::{Aim, Ask, Pieces};
use crate::numbers::{self, event};
use crate::registry::Lease;
use crate::state::AppState;
use crate::upload::Upload;

/// How long a stream waits for its first words before it begins without them: until then a failure has a status.
const FIRST_WORDS: Duration = Duration::from_secs(5);
/// Between two signs of life while nothing is said.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn transcribe(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<TranscriptionRequest>,
) -> Result<Response, ApiError> {
    listen(&state, id, upload, Aim::Transcribe).await
}

pub(super) async fn translate(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<TranscriptionRequest>,
) -> Result<Response, ApiError> {
    listen(&state, id, upload, Aim::Translate).await
}

async fn listen(
    state: &AppState,
    id: RequestId,
    upload: Upload<TranscriptionRequest>,
    aim: Aim,
) -> Result<Response, ApiError> {
    let Upload { fields, recording, room } = upload;
    let ask = Ask::check(fields, aim)?;
    let field = recording.param;
    let engine = state.lease(Some(&ask.model), Task::Asr).await?;
    let request = ask.request(recording, &engine)?.with_id(id.clone());
    if ask.stream {
        // The room is given back with the first words: the engine has read the recording by then.
        return stream(engine, request, field).await;
    }
    let result = engine.generate(request).await;
    drop(room);
    let output = result.map_err(|error| refusal(error, &engine, &id, field))?;
    let numbers = numbers::of(&output.stats);
    let content_type = ask.format.content_type();
    let body = ask.render(output).map_err(|error| ApiError::internal(&error.to_string(), &id))?;
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().extend(numbers);
    Ok(response)
}

fn refusal(error: EngineError, engine: &Lease, id: &RequestId, field: &'static str) -> ApiError {
    ApiError::from_engine(error, &engine.profile().model, id).about_recording(field)
}

/// A response whose body says words as they are heard.
async fn stream(
    engine: Lease,
    request: EngineCoreRequest,
    field: &'static str,
) -> Result<Response, ApiError> {
    let id = request.id.clone();
    let streaming = engine.generate_streaming(request).await;
    let (_, chunks) = streaming.map_err(|error| refusal(error, &engine, &id, field))?;
    let mut words = Words {
        chunks,
        id,
        pieces: Pieces::default(),
        pending: VecDeque::new(),
        is_over: false,
        _engine: engine,
    };
    if let Ok(first) = tokio::time::timeout(FIRST_WORDS, words.chunks.recv()).await {
        words.take(first)?;
    }
    let frames =
        stream::unfold(words, |mut words| async { Some((Ok::<_, ApiError>(words.next().await?), words)) });
    let mut response = Response::new(Body::new(StreamBody::new(frames)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::TRAILER, HeaderValue::from_static(numbers::NAMES));
    Ok(response)
}

/// A transcript under way. Dropping it drops the receiver, by which the engine knows that nobody listens.
struct Words {
    chunks: mpsc::Receiver<StreamingOutput>,
    id: RequestId,
    pieces: Pieces,
    pending: VecDeque<Frame<Bytes>>,
    is_over: bool,
    _engine: Lease,
}

impl Words {
    async fn next(&mut self) -> Option<Frame<Bytes>> {
        loop {
            if let Some(frame) = self.pending.pop_front() {
                return Some(frame);
            }
            if self.is_over {
                return None;
            }
            match tokio::time::timeout(KEEP_ALIVE, self.chunks.recv()).await {
                // A comment, which clients pass over.
                Err(_) => return Some(Frame::data(Bytes::from_static(b":\n\n"))),
                Ok(chunk) => {
                    if let Err(error) = self.take(chunk) {
                        self.is_over = true;
                        return Some(Frame::data(event(&error.envelope())));
                    }
                }
            }
        }
    }

    fn take(&mut self, chunk: Option<StreamingOutput>) -> Result<(), ApiError> {
        let chunk = chunk.ok_or(ApiError::CutOff)?;
        if let Some(stats) = &chunk.stats {
            self.check_end(stats)?;
        }
        if let Some(delta) = chunk.text.as_deref().and_then(|text| self.pieces.push(text)) {
            self.pending.push_back(Frame::data(event(&TranscriptEvent::Delta { delta })));
        }
        if let Some(stats) = &chunk.stats {
            let text = std::mem::take(&mut self.pieces).into_text();
            let usage = DurationUsage::new(stats.audio_duration.as_secs_f64());
            self.pending.push_back(Frame::data(event(&TranscriptEvent::Done { text, usage })));
            self.pending.push_back(Frame::trailers(numbers::of(stats)));
        }
        self.is_over = chunk.is_final;
        Ok(())
    }

    fn check_end(&self, stats: &RequestStats) -> Result<(), ApiError> {
        match stats.finish_reason {
            FinishReason::Error => {
                Err(ApiError::internal(stats.error.as_deref().unwrap_or("(no details)"), &self.id))
            }
            FinishReason::Cancelled => Err(ApiError::Draining),
            _ => Ok(()),
        }
    }
}
