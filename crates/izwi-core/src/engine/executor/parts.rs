//! Requests in parts with silence between them, each prepared for itself: one sequence for the engine, one after another for
//! the executor.
//!
//! Must not know queues or what a model does.

use std::collections::HashMap;
use std::sync::Arc;

use izwi_types::{Prepared, StepOutput};

use super::{
    ExecutorError, ExecutorProfile, ItemResult, ModelExecutor, NewSequenceData, Places, RequestPreparer,
    SimulatedTime, StepPlan,
};
use crate::engine::blocks::BlockId;
use crate::engine::qos::cost::StepShape;
use crate::engine::types::SequenceId;

/// A part of a request.
#[derive(Debug, Clone)]
pub(in crate::engine) struct PreparedPart {
    pub(in crate::engine) prepared: Prepared,
    /// Samples of silence before it.
    pub(in crate::engine) silence: usize,
    /// Its text in the text of the request.
    pub(in crate::engine) places: Places,
    /// Bytes of its text, and how much of the text of the request is said at its end.
    pub(in crate::engine) end: (usize, usize),
    /// Multiple of its samples.
    pub(in crate::engine) gain: f32,
}

/// The parts of a request.
#[derive(Debug)]
pub(in crate::engine) struct Parts {
    first: PreparedPart,
    rest: Vec<PreparedPart>,
    /// Samples of silence behind them.
    silence: usize,
}

impl Parts {
    /// A request of some parts, with silence behind them; `None` without parts.
    pub(in crate::engine) fn prepared(parts: Vec<PreparedPart>, silence: usize) -> Option<Prepared> {
        let mut parts = parts.into_iter();
        let (first, rest) = (parts.next()?, parts.collect());
        let work = first.prepared.work.clone();
        Some(Prepared::new(work, Arc::new(Self { first, rest, silence })))
    }

    fn get(&self, at: usize) -> Option<&PreparedPart> {
        at.checked_sub(1).map_or(Some(&self.first), |at| self.rest.get(at))
    }
}

/// A sequence in parts.
struct Running {
    parts: Arc<Parts>,
    /// The part that runs or begins next.
    at: usize,
    /// Whether the executor does not know the part yet.
    begins: bool,
    /// Whether the part has samples.
    has_samples: bool,
    /// How much of the text is said.
    said: usize,
    /// Whether a part before was cut as a runaway.
    ran_away: bool,
}

/// An executor that speaks the parts of requests one after another.
pub(in crate::engine) struct PartsExecutor {
    inner: Box<dyn ModelExecutor>,
    running: HashMap<SequenceId, Running>,
}

impl PartsExecutor {
    pub(in crate::engine) fn new(inner: Box<dyn ModelExecutor>) -> Self {
        Self { inner, running: HashMap::new() }
    }

    /// The plan with the parts that begin in it; `None` where that is the plan itself.
    fn with_parts(&mut self, plan: &StepPlan) -> Option<StepPlan> {
        let mut new_sequences = Vec::with_capacity(plan.new_sequences.len());
        let mut has_parts = false;
        for new in &plan.new_sequences {
            let Ok(parts) = Arc::clone(&new.prepared.payload).downcast::<Parts>() else {
                new_sequences.push(new.clone());
                continue;
            };
            has_parts = true;
            let prepared = parts.first.prepared.clone();
            new_sequences.push(NewSequenceData { sequence: new.sequence, prepared });
            let running =
                Running { parts, at: 0, begins: false, has_samples: false, said: 0, ran_away: false };
            self.running.insert(new.sequence, running);
        }
        for item in plan.schedule.items() {
            let running = self.running.get_mut(&item.sequence).filter(|running| running.begins);
            let Some(running) = running else { continue };
            let Some(part) = running.parts.get(running.at) else { continue };
            (running.begins, has_parts) = (false, true);
            new_sequences.push(NewSequenceData { sequence: item.sequence, prepared: part.prepared.clone() });
        }
        has_parts.then(|| StepPlan { new_sequences, ..plan.clone() })
    }
}

impl Running {
    /// Puts the output of a part into that of the request. Returns whether another part begins after it.
    fn take(&mut self, output: &mut StepOutput) -> bool {
        let parts = Arc::clone(&self.parts);
        let Some(part) = parts.get(self.at) else { return false };
        let next = parts.get(self.at + 1);
        if part.gain != 1.0 {
            output.samples.iter_mut().for_each(|sample| *sample = (*sample * part.gain).clamp(-1.0, 1.0));
        }
        let mut said = self.said;
        output.words.retain_mut(|word| {
            let (text_bytes, end) = part.end;
            word.text_start = said;
            word.text_end =
                if word.text_end >= text_bytes { end } else { part.places.written(word.text_end) };
            // What is said in other words is one word.
            let is_new = word.text_end > said;
            said = said.max(word.text_end);
            is_new
        });
        self.said = said;
        if !self.has_samples && !output.samples.is_empty() {
            self.has_samples = true;
            output.silence[0] = part.silence;
        }
        if !output.finished {
            return false;
        }
        self.ran_away |= output.runaway;
        output.runaway = self.ran_away && next.is_none();
        let Some(next) = next else {
            output.silence[1] = parts.silence;
            return false;
        };
        (output.finished, output.next_pass) = (false, Some(next.prepared.work.clone()));
        (self.at, self.begins, self.has_samples) = (self.at + 1, true, false);
        true
    }
}

impl ModelExecutor for PartsExecutor {
    fn profile(&self) -> Arc<ExecutorProfile> {
        self.inner.profile()
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        self.inner.preparer()
    }

    fn initialize(&mut self) -> Result<Option<StepShape>, ExecutorError> {
        self.inner.initialize()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<Vec<ItemResult>, ExecutorError> {
        let with_parts = self.with_parts(plan);
        let mut results = self.inner.execute(with_parts.as_ref().unwrap_or(plan))?;
        if self.running.is_empty() {
            return Ok(results);
        }
        let mut ended = Vec::new();
        for (item, result) in plan.schedule.items().zip(&mut results) {
            if let (Some(running), Ok(output)) = (self.running.get_mut(&item.sequence), result)
                && running.take(output)
            {
                ended.push(item.sequence);
            }
        }
        self.inner.release(&ended);
        Ok(results)
    }

    fn read_block(&self, block: BlockId) -> Result<Vec<u8>, ExecutorError> {
        self.inner.read_block(block)
    }

    fn has_lost_device(&self) -> bool {
        self.inner.has_lost_device()
    }

    fn needs_beats(&self) -> bool {
        self.inner.needs_beats()
    }

    fn beat(&self) -> Result<(), ExecutorError> {
        self.inner.beat()
    }

    fn simulated_time(&mut self, plan: &StepPlan) -> Option<SimulatedTime> {
        self.inner.simulated_time(plan)
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        for sequence in sequences {
            self.running.remove(sequence);
        }
        self.inner.release(sequences);
    }

    fn shutdown(&mut self) {
        self.running.clear();
        self.inner.shutdown();
    }
}
