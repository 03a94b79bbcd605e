//! `POST /v1/audio/transcriptions`: a recording goes out as WAV, a transcript with times comes back.

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::StreamExt;
use izwi_core::engine::RemoteError;
use izwi_core::engine::remote::RemoteOutput;
use izwi_types::{InputError, ListenInput, Segment, StepOutput, Word, languages};
use reqwest::Url;
use reqwest::multipart::{Form, Part};
use serde::Deserialize;

use crate::answer::{self, Fault};
use crate::client::{INPUT_RATE_HZ, Shared};
use crate::config::RemoteConfig;

/// The most bytes of a transcript.
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// The parts of a request.
#[derive(Debug)]
pub(crate) struct Body {
    wav: Bytes,
    fields: Vec<(&'static str, String)>,
    duration_s: f64,
}

impl Body {
    pub(crate) async fn new(shared: &Shared, input: &ListenInput) -> Result<Self, RemoteError> {
        let config = &shared.config;
        let samples = Arc::clone(&input.samples);
        let duration_s = samples.len() as f64 / f64::from(INPUT_RATE_HZ);
        let encoded =
            tokio::task::spawn_blocking(move || izwi_audio::wav::to_bytes(&samples, INPUT_RATE_HZ)).await;
        let wav = match encoded {
            Ok(Ok(wav)) => wav,
            Ok(Err(error)) => {
                return Err(RemoteError::Refused(format!("the recording cannot be sent: {error}")));
            }
            Err(_) => return Err(RemoteError::Failed("the recording could not be encoded".to_owned())),
        };
        let mut fields = vec![("model", config.model.clone())];
        fields.extend(input.language.clone().map(|language| ("language", language)));
        fields.extend(input.prompt.clone().map(|prompt| ("prompt", prompt)));
        if input.temperature != 0.0 {
            fields.push(("temperature", input.temperature.to_string()));
        }
        if config.timestamps {
            fields.push(("response_format", "verbose_json".to_owned()));
            fields.push(("timestamp_granularities[]", "segment".to_owned()));
            if input.word_timestamps {
                fields.push(("timestamp_granularities[]", "word".to_owned()));
            }
        } else {
            fields.push(("response_format", "json".to_owned()));
        }
        if config.extensions {
            fields.push(("seed", input.seed.to_string()));
        }
        Ok(Self { wav: wav.into(), fields, duration_s })
    }

