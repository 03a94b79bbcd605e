//! One sequence as the scheduler sees it: its progress and its next demand.
//!
//! Must not know other sequences.

use std::sync::Arc;

use super::{NewSequence, Workload};
use crate::engine::blocks::BlockGeometry;
use crate::engine::kv_cache::{BlockHash, KVCacheManager};
use crate::engine::qos::budget::Class;
use crate::engine::qos::cost::StepShape;
use crate::engine::qos::playback::Playback;
use crate::engine::types::{Priority, RequestId, SequenceId};

/// Progress of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    /// `computed` of `known` positions have keys and values; `generated` of the known ones are output of the model.
    Autoregressive { computed: usize, known: usize, generated: usize },
    /// Index of the next unit.
    Units { next: usize },
    /// Positions that were computed.
    Chunks { computed: usize },
}

impl Progress {
    fn of(work: &Workload) -> Self {
        match work {
            Workload::Autoregressive { prompt_tokens, .. } => {
                Self::Autoregressive { computed: 0, known: *prompt_tokens, generated: 0 }
            }
            Workload::Units(_) | Workload::Encoder(_) => Self::Units { next: 0 },
            Workload::Chunks { .. } => Self::Chunks { computed: 0 },
        }
    }

    /// Records a computed item.
    pub(super) fn advance(&mut self, tokens: usize, generated_now: usize) {
        match self {
            Self::Autoregressive { computed, known, generated } => {
                *computed += tokens;
                *known += generated_now;
                *generated += generated_now;
            }
            Self::Units { next } => *next += 1,
            Self::Chunks { computed } => *computed += tokens,
        }
    }

    /// The progress after an item of `tokens` tokens succeeds.
    pub(super) fn projected(mut self, tokens: usize) -> Self {
        let completes = match self {
            Self::Autoregressive { computed, known, .. } => computed + tokens == known,
            Self::Units { .. } | Self::Chunks { .. } => false,
        };
        self.advance(tokens, usize::from(completes));
        self
    }
}

impl Workload {
    /// Hashes of the full blocks: of the prompt, and of generated positions with content keys.
    pub(in crate::engine) fn prefix(&self) -> &[BlockHash] {
        match self {
            Self::Autoregressive { prefix, .. } => prefix.hashes(),
            Self::Units(_) | Self::Encoder(_) | Self::Chunks { .. } => &[],
        }
    }
}

/// The next computation of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Demand {
    pub(super) start: usize,
    /// Tokens left of the prompt, or the size of the unit, or 1.
    pub(super) tokens: usize,
    /// Whether `tokens` may be computed in parts.
    pub(super) divisible: bool,
    pub(super) is_prefill: bool,
}

/// A waiting or running sequence.
#[derive(Debug, Clone)]
pub(super) struct Sequence {
    pub(super) id: SequenceId,
    pub(super) request_id: RequestId,
    pub(super) priority: Priority,
    pub(super) live: bool,
    /// Whether it may not start yet.
    pub(super) deferred: bool,
    /// `None` before its first audio.
    pub(super) playback: Option<Playback>,
    /// The playback that its first audio will begin.
    pub(super) expected: Option<Playback>,
    pub(super) arrival: u64,
    pub(super) due_us: u64,
    pub(super) last_scheduled: u64,
    pub(super) paused: bool,
    /// Positions that can be computed with the input so far; `None` where the input is complete, or no audio has come.
    pub(super) positions: Option<usize>,
    /// When it was paused or resumed, or its input ran out or came.
    pub(super) held_at_us: u64,
    is_continued: bool,
    pub(super) state_bytes: usize,
    /// Whether the executor holds its state.
    pub(super) started: bool,
    /// Whether no item was scheduled since its admission.
    pub(super) begins: bool,
    pub(super) progress: Progress,
    /// Branches of its search; 1 without one, and until the first token is generated.
    pub(super) branches: usize,
    work: Workload,
}

impl Sequence {
    pub(super) fn new(new: NewSequence, arrival: u64) -> Self {
        Self {
            id: new.id,
            request_id: new.request_id,
            priority: new.priority,
            live: new.live,
            deferred: false,
            playback: None,
            expected: None,
            arrival,
            due_us: new.arrival_us,
            last_scheduled: 0,
            paused: false,
            positions: None,
            held_at_us: 0,
            is_continued: new.is_continued,
            state_bytes: new.state_bytes,
            started: false,
            begins: true,
            progress: Progress::of(&new.work),
            branches: 1,
            work: new.work,
        }
    }

