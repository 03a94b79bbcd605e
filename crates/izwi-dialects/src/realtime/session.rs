//! The state of a Realtime session between its events, and its jobs for the engines.

use std::collections::VecDeque;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{Engine, StreamingOutput, Task};
use izwi_server::turns::TurnModel;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use izwi_server::{ASR_ALIASES, ApiError, AppState, Lease, Slot};
use izwi_types::{TurnEnds, excerpt};
use serde_json::Value;

use super::beta;
use super::config::{Kind, SessionConfig};
use super::events::{ClientEvent, Event, ServerEvent, emit, new_id, refuse};
use super::input::InputBuffer;
use super::items::Items;
use super::opening::Opening;
use super::refusal::Refusal;
use super::response::{Active, Asked, MAX_ACTIVE_OUT_OF_BAND, OutOfBand, Reply, Speculation, Transcribing};
use super::transcripts::Transcripts;
use super::turn_detection::TurnDetection;

/// The number of what is no response.
const OTHERS: u64 = 0;

/// A session.
pub(crate) struct Session {
    pub(super) state: AppState,
    pub(super) id: String,
    pub(super) conversation_id: String,
    pub(super) config: SessionConfig,
    /// The model of the URL; `None` for the default one.
    pub(super) chat_model: Option<String>,
    pub(super) chat: Option<Lease>,
    pub(super) asr: Option<Asr>,
    /// The turn model.
    pub(super) turns: Option<Arc<Lease>>,
    /// The responses that the driver has still to end.
    pub(super) cancelled: VecDeque<u64>,
    /// How many responses there were.
    pub(super) responses: u64,
    /// The response that may be wanted.
    pub(super) speculation: Option<Speculation>,
    /// `None` until the models are loaded.
    pub(super) input: Option<InputBuffer>,
    pub(super) items: Items,
    /// Characters of all items that the client created.
    pub(super) chars: usize,
    /// The item of the audio that is not committed, once it has speech.
    pub(super) turn_item: Option<String>,
    /// `None` if what is said is not transcribed.
    pub(super) transcripts: Option<Transcripts>,
    /// The next response.
    pub(super) asked: Option<Asked>,
    pub(super) active: Option<Active>,
    /// The responses out of the conversation.
    pub(super) out_of_band: Vec<OutOfBand>,
    pub(super) is_closed: bool,
    /// Whether the client asked for the beta of the API.
    pub(super) is_beta: bool,
    /// The settings that a client secret has for it.
    granted: Option<Arc<Value>>,
    /// Why the session cannot begin.
    pub(super) fatal: Option<Refusal>,
}

/// The ASR model, and the name that asked for it.
pub(super) type Asr = (Option<String>, Arc<Lease>);

/// The engines of a session that were not loaded before.
pub(crate) struct Models {
    pub(super) chat: Option<Lease>,
    pub(super) asr: Option<Asr>,
    pub(super) turns: Option<Arc<Lease>>,
}

/// Whether a name is one of the hosted models, which stand for the default models.
pub(super) fn is_hosted(name: &str) -> bool {
    name.starts_with("gpt-") || name == ASR_ALIASES[0]
}

/// How the turns of a conversation with a pipeline end, if its settings say that.
pub(super) fn turns_of(chat: &Engine) -> Option<TurnEnds> {
    chat.profile().info.transcriber.as_ref().and_then(|transcriber| transcriber.turns)
}

