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
use izwi_server::live::LiveReply;
use izwi_server::speech::check_text;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState, Lease};
use serde_json::json;

use super::event::{self, ClientEvent, TranscribeFields, event};
use super::info;
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
    requests: VecDeque<Request>,
    is_generating: bool,
    is_closed: bool,
    /// Whether an error was reported.
    has_failed: Cell<bool>,
    /// Whether it failed by what the client sent or a model did, not because the server ends.
    is_refused: Cell<bool>,
}

enum Request {
    Speech(Box<Speech>),
    Transcription(Box<Transcription>),
}

/// What is generated: the next utterance of speech, or a transcript.
pub(super) enum Reply {
    Speech,
    Transcription(LiveReply),
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
    type Reply = Reply;
    type Opening = ();

    fn new(state: &AppState, _identity: Identity, (): ()) -> Self {
        Self {
            state: state.clone(),
            program: None,
            transcribe: TranscribeFields::default(),
            requests: VecDeque::new(),
            is_generating: false,
            is_closed: false,
            has_failed: Cell::new(false),
            is_refused: Cell::new(false),
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
            ClientEvent::AudioStart(_) | ClientEvent::AudioChunk { .. } if !self.is_recording() => {
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
            Request::Speech(speech) => {
                speech.next()?.map(|(engine, request)| Job::new(engine, request, Reply::Speech))
            }
            Request::Transcription(transcription) => transcription.next_job(Reply::Transcription)?,
        };
        self.is_generating = job.is_ok();
        Some(job)
    }

    fn deliver(
        &mut self,
        reply: &mut Reply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        match (self.requests.front_mut(), reply) {
            (Some(Request::Speech(speech)), Reply::Speech) => speech.deliver(&chunk, out)?,
            (Some(Request::Transcription(transcription)), Reply::Transcription(reply)) => {
                transcription.deliver(reply, chunk, out);
            }
            _ => {}
        }
        Ok(())
    }

    fn end(&mut self, reply: Reply, outcome: Outcome, out: &mut Outbox) {
        self.is_generating = false;
        let is_complete = match &outcome {
            Outcome::Finished(finish) => match finish.reason {
                FinishReason::Error => false,
                // Audio that pauses continues with the next request.
                FinishReason::TextTimeout => matches!(reply, Reply::Transcription(_)),
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
        match (self.requests.front_mut(), reply) {
            (Some(Request::Speech(speech)), Reply::Speech) => speech.end_utterance(),
            (Some(Request::Transcription(transcription)), Reply::Transcription(reply)) => {
                transcription.end(reply, &outcome, out);
            }
            _ => {}
        }
        self.settle(out);
    }

    fn drop_queued(&mut self) -> bool {
        let kept = usize::from(self.is_generating);
        let had_requests = self.requests.len() > kept;
        self.requests.truncate(kept);
        let had_input = match self.requests.front_mut() {
            Some(Request::Speech(speech)) => speech.clear(),
            Some(Request::Transcription(transcription)) if transcription.is_open => {
                transcription.abandon();
                true
            }
            _ => false,
        };
        had_requests | had_input
    }

    fn close_input(&mut self) {
        if let Some(speech) = self.open_speech_mut() {
            speech.close();
        }
        self.is_closed = true;
    }

    fn is_refused(&self) -> bool {
        self.is_refused.get()
    }

    fn is_over(&self) -> bool {
        self.has_failed.get() || (self.is_closed && self.requests.is_empty())
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        self.has_failed.set(true);
        self.is_refused.set(!matches!(error, ApiError::Draining));
        out.binary(event::error(error));
    }

    fn write_failure(&self, reply: &mut Reply, error: &ApiError, out: &mut Outbox) {
        let is_pause = matches!((reply, error), (Reply::Transcription(_), ApiError::TextTimeout(_)));
        if !is_pause {
            self.write_error(error, out);
        }
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
            ClientEvent::Transcribe(fields) => {
                self.transcribe = fields;
                self.abandon_recording();
            }
            ClientEvent::AudioStart(format) => match model {
                Some(Model::Listener(engine)) => self.record(engine, format)?,
                _ => return Err(ApiError::OutOfOrder("audio-start came again; send audio-stop before it")),
            },
            ClientEvent::AudioChunk { format, audio } => {
                if let Some(Model::Listener(engine)) = model {
                    self.record(engine, format)?;
                }
                if let Some(recording) = self.recording() {
                    recording.push(format, &audio, out)?;
                }
            }
            ClientEvent::AudioStop => {
                const NO_AUDIO: ApiError =
                    ApiError::OutOfOrder("audio-stop came without audio; send audio-start before it");
                self.recording().ok_or(NO_AUDIO)?.close(out)?;
            }
            ClientEvent::Unknown(kind) => tracing::debug!(kind, "event of another service is dropped"),
        }
        Ok(())
    }

    fn record(&mut self, engine: Lease, format: event::AudioFormat) -> Result<(), ApiError> {
        let fields = std::mem::take(&mut self.transcribe);
        let transcription = Transcription::new(&self.state, engine, fields, format)?;
        self.enqueue(Request::Transcription(Box::new(transcription)))
    }

    fn is_recording(&self) -> bool {
        let is_open = |request: &Request| match request {
            Request::Transcription(transcription) => transcription.is_open,
            Request::Speech(_) => false,
        };
        self.requests.iter().any(is_open)
    }

    /// The transcription whose audio is being received, if there is one.
    fn recording(&mut self) -> Option<&mut Transcription> {
        self.requests.iter_mut().find_map(|request| match request {
            Request::Transcription(transcription) if transcription.is_open => Some(&mut **transcription),
            _ => None,
        })
    }

    /// Drops the transcription whose audio is being received.
    fn abandon_recording(&mut self) {
        if let Some(recording) = self.recording() {
            recording.abandon();
        }
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

    /// Ends the requests of which nothing more is generated.
    fn settle(&mut self, out: &mut Outbox) {
        let is_over = |request: &mut Request| match request {
            Request::Speech(speech) => speech.is_over(),
            Request::Transcription(transcription) => transcription.is_over(),
        };
        while !self.is_generating
            && let Some(request) = self.requests.pop_front_if(is_over)
        {
            match request {
                Request::Speech(speech) => speech.finish(out),
                Request::Transcription(transcription) => transcription.finish(out),
            }
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
