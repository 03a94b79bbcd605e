//! One sequence as the scheduler sees it: how far it is and what it needs next.

use std::sync::Arc;

use super::{NewSequence, Workload};
use crate::engine::config::SchedulingPolicy;
use crate::engine::kv_cache::BlockHash;
use crate::engine::types::{Priority, RequestId, SequenceId};

/// How far a sequence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// `computed` of `known` positions have keys and values; `generated` of the known ones came from the model.
    Autoregressive { computed: usize, known: usize, generated: usize },
    /// Index of the next unit.
    Units { next: usize },
}

impl Progress {
    fn of(work: &Workload) -> Self {
        match work {
            Workload::Autoregressive { prompt_tokens, .. } => {
                Self::Autoregressive { computed: 0, known: *prompt_tokens, generated: 0 }
            }
            Workload::Units(_) => Self::Units { next: 0 },
        }
    }
}

/// What a sequence would compute next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) start: usize,
    /// Tokens left of the prompt, or the size of the unit, or 1.
    pub(super) tokens: usize,
    /// Whether `tokens` may be computed in parts.
    pub(super) divisible: bool,
    pub(super) is_prefill: bool,
}

/// Order of running sequences, smaller first.
pub(super) type Turn = (u64, u64, u64, u64);

/// A waiting or running sequence.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) request_id: RequestId,
    pub(super) priority: Priority,
    pub(super) arrival: u64,
    pub(super) due_us: u64,
    pub(super) last_scheduled: u64,
    pub(super) paused: bool,
    /// Whether nothing was scheduled since it was admitted.
    pub(super) begins: bool,
    pub(super) progress: Progress,
    work: Workload,
}

impl Sequence {
    pub(super) fn new(new: NewSequence, arrival: u64) -> Self {
        Self {
            id: new.id,
            request_id: new.request_id,
            priority: new.priority,
            arrival,
            due_us: new.arrival_us,
            last_scheduled: 0,
            paused: false,
            begins: true,
            progress: Progress::of(&new.work),
            work: new.work,
        }
    }

    pub(super) fn uses_kv(&self) -> bool {
        matches!(self.work, Workload::Autoregressive { .. })
    }

    pub(super) fn prefix(&self) -> &[BlockHash] {
        match &self.work {
            Workload::Autoregressive { prefix, .. } => prefix.hashes(),
            Workload::Units(_) => &[],
        }
    }

    /// Takes note of the content key of a position that was generated, or that it has none.
    pub(super) fn note_content(&mut self, key: Option<u64>) {
        if let Workload::Autoregressive { prefix, .. } = &mut self.work {
            Arc::make_mut(prefix).push(key);
        }
    }

    /// The most positions it can come to occupy.
    pub(super) fn worst_case_positions(&self) -> usize {
        match &self.work {
            Workload::Autoregressive { prompt_tokens, max_tokens, .. } => prompt_tokens + max_tokens,
            Workload::Units(_) => 0,
        }
    }

    /// Smaller goes first when sequences compete for admission and blocks.
    pub(super) fn rank(&self, policy: SchedulingPolicy) -> (u64, u64) {
        match policy {
            SchedulingPolicy::Fcfs => (0, self.arrival),
            SchedulingPolicy::Priority => (Priority::High as u64 - self.priority as u64, self.arrival),
            SchedulingPolicy::Deadline => (self.due_us, self.arrival),
        }
    }

    /// Whether the audio it has made runs out before `soon_us`. What has made none yet is always due.
    pub(super) fn is_due(&self, soon_us: u64) -> bool {
        self.due_us <= soon_us
    }

    /// Smaller goes first when running sequences compete for a place in a step: under any policy those whose audio
    /// is about to run out before those that are well ahead, and in turn among equals.
    pub(super) fn turn(&self, policy: SchedulingPolicy, soon_us: u64) -> Turn {
        let ahead = u64::from(!self.is_due(soon_us));
        match policy {
            SchedulingPolicy::Fcfs => (0, ahead, self.last_scheduled, self.arrival),
            SchedulingPolicy::Priority => {
                (Priority::High as u64 - self.priority as u64, ahead, self.last_scheduled, self.arrival)
            }
            SchedulingPolicy::Deadline => (0, self.due_us, self.last_scheduled, self.arrival),
        }
    }

    pub(super) fn demand(&self) -> Option<Demand> {
        match (self.progress, &self.work) {
            (Progress::Autoregressive { computed, known, generated }, _) => {
                let is_prefill = computed + 1 < known || generated == 0;
                Some(Demand { start: computed, tokens: known - computed, divisible: is_prefill, is_prefill })
            }
            (Progress::Units { next }, Workload::Units(units)) => {
                let tokens = *units.get(next)?;
                Some(Demand { start: next, tokens, divisible: false, is_prefill: next == 0 })
            }
            (Progress::Units { .. }, Workload::Autoregressive { .. }) => None,
        }
    }

    /// Forgets its work and begins with another.
    pub(super) fn begin_pass(&mut self, work: Workload) {
        self.progress = Progress::of(&work);
        self.work = work;
    }

    /// What its first item after an admission costs beyond its tokens.
    pub(super) fn encoder_tokens(&self) -> usize {
        match &self.work {
            Workload::Autoregressive { encoder_tokens, .. } => *encoder_tokens,
            Workload::Units(_) => 0,
        }
    }

    /// Starts (again) at `start`, the positions before it being cached.
    pub(super) fn begin_at(&mut self, start: usize) {
        self.begins = true;
        if let Progress::Autoregressive { computed, .. } = &mut self.progress {
            *computed = start;
        }
    }

    /// Records a computed item.
    pub(super) fn advance(&mut self, tokens: usize, generated_now: usize) {
        match &mut self.progress {
            Progress::Autoregressive { computed, known, generated } => {
                *computed += tokens;
                *known += generated_now;
                *generated += generated_now;
            }
            Progress::Units { next } => *next += 1,
        }
    }

    /// Gives up what was computed: an autoregressive sequence begins again with all it knows; finished units stay.
    pub(super) fn preempt(&mut self) {
        if let Progress::Autoregressive { computed, .. } = &mut self.progress {
            *computed = 0;
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match (self.progress, &self.work) {
            (Progress::Autoregressive { generated, .. }, Workload::Autoregressive { max_tokens, .. }) => {
                generated >= *max_tokens
            }
            (Progress::Units { next }, Workload::Units(units)) => next >= units.len(),
            _ => true,
        }
    }

    /// As it will be when the item in flight has succeeded.
    pub(super) fn projected(&self, tokens: usize) -> Self {
        let mut after = self.clone();
        let completes = match self.progress {
            Progress::Autoregressive { computed, known, .. } => computed + tokens == known,
            Progress::Units { .. } => false,
        };
        after.advance(tokens, usize::from(completes));
        after
    }
}
