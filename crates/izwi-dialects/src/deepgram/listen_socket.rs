//! The WebSocket `/v1/listen`: raw audio in, a transcript of each turn of speech out. Where turns begin and end is found by
//! voice activity detection, and with `eot_threshold` or `eot_timeout_ms` by a turn model; `Finalize` ends one at once.
//!
//! Interim results are the text of the live transcriber, with the part that may change; what is committed becomes a final
//! result once it is long enough, and at the end of the turn.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use izwi_audio::encode::EncodeError;
use izwi_audio::pcm_format::PcmFormat;
use izwi_core::engine::{RequestId, StreamingOutput};
use izwi_server::extract::{check_range, parse_json};
use izwi_server::live::{ListenerReply, LiveEvent, LiveListener, LiveTranscriber, LiveWord};
use izwi_server::openapi::SessionRefusals;
use izwi_server::speakers::{self, Speakers};
use izwi_server::turns::{Deciding, TurnInput, TurnModel, TurnOptions};
use izwi_server::ws::SessionUpgrade;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState, Lease};
use izwi_types::{Eagerness, TurnEnds};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::listen::{ListenQuery, Listener};
use super::params::Params;
use super::results::{Alternative, ModelInfo, hex, now, seconds};

/// Silence that ends a turn, in milliseconds: without a request, and the least, which pauses between words have.
const ENDPOINTING_MS: u64 = 500;
const LEAST_ENDPOINTING_MS: u64 = 200;
/// Ends of turns by a turn model, as the hosted API has them on its other path: how sure the model must be, and the silence that ends a
/// turn whatever it says; their names, ranges, and values if only the other one is given.
/// <https://developers.deepgram.com/docs/flux/configuration>
const EOT: [&str; 2] = ["eot_threshold", "eot_timeout_ms"];
const EOT_THRESHOLDS: std::ops::RangeInclusive<f32> = 0.5..=0.9;
const EOT_THRESHOLD: f32 = 0.7;
const EOT_TIMEOUTS_MS: std::ops::RangeInclusive<u64> = 500..=10_000;
const EOT_TIMEOUT_MS: u64 = 5_000;
/// Range of `utterance_end_ms`. <https://developers.deepgram.com/docs/utterance-end>
const UTTERANCE_END_MS: std::ops::RangeInclusive<u64> = 1_000..=5_000;
/// Audio of committed words that become a final result while the turn continues.
const FINAL_MS: u64 = 5_000;

/// What the URL says.
pub(super) struct Opening {
    engine: Lease,
    listener: LiveListener,
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
    let PcmFormat { encoding, rate_hz } = params.pcm_format()?;
    let Turns { by_silence, by_model, wants } = Turns::of(&params)?;
    let Listener { engine, settings } = Listener::load(&state, &params).await?;
    let turn_model = if by_model.is_some() { TurnModel::lease(&state).await? } else { None };
    let mut ignored = params.ignored();
    let (turns, turn_model) = match (by_model, turn_model) {
        (Some((threshold, turns)), Some(model)) => (turns, Some(TurnModel::new(&state, &model, threshold))),
        (by_model, _) => {
            // Silence serves, and the client is told that these had no effect.
            let asked = EOT.iter().filter(|name| by_model.is_some() && params.text(name).is_some());
            asked.for_each(|name| ignored.add(name));
            (by_silence, None)
        }
    };
    let turns = TurnOptions { max_turn_ms: LiveTranscriber::max_turn_ms(&engine), ..turns };
    let input = TurnInput::with_turns((encoding, rate_hz), &state.vad(), turns, turn_model)?;
    let mut transcriber = LiveTranscriber::new(&state, &engine, settings, 0)?;
    if let Some(saved) = params.speakers()? {
        // One that hears whole recordings alone has no effect here, as none.
        let takes_live = |model: &Lease| !model.profile().info.chunks_ms.is_empty();
        match speakers::installed(&state).await?.filter(takes_live) {
            Some(model) => {
                transcriber = transcriber.with_speakers(Speakers::of(&state, model, saved).await?)?;
            }
            None => ignored.add("diarize"),
        }
    }
    let listener = LiveListener::new(input, transcriber);
    state.ignored_log().note(&ignored);
    let mut response = upgrade.open::<Listen>(Opening { engine, listener, wants })?;
    response.headers_mut().extend(ignored.headers());
    Ok(response)
}

/// How ends of turns are found.
struct Turns {
    by_silence: TurnOptions,
    /// Where a turn model is asked for: how sure it must be, and the turns that it ends.
    by_model: Option<(f32, TurnOptions)>,
    wants: Wants,
}