    /// The most branches of its search; 1 without one.
    pub(super) fn max_branches(&self) -> usize {
        match &self.work {
            Workload::Autoregressive { branches, .. } => *branches,
            Workload::Units(_) | Workload::Encoder(_) | Workload::Chunks { .. } => 1,
        }
    }

    /// The most blocks in which it holds `positions` positions: branches share the full blocks of the prompt.
    pub(super) fn blocks_for(&self, positions: usize, geometry: BlockGeometry) -> usize {
        let blocks = geometry.blocks_for(positions);
        match &self.work {
            Workload::Autoregressive { prompt_tokens, branches, .. } if positions > *prompt_tokens => {
                let shared = geometry.full_blocks(*prompt_tokens);
                shared + branches * (blocks - shared)
            }
            _ => blocks,
        }
    }

    /// Whether its next position waits for input.
    pub(super) fn awaits_input(&self) -> bool {
        match (self.progress, self.positions) {
            (Progress::Autoregressive { known, .. }, Some(positions)) => known > positions,
            (Progress::Chunks { computed }, positions) => computed >= positions.unwrap_or(0),
            _ => false,
        }
    }

    /// Whether nothing can be computed for now: its client is slow, or its input has not arrived.
    pub(super) fn is_held(&self) -> bool {
        self.paused || self.deferred || self.awaits_input()
    }

    pub(super) fn uses_kv(&self) -> bool {
        matches!(self.work, Workload::Autoregressive { .. })
    }

    pub(super) fn prefix(&self) -> &[BlockHash] {
        self.work.prefix()
    }

    /// Appends the content key of a generated position, or that it has none; the positions of branches have none. Copies
    /// nothing: no other copy of the sequence lives at that time.
    pub(super) fn push_content_key(&mut self, key: Option<u64>) {
        if let Workload::Autoregressive { prefix, branches: 1, .. } = &mut self.work {
            Arc::make_mut(prefix).push(key);
        }
    }

    /// Removes from the prefix cache what it generated, unless later prompts may contain it, as all of it then. Preempted, it
    /// found that there itself; after its end it would only displace what others share.
    pub(super) fn forget_generated(&self, kv: &mut KVCacheManager) {
        match &self.work {
            Workload::Autoregressive { .. } if self.is_continued => kv.want(self.id),
            Workload::Autoregressive { prompt_tokens, .. } => kv.forget_behind(self.id, *prompt_tokens),
            Workload::Units(_) | Workload::Encoder(_) | Workload::Chunks { .. } => {}
        }
    }

    /// The positions it occupies after `lookahead` more, at most those it can occupy.
    pub(super) fn positions_after(&self, lookahead: usize) -> usize {
        match self.progress {
            Progress::Autoregressive { known, .. } => {
                known.saturating_add(lookahead).min(self.worst_case_positions())
            }
            Progress::Units { .. } | Progress::Chunks { .. } => 0,
        }
    }

    /// The most positions it can occupy.
    pub(super) fn worst_case_positions(&self) -> usize {
        match &self.work {
            Workload::Autoregressive { prompt_tokens, max_tokens, .. } => prompt_tokens + max_tokens,
            Workload::Units(_) | Workload::Encoder(_) | Workload::Chunks { .. } => 0,
        }
    }

    /// Whether playback of its audio ends before `soon_us`. A live stream without audio is always due, bulk work never.
    pub(super) fn is_due(&self, soon_us: u64) -> bool {
        self.live && (self.playback.is_none() || self.due_us <= soon_us)
    }

    /// When its first audio was promised; `None` once it plays, and where nothing was promised.
    pub(super) fn promised_us(&self) -> Option<u64> {
        self.expected.filter(|_| self.playback.is_none()).map(|expected| expected.end_us)
    }

    pub(super) fn class(&self) -> Class {
        match (self.live, self.playback) {
            (false, _) => Class::Bulk,
            (true, None) => Class::Starting,
            (true, Some(_)) => Class::Playing,
        }
    }

