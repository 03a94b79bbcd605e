//! The protocol of `/v1/audio/speech/stream`: text in, audio out, in order.
//!
//! Choices that the protocol leaves open:
//! - `session.created` answers `session.config`, or the first text of a session without one.
//! - `audio.start` is sent with the first audio of an utterance; an utterance that is refused is an `error` alone.
//! - With `response_format: "wav"` the first binary frame of an utterance starts with a 44-byte header of a stream of
//!   unknown length; `samples` counts audio only.
//! - Text is synthesised at `input.flush` and `input.done`, and early up to the last complete sentence once there is
//!   enough.
//! - `interrupt` ends the current utterance with the reason `interrupted` and drops text that is not synthesised yet. An
//!   utterance without audio so far ends without a frame. `interrupted` tells what the listener heard, and the text that
//!   was not. Text that comes later is synthesised.
//! - Any text frame and a WebSocket ping keep an idle session open; answers to the server's pings do not.

mod parse;
mod text_queue;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use izwi_audio::encode::{EncodeError, Format};
use izwi_core::engine::{Engine, EngineCoreRequest, StreamingOutput, Task};
use tokio::time::Instant;

use self::text_queue::TextQueue;
use super::frame;
use super::outbox::Outbox;
use super::playback::Timeline;
use super::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use crate::chunking::ChunkSizes;
use crate::dto::session::{
    AudioChunk, ChunkOf, ClientFrame, ConfigFields, Interrupt, ServerFrame,
};
use crate::dto::speech::VoiceRef;
use crate::encoding::{self, EncodedUtterance};
use crate::error::ApiError;
use crate::metrics::count_interrupt;
use crate::registry::Lease;
use crate::speech::{Cloning, ResolvedSpeechOptions, VoiceChoice};
use crate::state::AppState;
use crate::voices::{self, Voice};

/// State of a session.
pub(super) struct Speech {
    state: AppState,
    identity: Identity,
    setup: Option<Arc<Setup>>,
    text: TextQueue,
    /// Utterances that may not have been heard.
    timeline: Timeline<()>,
    /// Number of the next utterance.
    next_utterance: u64,
}

/// A model, and the requested voice of it.
pub(super) struct Model {
    engine: Lease,
    /// `None` if the model has no voices.
    voice: Option<Voice>,
}

/// What the session was configured to.
struct Setup {
    engine: Lease,
    options: ResolvedSpeechOptions,
    format: &'static Format,
    chunks: ChunkSizes,
}

pub(super) struct Utterance {
    setup: Arc<Setup>,
    number: u64,
    encoded: EncodedUtterance,
    sent_samples: u64,
}

impl Protocol for Speech {
    const KIND: &'static str = "speech";
    type Frame = ClientFrame;
    type Model = Model;
    type Input = String;
    type Reply = Utterance;

    fn new(state: &AppState, identity: Identity) -> Self {
        let config = state.config();
        Self {
            state: state.clone(),
            identity,
            setup: None,
            text: TextQueue::new(config.max_input_chars, config.max_session_chars),
            timeline: Timeline::new("utterance"),
            next_utterance: 0,
        }
    }

    fn parse(message: ClientMessage) -> Result<ClientFrame, ApiError> {
        match message {
            ClientMessage::Text(text) => parse::parse(&text),
            ClientMessage::Binary(_) => Err(ApiError::BinaryFrame),
        }
    }

