//! Decides what each step computes.
//!
//! [`Scheduler::compute_schedule`] is pure: it reads the queues and the KV books and answers with data.
//! [`Scheduler::apply_schedule`] carries that answer out. Knows counts of tokens and blocks; sees no tensor, no
//! sample and no client.

mod decide;
mod queue;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::config::{EngineCoreConfig, SchedulingPolicy};
use super::kv_cache::{BlockCopy, KVCacheManager, PrefixChain};
use super::types::{BlockId, Priority, RequestId, SequenceId};
use queue::{Progress, Sequence};

/// A stream with less audio than this ahead of it is due.
const DUE_SOON_US: u64 = 500_000;

/// How a sequence is worked off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// A prompt of known length, then one token a step; keys and values are paged.
    Autoregressive {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The most tokens to generate.
        max_tokens: usize,
        /// What the first item after an admission costs beyond its tokens.
        encoder_tokens: usize,
        /// Hashes of the full blocks: of the prompt, and of what is generated as far as that has content keys.
        prefix: Arc<PrefixChain>,
    },
    /// Units of known size, one whole unit a step, without KV.
    Units(Arc<[usize]>),
}

/// A sequence as it enters the waiting queue.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// Its id.
    pub id: SequenceId,
    /// The request it runs for.
    pub request_id: RequestId,
    /// Urgency.
    pub priority: Priority,
    /// Time of arrival in microseconds since the engine started: where its playback would begin.
    pub arrival_us: u64,
    /// What there is to do.
    pub work: Workload,
}

/// One sequence's share of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedItem {
    /// Which sequence.
    pub sequence: SequenceId,
    /// First position (or the unit's index).
    pub start: usize,
    /// Tokens to compute.
    pub num_tokens: usize,
    /// Whether it is still prompt.
    pub is_prefill: bool,
    /// Blocks to be added to its table, a copy-on-write block included.
    pub new_blocks: usize,
    /// For a sequence to be admitted: shared blocks its table begins with.
    pub admit_with: Option<Vec<BlockId>>,
}

/// The answer of [`Scheduler::compute_schedule`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleDecision {
    /// State of the queues this was computed for.
    version: u64,
    /// Sequences that still compute their prompt (or first unit).
    pub prefill: Vec<DecidedItem>,
    /// Sequences that generate.
    pub decode: Vec<DecidedItem>,
    /// Running sequences that give up their blocks and wait again.
    pub preempt: Vec<SequenceId>,
    /// Whether generating sequences were left out because prompts took their place.
    pub decode_waited: bool,
}

impl ScheduleDecision {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.prefill.is_empty() && self.decode.is_empty() && self.preempt.is_empty()
    }

    /// Tokens of the step.
    pub fn total_tokens(&self) -> usize {
        self.items().map(|item| item.num_tokens).sum()
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = &DecidedItem> {
        self.prefill.iter().chain(&self.decode)
    }
}

/// One sequence's share of a step, ready to execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduledRequest {
    /// Which sequence.
    pub sequence: SequenceId,
    /// Which request it runs for.
    pub request_id: RequestId,
    /// First position to compute (or the unit's index).
    pub start: usize,
    /// Whether this is the first item since the sequence was admitted: what it had computed before, if anything, was
    /// given away, and the positions before `start` are in its blocks by prefix sharing.
    pub begins: bool,
    /// Tokens to compute.
    pub num_tokens: usize,
    /// Whether it is still prompt.
    pub is_prefill: bool,
    /// Its blocks, in order.
    pub block_table: Vec<BlockId>,
}

/// A step, ready to execute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleResult {
    /// Sequences that still compute their prompt (or first unit).
    pub prefill_requests: Vec<ScheduledRequest>,
    /// Sequences that generate.
    pub decode_requests: Vec<ScheduledRequest>,
    /// Sequences that gave up their blocks.
    pub preempted_requests: Vec<SequenceId>,
    /// Tokens of the step.
    pub total_tokens: usize,
    /// Blocks handed out for it.
    pub blocks_allocated: usize,
    /// Blocks to copy before anything is written.
    pub block_copies: Vec<BlockCopy>,
    /// Whether some sequence's audio is about to run out, or has not begun.
    pub has_due: bool,
}

