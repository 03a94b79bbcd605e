//! `POST /v1/audio/speech`: one text, one streamed body.
//!
//! The body starts with the first chunk, while the rest is being generated. Statistics follow as trailers, to clients that
//! send `TE: trailers`. A generation that fails halfway cuts the connection.

use std::collections::VecDeque;

use axum::extract::{Extension, State};
use axum::http::HeaderValue;
use axum::response::Response;
use base64::Engine as _;
use bytes::Bytes;
use futures::stream;
use http_body::Frame;
use izwi_core::engine::{RequestId, RequestStats, StreamingOutput, Task};
use izwi_types::excerpt;

use super::streamed::{self, event};
use crate::chunking::ChunkSizes;
use crate::dto::speech::{SpeechEvent, SpeechRequest, Usage, VoiceRef, WordTimes};
use crate::encoding::{self, EncodedUtterance, OutputFormat};
use crate::error::ApiError;
use crate::extract::{non_blank, required};
use crate::openapi::{SpeechAudio, SpeechBody, SpeechRefusals};
use crate::speech::{
    Cloning, CutOff, ResolvedSpeechOptions, SpeechChunks, VoiceChoice, check_text, voice_beside_recording,
};
use crate::state::AppState;
use crate::upload::SpeechUpload;
use crate::{stats_headers, voices};

/// `stream_format` of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StreamFormat {
    /// The encoded bytes.
    Audio,
    /// Base64 in server-sent events.
    Events,
}

/// Text to speech
///
/// The body starts with the first audio, while the rest is generated. The fields besides `input` are optional.
#[utoipa::path(
    post,
    path = "/v1/audio/speech",
    tag = "speech",
    request_body(content = SpeechBody, content_type = "application/json", example = json!({
        "model": "tts-1", "input": "Hello there.", "voice": "alloy", "response_format": "wav"
    })),
    responses(SpeechAudio, SpeechRefusals),
)]
pub(super) async fn create(
    State(state): State<AppState>,
    Extension(id): Extension<RequestId>,
    upload: SpeechUpload,
) -> Result<Response, ApiError> {
    let SpeechUpload { fields: mut body, mut ignored, memory } = upload;
    let input = required("input", body.input.as_deref())?;
    let model = non_blank(body.model.take());
    let engine = state.lease(model.as_deref(), Task::Tts).await?;
    if model.as_deref().is_some_and(|model| state.registry().is_stand_in(model)) {
        ignored.add("model");
    }
    check_text("input", input, state.config().max_input_chars)?;
    let (format, media_type) = encoding::for_http(body.response_format.as_deref())?;
    let stream_format = stream_format(body.stream_format.as_deref())?;
    let text = input.to_owned();
    let timed_text = timed_text(&body, stream_format, &text)?;
    let cloning = Cloning::new(body.ref_audio.take(), body.ref_text.take(), body.x_vector_only_mode);
    let has_recording = cloning.has_recording();
    let name = voice_beside_recording(body.voice.take().map(VoiceRef::into_id), has_recording)?;
    let voice = match has_recording {
        true => None,
        false => voices::find(name.as_deref(), &engine, state.voices()).await?,
    };
    let choice = VoiceChoice { voice, cloning };
    let options = ResolvedSpeechOptions::resolve(body.options, choice, body.priority.as_deref(), &engine)?;
    options.ignored().iter().for_each(|name| ignored.add(name));
    let sample_rate = engine.profile().info.sample_rate_hz;
    let output = OutputFormat::resolve(format, body.sample_rate, body.bit_rate, sample_rate)?;
    let others = engine.config().streaming_chunk_size;
    let chunks = ChunkSizes::first_only(body.first_chunk_ms, others, sample_rate)?;
    // Without a listener it is bulk work: never refused for live streams, and done in the time that they leave.
    let live = body.live.unwrap_or(true);
    let request = chunks.of(options.into_request(text)).with_id(id).with_live(live);
    let encoded = output.utterance()?;
    let chunks = SpeechChunks::begin(engine, request, state.config().first_audio_timeout).await?;
    // The engine has read the recording by now.
    drop(memory);
    let mut headers = ignored.headers();
    headers.extend(chunks.headers(&state));
    let speech = SpeechStream { chunks, encoded, stream_format, timed_text, pending: VecDeque::new() };
    let content_type = match stream_format {
        StreamFormat::Audio => media_type,
        StreamFormat::Events => streamed::EVENT_STREAM,
    };
    let mut response = response(speech, content_type, output.sample_rate_hz);
    response.headers_mut().extend(headers);
    Ok(response)
}

