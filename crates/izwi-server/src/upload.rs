//! Reading a request that carries a recording: as JSON with base64, or as a multipart form with a file.
//!
//! Both lead to the same fields, which [`fields`] declares. There are limits on the body, the recording, each other field,
//! the time, and the memory of all such requests together.

mod fields;
mod memory;

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Body;
use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use http_body_util::BodyExt as _;
use izwi_audio::decode::DecodeError;
use izwi_audio::pcm_format::PcmFormat;
use izwi_core::engine::{AudioInput, MemoryShare};
use izwi_types::excerpt;

use crate::config::ServerConfig;
use crate::dto::speech::SpeechRequest;
use crate::error::ApiError;
use crate::extract::{ContentType, expect_object, parse_with_options_telling, shortened};
use crate::ignored::IgnoredFields;
use crate::json_size;
use crate::slow_body::is_slow;
use crate::state::AppState;
pub use fields::{RecordingFields, TextPart, parse, parse_bool};
pub use memory::UploadMemory;

/// The most parts of a form.
pub(crate) const MAX_PARTS: usize = 64;

/// A recording, and the field that carried it.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    pub(crate) audio: AudioInput,
    pub(crate) param: &'static str,
}

impl Recording {
    /// A file, and the field that errors name.
    pub fn file(file: Bytes, param: &'static str) -> Self {
        Self { audio: AudioInput::File(file), param }
    }

    /// The same, whose bytes are samples in `format` without a header.
    ///
    /// # Errors
    /// It came as base64, which is that of a file.
    pub fn as_pcm(self, format: PcmFormat) -> Result<Self, ApiError> {
        let Self { audio, param } = self;
        match audio {
            AudioInput::File(bytes) => Ok(Self { audio: AudioInput::Pcm(bytes, format), param }),
            AudioInput::Pcm(..) | AudioInput::Base64(_) => {
                let message = format!("{param} in JSON is a file; send samples without a header as a form");
                Err(ApiError::invalid(param, message))
            }
        }
    }

    /// The field that errors name.
    pub fn param(&self) -> &'static str {
        self.param
    }
}

/// A request that carries a recording.
#[derive(Debug)]
pub struct Upload<F> {
    /// The fields without the recording.
    pub fields: F,
    /// The recording.
    pub recording: Recording,
    /// What else the request has.
    pub ignored: IgnoredFields,
    /// Its memory.
    pub memory: MemoryShare,
}

impl<F: RecordingFields> FromRequest<AppState> for Upload<F> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_length(&request, state.config())?;
        let content_type = ContentType::of(&request);
        let read = async {
            if content_type.is_json() {
                read_json(request, state).await
            } else if content_type.is_form() {
                read_form(request, state).await
            } else {
                Err(content_type.refused("multipart/form-data or application/json"))
            }
        };
        let upload = tokio::time::timeout(state.config().upload_timeout, read);
        let upload = upload.await.map_err(|_| ApiError::RequestTimeout)??;
        state.ignored_log().note(&upload.ignored);
        Ok(upload)
    }
}

/// A request whose body is a recording.
#[derive(Debug)]
pub struct RawUpload {
    /// The recording.
    pub bytes: Bytes,
    /// Its memory.
    pub memory: MemoryShare,
}

impl RawUpload {
    /// Reads the body, within the limits of a recording.
    pub async fn read(request: Request, state: &AppState) -> Result<Self, ApiError> {
        check_length(&request, state.config())?;
        let mut memory = UploadMemory::new(state, 0);
        let config = state.config();
        let read = read_large_body(request, &mut memory, config.max_request_bytes());
        let read = tokio::time::timeout(config.upload_timeout, read);
        let bytes = read.await.map_err(|_| ApiError::RequestTimeout)??.freeze();
        let limit = config.max_upload_bytes;
        if bytes.is_empty() {
            return Err(ApiError::invalid("body", "body is empty; send a recording"));
        }
        if bytes.len() > limit {
            return Err(ApiError::Audio { param: "body", error: DecodeError::TooLarge { limit } });
        }
        Ok(Self { bytes, memory: memory.take_counted() })
    }
}

