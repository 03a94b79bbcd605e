//! The protocol of `/v1/audio/chat/stream`: a spoken conversation, text or audio in, text and audio out.
//!
//! Choices of the protocol:
//! - Each `input.text`, and each `input.audio.commit` with the binary frames before it, is a turn of the user; the model
//!   answers them in order. A few may wait while it answers.
//! - Binary frames are 16-bit little-endian mono PCM at `input_sample_rate`, by default the model's input rate.
//!   `input.audio.clear` drops those that were not committed.
//! - `session.created` answers `session.config`, or the first input of a session without one.
//! - `interrupt` ends the answer with the reason `interrupted` and drops turns that wait, not audio that is not committed.
//!   What the listener heard stays in the conversation, and the rest of the answer is forgotten, also where it was
//!   delivered whole before; a turn of whose answer nothing was heard is sent again with the next. `interrupted` tells
//!   what was heard.
//! - A turn that is refused is an `error` alone, and is no part of the conversation. Every other ends with `turn.done`.
//! - The oldest turns are dropped when the context is full; `forgotten_turns` counts them.
//! - `input.done` ends the session once all turns are answered.

mod parse;
mod recording;
mod setup;

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{
    AudioInput, Conversation, Engine, EngineCoreRequest, FinishReason, Message, RequestId, StreamingOutput,
    Task, Turn,
};
use tokio::time::Instant;

use self::recording::Recording;
use self::setup::Setup;
use super::frame;
use super::outbox::Outbox;
use super::playback::Timeline;
use super::produced::Produced;
use super::protocol::{Action, ClientMessage, Finish, Identity, Job, Outcome, Protocol};
use crate::dto::chat::{ClientFrame, ConfigFields, ServerFrame};
use crate::dto::session::{AudioChunk, AudioPause, ChunkOf, Interrupt};
use crate::encoding::EncodedChunks;
use crate::error::ApiError;
use crate::metrics::count_interrupt;
use crate::registry::Lease;
use crate::speech::check_text;
use crate::state::AppState;
use crate::upload::UploadMemory;

/// Turns that may wait while the model answers.
const MAX_WAITING: usize = 4;

/// State of a session.
pub(super) struct Chat {
    state: AppState,
    identity: Identity,
    setup: Option<Arc<Setup>>,
    /// Audio that is not committed.
    recording: Recording,
    waiting: VecDeque<UserInput>,
    is_closed: bool,
    conversation: Conversation,
    /// What the recordings of the conversation count in the memory of all recordings.
    memory: UploadMemory,
    /// Answers that may not have been heard.
    timeline: Timeline<Produced>,
    /// Emissions of the current answer that were heard before it was interrupted.
    heard_emissions: Option<usize>,
    /// Turns that were dropped from the conversation.
    forgotten: usize,
    /// Number of the next turn.
    next_turn: u64,
}

/// A turn of the user, as received.
#[derive(Debug)]
enum UserInput {
    Text(String),
    /// A WAV file.
    Audio(Bytes),
}

/// A message of the user, and its share of the memory of all recordings.
type Prepared = (Message, UploadMemory);

/// The model's answer to one turn, as far as it was delivered.
pub(super) struct Answer {
    setup: Arc<Setup>,
    turn: u64,
    encoded: EncodedChunks,
}

impl Protocol for Chat {
    const KIND: &'static str = "chat";
    type Frame = ClientFrame;
    type Model = Lease;
    type Reply = Answer;
    type Opening = ();

    fn new(state: &AppState, identity: Identity, (): ()) -> Self {
        Self {
            state: state.clone(),
            identity,
            setup: None,
            recording: Recording::new(UploadMemory::of_session(state)),
            waiting: VecDeque::new(),
            is_closed: false,
            conversation: Conversation::new(),
            memory: UploadMemory::new(state, 0),
            timeline: Timeline::new("turn"),
            heard_emissions: None,
            forgotten: 0,
            next_turn: 0,
        }
    }

