//! `stream-input` and `multi-stream-input`: text in pieces, audio in JSON, one context or several.
//!
//! Choices that the package's types leave open:
//! - Contexts do not wait for one another: each has one generation at a time.
//! - A text is generated when the schedule asks for it, at `try_trigger_generation`, `flush` and the end; `auto_mode` generates
//!   each message. Pieces end after a sentence or a word.
//! - `close_context` ends what no flush asked for; a second one ends all of the context. A message without text opens none:
//!   clients send it to keep a session alive, also after the end of a context.
//! - Each generation is an encoded stream of its own. A message of audio has the characters that start in it; both alignments
//!   are those of the text as it was sent, with a space where a message or a flush ended a word without one.
//! - An error ends the session with the code 1008, except one of a single generation among several contexts.
//! - The key may come in the first message. Until then the session loads nothing and takes no text.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::ws::close_code;
use axum::http::Extensions;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{Engine, FinishReason, StreamingOutput, Task};
use izwi_server::extract::{ApiPath, ApiQuery, check_range, parse_json};
use izwi_server::late_key::LateKey;
use izwi_server::lexicons;
use izwi_server::openapi::{SessionRefusals, UnknownModelRefusals};
use izwi_server::speech::ResolvedSpeechOptions;
use izwi_server::voices::Voice;
use izwi_server::ws::SessionUpgrade;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{self, Action, Identity, Job, Outcome, Protocol};
use izwi_server::{ApiError, AppState, Lease};
use izwi_types::excerpt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::alignment::TimedUtterance;
use super::api::{ClientMessage, ErrorMessage, ServerMessage, StreamQuery};
use super::contexts::{self, ContextKey, Contexts, Limits};
use super::dictionaries::lexicons_of;
use super::formats::OutputFormat;
use super::speech::speech_options;
use super::{HOSTED, find_voice};
use crate::hosted::model_of;

/// Range and default of `inactivity_timeout`, in seconds.
const INACTIVITY_S: std::ops::RangeInclusive<u64> = 1..=180;
const DEFAULT_INACTIVITY_S: u64 = 20;
/// How long a session may wait for its key.
const KEY_TIMEOUT: Duration = Duration::from_secs(10);

/// What the URL and the headers of a session say.
pub(crate) struct Opening {
    voice: String,
    query: StreamQuery,
    inactivity: Duration,
    format: OutputFormat,
    has_many_contexts: bool,
    key: KeyState,
}

/// Whether the session has shown the key.
enum KeyState {
    Shown,
    /// It must come in the next message. The permit counts the session among those that have shown none.
    Missing {
        from: LateKey,
        _permit: OwnedSemaphorePermit,
    },
}

/// Text to speech of ElevenLabs over a WebSocket
///
/// The upgrade of a WebSocket. Its messages are those of ElevenLabs; what is supported stands in docs/compatibility.md.
#[utoipa::path(
    get,
    path = "/v1/text-to-speech/{voice_id}/stream-input",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice."), StreamQuery),
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals, UnknownModelRefusals),
)]
pub(super) async fn one_context(
    ApiPath(voice): ApiPath,
    ApiQuery(query): ApiQuery<StreamQuery>,
    extensions: Extensions,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    upgrade.open::<Stream>(Opening::new(voice, query, false, &extensions)?)
}

/// Several texts to speech of ElevenLabs over one WebSocket
///
/// The upgrade of a WebSocket. Its messages are those of ElevenLabs; what is supported stands in docs/compatibility.md.
#[utoipa::path(
    get,
    path = "/v1/text-to-speech/{voice_id}/multi-stream-input",
    tag = "dialects",
    params(("voice_id" = String, Path, description = "Name of a voice."), StreamQuery),
    responses((status = 101, description = "The connection is a WebSocket."), SessionRefusals, UnknownModelRefusals),
)]
pub(super) async fn many_contexts(
    ApiPath(voice): ApiPath,
    ApiQuery(query): ApiQuery<StreamQuery>,
    extensions: Extensions,
    upgrade: SessionUpgrade,
) -> Result<Response, ApiError> {
    upgrade.open::<Stream>(Opening::new(voice, query, true, &extensions)?)
}

impl Opening {
    /// Checks what the URL says. Without a mark of the middleware the key was checked.
    pub(super) fn new(
        voice: String,
        query: StreamQuery,
        has_many_contexts: bool,
        extensions: &Extensions,
    ) -> Result<Self, ApiError> {
        let seconds = query.inactivity_timeout.unwrap_or(DEFAULT_INACTIVITY_S);
        let inactivity = Duration::from_secs(check_range("inactivity_timeout", seconds, &INACTIVITY_S)?);
        let format = OutputFormat::parse_for_session(query.output_format.as_deref())?;
        let key = match extensions.get::<LateKey>() {
            None => KeyState::Shown,
            Some(from) => {
                // Without a place among them, the key must come in the headers.
                let places = extensions.get::<Arc<Semaphore>>().cloned().ok_or(ApiError::Unauthorized)?;
                let permit = places.try_acquire_owned().map_err(|_| ApiError::Unauthorized)?;
                KeyState::Missing { from: *from, _permit: permit }
            }
        };
        Ok(Self { voice, query, inactivity, format, has_many_contexts, key })
    }
}

