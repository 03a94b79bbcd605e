//! The pure part of scheduling.
//!
//! 1. Every running sequence gets the blocks of its next tokens reserved, in order of rank; when blocks run out the
//!    worst rank gives up its own (preemption by recompute).
//! 2. Places in the step are filled: prompts of running sequences, then admissions, then decodes, each in its order;
//!    of the decodes those first whose audio is about to run out.
//!    A step in which decodes were left out is followed by one in which they come first.
//!
//! An admission never passes one of better rank that does not fit, so nothing starves.

use std::collections::{HashMap, HashSet};

use super::queue::{Demand, Sequence, Turn};
use super::{DUE_SOON_US, DecidedItem, ScheduleDecision, ScheduleResult, Scheduler};
use crate::engine::config::SchedulingPolicy;
use crate::engine::kv_cache::KVCacheManager;
use crate::engine::types::{BlockId, SequenceId};

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
    /// Running sequences as they will be, in order of rank.
    running: Vec<Sequence>,
    /// Sequences whose next tokens have their blocks.
    granted: HashMap<SequenceId, Grant>,
    free: usize,
    /// How the decision so far changes the number of holders, by block.
    holders: HashMap<BlockId, i64>,
    tokens: usize,
    places: usize,
    decision: ScheduleDecision,
}

