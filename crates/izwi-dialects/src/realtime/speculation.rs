//! Speculative responses: they begin in a pause, before it is known that the turn has ended, and are held until then. If speech goes on, or
//! something else is asked, they are cancelled, and their clients learn nothing of them.

use izwi_core::engine::{Engine, Message};
use izwi_server::ApiError;
use izwi_server::ws::protocol::Job;

use super::config::Kind;
use super::events::new_id;
use super::items::Context;
use super::response::{Asked, Reply, Responding, Speculation};
use super::session::Session;
use super::transcripts::Transcripts;

impl Session {
    /// The job of a response to what is said so far, if the turn may be about to end and its model may begin early.
    pub(super) fn begin_speculation(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let responds = self.config.turn_detection.is_some_and(|turns| turns.create_response);
        let is_idle = self.active.is_none() && self.asked.is_none() && !self.is_closed;
        if !responds || !is_idle || self.config.kind != Kind::Realtime {
            return None;
        }
        let chat = self.chat.as_ref()?;
        if !chat.profile().info.transcriber.as_ref()?.speculates {
            return None;
        }
        let engine = Engine::clone(chat);
        let text = self.transcripts.as_mut().and_then(Transcripts::take_lull_text)?;
        self.cancel_speculation();
        // What else is not answered belongs to the same turn of the conversation.
        if self.items.is_asked() || !self.items.undecoded().is_empty() {
            return None;
        }
        let asked = Asked { id: new_id("resp"), config: self.config.response(), is_out_of_band: false };
        let number = self.next_number();
        let response = match Responding::new(asked.clone(), number, &engine) {
            Ok(response) => response,
            Err(error) => return Some(Err(error)),
        };
        let Context { mut conversation, system, end } =
            self.items.context(&response.item_id, engine.config().conversation_limits());
        conversation.ask(vec![Message::Text(text.clone())]);
        let request = Self::request_of(&response.asked.config, conversation, system, &engine);
        self.speculation = Some(Speculation {
            asked,
            number,
            item_id: response.item_id.clone(),
            text,
            behind: self.items.last().map(|item| item.id.clone()),
            prompt_start: end,
        });
        Some(Ok(Job::new(engine, request, Reply::Response(Box::new(response)))))
    }

    /// Makes the speculative response that which was asked for, if there is one and it answers what was said.
    pub(super) fn adopt_speculation(&mut self, asked: &Asked) -> bool {
        let Some(speculation) = &self.speculation else { return false };
        let said = self.items.last();
        let before = said.and_then(|said| self.items.before(&said.id));
        if speculation.asked != *asked
            || before != speculation.behind.as_deref()
            || said.and_then(|said| said.transcript()) != Some(&speculation.text)
        {
            self.cancel_speculation();
            return false;
        }
        if let Some(speculation) = self.speculation.take() {
            self.activate(&speculation.asked, speculation.number, &speculation.item_id);
            if let Some(answer) = self.items.answer_mut(&speculation.item_id) {
                answer.prompt_start = speculation.prompt_start;
            }
        }
        true
    }

    /// Cancels the speculative response.
    pub(super) fn cancel_speculation(&mut self) {
        self.cancelled.extend(self.speculation.take().map(|speculation| speculation.number));
    }

    /// Whether a response is not known to be wanted.
    pub(super) fn is_speculative(&self, response: &Responding) -> bool {
        self.speculation.as_ref().is_some_and(|speculation| speculation.number == response.number)
    }
}
