//! `POST /v1/audio/speech`: a text goes out, raw samples come back while they are generated.
//!
//! The body asks for raw 16-bit samples (`response_format: pcm`), streamed as vLLM-Omni and SGLang-Omni want it
//! (`stream` with `stream_format: audio`).

use std::sync::Arc;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use izwi_core::engine::remote::RemoteOutput;
use izwi_core::engine::{GenerationParams, RemoteError};
use izwi_types::{InputError, SamplingParams, SpeakInput, StepOutput};
use reqwest::Url;
use serde::Serialize;

use crate::answer::{self, Fault};
use crate::client::Shared;
use crate::config::RemoteConfig;
use crate::upstreams::{Attempt, Outcome};

/// The most audio of one answer, in seconds: a server that does not end is cut.
const MAX_AUDIO_S: u64 = 3_600;
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

/// Fields that OpenAI's API lacks. Those of the client that differ from the defaults are sent.
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
            instructions: input.instructions.clone(),
            extensions: config.extensions.then(|| Extensions::new(input, streams)),
        }
    }
}

impl Extensions {
    fn new(input: &SpeakInput, stream: bool) -> Self {
        let (sampling, defaults) = (input.sampling, SamplingParams::GREEDY);
        let max_tokens =
            Some(input.max_tokens).filter(|value| *value != GenerationParams::default().max_tokens);
        Self {
            stream,
            language: input.language.clone(),
            seed: input.seed,
            temperature: Some(sampling.temperature).filter(|value| *value != defaults.temperature),
            top_p: Some(sampling.top_p).filter(|value| *value != defaults.top_p),
            top_k: Some(sampling.top_k).filter(|value| *value != defaults.top_k),
            max_tokens,
            max_new_tokens: max_tokens,
        }
    }
}

/// Refuses what no field carries.
pub(crate) fn check(config: &RemoteConfig, input: &SpeakInput) -> Result<(), InputError> {
    let model = &config.name;
    if input.reference.is_some() {
        let message = format!("model '{model}' is remote and does not support voice cloning; name a voice");
        return Err(InputError { param: "ref_audio", message });
    }
    if !config.extensions && input.language.as_deref().is_some_and(|language| language != "auto") {
        let message = format!("the server of model '{model}' takes no language; leave it out");
        return Err(InputError { param: "language", message });
    }
    Ok(())
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
        let samples_left = MAX_AUDIO_S * u64::from(shared.config.sample_rate_hz);
        let state = Reading {
            shared,
            attempt: Some(attempt),
            first: Some(self.first),
            rest: self.rest,
            samples: Samples::default(),
            samples_left,
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
}

impl Reading {
    async fn next(&mut self) -> Option<Result<StepOutput, RemoteError>> {
        self.attempt.as_ref()?;
        let idle = self.shared.config.idle_timeout;
        loop {
            let bytes = match self.first.take() {
                Some(first) => first,
                None => match tokio::time::timeout(idle, self.rest.next()).await {
                    Ok(Some(Ok(bytes))) => bytes,
                    Ok(Some(Err(_))) => return Some(Err(self.cut("its connection was lost"))),
                    Ok(None) if self.samples.is_whole() => {
                        self.end(Outcome::Answered);
                        return None;
                    }
                    Ok(None) => return Some(Err(self.cut("it ended within a sample"))),
                    Err(_) => return Some(Err(self.cut(&format!("nothing came for {} s", idle.as_secs())))),
                },
            };
            let samples = self.samples.push(&bytes);
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
        let slow = SpeakInput { speed: 0.5, voice: Some("v".to_owned()), ..plain };
        assert_eq!(
            body(false, &slow),
            serde_json::json!({"model": "m", "input": "Hi.", "voice": "v", "response_format": "pcm", "speed": 0.5})
        );
    }
}
