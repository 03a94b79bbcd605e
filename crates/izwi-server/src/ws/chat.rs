//! The protocol of `/v1/audio/chat/stream`: a spoken conversation, text or audio in, text and audio out.
//!
//! Choices of the protocol:
//! - Each `input.text`, and each `input.audio.commit` with the binary frames before it, is a turn of the user; the model
//!   answers them in order. A few may wait while it answers.
//! - Binary frames are 16-bit little-endian mono PCM at `input_sample_rate`, by default the model's input rate.
//!   `input.audio.clear` drops those that were not committed.
//! - `session.created` answers `session.config`, or the first input of a session without one.
//! - `interrupt` ends the answer with the reason `interrupted` and drops turns that wait, not audio that is not committed.
//!   What was delivered whole stays in the conversation; a turn without any answer is sent again with the next.
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
    AudioInput, Conversation, Emission, Engine, EngineCoreRequest, FinishReason, Message, RequestId,
    StreamingOutput, Task,
};

use self::recording::Recording;
use self::setup::Setup;
use super::frame;
use super::outbox::Outbox;
use super::protocol::{Action, ClientMessage, Job, Outcome, Protocol};
use crate::dto::chat::{ClientFrame, ConfigFields, ServerFrame};
use crate::encoding::EncodedUtterance;
use crate::error::ApiError;
use crate::registry::Lease;
use crate::speech::check_text;
use crate::state::AppState;

/// Turns that may wait while the model answers.
const MAX_WAITING: usize = 4;

/// State of a session.
pub(super) struct Chat {
    state: AppState,
    session_id: RequestId,
    setup: Option<Arc<Setup>>,
    /// Audio that is not committed.
    recording: Recording,
    waiting: VecDeque<UserInput>,
    is_closed: bool,
    conversation: Conversation,
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

/// The model's answer to one turn, as far as it was delivered.
pub(super) struct Answer {
    setup: Arc<Setup>,
    turn: u64,
    encoded: EncodedUtterance,
    text: String,
    sent_chunks: u64,
    sent_samples: u64,
    /// What was delivered whole.
    emissions: Vec<Emission>,
}

impl Protocol for Chat {
    type Frame = ClientFrame;
    type Model = Lease;
    type Input = Message;
    type Reply = Answer;

    fn new(state: &AppState, session_id: &RequestId) -> Self {
        Self {
            state: state.clone(),
            session_id: session_id.clone(),
            setup: None,
            recording: Recording::default(),
            waiting: VecDeque::new(),
            is_closed: false,
            conversation: Conversation::new(),
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
                self.check_open()?;
                check_text("text", &text, self.state.config().max_input_chars)?;
                self.configured(model, out)?;
                self.enqueue(UserInput::Text(text))?;
            }
            ClientFrame::Audio(pcm) => {
                self.check_open()?;
                let setup = self.configured(model, out)?;
                self.recording.push(&pcm, setup.input_rate, setup.engine.config().max_turn_duration)?;
            }
            ClientFrame::Commit => {
                self.check_open()?;
                let Some(setup) = &self.setup else { return Err(recording::empty()) };
                let file = self.recording.take(setup.input_rate, setup.engine.config().max_turn_duration)?;
                self.enqueue(UserInput::Audio(file))?;
            }
            ClientFrame::Clear => self.recording = Recording::default(),
            ClientFrame::Done => {
                self.check_open()?;
                self.close_input();
            }
            ClientFrame::Ping => out.frame(&ServerFrame::Pong),
            // A report of the client; nothing here depends on it.
            ClientFrame::PlaybackAck => {}
            ClientFrame::Interrupt => return Ok(Action::Interrupt),
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let setup = self.setup.as_ref()?;
        let input = self.waiting.pop_front()?;
        let encoded = match EncodedUtterance::new(setup.format, setup.engine.profile().info.sample_rate_hz) {
            Ok(encoded) => encoded,
            Err(error) => return Some(Err(error)),
        };
        self.forgotten += self.conversation.truncate(setup.engine.config().conversation_limits());
        let engine = Engine::clone(&setup.engine);
        let answer = Answer {
            setup: Arc::clone(setup),
            turn: self.next_turn,
            encoded,
            text: String::new(),
            sent_chunks: 0,
            sent_samples: 0,
            emissions: Vec::new(),
        };
        self.next_turn += 1;
        let input = prepare(engine.clone(), input, self.session_id.clone()).boxed();
        Some(Ok(Job { engine, input, reply: answer }))
    }

    fn request(&mut self, answer: &Answer, message: Message) -> EngineCoreRequest {
        self.conversation.ask(vec![message]);
        answer.setup.request(self.conversation.clone())
    }

    fn deliver(
        &mut self,
        answer: &mut Answer,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let turn = answer.turn;
        if let Some(delta) = &chunk.text {
            answer.text.push_str(delta);
            out.frame(&ServerFrame::TextDelta { turn, delta });
        }
        if !chunk.samples.is_empty() {
            let audio = answer.encoded.encode(&chunk)?;
            out.frame(&ServerFrame::AudioChunk {
                turn,
                seq: answer.sent_chunks,
                sample_offset: answer.sent_samples,
                samples: chunk.samples.len(),
                is_final: chunk.is_final,
            });
            out.binary(audio);
            answer.sent_chunks += 1;
            answer.sent_samples += chunk.samples.len() as u64;
        }
        answer.emissions.extend(chunk.emissions);
        Ok(())
    }

    fn end(&mut self, answer: Answer, outcome: Outcome, out: &mut Outbox) {
        let (rtf, ttfa_ms, duration_s, reason) = match outcome {
            Outcome::Failed => return self.conversation.withdraw(),
            Outcome::Cancelled => (0.0, None, 0.0, FinishReason::Interrupted),
            Outcome::Finished(finish) => {
                if !answer.emissions.is_empty() || !finish.is_interrupted {
                    self.conversation.answer(answer.emissions, finish.stats.prompt_tokens);
                }
                let duration_s = finish.duration_s(answer.sent_samples);
                (finish.stats.rtf(), finish.ttfa_ms(), duration_s, finish.reason)
            }
        };
        out.frame(&ServerFrame::TurnDone {
            turn: answer.turn,
            text: &answer.text,
            samples: answer.sent_samples,
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
    fn check_open(&self) -> Result<(), ApiError> {
        if self.is_closed {
            return Err(ApiError::OutOfOrder("the session has ended already; open another session"));
        }
        Ok(())
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
        self.check_open()?;
        let setup = Arc::new(Setup::resolve(fields, model.unwrap_or(Err(frame::NO_MODEL))?)?);
        let profile = setup.engine.profile();
        out.frame(&ServerFrame::Created {
            session_id: self.session_id.as_str(),
            model: &profile.model,
            sample_rate: profile.info.sample_rate_hz,
            input_sample_rate: setup.input_rate,
            channels: 1,
            encoding: setup.format.encoding,
        });
        self.setup = Some(Arc::clone(&setup));
        Ok(setup)
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

/// Decodes what the model takes as input.
async fn prepare(engine: Engine, input: UserInput, session_id: RequestId) -> Result<Message, ApiError> {
    match input {
        UserInput::Text(text) => Ok(Message::Text(text)),
        UserInput::Audio(file) => {
            let samples = engine.decode_message(AudioInput::File(file)).await;
            let error = |error| ApiError::from_engine(error, &engine.profile().model, &session_id);
            samples.map(Message::Recording).map_err(error)
        }
    }
}
