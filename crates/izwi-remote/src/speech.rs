//! `POST /v1/audio/speech`: a text goes out, raw samples come back while they are generated.
//!
//! The body asks for raw 16-bit samples (`response_format: pcm`), streamed as vLLM-Omni and SGLang-Omni want it
//! (`stream` with `stream_format: audio`).

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use izwi_core::engine::remote::RemoteOutput;
use izwi_core::engine::types::audio_duration;
use izwi_core::engine::{GenerationParams, RemoteError};
use izwi_types::{InputError, SamplingParams, SpeakInput, StepOutput};
use reqwest::Url;
use serde::Serialize;

use crate::answer::{self, Fault, Patience};
use crate::config::RemoteConfig;
use crate::shared::Shared;
use crate::upstreams::{Attempt, Outcome};

/// The most audio of one answer, in seconds: a server that does not end is cut.
const MAX_AUDIO_S: u64 = 3_600;
/// Seconds that a second of audio may take, besides pauses of `idle_timeout`.
const SLOWEST: u32 = 10;
/// Content types of raw samples. A server that states none is taken at its word.
const RAW_TYPES: [&str; 6] =
    ["audio/pcm", "audio/l16", "audio/raw", "audio/x-raw", "audio/x-pcm", "application/octet-stream"];

/// The body of a request.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Body {
    model: String,
    input: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    voice: Option<String>,
    response_format: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_format: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speed: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<String>,
    #[serde(flatten)]
    extensions: Option<Extensions>,
}

/// Fields that OpenAI's API lacks. Those that the client set are sent, and others that differ from the defaults.
#[derive(Debug, Clone, Serialize)]
struct Extensions {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    language: Option<String>,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
    /// Its name at Izwi and SGLang-Omni, and at vLLM-Omni.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_new_tokens: Option<usize>,
}

impl Body {
    pub(crate) fn new(shared: &Shared, input: &SpeakInput) -> Self {
        let config = &shared.config;
        // Some servers stream at their own tempo only.
        let streams = input.speed == 1.0;
        let default_voice = || shared.profile.info.voices.first().map(|voice| voice.id.clone());
        Self {
            model: config.model.clone(),
            input: input.text.clone(),
            voice: input.voice.clone().or_else(default_voice),
            response_format: "pcm",
            stream_format: streams.then_some("audio"),
            speed: (!streams).then_some(input.speed),
            instructions: input.options.instructions.clone(),
            extensions: config.extensions.then(|| Extensions::new(input, streams)),
        }
    }
}

impl Extensions {
    fn new(input: &SpeakInput, stream: bool) -> Self {
        let (sampling, defaults, asked) = (input.sampling, SamplingParams::GREEDY, &input.options);
        let max_tokens = told(asked.max_tokens, input.max_tokens, GenerationParams::default().max_tokens);
        Self {
            stream,
            language: input.options.language.clone(),
            seed: input.seed,
            temperature: told(asked.temperature, sampling.temperature, defaults.temperature),
            top_p: told(asked.top_p, sampling.top_p, defaults.top_p),
            top_k: told(asked.top_k, sampling.top_k, defaults.top_k),
            repetition_penalty: told(
                asked.repetition_penalty,
                sampling.repetition_penalty,
                defaults.repetition_penalty,
            ),
            max_tokens,
            max_new_tokens: max_tokens,
        }
    }
}

/// What is sent of an option: the value that the client set, or one that is not the default.
fn told<T: PartialEq>(asked: Option<T>, value: T, default: T) -> Option<T> {
    asked.or((value != default).then_some(value))
}

/// Refuses what no field carries.
pub(crate) fn check(config: &RemoteConfig, input: &SpeakInput) -> Result<(), InputError> {
    let model = &config.name;
    if input.reference.is_some() {
        let message = format!("model '{model}' is remote and does not support voice cloning; name a voice");
        return Err(InputError { param: "ref_audio", message });
    }
    let asked = &input.options;
    let extensions = [
        ("language", asked.language.as_deref().is_some_and(|language| language != "auto")),
        ("seed", asked.seed.is_some()),
        ("temperature", asked.temperature.is_some()),
        ("top_p", asked.top_p.is_some()),
        ("top_k", asked.top_k.is_some()),
        ("repetition_penalty", asked.repetition_penalty.is_some()),
        ("max_tokens", asked.max_tokens.is_some()),
    ];
    match extensions.into_iter().find(|(_, is_asked)| *is_asked && !config.extensions) {
        Some((param, _)) => {
            let message = format!("the server of model '{model}' takes no {param}; leave it out");
            Err(InputError { param, message })
        }
        None => Ok(()),
    }
}

/// An answer whose first byte has arrived.
pub(crate) struct Answer {
    first: Bytes,
    rest: BoxStream<'static, reqwest::Result<Bytes>>,
}

