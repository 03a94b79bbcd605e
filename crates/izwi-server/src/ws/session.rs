//! One session: the loop that reads, speaks and keeps time, and the state it changes.

use std::ops::ControlFlow;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket, close_code};
use futures::future::BoxFuture;
use futures::stream::SplitStream;
use futures::{FutureExt, StreamExt};
use izwi_core::engine::types::audio_duration;
use izwi_core::engine::{Engine, FinishReason, RequestId, StreamingOutput, TaskType};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::arrival::{Arrival, Cast};
use super::parse::parse;
use super::script::Script;
use super::wire::{Wire, WireError};
use crate::dto::session::{ClientFrame, ConfigFields, ServerFrame};
use crate::dto::speech::VoiceRef;
use crate::encoding::Encoding;
use crate::error::ApiError;
use crate::registry::Lease;
use crate::speech::{Cloning, Manner, SpeechOptions, begin};
use crate::state::AppState;
use crate::voices;

/// Range and default of `chunk_ms`.
const CHUNK_MS: std::ops::RangeInclusive<u64> = 20..=2_000;
const DEFAULT_CHUNK_MS: u64 = 200;
/// Answers that may wait before reading pauses: a client that only asks must also read.
const MAX_QUEUED: usize = 32;
/// How long a peer may take to answer a close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

type Chunks = mpsc::Receiver<StreamingOutput>;
type Begun = Result<(StreamingOutput, Chunks), ApiError>;

