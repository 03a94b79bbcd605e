//! `POST /v1/speech-to-text`: one recording as a form, its words with their times, and who says them.

use axum::Json;
use axum::extract::{Extension, State};
use axum::response::{IntoResponse, Response};
use izwi_audio::pcm_format::{PcmEncoding, PcmFormat};
use izwi_core::engine::{RequestId, Segment, Task, TranscriptionOptions, Word};
use izwi_server::extract::{check_range, parse_json_telling};
use izwi_server::ignored::IgnoredFields;
use izwi_server::live::LiveSettings;
use izwi_server::openapi::TranscriptionRefusals;
use izwi_server::speakers::Speakers;
use izwi_server::transcription::CheckedRequest;
use izwi_server::upload::{RecordingFields, TextPart, Upload, parse, parse_bool};
use izwi_server::{ApiError, AppState, record, stats_headers};
use izwi_types::excerpt;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::hosted::model_of;

/// Beginnings of the names of hosted models.
const HOSTED: [&str; 1] = ["scribe_"];
/// What is refused where it is on, and what would do: a recording elsewhere, results elsewhere, a transcript of each channel, private
/// words that are told, other formats.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("cloud_storage_url", "nothing is fetched; send the recording as file"),
    ("source_url", "nothing is fetched; send the recording as file"),
    ("webhook", "the answer has the transcript; leave it out"),
    ("use_multi_channel", "channels are mixed; send each as a recording of its own"),
    ("entity_detection", "no entities are told; leave it out"),
    ("additional_formats", "POST /v1/audio/transcriptions writes srt, vtt and text; leave it out"),
];
/// The `file_format` of samples without a header.
const RAW: &str = "pcm_s16le_16";
const RAW_FORMAT: PcmFormat = PcmFormat { encoding: PcmEncoding::S16Le, rate_hz: 16_000 };
/// The least probability of a word, whose logarithm is told.
const LEAST_PROBABILITY: f32 = 1e-10;

/// The form of a transcription.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(default, expecting = "a JSON object")]
pub(super) struct SpeechToTextRequest {
    /// The recording.
    #[schema(format = Binary)]
    file: Option<String>,
    /// Id of a model, or a name of a hosted one.
    model_id: Option<String>,
    /// Language of the speech; detected without it.
    language_code: Option<String>,
    /// Whether the speaker of each word is told.
    diarize: Option<bool>,
    /// The most speakers, 1 to 32, with `diarize`.
    num_speakers: Option<u64>,
    /// With `diarize`: whether saved speakers are told by their names, which the server's setting `saved_speakers` allows; by default
    /// as that says.
    saved_speakers: Option<bool>,
    /// `none`, `word` or `character`: what has times.
    timestamps_granularity: Option<String>,
    /// Words that are likely in the recording.
    keyterms: Vec<String>,
    /// 0 for the most likely text.
    temperature: Option<f32>,
    /// Seed of all randomness.
    seed: Option<u64>,
    /// `other`: a file in any format; `pcm_s16le_16`: 16-bit samples at 16 kHz, one channel, without a header.
    file_format: Option<String>,
    /// Members that ask for what is refused, and what they ask.
    #[serde(skip)]
    refused: Vec<(&'static str, String)>,
}

/// What has times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Granularity {
    None,
    Word,
    Character,
}

impl SpeechToTextRequest {
    fn granularity(&self) -> Result<Granularity, ApiError> {
        match self.timestamps_granularity.as_deref() {
            Some("none") => Ok(Granularity::None),
            None | Some("word") => Ok(Granularity::Word),
            Some("character") => Ok(Granularity::Character),
            Some(other) => {
                let (name, other) = ("timestamps_granularity", excerpt(other));
                Err(ApiError::invalid(name, format!("{name} is '{other}'; use none, word or character")))
            }
        }
    }
}