/// A model, and the voice of the URL.
pub(crate) struct Model {
    engine: Lease,
    /// `None` if the model has no voices.
    voice: Option<Voice>,
    /// Names of the saved lexicons.
    lexicons: Vec<String>,
}

/// One generation.
pub(crate) struct Reply {
    context: ContextKey,
    id: Option<String>,
    timed: TimedUtterance,
}

/// State of a session.
pub(crate) struct Stream {
    state: AppState,
    opening: Opening,
    model: Option<Model>,
    contexts: Contexts,
    is_closed: bool,
    has_failed: bool,
}

impl Protocol for Stream {
    const KIND: &'static str = "elevenlabs";
    const MAX_GENERATIONS: usize = contexts::MAX_CONTEXTS;
    /// A message, or what is wrong with it.
    type Frame = Result<Box<ClientMessage>, ApiError>;
    type Model = Model;
    type Reply = Reply;
    type Opening = Opening;

    fn new(state: &AppState, _identity: Identity, opening: Opening) -> Self {
        let config = state.config();
        let is_true = |value: &str| value.eq_ignore_ascii_case("true") || value == "1";
        let limits = Limits {
            buffer_chars: config.max_input_chars,
            session_chars: config.max_session_chars,
            is_automatic: opening.query.auto_mode.as_deref().is_some_and(is_true),
        };
        Self {
            state: state.clone(),
            opening,
            model: None,
            contexts: Contexts::new(limits),
            is_closed: false,
            has_failed: false,
        }
    }

    fn parse(message: protocol::ClientMessage) -> Result<Self::Frame, ApiError> {
        Ok(match message {
            protocol::ClientMessage::Text(text) => parse_json(text.as_bytes()).map(Box::new),
            protocol::ClientMessage::Binary(_) => Err(ApiError::BinaryFrame),
        })
    }

    fn load_model(&self, frame: &Self::Frame) -> Option<BoxFuture<'static, Result<Model, ApiError>>> {
        let Ok(message) = frame else { return None };
        if self.model.is_some() || self.is_closed || !self.has_key(message) {
            return None;
        }
        let (state, voice) = (self.state.clone(), self.opening.voice.clone());
        let model = self.opening.query.model_id.clone();
        let load = async move {
            let engine = state.lease(model_of(model.as_deref(), &HOSTED), Task::Tts).await?;
            let voice = find_voice(&voice, &engine, &state).await?;
            // Without a store there are none.
            let lexicons = lexicons::names(&state).await.unwrap_or_default();
            Ok(Model { engine, voice, lexicons })
        };
        Some(load.boxed())
    }

    fn receive(
        &mut self,
        frame: Self::Frame,
        model: Option<Result<Model, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        if self.is_closed {
            // What comes after the end is dropped, as is what comes after an error.
            return Ok(Action::None);
        }
        let action = frame.and_then(|message| self.handle(*message, model));
        if action.is_err() {
            self.fail();
        }
        self.write_finals(out);
        action
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let Model { engine, .. } = self.model.as_ref()?;
        let next = self.contexts.next()?;
        let info = &engine.profile().info;
        let encoded = match self.opening.format.encode(info.sample_rate_hz, None) {
            Ok(encoded) => encoded,
            Err(error) => {
                self.contexts.ended(next.context);
                return Some(Err(error));
            }
        };
        let request = next.options.request(next.text.trim().to_owned());
        let reply = Reply {
            context: next.context,
            id: next.id,
            timed: TimedUtterance::trimmed(encoded, next.text, info.times_words),
        };
        Some(Ok(Job::new(Engine::clone(engine), request, reply)))
    }

    fn may_read(&self) -> bool {
        !self.contexts.is_full()
    }

    fn number(reply: &Reply) -> u64 {
        let ContextKey(number) = reply.context;
        number
    }

    fn deliver(
        &mut self,
        reply: &mut Reply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let Some(message) = reply.timed.push(&chunk)? else { return Ok(()) };
        let alignment = message.ms();
        out.frame(&ServerMessage {
            audio: Some(STANDARD.encode(&message.audio)),
            is_final: None,
            normalized_alignment: alignment.as_ref(),
            alignment: alignment.as_ref(),
            context_id: reply.id.as_deref(),
        });
        Ok(())
    }

    fn end(&mut self, reply: Reply, outcome: Outcome, out: &mut Outbox) {
        self.contexts.ended(reply.context);
        let has_failed = match outcome {
            Outcome::Finished(finish) => finish.reason == FinishReason::Error,
            Outcome::Failed => true,
            Outcome::Cancelled => false,
        };
        if has_failed && self.opening.has_many_contexts {
            self.contexts.close_key(reply.context);
        } else if has_failed {
            self.fail();
        }
        self.write_finals(out);
    }

    fn drop_queued(&mut self) -> bool {
        self.contexts.clear()
    }

    fn close_input(&mut self) {
        self.contexts.finish();
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.has_failed || (self.is_closed && !self.contexts.has_queued())
    }

    fn write_done(&self, out: &mut Outbox) {
        if !self.has_failed && !self.opening.has_many_contexts {
            write_final(None, out);
        }
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        write_error(error, None, out);
    }

    fn write_failure(&self, reply: &mut Reply, error: &ApiError, out: &mut Outbox) {
        write_error(error, reply.id.as_deref(), out);
    }

    fn idle_timeout(&self, _configured: Duration) -> Duration {
        match self.opening.key {
            KeyState::Shown => self.opening.inactivity,
            KeyState::Missing { .. } => KEY_TIMEOUT.min(self.opening.inactivity),
        }
    }

    fn is_refused(&self) -> bool {
        self.has_failed
    }
}

