//! Routes of other servers that people run at home, so that their clients work with a changed address: speech with the
//! times of its words (`/dev/captioned_speech`), blends of voices (`/v1/audio/voices/combine`), and transcripts
//! (`/inference`).
//!
//! A blend has no file here: its name is used as a voice, in any request.

use axum::Json;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Extension, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use izwi_core::engine::{RequestId, SpeechOptions, SpokenWord, StreamingOutput, Task};
use izwi_server::dto::listing::VoiceQuery;
use izwi_server::dto::schemas;
use izwi_server::dto::transcription::TranscriptionRequest;
use izwi_server::encoding::{self, EncodedUtterance, OutputFormat};
use izwi_server::extract::{ApiQuery, non_blank, parse_json_telling, required, shortened};
use izwi_server::openapi::{
    SpeechRefusals, TranscriptBody, TranscriptionBody, TranscriptionForm, TranscriptionRefusals,
    VoiceBlendRefusals,
};
use izwi_server::routes::transcriptions;
use izwi_server::speech::{CutOff, ResolvedSpeechOptions, SpeechChunks, check_text};
use izwi_server::upload::{self, Upload};
use izwi_server::voices::{self, Voice};
use izwi_server::{ApiError, AppState, AsrTask, BLENDING, Dialect, ServerConfig};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

/// The most voices of a blend.
const MAX_BLENDED: usize = 16;
/// One JSON object per line.
const LINES: &str = "application/json";
/// Codes of languages in requests for captioned speech, and their tags.
const LANGUAGES: [(&str, &str); 9] = [
    ("a", "en-US"),
    ("b", "en-GB"),
    ("e", "es"),
    ("f", "fr"),
    ("h", "hi"),
    ("i", "it"),
    ("j", "ja"),
    ("p", "pt-BR"),
    ("z", "zh"),
];

#[derive(Debug)]
pub(crate) struct Local;

impl Dialect for Local {
    fn routes(&self, config: &ServerConfig) -> OpenApiRouter<AppState> {
        let recordings = OpenApiRouter::new()
            .routes(routes!(inference))
            .layer(DefaultBodyLimit::max(config.max_request_bytes()));
        OpenApiRouter::new().routes(routes!(captioned_speech)).routes(routes!(combine)).merge(recordings)
    }
}

/// The body of a request for captioned speech. Members that are not listed are ignored, and reported.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(expecting = "a JSON object")]
pub(super) struct CaptionedSpeechRequest {
    /// Id or alias of a model; the default model without it.
    model: Option<String>,
    /// Text to speak.
    #[schema(value_type = String, min_length = 1, pattern = r"\S")]
    input: Option<String>,
    /// Name of a voice, or of a blend.
    voice: Option<String>,
    /// Format of the audio.
    #[schema(schema_with = schemas::speech_format)]
    response_format: Option<String>,
    /// Tempo relative to the voice's own.
    #[schema(minimum = 0.25, maximum = 4.0)]
    speed: Option<f32>,
    /// Whether parts are sent as they are generated, one JSON object in each line.
    #[schema(default = true)]
    stream: Option<bool>,
    /// Whether the times of the words are reported.
    #[schema(default = true)]
    return_timestamps: Option<bool>,
    /// Language of the text: its tag, or the first letter of a voice of it.
    lang_code: Option<String>,
}

/// A part of captioned speech, or all of it.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct CaptionedSpeech {
    /// Base64.
    audio: String,
    /// Media type of the audio.
    audio_format: &'static str,
    timestamps: Vec<WordTimestamp>,
}

/// A word, and when it is spoken, in seconds.
#[derive(Debug, Serialize, ToSchema)]
struct WordTimestamp {
    word: String,
    start_time: f64,
    end_time: f64,
}

