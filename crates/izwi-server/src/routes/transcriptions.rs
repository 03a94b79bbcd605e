//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: one recording in, its text out in one of several formats.
//!
//! A disconnect drops the handler or the body, which aborts the engine's request.

use std::collections::VecDeque;
use std::ops::ControlFlow;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use http_body::Frame;
use izwi_core::engine::{EngineCoreRequest, EngineError, RequestId, RequestStats, StreamingOutput};
use tokio::sync::mpsc;

use super::diarized;
use super::streamed::{self, Events, check_end, event};
use crate::dto::timed_segment::TimedSegment;
use crate::dto::transcription::{
    LogprobObject, TokensUsage, TranscriptEvent, TranscriptionRequest, logprobs,
};
use crate::error::ApiError;
use crate::openapi::{TranscriptBody, TranscriptionBody, TranscriptionForm, TranscriptionRefusals};
use crate::record;
use crate::registry::Lease;
use crate::state::AppState;
use crate::stats_headers;
use crate::transcript_format::{AsrTask, TranscriptFormat, detected};
use crate::transcription::{CheckedRequest, TextDeltas};
use crate::upload::Upload;

/// Speech to text, in the language of the recording
#[utoipa::path(
    post,
    path = "/v1/audio/transcriptions",
    tag = "transcription",
    request_body(content(
        (TranscriptionBody = "application/json"),
        (TranscriptionForm = "multipart/form-data"),
    )),
    responses(TranscriptBody, TranscriptionRefusals),
)]
pub(super) async fn transcribe(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<TranscriptionRequest>,
) -> Result<Response, ApiError> {
    respond(&state, id, upload, AsrTask::Transcribe).await
}

/// Speech to English text
///
/// As transcriptions, by a model that translates. Translations are not streamed.
#[utoipa::path(
    post,
    path = "/v1/audio/translations",
    tag = "transcription",
    request_body(content(
        (TranscriptionBody = "application/json"),
        (TranscriptionForm = "multipart/form-data"),
    )),
    responses(TranscriptBody, TranscriptionRefusals),
)]
pub(super) async fn translate(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<TranscriptionRequest>,
) -> Result<Response, ApiError> {
    respond(&state, id, upload, AsrTask::Translate).await
}

/// Answers a request with its transcript.
pub async fn respond(
    state: &AppState,
    id: RequestId,
    upload: Upload<TranscriptionRequest>,
    task: AsrTask,
) -> Result<Response, ApiError> {
    let Upload { fields, recording, mut ignored, memory } = upload;
    let checked = CheckedRequest::check(fields, task)?;
    let field = recording.param;
    // The model of the record is the one that is leased last.
    let (speakers, engine) = checked.lease(state, &mut ignored).await?;
    let request = checked.request(recording, &engine)?.with_id(id.clone());
    if checked.stream {
        // The upload's memory is given back with the first text: the engine has read the recording by then.
        let mut response = match speakers {
            Some(speakers) => {
                diarized::stream(engine, speakers, request, (field, checked.with_words)).await?
            }
            None => stream(engine, request, field, checked).await?,
        };
        response.headers_mut().extend(ignored.headers());
        return Ok(response);
    }
    let result = match &speakers {
        Some(speakers) => speakers.generate(&engine, request, field).await,
        None => engine.generate(request).await.map_err(|error| refusal(error, &engine, &id, field)),
    };
    drop(memory);
    let output = result?;
    record::generated(&engine, &output.stats, output.stats.finish_reason);
    let statistics = stats_headers::of(&output.stats);
    let content_type = checked.format.media_type();
    let body = checked.render(output).map_err(|error| ApiError::internal(&error.to_string(), &id))?;
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().extend(statistics);
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

fn refusal(error: EngineError, engine: &Lease, id: &RequestId, field: &'static str) -> ApiError {
    ApiError::from_engine(error, &engine.profile().model, id).about_recording(field)
}

/// A response whose body sends text as it is transcribed.
async fn stream(
    engine: Lease,
    request: EngineCoreRequest,
    field: &'static str,
    checked: CheckedRequest,
) -> Result<Response, ApiError> {
    let id = request.id.clone();
    let streaming = engine.generate_streaming(request).await;
    let (_, chunks) = streaming.map_err(|error| refusal(error, &engine, &id, field))?;
    let transcript = TranscriptStream {
        chunks,
        id,
        checked,
        language: None,
        deltas: TextDeltas::default(),
        logprobs: Vec::new(),
        sent_logprobs: 0,
        engine,
    };
    streamed::events(transcript).await
}

/// A transcript in progress.
struct TranscriptStream {
    chunks: mpsc::Receiver<StreamingOutput>,
    id: RequestId,
    checked: CheckedRequest,
    /// The detected language.
    language: Option<String>,
    deltas: TextDeltas,
    /// All tokens so far, if the request asks for them.
    logprobs: Vec<LogprobObject>,
    /// How many of them went out with a delta.
    sent_logprobs: usize,
    engine: Lease,
}

impl Events for TranscriptStream {
    async fn advance(&mut self, frames: &mut VecDeque<Frame<Bytes>>) -> Result<ControlFlow<()>, ApiError> {
        let chunk = self.chunks.recv().await.ok_or(ApiError::CutOff)?;
        self.take(chunk, frames)
    }
}

impl TranscriptStream {
    fn take(
        &mut self,
        chunk: StreamingOutput,
        frames: &mut VecDeque<Frame<Bytes>>,
    ) -> Result<ControlFlow<()>, ApiError> {
        if let Some(stats) = &chunk.stats {
            record::generated(&self.engine, stats, stats.finish_reason);
            check_end(stats, &self.engine, &self.id)?;
        }
        self.logprobs.extend(logprobs(&chunk.segments));
        if let Some(delta) = chunk.text.as_deref().and_then(|text| self.deltas.push(text)) {
            let sent = std::mem::replace(&mut self.sent_logprobs, self.logprobs.len());
            let logprobs = self.checked.options.logprobs().then(|| self.logprobs[sent..].to_vec());
            frames.push_back(Frame::data(event(&TranscriptEvent::Delta { delta, logprobs })));
        }
        if self.checked.format == TranscriptFormat::VerboseJson {
            let with_words = self.checked.options.words();
            frames.extend(chunk.segments.iter().map(|segment| {
                let segment = TimedSegment::new(segment, with_words);
                Frame::data(event(&TranscriptEvent::TimedSegment(segment)))
            }));
        }
        self.language = chunk.language.or_else(|| self.language.take());
        if let Some(stats) = &chunk.stats {
            let done = self.done(stats);
            frames.push_back(Frame::data(event(&done)));
            frames.push_back(Frame::trailers(stats_headers::of(stats)));
        }
        Ok(if chunk.is_final { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    /// The last event. Its usage is in tokens, whatever the model.
    fn done(&mut self, stats: &RequestStats) -> TranscriptEvent {
        let extras = self.checked.extras(stats);
        TranscriptEvent::Done {
            text: std::mem::take(&mut self.deltas).into_text(),
            languages: (extras.languages || self.checked.format == TranscriptFormat::VerboseJson)
                .then(|| detected(self.language.as_deref())),
            logprobs: extras.logprobs.then(|| std::mem::take(&mut self.logprobs)),
            usage: TokensUsage::new(stats.prompt_tokens, stats.generated_tokens),
        }
    }
}