impl ScheduleResult {
    /// Every scheduled sequence, prompts first.
    pub fn items(&self) -> impl Iterator<Item = &ScheduledRequest> {
        self.prefill_requests.iter().chain(&self.decode_requests)
    }

    /// Sequences in the step.
    pub fn batch_size(&self) -> usize {
        self.prefill_requests.len() + self.decode_requests.len()
    }
}

/// The bounds of every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Limits {
    batch_size: usize,
    tokens: usize,
    running: usize,
    chunked_prefill: bool,
    chunk: usize,
    preemption: bool,
}

/// The queues and the policy.
#[derive(Debug)]
pub struct Scheduler {
    policy: SchedulingPolicy,
    limits: Limits,
    sequences: HashMap<SequenceId, Sequence>,
    waiting: HashSet<SequenceId>,
    running: HashSet<SequenceId>,
    arrivals: u64,
    steps: u64,
    /// Grows with every change that makes an earlier decision stale.
    version: u64,
    decode_waited: bool,
    now_us: u64,
}

impl Scheduler {
    /// Empty queues under the configured policy and budgets; at most `running` sequences are admitted at once.
    pub fn new(config: &EngineCoreConfig, running: usize) -> Self {
        Self {
            policy: config.scheduling_policy,
            limits: Limits {
                batch_size: config.max_batch_size,
                tokens: config.max_tokens_per_step,
                running,
                chunked_prefill: config.enable_chunked_prefill,
                chunk: config.chunked_prefill_threshold,
                preemption: config.enable_preemption,
            },
            sequences: HashMap::new(),
            waiting: HashSet::new(),
            running: HashSet::new(),
            arrivals: 0,
            steps: 0,
            version: 0,
            decode_waited: false,
            now_us: 0,
        }
    }

