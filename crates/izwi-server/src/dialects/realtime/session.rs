//! The state of a Realtime session between its events, and its jobs for the engines.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{
    AudioInput, ChatOptions, Conversation, Engine, EngineCoreRequest, FinishReason, GenerationParams,
    RequestId, StreamingOutput, Task,
};
use izwi_types::excerpt;

use super::Opening;
use super::config::{Kind, ResponseConfig, SessionConfig, SessionPatch, Transcription};
use super::events::{ClientEvent, ErrorBody, Event, ItemFields, Numbered, Refusal, ServerEvent, Truncation};
use super::input::{Clip, InputBuffer, Limits};
use super::items::{
    Assistant, Content, Context, Decoded, Item, Items, MAX_WAITING_MS, State, Undecoded, too_much_waits,
};
use super::response::{Asked, CancelReason, Ending, Reply, Responding, Transcribing, Waiting, usage};
use crate::chunking::ChunkSizes;
use crate::dto::transcription::DurationUsage;
use crate::error::ApiError;
use crate::metrics::count_interrupt;
use crate::registry::Lease;
use crate::speech::check_text;
use crate::state::AppState;
use crate::transcription::TextDeltas;
use crate::turns::TurnEvent;
use crate::upload::Recording;
use crate::ws::outbox::Outbox;
use crate::ws::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};

/// The longest turn that the VAD finds, where the model takes longer ones.
const MAX_TURN: Duration = Duration::from_secs(60);
/// A turn ends this much before the limit of the model, because it ends at a frame of the VAD.
const TURN_MARGIN: Duration = Duration::from_millis(100);

/// A session.
pub(crate) struct Realtime {
    state: AppState,
    id: String,
    conversation_id: String,
    config: SessionConfig,
    /// The model of the URL; `None` for the default one.
    chat_model: Option<String>,
    chat: Option<Lease>,
    asr: Option<Asr>,
    /// `None` until the models are loaded.
    input: Option<InputBuffer>,
    items: Items,
    /// Characters of all items that the client created.
    chars: usize,
    /// The item of the turn that goes on.
    turn_item: Option<String>,
    transcriptions: VecDeque<Waiting>,
    /// The next response.
    asked: Option<Asked>,
    /// The response that is generated, and why it was cancelled.
    active: Option<(String, Option<CancelReason>)>,
    generations: u64,
    is_closed: bool,
    /// Why the session cannot begin.
    fatal: Option<Refusal>,
}

/// The ASR model, and the name that asked for it.
type Asr = (Option<String>, Lease);

/// The engines of a session that were not loaded before.
pub(crate) struct Models {
    chat: Option<Lease>,
    asr: Option<Asr>,
}

/// What a request is made of.
pub(crate) enum Input {
    Response(Decoded),
    Transcription(Box<EngineCoreRequest>),
}

/// A new id of an object of this kind.
fn new_id(kind: &str) -> String {
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("{kind}_{}", &random[..20])
}

/// Whether a name is one of the hosted models, which stand for the default models.
fn is_hosted(name: &str) -> bool {
    name.starts_with("gpt-") || name == "whisper-1"
}

