//! What the events of a client do to a session.

use std::time::Duration;

use izwi_core::engine::{Task, Tool, ToolChoice};
use izwi_server::live::LiveTranscriber;
use izwi_server::metrics::count_interrupt;
use izwi_server::speech::check_text;
use izwi_server::turns::{Deciding, Heard, TurnEvent};
use izwi_server::ws::outbox::Outbox;
use izwi_server::{ApiError, Lease};
use izwi_types::excerpt;

use super::beta;
use super::config::{Kind, ResponseConfig, SessionPatch, Transcription};
use super::events::{Event, ItemFields, ServerEvent, Truncation, emit, new_id, refuse};
use super::input::{Clip, InputBuffer, Limits};
use super::items::{Assistant, Content, Item, Items, MAX_WAITING_MS, State, too_much_waits};
use super::refusal::Refusal;
use super::response::{Active, Asked, CancelReason, Ending};
use super::session::{Models, Session, is_hosted, turns_of};
use super::transcripts::{Completed, Transcripts, untold};
use super::turn_detection::TurnDetection;

/// The longest turn that the VAD finds, where the model takes longer ones.
const MAX_TURN: Duration = Duration::from_secs(60);
/// A turn ends this much before the limit of the model, because it ends at a frame of the VAD.
const TURN_MARGIN: Duration = Duration::from_millis(100);

impl Session {
    pub(super) fn view(&self) -> serde_json::Value {
        let loaded = self.chat.as_ref().map(|chat| chat.profile().model.as_str());
        self.config.view(&self.id, loaded.or(self.chat_model.as_deref()))
    }

