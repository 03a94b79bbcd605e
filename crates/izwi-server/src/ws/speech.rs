//! The protocol of `/v1/audio/speech/stream`: text in, audio out, in order.
//!
//! Choices that the protocol leaves open:
//! - `session.created` answers `session.config`, or the first text of a session without one.
//! - `word` frames, where asked for, stand before the `audio.chunk` of the chunk in which the word starts.
//! - `audio.start` is sent with the first audio of an utterance; an utterance that is refused is an `error` alone.
//! - With `response_format: "wav"` the first binary frame of an utterance starts with a 44-byte header of a stream of
//!   unknown length; `samples` counts audio only.
//! - Text is synthesised at `input.flush` and `input.done`, and early: where the model appends text, from the first word
//!   on, else up to the last complete sentence once there is enough.
//! - Where the model appends text, what arrives joins the utterance that is being spoken, up to a flush or a sentence that
//!   makes it long enough. If the text runs out, the utterance waits for `text_timeout_s`.
//! - `interrupt` ends the current utterance with the reason `interrupted` and drops text that is not synthesised yet. An
//!   utterance without audio so far ends without a frame. `interrupted` tells what the listener heard, and the text that
//!   was not. Text that comes later is synthesised.
//! - Any text frame and a WebSocket ping keep an idle session open; answers to the server's pings do not.

mod live_text;
mod parse;
mod text_queue;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::{BoxFuture, ready};
use izwi_audio::encode::{EncodeError, EncoderConfig, Format};
use izwi_core::engine::{Engine, EngineCoreRequest, StreamingOutput, Task, TextInput};
use tokio::time::Instant;

use self::live_text::LiveText;
use self::text_queue::{NextText, TextQueue};
use super::frame;
use super::outbox::Outbox;
use super::playback::Timeline;
use super::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use crate::chunking::ChunkSizes;
use crate::dto::session::{AudioChunk, ChunkOf, ClientFrame, ConfigFields, Interrupt, ServerFrame};
use crate::dto::speech::{VoiceRef, WordTimes};
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
    /// The utterance that is spoken while its text arrives.
    live: Option<LiveText>,
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
    /// Whether the client wants to know when words are spoken.
    word_times: bool,
}

pub(super) struct Utterance {
    setup: Arc<Setup>,
    number: u64,
    encoded: EncodedUtterance,
    /// Where its text comes from, if the model appends text.
    text_input: Option<TextInput>,
    sent_samples: u64,
}

impl Protocol for Speech {
    const KIND: &'static str = "speech";
    type Frame = ClientFrame;
    type Model = Model;
    type Input = String;
    type Reply = Utterance;
    type Opening = ();

    fn new(state: &AppState, identity: Identity, (): ()) -> Self {
        let config = state.config();
        Self {
            state: state.clone(),
            identity,
            setup: None,
            text: TextQueue::new(config.max_input_chars, config.max_session_chars),
            timeline: Timeline::new("utterance"),
            live: None,
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
                self.feed();
            }
            ClientFrame::Flush => {
                self.text.check_open()?;
                self.flush();
            }
            ClientFrame::Done => {
                self.text.check_open()?;
                self.close_input();
            }
            ClientFrame::Speak { text, config } => {
                self.text.check_whole(&text)?;
                if self.setup.is_none() || !config.is_empty() {
                    self.configure(config, model, out)?;
                }
                if self.live.is_some() {
                    self.text.push(&text)?;
                    self.close_input();
                } else {
                    self.text.push_last(&text)?;
                }
            }
            ClientFrame::Ping => out.reply(&ServerFrame::Pong),
            ClientFrame::Ack(ack) => {
                let played = self.timeline.report(ack.number, ack.played_ms, Instant::now())?;
                return Ok(Action::played(played));
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
        let (text, text_input, is_open) = match text {
            NextText::Whole(text) => (text, None, false),
            NextText::Complete(text) => (text, Some(TextInput::new()), false),
            NextText::Start(text) => (text, Some(TextInput::new()), true),
        };
        let config = EncoderConfig::streamed(setup.engine.profile().info.sample_rate_hz);
        let encoded = match EncodedUtterance::with(setup.format, config) {
            Ok(encoded) => encoded,
            Err(error) => return Some(Err(error)),
        };
        let (setup, number) = (Arc::clone(setup), self.next_utterance);
        self.next_utterance += 1;
        self.timeline.begin(number, text.clone(), ());
        let engine = Engine::clone(&setup.engine);
        match &text_input {
            Some(input) if is_open => self.live = Some(LiveText::new(input.clone(), &text)),
            // A text input without more to come always ends.
            Some(input) => drop(input.finish()),
            None => {}
        }
        self.feed();
        let utterance = Utterance { setup, number, encoded, text_input, sent_samples: 0 };
        Some(Ok(Job { engine, input: ready(Ok(text)).boxed(), reply: utterance }))
    }

    fn request(&mut self, utterance: &Utterance, text: String) -> EngineCoreRequest {
        let Setup { options, chunks, .. } = &*utterance.setup;
        let request = chunks.of(options.request(text));
        match &utterance.text_input {
            Some(input) => request.with_text_input(input.clone()),
            None => request,
        }
    }

    fn number(utterance: &Utterance) -> u64 {
        utterance.number
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
                prebuffer_ms: chunk
                    .prediction
                    .map_or(0, |prediction| prediction.prebuffer.as_millis() as u64),
                predicted_rtf: chunk.prediction.map(|prediction| prediction.rtf),
            });
        }
        let audio = utterance.encoded.encode(&chunk)?;
        let samples = chunk.samples.len();
        if let Some(spoken) = self.timeline.get_mut(utterance.number) {
            for word in chunk.words.iter().filter(|_| utterance.setup.word_times) {
                let word = WordTimes::new(word, &spoken.text, chunk.sample_rate);
                out.frame(&ServerFrame::Word { utterance: utterance.number, word });
            }
            spoken.send(samples, chunk.words, Instant::now());
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
        self.live = None;
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
        self.live = None;
        self.text.clear()
    }

    fn close_input(&mut self) {
        self.flush();
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
    /// Gives text that has arrived to the utterance that is being spoken, if it takes any.
    fn feed(&mut self) {
        let Some(mut live) = self.live.take() else { return };
        let has_ended = self.text.feed(&mut live);
        self.tell(&live);
        self.live = Some(live).filter(|_| !has_ended);
    }

    /// Ends the utterance that is being spoken as it arrives, or makes one of the buffered text.
    fn flush(&mut self) {
        match self.live.take() {
            Some(mut live) => {
                self.text.flush_into(&mut live);
                self.tell(&live);
            }
            None => self.text.flush(),
        }
    }

    /// Tells the timeline the text of the utterance that is being spoken as it arrives: the last one.
    fn tell(&mut self, live: &LiveText) {
        let last = self.next_utterance.saturating_sub(1);
        if let Some(spoken) = self.timeline.get_mut(last) {
            live.text().clone_into(&mut spoken.text);
        }
    }

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
        if setup.options.appends_text(&setup.engine) {
            self.text.set_live();
        }
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
        self.live = None;
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
        let word_times = fields.word_times.unwrap_or(false);
        Ok(Self { engine, options, format, chunks, word_times })
    }
}

/// Waits for a model and looks the voice up.
async fn load(state: AppState, model: Option<String>, voice: Option<String>) -> Result<Model, ApiError> {
    let engine = state.lease(model.as_deref(), Task::Tts).await?;
    let voice = voices::find(voice.as_deref(), &engine, state.voices()).await?;
    Ok(Model { engine, voice })
}
