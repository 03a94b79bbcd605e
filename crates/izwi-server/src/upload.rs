//! Reading a request that brings a recording: as JSON with base64, or as a multipart form with a file.
//!
//! Both end in the same fields. Everything is bounded while it arrives: the whole, the recording, each other field,
//! the time, and what all such requests hold together.

use std::collections::BTreeSet;

use axum::extract::multipart::{Field, MultipartError};
use axum::extract::{FromRequest, Multipart, Request};
use axum::http::{StatusCode, header};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use izwi_audio::decode::DecodeError;
use izwi_core::engine::AudioInput;
use tokio::sync::OwnedSemaphorePermit;

use crate::config::ServerConfig;
use crate::dto::transcription::TranscriptionRequest;
use crate::error::ApiError;
use crate::extract::{ContentType, parse_json};
use crate::near;
use crate::state::AppState;

/// The most parts of a form.
const MAX_PARTS: usize = 64;
/// The most bytes of a part that is not the recording.
const MAX_TEXT_BYTES: usize = 256 << 10;

/// A recording and the field it came in.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Recording {
    pub(crate) audio: AudioInput,
    pub(crate) param: &'static str,
}

/// The most requests of the largest size whose bytes are held at once; of smaller ones there may be more.
const LARGEST_AT_ONCE: usize = 4;
/// Unit in which room is counted.
const KIB: usize = 1 << 10;

/// Memory that the bytes of one request take, out of what all may take together.
struct Room<'a> {
    state: &'a AppState,
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
}

impl<'a> Room<'a> {
    fn new(state: &'a AppState) -> Self {
        Self { state, bytes: 0, held: None }
    }

    /// Room for `bytes` more.
    fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let kib = |bytes: usize| bytes.div_ceil(KIB);
        let more = kib(self.bytes + bytes) - kib(self.bytes);
        self.bytes += bytes;
        let more = self.state.upload_room(u32::try_from(more).unwrap_or(u32::MAX))?;
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
        Ok(())
    }
}

/// KiB of recordings that all requests may hold together.
pub(crate) fn room_kib(config: &ServerConfig) -> usize {
    (max_request_bytes(config) / KIB + 1)
        .saturating_mul(LARGEST_AT_ONCE)
        .min(tokio::sync::Semaphore::MAX_PERMITS)
}

/// A request that brings a recording.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Everything else; the recording has been taken out.
    pub(crate) fields: TranscriptionRequest,
    pub(crate) recording: Recording,
    /// Its share of the memory for recordings.
    pub(crate) room: Option<OwnedSemaphorePermit>,
}

/// The most bytes of the body of a request that brings a recording: base64 of it, and the other fields.
pub(crate) fn max_request_bytes(config: &ServerConfig) -> usize {
    (config.max_upload_bytes / 3 + 1).saturating_mul(4).saturating_add(config.max_body_bytes)
}

impl FromRequest<AppState> for Upload {
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
        upload.await.map_err(|_| ApiError::RequestTimeout)?
    }
}

/// Refuses a body that says it is too long, before any of it is read.
fn check_length(request: &Request, config: &ServerConfig) -> Result<(), ApiError> {
    let length = request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    let length = length.and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
    let limit = max_request_bytes(config);
    if length > limit as u64 { Err(too_large("body", limit)) } else { Ok(()) }
}

fn too_large(what: &str, limit: usize) -> ApiError {
    ApiError::TooLarge(format!("{what} has more than {limit} bytes; send a shorter or compressed recording"))
}

async fn read_json(request: Request, state: &AppState) -> Result<Upload, ApiError> {
    let limit = max_request_bytes(state.config());
    let mut room = Room::new(state);
    let mut body = request.into_body();
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::UnreadableBody(error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large("body", limit));
        }
        room.take(data.len())?;
        bytes.extend_from_slice(&data);
    }
    let mut fields: TranscriptionRequest = parse_json(&bytes)?;
    drop(bytes);
    let (param, base64) = match (fields.audio.take(), fields.audio_base64.take()) {
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid("audio_base64", "audio and audio_base64 are both given; send one"));
        }
        (Some(base64), None) => ("audio", base64),
        (None, Some(base64)) => ("audio_base64", base64),
        (None, None) => {
            let message = "audio is missing; send a recording as base64, or a form with a file";
            return Err(ApiError::invalid("audio", message));
        }
    };
    let payload = match base64.split_once(',') {
        Some((head, payload)) if head.starts_with("data:") => payload,
        _ => base64.as_str(),
    };
    if payload.trim().is_empty() {
        return Err(ApiError::invalid(param, format!("{param} is empty; send a recording as base64")));
    }
    let limit = state.config().max_upload_bytes;
    if payload.len() / 4 * 3 > limit.saturating_add(2) {
        return Err(ApiError::Audio { param, error: DecodeError::TooLarge { limit } });
    }
    Ok(Upload { fields, recording: Recording { audio: AudioInput::Base64(base64), param }, room: room.held })
}

