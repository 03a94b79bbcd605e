//! The four speech routes: one text, as audio or as JSON with the times of its characters, whole or streamed.
//!
//! A streamed body starts with the first chunk, while the rest is being generated. A generation that fails halfway cuts the
//! connection.

use std::collections::BTreeMap;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use izwi_core::engine::{RequestId, SpeechOptions, StreamingOutput, Task};
use izwi_server::encoding::EncodedUtterance;
use izwi_server::extract::{ApiPath, ApiQuery, parse_json, required};
use izwi_server::openapi::{SpeechRefusals, audio_responses};
use izwi_server::speech::{CutOff, ResolvedSpeechOptions, SpeechChunks, audio_of, check_text};
use izwi_server::{ApiError, AppState, Lease, lexicons, upload};
use utoipa::IntoResponses;
use utoipa::openapi::{self, RefOr};

use super::alignment::TimedUtterance;
use super::api::{AudioWithTimestamps, CharacterSeconds, SpeechQuery, SpeechRequest};
use super::dictionaries::lexicons_of;
use super::formats::OutputFormat;
use super::{HOSTED, find_voice};
use crate::hosted::model_of;

/// Names the members of a request that have no effect.
const IGNORED: &str = "x-ignored-fields";
/// One JSON object per line.
const JSON_LINES: &str = "application/x-ndjson";

/// A response with audio, in each format.
struct Audio;

impl IntoResponses for Audio {
    fn responses() -> BTreeMap<String, RefOr<openapi::Response>> {
        audio_responses("The audio, in `output_format`.")
    }
}

/// What the path, the query and the body ask for.
pub(super) struct Asked {
    state: AppState,
    id: RequestId,
    voice: String,
    format: OutputFormat,
    request: SpeechRequest,
}

impl FromRequest<AppState> for Asked {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &AppState) -> Result<Self, ApiError> {
        let (mut parts, body) = request.into_parts();
        let ApiPath(voice) = ApiPath::from_request_parts(&mut parts, state).await?;
        let ApiQuery(query) = ApiQuery::<SpeechQuery>::from_request_parts(&mut parts, state).await?;
        let id = parts.extensions.get::<RequestId>().cloned().unwrap_or_else(RequestId::random);
        let request = Request::from_parts(parts, body);
        let request: SpeechRequest = parse_json(&upload::read_plain_json(request, state).await?)?;
        let format = OutputFormat::parse(query.output_format.as_deref())?;
        Ok(Self { state: state.clone(), id, voice, format, request })
    }
}

/// A generation that has begun, and what its response says alongside the audio.
struct Speech {
    chunks: SpeechChunks,
    text: String,
    headers: HeaderMap,
}

impl Speech {
    /// Submits the request. Without a listener it is bulk work.
    async fn begin(asked: Asked, live: bool) -> Result<Self, ApiError> {
        let Asked { state, id, voice, request, .. } = asked;
        let mut ignored = request.ignored();
        let engine = state.lease(model_of(request.model_id.as_deref(), &HOSTED), Task::Tts).await?;
        let text = required("text", request.text)?;
        check_text("text", &text, state.config().max_input_chars)?;
        let voice = find_voice(&voice, &engine, &state).await?;
        let speed = request.voice_settings.and_then(|settings| settings.speed);
        let mut options = speech_options(speed, request.seed, &engine, &mut ignored);
        if let Some(locators) = request.pronunciation_dictionary_locators {
            options.lexicons = lexicons_of(&lexicons::names(&state).await?, &locators, &mut ignored)?;
        }
        let options = ResolvedSpeechOptions::of_voice(options, voice, &engine)?;
        let request = options.into_request(text.clone()).with_id(id).with_live(live);
        let chunks = SpeechChunks::begin(engine, request, state.config().first_audio_timeout).await?;
        let mut headers = chunks.headers(&state);
        if let Ok(names) = HeaderValue::from_str(&ignored.join(", "))
            && !ignored.is_empty()
        {
            headers.insert(IGNORED, names);
        }
        Ok(Self { chunks, text, headers })
    }

    fn sample_rate_hz(&self) -> u32 {
        self.chunks.engine.profile().info.sample_rate_hz
    }

    fn times_words(&self) -> bool {
        self.chunks.engine.profile().info.times_words
    }

    /// A body of what `encode` makes of each chunk, as the chunks come.
    fn into_response(
        self,
        media_type: &'static str,
        encode: impl FnMut(&StreamingOutput) -> Result<Bytes, CutOff> + Send + 'static,
    ) -> Response {
        respond(media_type, self.headers, self.chunks.into_body(encode))
    }

    /// All chunks, and the encoder of a file of their length.
    async fn whole(asked: Asked) -> Result<(Self, Vec<StreamingOutput>, EncodedUtterance), ApiError> {
        let (format, id) = (asked.format, asked.id.clone());
        let mut speech = Self::begin(asked, false).await?;
        let mut chunks = Vec::new();
        while let Some(chunk) = speech.chunks.next().await {
            chunks.push(chunk.map_err(|error| ApiError::internal(&error.to_string(), &id))?);
        }
        let samples = chunks.iter().map(|chunk| chunk.samples.len() as u64).sum();
        let encoded = format.encode(speech.sample_rate_hz(), Some(samples))?;
        Ok((speech, chunks, encoded))
    }
}

