//! Forks the branches of a search. Must not know why they fork.

use super::Scheduler;
use super::sequence::Progress;
use crate::engine::kv_cache::{KVCacheManager, NoSuchBranch};
use crate::engine::types::SequenceId;

/// A sequence cannot be forked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ForkError {
    /// More branches than the work of the sequence allows.
    #[error("a sequence of at most {most} branches was forked into {branches}")]
    TooMany {
        /// Branches asked for.
        branches: usize,
        /// Branches allowed.
        most: usize,
    },
    /// The branches may take more blocks than there are.
    #[error("a search needs up to {needed} KV blocks of {blocks}; raise max_blocks or lower beam_size")]
    TooLarge {
        /// Blocks of the search.
        needed: usize,
        /// Blocks of the pool.
        blocks: usize,
    },
    /// A parent does not exist.
    #[error(transparent)]
    NoSuchBranch(#[from] NoSuchBranch),
}

impl Scheduler {
    /// Forks a sequence after an item: branch `i` continues the former branch `parents[i]`.
    ///
    /// # Errors
    /// A parent does not exist, or there are more branches than its work allows or the pool holds; nothing changes.
    pub fn fork(
        &mut self,
        id: SequenceId,
        parents: &[usize],
        kv: &mut KVCacheManager,
    ) -> Result<(), ForkError> {
        let Some(sequence) = self.sequences.get_mut(&id) else { return Ok(()) };
        let most = sequence.max_branches();
        if parents.len() > most {
            return Err(ForkError::TooMany { branches: parents.len(), most });
        }
        let positions = match sequence.progress {
            Progress::Autoregressive { known, .. } => known,
            Progress::Units { .. } | Progress::Chunks { .. } => 0,
        };
        let geometry = kv.geometry();
        let needed = if parents.len() > 1 { sequence.blocks_for(positions, geometry) } else { 0 };
        if needed > geometry.num_blocks {
            return Err(ForkError::TooLarge { needed, blocks: geometry.num_blocks });
        }
        let free = kv.num_free();
        kv.fork(id, parents)?;
        // An earlier decision counted on as many branches and free blocks.
        if sequence.branches != parents.len() || kv.num_free() != free {
            sequence.branches = parents.len();
            self.version += 1;
        }
        Ok(())
    }
}