impl Turns {
    /// Reads the parameters of turns.
    fn of(params: &Params) -> Result<Self, ApiError> {
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
        let silence_duration_ms =
            endpointing_ms.unwrap_or(ENDPOINTING_MS).clamp(LEAST_ENDPOINTING_MS, 10_000);
        let by_silence = TurnOptions { silence_duration_ms, ..TurnOptions::default() };
        let [threshold, timeout_ms] = EOT;
        let (threshold, timeout_ms) = (params.number(threshold)?, params.number(timeout_ms)?);
        let by_model = match (threshold, timeout_ms) {
            (None, None) => None,
            (threshold, timeout_ms) => {
                let threshold = check_range(EOT[0], threshold.unwrap_or(EOT_THRESHOLD), &EOT_THRESHOLDS)?;
                let timeout_ms = check_range(EOT[1], timeout_ms.unwrap_or(EOT_TIMEOUT_MS), &EOT_TIMEOUTS_MS)?;
                // An utterance does not go on over the silence that the client takes for its end.
                let silence_ms = Some(utterance_end_ms.map_or(timeout_ms, |ms| ms.min(timeout_ms)));
                let ends = TurnEnds { eagerness: Some(Eagerness::Auto), silence_ms };
                Some((threshold, by_silence.with_ends(ends)))
            }
        };
        Ok(Self { by_silence, by_model, wants })
    }
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
    /// Keeps the model loaded.
    _engine: Lease,
    listener: LiveListener,
    wants: Wants,
    /// The turns that are not transcribed to their end.
    turns: VecDeque<Turn>,
    /// Digest of the received bytes.
    sha256: Sha256,
    /// End of the last word of an utterance whose end was not reported.
    open_word_end: Option<f64>,
    /// The number of the turn that the client ended by `Finalize`.
    finalized: Option<u64>,
    is_closed: bool,
}

/// What is known of a turn, after its last final result.
struct Turn {
    number: u64,
    start_ms: u64,
    text: String,
    words: Vec<LiveWord>,
    /// What follows for now.
    partial: Vec<LiveWord>,
}

impl Protocol for Listen {
    const KIND: &'static str = "deepgram-listen";
    const MAX_GENERATIONS: usize = LiveListener::MAX_JOBS;
    type Frame = Frame;
    type Model = ();
    type Reply = ListenerReply;
    type Opening = Opening;

    fn new(_state: &AppState, identity: Identity, opening: Opening) -> Self {
        let Opening { engine, listener, wants } = opening;
        Self {
            id: identity.id,
            _engine: engine,
            listener,
            wants,
            turns: VecDeque::new(),
            sha256: Sha256::new(),
            open_word_end: None,
            finalized: None,
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
                let events = self.listener.push(&audio)?;
                self.tell(events, out);
            }
            Frame::KeepAlive => {}
            Frame::Finalize => {
                self.end_turn(out)?;
                if self.listener.transcriber().has_speech() {
                    self.finalized = Some(self.listener.transcriber().begun() - 1);
                } else {
                    // Nothing is left, and the client waits to hear so.
                    let now_ms = self.listener.now_ms();
                    let nothing = Alternative::of_live("", &[], |_| None);
                    self.write_results(nothing, now_ms..now_ms, Finality::of_turn(true), out);
                }
            }
            Frame::CloseStream => {
                let events = self.listener.finish()?;
                self.tell(events, out);
                self.is_closed = true;
            }
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        self.listener.next_job(|reply| reply)
    }

    fn deliver(
        &mut self,
        reply: &mut ListenerReply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let events = self.listener.deliver(reply, chunk);
        self.tell(events, out);
        Ok(())
    }

    fn end(&mut self, reply: ListenerReply, outcome: Outcome, out: &mut Outbox) {
        let events = self.listener.end(reply, &outcome);
        self.tell(events, out);
    }

    fn drop_queued(&mut self) -> bool {
        self.turns.clear();
        self.listener.clear()
    }

    fn close_input(&mut self) {
        if let Err(error) = self.listener.close() {
            tracing::warn!(session = %self.id, %error, "the last audio is not transcribed");
        }
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && !self.listener.has_speech()
    }

    fn write_done(&self, out: &mut Outbox) {
        out.frame(&Answer::Metadata {
            transaction_key: "deprecated",
            request_id: self.id.as_str(),
            sha256: hex(&self.sha256.clone().finalize()),
            created: now(),
            duration: seconds(self.listener.now_ms()),
            channels: 1,
            models: [&self.listener.transcriber().engine().profile().model],
        });
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        let message = error.message();
        out.frame(&Answer::Error { variant: error.code(), description: message.clone(), message });
    }

    fn write_failure(&self, reply: &mut ListenerReply, error: &ApiError, out: &mut Outbox) {
        match (reply, error) {
            (ListenerReply::Turn(_), error) => Deciding::note_failure(error),
            // A turn whose client pauses continues with the next audio.
            (_, ApiError::TextTimeout(_)) => {}
            (ListenerReply::Transcript(_), error) => self.write_error(error, out),
        }
    }
}