    fn parse(message: ClientMessage) -> Result<ClientFrame, ApiError> {
        match message {
            ClientMessage::Text(text) => parse::parse(&text),
            ClientMessage::Binary(pcm) => Ok(ClientFrame::Audio(pcm)),
        }
    }

    fn is_resume(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Resume(_))
    }

    fn is_immediate(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Ping)
    }

    fn load_model(&self, frame: &ClientFrame) -> Option<BoxFuture<'static, Result<Lease, ApiError>>> {
        if self.setup.is_some() || self.is_closed {
            return None;
        }
        let model = match frame {
            ClientFrame::Config(config) => config.model.clone(),
            ClientFrame::Text(_) | ClientFrame::Audio(_) => None,
            _ => return None,
        };
        let state = self.state.clone();
        Some(async move { state.lease(model.as_deref(), Task::Chat).await }.boxed())
    }

    fn receive(
        &mut self,
        frame: ClientFrame,
        model: Option<Result<Lease, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        match frame {
            ClientFrame::Config(fields) => drop(self.configure(*fields, model, out)?),
            ClientFrame::Text(text) => {
                frame::check_open(self.is_closed)?;
                check_text("text", &text, self.state.config().max_input_chars)?;
                self.configured(model, out)?;
                self.enqueue(UserInput::Text(text))?;
            }
            ClientFrame::Audio(pcm) => {
                frame::check_open(self.is_closed)?;
                let setup = self.configured(model, out)?;
                self.recording.push(&pcm, setup.input_rate, setup.engine.config().max_turn_duration)?;
            }
            ClientFrame::Commit => {
                frame::check_open(self.is_closed)?;
                let Some(setup) = &self.setup else { return Err(recording::empty()) };
                let file = self.recording.take(setup.input_rate, setup.engine.config().max_turn_duration)?;
                self.enqueue(UserInput::Audio(file))?;
            }
            ClientFrame::Clear => self.recording.clear(),
            ClientFrame::Done => {
                frame::check_open(self.is_closed)?;
                self.close_input();
            }
            ClientFrame::Ping => out.reply(&ServerFrame::Pong),
            ClientFrame::Ack(ack) => {
                let played = self.timeline.report(ack.number, ack.played_ms, Instant::now())?;
                return Ok(Action::played(played, ack.gap_ms));
            }
            ClientFrame::Interrupt(interrupt) => {
                self.interrupt(interrupt, out)?;
                return Ok(Action::Interrupt);
            }
            ClientFrame::Resume(_) if self.setup.is_some() => return Err(frame::RUNNING),
            ClientFrame::Resume(resume) => return Ok(Action::Resume(resume)),
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let setup = self.setup.as_ref()?;
        let input = self.waiting.pop_front()?;
        let encoded = match setup.output.chunks(setup.sent_chunks) {
            Ok(encoded) => encoded,
            Err(error) => return Some(Err(error)),
        };
        self.forgotten += self.conversation.truncate(setup.engine.config().conversation_limits());
        self.memory.shrink_to(recorded_bytes(&self.conversation));
        let engine = Engine::clone(&setup.engine);
        let answer = Answer { setup: Arc::clone(setup), turn: self.next_turn, encoded };
        self.timeline.begin(self.next_turn, String::new(), Produced::default());
        self.next_turn += 1;
        let memory = self.memory.fresh();
        let input = prepare(engine.clone(), input, memory, self.identity.id.clone());
        Some(Ok(Job::prepared(engine, input, Self::ask, answer)))
    }

    fn number(answer: &Answer) -> u64 {
        answer.turn
    }

    fn deliver(
        &mut self,
        answer: &mut Answer,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let (turn, samples) = (answer.turn, chunk.samples.len());
        if let (Some(delta), Some(spoken)) = (&chunk.text, self.timeline.get_mut(turn)) {
            out.frame(&ServerFrame::TextDelta { turn, offset: spoken.text.chars().count(), delta });
            spoken.text.push_str(delta);
        }
        for chunk in answer.encoded.encode(&chunk)? {
            let frame = AudioChunk::new(ChunkOf::Turn(turn), &chunk);
            out.audio(frame, chunk.bytes, answer.setup.output.format.sample_bytes);
        }
        if let Some(expected) = chunk.pauses {
            out.frame(&AudioPause::new(ChunkOf::Turn(turn), expected));
        }
        if let Some(spoken) = self.timeline.get_mut(turn) {
            spoken.send(samples, chunk.words, Instant::now());
            spoken.detail.push(chunk.emissions, &chunk.emission_ends);
        }
        Ok(())
    }

    fn end(&mut self, answer: Answer, outcome: Outcome, out: &mut Outbox) {
        let heard = self.heard_emissions.take();
        let is_forgotten = heard.is_some() || !matches!(outcome, Outcome::Finished(_));
        let (rtf, ttfa_ms, duration_s, reason) = match outcome {
            Outcome::Failed => {
                self.timeline.remove(answer.turn);
                return self.conversation.withdraw();
            }
            Outcome::Cancelled => (0.0, None, 0.0, FinishReason::Interrupted),
            Outcome::Finished(finish) => {
                self.record(answer.turn, heard, &finish);
                let duration_s = finish.duration_s(answer.encoded.generated_samples());
                (finish.stats.rtf(), finish.ttfa_ms(), duration_s, finish.reason)
            }
        };
        let spoken = self.timeline.get_mut(answer.turn);
        let text = spoken.map(|spoken| spoken.text.clone()).unwrap_or_default();
        if is_forgotten {
            self.timeline.remove(answer.turn);
        }
        out.frame(&ServerFrame::TurnDone {
            turn: answer.turn,
            text: &text,
            samples: answer.encoded.sent_samples(),
            duration_s,
            rtf,
            ttfa_ms,
            finish_reason: reason.label(),
            forgotten_turns: self.forgotten,
        });
    }

    fn drop_queued(&mut self) -> bool {
        let had_turns = !self.waiting.is_empty();
        self.waiting.clear();
        had_turns
    }

    fn close_input(&mut self) {
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.waiting.is_empty()
    }

    fn write_done(&self, out: &mut Outbox) {
        out.frame(&ServerFrame::Done);
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        frame::write_error(error, out);
    }
}