    fn form(&self) -> Result<Form, reqwest::Error> {
        let length = self.wav.len() as u64;
        let file = Part::stream_with_length(self.wav.clone(), length).file_name("recording.wav");
        let form = Form::new().part("file", file.mime_str("audio/wav")?);
        Ok(self.fields.iter().fold(form, |form, (name, value)| form.text(*name, value.clone())))
    }
}

/// Refuses what no field carries.
pub(crate) fn check(config: &RemoteConfig, input: &ListenInput) -> Result<(), InputError> {
    let search = &input.search;
    let asked = [
        ("languages", !input.languages.is_empty()),
        ("keywords", !input.keywords.is_empty()),
        ("include", input.logprobs),
        ("chunking_strategy", input.detection.is_some()),
        ("beam_size", search.beam_size.is_some()),
        ("patience", search.patience.is_some()),
        ("length_penalty", search.length_penalty.is_some()),
        ("timestamp_granularities", input.word_timestamps && !config.timestamps),
        ("model", input.window.is_some() || input.translate),
    ];
    let Some((param, _)) = asked.into_iter().find(|(_, is_asked)| *is_asked) else { return Ok(()) };
    let model = &config.name;
    let message = match param {
        "model" => format!("model '{model}' is remote and transcribes whole recordings only; choose another"),
        _ => format!("model '{model}' is remote, which does not support {param}; leave it out"),
    };
    Err(InputError { param, message })
}

/// `verbose_json`; of `json` the text alone.
#[derive(Debug, Deserialize)]
struct Transcript {
    text: String,
    #[serde(default)]
    language: Option<String>,
    #[serde(default)]
    segments: Option<Vec<AnsweredSegment>>,
    #[serde(default)]
    words: Option<Vec<AnsweredWord>>,
}

#[derive(Debug, Deserialize)]
struct AnsweredSegment {
    start: f64,
    end: f64,
    text: String,
    #[serde(default)]
    seek: Option<f64>,
    #[serde(default)]
    tokens: Option<Vec<u32>>,
    #[serde(default)]
    temperature: Option<f32>,
    #[serde(default)]
    avg_logprob: Option<f32>,
    #[serde(default)]
    compression_ratio: Option<f32>,
    #[serde(default)]
    no_speech_prob: Option<f32>,
    #[serde(default)]
    words: Option<Vec<AnsweredWord>>,
}

#[derive(Debug, Deserialize)]
struct AnsweredWord {
    word: String,
    start: f64,
    end: f64,
}

/// Sends the recording and waits for the transcript.
pub(crate) async fn begin(shared: &Shared, base: &Url, body: &Body) -> Result<RemoteOutput, Fault> {
    let model = &shared.config.name;
    let network = |error: reqwest::Error| Fault::network(model, &error);
    let form = body.form().map_err(network)?;
    let sent = shared.post(base, "audio/transcriptions").multipart(form).send().await;
    let response = answer::check_status(model, sent.map_err(network)?).await?;
    if let Some(found) = answer::media_type(response.headers()).filter(|found| !found.ends_with("json")) {
        let found = izwi_types::excerpt(&found);
        return Err(Fault::failed(model, format!("sends {found} instead of a transcript as JSON")));
    }
    let bytes = answer::read_some(response, MAX_ANSWER_BYTES + 1).await.map_err(network)?;
    if bytes.len() > MAX_ANSWER_BYTES {
        return Err(Fault::failed(
            model,
            format!("sends a transcript of more than {MAX_ANSWER_BYTES} bytes"),
        ));
    }
    let transcript: Transcript = serde_json::from_slice(&bytes)
        .map_err(|_| Fault::failed(model, "sends no transcript: its JSON has no text of the known form"))?;
    let output = transcript.into_output(body.duration_s);
    Ok(futures::stream::once(async move { Ok(output) }).boxed())
}

impl Transcript {
    fn into_output(self, duration_s: f64) -> StepOutput {
        let has_speech = !self.text.trim().is_empty();
        let mut segments: Vec<Segment> =
            self.segments.unwrap_or_default().into_iter().map(|segment| segment.read(duration_s)).collect();
        if segments.is_empty() && has_speech {
            let text = self.text.clone();
            segments.push(Segment { end_s: duration_s, text, ..Segment::default() });
        }
        let lacks_words = segments.iter().all(|segment| segment.words.is_empty());
        for word in self.words.unwrap_or_default().into_iter().filter(|_| lacks_words) {
            // A word belongs to the last segment that begins before its middle.
            let middle = (word.start + word.end) / 2.0;
            let after = segments.iter().position(|segment| segment.start_s > middle);
            let index = after.unwrap_or(segments.len()).saturating_sub(1);
            if let Some(segment) = segments.get_mut(index) {
                segment.words.push(word.read(duration_s));
            }
        }
        let text = segments.iter().map(|segment| segment.text.as_str()).collect();
        let language = self.language.filter(|language| has_speech && !language.is_empty());
        let language = language.map(|name| languages::code_of(&name).unwrap_or(name));
        StepOutput { text, segments, language, ..StepOutput::default() }
    }
}

/// A time within the recording, or a little behind its end, since models round up.
fn time(value: f64, duration_s: f64) -> f64 {
    const ROUNDED_S: f64 = 1.0;
    if value.is_finite() { value.clamp(0.0, duration_s + ROUNDED_S) } else { 0.0 }
}

/// A number, or 0 for what is none.
fn number(value: Option<f32>) -> f32 {
    value.filter(|value| value.is_finite()).unwrap_or_default()
}

impl AnsweredSegment {
    fn read(self, duration_s: f64) -> Segment {
        let start_s = time(self.start, duration_s);
        Segment {
            window_start_s: time(self.seek.unwrap_or_default() / 100.0, duration_s),
            start_s,
            end_s: time(self.end, duration_s).max(start_s),
            text: self.text,
            tokens: self.tokens.unwrap_or_default(),
            temperature: number(self.temperature),
            avg_logprob: number(self.avg_logprob),
            compression_ratio: number(self.compression_ratio),
            no_speech_prob: number(self.no_speech_prob),
            words: self.words.unwrap_or_default().into_iter().map(|word| word.read(duration_s)).collect(),
            logprobs: Vec::new(),
        }
    }
}

impl AnsweredWord {
    fn read(self, duration_s: f64) -> Word {
        let start_s = time(self.start, duration_s);
        let end_s = time(self.end, duration_s).max(start_s);
        // The servers leave out the space before a word.
        let text = if self.word.starts_with(' ') { self.word } else { format!(" {}", self.word) };
        Word { text, start_s, end_s, probability: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(json: &str) -> StepOutput {
        serde_json::from_str::<Transcript>(json).unwrap().into_output(10.0)
    }

    #[test]
    fn words_go_to_the_segment_of_their_time() {
        let output = output(
            r#"{"task": "transcribe", "language": "english", "duration": 4.0, "text": "One two. Three.",
                "segments": [{"id": 0, "seek": 0, "start": 0.0, "end": 2.0, "text": " One two.", "tokens": [1],
                              "temperature": 0.0, "avg_logprob": -0.5, "compression_ratio": 1.0, "no_speech_prob": 0.1},
                             {"id": 1, "start": 2.0, "end": 40.0, "text": " Three."}],
                "words": [{"word": "One", "start": 0.1, "end": 0.5}, {"word": "two.", "start": 0.5, "end": 2.1},
                          {"word": "Three.", "start": 2.2, "end": 3.0}]}"#,
        );
        assert_eq!((output.text.as_str(), output.language.as_deref()), (" One two. Three.", Some("en")));
        let words: Vec<Vec<&str>> = output
            .segments
            .iter()
            .map(|segment| segment.words.iter().map(|word| word.text.as_str()).collect())
            .collect();
        assert_eq!(words, [vec![" One", " two."], vec![" Three."]]);
        assert_eq!((output.segments[0].avg_logprob, output.segments[1].end_s), (-0.5, 11.0));
    }

    #[test]
    fn a_text_alone_is_one_segment_and_silence_is_none() {
        let text = output(r#"{"text": "Hello there."}"#);
        assert_eq!(
            (text.text.as_str(), text.segments.len(), text.segments[0].end_s),
            ("Hello there.", 1, 10.0)
        );
        let silence = output(r#"{"text": "", "language": "english", "segments": [], "words": null}"#);
        assert_eq!((silence.text.as_str(), silence.segments.len(), silence.language), ("", 0, None));
    }
}
