//! The pure part of scheduling. Must not change queues or blocks.
//!
//! 1. Reserve the blocks of every running sequence's next tokens, in order of rank. If blocks run out, preempt the last in
//!    rank (preemption by recompute).
//! 2. Fill the step: prefills of running sequences, then admissions, then decodes, each in its order; of the decodes, those
//!    whose audio runs out soon first. After a step that left decodes out, decodes come first.
//!
//! An admission never overtakes one of better rank that does not fit, so no sequence starves.

use std::collections::{HashMap, HashSet};

use super::policy::DecodeRank;
use super::sequence::{Demand, Sequence};
use super::{DUE_SOON_US, DecidedItem, ScheduleDecision, ScheduleResult, Scheduler};
use crate::engine::blocks::BlockId;
use crate::engine::kv_cache::KVCacheManager;
use crate::engine::types::SequenceId;

pub(super) fn decide(
    scheduler: &Scheduler,
    kv: &KVCacheManager,
    in_flight: Option<&ScheduleResult>,
) -> ScheduleDecision {
    let mut round = Round::new(scheduler, kv, in_flight);
    round.reserve_running();
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
struct Round<'a> {
    scheduler: &'a Scheduler,
    kv: &'a KVCacheManager,
    /// Running sequences as they are after the in-flight step, in order of rank.
    running: Vec<Sequence>,
    /// Running sequences whose next tokens have blocks.
    granted: HashMap<SequenceId, Grant>,
    free: usize,
    /// Change of each block's reference count by the decision so far.
    reference_changes: HashMap<BlockId, i64>,
    tokens: usize,
    places: usize,
    decision: ScheduleDecision,
}

/// The resource that an admission shortages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    /// Places or tokens in the step.
    Step,
    /// Running sequences below the limit.
    Running,
    /// Blocks of the KV pool.
    Blocks,
}

#[derive(Clone, Copy)]
struct Grant {
    demand: Demand,
    tokens: usize,
    new_blocks: usize,
}

impl<'a> Round<'a> {
    fn new(scheduler: &'a Scheduler, kv: &'a KVCacheManager, in_flight: Option<&ScheduleResult>) -> Self {
        let in_flight_tokens: HashMap<SequenceId, usize> = in_flight
            .map(|step| step.items().map(|item| (item.sequence, item.num_tokens)).collect())
            .unwrap_or_default();
        let mut running: Vec<Sequence> = scheduler
            .running
            .iter()
            .filter_map(|id| scheduler.sequences.get(id))
            .map(|sequence| match in_flight_tokens.get(&sequence.id) {
                Some(&tokens) => sequence.projected(tokens),
                None => sequence.clone(),
            })
            .filter(|sequence| !sequence.is_done())
            .collect();
        running.sort_by_key(|sequence| scheduler.config.policy.rank(sequence, scheduler.now_us));
        Self {
            scheduler,
            kv,
            running,
            granted: HashMap::new(),
            free: kv.num_free(),
            reference_changes: HashMap::new(),
            tokens: scheduler.config.max_tokens_per_step,
            places: scheduler.config.max_batch_size,
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
            let Some(tokens) = self.chunk(&demand, self.scheduler.config.max_tokens_per_step) else {
                continue;
            };
            let held = self.kv.table(id).len();
            let end = if uses_kv { self.kv.geometry().blocks_for(demand.start + tokens) } else { 0 };
            let new_blocks = end.saturating_sub(held);
            while new_blocks > self.free && !preempted.contains(&id) {
                let Some(victim) = self.victim(index, &preempted) else { break };
                preempted.insert(victim);
                self.preempt(victim);
            }
            if new_blocks <= self.free && !preempted.contains(&id) {
                self.free -= new_blocks;
                self.granted.insert(id, Grant { demand, tokens, new_blocks });
            }
        }
        self.running.retain(|sequence| !preempted.contains(&sequence.id));
    }

    /// The sequence to preempt: the last held one that holds blocks, otherwise the last in rank from `index` on.
    fn victim(&self, index: usize, preempted: &HashSet<SequenceId>) -> Option<SequenceId> {
        if !self.scheduler.config.preemption {
            return None;
        }
        let holds = |s: &&Sequence| !preempted.contains(&s.id) && !self.kv.table(s.id).is_empty();
        let idle = self.running.iter().rev().filter(holds).find(|s| s.is_held());
        idle.or_else(|| self.running[index..].iter().rev().find(holds)).map(|s| s.id)
    }