impl RecordingFields for SpeechToTextRequest {
    const FILES: &'static [&'static str] = &["file"];
    const MEMBERS: &'static [&'static str] = &["file"];

    fn texts() -> Vec<TextPart> {
        let repeats = ["keyterms", "keyterms[]"].map(|name| TextPart::new(name, true));
        let once = ["model_id", "language_code", "diarize", "num_speakers", "timestamps_granularity"];
        let once = once.into_iter().chain(["temperature", "seed", "file_format", "saved_speakers"]);
        let once = once.chain(UNSUPPORTED.map(|(name, _)| name)).map(|name| TextPart::new(name, false));
        once.chain(repeats).collect()
    }

    fn read(json: &[u8]) -> Result<(Self, IgnoredFields), ApiError> {
        parse_json_telling(json)
    }

    fn take_recordings(&mut self) -> Vec<(&'static str, Option<String>)> {
        vec![("file", self.file.take())]
    }

    fn take_text(&mut self, name: &str, text: String) -> Result<(), ApiError> {
        match name {
            "model_id" => self.model_id = Some(text),
            "language_code" => self.language_code = Some(text),
            "diarize" => self.diarize = Some(parse_bool(name, &text)?),
            "num_speakers" => self.num_speakers = Some(parse(name, &text, "a whole number from 1 to 32")?),
            "saved_speakers" => self.saved_speakers = Some(parse_bool(name, &text)?),
            "timestamps_granularity" => self.timestamps_granularity = Some(text),
            "temperature" => self.temperature = Some(parse(name, &text, "a number")?),
            "seed" => self.seed = Some(parse(name, &text, "a whole number from 0")?),
            "file_format" => self.file_format = Some(text),
            "keyterms" | "keyterms[]" => self.keyterms.push(text),
            _ => {
                let known = UNSUPPORTED.into_iter().find(|(unsupported, _)| *unsupported == name);
                let is_off = matches!(text.trim(), "" | "false" | "0" | "[]" | "null");
                self.refused.extend(known.filter(|_| !is_off).map(|(name, _)| (name, text)));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ApiError> {
        if let Some((name, value)) = self.refused.first() {
            let remedy =
                UNSUPPORTED.iter().find(|(unsupported, _)| unsupported == name).map(|(_, remedy)| *remedy);
            let message =
                format!("{name} '{}' is not supported: {}", excerpt(value), remedy.unwrap_or_default());
            return Err(ApiError::invalid(name, message));
        }
        if let Some(format) = self.file_format.as_deref().filter(|&format| !["other", RAW].contains(&format))
        {
            let format = excerpt(format);
            let message = format!("file_format is '{format}'; use {RAW}, or other for a file such as WAV");
            return Err(ApiError::invalid("file_format", message));
        }
        if let Some(most) = self.num_speakers {
            check_range("num_speakers", most, &(1..=32))?;
            if self.diarize != Some(true) {
                let message = "num_speakers is only for transcripts with speakers; set diarize to true";
                return Err(ApiError::invalid("num_speakers", message));
            }
        }
        if self.saved_speakers.is_some() && self.diarize != Some(true) {
            let message = "saved_speakers is only for transcripts with speakers; set diarize to true";
            return Err(ApiError::invalid("saved_speakers", message));
        }
        self.granularity().map(drop)
    }
}

/// A transcript.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ElevenLabsTranscript)]
pub(super) struct SpeechToTextResponse {
    language_code: Option<String>,
    /// 1 for a language that the request names; null where the model does not tell how sure it is of one that it detected.
    language_probability: Option<f32>,
    text: String,
    #[schema(value_type = Vec<Object>)]
    words: Vec<Spoken>,
    transcription_id: String,
    audio_duration_secs: f64,
}

/// A word, or what is between two.
#[derive(Debug, Serialize)]
struct Spoken {
    text: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(flatten)]
    times: Option<Times>,
    speaker_id: Option<String>,
    /// Of the mean probability of its tokens.
    logprob: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    characters: Option<Vec<Character>>,
}

/// In seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Times {
    start: f64,
    end: f64,
}

#[derive(Debug, PartialEq, Serialize)]
struct Character {
    text: String,
    #[serde(flatten)]
    times: Times,
}

impl Spoken {
    /// A text that begins and ends then.
    fn new(
        text: &str,
        kind: &'static str,
        times: Times,
        speaker_id: Option<String>,
        granularity: Granularity,
    ) -> Self {
        let count = text.chars().count().max(1) as f64;
        let at = |share: f64| times.start + (times.end - times.start) * share / count;
        let characters = text.chars().enumerate().map(|(place, character)| Character {
            text: character.to_string(),
            times: Times { start: at(place as f64), end: at(place as f64 + 1.0) },
        });
        Self {
            text: text.to_owned(),
            kind,
            speaker_id,
            logprob: 0.0,
            characters: (granularity == Granularity::Character).then(|| characters.collect()),
            times: (granularity != Granularity::None).then_some(times),
        }
    }
}

/// The words of segments, with the spaces between them.
fn words(segments: &[Segment], granularity: Granularity) -> Vec<Spoken> {
    let mut spoken: Vec<Spoken> = Vec::new();
    let mut end = None;
    for segment in segments {
        let speaker = segment.speaker.map(|speaker| format!("speaker_{speaker}"));
        let speaker = segment.speaker_name.as_deref().map(str::to_owned).or(speaker);
        for Word { text, start_s, end_s, probability } in &segment.words {
            let written = text.trim();
            if let Some(before) = end.replace(*end_s).filter(|_| text.starts_with(char::is_whitespace)) {
                let times = Times { start: before, end: start_s.max(before) };
                spoken.push(Spoken::new(" ", "spacing", times, speaker.clone(), granularity));
            }
            let times = Times { start: *start_s, end: *end_s };
            let logprob = probability.max(LEAST_PROBABILITY).ln();
            spoken.push(Spoken {
                logprob,
                ..Spoken::new(written, "word", times, speaker.clone(), granularity)
            });
        }
    }
    spoken
}

