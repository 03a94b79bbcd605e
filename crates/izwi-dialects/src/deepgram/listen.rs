//! `POST /v1/listen`: one recording as the body, its transcript with words and their times; and what its WebSocket shares:
//! the parameters of a transcript.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::{Extension, Request, State};
use axum::response::{IntoResponse, Response};
use izwi_core::engine::{EngineCoreRequest, RequestId, Task, TranscriptionOptions};
use izwi_server::extract::ContentType;
use izwi_server::live::LiveSettings;
use izwi_server::openapi::TranscriptionRefusals;
use izwi_server::record;
use izwi_server::speakers::Speakers;
use izwi_server::stats_headers;
use izwi_server::transcription::CheckedRequest;
use izwi_server::upload::{RawUpload, Recording};
use izwi_server::{ApiError, AppState, Lease};
use serde::Serialize;
use sha2::{Digest, Sha256};
use utoipa::{IntoParams, ToSchema};

use super::params::Params;
use super::results::{Alternative, ModelInfo, Utterance, hex, now};
use crate::hosted::model_of;

/// Beginnings of the names of hosted models, and whole names.
const HOSTED: [&str; 8] = ["nova", "flux", "enhanced", "base", "whisper-", "general", "meeting", "phonecall"];
/// Parameters that are refused: a result elsewhere, private words that stay, several transcripts.
const UNSUPPORTED: [&str; 4] = ["callback", "callback_method", "multichannel", "redact"];

/// A model, and how it is to transcribe.
pub(super) struct Listener {
    pub(super) engine: Lease,
    pub(super) settings: LiveSettings,
}

impl Listener {
    /// Leases the model that the parameters name, and reads how it is to transcribe.
    pub(super) async fn load(state: &AppState, params: &Params) -> Result<Self, ApiError> {
        params.refuse(&UNSUPPORTED)?;
        params.switch("punctuate")?;
        let [numerals, smart_format] = [params.switch("numerals")?, params.switch("smart_format")?];
        let name = params.text("model");
        // A model of this server may have such a name.
        let is_own = name.is_some_and(|name| state.registry().find(name).is_ok());
        let model = if is_own { name } else { model_of(name, &HOSTED) };
        let engine = state.lease(model, Task::Asr).await?;
        let detects = params.switch("detect_language")? || params.text("language") == Some("multi");
        let terms = params.all("keyterm").chain(params.all("keywords").map(without_weight));
        let likely = LiveSettings::likely(terms.map(str::to_owned).collect(), &engine);
        let language = params.text("language").filter(|_| !detects).map(primary);
        let inverse_normalization = numerals || smart_format;
        Ok(Self { settings: LiveSettings { language, inverse_normalization, ..likely }, engine })
    }

    /// The engine's request for a recording.
    fn request(&self, recording: Recording) -> Result<EngineCoreRequest, ApiError> {
        let LiveSettings { language, prompt, keywords, inverse_normalization, .. } = self.settings.clone();
        let options =
            TranscriptionOptions { language, prompt, keywords, inverse_normalization, ..Default::default() };
        let options = options.with_words();
        let checked = CheckedRequest::of_options(self.model(), options, Some("verbose_json"), false)?;
        checked.request(recording, &self.engine)
    }

    fn model(&self) -> &str {
        &self.engine.profile().model
    }
}

/// The language of a tag: models know no regions.
fn primary(tag: &str) -> String {
    tag.split(['-', '_']).next().unwrap_or_default().to_owned()
}

/// A keyword without the weight after it.
fn without_weight(keyword: &str) -> &str {
    keyword.split_once(':').map_or(keyword, |(word, _)| word)
}

/// What the query says of the transcript.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "the document of the API is made of it; `Params` reads the query")]
pub(super) struct ListenQuery {
    /// Id of a model, or a name of a hosted one.
    model: Option<String>,
    /// Language of the speech.
    language: Option<String>,
    /// Whether the language is detected, by a model of several.
    detect_language: Option<String>,
    /// Whether the speaker of each word is told.
    diarize: Option<String>,
    /// With `diarize`: whether saved speakers are told by their names, which the server's setting `saved_speakers` allows; by
    /// default as that says.
    saved_speakers: Option<String>,
    /// Whether the segments are listed.
    utterances: Option<String>,
    /// Whether numbers are written in figures, where the model writes them in words.
    numerals: Option<String>,
    /// As `numerals`.
    smart_format: Option<String>,
    /// A likely word; may repeat.
    keyterm: Option<String>,
    /// `linear16`, `mulaw` or `alaw` for samples of one channel without a header, with `sample_rate`.
    encoding: Option<String>,
    /// Rate of such samples, in Hz.
    sample_rate: Option<u32>,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeepgramTranscript)]