/// The configuration and the model of conversations that the URL asks for.
pub(super) fn opened(state: &AppState, opening: Opening) -> Result<(SessionConfig, Option<String>), Refusal> {
    let transcribes = match opening.intent.as_deref() {
        None | Some("") => false,
        Some("transcription") => true,
        Some(other) => {
            let message = format!("intent is '{}'; use transcription, or leave it out", excerpt(other));
            return Err(Refusal::invalid("intent", message));
        }
    };
    let Some(name) = opening.named_model().map(str::to_owned) else {
        let config = if transcribes { SessionConfig::transcription(None) } else { SessionConfig::realtime() };
        return Ok((config, None));
    };
    match state.registry().find(&name) {
        Ok((_, entry)) => {
            let does = |task| entry.tasks.is_empty() || entry.tasks.contains(&task);
            if !transcribes && does(Task::Chat) {
                let mut config = SessionConfig::realtime();
                if let Slot::Ready(engine) = &entry.slot
                    && let Some(turns) = turns_of(engine)
                {
                    let turns = turns.available(state.registry().has(Task::Turn));
                    config.turn_detection = Some(TurnDetection::of(turns));
                }
                Ok((config, Some(name)))
            } else if does(Task::Asr) {
                Ok((SessionConfig::transcription(Some(name)), None))
            } else {
                let message = format!(
                    "model '{}' does not {}; choose another, see /v1/models",
                    excerpt(&name),
                    if transcribes { "transcribe" } else { "converse or transcribe" },
                );
                Err(Refusal::invalid("model", message))
            }
        }
        Err(_) if is_hosted(&name) => {
            let transcribes = transcribes || name.contains("transcribe") || name == ASR_ALIASES[0];
            let config =
                if transcribes { SessionConfig::transcription(None) } else { SessionConfig::realtime() };
            Ok((config, None))
        }
        Err(error) => Err(error.into()),
    }
}

impl Protocol for Session {
    const KIND: &'static str = "realtime";
    /// A response and one that is cancelled, those out of the conversation, a transcript, and the end of a turn.
    const MAX_GENERATIONS: usize = 4 + MAX_ACTIVE_OUT_OF_BAND;
    type Frame = ClientEvent;
    type Model = Models;
    type Reply = Reply;
    type Opening = Opening;

    fn new(state: &AppState, _identity: Identity, opening: Opening) -> Self {
        let (is_beta, granted) = (opening.is_beta, opening.session.clone());
        let (config, chat_model, fatal) = match opened(state, opening) {
            Ok((config, chat_model)) => (config, chat_model, None),
            Err(error) => (SessionConfig::realtime(), None, Some(error)),
        };
        Self {
            state: state.clone(),
            id: new_id("sess"),
            conversation_id: new_id("conv"),
            config,
            chat_model,
            chat: None,
            asr: None,
            turns: None,
            cancelled: VecDeque::new(),
            responses: 0,
            speculation: None,
            input: None,
            items: Items::default(),
            chars: 0,
            turn_item: None,
            transcripts: None,
            asked: None,
            active: None,
            out_of_band: Vec::new(),
            is_closed: fatal.is_some(),
            is_beta,
            granted,
            fatal,
        }
    }

    fn greet(&mut self, out: &mut Outbox) -> Result<Option<ClientEvent>, String> {
        if self.is_beta {
            out.translate(beta::event);
        }
        if let Some(error) = &self.fatal {
            refuse(error, None, out);
            return Err(error.message.clone());
        }
        emit(ServerEvent::SessionCreated { session: self.view() }, out);
        Ok(self.granted.take().map(|settings| ClientEvent::of_settings(&settings)))
    }

    fn parse(message: ClientMessage) -> Result<ClientEvent, ApiError> {
        Ok(ClientEvent::parse(&message))
    }