impl Stream {
    /// Whether the session has shown the key, or this message does. Counts nothing.
    fn has_key(&self, message: &ClientMessage) -> bool {
        match &self.opening.key {
            KeyState::Shown => true,
            KeyState::Missing { from, .. } => {
                message.key().is_some_and(|key| from.is_right(&self.state, key, Instant::now()))
            }
        }
    }

    fn handle(
        &mut self,
        message: ClientMessage,
        model: Option<Result<Model, ApiError>>,
    ) -> Result<Action, ApiError> {
        if let KeyState::Missing { from, .. } = &self.opening.key {
            from.check(&self.state, message.key(), Instant::now())?;
            self.opening.key = KeyState::Shown;
        }
        if let Some(model) = model {
            self.model = Some(model?);
        }
        if message.close_socket == Some(true) {
            self.close_input();
            return Ok(Action::None);
        }
        let id = message.context_id.as_deref().filter(|_| self.opening.has_many_contexts);
        if message.close_context == Some(true) && self.opening.has_many_contexts {
            return Ok(self.close_context(id));
        }
        let has_settings = message.voice_settings.is_some()
            || message.generation_config.is_some()
            || message.pronunciation_dictionary_locators.is_some();
        let text = message.text.as_deref();
        let opens = has_settings || text.is_some_and(|text| !text.is_empty());
        if has_settings || opens && !self.contexts.is_open(id) {
            let options = self.options(&message)?;
            self.contexts.open(id, options, message.generation_config.as_ref())?;
        }
        self.contexts.push(id, text.unwrap_or_default(), message.try_trigger_generation == Some(true))?;
        if message.flush == Some(true) {
            self.contexts.flush(id);
        }
        // With several contexts an empty text only keeps one alive.
        if text == Some("") && !self.opening.has_many_contexts {
            self.close_input();
        }
        Ok(Action::None)
    }

    /// The options of a context, of its first message.
    fn options(&self, message: &ClientMessage) -> Result<ResolvedSpeechOptions, ApiError> {
        let Some(Model { engine, voice, lexicons }) = &self.model else {
            return Err(ApiError::OutOfOrder("the session has no model; open another session"));
        };
        let speed = message.voice_settings.as_ref().and_then(|settings| settings.speed);
        let mut options = speech_options(speed, self.opening.query.seed, engine, &mut Vec::new());
        if let Some(locators) = &message.pronunciation_dictionary_locators {
            options.lexicons = lexicons_of(lexicons, locators, &mut Vec::new())?;
        }
        ResolvedSpeechOptions::of_voice(options, voice.clone(), engine)
    }

    /// Closes a context, and ends its running generation with it, unless a flush asked for that.
    fn close_context(&mut self, id: Option<&str>) -> Action {
        match self.contexts.close(id) {
            Some(ContextKey(number)) => Action::CancelOne(number),
            None => Action::None,
        }
    }

    /// Takes no more messages, and drops all text.
    fn fail(&mut self) {
        self.contexts.clear();
        (self.is_closed, self.has_failed) = (true, true);
    }

    /// Tells the ends of contexts of which nothing is left to generate.
    fn write_finals(&mut self, out: &mut Outbox) {
        let finished = self.contexts.take_finished();
        if self.opening.has_many_contexts && !self.has_failed {
            for id in finished {
                write_final(id.as_deref(), out);
            }
        }
    }
}

fn write_final(context_id: Option<&str>, out: &mut Outbox) {
    out.frame(&ServerMessage {
        audio: None,
        is_final: Some(true),
        normalized_alignment: None,
        alignment: None,
        context_id,
    });
}

/// Writes an error of a session, or of one context.
fn write_error(error: &ApiError, context_id: Option<&str>, out: &mut Outbox) {
    let code = match error {
        ApiError::Unauthorized => "invalid_api_key",
        other => other.code(),
    };
    out.frame(&ErrorMessage {
        message: error.message(),
        error: code,
        code: close_code::POLICY,
        param: error.param().map(excerpt),
        context_id,
    });
}