/// The configuration and the model of conversations that the URL asks for.
fn opened(state: &AppState, opening: Opening) -> Result<(SessionConfig, Option<String>), Refusal> {
    let transcribes = match opening.intent.as_deref() {
        None | Some("") => false,
        Some("transcription") => true,
        Some(other) => {
            let message = format!("intent is '{}'; use transcription, or leave it out", excerpt(other));
            return Err(Refusal::invalid("intent", message));
        }
    };
    let Some(name) = opening.model.filter(|model| !model.is_empty()) else {
        let config =
            if transcribes { SessionConfig::transcription(None)? } else { SessionConfig::realtime() };
        return Ok((config, None));
    };
    match state.registry().find(&name) {
        Ok((_, entry)) => {
            let does = |task| entry.tasks.is_empty() || entry.tasks.contains(&task);
            if !transcribes && does(Task::Chat) {
                Ok((SessionConfig::realtime(), Some(name)))
            } else if does(Task::Asr) {
                Ok((SessionConfig::transcription(Some(name))?, None))
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
            let transcribes = transcribes || name.contains("transcribe") || name.contains("whisper");
            let config =
                if transcribes { SessionConfig::transcription(None)? } else { SessionConfig::realtime() };
            Ok((config, None))
        }
        Err(error) => Err(error.into()),
    }
}

impl Protocol for Realtime {
    const KIND: &'static str = "realtime";
    type Frame = ClientEvent;
    type Model = Models;
    type Input = Input;
    type Reply = Reply;
    type Opening = Opening;

    fn new(state: &AppState, _identity: Identity, opening: Opening) -> Self {
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
            input: None,
            items: Items::default(),
            chars: 0,
            turn_item: None,
            transcriptions: VecDeque::new(),
            asked: None,
            active: None,
            generations: 0,
            is_closed: fatal.is_some(),
            fatal,
        }
    }

    fn greet(&mut self, out: &mut Outbox) {
        match self.fatal.take() {
            Some(error) => refuse(&error, None, out),
            None => emit(ServerEvent::SessionCreated { session: self.view() }, out),
        }
    }

    fn parse(message: ClientMessage) -> Result<ClientEvent, ApiError> {
        Ok(ClientEvent::parse(&message))
    }

    fn is_immediate(_frame: &ClientEvent) -> bool {
        false
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
        let named = |transcription: &Transcription| transcription.model.clone();
        let asr = config.transcription.as_ref().map(named);
        let asr = asr.filter(|name| self.asr.as_ref().is_none_or(|(loaded, _)| loaded != name));
        if !needs_chat && asr.is_none() {
            return None;
        }
        let (state, chat_model) = (self.state.clone(), self.chat_model.clone());
        let loading = async move {
            let chat = match needs_chat {
                true => Some(state.lease(chat_model.as_deref(), Task::Chat).await?),
                false => None,
            };
            let asr = match asr {
                Some(name) => {
                    let is_default = |name: &&str| is_hosted(name) && state.registry().find(name).is_err();
                    let model = name.as_deref().filter(|name| !is_default(name));
                    Some((name.clone(), state.lease(model, Task::Asr).await?))
                }
                None => None,
            };
            Ok(Models { chat, asr })
        };
        Some(loading.boxed())
    }

    fn receive(
        &mut self,
        frame: ClientEvent,
        model: Option<Result<Models, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        let handled = frame.event.and_then(|event| self.handle(event, model, out));
        Ok(handled.unwrap_or_else(|refusal| {
            refusal.count();
            refuse(&refusal, frame.event_id.as_deref(), out);
            Action::None
        }))
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        self.generations += 1;
        if let (Some(asked), Some(chat)) = (self.asked.take(), &self.chat) {
            return Some(self.respond(asked, Engine::clone(chat)));
        }
        let waiting = self.transcriptions.pop_front()?;
        let ((_, asr), transcription) = self.asr.as_ref().zip(self.config.transcription.as_ref())?;
        let recording = Recording { audio: AudioInput::File(waiting.file), param: "audio" };
        let request = transcription.request.request(recording, asr);
        let input = request.map(|request| Input::Transcription(Box::new(request)));
        let (item_id, duration_ms) = (waiting.item_id, waiting.duration_ms);
        let reply = Transcribing { item_id, duration_ms, deltas: TextDeltas::default(), failure: None };
        let reply = Reply::Transcription(Box::new(reply));
        Some(Ok(Job { engine: Engine::clone(asr), input: async { input }.boxed(), reply }))
    }

    fn request(&mut self, reply: &Reply, input: Input) -> EngineCoreRequest {
        let (response, decoded) = match (reply, input) {
            (_, Input::Transcription(request)) => return *request,
            (Reply::Response(response), Input::Response(decoded)) => (Some(response), decoded),
            (Reply::Transcription(_), Input::Response(decoded)) => (None, decoded),
        };
        self.items.set_decoded(decoded);
        let Some((response, chat)) = response.zip(self.chat.as_ref()) else {
            return EngineCoreRequest::converse(Conversation::new());
        };
        let Context { conversation, mut system, end } =
            self.items.context(&response.item_id, chat.config().conversation_limits());
        if let Some(answer) = self.items.answer_mut(&response.item_id) {
            answer.prompt_start = end;
        }
        let config = &response.asked.config;
        system.splice(..0, config.instructions.clone());
        let profile = chat.profile();
        let defaults = profile.default_params();
        let max_tokens = config.max_output_tokens.unwrap_or(defaults.max_tokens);
        let mut request = EngineCoreRequest::converse(Conversation::new())
            .with_chat(ChatOptions { conversation, own_sampling: true, text_temperature: None })
            .with_params(GenerationParams { max_tokens, ..defaults });
        request.instructions = (!system.is_empty()).then(|| system.join("\n"));
        match ChunkSizes::resolve(None, None, profile.info.sample_rate_hz) {
            Ok(chunks) => chunks.of(request),
            Err(_) => request,
        }
    }

    fn number(_reply: &Reply) -> u64 {
        0
    }

    fn deliver(
        &mut self,
        reply: &mut Reply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        match reply {
            Reply::Response(response) => self.deliver_response(response, chunk, out),
            Reply::Transcription(transcription) => {
                let delta = chunk.text.as_deref().and_then(|text| transcription.deltas.push(text));
                if let Some(delta) = delta {
                    let item_id = &transcription.item_id;
                    emit(ServerEvent::TranscriptionDelta { item_id, content_index: 0, delta: &delta }, out);
                }
                Ok(())
            }
        }
    }

    fn end(&mut self, reply: Reply, outcome: Outcome, out: &mut Outbox) {
        match reply {
            Reply::Response(response) => self.end_response(*response, outcome, out),
            Reply::Transcription(transcription) => self.end_transcription(*transcription, &outcome, out),
        }
    }

    fn drop_queued(&mut self) -> bool {
        let had_any = self.asked.take().is_some() || !self.transcriptions.is_empty();
        self.transcriptions.clear();
        had_any
    }

    fn close_input(&mut self) {
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.asked.is_none() && self.transcriptions.is_empty()
    }

    fn write_done(&self, _out: &mut Outbox) {}

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        refuse(&Refusal::from(error.clone()), None, out);
    }

    fn write_failure(&self, reply: &mut Reply, error: &ApiError, _out: &mut Outbox) {
        *reply.failure_mut() = Some(error.clone().into());
    }
}

