//! Which replica has computed which prompts, so that a turn of a conversation goes where its beginning is cached.
//!
//! What is remembered may have been evicted since: it serves a prediction. Must not know requests or commands.

use std::collections::{HashMap, VecDeque};

use crate::engine::kv_cache::BlockHash;

/// Prompts that are remembered, of all replicas together.
const MAX_PROMPTS: usize = 4_096;

/// The newest prompts.
#[derive(Debug)]
pub(super) struct CachedPrompts {
    /// Positions of a block; 0 where nothing is cached.
    block_size: usize,
    /// The hash of the last full block of each prompt, and its replica, from the oldest to the newest.
    newest: VecDeque<(BlockHash, usize)>,
    /// The replicas of each hash, one entry for each prompt.
    replicas: HashMap<BlockHash, Vec<usize>>,
}

impl CachedPrompts {
    /// Nothing yet. `block_size` is `None` without prefix caching.
    pub(super) fn new(block_size: Option<usize>) -> Self {
        Self { block_size: block_size.unwrap_or_default(), newest: VecDeque::new(), replicas: HashMap::new() }
    }

    /// Remembers that a replica computes a prompt whose last full block has this hash.
    pub(super) fn record(&mut self, replica: usize, last: BlockHash) {
        if self.block_size == 0 {
            return;
        }
        self.newest.push_back((last, replica));
        self.replicas.entry(last).or_default().push(replica);
        if self.newest.len() > MAX_PROMPTS
            && let Some((oldest, replica)) = self.newest.pop_front()
            && let Some(replicas) = self.replicas.get_mut(&oldest)
        {
            if let Some(at) = replicas.iter().position(|&other| other == replica) {
                replicas.swap_remove(at);
            }
            if replicas.is_empty() {
                self.replicas.remove(&oldest);
            }
        }
    }

    /// The first positions of a prompt with these hashes that each of `count` replicas has computed.
    pub(super) fn positions(&self, prompt: &[BlockHash], count: usize) -> Vec<usize> {
        let mut positions = vec![0; count];
        for (index, hash) in prompt.iter().enumerate() {
            for &replica in self.replicas.get(hash).into_iter().flatten() {
                positions[replica] = (index + 1) * self.block_size;
            }
        }
        positions
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::kv_cache::PrefixChain;

    fn hashes(prompt: std::ops::Range<u64>) -> Vec<BlockHash> {
        PrefixChain::of(&prompt.collect::<Vec<_>>(), 4).hashes().to_vec()
    }

    #[test]
    fn the_longest_known_beginning_of_a_prompt_counts() {
        let mut cached = CachedPrompts::new(Some(4));
        cached.record(1, hashes(0..9)[1]);
        cached.record(1, hashes(0..30)[6]);
        cached.record(0, hashes(0..17)[3]);
        assert_eq!(cached.positions(&hashes(0..40), 3), [16, 28, 0]);
        assert_eq!(cached.positions(&hashes(0..18), 3), [16, 8, 0]);
        assert_eq!(cached.positions(&hashes(1..40), 3), [0, 0, 0]);
        assert_eq!(cached.positions(&[], 2), [0, 0]);
    }

    #[test]
    fn the_oldest_prompts_are_forgotten() {
        let mut cached = CachedPrompts::new(Some(4));
        let first = hashes(0..4);
        cached.record(0, first[0]);
        cached.record(1, first[0]);
        for prompt in 1..MAX_PROMPTS as u64 {
            cached.record(1, hashes(prompt..prompt + 4)[0]);
        }
        assert_eq!(cached.positions(&first, 2), [0, 4], "the prompt of the first replica is the oldest");
        cached.record(1, hashes(9_000..9_004)[0]);
        assert_eq!(cached.positions(&first, 2), [0, 0]);
        assert_eq!((cached.newest.len(), cached.replicas.len()), (MAX_PROMPTS, MAX_PROMPTS));
        let mut off = CachedPrompts::new(None);
        off.record(0, first[0]);
        assert_eq!(off.positions(&first, 1), [0]);
    }
}