impl Chat {
    /// The request for the answer to a message.
    fn ask(&mut self, answer: &Answer, (message, memory): Prepared) -> EngineCoreRequest {
        self.memory.merge(memory);
        self.conversation.ask(vec![message]);
        answer.setup.request(self.conversation.clone())
    }

    /// The setup; by default without one.
    fn configured(
        &mut self,
        model: Option<Result<Lease, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Arc<Setup>, ApiError> {
        match &self.setup {
            Some(setup) => Ok(Arc::clone(setup)),
            None => self.configure(ConfigFields::default(), model, out),
        }
    }

    fn configure(
        &mut self,
        fields: ConfigFields,
        model: Option<Result<Lease, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Arc<Setup>, ApiError> {
        if self.setup.is_some() {
            return Err(frame::CONFIGURED);
        }
        frame::check_open(self.is_closed)?;
        let setup = Arc::new(Setup::resolve(fields, model.unwrap_or(Err(frame::NO_MODEL))?)?);
        let profile = setup.engine.profile();
        self.timeline.set_rate(profile.info.sample_rate_hz);
        out.keep_audio_of(setup.output.sample_rate_hz);
        out.reply(&ServerFrame::Created {
            session_id: self.identity.id.as_str(),
            resume_token: self.identity.resume_token.as_deref(),
            resume_window_s: self.state.config().resume_window.as_secs(),
            instance: self.state.config().instance.as_deref(),
            model: &profile.model,
            sample_rate: setup.output.sample_rate_hz,
            input_sample_rate: setup.input_rate,
            channels: 1,
            encoding: setup.output.format.encoding,
        });
        self.setup = Some(Arc::clone(&setup));
        Ok(setup)
    }

    /// Appends an answer to the conversation: what was heard of it, or all of it if it was not interrupted.
    fn record(&mut self, turn: u64, heard: Option<usize>, finish: &Finish) {
        let Some(spoken) = self.timeline.get_mut(turn) else { return };
        let mut emissions = std::mem::take(&mut spoken.detail.emissions);
        emissions.truncate(heard.unwrap_or(emissions.len()));
        spoken.is_complete = true;
        if !emissions.is_empty() || !finish.is_interrupted {
            spoken.detail.is_recorded = true;
            self.conversation.answer(emissions, finish.stats.prompt_tokens);
        }
    }

    /// Tells what was heard, and forgets the rest.
    fn interrupt(&mut self, interrupt: Interrupt, out: &mut Outbox) -> Result<(), ApiError> {
        let heard = self.timeline.heard(interrupt.number, interrupt.played_ms, Instant::now())?;
        let current = heard.as_ref().and_then(|heard| Some((heard, self.timeline.get(heard.index)?)));
        let (text_spoken, text_remaining) =
            current.map_or(("", ""), |(heard, spoken)| spoken.text.split_at(heard.text_end));
        out.frame(&ServerFrame::Interrupted {
            turn: current.map(|(_, spoken)| spoken.number),
            played_ms: heard.as_ref().map_or(0, |heard| heard.played_ms),
            text_spoken,
            text_remaining: text_remaining.trim_start(),
            approximate: heard.as_ref().is_some_and(|heard| heard.is_approximate),
        });
        count_interrupt(Task::Chat);
        if let Some((heard, spoken)) = current {
            let kept = spoken.detail.heard(heard.samples, spoken.is_complete);
            let behind = || self.timeline.behind(heard.index);
            let later = behind().filter(|spoken| spoken.detail.is_recorded).count();
            if !spoken.is_complete {
                self.heard_emissions = Some(kept);
            } else if behind().any(|spoken| !spoken.is_complete) {
                self.heard_emissions = Some(0);
            }
            if spoken.detail.is_recorded {
                self.conversation.keep_heard(later, kept);
            }
        }
        self.timeline.forget_complete();
        Ok(())
    }

    fn enqueue(&mut self, input: UserInput) -> Result<(), ApiError> {
        if self.waiting.len() >= MAX_WAITING {
            let message = format!("{MAX_WAITING} turns wait already; interrupt, or wait for turn.done");
            return Err(ApiError::overloaded(message));
        }
        self.waiting.push_back(input);
        Ok(())
    }
}

/// Bytes of the samples of a message.
fn sample_bytes(message: &Message) -> usize {
    match message {
        Message::Text(_) | Message::Result { .. } => 0,
        Message::Recording(samples) => size_of_val(&**samples),
    }
}

fn recorded_bytes(conversation: &Conversation) -> usize {
    let of = |turn: &Turn| match turn {
        Turn::User(messages) => messages.iter().map(sample_bytes).sum::<usize>(),
        Turn::Model(_) | Turn::Told(_) => 0,
    };
    conversation.turns().iter().map(of).sum()
}

/// Decodes what the model takes as input, and takes `memory` for it.
async fn prepare(
    engine: Engine,
    input: UserInput,
    mut memory: UploadMemory,
    session_id: RequestId,
) -> Result<Prepared, ApiError> {
    let message = match input {
        UserInput::Text(text) => Message::Text(text),
        UserInput::Audio(file) => {
            let samples = engine.decode_message(AudioInput::File(file)).await;
            let error = |error| ApiError::from_engine(error, &engine.profile().model, &session_id);
            Message::Recording(samples.map_err(error)?)
        }
    };
    memory.take(sample_bytes(&message))?;
    Ok((message, memory))
}
