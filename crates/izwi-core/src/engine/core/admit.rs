//! Admission of requests to the queues.
//!
//! Must not know steps or samples.

use std::time::Duration;

use izwi_types::Task;

use super::{Added, EngineCore, EngineState, Refused};
use crate::engine::error::{EngineError, Result};
use crate::engine::qos::{Event, Start};
use crate::engine::request::RequestInfo;
use crate::engine::scheduler::NewSequence;
use crate::engine::sequences::Admission;

impl EngineCore {
    /// Adds a prepared request to the waiting queue, or gives it back.
    pub(super) fn admit(&mut self, admission: Box<Admission>) -> Added {
        match self.may_admit(&admission) {
            Ok(start) => {
                self.add(*admission, start);
                Ok(())
            }
            Err(error) => Err(Refused { error, admission: Some(admission) }),
        }
    }

    /// Whether a request may be added now, and how a live stream starts.
    fn may_admit(&mut self, admission: &Admission) -> Result<Option<Start>> {
        let id = &admission.request.info.id;
        match &self.status.state {
            EngineState::Draining => return Err(EngineError::Draining),
            EngineState::Dead(reason) => return Err(EngineError::Stopped(reason.clone())),
            _ => {}
        }
        if self.sequences.find(id).is_some() {
            return Err(EngineError::DuplicateId(id.to_string()));
        }
        let waiting = self.scheduler.num_waiting();
        if waiting >= self.config.max_waiting_requests {
            // One place comes free when one request has ended.
            let per_second = self.metrics.snapshot().requests_per_sec.max(1.0 / 60.0);
            let retry_after = Duration::from_secs_f64(1.0 / per_second);
            return Err(EngineError::Overloaded { waiting, retry_after });
        }
        if !admission.is_live_stream() {
            return Ok(None);
        }
        let accepted_at = admission.client.accepted_at;
        self.qos.may_start(&admission.request, accepted_at, &self.sequences)
    }

    /// Adds a request to the waiting queue.
    fn add(&mut self, mut admission: Admission, start: Option<Start>) {
        let swapped = std::mem::take(&mut admission.request.swapped);
        self.restore(admission.request.work.prefix(), swapped);
        let RequestInfo { priority, task, live, ref id, .. } = admission.request.info;
        let (request_id, accepted_at) = (id.clone(), admission.client.accepted_at);
        // A window of live audio makes no audio, but somebody waits for it: its steps go before bulk work.
        let is_window = live && task.listens();
        let (sequence, work) = self.sequences.add(admission, start.is_some());
        self.scheduler.add_request(NewSequence {
            id: sequence,
            request_id,
            priority,
            live: start.is_some() || is_window,
            arrival_us: accepted_at.saturating_duration_since(self.epoch).as_micros() as u64,
            state_bytes: self.state_bytes,
            is_continued: task == Task::Chat,
            work,
        });
        if let Some(start) = start {
            self.observe(Event::Added(sequence, start));
        }
        if let Some(positions) = self.sequences.input_grew(sequence) {
            self.scheduler.set_positions(sequence, positions);
        }
    }
}
