//! A search over several branches, without weights: each verifies all positions of its own block table in every step.
//!
//! Must not know how branches share blocks.

use izwi_types::StepOutput;

use super::{ExecutorError, ItemResult, Running, SimulatedExecutor, mix, sample};
use crate::engine::blocks::BlockId;
use crate::engine::scheduler::ScheduledRequest;

impl SimulatedExecutor {
    /// Computes an item of a search: part of its prompt, or the next position of each branch.
    pub(super) fn run_search(&mut self, running: &mut Running, item: &ScheduledRequest) -> ItemResult {
        if item.begins {
            running.histories.clear();
        }
        let end = item.start + item.num_tokens;
        let generated = running.histories.first().map_or(0, Vec::len);
        let tables = std::iter::once(&item.block_table).chain(&item.branch_tables);
        if end > running.tokens.len() + generated || tables.clone().count() != running.histories.len().max(1)
        {
            return Err(ExecutorError(format!("positions up to {end} have no tokens, or other branches")));
        }
        let none: Vec<u64> = Vec::new();
        let histories =
            if running.histories.is_empty() { vec![&none] } else { running.histories.iter().collect() };
        let states = tables.zip(histories).map(|(table, history)| {
            let tokens = running.tokens.iter().chain(history).copied();
            self.compute(table, tokens.take(end), item.start)
        });
        let states = states.collect::<Result<Vec<u64>, _>>()?;
        if end < running.tokens.len() {
            return Ok(StepOutput::default());
        }
        let mut output = StepOutput { generated_tokens: 1, ..StepOutput::default() };
        let all = states.iter().fold(running.seed, |all, &state| mix(all, state));
        // Now and then another number of branches continues.
        let count =
            if all.is_multiple_of(7) { 1 + all as usize % running.branches } else { running.branches };
        output.parents = (0..count as u64).map(|i| mix(all, i) as usize % states.len()).collect();
        let next = output.parents.iter().zip(0..).map(|(&parent, branch)| {
            let mut history = running.histories.get(parent).cloned().unwrap_or_default();
            history.push(mix(states[parent], branch));
            history
        });
        running.histories = next.collect();
        if generated + 1 >= running.length() {
            let best = &running.histories[0];
            let count = if self.model.transcribes { 0 } else { self.model.samples_per_token };
            let audio = |&token: &u64| (0..count).map(move |i| (token, i));
            output.samples =
                best.iter().flat_map(audio).map(|(token, i)| sample(token, running.seed, i)).collect();
            output.parents.clear();
            running.histories.clear();
            self.end_pass(running, all, &mut output);
        }
        Ok(output)
    }

    /// Writes the positions of `tokens` from `start` on, in the blocks of `table`, and checks those before. Returns the last.
    fn compute(
        &mut self,
        table: &[BlockId],
        tokens: impl Iterator<Item = u64>,
        start: usize,
    ) -> Result<u64, ExecutorError> {
        let mut state = 0;
        for (position, token) in tokens.enumerate() {
            state = mix(state, token);
            let (index, offset) = self.geometry.locate(position);
            let Some(&block) = table.get(index) else {
                return Err(ExecutorError(format!("position {position} has no block")));
            };
            let slot = &mut self.pool[self.geometry.slot(block, offset)];
            if position >= start {
                *slot = state;
            } else if *slot != state {
                return Err(ExecutorError(format!("kv of position {position} is corrupt")));
            }
        }
        Ok(state)
    }
}
