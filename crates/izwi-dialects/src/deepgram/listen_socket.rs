//! The WebSocket `/v1/listen`: raw audio in, a transcript of each turn of speech out. Where turns begin and end is found by
//! voice activity detection; `Finalize` ends one at once.
//!
//! Interim transcripts are transcripts of the turn in progress, made again for each further second of it while the model
//! has nothing else to do.

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{Engine, RequestId, Segment, StreamingOutput};
use izwi_server::extract::{check_range, parse_json};
use izwi_server::openapi::SessionRefusals;
use izwi_server::turns::{PcmEncoding, TurnOptions};
use izwi_server::ws::SessionUpgrade;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState};
use izwi_types::excerpt;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::listen::{ListenQuery, Listener};
use super::live::{LiveAudio, Part};
use super::params::Params;
use super::results::{Alternative, ModelInfo, hex, now};

/// Silence that ends a turn, in milliseconds: without a request, and the least, which pauses between words have.
const ENDPOINTING_MS: u64 = 500;
const LEAST_ENDPOINTING_MS: u64 = 200;
/// Range of `utterance_end_ms`. <https://developers.deepgram.com/docs/utterance-end>
const UTTERANCE_END_MS: std::ops::RangeInclusive<u64> = 1_000..=5_000;

/// What the URL says.
pub(super) struct Opening {
    listener: Listener,
    audio: LiveAudio,
    wants: Wants,
}

/// Messages that a client asked for.
#[derive(Debug, Clone, Copy)]
struct Wants {
    interim_results: bool,
    vad_events: bool,
    /// Whether silence ends an utterance.
    endpointing: bool,
    utterance_end_ms: Option<u64>,
}