pub(super) struct ListenResponse {
    #[schema(value_type = Object)]
    metadata: Metadata,
    #[schema(value_type = Object)]
    results: Results,
}

#[derive(Debug, Serialize)]
struct Metadata {
    transaction_key: &'static str,
    request_id: String,
    sha256: String,
    created: String,
    duration: f64,
    channels: u32,
    models: Vec<String>,
    model_info: BTreeMap<String, ModelInfo>,
}

#[derive(Debug, Serialize)]
struct Results {
    channels: Vec<Channel>,
    #[serde(skip_serializing_if = "Option::is_none")]
    utterances: Option<Vec<Utterance>>,
}

#[derive(Debug, Serialize)]
struct Channel {
    alternatives: Vec<Alternative>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detected_language: Option<String>,
}

/// Speech to text, as Deepgram
///
/// The body is the recording. Parameters and answer are Deepgram's; docs/compatibility.md lists them.
#[utoipa::path(
    post,
    path = "/v1/listen",
    tag = "dialects",
    params(ListenQuery),
    request_body(content = Vec<u8>, content_type = "application/octet-stream"),
    responses((status = 200, description = "The transcript.", body = ListenResponse), TranscriptionRefusals),
)]
pub(super) async fn transcribe(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    params: Params,
    request: Request,
) -> Result<Response, ApiError> {
    if ContentType::of(&request).is_json() {
        let message =
            "a JSON body with a url is not supported: nothing is fetched; send the recording as the body";
        return Err(ApiError::invalid("url", message));
    }
    let format = params.text("encoding").is_some().then(|| params.pcm_format()).transpose()?;
    let speakers = params.speakers()?;
    let (utterances, detects) = (params.switch("utterances")?, params.switch("detect_language")?);
    let RawUpload { bytes, memory } = RawUpload::read(request, &state).await?;
    let sha256 = hex(&Sha256::digest(&bytes));
    let speakers = match speakers {
        Some(saved) => Some(Speakers::lease(&state, "diarize", saved).await?),
        None => None,
    };
    let listener = Listener::load(&state, &params).await?;
    let recording = Recording::file(bytes, "body");
    let recording = match format {
        Some(format) => recording.as_pcm(format)?,
        None => recording,
    };
    let request = listener.request(recording)?.with_id(id.clone());
    let refusal = |error| ApiError::from_engine(error, listener.model(), &id).about_recording("body");
    let output = match &speakers {
        Some(speakers) => speakers.generate(&listener.engine, request, "body").await,
        None => listener.engine.generate(request).await.map_err(refusal),
    };
    drop(memory);
    let output = output?;
    record::generated(&listener.engine, &output.stats, output.stats.finish_reason);
    let transcript = output.transcript.unwrap_or_default();
    let model = listener.model().to_owned();
    let segments = transcript.segments.iter().enumerate();
    let response = ListenResponse {
        metadata: Metadata {
            transaction_key: "deprecated",
            request_id: id.as_str().to_owned(),
            sha256,
            created: now(),
            duration: output.stats.audio_duration.as_secs_f64(),
            channels: 1,
            model_info: BTreeMap::from([(model.clone(), ModelInfo::new(&model))]),
            models: vec![model],
        },
        results: Results {
            utterances: utterances
                .then(|| segments.map(|(number, segment)| Utterance::of(number, segment)).collect()),
            channels: vec![Channel {
                alternatives: vec![Alternative::of(&transcript.segments)],
                detected_language: transcript.language.filter(|_| detects),
            }],
        },
    };
    let ignored = params.ignored();
    state.ignored_log().note(&ignored);
    let mut response = Json(response).into_response();
    response.headers_mut().extend(stats_headers::of(&output.stats));
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}
