//! Decides what each step computes.
//!
//! [`Scheduler::compute_schedule`] is pure: it reads the queues and the block accounting and returns a decision.
//! [`Scheduler::apply_schedule`] applies the decision. Must not know tensors, samples or clients.

mod decide;
mod fork;
mod policy;
mod sequence;
mod timed;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use izwi_types::EncoderWork;

use super::blocks::BlockId;
use super::kv_cache::{BlockCopy, KVCacheManager, PrefixChain};
use super::qos::budget::StepLimits;
use super::qos::cost::StepShape;
use super::qos::playback::Playback;
use super::types::{IdMap, IdSet, Priority, RequestId, SequenceId};
pub use fork::ForkError;
pub use policy::SchedulingPolicy;
use sequence::{Progress, Sequence};

/// A stream with less audio than this ahead of playback is due.
const DUE_SOON_US: u64 = 500_000;
/// So long after a failed step every new sequence is alone in its steps until it has output.
const CAREFUL_US: u64 = 600_000_000;
/// A sequence that has been held for longer gives its blocks to admissions.
const IDLE_US: u64 = 2_000_000;

/// The work of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Workload {
    /// A prompt of known length, then one token per step, with paged keys and values.
    Autoregressive {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// The most tokens to generate.
        max_tokens: usize,
        /// Encoders that run before the positions of the prompt.
        encoders: Arc<[EncoderWork]>,
        /// Hashes of the full blocks: of the prompt, and of generated positions with content keys.
        prefix: Arc<PrefixChain>,
        /// The most branches of a search after the prompt; 1 without one.
        branches: usize,
    },
    /// Units of known size, one per step, without KV cache.
    Units(Arc<[usize]>),
    /// Parts of an encoder, one per step, without KV cache.
    Encoder(Arc<[usize]>),
    /// Chunks of `chunk` positions as their input comes, at most `longest` positions in a step, without KV cache.
    Chunks { chunk: usize, longest: usize },
}

/// A sequence for the waiting queue.
#[derive(Debug, Clone)]
pub struct NewSequence {
    /// The sequence.
    pub id: SequenceId,
    /// The request it runs for.
    pub request_id: RequestId,
    /// Urgency.
    pub priority: Priority,
    /// Whether somebody listens to its audio while it is generated.
    pub live: bool,
    /// Time of arrival in microseconds since the engine started; initial deadline.
    pub arrival_us: u64,
    /// Bytes that the executor holds for it from its first step to its end, KV blocks not included.
    pub state_bytes: usize,
    /// Whether later prompts may contain what it generates.
    pub is_continued: bool,
    /// Its work.
    pub work: Workload,
}

/// One sequence's share of a decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecidedItem {
    /// The sequence.
    pub sequence: SequenceId,
    /// First position (or the unit's index).
    pub start: usize,
    /// Tokens to compute.
    pub num_tokens: usize,
    /// Whether it is still prompt.
    pub is_prefill: bool,
    /// Blocks to append to its table, a copy-on-write block included.
    pub new_blocks: usize,
    /// For an admission: the shared blocks its table starts with.
    pub admit_with: Option<Vec<BlockId>>,
}

/// Result of [`Scheduler::compute_schedule`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleDecision {
    /// Version of the queues this was computed for.
    version: u64,
    /// Sequences that still compute their prompt (or first unit).
    pub prefill: Vec<DecidedItem>,
    /// Sequences that generate.
    pub decode: Vec<DecidedItem>,
    /// Running sequences to preempt.
    pub preempt: Vec<SequenceId>,
    /// Whether decodes were left out because prompts took their places.
    pub decode_waited: bool,
    /// Whether it has bulk work for which streams that play wait.
    pub pays_all: bool,
    /// The longest time of bulk work that was left out for lack of time, in microseconds.
    pub bulk_left_us: u64,
}

impl ScheduleDecision {
    /// Whether the step is empty.
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
    /// The sequence.
    pub sequence: SequenceId,
    /// The request it runs for.
    pub request_id: RequestId,
    /// First position to compute (or the unit's index).
    pub start: usize,
    /// Whether this is the first item since the admission: earlier results of the sequence, if any, were discarded, and
    /// positions before `start` are in shared blocks.
    pub begins: bool,
    /// Tokens to compute.
    pub num_tokens: usize,
    /// Whether it is still prompt.
    pub is_prefill: bool,
    /// Its block table.
    pub block_table: Vec<BlockId>,
    /// Block tables of the further branches of a search, each with a token of its own at each position; empty without one.
    pub branch_tables: Vec<Vec<BlockId>>,
}