/// Close code and reason.
type Ending = (u16, &'static str);

/// What a session was configured to.
struct Setup {
    engine: Lease,
    manner: Manner,
    encoding: Encoding,
    chunk_samples: usize,
}

/// The utterance being spoken. Dropping it drops the engine's receiver, which aborts the request.
enum Voice {
    Silent,
    Beginning(BoxFuture<'static, Begun>),
    Speaking(Utterance),
}

/// An utterance whose audio has begun.
struct Utterance {
    chunks: Chunks,
    request: RequestId,
    /// Samples handed to the client.
    sent: u64,
    /// The client spoke over it: nothing more of it is sent but its end.
    is_interrupted: bool,
}

enum Spoken {
    Begun(Begun),
    Chunk(Option<StreamingOutput>),
}

enum Event {
    Sent(Result<(), WireError>),
    Spoken(Box<Spoken>),
    Arrived,
    Received(Option<Result<Message, axum::Error>>),
    PingDue,
    Idle,
    Draining,
}

struct Session {
    state: AppState,
    id: RequestId,
    wire: Wire,
    incoming: SplitStream<WebSocket>,
    draining: watch::Receiver<bool>,
    is_draining: bool,
    ping: Interval,
    active_at: Instant,
    arrival: Arrival,
    setup: Option<Setup>,
    script: Script,
    voice: Voice,
    /// Number of the utterance being spoken, or of the next.
    utterance: u64,
}

/// Serves one session until it is done, fails or its client leaves.
pub(super) async fn run(state: AppState, id: RequestId, socket: WebSocket) {
    let (sink, incoming) = socket.split();
    let config = state.config();
    let now = Instant::now();
    let mut ping = interval_at(now + config.ping_interval, config.ping_interval);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let session = Session {
        wire: Wire::new(sink, config.send_timeout),
        incoming,
        draining: state.draining(),
        is_draining: false,
        ping,
        active_at: now,
        arrival: Arrival::default(),
        setup: None,
        script: Script::new(config.max_input_chars, config.max_session_chars),
        voice: Voice::Silent,
        utterance: 0,
        id,
        state,
    };
    session.serve().await;
}

/// The names of the model and the voice that a frame configures a session for, if it configures one: `None` inside for
/// the defaults.
fn wanted(frame: &ClientFrame) -> Option<(Option<String>, Option<String>)> {
    match frame {
        ClientFrame::Config(config) | ClientFrame::Speak { config, .. } => {
            Some((config.model.clone(), config.voice.clone().map(VoiceRef::into_id)))
        }
        ClientFrame::Text(_) => Some((None, None)),
        _ => None,
    }
}

/// Waits for a model and finds the voice.
async fn cast(state: AppState, model: Option<String>, voice: Option<String>) -> Result<Cast, ApiError> {
    let engine = state.lease(model.as_deref(), TaskType::Tts).await?;
    let voice = voices::find(voice.as_deref(), &engine, state.voices()).await?;
    Ok(Cast { engine, voice })
}

impl Voice {
    fn is_silent(&self) -> bool {
        matches!(self, Self::Silent)
    }

    /// Waits for what comes next of the utterance; for ever when there is none. Cancel-safe.
    async fn next(&mut self) -> Spoken {
        match self {
            Self::Silent => std::future::pending().await,
            Self::Beginning(begun) => Spoken::Begun(begun.await),
            Self::Speaking(utterance) => Spoken::Chunk(utterance.chunks.recv().await),
        }
    }
}

impl Session {
    async fn serve(mut self) {
        tracing::debug!(session = %self.id, "session opened");
        loop {
            self.speak_next();
            if self.voice.is_silent() && self.script.is_over() {
                self.wire.frame(&ServerFrame::Done);
                let code = if self.is_draining { close_code::AWAY } else { close_code::NORMAL };
                return self.end((code, "done")).await;
            }
            let event = self.next_event().await;
            match self.handle(event) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(Some(ending)) => return self.end(ending).await,
                ControlFlow::Break(None) => {
                    tracing::debug!(session = %self.id, "client has left");
                    return;
                }
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let wire_is_idle = self.wire.is_idle();
        let hears = self.wire.queued() < MAX_QUEUED && self.arrival.waiting() < MAX_QUEUED;
        let idle_at = self.active_at + self.state.config().idle_timeout;
        let is_silent = self.voice.is_silent();
        let arrives = self.arrival.is_under_way();
        tokio::select! {
            () = self.arrival.settled(), if arrives => Event::Arrived,
            received = self.incoming.next(), if hears => Event::Received(received),
            sent = self.wire.advance(), if !wire_is_idle => Event::Sent(sent),
            spoken = self.voice.next(), if wire_is_idle && !is_silent => Event::Spoken(Box::new(spoken)),
            _ = self.draining.wait_for(|draining| *draining), if !self.is_draining => Event::Draining,
            _ = self.ping.tick() => Event::PingDue,
            () = tokio::time::sleep_until(idle_at), if is_silent && !arrives => Event::Idle,
        }
    }

    /// Breaks with how to close, or with `None` when nobody is there to be told.
    fn handle(&mut self, event: Event) -> ControlFlow<Option<Ending>> {
        match event {
            Event::Sent(Ok(())) => {}
            Event::Sent(Err(error)) => {
                tracing::info!(session = %self.id, %error, "session dropped");
                return ControlFlow::Break(None);
            }
            Event::Received(received) => return self.receive(received),
            Event::Spoken(spoken) => {
                return match *spoken {
                    Spoken::Begun(begun) => self.begun(begun),
                    Spoken::Chunk(chunk) => self.relay(chunk),
                };
            }
            Event::Arrived => self.catch_up(),
            Event::PingDue if self.wire.is_idle() => self.wire.ping(),
            Event::PingDue => {}
            Event::Idle => {
                self.wire.error(&ApiError::IdleTimeout(self.state.config().idle_timeout));
                return ControlFlow::Break(Some((close_code::POLICY, "idle")));
            }
            Event::Draining => {
                self.is_draining = true;
                if self.script.abandon() | self.arrival.abandon() {
                    self.wire.error(&ApiError::Draining);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn receive(&mut self, received: Option<Result<Message, axum::Error>>) -> ControlFlow<Option<Ending>> {
        let outcome = match received {
            None | Some(Ok(Message::Close(_))) => return ControlFlow::Break(None),
            Some(Err(error)) => {
                self.wire.error(&ApiError::BrokenFrame(error.to_string()));
                return ControlFlow::Break(Some((close_code::PROTOCOL, "protocol error")));
            }
            Some(Ok(Message::Pong(_))) => return ControlFlow::Continue(()),
            Some(Ok(Message::Ping(_))) => Ok(()),
            Some(Ok(Message::Binary(_))) => Err(ApiError::BinaryFrame),
            Some(Ok(Message::Text(text))) => {
                let limit = self.state.config().max_frame_bytes;
                if text.len() > limit {
                    Err(ApiError::TooLarge(format!("frame has more than {limit} bytes; send less at once")))
                } else {
                    parse(&text).and_then(|frame| self.accept(frame))
                }
            }
        };
        self.active_at = Instant::now();
        self.answer(outcome);
        ControlFlow::Continue(())
    }

    /// Obeys a frame, or keeps it until the model that it or one before it needs has arrived.
    fn accept(&mut self, frame: ClientFrame) -> Result<(), ApiError> {
        if self.arrival.is_under_way() && !matches!(frame, ClientFrame::Ping) {
            self.arrival.wait(frame);
            return Ok(());
        }
        let needs_model = self.setup.is_none() && self.script.check_open().is_ok();
        if let Some((model, voice)) = wanted(&frame).filter(|_| needs_model) {
            self.arrival.begin(cast(self.state.clone(), model, voice).boxed());
            if self.arrival.is_under_way() {
                self.arrival.wait(frame);
                return Ok(());
            }
        }
        let outcome = self.obey(frame);
        self.arrival.forget();
        outcome
    }

    /// Obeys the frames that waited for a model.
    fn catch_up(&mut self) {
        self.active_at = Instant::now();
        let mut frames = self.arrival.take_waiting().into_iter();
        if let Some(first) = frames.next() {
            let outcome = self.obey(first);
            self.arrival.forget();
            self.answer(outcome);
        }
        for frame in frames {
            let outcome = self.accept(frame);
            self.answer(outcome);
        }
    }

    fn answer(&mut self, outcome: Result<(), ApiError>) {
        if let Err(error) = outcome {
            self.wire.error(&error);
        }
    }

    fn obey(&mut self, frame: ClientFrame) -> Result<(), ApiError> {
        match frame {
            ClientFrame::Config(fields) => self.configure(fields)?,
            ClientFrame::Text(text) => {
                self.script.check_open()?;
                self.configure_by_default()?;
                self.script.push(&text)?;
            }
            ClientFrame::Flush => {
                self.script.check_open()?;
                self.script.flush();
            }
            ClientFrame::Done => {
                self.script.check_open()?;
                self.script.finish();
            }
            ClientFrame::Speak { text, config } => {
                self.script.check_whole(&text)?;
                if self.setup.is_none() || !config.is_empty() {
                    self.configure(config)?;
                }
                self.script.push_last(&text)?;
            }
            ClientFrame::Ping => self.wire.frame(&ServerFrame::Pong),
            // Playback positions are reports of the client; nothing here depends on them.
            ClientFrame::PlaybackAck => {}
            ClientFrame::Interrupt => self.interrupt(),
        }
        Ok(())
    }

    fn configure_by_default(&mut self) -> Result<(), ApiError> {
        if self.setup.is_some() { Ok(()) } else { self.configure(ConfigFields::default()) }
    }

    fn configure(&mut self, fields: ConfigFields) -> Result<(), ApiError> {
        if self.setup.is_some() {
            return Err(ApiError::OutOfOrder("the session is configured already; open another session"));
        }
        self.script.check_open()?;
        let Cast { engine, voice } = self.arrival.take_model()?;
        let encoding = Encoding::for_session(fields.response_format.as_deref())?;
        let chunk_ms = fields.chunk_ms.unwrap_or(DEFAULT_CHUNK_MS);
        if !CHUNK_MS.contains(&chunk_ms) {
            let message = format!(
                "chunk_ms is {chunk_ms}; it must be between {} and {}",
                CHUNK_MS.start(),
                CHUNK_MS.end()
            );
            return Err(ApiError::invalid("chunk_ms", message));
        }
        let options = SpeechOptions {
            language: fields.language,
            instructions: fields.instructions,
            seed: fields.seed,
            speed: fields.speed,
            temperature: fields.temperature,
            top_p: fields.top_p,
            top_k: fields.top_k,
            max_tokens: fields.max_tokens,
            repetition_penalty: fields.repetition_penalty,
            priority: fields.priority,
            streams_text: fields.non_streaming_mode.map(|whole| !whole),
            cloning: Cloning::default(),
        };
        let manner = Manner::resolve(options, voice, &engine)?;
        let sample_rate = engine.profile().sample_rate;
        let chunk_samples = (u64::from(sample_rate) * chunk_ms / 1_000) as usize;
        self.wire.frame(&ServerFrame::Created {
            session_id: self.id.as_str(),
            sample_rate,
            channels: 1,
            encoding: encoding.label(),
        });
        self.setup = Some(Setup { engine, manner, encoding, chunk_samples });
        Ok(())
    }

    /// Begins the next utterance, if none is being spoken.
    fn speak_next(&mut self) {
        if !self.voice.is_silent() {
            return;
        }
        let Some(setup) = &self.setup else { return };
        let Some(text) = self.script.next() else { return };
        let request = setup.manner.request(text).with_chunk_samples(setup.chunk_samples);
        tracing::debug!(session = %self.id, request = %request.id, utterance = self.utterance, "utterance begins");
        let engine = Engine::clone(&setup.engine);
        let limit = self.state.config().first_audio_timeout;
        self.voice = Voice::Beginning(Box::pin(async move { begin(&engine, request, limit).await }));
    }

    fn begun(&mut self, begun: Begun) -> ControlFlow<Option<Ending>> {
        match begun {
            Ok((first, chunks)) => {
                let request = first.request_id.clone();
                self.voice = Voice::Speaking(Utterance { chunks, request, sent: 0, is_interrupted: false });
                if let Some(setup) = &self.setup {
                    self.wire.frame(&ServerFrame::AudioStart {
                        utterance: self.utterance,
                        voice: setup.manner.voice_name(),
                        model: &setup.engine.profile().model,
                    });
                }
                self.relay(Some(first))
            }
            Err(error) => {
                self.wire.error(&error);
                self.end_utterance();
                match error {
                    ApiError::Draining => {
                        self.is_draining = true;
                        self.script.abandon();
                        ControlFlow::Continue(())
                    }
                    ApiError::ModelUnavailable(_) => {
                        ControlFlow::Break(Some((close_code::ERROR, "engine ended")))
                    }
                    _ => ControlFlow::Continue(()),
                }
            }
        }
    }

    /// Ends what is being spoken and forgets what was to follow. The session goes on; in silence nothing changes.
    fn interrupt(&mut self) {
        if !self.voice.is_silent() {
            self.script.forget();
        }
        match (&mut self.voice, &self.setup) {
            (Voice::Speaking(utterance), Some(setup)) if !utterance.is_interrupted => {
                utterance.is_interrupted = true;
                let (engine, request) = (Engine::clone(&setup.engine), utterance.request.clone());
                // An engine that has ended, or is done with it, has said so in the chunks.
                tokio::spawn(async move { engine.interrupt_request(&request).await });
            }
            // Nothing of it was heard: it is passed over without a word.
            (Voice::Beginning(_), _) => self.end_utterance(),
            _ => {}
        }
    }

    /// Passes one chunk on, and the numbers after the last.
    fn relay(&mut self, chunk: Option<StreamingOutput>) -> ControlFlow<Option<Ending>> {
        let (Some(chunk), Some(setup), Voice::Speaking(utterance)) = (chunk, &self.setup, &mut self.voice)
        else {
            self.wire.error(&ApiError::CutOff);
            return ControlFlow::Break(Some((close_code::POLICY, "cut off")));
        };
        if !chunk.samples.is_empty() && !utterance.is_interrupted {
            utterance.sent += chunk.samples.len() as u64;
            self.wire.frame(&ServerFrame::AudioChunk {
                utterance: self.utterance,
                seq: chunk.sequence,
                sample_offset: chunk.sample_offset,
                samples: chunk.samples.len(),
                is_final: chunk.is_final,
            });
            let is_first = chunk.sequence == 0;
            self.wire.audio(setup.encoding.encode(&chunk.samples, chunk.sample_rate, is_first));
        }
        let Some(stats) = chunk.stats.filter(|_| chunk.is_final) else { return ControlFlow::Continue(()) };
        if stats.finish_reason == FinishReason::Error {
            let details = stats.error.as_deref().unwrap_or("(no details)");
            self.wire.error(&ApiError::internal(details, &chunk.request_id));
        }
        // The engine may have been done before it was told.
        let reason = match stats.finish_reason {
            FinishReason::Stop | FinishReason::Length if utterance.is_interrupted => {
                FinishReason::Interrupted
            }
            reason => reason,
        };
        self.wire.frame(&ServerFrame::AudioDone {
            utterance: self.utterance,
            samples: utterance.sent,
            duration_s: audio_duration(utterance.sent, chunk.sample_rate).as_secs_f64(),
            rtf: stats.rtf(),
            ttfa_ms: stats.time_to_first_audio.map(|ttfa| ttfa.as_secs_f64() * 1e3),
            finish_reason: reason.label(),
        });
        self.end_utterance();
        ControlFlow::Continue(())
    }

    fn end_utterance(&mut self) {
        self.voice = Voice::Silent;
        self.utterance += 1;
        self.active_at = Instant::now();
    }

    /// Sends what is left and closes; gives up on a peer that does not read or answer.
    async fn end(mut self, (code, reason): Ending) {
        self.voice = Voice::Silent;
        self.wire.close(code, reason);
        tracing::debug!(session = %self.id, code, reason, "session closed");
        if self.wire.finish().await.is_err() {
            return;
        }
        // Leaving with bytes unread would reset the connection and take the last frames with it.
        let answered = async {
            while let Some(Ok(_)) = self.incoming.next().await {}
            if code == close_code::PROTOCOL {
                std::future::pending::<()>().await;
            }
        };
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, answered).await;
    }
}
