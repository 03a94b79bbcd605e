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
use crate::config::RemoteConfig;
use crate::shared::{INPUT_RATE_HZ, Shared};

/// The most bytes of a transcript: of any, and for each second of its recording. A second of speech with the times of its
/// words and its tokens has less than 1 KiB.
const FIRST_BYTES: usize = 1 << 20;
const BYTES_PER_S: usize = 16 << 10;
const MAX_ANSWER_BYTES: usize = 32 << 20;

/// Options that OpenAI's API has, as fields of a form.
const SENT: [&str; 4] = ["language", "prompt", "temperature", "timestamp_granularities[]"];
/// Options that some servers have alongside them.
const EXTENSIONS: [&str; 1] = ["seed"];
/// The option of which servers that tell no times have no field.
const TIMES: &str = "timestamp_granularities";

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
        let told = |name: &str| SENT.contains(&name) || config.extensions && EXTENSIONS.contains(&name);
        fields.extend(input.options.fields().into_iter().filter(|(name, _)| told(name)));
        if config.timestamps {
            fields.push(("response_format", "verbose_json".to_owned()));
            fields.push(("timestamp_granularities[]", "segment".to_owned()));
        } else {
            fields.push(("response_format", "json".to_owned()));
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
    let has_times = |name: &str| config.timestamps && name == TIMES;
    let is_sent = |name: &str| SENT.contains(&name) || EXTENSIONS.contains(&name) || has_times(name);
    let asked = match input.window.is_some() || input.options.translate {
        true => Some("model"),
        false => input.options.asked().into_iter().find(|name| !is_sent(name)),
    };
    let Some(param) = asked else { return Ok(()) };
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
    let (duration_s, limit) = (body.duration_s, most_bytes(body.duration_s));
    let bytes = answer::read_within(response, limit + 1, shared.config.idle_timeout).await;
    let bytes = bytes.map_err(|stop| stop.fault(model))?;
    if bytes.len() > limit {
        let reason = format!("sends a transcript of more than {limit} bytes for {duration_s:.1} s of audio");
        return Err(Fault::failed(model, reason));
    }
    // As much as megabytes: not on a thread that serves connections.
    let read = tokio::task::spawn_blocking(move || {
        serde_json::from_slice::<Transcript>(&bytes).map(|transcript| transcript.into_output(duration_s))
    });
    let output =
        read.await.ok().and_then(Result::ok).ok_or_else(|| {
            Fault::failed(model, "sends no transcript: its JSON has no text of the known form")
        })?;
    Ok(futures::stream::once(async move { Ok(output) }).boxed())
}

/// The most bytes of the transcript of so many seconds.
fn most_bytes(duration_s: f64) -> usize {
    (FIRST_BYTES + (duration_s * BYTES_PER_S as f64) as usize).min(MAX_ANSWER_BYTES)
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
        // Where each segment begins, or an earlier one that begins later.
        let starts: Vec<f64> = segments
            .iter()
            .scan(0.0, |latest: &mut f64, segment| {
                *latest = latest.max(segment.start_s);
                Some(*latest)
            })
            .collect();
        for word in self.words.unwrap_or_default().into_iter().filter(|_| lacks_words) {
            // A word belongs to the last segment that begins before its middle.
            let middle = (word.start + word.end) / 2.0;
            let index = starts.partition_point(|start| *start <= middle).saturating_sub(1);
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

/// A time within the recording, or a little after its end, since models round up.
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
            speaker: None,
            speaker_name: None,
            embedding: None,
            end_of_turn: None,
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
    fn the_time_for_a_transcript_grows_with_its_length_alone() {
        const COUNT: usize = 200_000;
        let segments = (0..COUNT).map(|index| AnsweredSegment {
            start: index as f64 * 1e-3,
            end: index as f64 * 1e-3,
            text: " a".to_owned(),
            seek: None,
            tokens: None,
            temperature: None,
            avg_logprob: None,
            compression_ratio: None,
            no_speech_prob: None,
            words: None,
        });
        let words = (0..COUNT).map(|index| {
            let at = (COUNT - index) as f64 * 1e-3;
            AnsweredWord { word: "a".to_owned(), start: at, end: at }
        });
        let transcript = Transcript {
            text: "a".to_owned(),
            language: None,
            segments: Some(segments.collect()),
            words: Some(words.collect()),
        };
        let (send, receive) = std::sync::mpsc::channel();
        std::thread::spawn(move || drop(send.send(transcript.into_output(COUNT as f64))));
        // Two minutes guard against a product of both numbers, which takes longer; the sum takes a second.
        let output = receive.recv_timeout(std::time::Duration::from_secs(120)).unwrap();
        assert_eq!(output.segments.iter().map(|segment| segment.words.len()).sum::<usize>(), COUNT);
        assert!(output.segments[1..COUNT - 1].iter().all(|segment| segment.words.len() == 1));
    }

    #[test]
    fn a_transcript_has_room_by_the_length_of_its_recording() {
        assert_eq!((most_bytes(0.0), most_bytes(60.0)), (FIRST_BYTES, FIRST_BYTES + 60 * BYTES_PER_S));
        assert_eq!(most_bytes(1e9), MAX_ANSWER_BYTES);
    }

    #[test]
    fn a_word_belongs_to_the_last_segment_before_it_in_any_order_of_segments() {
        let output = output(
            r#"{"text": "a", "segments": [{"start": 0.0, "end": 1.0, "text": "a"}, {"start": 5.0, "end": 6.0, "text": "b"},
                {"start": 2.0, "end": 3.0, "text": "c"}, {"start": 8.0, "end": 9.0, "text": "d"}],
                "words": [{"word": "x", "start": 2.4, "end": 2.6}, {"word": "y", "start": 7.0, "end": 7.0}]}"#,
        );
        let words: Vec<usize> = output.segments.iter().map(|segment| segment.words.len()).collect();
        assert_eq!(words, [1, 0, 1, 0]);
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
