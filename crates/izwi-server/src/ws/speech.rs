//! The protocol of `/v1/audio/speech/stream`: text in, audio out, in order.
//!
//! Choices that the protocol leaves open:
//! - `session.created` answers `session.config`, or the first text of a session without one.
//! - `word` frames, where asked for, stand before the `audio.chunk` of the chunk in which the word starts.
//! - `audio.start` is sent with the first audio of an utterance; an utterance that is refused is an `error` alone.
//! - With `response_format: "wav"` the first binary frame of an utterance starts with a 44-byte header of a stream of
//!   unknown length; `samples` counts audio only. It counts at the `sample_rate` of `session.created` in every format.
//! - Text is synthesised at `input.flush` and `input.done`, and early: where the model appends text, from the first word
//!   on, else up to the last complete sentence once there is enough.
//! - Where the model appends text, what arrives joins the utterance that is being spoken, up to a flush or a sentence that
//!   makes it long enough. If the text runs out, the utterance waits for `text_timeout_s`.
//! - `interrupt` ends the current utterance with the reason `interrupted` and drops text that is not synthesised yet. An
//!   utterance without audio so far ends without a frame. `interrupted` tells what the listener heard, and the text that
//!   was not. Text that comes later is synthesised.
//! - Any text frame and a WebSocket ping keep an idle session open; answers to the server's pings do not.

mod parse;
mod text_queue;

use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::chunk::ChunkLengths;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{Engine, RequestId, StreamingOutput, Task, TextInput};
use izwi_types::TextNotes;
use tokio::time::Instant;

pub use self::text_queue::{SpokenText, TextQueue};
use super::frame;
use super::outbox::Outbox;
use super::playback::Timeline;
use super::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use crate::chunking::ChunkSizes;
use crate::dto::session::{
    AudioChunk, AudioPause, ChunkOf, ClientFrame, ConfigFields, Interrupt, ServerFrame,
};
use crate::dto::speech::{VoiceRef, WordTimes};
use crate::encoding::{self, EncodedChunks, OutputFormat};
use crate::error::ApiError;
use crate::metrics::count_interrupt;
use crate::registry::Lease;
use crate::speech::{Cloning, ResolvedSpeechOptions, VoiceChoice, voice_beside_recording};
use crate::state::AppState;
use crate::upload::check_payload;
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
    output: OutputFormat,
    chunks: ChunkSizes,
    /// Whether the client wants to know when words are spoken.
    word_times: bool,
    /// Lengths of the chunks as they are sent, at the rate of the output.
    sent_chunks: ChunkLengths,
}

pub(super) struct Utterance {
    setup: Arc<Setup>,
    number: u64,
    encoded: EncodedChunks,
    /// Where its text comes from, if the model appends text.
    text_input: Option<TextInput>,
}

impl Protocol for Speech {
    const KIND: &'static str = "speech";
    type Frame = ClientFrame;
    type Model = Model;
    type Reply = Utterance;
    type Opening = ();

    fn new(state: &AppState, identity: Identity, (): ()) -> Self {
        Self {
            state: state.clone(),
            identity,
            setup: None,
            text: TextQueue::new(state.config()),
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

    fn is_resume(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Resume(_))
    }

    fn is_immediate(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Ping)
    }

