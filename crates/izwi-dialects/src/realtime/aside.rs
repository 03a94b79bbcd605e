//! Responses out of the conversation: with a context of their own, and nothing of them stays.
//! <https://platform.openai.com/docs/guides/realtime-conversations#create-responses-outside-the-default-conversation>

use izwi_core::engine::Engine;
use izwi_server::ApiError;
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::Job;
use izwi_types::excerpt;
use serde::Deserialize as _;
use serde_json::Value;

use super::config::ResponsePatch;
use super::events::{ItemFields, ServerEvent, emit, new_id};
use super::items::{Item, Items};
use super::refusal::Refusal;
use super::response::{Active, Aside, Asked, CancelReason, Ending, MAX_ACTIVE_ASIDES};
use super::session::Session;

/// The most responses of a session that are generated or wait.
const MAX_ASIDES: usize = 8;
/// The most items of a context.
const MAX_INPUT: usize = 64;

impl Session {
    /// Asks for a response out of the conversation.
    pub(super) fn ask_aside(&mut self, mut patch: ResponsePatch, out: &mut Outbox) -> Result<(), Refusal> {
        let items = match patch.input.take() {
            None => self.items.clone(),
            Some(input) => self.items_of_input(input)?,
        };
        let config = self.config.response().patched(patch)?;
        self.check_asked(&items, &config)?;
        if self.asides.len() >= MAX_ASIDES {
            let message = format!("{MAX_ASIDES} responses out of the conversation wait; let some end");
            return Err(ApiError::overloaded(message).into());
        }
        let asked = Asked { id: new_id("resp"), config, is_aside: true };
        emit(ServerEvent::ResponseCreated { response: asked.begun(&self.conversation_id) }, out);
        let active = Active { id: asked.id.clone(), number: self.next_number(), cancelled: None };
        self.asides.push(Aside { asked, active, items, is_begun: false });
        Ok(())
    }

    /// The items that a client sends along, or refers to.
    fn items_of_input(&self, input: Vec<Value>) -> Result<Items, Refusal> {
        if input.len() > MAX_INPUT {
            let message = format!("response.input has {} items; send at most {MAX_INPUT}", input.len());
            return Err(Refusal::invalid("response.input", message));
        }
        let mut items = Items::default();
        for (index, value) in input.into_iter().enumerate() {
            let place = format!("response.input[{index}]");
            let item = match value["type"].as_str() {
                Some("item_reference") => {
                    let id = value["id"].as_str().unwrap_or_default();
                    let missing = |_| format!("{place}.id is '{}'; there is no such item", excerpt(id));
                    let found =
                        self.items.find(id).map_err(|error| Refusal::invalid(&place, missing(error)))?;
                    found.clone()
                }
                _ => {
                    let fields = ItemFields::deserialize(value);
                    let fields =
                        fields.map_err(|error| Refusal::invalid(&place, format!("{place}: {error}")))?;
                    let item = Item::create(fields, new_id("item"), self.config.input_format, &self.state);
                    item.map_err(|refusal| refusal.within("item", &place))?
                }
            };
            items.insert(item, None)?;
        }
        Ok(items)
    }

    /// The job of the next response out of the conversation.
    pub(super) fn next_aside(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        if self.asides.iter().filter(|aside| aside.is_begun).count() >= MAX_ACTIVE_ASIDES {
            return None;
        }
        let engine = Engine::clone(self.chat.as_ref()?);
        let aside = self.asides.iter_mut().find(|aside| !aside.is_begun)?;
        aside.is_begun = true;
        let (asked, number) = (aside.asked.clone(), aside.active.number);
        let job = self.respond(asked, number, engine);
        if job.is_err() {
            self.asides.retain(|aside| aside.active.number != number);
        }
        Some(job)
    }

    /// The items of the conversation that a response belongs to.
    pub(super) fn items_of(&mut self, number: u64) -> &mut Items {
        match self.asides.iter_mut().find(|aside| aside.active.number == number) {
            Some(aside) => &mut aside.items,
            None => &mut self.items,
        }
    }

    /// Cancels a response out of the conversation, if there is one with this id.
    pub(super) fn cancel_aside(&mut self, id: &str, out: &mut Outbox) -> bool {
        let Some(at) = self.asides.iter().position(|aside| aside.active.id == id) else { return false };
        let aside = &mut self.asides[at];
        if !aside.is_begun {
            let ending = Ending::Cancelled(CancelReason::Client);
            let response = self.asides.remove(at).asked.ended(&self.conversation_id, &ending, Vec::new());
            emit(ServerEvent::ResponseDone { response }, out);
        } else if aside.active.cancelled.replace(CancelReason::Client).is_none() {
            self.cancelled.push_back(aside.active.number);
        }
        true
    }

    /// Drops those that have not begun. False if there were none.
    pub(super) fn drop_asides(&mut self) -> bool {
        let before = self.asides.len();
        self.asides.retain(|aside| aside.is_begun);
        self.asides.len() < before
    }
}
