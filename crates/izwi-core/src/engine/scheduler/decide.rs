//! The pure part of scheduling. Must not change queues or blocks, or know clocks.
//!
//! 1. Reserve the blocks of every running sequence's next tokens, in order of rank. If blocks run out, preempt the last in
//!    rank (preemption by recompute).
//! 2. Fill the step: prefills of running sequences, then admissions, then decodes, each in its order; of the decodes, those
//!    whose audio runs out soon first. After a step that left decodes out, decodes come first.
//!
//! Where the time of steps is known and live streams run, it is counted: those that play come first, then those that start,
//! then bulk work, each as far as the streams that play stay ahead of their players (see `timed`).
//!
//! An admission never overtakes one of better rank that does not fit, so no sequence starves. Where the memory of states is
//! short, those that have a state do overtake: they free it when they end. A held sequence takes no place, and its blocks
//! go to whoever needs them.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Deref;

use super::policy::DecodeRank;
use super::sequence::{Demand, Sequence};
use super::{
    DUE_SOON_US, DecidedItem, IDLE_US, ScheduleDecision, ScheduleResult, Scheduler, SchedulerConfig,
};
use crate::engine::blocks::BlockId;
use crate::engine::kv_cache::KVCacheManager;
use crate::engine::qos::budget::TimeBudget;
use crate::engine::types::{IdMap, SequenceId};

pub(super) fn decide(
    scheduler: &Scheduler,
    kv: &KVCacheManager,
    in_flight: Option<&ScheduleResult>,
) -> ScheduleDecision {
    let groups = scheduler.groups();
    let mut decisions = groups.iter().map(|&group| decide_for(group, scheduler, kv, in_flight));
    let none = || ScheduleDecision { version: scheduler.version, ..Default::default() };
    decisions.find(|decision| !decision.is_empty()).unwrap_or_else(none)
}

/// Decides a step of the sequences of `group`.
fn decide_for(
    group: u64,
    scheduler: &Scheduler,
    kv: &KVCacheManager,
    in_flight: Option<&ScheduleResult>,
) -> ScheduleDecision {
    let mut round = Round::new(group, scheduler, kv, in_flight);
    round.reserve_running();
    if round.fill_in_time(in_flight) {
        return round.decision;
    }
    let first_decodes = scheduler.decode_waited && round.has_due_decode();
    if first_decodes {
        round.fill_decodes();
    }
    round.fill_running_prefills();
    round.admit_waiting();
    if !first_decodes {
        round.fill_decodes();
    }
    round.decision
}

/// One computation of a decision.
pub(super) struct Round<'a> {
    pub(super) group: u64,
    pub(super) scheduler: &'a Scheduler,
    pub(super) kv: &'a KVCacheManager,
    /// Running sequences in order of rank.
    pub(super) running: Vec<Running<'a>>,
    pub(super) free: usize,
    /// Change of each block's reference count by the decision so far.
    pub(super) reference_changes: IdMap<BlockId, i64>,
    pub(super) tokens: usize,
    pub(super) places: usize,
    /// Bytes of the states that the decision's admissions start.
    pub(super) new_state_bytes: usize,
    /// What the step has time for; `None` if time does not count.
    pub(super) time: Option<TimeBudget<'a>>,
    /// Tokens of the streams that play.
    pub(super) playing_tokens: usize,
    pub(super) decision: ScheduleDecision,
}

/// A running sequence as it is after the in-flight step.
pub(super) struct Running<'a> {
    sequence: Cow<'a, Sequence>,
    /// Its next tokens, if they have blocks.
    pub(super) grant: Option<Grant>,
}

impl Deref for Running<'_> {
    type Target = Sequence;

    fn deref(&self) -> &Sequence {
        &self.sequence
    }
}

impl Running<'_> {
    /// Its next token, if that has blocks and the sequence generates.
    pub(super) fn decode(&self) -> Option<Grant> {
        self.grant.filter(|grant| !grant.demand.is_prefill)
    }
}

/// The resource that an admission lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    /// Places or tokens in the step.
    Step,
    /// Running sequences below the limit.
    Running,
    /// Memory of states.
    State,
    /// Blocks of the KV pool.
    Blocks,
    /// Blocks beyond those that running sequences will need.
    Reserve,
}

