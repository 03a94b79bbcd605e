//! `POST /v1/audio/alignments`: a recording and its text in, the times of its words out in one of several formats.
//!
//! A disconnect drops the handler, which aborts the engine's request.

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use izwi_core::engine::{EngineCoreRequest, RequestId, Task, TranscriptionOptions};
use izwi_types::excerpt;

use crate::alignment_format::AlignmentFormat;
use crate::dto::alignment::AlignmentRequest;
use crate::error::ApiError;
use crate::extract::{non_blank, parse_priority};
use crate::openapi::{Alignment, AlignmentBody, AlignmentForm, AlignmentRefusals};
use crate::record;
use crate::state::AppState;
use crate::stats_headers;
use crate::upload::Upload;

/// When the words of a text are said in a recording
///
/// The words are timed as they are written, whatever the model would have heard. Nothing is transcribed.
#[utoipa::path(
    post,
    path = "/v1/audio/alignments",
    tag = "transcription",
    request_body(content(
        (AlignmentBody = "application/json"),
        (AlignmentForm = "multipart/form-data"),
    )),
    responses(Alignment, AlignmentRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<AlignmentRequest>,
) -> Result<Response, ApiError> {
    let Upload { fields, recording, mut ignored, memory } = upload;
    let format = parse_format(non_blank(fields.response_format).as_deref())?;
    let priority = parse_priority(non_blank(fields.priority).as_deref())?;
    let options = TranscriptionOptions { language: fields.language, ..TranscriptionOptions::default() };
    let options = options.checked().map_err(|error| ApiError::invalid(error.param, error.message))?;
    if fields.text.trim().is_empty() {
        return Err(ApiError::invalid("text", "text is empty; send what is said in the recording"));
    }
    let model = non_blank(fields.model);
    let engine = state.lease(model.as_deref(), Task::Asr).await?;
    if model.as_deref().is_some_and(|model| state.registry().is_stand_in(model)) {
        ignored.add("model");
    }
    let request = EngineCoreRequest::alignment(recording.audio, fields.text)
        .with_transcription(options)
        .with_priority(priority)
        .with_id(id.clone());
    let result = engine.generate(request).await;
    drop(memory);
    let refused = |error| ApiError::from_engine(error, &engine.profile().model, &id);
    let output = result.map_err(|error| refused(error).about_recording(recording.param))?;
    record::generated(&engine, &output.stats, output.stats.finish_reason);
    let segments = output.transcript.unwrap_or_default().segments;
    let body = format.render(&segments, output.stats.audio_duration.as_secs_f64());
    let body = body.map_err(|error| ApiError::internal(&error.to_string(), &id))?;
    let mut response = Response::new(Body::from(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    headers.extend(stats_headers::of(&output.stats));
    headers.extend(ignored.headers());
    Ok(response)
}

/// Reads `response_format`.
fn parse_format(name: Option<&str>) -> Result<AlignmentFormat, ApiError> {
    let Some(name) = name else { return Ok(AlignmentFormat::Json) };
    AlignmentFormat::parse(name).ok_or_else(|| {
        let (name, known) = (excerpt(name), AlignmentFormat::names().join(", "));
        ApiError::invalid(
            "response_format",
            format!("response_format '{name}' is unknown; use one of {known}"),
        )
    })
}