/// Why a sequence cannot be admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// The step has no place or no tokens left.
    Step,
    /// As many sequences run as may.
    Running,
    /// The KV pool has too few blocks.
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
        let flying: HashMap<SequenceId, usize> = in_flight
            .map(|step| step.items().map(|item| (item.sequence, item.num_tokens)).collect())
            .unwrap_or_default();
        let mut running: Vec<Sequence> = scheduler
            .running
            .iter()
            .filter_map(|id| scheduler.sequences.get(id))
            .map(|sequence| match flying.get(&sequence.id) {
                Some(&tokens) => sequence.projected(tokens),
                None => sequence.clone(),
            })
            .filter(|sequence| !sequence.is_done())
            .collect();
        running.sort_by_key(|sequence| sequence.rank(scheduler.policy));
        Self {
            scheduler,
            kv,
            running,
            granted: HashMap::new(),
            free: kv.num_free(),
            holders: HashMap::new(),
            tokens: scheduler.limits.tokens,
            places: scheduler.limits.batch_size,
            decision: ScheduleDecision { version: scheduler.version, ..Default::default() },
        }
    }

    fn chunk(&self, demand: &Demand, budget: usize) -> Option<usize> {
        let limits = &self.scheduler.limits;
        if !demand.divisible {
            return (demand.tokens <= budget).then_some(demand.tokens);
        }
        if limits.chunked_prefill {
            let wanted = if demand.tokens > limits.chunk { limits.chunk } else { demand.tokens };
            return Some(wanted.min(budget)).filter(|&tokens| tokens > 0);
        }
        // Without chunking a prompt goes in whole; only a recompute that outgrew the budget is cut.
        let wanted = demand.tokens.min(limits.tokens);
        (wanted <= budget).then_some(wanted)
    }

    /// Step 1: blocks for everything that runs, best rank first; the worst rank pays.
    fn reserve_running(&mut self) {
        let mut gone: HashSet<SequenceId> = HashSet::new();
        for index in 0..self.running.len() {
            let sequence = &self.running[index];
            if sequence.paused || gone.contains(&sequence.id) {
                continue;
            }
            let (id, uses_kv, Some(demand)) = (sequence.id, sequence.uses_kv(), sequence.demand()) else {
                continue;
            };
            let Some(tokens) = self.chunk(&demand, self.scheduler.limits.tokens) else { continue };
            let held = self.kv.table(id).len();
            let end = if uses_kv { self.kv.blocks_for(demand.start + tokens) } else { 0 };
            let new_blocks = end.saturating_sub(held);
            while new_blocks > self.free && !gone.contains(&id) {
                let Some(victim) = self.victim(index, &gone) else { break };
                gone.insert(victim);
                self.preempt(victim);
            }
            if new_blocks <= self.free && !gone.contains(&id) {
                self.free -= new_blocks;
                self.granted.insert(id, Grant { demand, tokens, new_blocks });
            }
        }
        self.running.retain(|sequence| !gone.contains(&sequence.id));
    }

    /// The worst-ranked holder of blocks, `index` itself included; paused sequences first.
    fn victim(&self, index: usize, gone: &HashSet<SequenceId>) -> Option<SequenceId> {
        if !self.scheduler.limits.preemption {
            return None;
        }
        let holds = |s: &&Sequence| !gone.contains(&s.id) && !self.kv.table(s.id).is_empty();
        let idle = self.running.iter().rev().filter(holds).find(|s| s.paused);
        idle.or_else(|| self.running[index..].iter().rev().find(holds)).map(|s| s.id)
    }

    /// Counts a sequence out: the blocks that nobody else holds come free.
    fn preempt(&mut self, id: SequenceId) {
        for &block in self.kv.table(id) {
            *self.holders.entry(block).or_default() -= 1;
            self.free += usize::from(self.is_unowned(block));
        }
        self.decision.preempt.push(id);
    }

    /// Whether nobody will hold the block once the decision so far is carried out.
    fn is_unowned(&self, block: BlockId) -> bool {
        i64::from(self.kv.references(block)) + self.holders.get(&block).copied().unwrap_or(0) == 0
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

    /// Whether a sequence that could decode has little audio left to play.
    fn has_due_decode(&self) -> bool {
        let soon = self.soon_us();
        let decodes = |s: &&Sequence| self.granted.get(&s.id).is_some_and(|grant| !grant.demand.is_prefill);
        self.running.iter().filter(decodes).any(|s| s.is_due(soon))
    }

    fn fill_decodes(&mut self) {
        let (policy, soon) = (self.scheduler.policy, self.soon_us());
        let mut ready: Vec<(SequenceId, Grant, Turn)> = self
            .running
            .iter()
            .filter_map(|s| self.granted.get(&s.id).map(|grant| (s.id, *grant, s.turn(policy, soon))))
            .filter(|(_, grant, _)| !grant.demand.is_prefill)
            .collect();
        ready.sort_by_key(|(_, _, turn)| *turn);
        let left_out = ready.iter().filter(|(id, grant, _)| !self.place(*id, *grant)).count();
        self.decision.decode_waited = left_out > 0 && !self.decision.prefill.is_empty();
    }

    /// Puts a granted sequence into the step if there is room.
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

    /// Step 2, admissions: best rank first, none past one that does not fit.
    fn admit_waiting(&mut self) {
        let policy = self.scheduler.policy;
        if !self.decision.preempt.is_empty() {
            return;
        }
        let mut waiting: Vec<&Sequence> = self
            .scheduler
            .waiting
            .iter()
            .filter_map(|id| self.scheduler.sequences.get(id))
            .filter(|sequence| !sequence.paused)
            .collect();
        waiting.sort_by_key(|sequence| sequence.rank(policy));
        let mut running = self.running.len();
        for sequence in waiting {
            while let Err(lack) = self.admit(sequence, running) {
                if !self.make_room(sequence, lack) {
                    return;
                }
                running -= 1;
            }
            running += 1;
        }
    }

    fn admit(&mut self, sequence: &Sequence, running: usize) -> Result<(), Lack> {
        let demand = sequence.demand().ok_or(Lack::Step)?;
        if self.places == 0 {
            return Err(Lack::Step);
        }
        if running >= self.scheduler.limits.running {
            return Err(Lack::Running);
        }
        let (budget, left) = self.budget_of(sequence.encoder_tokens(), demand.tokens)?;
        let shared = self.kv.match_prefix(sequence.prefix());
        let item = match self.fit(sequence, demand, shared.clone(), budget) {
            // A prompt that is cached whole needs a block more, to write its last token again into a copy.
            Err(Lack::Blocks) if !shared.is_empty() => {
                self.fit(sequence, demand, shared[..shared.len() - 1].to_vec(), budget)?
            }
            other => other?,
        };
        self.free -= item.new_blocks;
        self.places -= 1;
        self.tokens = left.saturating_sub(item.num_tokens);
        for &block in item.admit_with.iter().flatten() {
            *self.holders.entry(block).or_default() += 1;
        }
        self.decision.prefill.push(item);
        Ok(())
    }

    /// Tokens that an admission with a setup may take, and those the step has then before they are taken. A setup too
    /// large for any step has one to itself.
    fn budget_of(&self, setup: usize, tokens: usize) -> Result<(usize, usize), Lack> {
        if setup == 0 {
            return Ok((self.tokens, self.tokens));
        }
        match self.tokens.checked_sub(setup).filter(|&left| left >= tokens) {
            Some(left) => Ok((left, left)),
            None if self.tokens == self.scheduler.limits.tokens => Ok((self.tokens, 0)),
            None => Err(Lack::Step),
        }
    }

    /// The first item of an admission that begins with `shared` blocks.
    fn fit(
        &self,
        sequence: &Sequence,
        mut demand: Demand,
        shared: Vec<BlockId>,
        budget: usize,
    ) -> Result<DecidedItem, Lack> {
        let mut extra = 0;
        if sequence.uses_kv() {
            let cached = shared.len() * self.kv.block_size();
            // The last token is computed in any case: its result is the first new token.
            demand.start = cached.min(demand.tokens - 1);
            demand.tokens -= demand.start;
            extra = usize::from(demand.start < cached) + self.count_unowned(&shared);
        }
        let tokens = self.chunk(&demand, budget).ok_or(Lack::Step)?;
        let blocks_for = |positions| if sequence.uses_kv() { self.kv.blocks_for(positions) } else { 0 };
        let new_blocks = blocks_for(demand.start + tokens).saturating_sub(shared.len()) + extra;
        let mut kept = new_blocks;
        if !self.scheduler.limits.preemption && sequence.uses_kv() {
            // Nobody could be made to give way later: leave all that those admitted may yet come to need.
            let own = blocks_for(sequence.worst_case_positions()).saturating_sub(shared.len()) + extra;
            kept = own.max(new_blocks) + self.future_blocks();
        }
        if kept > self.free {
            return Err(Lack::Blocks);
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

    /// Blocks that the sequences admitted so far may come to need beyond those they hold or were granted.
    fn future_blocks(&self) -> usize {
        let future =
            |s: &Sequence, held: usize| self.kv.blocks_for(s.worst_case_positions()).saturating_sub(held);
        let running = self.running.iter().map(|s| {
            let granted = self.granted.get(&s.id).map_or(0, |grant| grant.new_blocks);
            future(s, self.kv.table(s.id).len() + granted)
        });
        let admitted = self.decision.prefill.iter().filter_map(|item| {
            let end = self.kv.blocks_for(item.start + item.num_tokens);
            Some(future(self.scheduler.sequences.get(&item.sequence)?, end))
        });
        running.chain(admitted).sum()
    }

    /// Under the priority policy a waiting sequence may push out a running one of lower priority.
    fn make_room(&mut self, sequence: &Sequence, lack: Lack) -> bool {
        let may = self.scheduler.policy == SchedulingPolicy::Priority && self.scheduler.limits.preemption;
        if !may || lack == Lack::Step {
            return false;
        }
        let placed: HashSet<SequenceId> = self.decision.items().map(|item| item.sequence).collect();
        let victim = self.running.iter().rposition(|s| {
            s.priority < sequence.priority
                && !placed.contains(&s.id)
                && (lack == Lack::Running || !self.kv.table(s.id).is_empty())
        });
        let Some(index) = victim else { return false };
        let victim = self.running.remove(index).id;
        let reserved = self.granted.remove(&victim).map_or(0, |grant| grant.new_blocks);
        self.free += reserved;
        self.preempt(victim);
        true
    }
}