#[derive(Clone, Copy)]
pub(super) struct Grant {
    pub(super) demand: Demand,
    pub(super) tokens: usize,
    pub(super) new_blocks: usize,
    /// Branches that compute the tokens.
    pub(super) branches: usize,
}

impl<'a> Round<'a> {
    fn new(
        group: u64,
        scheduler: &'a Scheduler,
        kv: &'a KVCacheManager,
        in_flight: Option<&ScheduleResult>,
    ) -> Self {
        let in_flight_tokens: IdMap<SequenceId, usize> = in_flight
            .map(|step| step.items().map(|item| (item.sequence, item.num_tokens)).collect())
            .unwrap_or_default();
        let mut running: Vec<Running<'a>> = scheduler
            .running
            .iter()
            .filter_map(|id| scheduler.sequences.get(id))
            .map(|sequence| match in_flight_tokens.get(&sequence.id) {
                Some(&tokens) => Cow::Owned(sequence.projected(tokens)),
                None => Cow::Borrowed(sequence),
            })
            .filter(|sequence| !sequence.is_done())
            .map(|sequence| Running { sequence, grant: None })
            .collect();
        running.sort_by_cached_key(|running| scheduler.config.policy.rank(running, scheduler.now_us));
        Self {
            group,
            scheduler,
            kv,
            running,
            free: kv.num_free(),
            reference_changes: IdMap::default(),
            tokens: scheduler.config.max_tokens_per_step,
            places: scheduler.config.max_batch_size,
            new_state_bytes: 0,
            time: None,
            playing_tokens: 0,
            decision: ScheduleDecision { version: scheduler.version, ..Default::default() },
        }
    }

    fn chunk(&self, demand: &Demand, budget: usize) -> Option<usize> {
        let config = &self.scheduler.config;
        if !demand.divisible {
            return (demand.tokens <= budget).then_some(demand.tokens);
        }
        if config.chunked_prefill {
            return Some(demand.tokens.min(config.prefill_chunk).min(budget)).filter(|&tokens| tokens > 0);
        }
        // Without chunking a prompt is computed whole; only a recompute larger than the budget is split.
        let wanted = demand.tokens.min(config.max_tokens_per_step);
        (wanted <= budget).then_some(wanted)
    }

    /// Step 1: reserves blocks for running sequences, best rank first; preempts the worst rank.
    fn reserve_running(&mut self) {
        let mut preempted: HashSet<SequenceId> = HashSet::new();
        for index in 0..self.running.len() {
            let sequence = &self.running[index];
            if sequence.is_held() || preempted.contains(&sequence.id) {
                continue;
            }
            let (id, uses_kv, Some(demand)) = (sequence.id, sequence.uses_kv(), sequence.demand()) else {
                continue;
            };
            let branches = sequence.branches;
            let Some(tokens) = self.chunk(&demand, self.scheduler.config.max_tokens_per_step) else {
                continue;
            };
            let held = self.kv.table(id).len();
            let end = if uses_kv { self.kv.geometry().blocks_for(demand.start + tokens) } else { 0 };
            let copies = if branches > 1 { self.kv.copies_needed(id, demand.start) } else { 0 };
            let new_blocks = branches * end.saturating_sub(held) + copies;
            while new_blocks > self.free && !preempted.contains(&id) {
                let Some(victim) = self.victim(index, &preempted) else { break };
                preempted.insert(victim);
                self.preempt(victim);
            }
            if new_blocks <= self.free && !preempted.contains(&id) {
                self.free -= new_blocks;
                if self.scheduler.group_of(id) == self.group {
                    self.running[index].grant = Some(Grant { demand, tokens, new_blocks, branches });
                }
            }
        }
        self.running.retain(|sequence| !preempted.contains(&sequence.id));
    }