fn emit(event: ServerEvent<'_>, out: &mut Outbox) {
    out.frame(&Numbered { event_id: new_id("event"), event });
}

/// Tells why an event of the client was refused, or what else failed.
fn refuse(refusal: &Refusal, event_id: Option<&str>, out: &mut Outbox) {
    emit(ServerEvent::Error { error: ErrorBody { refusal, event_id } }, out);
}

/// Events.
impl Realtime {
    fn view(&self) -> serde_json::Value {
        let loaded = self.chat.as_ref().map(|chat| chat.profile().model.as_str());
        self.config.view(&self.id, loaded.or(self.chat_model.as_deref()))
    }

    fn handle(
        &mut self,
        event: Event,
        models: Option<Result<Models, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, Refusal> {
        if self.is_closed {
            return Err(ApiError::Draining.into());
        }
        let models = models.transpose()?;
        let event = match event {
            Event::Update(patch) => {
                self.update(&patch, models, out)?;
                return Ok(Action::None);
            }
            event => event,
        };
        self.keep(models);
        self.configure_input()?;
        match event {
            Event::Update(_) => {}
            Event::Append(bytes) => return self.append(&bytes, out),
            Event::Commit => {
                let clip = self.input_mut()?.commit()?;
                let id = self.turn_item.take().unwrap_or_else(|| new_id("item"));
                self.commit(id, &clip, out)?;
            }
            Event::Clear => {
                self.input_mut()?.clear()?;
                self.turn_item = None;
                emit(ServerEvent::Cleared, out);
            }
            Event::CreateItem(fields, previous) => self.create_item(*fields, previous.as_deref(), out)?,
            Event::DeleteItem(id) => {
                if let Content::Assistant(Assistant { state: State::InProgress, .. }) =
                    &self.items.find(&id)?.content
                {
                    return Err(Refusal::invalid(
                        "item_id",
                        "the item is being generated; cancel its response",
                    ));
                }
                self.items.remove(&id);
                emit(ServerEvent::ItemDeleted { item_id: &id }, out);
            }
            Event::RetrieveItem(id) => {
                let item = self.items.find(&id)?.view();
                emit(ServerEvent::ItemRetrieved { item }, out);
            }
            Event::TruncateItem(truncation) => self.truncate(&truncation, out)?,
            Event::CreateResponse(patch) => {
                let config = self.config.response().patched(*patch)?;
                self.ask(config, out)?;
            }
            Event::CancelResponse(id) => return self.cancel_by_client(id.as_deref(), out),
        }
        Ok(Action::None)
    }

    fn keep(&mut self, models: Option<Models>) {
        let Some(Models { chat, asr }) = models else { return };
        self.chat = chat.or(self.chat.take());
        self.asr = asr.or(self.asr.take());
    }

    fn update(
        &mut self,
        patch: &SessionPatch,
        models: Option<Models>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let config = self.config.patched(patch)?;
        let is_new = self.items.is_empty() && self.input.as_ref().is_none_or(InputBuffer::is_empty);
        if config.kind != self.config.kind && !is_new {
            let message = "session.type cannot change once there is audio or an item; open another session";
            return Err(Refusal::invalid("session.type", message));
        }
        if let Some(model) = patch.model.as_deref().filter(|model| !is_hosted(model)) {
            let loaded = models.as_ref().and_then(|models| models.chat.as_ref()).or(self.chat.as_ref());
            let is_same = self.chat_model.as_deref() == Some(model)
                || loaded.is_some_and(|chat| chat.profile().model == model);
            if !is_same {
                let message = format!(
                    "session.model is '{}', but a session keeps its model; name it in the URL",
                    excerpt(model)
                );
                return Err(Refusal::invalid("session.model", message));
            }
        }
        if let Some(instructions) = &config.instructions {
            check_text("session.instructions", instructions, self.state.config().max_input_chars)?;
        }
        self.keep(models);
        self.config = config;
        self.configure_input()?;
        emit(ServerEvent::SessionUpdated { session: self.view() }, out);
        Ok(())
    }

    /// Makes the input buffer fit the configuration and the models.
    fn configure_input(&mut self) -> Result<(), Refusal> {
        let (turn, commit) = match (self.config.kind, &self.chat, &self.asr) {
            (Kind::Realtime, Some(chat), _) => {
                let longest = chat.config().max_turn_duration;
                (longest, longest)
            }
            (Kind::Transcription, _, Some((_, asr))) => {
                let longest = asr.config().max_audio_duration;
                (longest, longest.min(Duration::from_millis(MAX_WAITING_MS)))
            }
            _ => return Err(ApiError::OutOfOrder("the session has no model yet; send session.update").into()),
        };
        let ms = |time: Duration| time.saturating_sub(TURN_MARGIN).as_millis() as u64;
        let limits = Limits { turn_ms: ms(turn.min(MAX_TURN)), commit_ms: ms(commit) };
        match &mut self.input {
            Some(input) => input.configure(&self.config, limits),
            None => {
                self.input = Some(InputBuffer::new(&self.config, limits)?);
                Ok(())
            }
        }
    }

    fn input_mut(&mut self) -> Result<&mut InputBuffer, Refusal> {
        let missing = || ApiError::OutOfOrder("the session has no model yet; send session.update").into();
        self.input.as_mut().ok_or_else(missing)
    }

    fn append(&mut self, bytes: &[u8], out: &mut Outbox) -> Result<Action, Refusal> {
        let mut action = Action::None;
        for event in self.input_mut()?.push(bytes)? {
            match event {
                TurnEvent::SpeechStarted { at_ms } => {
                    let id = new_id("item");
                    emit(ServerEvent::SpeechStarted { audio_start_ms: at_ms, item_id: &id }, out);
                    self.turn_item = Some(id);
                    let interrupts = self.config.turn_detection.is_some_and(|turns| turns.interrupt_response);
                    if interrupts && self.cancel(CancelReason::TurnDetected, out) {
                        action = Action::Cancel;
                    }
                }
                TurnEvent::SpeechStopped { start_ms, end_ms } => {
                    let id = self.turn_item.take().unwrap_or_else(|| new_id("item"));
                    emit(ServerEvent::SpeechStopped { audio_end_ms: end_ms, item_id: &id }, out);
                    // What was decided for this event stands, also if its turn is refused.
                    if let Err(refusal) = self.end_turn(id, start_ms, end_ms, out) {
                        refusal.count();
                        refuse(&refusal, None, out);
                    }
                }
            }
        }
        self.input_mut()?.trim();
        Ok(action)
    }

    /// Commits a turn that the VAD found, and asks for a response to it.
    fn end_turn(&mut self, id: String, start_ms: u64, end_ms: u64, out: &mut Outbox) -> Result<(), Refusal> {
        let clip = self.input_mut()?.turn(start_ms, end_ms)?;
        self.commit(id, &clip, out)?;
        let responds = self.config.turn_detection.is_some_and(|turns| turns.create_response);
        // A response that waits answers this turn, too.
        if responds && self.config.kind == Kind::Realtime && self.asked.is_none() {
            self.ask(self.config.response(), out)?;
        }
        Ok(())
    }

    fn commit(&mut self, id: String, clip: &Clip, out: &mut Outbox) -> Result<(), Refusal> {
        let waiting: u64 = self.transcriptions.iter().map(|waiting| waiting.duration_ms).sum();
        if waiting.max(self.items.waiting_ms()) + clip.duration_ms > MAX_WAITING_MS {
            return Err(too_much_waits());
        }
        self.items.push(Item::audio(id.clone(), clip));
        let previous_item_id = self.items.before(&id);
        emit(ServerEvent::Committed { item_id: &id, previous_item_id }, out);
        self.tell_item(&id, out);
        if self.config.transcription.is_some() {
            let (item_id, file) = (id.clone(), clip.file.clone());
            self.transcriptions.push_back(Waiting { item_id, file, duration_ms: clip.duration_ms });
        }
        if self.config.kind == Kind::Transcription {
            self.items.drop_audio(&id);
        }
        Ok(())
    }

    /// Tells an item of the user, which is complete from the start.
    fn tell_item(&self, id: &str, out: &mut Outbox) {
        let Some(item) = self.items.get(id).map(Item::view) else { return };
        let previous_item_id = self.items.before(id);
        emit(ServerEvent::ItemAdded { item: item.clone(), previous_item_id }, out);
        emit(ServerEvent::ItemDone { item, previous_item_id }, out);
    }

    fn create_item(
        &mut self,
        fields: ItemFields,
        previous: Option<&str>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        if self.config.kind == Kind::Transcription {
            return Err(Refusal::unsupported(
                "type",
                "a transcription session takes audio from its buffer only",
            ));
        }
        let chars = fields.content.iter().flatten().filter_map(|part| part.text.as_deref());
        let chars = self.chars + chars.map(|text| text.chars().count()).sum::<usize>();
        let limit = self.state.config().max_session_chars;
        if chars > limit {
            let message =
                format!("the session has more than {limit} characters of text; open another session");
            return Err(ApiError::TooLarge(message).into());
        }
        let max_chars = self.state.config().max_input_chars;
        let item = Item::create(fields, new_id("item"), self.config.input_format, max_chars)?;
        let id = item.id.clone();
        self.items.insert(item, previous)?;
        self.chars = chars;
        self.tell_item(&id, out);
        Ok(())
    }

    fn truncate(&mut self, truncation: &Truncation, out: &mut Outbox) -> Result<(), Refusal> {
        let Truncation { item_id, content_index, audio_end_ms } = truncation;
        self.items.find(item_id)?;
        let rate = self.chat.as_ref().map_or(0, |chat| chat.profile().info.sample_rate_hz);
        let Some(answer) = self.items.answer_mut(item_id) else {
            return Err(Refusal::invalid(
                "item_id",
                "the item is no answer of the model; only those are truncated",
            ));
        };
        if *content_index != 0 {
            let message = format!("content_index is {content_index}; an answer has one part, 0");
            return Err(Refusal::invalid("content_index", message));
        }
        let samples = audio_end_ms.saturating_mul(u64::from(rate)) / 1_000;
        if samples > answer.samples {
            let has = answer.samples * 1_000 / u64::from(rate.max(1));
            let message = format!("audio_end_ms is {audio_end_ms}, but the item has {has} ms of audio");
            return Err(Refusal::invalid("audio_end_ms", message));
        }
        answer.truncate(samples);
        count_interrupt(Task::Chat);
        let (content_index, audio_end_ms) = (*content_index, *audio_end_ms);
        emit(ServerEvent::ItemTruncated { item_id, content_index, audio_end_ms }, out);
        Ok(())
    }

    fn ask(&mut self, config: ResponseConfig, out: &mut Outbox) -> Result<(), Refusal> {
        if self.config.kind == Kind::Transcription {
            return Err(Refusal::unsupported("type", "a transcription session has no responses"));
        }
        let is_active = self.active.as_ref().is_some_and(|(_, cancelled)| cancelled.is_none());
        if is_active || self.asked.is_some() {
            let message = "a response is being generated; wait for response.done, or cancel it";
            return Err(Refusal::coded("conversation_already_has_active_response", None, message));
        }
        if !self.items.is_asked() {
            let message = "there is nothing to answer; commit audio or create a user item first";
            return Err(Refusal::coded("nothing_to_answer", None, message));
        }
        if let Some(instructions) = &config.instructions {
            check_text("response.instructions", instructions, self.state.config().max_input_chars)?;
        }
        let asked = Asked { id: new_id("resp"), config };
        emit(ServerEvent::ResponseCreated { response: asked.begun(&self.conversation_id) }, out);
        self.asked = Some(asked);
        Ok(())
    }

    fn cancel_by_client(&mut self, id: Option<&str>, out: &mut Outbox) -> Result<Action, Refusal> {
        let is_meant = |response: &str| id.is_none_or(|id| id == response);
        let active = self.active.as_ref().is_some_and(|(id, cancelled)| cancelled.is_none() && is_meant(id));
        if !active && !self.asked.as_ref().is_some_and(|asked| is_meant(&asked.id)) {
            let message = "no such response is being generated";
            return Err(Refusal::coded("response_cancel_not_active", None, message));
        }
        let stops = self.cancel(CancelReason::Client, out);
        Ok(if stops { Action::Cancel } else { Action::None })
    }

    /// Cancels the response that waits, and the one that is generated. Whether the driver has to end the latter.
    fn cancel(&mut self, reason: CancelReason, out: &mut Outbox) -> bool {
        if let Some(asked) = self.asked.take() {
            let response = asked.ended(&self.conversation_id, &Ending::Cancelled(reason), None);
            emit(ServerEvent::ResponseDone { response }, out);
        }
        match &mut self.active {
            Some((_, cancelled @ None)) => {
                *cancelled = Some(reason);
                true
            }
            _ => false,
        }
    }
}

/// Generations.
impl Realtime {
    fn respond(&mut self, asked: Asked, engine: Engine) -> Result<Job<Self>, ApiError> {
        let encoded = asked.config.output_format.encoder(engine.profile().info.sample_rate_hz)?;
        let item_id = new_id("item");
        let undecoded = self.items.undecoded();
        let content = Content::Assistant(Assistant::new(asked.config.modality));
        self.items.push(Item { id: item_id.clone(), content });
        self.active = Some((asked.id.clone(), None));
        let input = decode(engine.clone(), undecoded, self.id.clone()).boxed();
        let reply = Responding {
            asked,
            item_id,
            encoded,
            text: String::new(),
            is_told: false,
            tokens: (0, 0),
            failure: None,
        };
        Ok(Job { engine, input, reply: Reply::Response(Box::new(reply)) })
    }