/// A step, ready to execute.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScheduleResult {
    /// Sequences that still compute their prompt (or first unit).
    pub prefill_requests: Vec<ScheduledRequest>,
    /// Sequences that generate.
    pub decode_requests: Vec<ScheduledRequest>,
    /// Preempted sequences.
    pub preempted_requests: Vec<SequenceId>,
    /// Tokens of the step.
    pub total_tokens: usize,
    /// Blocks allocated for it.
    pub blocks_allocated: usize,
    /// Blocks to copy before the step writes.
    pub block_copies: Vec<BlockCopy>,
    /// Its work.
    pub shape: StepShape,
    /// The part of the work that is for live streams.
    pub live_shape: StepShape,
    /// Whether it has bulk work for which streams that play wait.
    pub pays_all: bool,
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

/// Policy and budgets of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Order of sequences.
    pub policy: SchedulingPolicy,
    /// The most sequences in a step.
    pub max_batch_size: usize,
    /// The most tokens in a step.
    pub max_tokens_per_step: usize,
    /// The most running sequences, held ones not included.
    pub max_running: usize,
    /// The most bytes of states of started sequences, running or not. One sequence may always start.
    pub max_state_bytes: usize,
    /// Whether long prompts are computed over several steps.
    pub chunked_prefill: bool,
    /// The most tokens of a prompt in one step, with chunked prefill.
    pub prefill_chunk: usize,
    /// Whether running sequences may be preempted.
    pub preemption: bool,
    /// With preemption, positions for which an admission leaves blocks, for itself and for each running sequence. Without,
    /// it leaves those of the worst case.
    pub lookahead: usize,
}

/// The queues and their policy.
#[derive(Debug)]
pub struct Scheduler {
    config: SchedulerConfig,
    sequences: IdMap<SequenceId, Sequence>,
    waiting: IdSet<SequenceId>,
    running: IdSet<SequenceId>,
    /// Bytes of the states of all started sequences.
    state_bytes: usize,
    arrivals: u64,
    steps: u64,
    /// Incremented by every change that makes an earlier decision stale.
    version: u64,
    decode_waited: bool,
    /// The longest time of bulk work for which the last step had no time, in microseconds.
    bulk_left_us: u64,
    /// Sequences whose steps contain only those of their group; the others are group 0.
    groups: BTreeMap<SequenceId, u64>,
    last_group: u64,
    /// Until when new sequences get groups of their own.
    careful_until_us: u64,
    now_us: u64,
    /// What limits the time of the next decisions; `None` if nothing does.
    limits: Option<StepLimits>,
}

impl Scheduler {
    /// A scheduler with empty queues.
    pub fn new(config: SchedulerConfig) -> Self {
        Self {
            config,
            sequences: IdMap::default(),
            waiting: IdSet::default(),
            running: IdSet::default(),
            state_bytes: 0,
            arrivals: 0,
            steps: 0,
            version: 0,
            decode_waited: false,
            bulk_left_us: 0,
            groups: BTreeMap::new(),
            last_group: 0,
            careful_until_us: 0,
            now_us: 0,
            limits: None,
        }
    }

    /// Sets the time of the next decisions, in microseconds on the engine's clock.
    pub fn set_now(&mut self, now_us: u64) {
        self.now_us = now_us;
    }

    /// Appends a sequence to the waiting queue.
    pub fn add_request(&mut self, new: NewSequence) {
        self.version += 1;
        self.arrivals += 1;
        self.waiting.insert(new.id);
        if self.now_us < self.careful_until_us {
            self.group(&[new.id]);
        }
        self.sequences.insert(new.id, Sequence::new(new, self.arrivals));
    }

    /// Removes a sequence and frees its blocks. Returns whether it was known.
    pub fn finish_request(&mut self, id: SequenceId, kv: &mut KVCacheManager) -> bool {
        self.waiting.remove(&id);
        self.running.remove(&id);
        self.groups.remove(&id);
        let Some(sequence) = self.sequences.remove(&id) else { return false };
        if sequence.started {
            self.state_bytes -= sequence.state_bytes;
        }
        self.version += 1;
        sequence.forget_generated(kv);
        kv.free(id);
        true
    }