    /// The sequence to preempt: the last held one that holds blocks, otherwise the last in rank from `index` on.
    fn victim(&self, index: usize, preempted: &HashSet<SequenceId>) -> Option<SequenceId> {
        if !self.scheduler.config.preemption {
            return None;
        }
        let holds = |s: &&Running| !preempted.contains(&s.id) && !self.kv.table(s.id).is_empty();
        let idle = self.running.iter().rev().filter(holds).find(|s| s.is_held());
        idle.or_else(|| self.running[index..].iter().rev().find(holds)).map(|s| s.id)
    }

    /// Preempts a sequence: its unshared blocks become free.
    fn preempt(&mut self, id: SequenceId) {
        for block in self.kv.blocks_of(id) {
            *self.reference_changes.entry(block).or_default() -= 1;
            self.free += usize::from(self.is_unowned(block));
        }
        self.decision.preempt.push(id);
    }

    /// Whether no sequence references the block after the decision so far is applied.
    fn is_unowned(&self, block: BlockId) -> bool {
        i64::from(self.kv.references(block)) + self.reference_changes.get(&block).copied().unwrap_or(0) == 0
    }

    fn count_unowned(&self, blocks: &[BlockId]) -> usize {
        blocks.iter().filter(|&&block| self.is_unowned(block)).count()
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &'a Sequence> {
        let scheduler = self.scheduler;
        scheduler.waiting.iter().filter_map(|id| scheduler.sequences.get(id))
    }

    pub(super) fn fill_running_prefills(&mut self) {
        for index in 0..self.running.len() {
            if let Some(grant) = self.running[index].grant.filter(|grant| grant.demand.is_prefill) {
                self.place(index, grant);
            }
        }
    }

    fn soon_us(&self) -> u64 {
        self.scheduler.now_us + DUE_SOON_US
    }

    /// Whether a granted decode is due.
    fn has_due_decode(&self) -> bool {
        let soon = self.soon_us();
        self.running.iter().any(|s| s.decode().is_some() && s.is_due(soon))
    }

    pub(super) fn fill_decodes(&mut self) {
        let (policy, soon) = (self.scheduler.config.policy, self.soon_us());
        // Where time counts, live streams have been placed, or left out.
        let is_open = |s: &Running| self.time.is_none() || !s.live;
        let mut ready: Vec<(DecodeRank, usize, Grant)> = self
            .running
            .iter()
            .enumerate()
            .filter(|(_, s)| is_open(s))
            .filter_map(|(index, s)| Some((policy.decode_rank(s, soon), index, s.decode()?)))
            .collect();
        ready.sort_by_key(|(rank, ..)| *rank);
        let left_out = ready.iter().filter(|(_, index, grant)| !self.place(*index, *grant)).count();
        self.decision.decode_waited = left_out > 0 && !self.decision.prefill.is_empty();
    }

    /// Adds the running sequence at `index` to the step, if a place and tokens are left.
    pub(super) fn place(&mut self, index: usize, grant: Grant) -> bool {
        if self.places == 0 {
            return false;
        }
        let most = (self.tokens / grant.branches).min(grant.tokens);
        let Some(tokens) = self.chunk(&grant.demand, most) else { return false };
        let Some(tokens) = self.take_time(index, &grant.demand, tokens) else { return false };
        self.places -= 1;
        self.tokens -= tokens * grant.branches;
        let item = DecidedItem {
            sequence: self.running[index].id,
            start: grant.demand.start,
            num_tokens: tokens,
            is_prefill: grant.demand.is_prefill,
            new_blocks: grant.new_blocks,
            admit_with: None,
        };
        if item.is_prefill {
            self.decision.prefill.push(item)
        } else {
            self.decision.decode.push(item)
        }
        true
    }

