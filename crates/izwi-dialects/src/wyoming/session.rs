//! The state of one Wyoming connection, as a protocol of the common session driver. Knows no socket.
//!
//! Requests are answered in order, one at a time. An error ends the connection after its event `error`: clients that wait
//! for the end of their request do not read errors, and the reference servers close as well.

use std::cell::Cell;
use std::collections::VecDeque;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{FinishReason, StreamingOutput, Task};
use izwi_server::speech::check_text;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState, Lease};
use serde_json::json;

use super::event::{self, ClientEvent, TranscribeFields, event};
use super::info;
use super::recording::Recording;
use super::speech::{Speaker, Speech};
use super::transcription::Transcription;

/// The most requests that wait on a connection.
const MAX_REQUESTS: usize = 8;

/// State of a connection.
pub(super) struct Session {
    state: AppState,
    /// The program that the client selected, for all its requests.
    program: Option<String>,
    /// How the next recording is to be transcribed.
    transcribe: TranscribeFields,
    recording: Option<(Lease, Recording)>,
    requests: VecDeque<Request>,
    is_generating: bool,
    is_closed: bool,
    /// Whether an error was reported.
    has_failed: Cell<bool>,
}

enum Request {
    Speech(Box<Speech>),
    Transcription(Box<Transcription>),
}

/// What an event needs before it can be handled.
pub(super) enum Model {
    Info(Bytes),
    Speaker(Speaker),
    Listener(Lease),
}

impl Protocol for Session {
    const KIND: &'static str = "wyoming";
    type Frame = ClientEvent;
    type Model = Model;
    type Reply = ();
    type Opening = ();

    fn new(state: &AppState, _identity: Identity, (): ()) -> Self {
        Self {
            state: state.clone(),
            program: None,
            transcribe: TranscribeFields::default(),
            recording: None,
            requests: VecDeque::new(),
            is_generating: false,
            is_closed: false,
            has_failed: Cell::new(false),
        }
    }

    fn parse(message: ClientMessage) -> Result<ClientEvent, ApiError> {
        match message {
            ClientMessage::Binary(event) => ClientEvent::parse(&event),
            ClientMessage::Text(text) => ClientEvent::parse(&Bytes::copy_from_slice(text.as_bytes())),
        }
    }

    fn is_immediate(frame: &ClientEvent) -> bool {
        matches!(frame, ClientEvent::Ping { .. })
    }

    fn load_model(&self, frame: &ClientEvent) -> Option<BoxFuture<'static, Result<Model, ApiError>>> {
        if self.is_ended() {
            return None;
        }
        let state = self.state.clone();
        match frame {
            ClientEvent::Describe => {
                Some(async move { info::describe(state).await.map(Model::Info) }.boxed())
            }
            ClientEvent::Synthesize { voice, seed, .. } | ClientEvent::SynthesizeStart { voice, seed }
                if self.open_speech().is_none() =>
            {
                let loading = Speaker::load(state, self.program.clone(), voice.clone(), *seed);
                Some(async move { loading.await.map(Model::Speaker) }.boxed())
            }
            ClientEvent::AudioStart(_) | ClientEvent::AudioChunk { .. } if self.recording.is_none() => {
                let model = self.transcribe.name.clone().or_else(|| self.program.clone());
                Some(
                    async move { state.lease(model.as_deref(), Task::Asr).await.map(Model::Listener) }
                        .boxed(),
                )
            }
            _ => None,
        }
    }

    fn receive(
        &mut self,
        frame: ClientEvent,
        model: Option<Result<Model, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        // The events after an error belong to requests that are not answered.
        if !self.is_ended() {
            self.handle(frame, model.transpose()?, out)?;
            self.settle(out);
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        if self.has_failed.get() {
            return None;
        }
        let job = match self.requests.front_mut()? {
            Request::Speech(speech) => speech.next()?,
            Request::Transcription(transcription) => Ok(transcription.next()?),
        };
        Some(job.map(|(engine, request)| {
            self.is_generating = true;
            Job::new(engine, request, ())
        }))
    }

    fn deliver(&mut self, (): &mut (), chunk: StreamingOutput, out: &mut Outbox) -> Result<(), EncodeError> {
        match self.requests.front_mut() {
            Some(Request::Speech(speech)) => speech.deliver(&chunk, out)?,
            Some(Request::Transcription(transcription)) => transcription.deliver(&chunk, out),
            None => {}
        }
        Ok(())
    }

    fn end(&mut self, (): (), outcome: Outcome, out: &mut Outbox) {
        self.is_generating = false;
        let is_complete = match outcome {
            Outcome::Finished(finish) => match finish.reason {
                FinishReason::Error | FinishReason::TextTimeout => false,
                FinishReason::Cancelled => {
                    self.write_error(&ApiError::Draining, out);
                    false
                }
                _ => true,
            },
            Outcome::Cancelled | Outcome::Failed => false,
        };
        if !is_complete {
            self.requests.clear();
            return;
        }
        match self.requests.pop_front() {
            Some(Request::Speech(mut speech)) => {
                speech.end_utterance();
                self.requests.push_front(Request::Speech(speech));
                self.settle(out);
            }
            Some(Request::Transcription(transcription)) => {
                transcription.finish(out);
                self.settle(out);
            }
            None => {}
        }
    }

    fn drop_queued(&mut self) -> bool {
        let kept = usize::from(self.is_generating);
        let had_requests = self.requests.len() > kept;
        self.requests.truncate(kept);
        let had_text = match self.requests.front_mut() {
            Some(Request::Speech(speech)) => speech.clear(),
            _ => false,
        };
        had_requests | had_text | self.recording.take().is_some()
    }

    fn close_input(&mut self) {
        if let Some(speech) = self.open_speech_mut() {
            speech.close();
        }
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.has_failed.get() || (self.is_closed && self.requests.is_empty())
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        self.has_failed.set(true);
        out.binary(event::error(error));
    }
}