async fn read_form(request: Request, state: &AppState) -> Result<Upload, ApiError> {
    let limit = max_request_bytes(state.config());
    let mut form = Multipart::from_request(request, state)
        .await
        .map_err(|_| ApiError::MalformedForm("its content type names no boundary".to_owned()))?;
    let mut fields = TranscriptionRequest::default();
    let mut seen = BTreeSet::new();
    let mut file = None;
    let mut parts = 0;
    let mut room = Room::new(state);
    while let Some(mut field) = form.next_field().await.map_err(|error| broken(&error, limit))? {
        parts += 1;
        if parts > MAX_PARTS {
            return Err(ApiError::MalformedForm(format!("it has more than {MAX_PARTS} parts")));
        }
        let Some(name) = field.name().map(str::to_owned) else {
            return Err(ApiError::MalformedForm(format!("part {parts} has no name")));
        };
        let repeats = name.starts_with("timestamp_granularities") || !is_known(&name);
        if !repeats && !seen.insert(name.clone()) {
            return Err(ApiError::invalid(&name, format!("{name} is given more than once; send one")));
        }
        if name == "file" {
            file = Some(collect(&mut field, "file", state.config().max_upload_bytes, &mut room).await?);
        } else if is_known(&name) {
            let bytes = collect(&mut field, &name, MAX_TEXT_BYTES, &mut room).await?;
            let text = String::from_utf8(bytes.into())
                .map_err(|_| ApiError::invalid(&name, format!("{name} is not UTF-8 text")))?;
            fields.take(&name, text)?;
        }
    }
    let Some(file) = file else {
        return Err(ApiError::invalid("file", "file is missing; send a recording as a file of this form"));
    };
    if file.is_empty() {
        return Err(ApiError::invalid("file", "file is empty; send a recording"));
    }
    let recording = Recording { audio: AudioInput::File(file), param: "file" };
    Ok(Upload { fields, recording, room: room.held })
}

/// The bytes of a part, at most `limit` of them.
async fn collect(
    field: &mut Field<'_>,
    name: &str,
    limit: usize,
    room: &mut Room<'_>,
) -> Result<Bytes, ApiError> {
    let whole = max_request_bytes(room.state.config());
    let mut bytes = BytesMut::new();
    while let Some(chunk) = field.chunk().await.map_err(|error| broken(&error, whole))? {
        if bytes.len() + chunk.len() > limit {
            return Err(match name {
                "file" => ApiError::Audio { param: "file", error: DecodeError::TooLarge { limit } },
                name => ApiError::invalid(name, format!("{name} has more than {limit} bytes; send less")),
            });
        }
        room.take(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes.freeze())
}

fn broken(error: &MultipartError, limit: usize) -> ApiError {
    if error.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return too_large("body", limit);
    }
    ApiError::MalformedForm(near::shown(&error.body_text()))
}

/// Whether a part of this name means something here; others are passed over.
fn is_known(name: &str) -> bool {
    const NAMES: [&str; 11] = [
        "file",
        "model",
        "language",
        "prompt",
        "response_format",
        "temperature",
        "timestamp_granularities",
        "timestamp_granularities[]",
        "stream",
        "seed",
        "priority",
    ];
    NAMES.contains(&name)
}

impl TranscriptionRequest {
    /// Takes a part of a form, which is always text.
    fn take(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "model" => self.model = Some(text),
            "language" => self.language = Some(text),
            "prompt" => self.prompt = Some(text),
            "response_format" => self.response_format = Some(text),
            "priority" => self.priority = Some(text),
            "temperature" => self.temperature = Some(parsed(name, &text, "a number")?),
            "seed" => self.seed = Some(parsed(name, &text, "a whole number from 0")?),
            "stream" => {
                self.stream = Some(match text.trim().to_ascii_lowercase().as_str() {
                    "true" | "1" => true,
                    "false" | "0" | "" => false,
                    _ => return Err(unparsed(name, &text, "true or false")),
                });
            }
            "timestamp_granularities" | "timestamp_granularities[]" => {
                self.timestamp_granularities.get_or_insert_default().push(text);
            }
            _ => {}
        }
        Ok(())
    }
}

fn parsed<T: std::str::FromStr>(name: &str, text: &str, expected: &str) -> Result<T, ApiError> {
    text.trim().parse().map_err(|_| unparsed(name, text, expected))
}

fn unparsed(name: &str, text: &str, expected: &str) -> ApiError {
    ApiError::invalid(name, format!("{name} is '{}'; it must be {expected}", near::shown(text)))
}
