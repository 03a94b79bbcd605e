//! Whether a pause ends the turn of a speaker, decided by a turn model, and what follows from that.

use izwi_server::turns::{Deciding, TurnModel};
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::Job;

use super::events::refuse;
use super::response::Reply;
use super::session::Session;

impl Session {
    /// The turn model, as sure as it must be, if it decides.
    pub(super) fn turn_model(&self) -> Option<TurnModel> {
        let eagerness = self.config.turn_detection?.eagerness?;
        Some(TurnModel::new(&self.state, self.turns.as_ref()?, eagerness.threshold()))
    }

    /// The job that decides whether the pause that was heard ends the turn, if there is one and no job runs.
    pub(super) fn decide(&mut self) -> Option<Job<Self>> {
        self.input.as_mut()?.decide(Reply::Turn)
    }

    /// Takes the decision on a pause.
    pub(super) fn end_decision(&mut self, deciding: &Deciding, out: &mut Outbox) {
        if self.is_closed {
            return;
        }
        if let Err(refusal) = self.resume(deciding, out) {
            refusal.count();
            refuse(&refusal, None, out);
        }
    }
}