    /// Preempts a sequence: its unshared blocks become free.
    fn preempt(&mut self, id: SequenceId) {
        for &block in self.kv.table(id) {
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

    fn fill_running_prefills(&mut self) {
        for index in 0..self.running.len() {
            let id = self.running[index].id;
            if let Some(grant) = self.granted.get(&id).copied().filter(|grant| grant.demand.is_prefill) {
                self.place(id, grant);
            }
        }
    }

    fn soon_us(&self) -> u64 {
        self.scheduler.now_us + DUE_SOON_US
    }

    /// Whether a granted decode is due.
    fn has_due_decode(&self) -> bool {
        let soon = self.soon_us();
        let decodes = |s: &&Sequence| self.granted.get(&s.id).is_some_and(|grant| !grant.demand.is_prefill);
        self.running.iter().filter(decodes).any(|s| s.is_due(soon))
    }

    fn fill_decodes(&mut self) {
        let (policy, soon) = (self.scheduler.config.policy, self.soon_us());
        let mut ready: Vec<(SequenceId, Grant, DecodeRank)> = self
            .running
            .iter()
            .filter_map(|s| self.granted.get(&s.id).map(|grant| (s.id, *grant, policy.decode_rank(s, soon))))
            .filter(|(_, grant, _)| !grant.demand.is_prefill)
            .collect();
        ready.sort_by_key(|(_, _, rank)| *rank);
        let left_out = ready.iter().filter(|(id, grant, _)| !self.place(*id, *grant)).count();
        self.decision.decode_waited = left_out > 0 && !self.decision.prefill.is_empty();
    }

    /// Adds a granted sequence to the step, if a place and tokens are left.
    fn place(&mut self, id: SequenceId, grant: Grant) -> bool {
        if self.places == 0 {
            return false;
        }
        let Some(tokens) = self.chunk(&grant.demand, self.tokens.min(grant.tokens)) else { return false };
        self.places -= 1;
        self.tokens -= tokens;
        let item = DecidedItem {
            sequence: id,
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
    fn admit_waiting(&mut self) {
        let policy = self.scheduler.config.policy;
        if !self.decision.preempt.is_empty() {
            return;
        }
        let mut waiting: Vec<&Sequence> = self
            .scheduler
            .waiting
            .iter()
            .filter_map(|id| self.scheduler.sequences.get(id))
            .filter(|sequence| !sequence.is_held())
            .collect();
        waiting.sort_by_key(|sequence| policy.rank(sequence, self.scheduler.now_us));
        let mut running = self.running.len();
        for sequence in waiting {
            while let Err(shortage) = self.admit(sequence, running) {
                if !self.preempt_for(sequence, shortage) {
                    return;
                }
                running -= 1;
            }
            running += 1;
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
        let (budget, left) = self.budget_of(sequence.encoder_tokens(), demand.tokens)?;
        let shared = self.kv.match_prefix(sequence.prefix());
        let item = match self.fit(sequence, demand, shared.clone(), budget) {
            // A fully cached prompt needs one more block: its last token is recomputed in a copy.
            Err(Shortage::Blocks) if !shared.is_empty() => {
                self.fit(sequence, demand, shared[..shared.len() - 1].to_vec(), budget)?
            }
            other => other?,
        };
        self.free -= item.new_blocks;
        self.places -= 1;
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
            None if self.tokens == self.scheduler.config.max_tokens_per_step => Ok((self.tokens, 0)),
            None => Err(Shortage::Step),
        }
    }

    /// The first item of an admission that starts with `shared` blocks.
    fn fit(
        &self,
        sequence: &Sequence,
        mut demand: Demand,
        shared: Vec<BlockId>,
        budget: usize,
    ) -> Result<DecidedItem, Shortage> {
        let mut extra = 0;
        if sequence.uses_kv() {
            let cached = shared.len() * self.kv.geometry().block_size;
            // The last token is always computed: its output is the first new token.
            demand.start = cached.min(demand.tokens - 1);
            demand.tokens -= demand.start;
            extra = usize::from(demand.start < cached) + self.count_unowned(&shared);
        }
        let tokens = self.chunk(&demand, budget).ok_or(Shortage::Step)?;
        let blocks_for =
            |positions| if sequence.uses_kv() { self.kv.geometry().blocks_for(positions) } else { 0 };
        let new_blocks = blocks_for(demand.start + tokens).saturating_sub(shared.len()) + extra;
        let mut kept = new_blocks;
        if !self.scheduler.config.preemption && sequence.uses_kv() {
            // Without preemption, keep enough blocks for the worst case of every admitted sequence.
            let own = blocks_for(sequence.worst_case_positions()).saturating_sub(shared.len()) + extra;
            kept = own.max(new_blocks) + self.future_blocks();
        }
        if kept > self.free {
            return Err(Shortage::Blocks);
        }
        Ok(DecidedItem {
            sequence: sequence.id,
            start: demand.start,
            num_tokens: tokens,
            is_prefill: true,
            new_blocks,
            admit_with: Some(shared),
        })
    }

    /// Worst-case blocks of the sequences admitted so far, beyond those they hold or were granted.
    fn future_blocks(&self) -> usize {
        let future = |s: &Sequence, held: usize| {
            self.kv.geometry().blocks_for(s.worst_case_positions()).saturating_sub(held)
        };
        let running = self.running.iter().map(|s| {
            let granted = self.granted.get(&s.id).map_or(0, |grant| grant.new_blocks);
            future(s, self.kv.table(s.id).len() + granted)
        });
        let admitted = self.decision.prefill.iter().filter_map(|item| {
            let end = self.kv.geometry().blocks_for(item.start + item.num_tokens);
            Some(future(self.scheduler.sequences.get(&item.sequence)?, end))
        });
        running.chain(admitted).sum()
    }

    /// Preempts a running sequence in favour of a waiting one, if the policy allows it.
    fn preempt_for(&mut self, sequence: &Sequence, shortage: Shortage) -> bool {
        let policy = self.scheduler.config.policy;
        if !self.scheduler.config.preemption || shortage == Shortage::Step {
            return false;
        }
        let placed: HashSet<SequenceId> = self.decision.items().map(|item| item.sequence).collect();
        let victim = self.running.iter().rposition(|s| {
            policy.displaces(sequence, s)
                && !placed.contains(&s.id)
                && (shortage == Shortage::Running || !self.kv.table(s.id).is_empty())
        });
        let Some(index) = victim else { return false };
        let victim = self.running.remove(index).id;
        let reserved = self.granted.remove(&victim).map_or(0, |grant| grant.new_blocks);
        self.free += reserved;
        self.preempt(victim);
        true
    }
}