/// Raw audio in, transcripts out, as Deepgram, over a WebSocket
///
/// The upgrade of a WebSocket. Its messages are Deepgram's; docs/compatibility.md lists them.
#[utoipa::path(
    get,
    path = "/v1/listen",
    tag = "dialects",
    params(ListenQuery),
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals),
)]
pub(super) async fn open(
    State(state): State<AppState>,
    params: Params,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    let upgrade = upgrade.checked()?;
    let (audio, wants) = audio_of(&state, &params)?;
    let listener = Listener::load(&state, &params).await?;
    let ignored = params.ignored();
    state.ignored_log().note(&ignored);
    let mut response = upgrade.open::<Listen>(Opening { listener, audio, wants })?;
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

/// Reads the format of the audio, and the parameters of turns.
fn audio_of(state: &AppState, params: &Params) -> Result<(LiveAudio, Wants), ApiError> {
    let encoding = match params.text("encoding") {
        Some("linear16") => PcmEncoding::S16Le,
        Some("mulaw") => PcmEncoding::MuLaw,
        Some("alaw") => PcmEncoding::ALaw,
        None => {
            let message = "encoding is missing; containers are not read here, send linear16, mulaw or alaw";
            return Err(ApiError::invalid("encoding", message));
        }
        Some(other) => {
            let message =
                format!("encoding '{}' is not supported; send linear16, mulaw or alaw", excerpt(other));
            return Err(ApiError::invalid("encoding", message));
        }
    };
    let missing = || ApiError::invalid("sample_rate", "sample_rate is missing; it is required with encoding");
    let rate_hz = params.number("sample_rate")?.ok_or_else(missing)?;
    if params.number::<u32>("channels")?.is_some_and(|channels| channels != 1) {
        return Err(ApiError::invalid("channels", "only one channel is supported; send channels=1"));
    }
    let endpointing = params.text("endpointing").map(str::to_ascii_lowercase);
    let endpointing_ms = match endpointing.as_deref() {
        None | Some("true" | "false") => None,
        Some(_) => params.number::<u64>("endpointing")?,
    };
    let utterance_end_ms = params.number("utterance_end_ms")?;
    if let Some(ms) = utterance_end_ms {
        check_range("utterance_end_ms", ms, &UTTERANCE_END_MS)?;
    }
    let wants = Wants {
        interim_results: params.switch("interim_results")?,
        vad_events: params.switch("vad_events")?,
        endpointing: endpointing.as_deref() != Some("false"),
        utterance_end_ms,
    };
    let silence_duration_ms = endpointing_ms.unwrap_or(ENDPOINTING_MS).clamp(LEAST_ENDPOINTING_MS, 10_000);
    let turns = TurnOptions { silence_duration_ms, ..TurnOptions::default() };
    Ok((LiveAudio::new(state, encoding, rate_hz, turns)?, wants))
}

/// A message of the client.
#[derive(Debug)]
pub(super) enum Frame {
    Audio(Bytes),
    KeepAlive,
    Finalize,
    CloseStream,
}

#[derive(Debug, Deserialize)]
#[serde(expecting = "a JSON object")]
struct FrameFields {
    r#type: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "type")]
enum Answer<'a> {
    SpeechStarted {
        channel: [u32; 1],
        timestamp: f64,
    },
    UtteranceEnd {
        channel: [u32; 2],
        last_word_end: f64,
    },
    Results(Results<'a>),
    Metadata {
        transaction_key: &'static str,
        request_id: &'a str,
        sha256: String,
        created: String,
        duration: f64,
        channels: u32,
        models: [&'a str; 1],
    },
    Error {
        variant: &'static str,
        description: String,
        message: String,
    },
}

#[derive(Debug, Serialize)]
struct Results<'a> {
    channel_index: [u32; 2],
    duration: f64,
    start: f64,
    is_final: bool,
    speech_final: bool,
    from_finalize: bool,
    channel: Channel,
    metadata: ResultsMetadata<'a>,
}

#[derive(Debug, Serialize)]
struct Channel {
    alternatives: [Alternative; 1],
}

#[derive(Debug, Serialize)]
struct ResultsMetadata<'a> {
    request_id: &'a str,
    model_info: ModelInfo,
    model_uuid: &'a str,
}

/// State of a session.
pub(super) struct Listen {
    id: RequestId,
    listener: Listener,
    audio: LiveAudio,
    wants: Wants,
    /// Digest of the received bytes.
    sha256: Sha256,
    /// End of the last word of an utterance whose end was not reported.
    open_word_end: Option<f64>,
    is_generating: bool,
    /// Whether the transcript in progress is the last that the client asked for by `Finalize`.
    is_finalizing: bool,
    is_closed: bool,
}

/// A transcript in progress.
pub(super) struct Turn {
    part: Part,
    segments: Vec<Segment>,
}

impl Protocol for Listen {
    const KIND: &'static str = "deepgram-listen";
    type Frame = Frame;
    type Model = ();
    type Reply = Turn;
    type Opening = Opening;

    fn new(_state: &AppState, identity: Identity, opening: Opening) -> Self {
        let Opening { listener, audio, wants } = opening;
        Self {
            id: identity.id,
            listener,
            audio,
            wants,
            sha256: Sha256::new(),
            open_word_end: None,
            is_generating: false,
            is_finalizing: false,
            is_closed: false,
        }
    }

    fn parse(message: ClientMessage) -> Result<Frame, ApiError> {
        let text = match message {
            ClientMessage::Binary(audio) => return Ok(Frame::Audio(audio)),
            ClientMessage::Text(text) => text,
        };
        let fields: FrameFields = parse_json(text.as_bytes())?;
        match fields.r#type.as_deref() {
            Some("KeepAlive") => Ok(Frame::KeepAlive),
            Some("Finalize") => Ok(Frame::Finalize),
            Some("CloseStream") => Ok(Frame::CloseStream),
            other => {
                Err(ApiError::unknown_frame(other.unwrap_or_default(), "KeepAlive, Finalize, CloseStream"))
            }
        }
    }

    fn receive(
        &mut self,
        frame: Frame,
        _model: Option<Result<(), ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        match frame {
            Frame::Audio(_) if self.is_closed => {}
            Frame::Audio(audio) => {
                self.sha256.update(&audio);
                for at_ms in self.audio.push(&audio)? {
                    if self.wants.vad_events {
                        out.frame(&Answer::SpeechStarted { channel: [0], timestamp: seconds(at_ms) });
                    }
                }
                self.tell_utterance_end(out);
            }
            Frame::KeepAlive => {}
            Frame::Finalize if self.audio.finalize()? => {}
            Frame::Finalize if self.is_generating => self.is_finalizing = true,
            Frame::Finalize => {
                // Nothing is left, and the client waits to hear so.
                let now_ms = self.audio.now_ms();
                self.write_results(&[], now_ms..now_ms, true, true, out);
            }
            Frame::CloseStream => self.close_input(),
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let part = match self.audio.next_turn() {
            Some(part) => part,
            None => match self.next_interim()? {
                Ok(part) => part,
                Err(error) => return Some(Err(error)),
            },
        };
        let request = match self.listener.request(part.file.clone()) {
            Ok(request) => request,
            Err(error) => return Some(Err(error)),
        };
        self.is_generating = true;
        let reply = Turn { part, segments: Vec::new() };
        Some(Ok(Job::new(Engine::clone(&self.listener.engine), request, reply)))
    }

    fn deliver(
        &mut self,
        turn: &mut Turn,
        chunk: StreamingOutput,
        _out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        turn.segments.extend(chunk.segments);
        Ok(())
    }

    fn end(&mut self, turn: Turn, outcome: Outcome, out: &mut Outbox) {
        self.is_generating = false;
        if !outcome.is_complete() {
            return;
        }
        let Turn { part, segments } = turn;
        let from_finalize = part.from_finalize || (part.is_final && std::mem::take(&mut self.is_finalizing));
        // A turn that has ended meanwhile is reported as a whole.
        if part.is_final || self.audio.has_speech() {
            self.write_results(&segments, part.start_ms..part.end_ms, part.is_final, from_finalize, out);
            self.tell_utterance_end(out);
        }
    }

    fn drop_queued(&mut self) -> bool {
        self.audio.clear()
    }

    fn close_input(&mut self) {
        if let Err(error) = self.audio.finalize() {
            tracing::warn!(session = %self.id, %error, "the last turn is not transcribed");
        }
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && !self.audio.is_waiting()
    }

    fn write_done(&self, out: &mut Outbox) {
        out.frame(&Answer::Metadata {
            transaction_key: "deprecated",
            request_id: self.id.as_str(),
            sha256: hex(&self.sha256.clone().finalize()),
            created: now(),
            duration: seconds(self.audio.now_ms()),
            channels: 1,
            models: [self.listener.model()],
        });
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        let message = error.message();
        out.frame(&Answer::Error { variant: error.code(), description: message.clone(), message });
    }
}

impl Listen {
    /// The turn in progress, if the client wants interim transcripts and the model has nothing else to do.
    fn next_interim(&mut self) -> Option<Result<Part, ApiError>> {
        let status = self.listener.engine.status();
        let is_free = status.running + status.pending == 0;
        (self.wants.interim_results && is_free && !self.is_closed)
            .then(|| self.audio.next_interim())
            .flatten()
    }

    fn write_results(
        &mut self,
        segments: &[Segment],
        ms: std::ops::Range<u64>,
        is_final: bool,
        from_finalize: bool,
        out: &mut Outbox,
    ) {
        let start = seconds(ms.start);
        let alternative = Alternative::of(segments, start);
        if is_final && let Some(word) = alternative.words.last() {
            self.open_word_end = Some(word.end);
        }
        let model = self.listener.model();
        out.frame(&Answer::Results(Results {
            channel_index: [0, 1],
            duration: seconds(ms.end - ms.start),
            start,
            is_final,
            speech_final: is_final && self.wants.endpointing,
            from_finalize,
            channel: Channel { alternatives: [alternative] },
            metadata: ResultsMetadata {
                request_id: self.id.as_str(),
                model_info: ModelInfo::new(model),
                model_uuid: model,
            },
        }));
    }

    /// Tells the end of an utterance, once the last word is long enough ago and no other speech has begun.
    fn tell_utterance_end(&mut self, out: &mut Outbox) {
        let (Some(gap_ms), Some(word_end)) = (self.wants.utterance_end_ms, self.open_word_end) else {
            return;
        };
        let has_passed = seconds(self.audio.now_ms()) >= word_end + gap_ms as f64 / 1_000.0;
        if has_passed && !self.audio.has_speech() && !self.is_generating {
            self.open_word_end = None;
            out.frame(&Answer::UtteranceEnd { channel: [0, 1], last_word_end: word_end });
        }
    }
}

fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
}