    fn deliver_response(
        &mut self,
        response: &mut Responding,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        if !response.is_told {
            response.is_told = true;
            let item = self.items.get(&response.item_id).map(Item::view).unwrap_or_default();
            let previous = self.items.before(&response.item_id);
            response.opening(item, previous).into_iter().for_each(|event| emit(event, out));
        }
        let audio = response.encoded.encode(&chunk)?;
        if let Some(delta) = &chunk.text {
            response.text.push_str(delta);
        }
        response.count(&chunk.emissions);
        for event in response.deltas(chunk.text.as_deref(), &audio) {
            emit(event, out);
        }
        // What comes behind a truncation was not heard.
        if let Some(answer) = self.items.answer_mut(&response.item_id)
            && let Some(text) = &mut answer.text
        {
            text.push_str(chunk.text.as_deref().unwrap_or_default());
            answer.samples += chunk.samples.len() as u64;
            answer.produced.push(chunk.emissions, &chunk.emission_ends);
        }
        Ok(())
    }

    fn end_response(&mut self, response: Responding, outcome: Outcome, out: &mut Outbox) {
        let cancelled = self.active.take().and_then(|(_, cancelled)| cancelled);
        let failure = response.failure.clone();
        let (ending, prompt_tokens) = match &outcome {
            Outcome::Finished(finish) => {
                (Ending::of(finish, cancelled, failure), Some(finish.stats.prompt_tokens))
            }
            Outcome::Cancelled => (Ending::Cancelled(cancelled.unwrap_or(CancelReason::Client)), None),
            Outcome::Failed => {
                let failure = failure.unwrap_or_else(|| ApiError::CutOff.into());
                if failure.kind == "invalid_request_error" {
                    // The next response is not to fail of the same.
                    self.items.drop_undecoded();
                }
                (Ending::Failed(failure), None)
            }
        };
        let item = response.is_told.then(|| {
            if let Some(answer) = self.items.answer_mut(&response.item_id) {
                answer.state = ending.state();
                answer.prompt_tokens = prompt_tokens.unwrap_or_default().saturating_sub(answer.prompt_start);
            }
            let item = self.items.get(&response.item_id).map(Item::view).unwrap_or_default();
            let previous = self.items.before(&response.item_id);
            response.closing(item.clone(), previous).into_iter().for_each(|event| emit(event, out));
            item
        });
        if item.is_none() {
            self.items.remove(&response.item_id);
        }
        let mut done = response.asked.ended(&self.conversation_id, &ending, item);
        if let Some(prompt_tokens) = prompt_tokens {
            done["usage"] = usage(prompt_tokens, response.tokens);
        }
        emit(ServerEvent::ResponseDone { response: done }, out);
    }

