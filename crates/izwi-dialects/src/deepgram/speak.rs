//! `POST /v1/speak`: one text, one streamed body; and what its WebSocket shares: the parameters of the voice.
//!
//! The body starts with the first chunk, while the rest is being generated. A generation that fails halfway cuts the
//! connection.

use axum::extract::{Extension, Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::Response;
use izwi_audio::encode::EncoderConfig;
use izwi_core::engine::{RequestId, SpeechOptions, Task};
use izwi_server::encoding::{self, EncodedUtterance};
use izwi_server::extract::{parse_json, required};
use izwi_server::ignored::IgnoredFields;
use izwi_server::openapi::{SpeechAudio, SpeechRefusals};
use izwi_server::speech::{ResolvedSpeechOptions, SpeechChunks, audio_of, check_text};
use izwi_server::upload;
use izwi_server::voices;
use izwi_server::{ApiError, AppState, Lease};
use izwi_types::excerpt;
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::params::Params;
use crate::hosted::model_of;

/// Beginnings of the names of hosted models.
const HOSTED: [&str; 2] = ["aura-", "aura2-"];
/// Parameters that would have a result elsewhere.
const UNSUPPORTED: [&str; 1] = ["callback"];

/// The audio that a client asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Output {
    /// Name of a format.
    format: &'static str,
    pub(super) media_type: &'static str,
    rate_hz: Option<u32>,
    bit_rate: Option<u32>,
}

impl Output {
    /// Reads `encoding`, `container`, `sample_rate` and `bit_rate` of a request: MP3 without them, 16-bit PCM as WAV.
    fn of_file(params: &Params) -> Result<Self, ApiError> {
        let container = params.text("container");
        let (format, media_type, own) = match params.text("encoding").unwrap_or("mp3") {
            "linear16" if container == Some("none") => ("pcm", "audio/pcm", None),
            "linear16" => ("wav", "audio/wav", Some("wav")),
            "mulaw" => ("ulaw", "audio/mulaw", None),
            "alaw" => ("alaw", "audio/alaw", None),
            "mp3" => ("mp3", "audio/mpeg", None),
            "opus" => ("opus", "audio/ogg", Some("ogg")),
            "flac" => ("flac", "audio/flac", None),
            other => return Err(unknown("encoding", other, "linear16, mulaw, alaw, mp3, opus, flac")),
        };
        match container {
            None => {}
            Some("none") if own != Some("ogg") => {}
            Some(container) if own == Some(container) => {}
            Some(other) => return Err(unknown("container", other, own.unwrap_or("none"))),
        }
        Self { format, media_type, rate_hz: None, bit_rate: None }.with_rates(params)
    }

    /// As [`Self::of_file`], of a session: 16-bit PCM without parameters, and no container.
    pub(super) fn of_stream(params: &Params) -> Result<Self, ApiError> {
        let format = match params.text("encoding").unwrap_or("linear16") {
            "linear16" => "pcm",
            "mulaw" => "ulaw",
            "alaw" => "alaw",
            other => return Err(unknown("encoding", other, "linear16, mulaw, alaw")),
        };
        if let Some(other) = params.text("container").filter(|container| *container != "none") {
            return Err(unknown("container", other, "none"));
        }
        Self { format, media_type: "", rate_hz: None, bit_rate: None }.with_rates(params)
    }

    fn with_rates(self, params: &Params) -> Result<Self, ApiError> {
        // Telephony without a rate has that of telephones.
        let usual = matches!(self.format, "ulaw" | "alaw").then_some(8_000);
        let rate_hz = params.number("sample_rate")?.or(usual);
        Ok(Self { rate_hz, bit_rate: params.number("bit_rate")?, ..self })
    }

    /// The encoder of one utterance of samples at this rate.
    pub(super) fn encoder(&self, sample_rate_hz: u32) -> Result<EncodedUtterance, ApiError> {
        let (output_rate_hz, bit_rate) = (self.rate_hz, self.bit_rate);
        let config = EncoderConfig { output_rate_hz, bit_rate, ..EncoderConfig::streamed(sample_rate_hz) };
        EncodedUtterance::with(encoding::for_session(Some(self.format))?, config)
    }
}

fn unknown(param: &str, value: &str, known: &str) -> ApiError {
    ApiError::invalid(param, format!("{param} '{}' is not supported here; use {known}", excerpt(value)))
}