    fn load_model(&self, frame: &ClientFrame) -> Option<BoxFuture<'static, Result<Model, ApiError>>> {
        if self.setup.is_some() || self.text.check_open().is_err() {
            return None;
        }
        let wanted = match frame {
            ClientFrame::Config(config) | ClientFrame::Speak { config, .. } => Wanted::of(config),
            ClientFrame::Text(_) => Wanted::default(),
            _ => return None,
        };
        Some(load(self.state.clone(), self.identity.id.clone(), wanted).boxed())
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
                self.tell();
            }
            ClientFrame::Flush => {
                self.text.check_open()?;
                self.text.flush();
                self.tell();
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
                self.text.push_last(&text)?;
                self.tell();
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
        let text = self.text.next_utterance()?;
        let encoded = match setup.output.chunks(setup.sent_chunks) {
            Ok(encoded) => encoded,
            Err(error) => {
                self.text.ended();
                return Some(Err(error));
            }
        };
        let (setup, number) = (Arc::clone(setup), self.next_utterance);
        self.next_utterance += 1;
        self.timeline.begin(number, text.text.clone(), ());
        self.tell();
        let text_input = text.input.clone();
        let request = setup.chunks.of(text.request(&setup.options));
        let engine = Engine::clone(&setup.engine);
        Some(Ok(Job::new(engine, request, Utterance { setup, number, encoded, text_input })))
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
        let markup = utterance.text_input.as_ref().map(TextInput::take_markup).unwrap_or_default();
        for notes in [&chunk.notes, &TextNotes { markup, ..TextNotes::default() }] {
            let model = &utterance.setup.engine.profile().model;
            for note in self.state.notes_on_text(model, notes) {
                out.frame(&ServerFrame::Warning {
                    utterance: utterance.number,
                    code: note.code,
                    message: &note.message,
                    characters: &note.subject,
                });
            }
        }
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
        let (chunks, pauses) = (utterance.encoded.encode(&chunk)?, chunk.pauses);
        if let Some(spoken) = self.timeline.get_mut(utterance.number) {
            for word in chunk.words.iter().filter(|_| utterance.setup.word_times) {
                let word = WordTimes::new(word, &spoken.text, chunk.sample_rate);
                out.frame(&ServerFrame::Word { utterance: utterance.number, word });
            }
            spoken.send(chunk.samples.len(), chunk.words, Instant::now());
            spoken.is_complete = chunk.is_final;
        }
        for chunk in chunks {
            let frame = AudioChunk::new(ChunkOf::Utterance(utterance.number), &chunk);
            out.audio(frame, chunk.bytes, utterance.setup.output.format.sample_bytes);
        }
        if let Some(expected) = pauses {
            out.frame(&AudioPause::new(ChunkOf::Utterance(utterance.number), expected));
        }
        Ok(())
    }

    fn end(&mut self, utterance: Utterance, outcome: Outcome, out: &mut Outbox) {
        self.text.ended();
        let Outcome::Finished(finish) = outcome else {
            self.timeline.remove(utterance.number);
            return;
        };
        out.frame(&ServerFrame::AudioDone {
            utterance: utterance.number,
            samples: utterance.encoded.sent_samples(),
            duration_s: finish.duration_s(utterance.encoded.generated_samples()),
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
        self.tell();
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
    /// Tells the timeline the text of the utterance that is being spoken as it arrives: the last one.
    fn tell(&mut self) {
        let last = self.next_utterance.saturating_sub(1);
        if let (Some(text), Some(spoken)) = (self.text.spoken(), self.timeline.get_mut(last)) {
            text.clone_into(&mut spoken.text);
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
        let sample_rate = setup.output.sample_rate_hz;
        self.timeline.set_rate(setup.engine.profile().info.sample_rate_hz);
        out.keep_audio_of(sample_rate);
        out.reply(&ServerFrame::Created {
            session_id: self.identity.id.as_str(),
            resume_token: self.identity.resume_token.as_deref(),
            resume_window_s: self.state.config().resume_window.as_secs(),
            instance: self.state.config().instance.as_deref(),
            sample_rate,
            channels: 1,
            encoding: setup.output.format.encoding,
            ignored_fields: setup.options.ignored(),
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
        Ok(())
    }
}

impl Setup {
    /// Checks the fields against the model.
    fn resolve(fields: ConfigFields, Model { engine, voice }: Model) -> Result<Self, ApiError> {
        let format = encoding::for_session(fields.response_format.as_deref())?;
        let rate_hz = engine.profile().info.sample_rate_hz;
        let output = OutputFormat::resolve(format, fields.sample_rate, fields.bit_rate, rate_hz)?;
        let chunks_at = |rate_hz| ChunkSizes::resolve(fields.chunk_ms, fields.first_chunk_ms, rate_hz);
        let (chunks, sent_chunks) = (chunks_at(rate_hz)?, chunks_at(output.sample_rate_hz)?.lengths());
        let choice = VoiceChoice { voice, cloning: Cloning::default() };
        let priority = fields.priority.as_deref();
        let options = ResolvedSpeechOptions::resolve(fields.options, choice, priority, &engine)?;
        let word_times = fields.word_times.unwrap_or(false);
        Ok(Self { engine, options, output, chunks, sent_chunks, word_times })
    }
}

/// The model that a configuration asks for, and the voice.
#[derive(Default)]
struct Wanted {
    model: Option<String>,
    voice: Option<String>,
    cloning: Cloning,
}

impl Wanted {
    fn of(config: &ConfigFields) -> Self {
        let (ref_audio, ref_text) = (config.ref_audio.clone(), config.ref_text.clone());
        Self {
            model: config.model.clone(),
            voice: config.voice.clone().map(VoiceRef::into_id),
            cloning: Cloning::new(ref_audio, ref_text, config.x_vector_only_mode),
        }
    }
}

/// Waits for a model, and looks the voice up or makes it of a recording, once for the whole session.
async fn load(state: AppState, session: RequestId, wanted: Wanted) -> Result<Model, ApiError> {
    let engine = state.lease(wanted.model.as_deref(), Task::Tts).await?;
    let name = voice_beside_recording(wanted.voice, wanted.cloning.has_recording())?;
    let recording = wanted.cloning.ref_audio.as_deref().unwrap_or_default();
    check_payload("ref_audio", recording, state.config().max_upload_bytes)?;
    let voice = match wanted.cloning.into_voice(&engine, &session).await? {
        Some(voice) => Some(voice),
        None => voices::find(name.as_deref(), &engine, state.voices()).await?,
    };
    Ok(Model { engine, voice })
}