    /// The work of an item, whose encoders run if it `begins`.
    pub(super) fn shape(&self, start: usize, tokens: usize, is_prefill: bool, begins: bool) -> StepShape {
        match (self.progress, &self.work) {
            (Progress::Units { .. }, Workload::Encoder(_)) => {
                StepShape { encoder_tokens: tokens, ..StepShape::default() }
            }
            (Progress::Units { .. } | Progress::Chunks { .. }, _) => {
                StepShape { prefill_tokens: tokens, ..StepShape::default() }
            }
            (Progress::Autoregressive { known, .. }, _) => {
                let decodes = if start + tokens >= known { self.branches } else { 0 };
                StepShape {
                    decodes,
                    context_tokens: decodes * (start + tokens),
                    contexts: decodes,
                    prefill_tokens: if is_prefill { tokens } else { 0 },
                    encoder_tokens: if begins { self.encoder_tokens(start) } else { 0 },
                }
            }
        }
    }

    pub(super) fn demand(&self) -> Option<Demand> {
        match (self.progress, &self.work) {
            (Progress::Autoregressive { computed, known, generated }, _) => {
                let is_prefill = computed + 1 < known || generated == 0;
                Some(Demand { start: computed, tokens: known - computed, divisible: is_prefill, is_prefill })
            }
            (Progress::Units { next }, Workload::Units(units) | Workload::Encoder(units)) => {
                let tokens = *units.get(next)?;
                Some(Demand { start: next, tokens, divisible: false, is_prefill: next == 0 })
            }
            (Progress::Chunks { computed }, Workload::Chunks { longest, .. }) => {
                let left = self.positions.unwrap_or(0).checked_sub(computed).filter(|&left| left > 0)?;
                let tokens = left.min(*longest);
                Some(Demand { start: computed, tokens, divisible: false, is_prefill: computed == 0 })
            }
            (Progress::Units { .. } | Progress::Chunks { .. }, _) => None,
        }
    }

    /// Replaces its work.
    pub(super) fn begin_pass(&mut self, work: Workload) {
        self.progress = Progress::of(&work);
        self.branches = 1;
        self.work = work;
    }

    /// Cost of its first item after an admission, beyond its tokens: that of the encoders for the positions from `start` on.
    pub(super) fn encoder_tokens(&self, start: usize) -> usize {
        match &self.work {
            Workload::Autoregressive { encoders, .. } => {
                encoders.iter().filter(|encoder| encoder.end > start).map(|encoder| encoder.tokens).sum()
            }
            Workload::Units(_) | Workload::Encoder(_) | Workload::Chunks { .. } => 0,
        }
    }

    /// Starts or restarts at `start`; positions before it are in shared blocks.
    pub(super) fn begin_at(&mut self, start: usize) {
        self.begins = true;
        if let Progress::Autoregressive { computed, .. } = &mut self.progress {
            *computed = start;
        }
    }

    /// Discards computed positions: an autoregressive sequence recomputes all known ones, a search begins again after its
    /// prompt. Finished units stay.
    pub(super) fn preempt(&mut self) {
        self.branches = 1;
        if self.max_branches() > 1 {
            self.progress = Progress::of(&self.work);
        } else if let Progress::Autoregressive { computed, .. } = &mut self.progress {
            *computed = 0;
        }
    }

    pub(super) fn is_done(&self) -> bool {
        match (self.progress, &self.work) {
            (Progress::Autoregressive { generated, .. }, Workload::Autoregressive { max_tokens, .. }) => {
                generated >= *max_tokens
            }
            (Progress::Units { next }, Workload::Units(units) | Workload::Encoder(units)) => {
                next >= units.len()
            }
            (Progress::Chunks { .. }, Workload::Chunks { .. }) => false,
            _ => true,
        }
    }

    /// The sequence after its in-flight item of `tokens` tokens succeeds.
    pub(super) fn projected(&self, tokens: usize) -> Self {
        let playback = self.playback.map(Playback::after_a_step);
        let due_us = playback.map_or(self.due_us, |playback| playback.end_us);
        Self { progress: self.progress.projected(tokens), playback, due_us, ..self.clone() }
    }
}