    /// Step 2, admissions: best rank first, up to the first that does not fit.
    pub(super) fn admit_waiting(&mut self) {
        let policy = self.scheduler.config.policy;
        if !self.decision.preempt.is_empty() {
            return;
        }
        let joins = |s: &&Sequence| !s.is_held() && self.scheduler.group_of(s.id) == self.group;
        let mut waiting: Vec<&Sequence> = self.waiting().filter(joins).collect();
        waiting.sort_by_key(|sequence| policy.rank(sequence, self.scheduler.now_us));
        let count_active = |round: &Self| round.running.iter().filter(|s| !s.is_held()).count();
        let mut active = count_active(self);
        let mut admitted = 0;
        let mut states_are_full = false;
        for sequence in waiting {
            if states_are_full && !sequence.started {
                continue;
            }
            loop {
                match self.admit(sequence, active + admitted) {
                    Ok(()) => admitted += 1,
                    Err(Shortage::State) => states_are_full = true,
                    Err(shortage) if self.preempt_for(sequence, shortage) => {
                        active = count_active(self);
                        continue;
                    }
                    Err(_) => return,
                }
                break;
            }
        }
    }

    fn admit(&mut self, sequence: &Sequence, running: usize) -> Result<(), Shortage> {
        let demand = sequence.demand().ok_or(Shortage::Step)?;
        if self.places == 0 {
            return Err(Shortage::Step);
        }
        if running >= self.scheduler.config.max_running {
            return Err(Shortage::Running);
        }
        if !self.scheduler.has_room_for(sequence, self.new_state_bytes) {
            return Err(Shortage::State);
        }
        let shared = self.kv.match_prefix(sequence.prefix());
        // With preemption, a sequence alone runs as far as it gets.
        let needs_reserve = sequence.uses_kv() && (running > 0 || !self.scheduler.config.preemption);
        let fits = |shared: Vec<BlockId>| {
            let (item, left) = self.fit(sequence, demand, shared)?;
            let fits = !needs_reserve || self.leaves_reserve(sequence, &item);
            if fits { Ok((item, left)) } else { Err(Shortage::Reserve) }
        };
        let (item, left) = match fits(shared.clone()) {
            // A fully cached prompt needs one more block: its last token is recomputed in a copy.
            Err(Shortage::Blocks | Shortage::Reserve) if !shared.is_empty() => {
                fits(shared[..shared.len() - 1].to_vec())?
            }
            other => other?,
        };
        if !self.take_time_to_begin(sequence, &item) {
            return Err(Shortage::Step);
        }
        self.free -= item.new_blocks;
        self.places -= 1;
        if !sequence.started {
            self.new_state_bytes += sequence.state_bytes;
        }
        self.tokens = left.saturating_sub(item.num_tokens);
        for &block in item.admit_with.iter().flatten() {
            *self.reference_changes.entry(block).or_default() += 1;
        }
        self.decision.prefill.push(item);
        Ok(())
    }

    /// Token budget of an admission whose encoder costs `encoder_tokens`, and the tokens left in the step before the
    /// admission takes its own. An encoder that exceeds every step's budget gets a step of its own.
    fn budget_of(&self, encoder_tokens: usize, tokens: usize) -> Result<(usize, usize), Shortage> {
        if encoder_tokens == 0 {
            return Ok((self.tokens, self.tokens));
        }
        match self.tokens.checked_sub(encoder_tokens).filter(|&left| left >= tokens) {
            Some(left) => Ok((left, left)),
            None if self.tokens + self.playing_tokens == self.scheduler.config.max_tokens_per_step => {
                Ok((self.tokens, 0))
            }
            None => Err(Shortage::Step),
        }
    }

    /// The first item of an admission that starts with `shared` blocks, and the tokens left in the step before it takes its
    /// own.
    fn fit(
        &self,
        sequence: &Sequence,
        mut demand: Demand,
        shared: Vec<BlockId>,
    ) -> Result<(DecidedItem, usize), Shortage> {
        let mut extra = 0;
        if sequence.uses_kv() {
            let cached = shared.len() * self.kv.geometry().block_size;
            // The last token is always computed: its output is the first new token.
            demand.start = cached.min(demand.tokens - 1);
            demand.tokens -= demand.start;
            extra = usize::from(demand.start < cached) + self.count_unowned(&shared);
        }
        let (budget, left) = self.budget_of(sequence.encoder_tokens(demand.start), demand.tokens)?;
        let tokens = self.chunk(&demand, budget).ok_or(Shortage::Step)?;
        let tokens = self.time_to_begin(sequence, &demand, tokens);
        if tokens == 0 {
            return Err(Shortage::Step);
        }
        let blocks_for =
            |positions| if sequence.uses_kv() { self.kv.geometry().blocks_for(positions) } else { 0 };
        let new_blocks = blocks_for(demand.start + tokens).saturating_sub(shared.len()) + extra;
        if new_blocks > self.free {
            return Err(Shortage::Blocks);
        }
        let item = DecidedItem {
            sequence: sequence.id,
            start: demand.start,
            num_tokens: tokens,
            is_prefill: true,
            new_blocks,
            admit_with: Some(shared),
        };
        Ok((item, left))
    }