/// A speech request, which may carry a recording to clone.
#[derive(Debug)]
pub(crate) struct SpeechUpload {
    /// All fields, with the recording.
    pub(crate) fields: SpeechRequest,
    /// What else the request has.
    pub(crate) ignored: IgnoredFields,
    /// The recording's memory.
    pub(crate) memory: MemoryShare,
}

impl FromRequest<AppState> for SpeechUpload {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let content_type = ContentType::of(&request);
        if !content_type.is_json() {
            return Err(content_type.refused("application/json"));
        }
        check_length(&request, state.config())?;
        let plain = state.config().max_body_bytes;
        let is_large = content_length(&request) > plain as u64;
        let config = state.config();
        let limit = if is_large { config.upload_timeout } else { config.body_timeout };
        let mut memory = UploadMemory::new(state, plain);
        let read = read_large_body(request, &mut memory, config.max_request_bytes());
        let read = tokio::time::timeout(limit, read);
        let bytes = read.await.map_err(|_| ApiError::RequestTimeout)??;
        check_rest(&bytes, &["ref_audio"], plain)?;
        let (fields, ignored) = parse_with_options_telling::<SpeechRequest>(&bytes)?;
        state.ignored_log().note(&ignored);
        let recording = fields.ref_audio.as_deref().unwrap_or_default();
        check_payload("ref_audio", recording, state.config().max_upload_bytes)?;
        Ok(Self { fields, ignored, memory: memory.take_counted() })
    }
}

/// The JSON body of a request without a recording, within the common limits of size and time.
///
/// # Errors
/// It has another content type, is too large, or comes too slowly.
pub async fn read_plain_json(request: Request, state: &AppState) -> Result<BytesMut, ApiError> {
    let content_type = ContentType::of(&request);
    if !content_type.is_json() {
        return Err(content_type.refused("application/json"));
    }
    read_plain(request, state).await
}

/// The body of a request without a recording, within the common limits of size and time.
///
/// # Errors
/// It is too large, or comes too slowly.
pub async fn read_plain(request: Request, state: &AppState) -> Result<BytesMut, ApiError> {
    let limit = state.config().max_body_bytes;
    let too_large = || ApiError::TooLarge(format!("body has more than {limit} bytes; send less"));
    if content_length(&request) > limit as u64 {
        return Err(too_large());
    }
    let mut memory = UploadMemory::new(state, limit);
    let read = tokio::time::timeout(state.config().body_timeout, read_body(request, &mut memory, limit));
    let bytes = read.await.map_err(|_| ApiError::RequestTimeout)??;
    bytes.ok_or_else(too_large)
}

/// The JSON body of a request that may have a recording in it, within the limits of one, and the rest of the request.
///
/// # Errors
/// It has another content type, is too large, or comes too slowly.
pub async fn read_large_json(request: Request, state: &AppState) -> Result<(Parts, RawUpload), ApiError> {
    let content_type = ContentType::of(&request);
    if !content_type.is_json() {
        return Err(content_type.refused("application/json"));
    }
    check_length(&request, state.config())?;
    let (parts, body) = request.into_parts();
    let mut memory = UploadMemory::new(state, state.config().max_body_bytes);
    let read = read_large_body(Request::new(body), &mut memory, state.config().max_request_bytes());
    let read = tokio::time::timeout(state.config().upload_timeout, read);
    let bytes = read.await.map_err(|_| ApiError::RequestTimeout)??.freeze();
    Ok((parts, RawUpload { bytes, memory: memory.take_counted() }))
}