impl Listen {
    fn end_turn(&mut self, out: &mut Outbox) -> Result<(), ApiError> {
        let events = self.listener.end_turn()?;
        self.tell(events, out);
        Ok(())
    }

    fn tell(&mut self, events: Vec<LiveEvent>, out: &mut Outbox) {
        let mut has_changed = false;
        for event in events {
            match event {
                LiveEvent::Started { turn: number, at_ms } => {
                    if self.wants.vad_events {
                        out.frame(&Answer::SpeechStarted { channel: [0], timestamp: seconds(at_ms) });
                    }
                    let (text, words, partial) = (String::new(), Vec::new(), Vec::new());
                    self.turns.push_back(Turn { number, start_ms: at_ms, text, words, partial });
                }
                // A word has the speaker that is known when it is told.
                LiveEvent::Speakers { .. } => {}
                LiveEvent::Partial { turn, words } => {
                    let Some(turn) = self.turn(turn) else { continue };
                    turn.partial = words;
                    has_changed = true;
                }
                LiveEvent::Committed { turn: number, text, words } => {
                    let Some(turn) = self.turn(number) else { continue };
                    turn.text.push_str(&text);
                    turn.words.extend(words);
                    let end_ms = turn.words.last().map_or(turn.start_ms, |word| word.end_ms);
                    if end_ms >= turn.start_ms + FINAL_MS {
                        self.write_final(number, end_ms, Finality::Part, out);
                    }
                    has_changed = true;
                }
                LiveEvent::Ended { turn, end_ms, .. } => {
                    let is_finalized = self.finalized.take_if(|last| *last <= turn).is_some();
                    self.write_final(turn, end_ms, Finality::of_turn(is_finalized), out);
                    self.turns.pop_front();
                    has_changed = false;
                }
            }
        }
        if has_changed && self.wants.interim_results {
            self.write_interim(out);
        }
        self.tell_utterance_end(out);
    }

    /// The turn of this number, which is the first that has not ended.
    fn turn(&mut self, number: u64) -> Option<&mut Turn> {
        while self.turns.front().is_some_and(|turn| turn.number < number) {
            self.turns.pop_front();
        }
        self.turns.front_mut()
    }

    fn write_interim(&self, out: &mut Outbox) {
        let Some(turn) = self.turns.front() else { return };
        let words = [turn.words.as_slice(), &turn.partial].concat();
        let partial = turn.partial.iter().map(|word| word.text.as_str());
        let text: String = std::iter::once(turn.text.as_str()).chain(partial).collect();
        let end_ms = words.last().map_or(turn.start_ms, |word| word.end_ms).max(turn.start_ms);
        let alternative = Alternative::of_live(&text, &words, |word| self.speaker(word));
        if !alternative.transcript.is_empty() {
            self.write_results(alternative, turn.start_ms..end_ms, Finality::Interim, out);
        }
    }

    /// Writes what was committed of a turn since its last final result; what follows begins at `end_ms`.
    fn write_final(&mut self, number: u64, end_ms: u64, finality: Finality, out: &mut Outbox) {
        let Some(turn) = self.turn(number) else { return };
        let (text, words) = (std::mem::take(&mut turn.text), std::mem::take(&mut turn.words));
        let start_ms = std::mem::replace(&mut turn.start_ms, end_ms);
        let alternative = Alternative::of_live(&text, &words, |word| self.speaker(word));
        self.open_word_end = alternative.words.last().map(|word| word.end).or(self.open_word_end);
        self.write_results(alternative, start_ms..end_ms, finality, out);
    }

    fn speaker(&self, word: &LiveWord) -> Option<(u32, Option<Arc<str>>)> {
        self.listener.transcriber().speaker(word.start_ms, word.end_ms)
    }

    fn write_results(&self, alternative: Alternative, ms: Range<u64>, finality: Finality, out: &mut Outbox) {
        let model = &self.listener.transcriber().engine().profile().model;
        out.frame(&Answer::Results(Results {
            channel_index: [0, 1],
            duration: seconds(ms.end.saturating_sub(ms.start)),
            start: seconds(ms.start),
            is_final: finality != Finality::Interim,
            speech_final: matches!(finality, Finality::Turn | Finality::Finalized) && self.wants.endpointing,
            from_finalize: finality == Finality::Finalized,
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
        let has_passed = seconds(self.listener.now_ms()) >= word_end + seconds(gap_ms);
        if has_passed && !self.listener.transcriber().has_speech() {
            self.open_word_end = None;
            out.frame(&Answer::UtteranceEnd { channel: [0, 1], last_word_end: word_end });
        }
    }
}

/// Whether a result may change, and what it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Finality {
    Interim,
    /// A turn that continues has more results.
    Part,
    Turn,
    /// The turn that the client ended by `Finalize`.
    Finalized,
}

impl Finality {
    fn of_turn(is_finalized: bool) -> Self {
        if is_finalized { Self::Finalized } else { Self::Turn }
    }
}