/// Sends the request and waits for the first byte of audio.
pub(crate) async fn begin(shared: &Shared, base: &Url, body: &Body) -> Result<Answer, Fault> {
    let (config, model) = (&shared.config, &shared.config.name);
    let sent = shared.post(base, "audio/speech").json(body).send().await;
    let response = sent.map_err(|error| Fault::network(model, &error))?;
    let response = answer::check_status(model, response).await?;
    let headers = response.headers();
    if let Some(found) = answer::media_type(headers).filter(|found| !RAW_TYPES.contains(&found.as_str())) {
        let found = izwi_types::excerpt(&found);
        return Err(Fault::failed(model, format!("sends {found} instead of raw samples (audio/pcm)")));
    }
    let told = headers.get("x-sample-rate").and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    if let Some(rate) = told.filter(|rate| *rate != config.sample_rate_hz) {
        let known = config.sample_rate_hz;
        return Err(Fault::failed(
            model,
            format!("sends {rate} Hz, sample_rate is {known}; set it to {rate}"),
        ));
    }
    let mut rest = response.bytes_stream().boxed();
    loop {
        match rest.next().await {
            Some(Ok(bytes)) if bytes.is_empty() => {}
            Some(Ok(first)) => return Ok(Answer { first, rest }),
            Some(Err(error)) => return Err(Fault::network(model, &error)),
            None => return Err(Fault::failed(model, "sends no audio")),
        }
    }
}

impl Answer {
    /// The samples as they arrive. Dropping the stream closes the connection.
    pub(crate) fn stream(self, shared: Arc<Shared>, mut attempt: Attempt) -> RemoteOutput {
        attempt.answered();
        let patience = Patience::new(shared.config.idle_timeout);
        let samples_left = MAX_AUDIO_S * u64::from(shared.config.sample_rate_hz);
        let state = Reading {
            shared,
            attempt: Some(attempt),
            first: Some(self.first),
            rest: self.rest,
            samples: Samples::default(),
            samples_left,
            patience,
        };
        let parts = futures::stream::unfold(state, |mut state| async { Some((state.next().await?, state)) });
        parts.boxed()
    }
}

/// An answer that is being read.
struct Reading {
    shared: Arc<Shared>,
    /// `None` once the answer has ended.
    attempt: Option<Attempt>,
    first: Option<Bytes>,
    rest: BoxStream<'static, reqwest::Result<Bytes>>,
    samples: Samples,
    samples_left: u64,
    patience: Patience,
}

impl Reading {
    async fn next(&mut self) -> Option<Result<StepOutput, RemoteError>> {
        self.attempt.as_ref()?;
        loop {
            let bytes = match self.first.take() {
                Some(first) => first,
                None => match self.patience.wait(self.rest.next()).await {
                    Some(Some(Ok(bytes))) => bytes,
                    Some(Some(Err(_))) => return Some(Err(self.cut("its connection was lost"))),
                    Some(None) if self.samples.is_whole() => {
                        self.end(Outcome::Answered);
                        return None;
                    }
                    Some(None) => return Some(Err(self.cut("it ended within a sample"))),
                    None => {
                        let idle = self.shared.config.idle_timeout.as_secs();
                        return Some(Err(self.cut(&format!("too little came for {idle} s"))));
                    }
                },
            };
            let samples = self.samples.push(&bytes);
            let rate = self.shared.config.sample_rate_hz;
            self.patience.earn(audio_duration(samples.len() as u64, rate) * SLOWEST);
            if samples.is_empty() {
                continue;
            }
            match self.samples_left.checked_sub(samples.len() as u64) {
                Some(left) => self.samples_left = left,
                None => return Some(Err(self.cut(&format!("it has more than {MAX_AUDIO_S} s of audio")))),
            }
            return Some(Ok(StepOutput { samples, ..StepOutput::default() }));
        }
    }

    fn cut(&mut self, why: &str) -> RemoteError {
        self.end(Outcome::Cut);
        RemoteError::Failed(format!(
            "the answer of a server of model '{}' was cut: {why}",
            self.shared.config.name
        ))
    }

    fn end(&mut self, outcome: Outcome) {
        if let Some(attempt) = self.attempt.take() {
            attempt.end(outcome);
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // The client left: the server has answered as long as it was asked.
        self.end(Outcome::Abandoned);
    }
}

/// Signed 16-bit little-endian samples of a stream that is sliced anywhere, also within a sample.
#[derive(Debug, Default)]
struct Samples {
    /// The first byte of a sample whose second has not come.
    odd: Option<u8>,
}

impl Samples {
    fn push(&mut self, mut bytes: &[u8]) -> Vec<f32> {
        let mut samples = Vec::with_capacity(bytes.len() / 2 + 1);
        // The inverse of `izwi_audio::pcm::to_i16`.
        let sample = |pair: [u8; 2]| f32::from(i16::from_le_bytes(pair)) / f32::from(i16::MAX);
        if let (Some(low), Some((&high, rest))) = (self.odd, bytes.split_first()) {
            samples.push(sample([low, high]));
            self.odd = None;
            bytes = rest;
        }
        let (pairs, rest) = bytes.as_chunks::<2>();
        samples.extend(pairs.iter().map(|&pair| sample(pair)));
        self.odd = rest.first().copied().or(self.odd);
        samples
    }