    fn end_transcription(&mut self, transcription: Transcribing, outcome: &Outcome, out: &mut Outbox) {
        let Transcribing { item_id, duration_ms, deltas, failure } = transcription;
        let failure = failure.or_else(|| match outcome {
            Outcome::Finished(finish) if finish.reason != FinishReason::Cancelled => None,
            Outcome::Finished(_) | Outcome::Cancelled => Some(ApiError::Draining.into()),
            Outcome::Failed => Some(ApiError::CutOff.into()),
        });
        if let Some(error) = &failure {
            return emit(
                ServerEvent::TranscriptionFailed { item_id: &item_id, content_index: 0, error },
                out,
            );
        }
        let transcript = deltas.into_text();
        self.items.set_transcript(&item_id, &transcript);
        let event = ServerEvent::TranscriptionCompleted {
            item_id: &item_id,
            content_index: 0,
            transcript: &transcript,
            usage: DurationUsage::new(duration_ms as f64 / 1_000.0),
        };
        emit(event, out);
    }
}

/// Decodes the user's audio for the model.
async fn decode(engine: Engine, undecoded: Undecoded, session_id: String) -> Result<Input, ApiError> {
    let mut decoded = Vec::with_capacity(undecoded.len());
    for (item, part, file) in undecoded {
        let samples = engine.decode_message(AudioInput::File(file)).await;
        let id = RequestId::from(session_id.as_str());
        let samples = samples.map_err(|error| ApiError::from_engine(error, &engine.profile().model, &id))?;
        decoded.push((item, part, samples));
    }
    Ok(Input::Response(decoded))
}