    /// Whether the admission `item` leaves the blocks that it and the sequences before it will need.
    fn leaves_reserve(&self, sequence: &Sequence, item: &DecidedItem) -> bool {
        let end = self.kv.geometry().blocks_for(item.start + item.num_tokens);
        let own = self.expected_blocks(sequence).saturating_sub(end);
        item.new_blocks + own + self.future_blocks() <= self.free
    }

    /// Blocks that a sequence holds after the lookahead, without preemption at its end; the model ends it in the pool.
    fn expected_blocks(&self, sequence: &Sequence) -> usize {
        let SchedulerConfig { preemption, lookahead, .. } = self.scheduler.config;
        let positions = sequence.positions_after(if preemption { lookahead } else { usize::MAX });
        let geometry = self.kv.geometry();
        sequence.blocks_for(positions, geometry).min(geometry.num_blocks)
    }

    /// Blocks that the sequences admitted so far will need, beyond those they hold or were granted.
    fn future_blocks(&self) -> usize {
        let SchedulerConfig { preemption, .. } = self.scheduler.config;
        let future = |s: &Sequence, held: usize| self.expected_blocks(s).saturating_sub(held);
        // Where they can be preempted, held sequences need none.
        let running = self.running.iter().filter(|s| !(s.is_held() && preemption)).map(|s| {
            let granted = s.grant.map_or(0, |grant| grant.new_blocks);
            future(s, self.kv.num_held(s.id) + granted)
        });
        let admitted = self.decision.prefill.iter().filter(|item| item.admit_with.is_some());
        let admitted = admitted.filter_map(|item| {
            let end = self.kv.geometry().blocks_for(item.start + item.num_tokens);
            Some(future(self.scheduler.sequences.get(&item.sequence)?, end))
        });
        running.chain(admitted).sum()
    }

    /// Whether a sequence that can run is running or admitted.
    fn has_active(&self) -> bool {
        !self.decision.prefill.is_empty() || self.running.iter().any(|s| !s.is_held())
    }

    /// Preempts a running sequence in favour of a waiting one: a held one for its blocks, else one that the policy gives.
    fn preempt_for(&mut self, sequence: &Sequence, shortage: Shortage) -> bool {
        let SchedulerConfig { policy, preemption, .. } = self.scheduler.config;
        let holds = |s: &Sequence| !self.kv.table(s.id).is_empty();
        let held_for = |s: &Sequence| self.scheduler.now_us.saturating_sub(s.held_at_us);
        let held = || self.running.iter().rposition(|s| s.is_held() && holds(s));
        // A reader in real time is paused for moments, in which its blocks are left to it.
        let idle = || self.running.iter().rposition(|s| s.is_held() && holds(s) && held_for(s) >= IDLE_US);
        let displaced = || {
            let placed: HashSet<SequenceId> = self.decision.items().map(|item| item.sequence).collect();
            self.running.iter().rposition(|s| {
                preemption
                    && policy.displaces(sequence, s)
                    && !placed.contains(&s.id)
                    && if shortage == Shortage::Running { !s.is_held() } else { holds(s) }
            })
        };
        let victim = match shortage {
            Shortage::Step | Shortage::State => None,
            Shortage::Running => displaced(),
            Shortage::Blocks | Shortage::Reserve if self.has_active() => idle().or_else(displaced),
            Shortage::Blocks | Shortage::Reserve => held(),
        };
        let Some(index) = victim else { return false };
        let victim = self.running.remove(index);
        self.free += victim.grant.map_or(0, |grant| grant.new_blocks);
        self.preempt(victim.id);
        true
    }
}