    fn is_whole(&self) -> bool {
        self.odd.is_none()
    }
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::Task;
    use izwi_types::SpeechOptions;

    use super::*;
    use crate::RemoteClient;

    #[test]
    fn any_slicing_gives_the_same_samples() {
        let values: Vec<i16> = vec![0, 1, -1, i16::MAX, i16::MIN, 1_234, -4_321];
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let whole = Samples::default().push(&bytes);
        assert_eq!(whole.len(), values.len());
        for size in 1..=bytes.len() {
            let mut samples = Samples::default();
            let sliced: Vec<f32> = bytes.chunks(size).flat_map(|slice| samples.push(slice)).collect();
            assert_eq!((sliced, samples.is_whole()), (whole.clone(), true), "slices of {size}");
        }
        let mut samples = Samples::default();
        samples.push(&bytes[..3]);
        assert!(!samples.is_whole());
    }

    #[test]
    fn samples_become_the_same_bytes_again() {
        let bytes: Vec<u8> = (-i16::MAX..=i16::MAX).flat_map(i16::to_le_bytes).collect();
        let mut again = Vec::new();
        izwi_audio::pcm::write_i16_le(&Samples::default().push(&bytes), &mut again);
        assert!(again == bytes);
    }

    fn body(extensions: bool, input: &SpeakInput) -> serde_json::Value {
        let url = vec!["http://127.0.0.1:1/v1".to_owned()];
        let config = RemoteConfig { extensions, ..RemoteConfig::new("far", Task::Tts, url, "m") };
        let client = RemoteClient::new(config).unwrap();
        serde_json::to_value(Body::new(&client.shared, input)).unwrap()
    }

    #[test]
    fn a_body_streams_raw_samples_and_has_extensions_only_where_they_are_taken() {
        let max_tokens = GenerationParams::default().max_tokens;
        let plain = SpeakInput { seed: 7, max_tokens, ..SpeakInput::plain("Hi.") };
        assert_eq!(
            body(true, &plain),
            serde_json::json!({"model": "m", "input": "Hi.", "response_format": "pcm", "stream_format": "audio",
                "stream": true, "seed": 7})
        );
        let options = SpeechOptions {
            temperature: Some(0.0),
            max_tokens: Some(max_tokens),
            repetition_penalty: Some(1.0),
            ..SpeechOptions::default()
        };
        let told = body(true, &SpeakInput { options, ..plain.clone() });
        let expected = serde_json::json!({"model": "m", "input": "Hi.", "response_format": "pcm", "stream_format": "audio",
            "stream": true, "seed": 7, "temperature": 0.0, "repetition_penalty": 1.0,
            "max_tokens": max_tokens, "max_new_tokens": max_tokens});
        assert_eq!(told, expected);
        let slow = SpeakInput { speed: 0.5, voice: Some("v".to_owned()), ..plain };
        assert_eq!(
            body(false, &slow),
            serde_json::json!({"model": "m", "input": "Hi.", "voice": "v", "response_format": "pcm", "speed": 0.5})
        );
    }

    #[test]
    fn what_no_field_carries_is_refused() {
        let url = vec!["http://127.0.0.1:1/v1".to_owned()];
        let config = RemoteConfig::new("far", Task::Tts, url, "m");
        let plain = RemoteConfig { extensions: false, ..config.clone() };
        let none = SpeechOptions::default();
        for (options, param) in [
            (SpeechOptions { temperature: Some(0.0), ..none.clone() }, "temperature"),
            (SpeechOptions { top_p: Some(1.0), ..none.clone() }, "top_p"),
            (SpeechOptions { top_k: Some(0), ..none.clone() }, "top_k"),
            (SpeechOptions { repetition_penalty: Some(1.0), ..none.clone() }, "repetition_penalty"),
            (SpeechOptions { max_tokens: Some(9), ..none.clone() }, "max_tokens"),
            (SpeechOptions { seed: Some(9), ..none.clone() }, "seed"),
        ] {
            let input = SpeakInput { options, ..SpeakInput::plain("Hi.") };
            assert_eq!(check(&config, &input), Ok(()), "{param}");
            assert_eq!(check(&plain, &input).unwrap_err().param, param);
        }
        assert_eq!(check(&plain, &SpeakInput::plain("Hi.")), Ok(()));
    }
}