fn stream_format(name: Option<&str>) -> Result<StreamFormat, ApiError> {
    match name {
        None | Some("audio") => Ok(StreamFormat::Audio),
        Some("sse") => Ok(StreamFormat::Events),
        Some(other) => {
            let message = format!("stream_format '{}' is unknown; use audio or sse", excerpt(other));
            Err(ApiError::invalid("stream_format", message))
        }
    }
}

/// The text, if the events tell when its words are spoken.
fn timed_text(
    body: &SpeechRequest,
    stream_format: StreamFormat,
    text: &str,
) -> Result<Option<String>, ApiError> {
    match (body.word_times.unwrap_or(false), stream_format) {
        (false, _) => Ok(None),
        (true, StreamFormat::Events) => Ok(Some(text.to_owned())),
        (true, StreamFormat::Audio) => {
            let message = "word_times is true, but the body is audio alone; set stream_format to sse";
            Err(ApiError::invalid("word_times", message))
        }
    }
}

fn response(speech: SpeechStream, content_type: &'static str, sample_rate: u32) -> Response {
    let frames = stream::unfold(speech, |mut speech| async { Some((speech.next().await?, speech)) });
    let mut response = streamed::response(frames, content_type);
    response.headers_mut().insert("x-sample-rate", HeaderValue::from(sample_rate));
    response
}

/// A body being generated. Dropping it drops the engine's receiver, which aborts the request.
struct SpeechStream {
    chunks: SpeechChunks,
    encoded: EncodedUtterance,
    stream_format: StreamFormat,
    /// The text, if the client wants to know when its words are spoken.
    timed_text: Option<String>,
    pending: VecDeque<Result<Frame<Bytes>, CutOff>>,
}

impl SpeechStream {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, CutOff>> {
        loop {
            if let Some(frame) = self.pending.pop_front() {
                return Some(frame);
            }
            match self.chunks.next().await? {
                Ok(chunk) => self.take(&chunk),
                Err(cut) => return Some(Err(cut)),
            }
        }
    }

    fn take(&mut self, chunk: &StreamingOutput) {
        let bytes = match self.encoded.encode(chunk) {
            Ok(bytes) => bytes,
            Err(error) => {
                self.pending.push_back(Err(CutOff::encoding(&error)));
                self.chunks.stop();
                return;
            }
        };
        for word in self
            .timed_text
            .iter()
            .flat_map(|text| chunk.words.iter().map(|word| WordTimes::new(word, text, chunk.sample_rate)))
        {
            self.pending.push_back(Ok(Frame::data(event(&SpeechEvent::Word(word)))));
        }
        if !bytes.is_empty() {
            let data = match self.stream_format {
                StreamFormat::Audio => bytes,
                StreamFormat::Events => event(&SpeechEvent::Delta {
                    audio: base64::engine::general_purpose::STANDARD.encode(&bytes),
                }),
            };
            self.pending.push_back(Ok(Frame::data(data)));
        }
        if let Some(stats) = &chunk.stats {
            if self.stream_format == StreamFormat::Events {
                self.pending.push_back(Ok(Frame::data(event(&SpeechEvent::Done { usage: usage(stats) }))));
            }
            self.pending.push_back(Ok(Frame::trailers(stats_headers::of(stats))));
        }
    }
}

fn usage(stats: &RequestStats) -> Usage {
    Usage {
        input_tokens: stats.prompt_tokens,
        output_tokens: stats.generated_tokens,
        total_tokens: stats.prompt_tokens + stats.generated_tokens,
    }
}