impl WordTimestamp {
    fn new(word: &SpokenWord, text: &str, sample_rate_hz: u32) -> Self {
        let seconds = |samples: u64| samples as f64 / f64::from(sample_rate_hz.max(1));
        Self {
            word: text.get(word.text_start..word.text_end).unwrap_or_default().trim().to_owned(),
            start_time: seconds(word.sample_start),
            end_time: seconds(word.sample_end),
        }
    }
}

/// Text to speech with the times of its words
///
/// With `stream`, each line of the body is a JSON object with a part of the audio and the words that start in it.
#[utoipa::path(
    post,
    path = "/dev/captioned_speech",
    tag = "dialects",
    request_body(content = CaptionedSpeechRequest, content_type = "application/json"),
    responses((status = 200, description = "The audio and its words.", body = CaptionedSpeech), SpeechRefusals),
)]
pub(super) async fn captioned_speech(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Result<Response, ApiError> {
    let bytes = upload::read_plain_json(request, &state).await?;
    let (body, mut ignored): (CaptionedSpeechRequest, _) = parse_json_telling(&bytes)?;
    let text = required("input", body.input)?;
    let model = non_blank(body.model);
    let engine = state.lease(model.as_deref(), Task::Tts).await?;
    if model.as_deref().is_some_and(|model| state.registry().is_stand_in(model)) {
        ignored.add("model");
    }
    check_text("input", &text, state.config().max_input_chars)?;
    let (format, media_type) = encoding::for_http(body.response_format.as_deref())?;
    let voice = voices::find(non_blank(body.voice).as_deref(), &engine, state.voices()).await?;
    let language = non_blank(body.lang_code).map(|code| {
        let known = LANGUAGES.iter().find(|(letter, _)| *letter == code);
        known.map_or(code, |(_, tag)| (*tag).to_owned())
    });
    let options = SpeechOptions { speed: body.speed, language, ..SpeechOptions::default() };
    let options = ResolvedSpeechOptions::of_voice(options, voice, &engine)?;
    options.ignored().iter().for_each(|name| ignored.add(name));
    state.ignored_log().note(&ignored);
    let output = OutputFormat::resolve(format, None, None, engine.profile().info.sample_rate_hz)?;
    let encoded = output.utterance()?;
    let is_streamed = body.stream.unwrap_or(true);
    let request = options.into_request(text.clone()).with_id(id.clone()).with_live(is_streamed);
    let chunks = SpeechChunks::begin(engine, request, state.config().first_audio_timeout).await?;
    let with_times = body.return_timestamps.unwrap_or(true);
    let mut captions = Captions { encoded, media_type, text, with_times, words: Vec::new() };
    let body = if is_streamed {
        chunks.into_body(move |chunk| {
            let part = captions.take(chunk)?;
            Ok(part.map(|(audio, words)| captions.line(&audio, words)).unwrap_or_default())
        })
    } else {
        // A generation that fails halfway has been logged.
        Body::from(captions.whole(chunks).await.map_err(|_| ApiError::CutOff)?)
    };
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(LINES));
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

/// Captioned speech that is generated.
struct Captions {
    encoded: EncodedUtterance,
    media_type: &'static str,
    text: String,
    with_times: bool,
    /// Words whose audio the encoder still holds.
    words: Vec<WordTimestamp>,
}

/// Audio, and the words that start in it.
type Part = (Bytes, Vec<WordTimestamp>);

impl Captions {
    /// The part that a chunk completes, if it has audio or, at the end, words.
    fn take(&mut self, chunk: &StreamingOutput) -> Result<Option<Part>, CutOff> {
        if self.with_times {
            let words = chunk.words.iter();
            self.words.extend(words.map(|word| WordTimestamp::new(word, &self.text, chunk.sample_rate)));
        }
        let audio = self.encoded.encode(chunk).map_err(|error| CutOff::encoding(&error))?;
        let is_part = !audio.is_empty() || (chunk.is_final && !self.words.is_empty());
        Ok(is_part.then(|| (audio, std::mem::take(&mut self.words))))
    }

    fn line(&self, audio: &[u8], timestamps: Vec<WordTimestamp>) -> Bytes {
        let part =
            CaptionedSpeech { audio: STANDARD.encode(audio), audio_format: self.media_type, timestamps };
        // Serializing strings and numbers cannot fail.
        (serde_json::to_string(&part).unwrap_or_default() + "\n").into()
    }

    /// All parts as one.
    async fn whole(mut self, mut chunks: SpeechChunks) -> Result<Bytes, CutOff> {
        let (mut audio, mut timestamps) = (Vec::new(), Vec::new());
        while let Some(chunk) = chunks.next().await {
            if let Some((bytes, words)) = self.take(&chunk?)? {
                audio.extend_from_slice(&bytes);
                timestamps.extend(words);
            }
        }
        Ok(self.line(&audio, timestamps))
    }
}

/// The names of a blend: 1 to 16.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "a text such as \"a+b\", or a list of names")]
pub(super) enum Blend {
    /// Names with `+` between them, with weights or without: `a(2)+b(1)`.
    Text(String),
    /// Names.
    List(Vec<String>),
}

#[derive(Debug, Serialize, ToSchema)]
pub(super) struct BlendedVoice {
    /// The name of the blend, for `voice` of a request.
    voice: String,
    /// The voices of the model.
    voices: Vec<String>,
}

/// Blend voices
///
/// Checks the voices and answers with the name of their blend, which any request takes as `voice`.
#[utoipa::path(
    post,
    path = "/v1/audio/voices/combine",
    tag = "dialects",
    params(VoiceQuery),
    request_body(content = Blend, content_type = "application/json", example = json!("af_heart(2)+af_sky(1)")),
    responses((status = 200, description = "The blend.", body = BlendedVoice), VoiceBlendRefusals),
)]
pub(super) async fn combine(
    State(state): State<AppState>,
    ApiQuery(query): ApiQuery<VoiceQuery>,
    request: Request,
) -> Result<Response, ApiError> {
    let bytes = upload::read_plain_json(request, &state).await?;
    let blend = serde_json::from_slice(&bytes).map_err(|error| ApiError::MalformedJson(shortened(&error)))?;
    let names: Vec<String> = match blend {
        Blend::Text(text) => text.split('+').map(str::to_owned).collect(),
        Blend::List(names) => names,
    };
    let names: Vec<&str> = names.iter().map(|name| name.trim()).filter(|name| !name.is_empty()).collect();
    if names.is_empty() || names.len() > MAX_BLENDED {
        let message = format!("voices has {} names; send 1 to {MAX_BLENDED}", names.len());
        return Err(ApiError::invalid("voices", message));
    }
    let engine = state.lease(Some(query.model.as_deref().unwrap_or(BLENDING)), Task::Tts).await?;
    let own = &engine.profile().info.voices;
    for name in &names {
        let base = name.split('(').next().unwrap_or_default().trim();
        match voices::find(Some(base), &engine, None).await? {
            Some(Voice::Own(_)) => {}
            _ => return Err(voices::unknown(base, engine.profile(), &[])),
        }
    }
    let voices = own.iter().map(|voice| voice.id.clone()).collect();
    Ok(Json(BlendedVoice { voice: names.join("+"), voices }).into_response())
}

/// Speech to text, as a form with `file`
///
/// As `/v1/audio/transcriptions`; `translate` asks for English text.
#[utoipa::path(
    post,
    path = "/inference",
    tag = "dialects",
    request_body(content(
        (TranscriptionBody = "application/json"),
        (TranscriptionForm = "multipart/form-data"),
    )),
    responses(TranscriptBody, TranscriptionRefusals),
)]
pub(super) async fn inference(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<TranscriptionRequest>,
) -> Result<Response, ApiError> {
    transcriptions::respond(&state, id, upload, AsrTask::Transcribe).await
}