/// Speech to text of ElevenLabs
///
/// Fields and answer are ElevenLabs'; docs/compatibility.md lists them.
#[utoipa::path(
    post,
    path = "/v1/speech-to-text",
    tag = "dialects",
    request_body(content = SpeechToTextRequest, content_type = "multipart/form-data"),
    responses((status = 200, description = "The transcript.", body = SpeechToTextResponse), TranscriptionRefusals),
)]
pub(super) async fn convert(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: Upload<SpeechToTextRequest>,
) -> Result<Response, ApiError> {
    let Upload { fields, recording, ignored, memory } = upload;
    let (param, granularity) = (recording.param(), fields.granularity()?);
    let is_raw = fields.file_format.as_deref() == Some(RAW);
    let recording = if is_raw { recording.as_pcm(RAW_FORMAT)? } else { recording };
    // The model of the record is the one that is leased last.
    let speakers = match fields.diarize {
        Some(true) => Some(Speakers::lease(&state, "diarize", fields.saved_speakers).await?),
        _ => None,
    };
    let engine = state.lease(model_of(fields.model_id.as_deref(), &HOSTED), Task::Asr).await?;
    let LiveSettings { prompt, keywords, .. } = LiveSettings::likely(fields.keyterms, &engine);
    let named_probability = fields.language_code.is_some().then_some(1.0);
    let options = TranscriptionOptions {
        language: fields.language_code,
        prompt,
        keywords,
        temperature: fields.temperature,
        seed: fields.seed,
        max_speakers: fields.num_speakers,
        ..TranscriptionOptions::default()
    };
    let model = engine.profile().model.clone();
    // Transcripts with speakers have words in any case.
    let (format, options) = match speakers {
        Some(_) => ("diarized_json", options),
        None => ("verbose_json", options.with_words()),
    };
    let checked = CheckedRequest::of_options(&model, options, Some(format), false)?;
    let request = checked.request(recording, &engine)?.with_id(id.clone());
    let refusal = |error| ApiError::from_engine(error, &model, &id).about_recording(param);
    let output = match &speakers {
        Some(speakers) => speakers.generate(&engine, request, param).await,
        None => engine.generate(request).await.map_err(refusal),
    };
    drop(memory);
    let output = output?;
    record::generated(&engine, &output.stats, output.stats.finish_reason);
    let transcript = output.transcript.unwrap_or_default();
    let response = SpeechToTextResponse {
        text: transcript.text(),
        words: words(&transcript.segments, granularity),
        language_code: transcript.language,
        language_probability: named_probability.or(transcript.language_probability),
        transcription_id: id.as_str().to_owned(),
        audio_duration_secs: output.stats.audio_duration.as_secs_f64(),
    };
    let mut response = Json(response).into_response();
    response.headers_mut().extend(stats_headers::of(&output.stats));
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn words_have_spaces_between_them_and_speakers() {
        let word =
            |text: &str, start_s, end_s| Word { text: text.to_owned(), start_s, end_s, probability: 1.0 };
        let segments = [
            Segment { speaker: Some(0), words: vec![word(" Oh", 0.5, 1.0)], ..Segment::default() },
            Segment {
                speaker: Some(1),
                words: vec![word(" no", 1.5, 2.0), word("!", 2.0, 2.5)],
                ..Segment::default()
            },
        ];
        let told = |granularity| serde_json::to_value(words(&segments, granularity)).unwrap();
        let plain = told(Granularity::Word);
        assert_eq!(plain.as_array().map(Vec::len), Some(4));
        let spacing = json!({"text": " ", "type": "spacing", "start": 1.0, "end": 1.5, "speaker_id": "speaker_1", "logprob": 0.0});
        assert_eq!(plain[1], spacing);
        assert_eq!((&plain[0]["speaker_id"], &plain[3]["text"]), (&json!("speaker_0"), &json!("!")));
        let o = &told(Granularity::Character)[0]["characters"];
        assert_eq!(
            *o,
            json!([{"text": "O", "start": 0.5, "end": 0.75}, {"text": "h", "start": 0.75, "end": 1.0}])
        );
        assert_eq!(told(Granularity::None)[0].get("start"), None);
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        let refused = |parts: &[(&str, &str)]| {
            let mut fields = SpeechToTextRequest::default();
            let taken = parts.iter().try_for_each(|(name, text)| fields.take_text(name, (*text).to_owned()));
            taken.and_then(|()| fields.check()).err().and_then(|error| error.param().map(str::to_owned))
        };
        for (name, _) in UNSUPPORTED {
            assert_eq!(refused(&[(name, "true")]).as_deref(), Some(name));
            assert_eq!(refused(&[(name, "false")]), None);
        }
        for (name, text) in [
            ("num_speakers", "33"),
            ("num_speakers", "many"),
            ("num_speakers", "2"),
            ("saved_speakers", "true"),
            ("saved_speakers", "perhaps"),
            ("diarize", "perhaps"),
            ("timestamps_granularity", "line"),
            ("file_format", "pcm_s16le_8"),
            ("temperature", "hot"),
            ("seed", "-1"),
        ] {
            assert_eq!(refused(&[(name, text)]).as_deref(), Some(name), "{text}");
        }
        assert_eq!(refused(&[("diarize", "true"), ("num_speakers", "2"), ("file_format", "other")]), None);
        assert_eq!(refused(&[("file_format", "pcm_s16le_16")]), None);
    }
}