/// The `Content-Length` of a request; 0 without one.
fn content_length(request: &Request) -> u64 {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    length.and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// Refuses a body by its `Content-Length`, before it is read.
fn check_length(request: &Request, config: &ServerConfig) -> Result<(), ApiError> {
    let limit = config.max_request_bytes();
    if content_length(request) > limit as u64 { Err(too_large("body", limit)) } else { Ok(()) }
}

fn too_large(what: &str, limit: usize) -> ApiError {
    ApiError::TooLarge(format!("{what} has more than {limit} bytes; send a shorter or compressed recording"))
}

/// Refuses a JSON body that exceeds the common limit by more than its recording, named in `recordings`.
fn check_rest(body: &[u8], recordings: &[&str], limit: usize) -> Result<(), ApiError> {
    if body.len() <= limit {
        return Ok(());
    }
    let message = format!("body has more than {limit} bytes beside its recording; send less");
    expect_object(body).map_err(|_| ApiError::TooLarge(message.clone()))?;
    let rest = json_size::beside_recordings(body, recordings);
    if rest.map_err(|error| ApiError::MalformedJson(shortened(&error)))? > limit {
        return Err(ApiError::TooLarge(message));
    }
    Ok(())
}

/// The whole body of a request that may carry a recording.
async fn read_large_body(
    request: Request,
    memory: &mut UploadMemory,
    limit: usize,
) -> Result<BytesMut, ApiError> {
    read_body(request, memory, limit).await?.ok_or_else(|| too_large("body", limit))
}

/// The whole body; `None` if it has more than `limit` bytes.
async fn read_body(
    request: Request,
    memory: &mut UploadMemory,
    limit: usize,
) -> Result<Option<BytesMut>, ApiError> {
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| unreadable(&error))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Ok(None);
        }
        memory.take(data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(Some(bytes))
}

async fn read_json<F: RecordingFields>(request: Request, state: &AppState) -> Result<Upload<F>, ApiError> {
    let mut memory = UploadMemory::new(state, 0);
    let bytes = read_large_body(request, &mut memory, state.config().max_request_bytes()).await?;
    check_rest(&bytes, F::MEMBERS, state.config().max_body_bytes)?;
    let (mut fields, ignored) = F::read(&bytes)?;
    drop(bytes);
    fields.check()?;
    let (param, base64) = recording_of(&mut fields)?;
    let payload = match base64.split_once(',') {
        Some((head, payload)) if head.starts_with("data:") => payload,
        _ => base64.as_str(),
    };
    if payload.trim().is_empty() {
        return Err(ApiError::invalid(param, format!("{param} is empty; send a recording as base64")));
    }
    check_payload(param, payload, state.config().max_upload_bytes)?;
    Ok(Upload {
        fields,
        recording: Recording { audio: AudioInput::Base64(base64), param },
        ignored,
        memory: memory.take_counted(),
    })
}

/// The recording of a JSON body, and the member that carried it.
fn recording_of(fields: &mut impl RecordingFields) -> Result<(&'static str, String), ApiError> {
    let members = fields.take_recordings();
    let first = members.first().map_or("audio", |(name, _)| *name);
    let mut given = members.into_iter().filter_map(|(name, base64)| Some((name, base64?)));
    match (given.next(), given.next()) {
        (Some((one, _)), Some((other, _))) => {
            Err(ApiError::invalid(other, format!("{one} and {other} are both given; send one")))
        }
        (Some(recording), None) => Ok(recording),
        (None, _) => {
            let message = format!("{first} is missing; send a recording as base64, or a form with a file");
            Err(ApiError::invalid(first, message))
        }
    }
}

/// Refuses base64 of more than `limit` bytes before it is decoded.
pub(crate) fn check_payload(param: &'static str, base64: &str, limit: usize) -> Result<(), ApiError> {
    if base64.len() / 4 * 3 > limit.saturating_add(2) {
        return Err(ApiError::Audio { param, error: DecodeError::TooLarge { limit } });
    }
    Ok(())
}