    fn is_immediate(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Ping)
    }

    fn load_model(&self, frame: &ClientFrame) -> Option<BoxFuture<'static, Result<Model, ApiError>>> {
        if self.setup.is_some() || self.text.check_open().is_err() {
            return None;
        }
        let (model, voice) = match frame {
            ClientFrame::Config(config) | ClientFrame::Speak { config, .. } => {
                (config.model.clone(), config.voice.clone().map(VoiceRef::into_id))
            }
            ClientFrame::Text(_) => (None, None),
            _ => return None,
        };
        Some(load(self.state.clone(), model, voice).boxed())
    }

    fn receive(
        &mut self,
        frame: ClientFrame,
        model: Option<Result<Model, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        match frame {
            ClientFrame::Config(fields) => self.configure(fields, model, out)?,
            ClientFrame::Text(text) => {
                self.text.check_open()?;
                if self.setup.is_none() {
                    self.configure(ConfigFields::default(), model, out)?;
                }
                self.text.push(&text)?;
            }
            ClientFrame::Flush => {
                self.text.check_open()?;
                self.text.flush();
            }
            ClientFrame::Done => {
                self.text.check_open()?;
                self.text.finish();
            }
            ClientFrame::Speak { text, config } => {
                self.text.check_whole(&text)?;
                if self.setup.is_none() || !config.is_empty() {
                    self.configure(config, model, out)?;
                }
                self.text.push_last(&text)?;
            }
            ClientFrame::Ping => out.reply(&ServerFrame::Pong),
            ClientFrame::Ack(ack) => {
                self.timeline.report(ack.number, ack.played_ms, Instant::now())?;
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
        let text = self.text.next()?;
        let encoded = match EncodedUtterance::new(setup.format, setup.engine.profile().info.sample_rate_hz) {
            Ok(encoded) => encoded,
            Err(error) => return Some(Err(error)),
        };
        let (setup, number) = (Arc::clone(setup), self.next_utterance);
        self.next_utterance += 1;
        self.timeline.begin(number, text.clone(), ());
        let engine = Engine::clone(&setup.engine);
        let utterance = Utterance { setup, number, encoded, sent_samples: 0 };
        Some(Ok(Job { engine, input: ready(Ok(text)).boxed(), reply: utterance }))
    }

    fn request(&mut self, utterance: &Utterance, text: String) -> EngineCoreRequest {
        let Setup { options, chunks, .. } = &*utterance.setup;
        chunks.of(options.request(text))
    }

    fn deliver(
        &mut self,
        utterance: &mut Utterance,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        if chunk.sequence == 0 {
            let setup = &utterance.setup;
            out.frame(&ServerFrame::AudioStart {
                utterance: utterance.number,
                voice: setup.options.voice_name(),
                model: &setup.engine.profile().model,
            });
        }
        let audio = utterance.encoded.encode(&chunk)?;
        let samples = chunk.samples.len();
        if let Some(spoken) = self.timeline.get_mut(utterance.number) {
            spoken.send(samples, chunk.text_marks, Instant::now());
            spoken.is_complete = chunk.is_final;
        }
        if samples > 0 {
            let (seq, of) = (chunk.sequence, ChunkOf::Utterance(utterance.number));
            let frame = AudioChunk::new(of, seq, chunk.sample_offset, samples as u64, chunk.is_final);
            utterance.sent_samples += samples as u64;
            out.audio(frame, audio, utterance.setup.format.sample_bytes);
        }
        Ok(())
    }

    fn end(&mut self, utterance: Utterance, outcome: Outcome, out: &mut Outbox) {
        let Outcome::Finished(finish) = outcome else {
            self.timeline.remove(utterance.number);
            return;
        };
        out.frame(&ServerFrame::AudioDone {
            utterance: utterance.number,
            samples: utterance.sent_samples,
            duration_s: finish.duration_s(utterance.sent_samples),
            rtf: finish.stats.rtf(),
            ttfa_ms: finish.ttfa_ms(),
            finish_reason: finish.reason.label(),
        });
    }

    fn drop_queued(&mut self) -> bool {
        self.text.clear()
    }

    fn close_input(&mut self) {
        self.text.finish();
    }

    fn is_over(&self) -> bool {
        self.text.is_over()
    }

    fn write_done(&self, out: &mut Outbox) {
        out.frame(&ServerFrame::Done);
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        frame::write_error(error, out);
    }
}

impl Speech {
    fn configure(
        &mut self,
        fields: ConfigFields,
        model: Option<Result<Model, ApiError>>,
        out: &mut Outbox,
    ) -> Result<(), ApiError> {
        if self.setup.is_some() {
            return Err(frame::CONFIGURED);
        }
        self.text.check_open()?;
        let setup = Setup::resolve(fields, model.unwrap_or(Err(frame::NO_MODEL))?)?;
        let sample_rate = setup.engine.profile().info.sample_rate_hz;
        self.timeline.set_rate(sample_rate);
        out.keep_audio_of(sample_rate);
        out.reply(&ServerFrame::Created {
            session_id: self.identity.id.as_str(),
            resume_token: self.identity.resume_token.as_deref(),
            resume_window_s: self.state.config().resume_window.as_secs(),
            sample_rate,
            channels: 1,
            encoding: setup.format.encoding,
        });
        self.setup = Some(Arc::new(setup));
        Ok(())
    }

    /// Tells what was heard, and forgets all text that was not.
    fn interrupt(&mut self, interrupt: Interrupt, out: &mut Outbox) -> Result<(), ApiError> {
        let heard = self.timeline.heard(interrupt.number, interrupt.played_ms, Instant::now())?;
        let current = heard.as_ref().and_then(|heard| Some((heard, self.timeline.get(heard.index)?)));
        let (text_spoken, rest) =
            current.map_or(("", ""), |(heard, spoken)| spoken.text.split_at(heard.text_end));
        let behind = heard.iter().flat_map(|heard| self.timeline.behind(heard.index));
        let pieces = std::iter::once(rest.trim()).chain(behind.map(|spoken| spoken.text.as_str()));
        let pieces: Vec<&str> = pieces.chain(self.text.remaining()).filter(|text| !text.is_empty()).collect();
        out.frame(&ServerFrame::Interrupted {
            utterance: current.map(|(_, spoken)| spoken.number),
            played_ms: heard.as_ref().map_or(0, |heard| heard.played_ms),
            text_spoken,
            text_remaining: &pieces.join(" "),
            approximate: heard.as_ref().is_some_and(|heard| heard.is_approximate),
        });
        count_interrupt(Task::Tts);
        self.timeline.clear();
        self.text.clear();
        Ok(())
    }
}

impl Setup {
    /// Checks the fields against the model.
    fn resolve(fields: ConfigFields, Model { engine, voice }: Model) -> Result<Self, ApiError> {
        let format = encoding::for_session(fields.response_format.as_deref())?;
        let rate_hz = engine.profile().info.sample_rate_hz;
        let chunks = ChunkSizes::resolve(fields.chunk_ms, fields.first_chunk_ms, rate_hz)?;
        let choice = VoiceChoice { voice, cloning: Cloning::default() };
        let priority = fields.priority.as_deref();
        let options = ResolvedSpeechOptions::resolve(fields.options, choice, priority, &engine)?;
        Ok(Self { engine, options, format, chunks })
    }
}

/// Waits for a model and looks the voice up.
async fn load(state: AppState, model: Option<String>, voice: Option<String>) -> Result<Model, ApiError> {
    let engine = state.lease(model.as_deref(), Task::Tts).await?;
    let voice = voices::find(voice.as_deref(), &engine, state.voices()).await?;
    Ok(Model { engine, voice })
}