    fn load_model(&self, frame: &ClientEvent) -> Option<BoxFuture<'static, Result<Models, ApiError>>> {
        let Ok(event) = &frame.event else { return None };
        let patched = match event {
            _ if self.is_closed => return None,
            Event::Update(patch) => Some(self.config.patched(patch).ok()?),
            _ => None,
        };
        let config = patched.as_ref().unwrap_or(&self.config);
        let needs_chat = config.kind == Kind::Realtime && self.chat.is_none();
        // A model that reads what is said has somebody who writes it.
        let own = |chat: &Lease| chat.profile().info.transcriber.as_ref().map(|own| Some(own.model.clone()));
        let is_told = config.transcription.is_some();
        let asr = match &config.transcription {
            Some(transcription) => Some(transcription.model.clone()),
            None => self.chat.as_ref().and_then(own),
        };
        let asr = asr.filter(|name| self.asr.as_ref().is_none_or(|(loaded, _)| loaded != name));
        let is_semantic = config.turn_detection.is_some_and(|turns| turns.eagerness.is_some());
        let needs_turns = is_semantic && self.turns.is_none() && self.state.registry().has(Task::Turn);
        let has_turns = self.turns.is_some();
        if !needs_chat && asr.is_none() && !needs_turns {
            return None;
        }
        let (state, chat_model) = (self.state.clone(), self.chat_model.clone());
        let loading = async move {
            let chat = match needs_chat {
                true => Some(state.lease(chat_model.as_deref(), Task::Chat).await?),
                false => None,
            };
            let asr = match asr.or_else(|| chat.as_ref().filter(|_| !is_told).and_then(own)) {
                Some(name) => {
                    let is_default = |name: &&str| is_hosted(name) && state.registry().find(name).is_err();
                    let model = name.as_deref().filter(|name| !is_default(name));
                    Some((name.clone(), Arc::new(state.lease(model, Task::Asr).await?)))
                }
                None => None,
            };
            let needs_turns = needs_turns
                || (!has_turns
                    && chat
                        .as_ref()
                        .is_some_and(|chat| turns_of(chat).is_some_and(|turns| turns.eagerness.is_some())));
            let turns = if needs_turns { TurnModel::lease(&state).await? } else { None };
            Ok(Models { chat, asr, turns })
        };
        Some(loading.boxed())
    }

    fn receive(
        &mut self,
        frame: ClientEvent,
        model: Option<Result<Models, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        if let Err(refusal) = frame.event.and_then(|event| self.handle(event, model, out)) {
            refusal.count();
            refuse(&refusal, frame.event_id.as_deref(), out);
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        if let Some(job) = self.decide() {
            return Some(Ok(job));
        }
        if self.active.is_none()
            && !self.awaits_transcript()
            && let Some(asked) = self.asked.take()
            && !self.adopt_speculation(&asked)
            && let Some(chat) = &self.chat
        {
            let engine = Engine::clone(chat);
            let number = self.next_number();
            return Some(self.respond(asked, number, engine));
        }
        if let Some(job) = self.begin_speculation().or_else(|| self.next_out_of_band()) {
            return Some(job);
        }
        let wrap = |live| Reply::Transcription(Box::new(Transcribing { live, failure: None }));
        self.transcripts.as_mut().filter(|transcripts| !transcripts.is_retired())?.next_job(wrap)
    }

    fn number(reply: &Reply) -> u64 {
        match reply {
            Reply::Turn(_) | Reply::Transcription(_) => OTHERS,
            Reply::Response(response) => response.number,
        }
    }

    fn is_held(&self, reply: &Reply) -> bool {
        matches!(reply, Reply::Response(response) if self.is_speculative(response))
    }

    fn next_cancelled(&mut self) -> Option<u64> {
        self.cancelled.pop_front()
    }

    fn deliver(
        &mut self,
        reply: &mut Reply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        match reply {
            Reply::Turn(deciding) => {
                deciding.hear(&chunk);
                Ok(())
            }
            Reply::Response(response) => self.deliver_response(response, chunk, out),
            Reply::Transcription(transcription) => {
                if let Some(transcripts) = &mut self.transcripts {
                    transcripts.deliver(&mut transcription.live, chunk, out);
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, reply: Reply, outcome: Outcome, out: &mut Outbox) {
        match reply {
            Reply::Turn(mut deciding) => {
                deciding.end(&outcome);
                self.end_decision(&deciding, out);
            }
            Reply::Response(response) => self.end_response(*response, outcome, out),
            Reply::Transcription(transcription) => {
                if let Some(transcripts) = &mut self.transcripts {
                    transcripts.end(*transcription, &outcome, out);
                }
                self.settle(out);
            }
        }
    }

    fn drop_queued(&mut self) -> bool {
        self.cancel_speculation();
        let had_text = self.transcripts.as_mut().is_some_and(Transcripts::clear);
        self.asked.take().is_some() | self.drop_out_of_band() | had_text
    }

    fn close_input(&mut self) {
        self.cancel_speculation();
        self.is_closed = true;
    }

    fn is_refused(&self) -> bool {
        self.fatal.is_some()
    }

    fn is_over(&self) -> bool {
        self.is_closed
            && self.asked.is_none()
            && self.out_of_band.is_empty()
            && self.transcripts.as_ref().is_none_or(Transcripts::is_idle)
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        refuse(&Refusal::from(error.clone()), None, out);
    }

    fn write_failure(&self, reply: &mut Reply, error: &ApiError, _out: &mut Outbox) {
        // Audio that pauses is transcribed on with the next request.
        let is_pause = matches!((&reply, error), (Reply::Transcription(_), ApiError::TextTimeout(_)));
        if !is_pause {
            reply.fail(error);
        }
    }
}