async fn read_form<F: RecordingFields>(request: Request, state: &AppState) -> Result<Upload<F>, ApiError> {
    let limit = state.config().max_request_bytes();
    let memory = Arc::new(Mutex::new(UploadMemory::new(state, 0)));
    let mut form = Multipart::from_request(counted(request, &memory), state)
        .await
        .map_err(|_| ApiError::MalformedForm("its content type has no boundary".to_owned()))?;
    let (mut fields, mut ignored) = (F::default(), IgnoredFields::default());
    let (texts, mut seen) = (F::texts(), BTreeSet::new());
    let mut file: Option<(&'static str, Bytes)> = None;
    let mut parts = 0;
    while let Some(mut field) = form.next_field().await.map_err(|error| form_error(&error, limit))? {
        parts += 1;
        if parts > MAX_PARTS {
            return Err(ApiError::MalformedForm(format!("it has more than {MAX_PARTS} parts")));
        }
        let Some(name) = field.name().map(str::to_owned) else {
            return Err(ApiError::MalformedForm(format!("part {parts} has no name")));
        };
        let text = texts.iter().find(|part| part.name == name);
        let is_file = F::FILES.iter().copied().find(|file| *file == name);
        let once = is_file.is_some() || text.is_some_and(|part| !part.repeats);
        if once && !seen.insert(name.clone()) {
            return Err(ApiError::invalid(&name, format!("{name} is given more than once; send one")));
        }
        if let Some(param) = is_file {
            if let Some((other, _)) = &file {
                let message = format!("{other} and {param} are both given; send one");
                return Err(ApiError::invalid(param, message));
            }
            let (limit, whole) = (state.config().max_upload_bytes, limit);
            file = Some((param, collect(&mut field, Some(param), limit, whole).await?));
        } else if let Some(text) = text {
            let whole = limit;
            let bytes = collect(&mut field, None, text.max_bytes, whole).await?;
            let text = String::from_utf8(bytes.into())
                .map_err(|_| ApiError::invalid(&name, format!("{name} is not UTF-8 text")))?;
            fields.take_text(&name, text)?;
        } else {
            ignored.add(&name);
        }
    }
    fields.check()?;
    let first = F::FILES.first().copied().unwrap_or("file");
    let Some((param, file)) = file else {
        let message = format!("{first} is missing; send a recording as a file of this form");
        return Err(ApiError::invalid(first, message));
    };
    if file.is_empty() {
        return Err(ApiError::invalid(param, format!("{param} is empty; send a recording")));
    }
    let recording = Recording::file(file, param);
    drop(form);
    let memory = memory.lock().unwrap_or_else(PoisonError::into_inner).take_counted();
    Ok(Upload { fields, recording, ignored, memory })
}

/// The request with each byte of its body counted before the form sees it: a form buffers also what is no field.
fn counted(request: Request, memory: &Arc<Mutex<UploadMemory>>) -> Request {
    let memory = Arc::clone(memory);
    request.map(|body| {
        Body::from_stream(body.into_data_stream().map(move |data| {
            let data = data?;
            // Memory is not left half taken.
            let taken = memory.lock().unwrap_or_else(PoisonError::into_inner).take(data.len());
            taken.map(|()| data).map_err(axum::Error::new)
        }))
    })
}

/// The bytes of a part, at most `limit`, of a form of at most `whole`. `recording` is the part's name if it is the
/// recording.
pub(crate) async fn collect(
    field: &mut Field<'_>,
    recording: Option<&'static str>,
    limit: usize,
    whole: usize,
) -> Result<Bytes, ApiError> {
    let mut bytes = BytesMut::new();
    while let Some(chunk) = field.chunk().await.map_err(|error| form_error(&error, whole))? {
        if bytes.len() + chunk.len() > limit {
            let name = field.name().unwrap_or_default();
            return Err(match recording {
                Some(param) => ApiError::Audio { param, error: DecodeError::TooLarge { limit } },
                None => ApiError::invalid(name, format!("{name} has more than {limit} bytes; send less")),
            });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

fn unreadable(error: &axum::Error) -> ApiError {
    if is_slow(error) { ApiError::RequestTimeout } else { ApiError::UnreadableBody(error.to_string()) }
}

pub(crate) fn form_error(error: &MultipartError, limit: usize) -> ApiError {
    if is_slow(error) {
        return ApiError::RequestTimeout;
    }
    // The refusal of a body that is counted passes through the form.
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(refusal) = error.downcast_ref::<ApiError>() {
            return refusal.clone();
        }
        cause = error.source();
    }
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_large("body", limit);
    }
    ApiError::MalformedForm(excerpt(&error.body_text()))
}