    /// Starts the next pass of a sequence: frees its blocks and returns it to its place in the waiting queue.
    pub fn next_pass(&mut self, id: SequenceId, work: Workload, kv: &mut KVCacheManager) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.forget_generated(kv);
            sequence.begin_pass(work);
            kv.free(id);
            self.running.remove(&id);
            self.waiting.insert(id);
            self.version += 1;
        }
    }

    /// Keeps the sequences of a failed step in steps of their own until each has rejoined the others.
    pub fn isolate(&mut self, sequences: &[SequenceId]) {
        self.careful_until_us = self.now_us + CAREFUL_US;
        self.group(sequences);
    }

    fn group(&mut self, sequences: &[SequenceId]) {
        self.version += 1;
        self.last_group += 1;
        self.groups.extend(sequences.iter().map(|sequence| (*sequence, self.last_group)));
    }

    /// Returns a sequence to the steps of the others.
    pub fn rejoin(&mut self, id: SequenceId) {
        self.version += u64::from(self.groups.remove(&id).is_some());
    }

    fn group_of(&self, id: SequenceId) -> u64 {
        self.groups.get(&id).copied().unwrap_or(0)
    }

    /// The groups that have work, the one that has waited longest first.
    fn groups(&self) -> Vec<u64> {
        if self.groups.is_empty() {
            return vec![0];
        }
        let mut last_steps: BTreeMap<u64, u64> = BTreeMap::new();
        for sequence in self.sequences.values() {
            let last = last_steps.entry(self.group_of(sequence.id)).or_default();
            *last = (*last).max(sequence.last_scheduled);
        }
        let mut groups: Vec<u64> = last_steps.keys().copied().collect();
        groups.sort_by_key(|group| last_steps[group]);
        groups
    }

    /// Preempts all sequences and forgets what is cached: something else writes to the blocks.
    pub fn preempt_all(&mut self, kv: &mut KVCacheManager) {
        for id in std::mem::take(&mut self.running) {
            self.preempt(id, kv);
        }
        self.version += 1;
        kv.forget_all();
    }

    fn preempt(&mut self, id: SequenceId, kv: &mut KVCacheManager) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.preempt();
            kv.free(id);
            self.running.remove(&id);
            self.waiting.insert(id);
        }
    }

    /// Pauses or resumes a sequence whose client is slow. It keeps its blocks until another sequence needs them.
    pub fn set_paused(&mut self, id: SequenceId, paused: bool) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.paused != paused
        {
            sequence.paused = paused;
            sequence.held_at_us = self.now_us;
            self.version += 1;
        }
    }

    /// Sets the positions that can be computed with a sequence's input so far; `None` once the input is complete. Behind
    /// them the sequence is held: it takes no place, and keeps its blocks until another sequence needs them.
    pub fn set_positions(&mut self, id: SequenceId, positions: Option<usize>) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.positions != positions
        {
            let was_held = sequence.awaits_input();
            sequence.positions = positions;
            sequence.held_at_us = self.now_us;
            // More input for a sequence that has enough leaves decisions current.
            self.version += u64::from(was_held);
        }
    }

    /// Whether a sequence waits for input.
    pub fn awaits_input(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(Sequence::awaits_input)
    }

    /// Sets the playback of a live stream.
    pub(super) fn set_playback(&mut self, id: SequenceId, playback: Playback) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.due_us = playback.end_us;
            sequence.playback = Some(playback);
        }
    }

    /// Keeps a waiting sequence from starting, or lets it start.
    pub fn set_deferred(&mut self, id: SequenceId, deferred: bool) {
        if let Some(sequence) = self.sequences.get_mut(&id)
            && sequence.deferred != deferred
        {
            sequence.deferred = deferred;
            self.version += 1;
        }
    }

    /// Sets what limits the time of the next decisions.
    pub(super) fn set_limits(&mut self, limits: Option<StepLimits>) {
        self.limits = limits;
    }

    /// Whether a sequence consists of units.
    pub fn is_unit(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(|sequence| !sequence.uses_kv())
    }

    /// Whether it has work that nobody listens to and that can continue.
    pub fn has_bulk(&self) -> bool {
        self.sequences.values().any(|sequence| !sequence.live && !sequence.is_held())
    }

    /// The longest piece of bulk work for which the last step had no time.
    pub fn bulk_piece(&self) -> Duration {
        if self.has_bulk() { Duration::from_micros(self.bulk_left_us) } else { Duration::ZERO }
    }

    /// The streams that play and can continue.
    pub(super) fn playing(&self) -> impl Iterator<Item = Playback> {
        self.sequences
            .values()
            .filter(|sequence| !sequence.is_held())
            .filter_map(|sequence| sequence.playback)
    }

    /// The playback of a live stream; `None` before its first audio.
    pub(super) fn playback(&self, id: SequenceId) -> Option<Playback> {
        self.sequences.get(&id)?.playback
    }

    /// Number of waiting sequences.
    pub fn num_waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Number of running sequences.
    pub fn num_running(&self) -> usize {
        self.running.len()
    }

    /// Whether a sequence waits only because the states of others take all memory.
    pub fn waits_for_state(&self) -> bool {
        let needs = |id| self.sequences.get(id).is_some_and(|s| !s.is_held() && !self.has_room_for(s, 0));
        self.waiting.iter().any(needs)
    }

    /// Whether the state of `sequence` fits alongside those of the started sequences and `others` bytes more.
    fn has_room_for(&self, sequence: &Sequence, others: usize) -> bool {
        let held = self.state_bytes + others;
        sequence.started || held == 0 || held + sequence.state_bytes <= self.config.max_state_bytes
    }

    /// Whether the queues are unchanged since `decision` was computed.
    pub fn is_current(&self, decision: &ScheduleDecision) -> bool {
        self.version == decision.version
    }

    /// Decides the next step without changing state.
    ///
    /// `in_flight` is the step being executed, if any. The decision assumes that its sequences succeed, generate one token
    /// each and do not end. Free blocks are counted as of now, a lower bound of those free after the step.
    pub fn compute_schedule(
        &self,
        kv: &KVCacheManager,
        in_flight: Option<&ScheduleResult>,
    ) -> ScheduleDecision {
        decide::decide(self, kv, in_flight)
    }

    /// Applies a current decision: admits, preempts, allocates blocks. Leaves out items whose blocks are not available.
    pub fn apply_schedule(&mut self, decision: ScheduleDecision, kv: &mut KVCacheManager) -> ScheduleResult {
        self.steps += 1;
        self.decode_waited = decision.decode_waited;
        self.bulk_left_us = decision.bulk_left_us;
        let mut result = ScheduleResult { pays_all: decision.pays_all, ..ScheduleResult::default() };
        for id in decision.preempt {
            self.preempt(id, kv);
            result.preempted_requests.push(id);
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

    /// [`Self::compute_schedule`], then [`Self::apply_schedule`].
    pub fn schedule(&mut self, kv: &mut KVCacheManager) -> ScheduleResult {
        let decision = self.compute_schedule(kv, None);
        self.apply_schedule(decision, kv)
    }

    /// Records a computed item that generated `generated` tokens at a position with content key `key`.
    ///
    /// Returns whether the sequence is done: all units computed, or its token limit reached.
    pub fn complete(
        &mut self,
        item: &ScheduledRequest,
        generated: usize,
        key: Option<u64>,
        kv: &mut KVCacheManager,
    ) -> bool {
        let Some(sequence) = self.sequences.get_mut(&item.sequence) else { return false };
        let expected = sequence.progress.projected(item.num_tokens);
        sequence.progress.advance(item.num_tokens, generated);
        if sequence.awaits_input() {
            sequence.held_at_us = self.now_us;
        }
        if generated > 0 {
            sequence.push_content_key(key);
        }
        if sequence.progress != expected {
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
        if !std::mem::replace(&mut sequence.started, true) {
            self.state_bytes += sequence.state_bytes;
        }
        if let Some(shared) = &item.admit_with {
            debug_assert!(item.start == 0 || !sequence.uses_kv() || !shared.is_empty());
            sequence.begin_at(item.start);
        }
        if sequence.uses_kv() {
            let added = kv.extend(item.sequence, item.start + item.num_tokens).ok()?;
            result.blocks_allocated += added.len();
            let copies = kv.make_writable(item.sequence, item.start).ok()?;
            result.blocks_allocated += copies.len();
            result.block_copies.extend(copies);
        }
        result.total_tokens += item.num_tokens * sequence.branches;
        let shape = sequence.shape(item.start, item.num_tokens, item.is_prefill, sequence.begins);
        result.shape = result.shape.plus(shape);
        if sequence.live {
            result.live_shape = result.live_shape.plus(shape);
        }
        Some(ScheduledRequest {
            sequence: item.sequence,
            request_id: sequence.request_id.clone(),
            start: item.start,
            begins: std::mem::take(&mut sequence.begins),
            num_tokens: item.num_tokens,
            is_prefill: item.is_prefill,
            block_table: kv.table(item.sequence).to_vec(),
            branch_tables: kv.branch_tables(item.sequence).to_vec(),
        })
    }
}

#[cfg(test)]
mod tests;
