//! The WebSocket `/v1/audio/chat/stream`: a spoken conversation, text or sound in, text and sound out as they come.
//!
//! A session is one task that owns its socket, its conversation and the answer being given. Like a session that speaks it
//! reads while it answers, and takes from the engine only what its client takes.
//!
//! Choices of the protocol:
//! - Each `input.text`, and each `input.audio.commit` with the binary frames before it, is a turn of the user's; the model
//!   answers them in order. Some may wait while it answers.
//! - Binary frames are 16-bit little-endian mono PCM at `input_sample_rate`, by default the rate the model listens at.
//!   `input.audio.clear` forgets those that were not committed.
//! - `session.created` answers `session.config`, or the first input of a session without one.
//! - `interrupt` ends the answer with the reason `interrupted` and forgets turns that wait, not what is being recorded.
//!   What was said and sent whole stays in the conversation; a turn nothing of which was answered is said with the next.
//! - A turn that is refused is an `error` alone, and is no part of the conversation. Every other ends with `turn.done`.
//! - The oldest turns are forgotten when room runs out; `forgotten_turns` says how many are by now.
//! - `input.done` ends the session once all turns are answered.

mod answer;
mod parse;
mod recording;
mod setup;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Duration;

use axum::extract::ws::{WebSocket, close_code};
use futures::FutureExt;
use izwi_core::engine::types::audio_duration;
use izwi_core::engine::{
    Conversation, Engine, FinishReason, Message, RequestId, RequestStats, StreamingOutput, TaskType,
};

use self::answer::{Answer, Asked, Begun, Next, Speech};
use self::parse::parse;
use self::recording::Recording;
use self::setup::Setup;
use super::arrival::Arrival;
use super::link::{Ending, Link, MAX_QUEUED, Signal};
use crate::dto::chat::{ClientFrame, ConfigFields, ServerFrame};
use crate::encoding::EncodedUtterance;
use crate::error::ApiError;
use crate::registry::Lease;
use crate::speech::check_text;
use crate::state::AppState;

/// Turns that may wait while the model answers.
const MAX_WAITING: usize = 4;

enum Event {
    Signal(Signal),
    Answered(Box<Next>),
    Arrived,
}

struct Session {
    link: Link,
    arrival: Arrival<ClientFrame, Lease>,
    setup: Option<Setup>,
    recording: Recording,
    waiting: VecDeque<Asked>,
    is_done: bool,
    conversation: Conversation,
    /// Turns that were forgotten.
    forgotten: usize,
    answer: Answer,
    /// Number of the turn being answered, or of the next.
    turn: u64,
}

/// Serves one session until it is done, fails or its client leaves.
pub(super) async fn run(state: AppState, id: RequestId, socket: WebSocket) {
    let session = Session {
        link: Link::new(state, id, socket),
        arrival: Arrival::default(),
        setup: None,
        recording: Recording::default(),
        waiting: VecDeque::new(),
        is_done: false,
        conversation: Conversation::new(),
        forgotten: 0,
        answer: Answer::Silent,
        turn: 0,
    };
    session.serve().await;
}

/// The name of the model that a frame configures a session for, if it configures one: `None` inside for the default.
fn wanted(frame: &ClientFrame) -> Option<Option<String>> {
    match frame {
        ClientFrame::Config(config) => Some(config.model.clone()),
        ClientFrame::Text(_) | ClientFrame::Audio(_) => Some(None),
        _ => None,
    }
}