impl Session {
    fn is_ended(&self) -> bool {
        self.is_closed || self.has_failed.get()
    }

    fn handle(&mut self, frame: ClientEvent, model: Option<Model>, out: &mut Outbox) -> Result<(), ApiError> {
        match frame {
            ClientEvent::Describe => {
                if let Some(Model::Info(info)) = model {
                    out.binary(info);
                }
            }
            ClientEvent::Ping { text } => out.binary(event("pong", &json!({"text": text}), &[])),
            ClientEvent::SelectProgram { name } => {
                self.state.registry().find(&name)?;
                self.program = Some(name);
            }
            // Clients send the whole text within a stream as well, for servers that know no streams.
            ClientEvent::Synthesize { .. } if self.open_speech().is_some() => {}
            ClientEvent::Synthesize { text, .. } => {
                check_text("text", &text, self.state.config().max_input_chars)?;
                let speech = Speech::whole(speaker(model)?, &text, self.state.config())?;
                self.enqueue(Request::Speech(Box::new(speech)))?;
            }
            ClientEvent::SynthesizeStart { .. } if self.open_speech().is_some() => {
                return Err(ApiError::OutOfOrder(
                    "synthesize-start came again; send synthesize-stop before it",
                ));
            }
            ClientEvent::SynthesizeStart { .. } => {
                let speech = Speech::streamed(speaker(model)?, self.state.config())?;
                self.enqueue(Request::Speech(Box::new(speech)))?;
            }
            ClientEvent::SynthesizeChunk { text } => self.streamed_speech()?.push(&text)?,
            ClientEvent::SynthesizeStop => self.streamed_speech()?.close(),
            ClientEvent::Transcribe(fields) => (self.transcribe, self.recording) = (fields, None),
            ClientEvent::AudioStart(format) => match (&self.recording, model) {
                (None, Some(Model::Listener(engine))) => self.record(engine, format),
                _ => return Err(ApiError::OutOfOrder("audio-start came again; send audio-stop before it")),
            },
            ClientEvent::AudioChunk { format, audio } => {
                if let Some(Model::Listener(engine)) = model {
                    self.record(engine, format);
                }
                if let Some((_, recording)) = &mut self.recording {
                    recording.push(format, &audio)?;
                }
            }
            ClientEvent::AudioStop => {
                let Some((engine, recording)) = self.recording.take() else {
                    return Err(ApiError::OutOfOrder(
                        "audio-stop came without audio; send audio-start before it",
                    ));
                };
                let fields = std::mem::take(&mut self.transcribe);
                let transcription = Transcription::new(engine, fields, recording)?;
                self.enqueue(Request::Transcription(Box::new(transcription)))?;
            }
            ClientEvent::Unknown(kind) => tracing::debug!(kind, "event of another service is dropped"),
        }
        Ok(())
    }

    fn record(&mut self, engine: Lease, format: event::AudioFormat) {
        let longest = engine.config().max_audio_duration;
        self.recording = Some((engine, Recording::new(&self.state, format, longest)));
    }

    fn enqueue(&mut self, request: Request) -> Result<(), ApiError> {
        if self.requests.len() >= MAX_REQUESTS {
            let message =
                format!("{MAX_REQUESTS} requests wait on this connection; read their answers first");
            return Err(ApiError::overloaded(message));
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// The speech whose text is being received, if there is one: the last request for speech.
    fn open_speech(&self) -> Option<&Speech> {
        self.requests.iter().find_map(|request| match request {
            Request::Speech(speech) if speech.is_open => Some(&**speech),
            _ => None,
        })
    }

    fn open_speech_mut(&mut self) -> Option<&mut Speech> {
        self.requests.iter_mut().find_map(|request| match request {
            Request::Speech(speech) if speech.is_open => Some(&mut **speech),
            _ => None,
        })
    }

    fn streamed_speech(&mut self) -> Result<&mut Speech, ApiError> {
        const NO_STREAM: ApiError =
            ApiError::OutOfOrder("no text is being streamed; send synthesize-start before it");
        self.open_speech_mut().ok_or(NO_STREAM)
    }

    /// Ends the requests for speech that have nothing more to speak.
    fn settle(&mut self, out: &mut Outbox) {
        while !self.is_generating
            && let Some(Request::Speech(speech)) = self.requests.front()
            && speech.is_over()
        {
            speech.finish(out);
            self.requests.pop_front();
        }
    }
}

fn speaker(model: Option<Model>) -> Result<Speaker, ApiError> {
    const NO_MODEL: ApiError = ApiError::OutOfOrder("no model was loaded for this event");
    match model {
        Some(Model::Speaker(speaker)) => Ok(speaker),
        _ => Err(NO_MODEL),
    }
}
