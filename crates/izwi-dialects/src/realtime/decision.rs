//! Whether a pause ends the turn of a speaker, decided by a turn model. Audio after the pause waits for the decision, so that turns do
//! not depend on how fast audio comes.

use izwi_core::engine::{Engine, EngineCoreRequest, Priority, StreamingOutput};
use izwi_server::ws::outbox::Outbox;
use izwi_server::ws::protocol::Job;

use super::events::refuse;
use super::input::InputBuffer;
use super::response::{Deciding, Reply};
use super::session::Session;

impl Deciding {
    /// Takes the model's probability.
    pub(super) fn hear(&mut self, chunk: &StreamingOutput) {
        let found = chunk.segments.iter().rev().find_map(|segment| segment.end_of_turn);
        self.probability = found.or(self.probability);
    }

    /// Whether the turn is complete. Without an answer it goes on, until it is silent for long.
    fn ends_turn(&self) -> bool {
        self.failure.is_none() && self.probability.is_some_and(|probability| probability >= self.threshold)
    }
}

impl Session {
    /// The job that decides whether the pause that was heard ends the turn, if there is one and no job runs.
    pub(super) fn decide(&mut self) -> Option<Job<Self>> {
        let pause = self.input.as_ref().and_then(InputBuffer::pause)?;
        if self.deciding.is_some() {
            return None;
        }
        let engine = Engine::clone(self.turns.as_ref()?);
        self.deciding = Some(pause);
        let eagerness = self.config.turn_detection.and_then(|turns| turns.eagerness);
        let threshold = eagerness.map_or(1.0, |eagerness| eagerness.threshold());
        let audio = self.input.as_ref().map(|input| input.before_pause(pause));
        let deciding = Deciding { pause, threshold, probability: None, failure: None };
        let input = async move { audio.unwrap_or_else(|| Ok(bytes::Bytes::new())) };
        let request = |_: &mut Self, _: &Reply, audio: bytes::Bytes| {
            EngineCoreRequest::end_of_turn(audio).with_priority(Priority::High)
        };
        Some(Job::prepared(engine, input, request, Reply::Turn(Box::new(deciding))))
    }

    /// Takes the decision on a pause.
    pub(super) fn end_decision(&mut self, deciding: &Deciding, out: &mut Outbox) {
        self.deciding = None;
        if let Some(failure) = &deciding.failure {
            tracing::warn!(error = %failure.message, "a turn ends by silence alone");
        }
        if self.is_closed {
            return;
        }
        if let Err(refusal) = self.resume(deciding.pause, deciding.ends_turn(), out) {
            refusal.count();
            refuse(&refusal, None, out);
        }
    }
}