impl Session {
    async fn serve(mut self) {
        loop {
            self.answer_next();
            if self.answer.is_silent() && self.is_done && self.waiting.is_empty() {
                self.link.wire.frame(&ServerFrame::Done);
                let ending = self.link.ending();
                return self.link.close(ending).await;
            }
            let event = self.next_event().await;
            match self.handle(event) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(Some(ending)) => {
                    self.answer = Answer::Silent;
                    return self.link.close(ending).await;
                }
                ControlFlow::Break(None) => return,
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let wire_is_idle = self.link.wire.is_idle();
        let hears = self.arrival.waiting() < MAX_QUEUED;
        let is_silent = self.answer.is_silent();
        let arrives = self.arrival.is_under_way();
        tokio::select! {
            () = self.arrival.settled(), if arrives => Event::Arrived,
            signal = self.link.next(hears, is_silent && !arrives) => Event::Signal(signal),
            next = self.answer.next(), if wire_is_idle && !is_silent => Event::Answered(Box::new(next)),
        }
    }

    /// Breaks with how to close, or with `None` when nobody is there to be told.
    fn handle(&mut self, event: Event) -> ControlFlow<Option<Ending>> {
        match event {
            Event::Answered(next) => {
                return match *next {
                    Next::Heard(heard) => self.heard(heard),
                    Next::Begun(begun) => self.begun(begun),
                    Next::Chunk(chunk) => self.relay(chunk),
                };
            }
            Event::Arrived => self.catch_up(),
            Event::Signal(Signal::Over(ending)) => return ControlFlow::Break(ending),
            Event::Signal(Signal::Moved) => {}
            Event::Signal(Signal::Text(text)) => {
                let outcome = parse(&text).and_then(|frame| self.accept(frame));
                self.tell(outcome);
            }
            Event::Signal(Signal::Binary(pcm)) => {
                let outcome = self.accept(ClientFrame::Audio(pcm));
                self.tell(outcome);
            }
            Event::Signal(Signal::Refused(error)) => self.link.wire.error(&error),
            Event::Signal(Signal::Draining) => {
                let had_waiting = !self.waiting.is_empty();
                self.waiting.clear();
                self.is_done = true;
                if self.arrival.abandon() | had_waiting {
                    self.link.wire.error(&ApiError::Draining);
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn tell(&mut self, outcome: Result<(), ApiError>) {
        if let Err(error) = outcome {
            self.link.wire.error(&error);
        }
    }

    /// Obeys a frame, or keeps it until the model that it or one before it needs has arrived.
    fn accept(&mut self, frame: ClientFrame) -> Result<(), ApiError> {
        if self.arrival.is_under_way() && !matches!(frame, ClientFrame::Ping) {
            self.arrival.wait(frame);
            return Ok(());
        }
        let needs_model = self.setup.is_none() && !self.is_done;
        if let Some(model) = wanted(&frame).filter(|_| needs_model) {
            let state = self.link.state.clone();
            let leasing = async move { state.lease(model.as_deref(), TaskType::AudioChat).await };
            self.arrival.begin(leasing.boxed());
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
        self.link.touch();
        let mut frames = self.arrival.take_waiting().into_iter();
        if let Some(first) = frames.next() {
            let outcome = self.obey(first);
            self.arrival.forget();
            self.tell(outcome);
        }
        for frame in frames {
            let outcome = self.accept(frame);
            self.tell(outcome);
        }
    }

    fn obey(&mut self, frame: ClientFrame) -> Result<(), ApiError> {
        let longest = |setup: &Setup| setup.engine.config().max_turn_duration;
        match frame {
            ClientFrame::Config(fields) => self.configure(fields)?,
            ClientFrame::Text(text) => {
                self.check_open()?;
                check_text("text", &text, self.link.state.config().max_input_chars)?;
                self.configure_by_default()?;
                self.ask(Asked::Text(text))?;
            }
            ClientFrame::Audio(pcm) => {
                self.check_open()?;
                self.configure_by_default()?;
                if let Some(setup) = &self.setup {
                    self.recording.push(&pcm, setup.input_rate, longest(setup))?;
                }
            }
            ClientFrame::Commit => {
                self.check_open()?;
                let rate = self.setup.as_ref().map(|setup| (setup.input_rate, longest(setup)));
                let (rate, longest) = rate.unwrap_or((0, Duration::ZERO));
                let file = self.recording.take(rate, longest)?;
                self.ask(Asked::Audio(file))?;
            }
            ClientFrame::Clear => self.recording = Recording::default(),
            ClientFrame::Done => {
                self.check_open()?;
                self.is_done = true;
            }
            ClientFrame::Ping => self.link.wire.frame(&ServerFrame::Pong),
            // Playback positions are reports of the client; nothing here depends on them.
            ClientFrame::PlaybackAck => {}
            ClientFrame::Interrupt => self.interrupt(),
        }
        Ok(())
    }

    fn check_open(&self) -> Result<(), ApiError> {
        if self.is_done {
            return Err(ApiError::OutOfOrder("the session has ended already; open another session"));
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
        self.check_open()?;
        let setup = Setup::resolve(fields, self.arrival.take_model()?)?;
        let profile = setup.engine.profile();
        self.link.wire.frame(&ServerFrame::Created {
            session_id: self.link.id.as_str(),
            model: &profile.model,
            sample_rate: profile.sample_rate,
            input_sample_rate: setup.input_rate,
            channels: 1,
            encoding: setup.format.encoding,
        });
        self.setup = Some(setup);
        Ok(())
    }

    fn ask(&mut self, asked: Asked) -> Result<(), ApiError> {
        if self.waiting.len() >= MAX_WAITING {
            let message = format!("{MAX_WAITING} turns wait already; interrupt, or wait for turn.done");
            return Err(ApiError::overloaded(message));
        }
        self.waiting.push_back(asked);
        Ok(())
    }

    /// Begins the next turn, if none is being answered.
    fn answer_next(&mut self) {
        let Some(setup) = self.setup.as_ref().filter(|_| self.answer.is_silent()) else { return };
        let Some(asked) = self.waiting.pop_front() else { return };
        self.forgotten += self.conversation.make_room(setup.engine.config().conversation_limits());
        let model = setup.engine.profile().model.clone();
        self.answer = Answer::hear(Engine::clone(&setup.engine), asked, model, self.link.id.clone());
    }

    fn heard(&mut self, heard: Result<Message, ApiError>) -> ControlFlow<Option<Ending>> {
        let (message, setup) = match (heard, &self.setup) {
            (Ok(message), Some(setup)) => (message, setup),
            (Err(error), _) => return self.refuse(&error),
            (Ok(_), None) => return ControlFlow::Continue(()),
        };
        self.conversation.ask(vec![message]);
        let request = setup.request(self.conversation.clone());
        tracing::debug!(session = %self.link.id, request = %request.id, turn = self.turn, "turn begins");
        let limit = self.link.state.config().first_audio_timeout;
        self.answer = Answer::begin(Engine::clone(&setup.engine), request, limit);
        ControlFlow::Continue(())
    }

    fn begun(&mut self, begun: Begun) -> ControlFlow<Option<Ending>> {
        let format = self.setup.as_ref().map(|setup| setup.format);
        let encoded = begun.and_then(|(first, chunks)| {
            let format = format.ok_or(ApiError::CutOff)?;
            Ok((EncodedUtterance::new(format, first.sample_rate)?, first, chunks))
        });
        match encoded {
            Ok((encoded, first, chunks)) => {
                self.answer = Answer::begun(&first, chunks, encoded);
                self.relay(Some(first))
            }
            Err(error) => self.refuse(&error),
        }
    }

    /// Says why there is no answer; the turn is forgotten, and the conversation goes on.
    fn refuse(&mut self, error: &ApiError) -> ControlFlow<Option<Ending>> {
        self.link.wire.error(error);
        self.conversation.withdraw();
        self.end_turn();
        match error {
            ApiError::Draining => {
                self.link.note_draining();
                self.waiting.clear();
                self.is_done = true;
                ControlFlow::Continue(())
            }
            ApiError::ModelUnavailable(_) => ControlFlow::Break(Some((close_code::ERROR, "engine ended"))),
            _ => ControlFlow::Continue(()),
        }
    }

    /// Ends the answer and forgets the turns that wait. In silence nothing changes.
    fn interrupt(&mut self) {
        if self.answer.is_silent() {
            return;
        }
        self.waiting.clear();
        match (&mut self.answer, &self.setup) {
            (Answer::Speaking(speech), Some(setup)) => {
                if !std::mem::replace(&mut speech.is_interrupted, true) {
                    let (engine, request) = (Engine::clone(&setup.engine), speech.request.clone());
                    // An engine that has ended, or is done with it, has said so in the chunks.
                    tokio::spawn(async move { engine.interrupt_request(&request).await });
                }
            }
            // Nothing was said yet.
            _ => {
                self.done(&Done { reason: FinishReason::Interrupted, ..Done::default() });
                self.end_turn();
            }
        }
    }

    /// Passes one chunk on, and the numbers after the last.
    fn relay(&mut self, chunk: Option<StreamingOutput>) -> ControlFlow<Option<Ending>> {
        let (Some(chunk), Answer::Speaking(speech)) = (chunk, &mut self.answer) else {
            self.link.wire.error(&ApiError::CutOff);
            return ControlFlow::Break(Some((close_code::POLICY, "cut off")));
        };
        if !speech.is_interrupted {
            let wire = &mut self.link.wire;
            if let Some(delta) = &chunk.text {
                speech.text.push_str(delta);
                wire.frame(&ServerFrame::TextDelta { turn: self.turn, delta });
            }
            if !chunk.samples.is_empty() {
                let bytes = match speech.encoded.encode(&chunk) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        wire.error(&ApiError::internal(&error.to_string(), &chunk.request_id));
                        return ControlFlow::Break(Some((close_code::ERROR, "encoder failed")));
                    }
                };
                wire.frame(&ServerFrame::AudioChunk {
                    turn: self.turn,
                    seq: speech.sent_chunks,
                    sample_offset: speech.sent_samples,
                    samples: chunk.samples.len(),
                    is_final: chunk.is_final,
                });
                wire.audio(bytes);
                speech.sent_chunks += 1;
                speech.sent_samples += chunk.samples.len() as u64;
            }
            speech.said.extend(chunk.emissions);
        }
        if let Some(stats) = chunk.stats.filter(|_| chunk.is_final) {
            self.finish(&chunk.request_id, &stats, chunk.sample_rate);
        }
        ControlFlow::Continue(())
    }

    /// Enters what was said and tells the numbers.
    fn finish(&mut self, request: &RequestId, stats: &RequestStats, sample_rate: u32) {
        let Answer::Speaking(speech) = std::mem::replace(&mut self.answer, Answer::Silent) else { return };
        if stats.finish_reason == FinishReason::Error {
            let details = stats.error.as_deref().unwrap_or("(no details)");
            self.link.wire.error(&ApiError::internal(details, request));
        }
        let Speech { text, sent_samples, said, is_interrupted, .. } = speech;
        if !said.is_empty() || !is_interrupted {
            self.conversation.answer(said, stats.prompt_tokens);
        }
        // The engine may have been done before it was told.
        let reason = match stats.finish_reason {
            FinishReason::Stop | FinishReason::Length if is_interrupted => FinishReason::Interrupted,
            reason => reason,
        };
        let ttfa_ms = stats.time_to_first_audio.map(|ttfa| ttfa.as_secs_f64() * 1e3);
        let duration_s = audio_duration(sent_samples, sample_rate).as_secs_f64();
        self.done(&Done { text, samples: sent_samples, duration_s, rtf: stats.rtf(), ttfa_ms, reason });
        self.end_turn();
    }

    fn done(&mut self, done: &Done) {
        self.link.wire.frame(&ServerFrame::TurnDone {
            turn: self.turn,
            text: &done.text,
            samples: done.samples,
            duration_s: done.duration_s,
            rtf: done.rtf,
            ttfa_ms: done.ttfa_ms,
            finish_reason: done.reason.label(),
            forgotten_turns: self.forgotten,
        });
    }

    fn end_turn(&mut self) {
        self.answer = Answer::Silent;
        self.turn += 1;
        self.link.touch();
    }
}

/// The numbers of a turn.
struct Done {
    text: String,
    samples: u64,
    duration_s: f64,
    rtf: f32,
    ttfa_ms: Option<f64>,
    reason: FinishReason,
}

impl Default for Done {
    fn default() -> Self {
        let (text, reason) = (String::new(), FinishReason::Stop);
        Self { text, samples: 0, duration_s: 0.0, rtf: 0.0, ttfa_ms: None, reason }
    }
}
