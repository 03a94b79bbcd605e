//! Responses that begin in a pause, before it is known that the turn has ended. They are held until then. If speech goes on, or
//! something else is asked, they are cancelled, and their clients learn nothing of them.

use izwi_core::engine::{Engine, Message};
use izwi_server::ApiError;
use izwi_server::ws::protocol::Job;

use super::config::Kind;
use super::events::new_id;
use super::items::Context;
use super::response::{Asked, Early, Reply, Responding};
use super::session::Session;
use super::transcripts::Transcripts;

impl Session {
    /// The job of a response to what is said so far, if the turn may be about to end and its model may begin early.
    pub(super) fn begin_early(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let responds = self.config.turn_detection.is_some_and(|turns| turns.create_response);
        let is_idle = self.active.is_none() && self.asked.is_none() && !self.is_closed;
        if !responds || !is_idle || self.config.kind != Kind::Realtime {
            return None;
        }
        let chat = self.chat.as_ref()?;
        if !chat.profile().info.transcriber.as_ref()?.begins_early {
            return None;
        }
        let engine = Engine::clone(chat);
        let text = self.transcripts.as_mut().and_then(Transcripts::take_lull_text)?;
        self.dismiss_early();
        // What else is not answered belongs to the same turn of the conversation.
        if self.items.is_asked() || !self.items.undecoded().is_empty() {
            return None;
        }
        let asked = Asked { id: new_id("resp"), config: self.config.response(), is_aside: false };
        let number = self.next_number();
        let response = match Responding::new(asked.clone(), number, &engine) {
            Ok(response) => response,
            Err(error) => return Some(Err(error)),
        };
        let Context { mut conversation, system, end } =
            self.items.context(&response.item_id, engine.config().conversation_limits());
        conversation.ask(vec![Message::Text(text.clone())]);
        let request = Self::request_of(&response.asked.config, conversation, system, &engine);
        self.early = Some(Early {
            asked,
            number,
            item_id: response.item_id.clone(),
            text,
            behind: self.items.last().map(|item| item.id.clone()),
            prompt_start: end,
        });
        Some(Ok(Job::new(engine, request, Reply::Response(Box::new(response)))))
    }

    /// Makes the early response that which was asked for, if there is one and it answers what was said.
    pub(super) fn adopt_early(&mut self, asked: &Asked) -> bool {
        let Some(early) = &self.early else { return false };
        let said = self.items.last();
        let before = said.and_then(|said| self.items.before(&said.id));
        if early.asked != *asked
            || before != early.behind.as_deref()
            || said.and_then(|said| said.transcript()) != Some(&early.text)
        {
            self.dismiss_early();
            return false;
        }
        if let Some(early) = self.early.take() {
            self.activate(&early.asked, early.number, &early.item_id);
            if let Some(answer) = self.items.answer_mut(&early.item_id) {
                answer.prompt_start = early.prompt_start;
            }
        }
        true
    }

    /// Cancels the early response.
    pub(super) fn dismiss_early(&mut self) {
        self.cancelled.extend(self.early.take().map(|early| early.number));
    }

    /// Whether a response is not known to be wanted.
    pub(super) fn is_early(&self, response: &Responding) -> bool {
        self.early.as_ref().is_some_and(|early| early.number == response.number)
    }
}