    pub(super) fn handle(
        &mut self,
        event: Event,
        models: Option<Result<Models, ApiError>>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        if self.is_closed {
            return Err(ApiError::Draining.into());
        }
        if !matches!(event, Event::Append(_)) {
            self.cancel_speculation();
        }
        let models = models.transpose()?;
        self.adopt_turns(models.as_ref());
        let event = match event {
            Event::Update(patch) => {
                return self.update(&patch, models, out);
            }
            event => event,
        };
        self.keep(models);
        self.configure_input(out)?;
        match event {
            Event::Update(_) => {}
            Event::Append(bytes) => self.append(&bytes, out)?,
            Event::Commit => self.commit_by_client(out)?,
            Event::Clear => {
                let heard = self.input_mut()?.clear()?;
                self.discard_transcript();
                self.hear(&heard, out)?;
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
            Event::CreateResponse(mut patch) => {
                match patch.conversation.take().as_deref() {
                    None | Some("auto") if patch.input.is_none() => {}
                    None | Some("auto") => {
                        let message = "response.input is only for a response out of the conversation; set response.conversation to none, or \
                             create items with conversation.item.create";
                        return Err(Refusal::invalid("response.input", message));
                    }
                    Some("none") => return self.ask_out_of_band(*patch, out),
                    Some(other) => {
                        let message =
                            format!("response.conversation is '{}'; use auto or none", excerpt(other));
                        return Err(Refusal::invalid("response.conversation", message));
                    }
                }
                let config = self.config.response().patched(*patch)?;
                self.ask(config, out)?;
            }
            Event::CancelResponse(id) => self.cancel_by_client(id.as_deref(), out)?,
        }
        Ok(())
    }

    /// Finds turns as a pipeline says, once it is loaded: clients change that.
    fn adopt_turns(&mut self, models: Option<&Models>) {
        let Some(models) = models.filter(|_| self.chat.is_none()) else { return };
        if let Some(turns) = models.chat.as_ref().and_then(|chat| turns_of(chat)) {
            let has_model = self.turns.is_some() || models.turns.is_some();
            self.config.turn_detection = Some(TurnDetection::of(turns.available(has_model)));
        }
    }

    fn keep(&mut self, models: Option<Models>) {
        let Some(Models { chat, asr, turns }) = models else { return };
        self.chat = chat.or(self.chat.take());
        self.asr = asr.or(self.asr.take());
        self.turns = turns.or(self.turns.take());
    }

    fn update(
        &mut self,
        patch: &SessionPatch,
        models: Option<Models>,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let mut config = self.config.patched(patch)?;
        let has_turns = self.turns.is_some() || models.as_ref().is_some_and(|models| models.turns.is_some());
        if let Some(detection) = config.turn_detection.filter(|turns| turns.eagerness.is_some() && !has_turns)
        {
            // LiveKit and openai-agents ask for it by themselves, so silence serves them, which `session.updated` tells.
            config.turn_detection = Some(detection.server_vad());
        }
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
        let chat = models.as_ref().and_then(|models| models.chat.as_ref()).or(self.chat.as_ref());
        self.check_tools("session", &config.tools, &config.tool_choice, chat)?;
        chat.map_or(Ok(()), |chat| config.output.check("session.audio.output", chat.profile()))?;
        let asr = models.as_ref().and_then(|models| models.asr.as_ref()).or(self.asr.as_ref());
        if let (Some((_, asr)), Some(wanted)) = (asr, &config.transcription)
            && self.config.transcription.as_ref() != Some(wanted)
        {
            // What the model does not support is refused before it counts.
            Transcripts::new(&self.state, asr, wanted, 0)?;
        }
        self.keep(models);
        self.config = config;
        self.configure_input(out)?;
        if patch.is_beta {
            out.translate(beta::event);
        }
        emit(ServerEvent::SessionUpdated { session: self.view() }, out);
        Ok(())
    }

    /// Refuses tools where the model does not call them.
    fn check_tools(
        &self,
        of: &str,
        tools: &[Tool],
        choice: &ToolChoice,
        chat: Option<&Lease>,
    ) -> Result<(), Refusal> {
        let member = match choice {
            _ if !tools.is_empty() => "tools",
            ToolChoice::Required | ToolChoice::Named(_) => "tool_choice",
            ToolChoice::Auto | ToolChoice::None => return Ok(()),
        };
        if chat.is_some_and(|chat| chat.profile().info.calls_tools) {
            return Ok(());
        }
        let model = chat.map_or("of this session", |chat| chat.profile().model.as_str());
        let what = format!("the model {model} calls no tools; leave it out, or use a pipeline");
        Err(Refusal::unsupported(&format!("{of}.{member}"), &what))
    }

    /// Makes the input buffer fit the configuration and the models.
    fn configure_input(&mut self, out: &mut Outbox) -> Result<(), Refusal> {
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
        let asr = self.asr.as_ref().filter(|_| self.transcription().is_some());
        let transcribed_ms = asr.map(|(_, asr)| LiveTranscriber::max_turn_ms(asr));
        let limits = Limits { turn_ms: ms(turn.min(MAX_TURN)), commit_ms: ms(commit), transcribed_ms };
        let turn_model = self.turn_model();
        let ended = match &mut self.input {
            Some(input) => input.configure(&self.config, limits, turn_model)?,
            None => {
                self.input = Some(InputBuffer::new(&self.state, &self.config, limits, turn_model)?);
                None
            }
        };
        if let Some(ended) = ended {
            let needed_from_ms = self.input.as_ref().map_or(0, InputBuffer::now_ms);
            self.hear(&Heard { samples: Vec::new(), turns: vec![ended], needed_from_ms }, out)?;
        }
        self.configure_transcripts()
    }

    /// Makes the transcripts fit the configuration, once nothing is said or waits.
    fn configure_transcripts(&mut self) -> Result<(), Refusal> {
        let wanted = self.transcription();
        if let Some(current) = &mut self.transcripts {
            if wanted.is_none() && !current.is_retired() {
                current.retire();
            }
            if wanted.as_ref().is_some_and(|wanted| current.is_of(wanted)) || !current.is_idle() {
                return Ok(());
            }
        }
        let origin_ms = self.input.as_ref().map_or(0, InputBuffer::now_ms);
        self.transcripts = match (&self.asr, &wanted) {
            (Some((_, asr)), Some(config)) => Some(Transcripts::new(&self.state, asr, config, origin_ms)?),
            _ => None,
        };
        Ok(())
    }

    /// How what is said is transcribed, for the client or for a model that reads it.
    fn transcription(&self) -> Option<Transcription> {
        let transcriber = || self.chat.as_ref()?.profile().info.transcriber.as_ref();
        let untold = || match (transcriber(), &self.asr) {
            (Some(own), Some((name, asr))) if name.as_ref() == Some(&own.model) => {
                Some(untold(own, &asr.profile().info))
            }
            _ => None,
        };
        self.config.transcription.clone().or_else(untold)
    }

    /// The transcripts, if what is said now is transcribed.
    fn listening(&mut self) -> Option<&mut Transcripts> {
        self.transcripts.as_mut().filter(|transcripts| !transcripts.is_retired())
    }

    fn admit(&mut self, ms: u64) -> Result<(), Refusal> {
        self.listening().map_or(Ok(()), |transcripts| Ok(transcripts.admit(ms)?))
    }

    /// Transcribes audio, whose turns have begun.
    fn hear(&mut self, heard: &Heard, out: &mut Outbox) -> Result<(), Refusal> {
        if let Some(transcripts) = self.listening() {
            transcripts.hear(heard, out)?;
        }
        self.settle(out);
        Ok(())
    }

    /// Tells the transcripts that are completed.
    pub(super) fn settle(&mut self, out: &mut Outbox) {
        let reads = self.reads_transcripts();
        while let Some(completed) = self.transcripts.as_mut().and_then(Transcripts::next_completed) {
            if let Completed { item_id, text: Ok(text), is_told, .. } = &completed {
                // Audio in which no speech was found is left to the model.
                self.items.set_transcript(item_id, text, reads && (*is_told || !text.is_empty()));
            }
            if completed.is_told {
                completed.tell(out);
            }
        }
    }

    /// Whether the model that answers takes the transcripts of this session for what was said.
    fn reads_transcripts(&self) -> bool {
        self.chat.as_ref().is_some_and(|chat| chat.profile().info.transcriber.is_some())
    }

    /// Whether the response has to wait for a transcript.
    pub(super) fn awaits_transcript(&self) -> bool {
        let waits = |transcripts: &Transcripts| !transcripts.is_retired() && transcripts.has_committed();
        self.reads_transcripts() && self.transcripts.as_ref().is_some_and(waits)
    }

    /// Forgets the transcript of an item that is not committed.
    fn discard_transcript(&mut self) {
        if let Some(transcripts) = &mut self.transcripts {
            transcripts.discard();
        }
    }

    /// Begins the turns of audio that the client commits.
    fn begin_turns(&mut self, heard: &Heard) {
        let begins = |event: &&TurnEvent| matches!(event, TurnEvent::SpeechStarted { .. });
        for _ in heard.turns.iter().filter(begins) {
            let id = self.turn_item.get_or_insert_with(|| new_id("item")).clone();
            if let Some(transcripts) = self.listening() {
                transcripts.begin(&id);
            }
        }
    }

    fn input_mut(&mut self) -> Result<&mut InputBuffer, Refusal> {
        let missing = || ApiError::OutOfOrder("the session has no model yet; send session.update").into();
        self.input.as_mut().ok_or_else(missing)
    }

    fn append(&mut self, bytes: &[u8], out: &mut Outbox) -> Result<(), Refusal> {
        let added_ms = self.input_mut()?.ms_of(bytes.len());
        self.admit(added_ms)?;
        let heard = self.input_mut()?.push(bytes)?;
        self.take_heard(&heard, out)
    }

    /// Takes the decision on a pause, and hears the audio that waited for it.
    pub(super) fn resume(&mut self, deciding: &Deciding, out: &mut Outbox) -> Result<(), Refusal> {
        let heard = self.input_mut()?.resume(deciding);
        self.take_heard(&heard, out)
    }

    fn take_heard(&mut self, heard: &Heard, out: &mut Outbox) -> Result<(), Refusal> {
        match self.config.turn_detection {
            Some(_) => self.tell_turns(heard, out),
            None => self.begin_turns(heard),
        }
        self.hear(heard, out)?;
        self.input_mut()?.trim();
        Ok(())
    }

    /// Tells the turns that the VAD found.
    fn tell_turns(&mut self, heard: &Heard, out: &mut Outbox) {
        for event in &heard.turns {
            match *event {
                TurnEvent::SpeechStarted { at_ms } => {
                    let id = new_id("item");
                    if let Some(transcripts) = self.listening() {
                        transcripts.begin(&id);
                    }
                    emit(ServerEvent::SpeechStarted { audio_start_ms: at_ms, item_id: &id }, out);
                    self.turn_item = Some(id);
                    let interrupts = self.config.turn_detection.is_some_and(|turns| turns.interrupt_response);
                    if interrupts {
                        self.cancel(CancelReason::TurnDetected, out);
                    }
                }
                TurnEvent::Lull { .. } => {}
                TurnEvent::Resumed => self.cancel_speculation(),
                TurnEvent::SpeechStopped { start_ms, end_ms, .. } => {
                    let id = self.turn_item.take().unwrap_or_else(|| new_id("item"));
                    emit(ServerEvent::SpeechStopped { audio_end_ms: end_ms, item_id: &id }, out);
                    // What was decided for this event stands, also if its turn is refused.
                    if let Err(refusal) = self.end_turn(id, start_ms, end_ms, out) {
                        refusal.count();
                        refuse(&refusal, None, out);
                        self.discard_transcript();
                        self.cancel_speculation();
                    }
                }
            }
        }
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

    fn commit_by_client(&mut self, out: &mut Outbox) -> Result<(), Refusal> {
        self.admit(0)?;
        let mut heard = Heard::default();
        let clip = self.input_mut()?.commit(&mut heard);
        self.begin_turns(&heard);
        let committed = clip.and_then(|clip| {
            let id = self.turn_item.take().unwrap_or_else(|| new_id("item"));
            self.commit(id, &clip, out).inspect_err(|_| self.discard_transcript())
        });
        self.hear(&heard, out)?;
        committed
    }

    fn commit(&mut self, id: String, clip: &Clip, out: &mut Outbox) -> Result<(), Refusal> {
        if clip.file.is_some() && self.items.waiting_ms() + clip.duration_ms > MAX_WAITING_MS {
            return Err(too_much_waits());
        }
        self.items.push(Item::audio(id.clone(), clip));
        let previous_item_id = self.items.before(&id);
        emit(ServerEvent::Committed { item_id: &id, previous_item_id }, out);
        self.tell_item(&id, out);
        if let Some(transcripts) = self.listening() {
            transcripts.commit(&id, clip.duration_ms);
            self.settle(out);
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
        let texts = fields.content.iter().flatten().flat_map(|part| [&part.text, &part.transcript]);
        let texts = texts.chain([&fields.arguments, &fields.output]);
        let chars = self.chars + texts.flatten().map(|text| text.chars().count()).sum::<usize>();
        let limit = self.state.config().max_session_chars;
        if chars > limit {
            let message =
                format!("the session has more than {limit} characters of text; open another session");
            return Err(ApiError::TooLarge(message).into());
        }
        let item = Item::create(fields, new_id("item"), self.config.input_format, &self.state)?;
        let is_of_tool = matches!(item.content, Content::Call(_) | Content::Output { .. });
        if let Some(chat) = self.chat.as_ref().filter(|chat| is_of_tool && !chat.profile().info.calls_tools) {
            let what = format!("the model {} calls no tools; use a pipeline", chat.profile().model);
            return Err(Refusal::unsupported("item.type", &what));
        }
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
        // Clients count by a clock of their own, which may be ahead of the audio that they were sent.
        let samples = audio_end_ms.saturating_mul(u64::from(rate)) / 1_000;
        let (samples, audio_end_ms) = match samples > answer.samples {
            true => (answer.samples, answer.samples * 1_000 / u64::from(rate.max(1))),
            false => (samples, *audio_end_ms),
        };
        answer.truncate(samples);
        count_interrupt(Task::Chat);
        let content_index = *content_index;
        emit(ServerEvent::ItemTruncated { item_id, content_index, audio_end_ms }, out);
        Ok(())
    }

    /// Refuses a response that this session cannot give to these items.
    pub(super) fn check_asked(&self, items: &Items, config: &ResponseConfig) -> Result<(), Refusal> {
        if self.config.kind == Kind::Transcription {
            return Err(Refusal::unsupported("type", "a transcription session has no responses"));
        }
        let calls_tools = self.chat.as_ref().is_some_and(|chat| chat.profile().info.calls_tools);
        if !items.is_asked() && !calls_tools {
            let message = "there is nothing to answer; commit audio or create a user item first";
            return Err(Refusal::coded("nothing_to_answer", None, message));
        }
        let chat = self.chat.as_ref();
        self.check_tools("response", &config.tools, &config.tool_choice, chat)?;
        chat.map_or(Ok(()), |chat| config.output.check("response.audio.output", chat.profile()))?;
        if let Some(instructions) = &config.instructions {
            check_text("response.instructions", instructions, self.state.config().max_input_chars)?;
        }
        Ok(())
    }

    fn ask(&mut self, config: ResponseConfig, out: &mut Outbox) -> Result<(), Refusal> {
        let is_active = self.active.as_ref().is_some_and(|active| active.cancelled.is_none());
        if is_active || self.asked.is_some() {
            let message = "a response is being generated; wait for response.done, or cancel it";
            return Err(Refusal::coded("conversation_already_has_active_response", None, message));
        }
        self.check_asked(&self.items, &config)?;
        let speculation = self.speculation.as_ref().map(|speculation| speculation.asked.id.clone());
        let asked =
            Asked { id: speculation.unwrap_or_else(|| new_id("resp")), config, is_out_of_band: false };
        emit(ServerEvent::ResponseCreated { response: asked.begun(&self.conversation_id) }, out);
        self.asked = Some(asked);
        Ok(())
    }

    fn cancel_by_client(&mut self, id: Option<&str>, out: &mut Outbox) -> Result<(), Refusal> {
        if id.is_some_and(|id| self.cancel_out_of_band(id, out)) {
            return Ok(());
        }
        let is_meant = |response: &str| id.is_none_or(|id| id == response);
        let is_active = |active: &Active| active.cancelled.is_none() && is_meant(&active.id);
        if !self.active.as_ref().is_some_and(is_active)
            && !self.asked.as_ref().is_some_and(|asked| is_meant(&asked.id))
        {
            let message = "no such response is being generated";
            return Err(Refusal::coded("response_cancel_not_active", None, message));
        }
        self.cancel(CancelReason::Client, out);
        Ok(())
    }

    /// Cancels the response that waits, and the one that is generated.
    fn cancel(&mut self, reason: CancelReason, out: &mut Outbox) {
        self.cancel_speculation();
        if let Some(asked) = self.asked.take() {
            let response = asked.ended(&self.conversation_id, &Ending::Cancelled(reason), Vec::new());
            emit(ServerEvent::ResponseDone { response }, out);
        }
        if let Some(active) = self.active.as_mut().filter(|active| active.cancelled.is_none()) {
            active.cancelled = Some(reason);
            self.cancelled.push_back(active.number);
        }
    }
}