    /// Tells the time, in microseconds on the engine's clock, that the next decisions are made at.
    pub fn set_now(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// Puts a sequence into the waiting queue.
    pub fn add_request(&mut self, new: NewSequence) {
        self.version += 1;
        self.arrivals += 1;
        self.waiting.insert(new.id);
        self.sequences.insert(new.id, Sequence::new(new, self.arrivals));
    }

    /// Forgets a sequence, wherever it is, and gives its blocks back. False if it is not known.
    pub fn finish_request(&mut self, id: SequenceId, kv: &mut KVCacheManager) -> bool {
        self.waiting.remove(&id);
        self.running.remove(&id);
        if self.sequences.remove(&id).is_none() {
            return false;
        }
        self.version += 1;
        kv.free(id);
        true
    }

    /// Ends a sequence's pass: its blocks come free, and it waits, in its old place, to begin with `work`.
    pub fn next_pass(&mut self, id: SequenceId, work: Workload, kv: &mut KVCacheManager) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.begin_pass(work);
            kv.free(id);
            self.running.remove(&id);
            self.waiting.insert(id);
            self.version += 1;
        }
    }

    /// Stops or resumes scheduling a sequence whose client is slow; its place and its blocks stay.
    pub fn set_paused(&mut self, id: SequenceId, paused: bool) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.paused != paused
        {
            sequence.paused = paused;
            self.version += 1;
        }
    }

    /// Tells how far the audio of a sequence reaches, in microseconds on the engine's clock.
    pub fn set_due(&mut self, id: SequenceId, due_us: u64) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.due_us = due_us;
        }
    }

    /// Sequences that wait.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Sequences that were admitted.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Whether `decision` still fits the queues.
    pub fn is_current(&self, decision: &ScheduleDecision) -> bool {
        self.version == decision.version
    }

    /// What the next step should compute. Changes nothing.
    ///
    /// `in_flight` is the step being executed, if any: its sequences are taken to succeed, to generate one token each
    /// and not to end. Free blocks are counted as they are now, which is never more than there will be.
    pub fn compute_schedule(
        &self,
        kv: &KVCacheManager,
        in_flight: Option<&ScheduleResult>,
    ) -> ScheduleDecision {
        decide::decide(self, kv, in_flight)
    }

    /// Carries a decision out: admits, preempts, hands out blocks.
    ///
    /// The decision must be current; an item whose blocks are not there after all is left out of the step.
    pub fn apply_schedule(&mut self, decision: ScheduleDecision, kv: &mut KVCacheManager) -> ScheduleResult {
        self.steps += 1;
        self.decode_waited = decision.decode_waited;
        let mut result = ScheduleResult::default();
        for id in decision.preempt {
            if let Some(sequence) = self.sequences.get_mut(&id) {
                sequence.preempt();
                kv.free(id);
                self.running.remove(&id);
                self.waiting.insert(id);
                result.preempted_requests.push(id);
            }
        }
        let admissions = decision.prefill.iter().chain(&decision.decode);
        for item in admissions {
            if let (Some(shared), Some(sequence)) = (&item.admit_with, self.sequences.get(&item.sequence)) {
                if sequence.uses_kv() {
                    kv.admit(item.sequence, shared, sequence.prefix().len());
                }
                self.waiting.remove(&item.sequence);
                self.running.insert(item.sequence);
            }
        }
        for item in decision.prefill {
            let scheduled = self.allocate(&item, kv, &mut result);
            result.prefill_requests.extend(scheduled);
        }
        for item in decision.decode {
            let scheduled = self.allocate(&item, kv, &mut result);
            result.decode_requests.extend(scheduled);
        }
        kv.begin_step(result.items().map(|item| item.sequence).collect::<Vec<_>>());
        result
    }

    /// [`Self::compute_schedule`] and [`Self::apply_schedule`] in one.
    pub fn schedule(&mut self, kv: &mut KVCacheManager) -> ScheduleResult {
        let decision = self.compute_schedule(kv, None);
        self.apply_schedule(decision, kv)
    }

    /// Records that a scheduled item was computed and made `generated` tokens, the position of which has the content
    /// key `key`, where it is known.
    ///
    /// Returns whether the sequence came to its own end: all units done, or its token limit reached.
    pub fn complete(
        &mut self,
        item: &ScheduledRequest,
        generated: usize,
        key: Option<u64>,
        kv: &mut KVCacheManager,
    ) -> bool {
        let Some(sequence) = self.sequences.get_mut(&item.sequence) else { return false };
        let foreseen = sequence.projected(item.num_tokens);
        sequence.advance(item.num_tokens, generated);
        if generated > 0 {
            sequence.note_content(key);
        }
        if sequence.progress != foreseen.progress {
            self.version += 1;
        }
        if let Progress::Autoregressive { computed, .. } = sequence.progress {
            kv.register_prefix(item.sequence, sequence.prefix(), computed);
        }
        sequence.is_done()
    }

    fn allocate(
        &mut self,
        item: &DecidedItem,
        kv: &mut KVCacheManager,
        result: &mut ScheduleResult,
    ) -> Option<ScheduledRequest> {
        let sequence = self.sequences.get_mut(&item.sequence)?;
        sequence.last_scheduled = self.steps;
        if let Some(shared) = &item.admit_with {
            debug_assert!(item.start == 0 || !sequence.uses_kv() || !shared.is_empty());
            sequence.begin_at(item.start);
        }
        if sequence.uses_kv() {
            let added = kv.extend(item.sequence, item.start + item.num_tokens).ok()?;
            result.blocks_allocated += added.len();
            if let Some(copy) = kv.make_writable(item.sequence, item.start).ok()? {
                result.blocks_allocated += 1;
                result.block_copies.push(copy);
            }
        }
        result.total_tokens += item.num_tokens;
        result.has_due |= sequence.is_due(self.now_us + DUE_SOON_US);
        Some(ScheduledRequest {
            sequence: item.sequence,
            request_id: sequence.request_id.clone(),
            start: item.start,
            begins: std::mem::take(&mut sequence.begins),
            num_tokens: item.num_tokens,
            is_prefill: item.is_prefill,
            block_table: kv.table(item.sequence).to_vec(),
        })
    }
}

#[cfg(test)]
mod tests;
