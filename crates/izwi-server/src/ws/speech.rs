//! One session that speaks: the loop that reads and speaks, and the state it changes.

use std::ops::ControlFlow;

use axum::extract::ws::{WebSocket, close_code};
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_core::engine::types::audio_duration;
use izwi_core::engine::{Engine, FinishReason, RequestId, StreamingOutput, TaskType};
use tokio::sync::mpsc;

use super::arrival::Arrival;
use super::chunking;
use super::link::{Ending, Link, MAX_QUEUED, Signal};
use super::parse::parse;
use super::script::Script;
use crate::dto::session::{ClientFrame, ConfigFields, ServerFrame};
use crate::dto::speech::VoiceRef;
use crate::encoding::Encoding;
use crate::error::ApiError;
use crate::registry::Lease;
use crate::speech::{Cloning, Manner, SpeechOptions, begin};
use crate::state::AppState;
use crate::voices;

type Chunks = mpsc::Receiver<StreamingOutput>;
type Begun = Result<(StreamingOutput, Chunks), ApiError>;

/// A model and the voice of it that was asked for.
struct Cast {
    engine: Lease,
    /// `None` where the model has no voices.
    voice: Option<voices::Voice>,
}

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
    Signal(Signal),
    Spoken(Box<Spoken>),
    Arrived,
}

struct Session {
    link: Link,
    arrival: Arrival<ClientFrame, Cast>,
    setup: Option<Setup>,
    script: Script,
    voice: Voice,
    /// Number of the utterance being spoken, or of the next.
    utterance: u64,
}

/// Serves one session until it is done, fails or its client leaves.
pub(super) async fn run(state: AppState, id: RequestId, socket: WebSocket) {
    let config = state.config();
    let script = Script::new(config.max_input_chars, config.max_session_chars);
    let link = Link::new(state, id, socket);
    let session = Session {
        link,
        arrival: Arrival::default(),
        setup: None,
        script,
        voice: Voice::Silent,
        utterance: 0,
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
        loop {
            self.speak_next();
            if self.voice.is_silent() && self.script.is_over() {
                self.link.wire.frame(&ServerFrame::Done);
                let ending = self.link.ending();
                return self.link.close(ending).await;
            }
            let event = self.next_event().await;
            match self.handle(event) {
                ControlFlow::Continue(()) => {}
                ControlFlow::Break(Some(ending)) => {
                    self.voice = Voice::Silent;
                    return self.link.close(ending).await;
                }
                ControlFlow::Break(None) => return,
            }
        }
    }

    async fn next_event(&mut self) -> Event {
        let wire_is_idle = self.link.wire.is_idle();
        let hears = self.arrival.waiting() < MAX_QUEUED;
        let is_silent = self.voice.is_silent();
        let arrives = self.arrival.is_under_way();
        tokio::select! {
            () = self.arrival.settled(), if arrives => Event::Arrived,
            signal = self.link.next(hears, is_silent && !arrives) => Event::Signal(signal),
            spoken = self.voice.next(), if wire_is_idle && !is_silent => Event::Spoken(Box::new(spoken)),
        }
    }

    /// Breaks with how to close, or with `None` when nobody is there to be told.
    fn handle(&mut self, event: Event) -> ControlFlow<Option<Ending>> {
        match event {
            Event::Spoken(spoken) => {
                return match *spoken {
                    Spoken::Begun(begun) => self.begun(begun),
                    Spoken::Chunk(chunk) => self.relay(chunk),
                };
            }
            Event::Arrived => self.catch_up(),
            Event::Signal(Signal::Over(ending)) => return ControlFlow::Break(ending),
            Event::Signal(Signal::Moved) => {}
            Event::Signal(Signal::Text(text)) => {
                let outcome = parse(&text).and_then(|frame| self.accept(frame));
                self.answer(outcome);
            }
            Event::Signal(Signal::Binary(_)) => self.link.wire.error(&ApiError::BinaryFrame),
            Event::Signal(Signal::Refused(error)) => self.link.wire.error(&error),
            Event::Signal(Signal::Draining) => {
                if self.script.abandon() | self.arrival.abandon() {
                    self.link.wire.error(&ApiError::Draining);
                }
            }
        }
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
            self.arrival.begin(cast(self.link.state.clone(), model, voice).boxed());
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
            self.answer(outcome);
        }
        for frame in frames {
            let outcome = self.accept(frame);
            self.answer(outcome);
        }
    }

    fn answer(&mut self, outcome: Result<(), ApiError>) {
        if let Err(error) = outcome {
            self.link.wire.error(&error);
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
            ClientFrame::Ping => self.link.wire.frame(&ServerFrame::Pong),
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
        let chunk_samples = chunking::samples(fields.chunk_ms, engine.profile().sample_rate)?;
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
        self.link.wire.frame(&ServerFrame::Created {
            session_id: self.link.id.as_str(),
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
        tracing::debug!(session = %self.link.id, request = %request.id, utterance = self.utterance, "utterance begins");
        let engine = Engine::clone(&setup.engine);
        let limit = self.link.state.config().first_audio_timeout;
        self.voice = Voice::Beginning(Box::pin(async move { begin(&engine, request, limit).await }));
    }

    fn begun(&mut self, begun: Begun) -> ControlFlow<Option<Ending>> {
        match begun {
            Ok((first, chunks)) => {
                let request = first.request_id.clone();
                self.voice = Voice::Speaking(Utterance { chunks, request, sent: 0, is_interrupted: false });
                if let Some(setup) = &self.setup {
                    self.link.wire.frame(&ServerFrame::AudioStart {
                        utterance: self.utterance,
                        voice: setup.manner.voice_name(),
                        model: &setup.engine.profile().model,
                    });
                }
                self.relay(Some(first))
            }
            Err(error) => {
                self.link.wire.error(&error);
                self.end_utterance();
                match error {
                    ApiError::Draining => {
                        self.link.note_draining();
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
            self.link.wire.error(&ApiError::CutOff);
            return ControlFlow::Break(Some((close_code::POLICY, "cut off")));
        };
        if !chunk.samples.is_empty() && !utterance.is_interrupted {
            utterance.sent += chunk.samples.len() as u64;
            self.link.wire.frame(&ServerFrame::AudioChunk {
                utterance: self.utterance,
                seq: chunk.sequence,
                sample_offset: chunk.sample_offset,
                samples: chunk.samples.len(),
                is_final: chunk.is_final,
            });
            let is_first = chunk.sequence == 0;
            self.link.wire.audio(setup.encoding.encode(&chunk.samples, chunk.sample_rate, is_first));
        }
        let Some(stats) = chunk.stats.filter(|_| chunk.is_final) else { return ControlFlow::Continue(()) };
        if stats.finish_reason == FinishReason::Error {
            let details = stats.error.as_deref().unwrap_or("(no details)");
            self.link.wire.error(&ApiError::internal(details, &chunk.request_id));
        }
        // The engine may have been done before it was told.
        let reason = match stats.finish_reason {
            FinishReason::Stop | FinishReason::Length if utterance.is_interrupted => {
                FinishReason::Interrupted
            }
            reason => reason,
        };
        self.link.wire.frame(&ServerFrame::AudioDone {
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
        self.link.touch();
    }
}
