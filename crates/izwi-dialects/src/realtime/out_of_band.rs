//! Out-of-band responses, which are no part of the conversation: with a context of their own, and nothing of them stays.
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
use super::response::{Active, Asked, CancelReason, Ending, MAX_ACTIVE_OUT_OF_BAND, OutOfBand};
use super::session::Session;

/// The most responses of a session that are generated or wait.
const MAX_OUT_OF_BAND: usize = 8;
/// The most items of a context.
const MAX_INPUT: usize = 64;

impl Session {
    /// Asks for a response out of the conversation.
    pub(super) fn ask_out_of_band(
        &mut self,
        mut patch: ResponsePatch,
        out: &mut Outbox,
    ) -> Result<(), Refusal> {
        let items = match patch.input.take() {
            None => self.items.clone(),
            Some(input) => self.items_of_input(input)?,
        };
        let config = self.config.response().patched(patch)?;
        self.check_asked(&items, &config)?;
        if self.out_of_band.len() >= MAX_OUT_OF_BAND {
            let message = format!("{MAX_OUT_OF_BAND} responses out of the conversation wait; let some end");
            return Err(ApiError::overloaded(message).into());
        }
        let asked = Asked { id: new_id("resp"), config, is_out_of_band: true };
        emit(ServerEvent::ResponseCreated { response: asked.begun(&self.conversation_id) }, out);
        let active = Active { id: asked.id.clone(), number: self.next_number(), cancelled: None };
        self.out_of_band.push(OutOfBand { asked, active, items, is_begun: false });
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
    pub(super) fn next_out_of_band(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        if self.out_of_band.iter().filter(|other| other.is_begun).count() >= MAX_ACTIVE_OUT_OF_BAND {
            return None;
        }
        let engine = Engine::clone(self.chat.as_ref()?);
        let other = self.out_of_band.iter_mut().find(|other| !other.is_begun)?;
        other.is_begun = true;
        let (asked, number) = (other.asked.clone(), other.active.number);
        let job = self.respond(asked, number, engine);
        if job.is_err() {
            self.out_of_band.retain(|other| other.active.number != number);
        }
        Some(job)
    }

    /// The items of the conversation that a response belongs to.
    pub(super) fn items_of(&mut self, number: u64) -> &mut Items {
        match self.out_of_band.iter_mut().find(|other| other.active.number == number) {
            Some(other) => &mut other.items,
            None => &mut self.items,
        }
    }

    /// Cancels a response out of the conversation, if there is one with this id.
    pub(super) fn cancel_out_of_band(&mut self, id: &str, out: &mut Outbox) -> bool {
        let Some(at) = self.out_of_band.iter().position(|other| other.active.id == id) else { return false };
        let other = &mut self.out_of_band[at];
        if !other.is_begun {
            let ending = Ending::Cancelled(CancelReason::Client);
            let response =
                self.out_of_band.remove(at).asked.ended(&self.conversation_id, &ending, Vec::new());
            emit(ServerEvent::ResponseDone { response }, out);
        } else if other.active.cancelled.replace(CancelReason::Client).is_none() {
            self.cancelled.push_back(other.active.number);
        }
        true
    }

    /// Drops those that have not begun. False if there were none.
    pub(super) fn drop_out_of_band(&mut self) -> bool {
        let before = self.out_of_band.len();
        self.out_of_band.retain(|other| other.is_begun);
        self.out_of_band.len() < before
    }
}
