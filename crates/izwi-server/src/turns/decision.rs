//! Whether a pause ends the turn of a speaker, decided by a turn model.

use std::sync::Arc;

use bytes::Bytes;
use izwi_core::engine::{Engine, EngineCoreRequest, Priority, StreamingOutput, Task};

use super::Pause;
use crate::error::ApiError;
use crate::registry::Lease;
use crate::state::AppState;
use crate::upload::UploadMemory;
use crate::ws::protocol::{Job, Outcome, Protocol};

/// A turn model, and how sure it must be.
#[derive(Debug, Clone)]
pub struct TurnModel {
    state: AppState,
    /// Keeps the model loaded.
    engine: Arc<Lease>,
    /// The probability from which on a turn is complete.
    threshold: f32,
}

impl TurnModel {
    /// A model that ends turns from this probability on.
    pub fn new(state: &AppState, engine: &Arc<Lease>, threshold: f32) -> Self {
        Self { state: state.clone(), engine: Arc::clone(engine), threshold }
    }

    /// Leases the installed turn model; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be loaded.
    pub async fn lease(state: &AppState) -> Result<Option<Arc<Lease>>, ApiError> {
        if !state.registry().has(Task::Turn) {
            return Ok(None);
        }
        Ok(Some(Arc::new(state.lease(None, Task::Turn).await?)))
    }

    /// What audio that it may hear counts in.
    pub(super) fn memory(&self) -> UploadMemory {
        UploadMemory::of_session(&self.state)
    }

    /// The job that decides on a pause, before which this is said.
    pub(super) fn job<P: Protocol>(
        &self,
        pause: Pause,
        said: &[i16],
        wrap: impl FnOnce(Deciding) -> P::Reply,
    ) -> Job<P> {
        let file = UploadMemory::wav_file(&self.state, said);
        let request = |_: &mut P, _: &P::Reply, file: Bytes| {
            EngineCoreRequest::end_of_turn(file).with_priority(Priority::High)
        };
        let reply = wrap(Deciding { pause, threshold: self.threshold, probability: None });
        Job::prepared(Engine::clone(&self.engine), async move { file }, request, reply)
    }
}

/// A decision that is being made.
#[derive(Debug)]
pub struct Deciding {
    pub(super) pause: Pause,
    threshold: f32,
    probability: Option<f32>,
}

impl Deciding {
    /// Takes the model's answer.
    pub fn hear(&mut self, chunk: &StreamingOutput) {
        let found = chunk.segments.iter().rev().find_map(|segment| segment.end_of_turn);
        self.probability = found.or(self.probability);
    }

    /// Takes the end of the job. Without an answer the turn goes on, until it is silent for long.
    pub fn end(&mut self, outcome: &Outcome) {
        self.probability = self.probability.filter(|_| outcome.is_complete());
    }

    /// Notes why there is no answer, which concerns no client: silence ends the turn.
    pub fn note_failure(error: &ApiError) {
        tracing::warn!(%error, "a turn ends by silence alone");
    }

    /// Whether the turn is complete.
    pub(super) fn ends_turn(&self) -> bool {
        self.probability.is_some_and(|probability| probability >= self.threshold)
    }
}