/// A model and the options of its speech.
pub(super) struct Speaker {
    pub(super) engine: Lease,
    pub(super) options: ResolvedSpeechOptions,
}

impl Speaker {
    /// Leases the model that the parameters name, and checks them against it.
    pub(super) async fn load(state: &AppState, params: &Params) -> Result<Self, ApiError> {
        params.refuse(&UNSUPPORTED)?;
        let engine = state.lease(model_of(params.text("model"), &HOSTED), Task::Tts).await?;
        let voice = voices::find(params.text("voice"), &engine, state.voices()).await?;
        let options = SpeechOptions {
            speed: params.number("speed")?,
            seed: params.number("seed")?,
            language: params.text("language").map(str::to_owned),
            ..SpeechOptions::default()
        };
        let options = ResolvedSpeechOptions::of_voice(options, voice, &engine)?;
        Ok(Self { engine, options })
    }

    pub(super) fn model(&self) -> &str {
        &self.engine.profile().model
    }

    /// What of `params` has no effect.
    pub(super) fn ignored(&self, params: &Params) -> IgnoredFields {
        let mut ignored = params.ignored();
        self.options.ignored().iter().for_each(|name| ignored.add(name));
        ignored
    }
}

/// What the query says of the audio and the voice.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "the document of the API is made of it; `Params` reads the query")]
pub(super) struct SpeakQuery {
    /// Id of a model, or a name of a hosted one.
    model: Option<String>,
    /// Name of a voice.
    voice: Option<String>,
    /// `mp3` (the default), `linear16`, `mulaw`, `alaw`, `opus` or `flac`; over the WebSocket one of the raw ones.
    encoding: Option<String>,
    /// `wav`, `ogg` or `none`, as the encoding has it.
    container: Option<String>,
    /// Sample rate in Hz.
    sample_rate: Option<String>,
    /// Bits per second of a lossy encoding.
    bit_rate: Option<String>,
    /// Tempo relative to the voice's own.
    speed: Option<String>,
    /// Seed of all randomness.
    seed: Option<String>,
    /// BCP 47 tag of the text.
    language: Option<String>,
}

/// The body of a request for speech.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(super) struct SpeakBody {
    #[schema(required, nullable = false)]
    text: Option<String>,
    #[schema(ignore)]
    url: Option<String>,
}

/// The text of the JSON body.
async fn read(request: Request, state: &AppState) -> Result<String, ApiError> {
    let bytes = upload::read_plain_json(request, state).await?;
    let body: SpeakBody = parse_json(&bytes)?;
    if body.url.is_some() {
        return Err(ApiError::invalid("url", "url is not supported: nothing is fetched; send text"));
    }
    required("text", body.text)
}

/// Text to speech, as Deepgram
///
/// The audio starts while the rest is generated. Fields and parameters are Deepgram's; docs/compatibility.md lists them.
#[utoipa::path(
    post,
    path = "/v1/speak",
    tag = "dialects",
    params(SpeakQuery),
    request_body(content = SpeakBody, content_type = "application/json"),
    responses(SpeechAudio, SpeechRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    params: Params,
    request: Request,
) -> Result<Response, ApiError> {
    let text = read(request, &state).await?;
    check_text("text", &text, state.config().max_input_chars)?;
    let output = Output::of_file(&params)?;
    let speaker = Speaker::load(&state, &params).await?;
    let encoded = output.encoder(speaker.engine.profile().info.sample_rate_hz)?;
    let mut headers =
        HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(output.media_type))]);
    let characters = text.chars().count().to_string();
    for (name, value) in [
        ("dg-model-name", speaker.model()),
        ("dg-model-uuid", speaker.model()),
        ("dg-char-count", &characters),
    ] {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    }
    let ignored = speaker.ignored(&params);
    state.ignored_log().note(&ignored);
    headers.extend(ignored.headers());
    let Speaker { engine, options } = speaker;
    let request = options.into_request(text).with_id(id);
    let chunks = SpeechChunks::begin(engine, request, state.config().first_audio_timeout).await?;
    headers.extend(chunks.headers(&state));
    let mut response = Response::new(chunks.into_body(audio_of(encoded)));
    *response.headers_mut() = headers;
    Ok(response)
}