/// The speech options of the dialect. A speed that the model cannot speak at has no effect, and is added to `ignored`.
pub(super) fn speech_options(
    speed: Option<f32>,
    seed: Option<u64>,
    engine: &Lease,
    ignored: &mut Vec<&'static str>,
) -> SpeechOptions {
    let has_tempo = engine.profile().info.speed_range.is_some();
    if speed.is_some_and(|speed| speed != 1.0) && !has_tempo {
        ignored.push("voice_settings.speed");
    }
    SpeechOptions { speed: speed.filter(|_| has_tempo), seed, ..SpeechOptions::default() }
}

fn respond(media_type: &'static str, headers: HeaderMap, body: impl Into<Body>) -> Response {
    let mut response = body.into().into_response();
    response.headers_mut().extend(headers);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Text to speech of ElevenLabs
///
/// The body starts with the first audio; a file whose header holds its length comes as a whole.
#[utoipa::path(
    post,
    path = "/v1/text-to-speech/{voice_id}",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice."), SpeechQuery),
    request_body(content = SpeechRequest, content_type = "application/json", example = json!({"text": "Hello there."})),
    responses(Audio, SpeechRefusals),
)]
pub(super) async fn convert(asked: Asked) -> Result<Response, ApiError> {
    if !asked.format.is_file() {
        return stream(asked).await;
    }
    let (format, id) = (asked.format, asked.id.clone());
    let (speech, chunks, mut encoded) = Speech::whole(asked).await?;
    let mut file = Vec::new();
    for chunk in &chunks {
        let bytes = encoded.encode(chunk).map_err(|error| ApiError::internal(&error.to_string(), &id))?;
        file.extend_from_slice(&bytes);
    }
    Ok(respond(format.media_type, speech.headers, file))
}

/// Streamed text to speech of ElevenLabs
#[utoipa::path(
    post,
    path = "/v1/text-to-speech/{voice_id}/stream",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice."), SpeechQuery),
    request_body(content = SpeechRequest, content_type = "application/json", example = json!({"text": "Hello there."})),
    responses(Audio, SpeechRefusals),
)]
pub(super) async fn stream(asked: Asked) -> Result<Response, ApiError> {
    let format = asked.format;
    let speech = Speech::begin(asked, true).await?;
    let encoded = format.encode(speech.sample_rate_hz(), None)?;
    Ok(speech.into_response(format.media_type, audio_of(encoded)))
}

/// Text to speech of ElevenLabs with the times of its characters
#[utoipa::path(
    post,
    path = "/v1/text-to-speech/{voice_id}/with-timestamps",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice."), SpeechQuery),
    request_body(content = SpeechRequest, content_type = "application/json", example = json!({"text": "Hello there."})),
    responses((status = 200, description = "All of the audio.", body = AudioWithTimestamps), SpeechRefusals),
)]
pub(super) async fn convert_with_timestamps(asked: Asked) -> Result<Response, ApiError> {
    let id = asked.id.clone();
    let (mut speech, chunks, encoded) = Speech::whole(asked).await?;
    let mut timed = TimedUtterance::new(encoded, std::mem::take(&mut speech.text), speech.times_words());
    let (mut audio, mut alignment) = (Vec::new(), None::<CharacterSeconds>);
    for chunk in &chunks {
        let message = timed.push(chunk).map_err(|error| ApiError::internal(&error.to_string(), &id))?;
        let Some(message) = message else { continue };
        if let Some(more) = message.seconds() {
            alignment.get_or_insert_default().append(more);
        }
        audio.extend(message.audio);
    }
    let mut response =
        axum::Json(AudioWithTimestamps::new(STANDARD.encode(audio), alignment)).into_response();
    response.headers_mut().extend(speech.headers);
    Ok(response)
}

/// Streamed text to speech of ElevenLabs with the times of its characters
///
/// A JSON object per line, as the audio comes.
#[utoipa::path(
    post,
    path = "/v1/text-to-speech/{voice_id}/stream/with-timestamps",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice."), SpeechQuery),
    request_body(content = SpeechRequest, content_type = "application/json", example = json!({"text": "Hello there."})),
    responses((status = 200, description = "Lines of JSON.", body = String, content_type = "application/x-ndjson"), SpeechRefusals),
)]
pub(super) async fn stream_with_timestamps(asked: Asked) -> Result<Response, ApiError> {
    let format = asked.format;
    let mut speech = Speech::begin(asked, true).await?;
    let encoded = format.encode(speech.sample_rate_hz(), None)?;
    let mut timed = TimedUtterance::new(encoded, std::mem::take(&mut speech.text), speech.times_words());
    Ok(speech.into_response(JSON_LINES, move |chunk| {
        let message = timed.push(chunk).map_err(|error| CutOff::encoding(&error))?;
        let Some(message) = message else { return Ok(Bytes::new()) };
        let line = AudioWithTimestamps::new(STANDARD.encode(&message.audio), message.seconds());
        // Serializing strings and numbers cannot fail.
        Ok((serde_json::to_string(&line).unwrap_or_default() + "\n").into())
    }))
}
