//! Block accounting of the paged KV cache: which block belongs to which sequence, and which prefix is in which block.
//!
//! Free blocks are in a LIFO list. A block whose content has a hash stays cached after its last owner releases it, and is
//! evicted, least recently used first, when the list is empty. Must not know tensors: the executor owns the memory.

mod prefix;

use std::collections::{BTreeMap, HashMap, HashSet};

pub use prefix::{BlockHash, PrefixChain};

use super::blocks::{BlockGeometry, BlockId};
use super::types::{IdMap, IdSet, SequenceId};

/// A copy of a block's content, due before the step writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCopy {
    /// The shared block.
    pub from: BlockId,
    /// The writer's own block.
    pub to: BlockId,
}

/// Too few free blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{needed} KV blocks needed, {free} free; raise max_blocks or lower the load")]
pub struct OutOfBlocks {
    /// Blocks requested.
    pub needed: usize,
    /// Blocks available.
    pub free: usize,
}

/// A branch to fork that a sequence does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("branch {branch} is to continue, but the sequence has {branches}")]
pub struct NoSuchBranch {
    /// The branch.
    pub branch: usize,
    /// Branches of the sequence.
    pub branches: usize,
}

/// A snapshot of the block accounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KVCacheStats {
    /// Blocks in the pool.
    pub total_blocks: usize,
    /// Blocks referenced by sequences.
    pub used_blocks: usize,
    /// Unreferenced blocks with cached content.
    pub cached_blocks: usize,
    /// Unreferenced blocks without content.
    pub free_blocks: usize,
    /// Sequences with a block table.
    pub sequences: usize,
    /// Bytes of the referenced blocks.
    pub memory_used_bytes: usize,
    /// Prompt blocks looked up.
    pub prefix_queries: u64,
    /// Prompt blocks found.
    pub prefix_hits: u64,
}

impl KVCacheStats {
    /// Referenced share of the pool, 0.0..=1.0.
    pub fn utilization(&self) -> f32 {
        if self.total_blocks == 0 { 0.0 } else { self.used_blocks as f32 / self.total_blocks as f32 }
    }
}

/// The block tables of a sequence.
#[derive(Debug, Default)]
struct Table {
    blocks: Vec<BlockId>,
    /// Tables of the further branches of a search; empty without one.
    others: Vec<Vec<BlockId>>,
    /// The first blocks, whose content hashes are recorded.
    registered: usize,
}

impl Table {
    fn branches(&self) -> impl Iterator<Item = &Vec<BlockId>> {
        std::iter::once(&self.blocks).chain(&self.others)
    }

    fn branches_mut(&mut self) -> impl Iterator<Item = &mut Vec<BlockId>> {
        std::iter::once(&mut self.blocks).chain(&mut self.others)
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Block {
    references: u32,
    hash: Option<BlockHash>,
    /// Whether its content was used again, or later prompts may contain it.
    is_wanted: bool,
    /// Whether its content was kept outside of the pool, or came from there.
    is_saved: bool,
    /// Key in `evictable` while unreferenced.
    freed_at: u64,
}

/// Block accounting of the KV pool.
///
/// ```
/// # use izwi_core::engine::blocks::BlockGeometry;
/// # use izwi_core::engine::kv_cache::{KVCacheManager, OutOfBlocks};
/// # use izwi_core::engine::SequenceId;
/// # let geometry = BlockGeometry { num_blocks: 1024, block_size: 16 };
/// # let mut kv_cache = KVCacheManager::new(geometry, 0, false);
/// # let (a, b, c) = (SequenceId(0), SequenceId(1), SequenceId(2));
/// // Sequence A needs 3 blocks of 16 positions
/// let blocks_a = kv_cache.extend(a, 48)?;
/// assert_eq!(blocks_a, [0, 1, 2]);
///
/// // Sequence B needs 2 blocks
/// let blocks_b = kv_cache.extend(b, 32)?;
/// assert_eq!(blocks_b, [3, 4]);
///
/// // Sequence A finishes
/// kv_cache.free(a);
///
/// // Sequence C needs 1 block: the most recently freed
/// let blocks_c = kv_cache.extend(c, 16)?;
/// assert_eq!(blocks_c, [0]);
/// # Ok::<(), OutOfBlocks>(())
/// ```
#[derive(Debug)]
pub struct KVCacheManager {
    geometry: BlockGeometry,
    block_bytes: usize,
    prefix_caching: bool,
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    /// Unreferenced blocks with cached content, least recently used first.
    evictable: BTreeMap<u64, BlockId>,
    by_hash: HashMap<BlockHash, BlockId>,
    tables: IdMap<SequenceId, Table>,
    in_flight: IdSet<SequenceId>,
    deferred: Vec<SequenceId>,
    clock: u64,
    prefix_queries: u64,
    prefix_hits: u64,
    /// Whether the set of hashes has changed since it was last asked for.
    has_changed: bool,
}

impl KVCacheManager {
    /// A free pool, with blocks of `block_bytes` bytes.
    pub fn new(geometry: BlockGeometry, block_bytes: usize, prefix_caching: bool) -> Self {
        let num_blocks = geometry.num_blocks;
        Self {
            geometry,
            block_bytes,
            prefix_caching,
            blocks: vec![Block::default(); num_blocks],
            free: (0..num_blocks as BlockId).rev().collect(),
            evictable: BTreeMap::new(),
            by_hash: HashMap::new(),
            tables: IdMap::default(),
            in_flight: IdSet::default(),
            deferred: Vec::new(),
            clock: 0,
            prefix_queries: 0,
            prefix_hits: 0,
            has_changed: true,
        }
    }

    /// Size of the pool.
    pub fn geometry(&self) -> BlockGeometry {
        self.geometry
    }

    /// Blocks that can be allocated: free and evictable ones.
    pub fn num_free(&self) -> usize {
        self.free.len() + self.evictable.len()
    }

    /// The sequence's block table; empty if it has none.
    pub fn table(&self, sequence: SequenceId) -> &[BlockId] {
        self.tables.get(&sequence).map_or(&[], |table| table.blocks.as_slice())
    }

    /// Block tables of the sequence's branches but the first; empty without a search.
    pub fn branch_tables(&self, sequence: SequenceId) -> &[Vec<BlockId>] {
        self.tables.get(&sequence).map_or(&[], |table| table.others.as_slice())
    }

    /// The blocks in the tables of all branches of the sequence, shared ones once for each.
    pub fn blocks_of(&self, sequence: SequenceId) -> impl Iterator<Item = BlockId> {
        self.tables.get(&sequence).into_iter().flat_map(Table::branches).flatten().copied()
    }

    /// Blocks that the sequence holds, those that its branches share once.
    pub fn num_held(&self, sequence: SequenceId) -> usize {
        match self.tables.get(&sequence) {
            Some(table) if table.others.is_empty() => table.blocks.len(),
            _ => self.blocks_of(sequence).collect::<HashSet<_>>().len(),
        }
    }

    /// The blocks that hold the longest cached prefix.
    pub fn match_prefix(&self, hashes: &[BlockHash]) -> Vec<BlockId> {
        if !self.prefix_caching {
            return Vec::new();
        }
        hashes.iter().map_while(|hash| self.by_hash.get(hash).copied()).collect()
    }

    /// Reference count of a block.
    pub fn references(&self, block: BlockId) -> u32 {
        self.blocks[block as usize].references
    }

    /// Creates a sequence's block table, starting with `shared`: the unchanged result of [`Self::match_prefix`]. `queried` is
    /// the number of prompt blocks looked up.
    pub fn admit(&mut self, sequence: SequenceId, shared: &[BlockId], queried: usize) {
        debug_assert!(!self.tables.contains_key(&sequence));
        for &block in shared {
            self.take_shared(block);
        }
        if self.prefix_caching {
            self.prefix_queries += queried as u64;
            self.prefix_hits += shared.len() as u64;
        }
        let table = Table { blocks: shared.to_vec(), registered: shared.len(), ..Table::default() };
        self.tables.insert(sequence, table);
    }

    /// Extends the table of each branch to cover `positions` positions and returns the new blocks.
    ///
    /// # Errors
    /// Too few blocks are free; nothing changes.
    pub fn extend(&mut self, sequence: SequenceId, positions: usize) -> Result<Vec<BlockId>, OutOfBlocks> {
        let wanted = self.geometry.blocks_for(positions);
        let branches = self.tables.get(&sequence).map_or(1, |table| 1 + table.others.len());
        // All branches are equally long.
        let of_each = wanted.saturating_sub(self.table(sequence).len());
        let needed = branches * of_each;
        if needed > self.num_free() {
            return Err(OutOfBlocks { needed, free: self.num_free() });
        }
        let added: Vec<BlockId> = (0..needed).filter_map(|_| self.take_any()).collect();
        let table = self.tables.entry(sequence).or_default();
        for (branch, added) in table.branches_mut().zip(added.chunks(of_each.max(1))) {
            branch.extend_from_slice(added);
        }
        Ok(added)
    }

    /// Blocks that [`Self::make_writable`] takes.
    pub fn copies_needed(&self, sequence: SequenceId, position: usize) -> usize {
        let (index, _) = self.geometry.locate(position);
        let Some(table) = self.tables.get(&sequence) else { return 0 };
        let blocks = table.branches().filter_map(|branch| branch.get(index).copied());
        if table.others.is_empty() {
            return blocks.filter(|&block| self.references(block) > 1).count();
        }
        // References to each block that are left once the branches before have their copies.
        let mut left: IdMap<BlockId, u32> = IdMap::default();
        let is_copied = |&block: &BlockId| {
            let left = left.entry(block).or_insert(self.references(block));
            *left = left.saturating_sub(1);
            *left > 0
        };
        blocks.filter(is_copied).count()
    }

    /// Copy-on-write: in the table of each branch, replaces the block that holds `position` by a copy if it is shared. The
    /// last branch of those that share a block with no other sequence keeps it.
    ///
    /// # Errors
    /// Too few blocks are free; nothing changes.
    pub fn make_writable(
        &mut self,
        sequence: SequenceId,
        position: usize,
    ) -> Result<Vec<BlockCopy>, OutOfBlocks> {
        let (index, _) = self.geometry.locate(position);
        let needed = self.copies_needed(sequence, position);
        let Some(table) = self.tables.get(&sequence).filter(|_| needed > 0) else { return Ok(Vec::new()) };
        let current: Vec<Option<BlockId>> =
            table.branches().map(|branch| branch.get(index).copied()).collect();
        if needed > self.num_free() {
            return Err(OutOfBlocks { needed, free: self.num_free() });
        }
        let mut copies = Vec::with_capacity(needed);
        for (branch, from) in current.into_iter().enumerate() {
            let Some(from) = from.filter(|&block| self.blocks[block as usize].references > 1) else {
                continue;
            };
            let Some(to) = self.take_any() else { break };
            self.release_block(from);
            if let Some(table) = self.tables.get_mut(&sequence) {
                if let Some(blocks) = table.branches_mut().nth(branch) {
                    blocks[index] = to;
                }
                table.registered = table.registered.min(if branch == 0 { index } else { usize::MAX });
            }
            copies.push(BlockCopy { from, to });
        }
        Ok(copies)
    }

    /// Makes the sequence one of as many branches as `parents` has entries: branch `i` starts with the blocks of the former
    /// branch `parents[i]`, shared until one of them writes. Branches without a child free their blocks.
    ///
    /// # Errors
    /// There is no parent, or one of them does not exist; nothing changes.
    pub fn fork(&mut self, sequence: SequenceId, parents: &[usize]) -> Result<(), NoSuchBranch> {
        let Some(table) = self.tables.get(&sequence) else {
            return Err(NoSuchBranch { branch: 0, branches: 0 });
        };
        let branches = 1 + table.others.len();
        let unknown = parents.iter().copied().find(|&parent| parent >= branches);
        if let Some(branch) = unknown.or_else(|| parents.is_empty().then_some(branches)) {
            return Err(NoSuchBranch { branch, branches });
        }
        let before: Vec<Vec<BlockId>> = table.branches().cloned().collect();
        let after: Vec<Vec<BlockId>> = parents.iter().map(|&parent| before[parent].clone()).collect();
        // Take before release, so that no block is free in between.
        after.iter().flatten().for_each(|&block| self.hold(block));
        before.iter().flatten().for_each(|&block| self.release_block(block));
        let mut after = after.into_iter();
        if let Some(table) = self.tables.get_mut(&sequence) {
            table.blocks = after.next().unwrap_or_default();
            table.others = after.collect();
        }
        Ok(())
    }

    /// Records the content hashes of a sequence's blocks that `computed` positions fill, from the first that is not recorded.
    pub fn register_prefix(&mut self, sequence: SequenceId, hashes: &[BlockHash], computed: usize) {
        if !self.prefix_caching {
            return;
        }
        let Some(table) = self.tables.get_mut(&sequence) else { return };
        let full = self.geometry.full_blocks(computed).min(hashes.len()).min(table.blocks.len());
        let first = table.registered;
        table.registered = full.max(first);
        let fresh = table.blocks.iter().zip(hashes).take(full).skip(first);
        for (&block, &hash) in fresh {
            let entry = &mut self.blocks[block as usize];
            if entry.hash.is_none() && !self.by_hash.contains_key(&hash) {
                entry.hash = Some(hash);
                self.by_hash.insert(hash, block);
                self.has_changed = true;
            }
        }
    }

    /// Notes that later prompts may contain the content of a sequence's blocks.
    pub fn want(&mut self, sequence: SequenceId) {
        for block in self.tables.get(&sequence).map_or(&[][..], |table| &table.blocks) {
            self.blocks[*block as usize].is_wanted = true;
        }
    }

    /// A block that is to be kept outside of the pool: nobody holds it, but it is wanted. The beginning of a prefix comes
    /// before the rest. Counts as saved from now on.
    pub fn next_to_save(&mut self) -> Option<(BlockHash, BlockId)> {
        let candidate = |block: &&BlockId| {
            let entry = &self.blocks[**block as usize];
            entry.is_wanted && !entry.is_saved
        };
        let block = *self.evictable.values().rev().find(candidate)?;
        let entry = &mut self.blocks[block as usize];
        entry.is_saved = true;
        Some((entry.hash?, block))
    }

    /// Takes blocks for the content of a prefix that no block has, as far as `is_there` says that it can come from elsewhere
    /// and there is room. Nobody holds them, and the prefix is the last to be evicted. Returns the hash of each.
    pub fn restore(
        &mut self,
        prefix: &[BlockHash],
        is_there: impl Fn(BlockHash) -> bool,
    ) -> Vec<(BlockHash, BlockId)> {
        let (mut held, mut restored) = (Vec::new(), Vec::new());
        let prefix = if self.prefix_caching { prefix } else { &[] };
        for &hash in prefix {
            let block = match self.by_hash.get(&hash) {
                Some(&block) => {
                    self.hold(block);
                    block
                }
                None if is_there(hash) => {
                    let Some(block) = self.take_any() else { break };
                    let entry = &mut self.blocks[block as usize];
                    (entry.hash, entry.is_wanted, entry.is_saved) = (Some(hash), true, true);
                    self.by_hash.insert(hash, block);
                    restored.push((hash, block));
                    block
                }
                None => break,
            };
            held.push(block);
        }
        held.into_iter().rev().for_each(|block| self.release_block(block));
        self.has_changed |= !restored.is_empty();
        restored
    }

    /// Removes the hashes of restored blocks whose content did not come.
    pub fn forget_restored(&mut self, restored: &[(BlockHash, BlockId)]) {
        for (hash, block) in restored {
            if self.by_hash.get(hash) != Some(block) {
                continue;
            }
            self.by_hash.remove(hash);
            let entry = &mut self.blocks[*block as usize];
            entry.hash = None;
            if entry.references == 0 {
                self.evictable.remove(&entry.freed_at);
                self.free.push(*block);
            }
        }
        self.has_changed = true;
    }

    /// The hashes of all blocks, if they have changed since they were last asked for.
    pub fn changed_hashes(&mut self) -> Option<impl Iterator<Item = BlockHash>> {
        std::mem::take(&mut self.has_changed).then(|| self.by_hash.keys().copied())
    }

    /// Removes the hashes of a sequence's blocks that are not full of its first `positions` positions and that no other
    /// sequence has.
    pub fn forget_behind(&mut self, sequence: SequenceId, positions: usize) {
        let first = self.geometry.full_blocks(positions);
        let Some(table) = self.tables.get_mut(&sequence) else { return };
        for &block in table.blocks.get(first..table.registered).unwrap_or_default() {
            let entry = &mut self.blocks[block as usize];
            if entry.references == 1
                && let Some(hash) = entry.hash.take()
            {
                self.has_changed = true;
                self.by_hash.remove(&hash);
            }
        }
        table.registered = table.registered.min(first);
    }

    /// Removes all hashes. No sequence has blocks.
    pub fn forget_all(&mut self) {
        self.by_hash.clear();
        self.has_changed = true;
        for block in std::mem::take(&mut self.evictable).into_values() {
            self.blocks[block as usize].hash = None;
            self.free.push(block);
        }
    }

    /// Frees a sequence's blocks, at the end of the in-flight step if it is part of one.
    pub fn free(&mut self, sequence: SequenceId) {
        if self.in_flight.contains(&sequence) {
            self.deferred.push(sequence);
        } else {
            self.release(sequence);
        }
    }

    /// Marks the sequences of the in-flight step: their blocks stay allocated until [`Self::end_step`].
    pub fn begin_step(&mut self, sequences: impl IntoIterator<Item = SequenceId>) {
        self.in_flight = sequences.into_iter().collect();
    }

    /// Ends the in-flight step and frees the blocks whose release was deferred.
    pub fn end_step(&mut self) {
        self.in_flight.clear();
        for sequence in std::mem::take(&mut self.deferred) {
            self.release(sequence);
        }
    }

    /// A snapshot.
    pub fn stats(&self) -> KVCacheStats {
        let used = self.blocks.len() - self.num_free();
        KVCacheStats {
            total_blocks: self.blocks.len(),
            used_blocks: used,
            cached_blocks: self.evictable.len(),
            free_blocks: self.free.len(),
            sequences: self.tables.len(),
            memory_used_bytes: used * self.block_bytes,
            prefix_queries: self.prefix_queries,
            prefix_hits: self.prefix_hits,
        }
    }

    /// Checks that every block is in exactly one place and that reference counts match the block tables.
    ///
    /// # Errors
    /// The first violation found.
    pub fn check_invariants(&self) -> Result<(), String> {
        let mut claims = vec![0u32; self.blocks.len()];
        for table in self.tables.values() {
            for branch in table.branches() {
                let mut seen = HashSet::new();
                for &block in branch {
                    claims[block as usize] += 1;
                    if !seen.insert(block) {
                        return Err(format!("block {block} occurs twice in one block table"));
                    }
                }
                if branch.len() != table.blocks.len() {
                    return Err(
                        "the branches of a sequence have block tables of different lengths".to_owned()
                    );
                }
            }
        }
        let free: HashSet<BlockId> = self.free.iter().copied().collect();
        let cached: HashSet<BlockId> = self.evictable.values().copied().collect();
        if free.len() != self.free.len() || cached.len() != self.evictable.len() {
            return Err("a block occurs twice in the free lists".to_owned());
        }
        for (index, block) in self.blocks.iter().enumerate() {
            let id = index as BlockId;
            if block.references != claims[index] {
                return Err(format!(
                    "block {id}: reference count {}, in {} block tables",
                    block.references, claims[index]
                ));
            }
            let places = u8::from(block.references > 0)
                + u8::from(free.contains(&id))
                + u8::from(cached.contains(&id));
            if places != 1 {
                return Err(format!("block {id} is in {places} places, not 1"));
            }
            if cached.contains(&id) != (block.references == 0 && block.hash.is_some()) {
                return Err(format!("block {id}: in the evictable list without a hash, or the reverse"));
            }
            if block.hash.is_some_and(|hash| self.by_hash.get(&hash) != Some(&id)) {
                return Err(format!("block {id}: its hash maps to another block"));
            }
        }
        match self.by_hash.values().find(|&&id| self.blocks[id as usize].hash.is_none()) {
            Some(id) => Err(format!("a hash maps to block {id}, which has none")),
            None => Ok(()),
        }
    }

    /// From the last block to the first: a prefix is reachable from its head only, so its tail is evicted before it.
    fn release(&mut self, sequence: SequenceId) {
        let table = self.tables.remove(&sequence).unwrap_or_default();
        for block in table.branches().flat_map(|branch| branch.iter().rev()) {
            self.release_block(*block);
        }
    }

    fn release_block(&mut self, block: BlockId) {
        self.clock += 1;
        let entry = &mut self.blocks[block as usize];
        entry.references -= 1;
        if entry.references > 0 {
            return;
        }
        if entry.hash.is_some() {
            entry.freed_at = self.clock;
            self.evictable.insert(self.clock, block);
        } else {
            self.free.push(block);
        }
    }

    fn take_any(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => {
                let (_, block) = self.evictable.pop_first()?;
                if let Some(hash) = self.blocks[block as usize].hash.take() {
                    self.by_hash.remove(&hash);
                    self.has_changed = true;
                }
                block
            }
        };
        self.blocks[block as usize] = Block { references: 1, ..Block::default() };
        Some(block)
    }

    fn take_shared(&mut self, block: BlockId) {
        self.blocks[block as usize].is_wanted = true;
        self.hold(block);
    }

    fn hold(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block as usize];
        if entry.references == 0 {
            self.evictable.remove(&entry.freed_at);
        }
        entry.references += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn prefix_hashes(prompt: &[u64], block_size: usize) -> Vec<BlockHash> {
        PrefixChain::of(prompt, block_size).hashes().to_vec()
    }

    fn manager(blocks: usize) -> KVCacheManager {
        KVCacheManager::new(BlockGeometry { num_blocks: blocks, block_size: 4 }, 100, true)
    }

    const A: SequenceId = SequenceId(1);
    const B: SequenceId = SequenceId(2);
    const C: SequenceId = SequenceId(3);

    #[test]
    fn free_blocks_are_reused_in_lifo_order() {
        let mut kv = manager(8);
        assert_eq!(kv.extend(A, 12).unwrap(), [0, 1, 2]);
        assert_eq!(kv.extend(B, 8).unwrap(), [3, 4]);
        kv.free(A);
        assert_eq!(kv.extend(C, 1).unwrap(), [0]);
        assert_eq!(kv.stats().used_blocks, 3);
        assert_eq!(kv.stats().memory_used_bytes, 300);
        kv.check_invariants().unwrap();
    }

    #[test]
    fn a_failed_extension_changes_nothing() {
        let mut kv = manager(2);
        kv.extend(A, 4).unwrap();
        assert_eq!(kv.extend(B, 8), Err(OutOfBlocks { needed: 2, free: 1 }));
        assert_eq!(kv.num_free(), 1);
        kv.check_invariants().unwrap();
    }

    #[test]
    fn a_prefix_is_shared_and_copied_on_write() {
        let mut kv = manager(8);
        let prompt: Vec<u64> = (0..8).collect();
        let hashes = prefix_hashes(&prompt, 4);
        kv.admit(A, &[], 2);
        kv.extend(A, 8).unwrap();
        kv.register_prefix(A, &hashes, 7);
        assert_eq!(kv.match_prefix(&hashes), [0], "the second block is not full");
        kv.register_prefix(A, &hashes, 8);
        let shared = kv.match_prefix(&hashes);
        kv.admit(B, &shared, 2);
        assert_eq!(kv.table(B), [0, 1]);
        assert_eq!(kv.make_writable(B, 7).unwrap(), [BlockCopy { from: 1, to: 2 }]);
        assert!(kv.make_writable(B, 7).unwrap().is_empty(), "it owns the copy");
        assert_eq!((kv.table(A), kv.table(B)), (&[0, 1][..], &[0, 2][..]));
        kv.check_invariants().unwrap();
        kv.free(A);
        kv.free(B);
        assert_eq!(kv.num_free(), 8);
        assert_eq!(kv.match_prefix(&hashes), [0, 1], "content stays cached without owners");
        let stats = kv.stats();
        assert_eq!((stats.prefix_queries, stats.prefix_hits), (4, 2));
        kv.extend(C, 32).unwrap();
        assert!(kv.match_prefix(&hashes).is_empty(), "evicted when the blocks are needed");
        kv.check_invariants().unwrap();
    }

    #[test]
    fn each_block_is_recorded_once() {
        let mut kv = manager(8);
        let hashes = prefix_hashes(&(0..16).collect::<Vec<_>>(), 4);
        kv.extend(A, 16).unwrap();
        for (computed, registered) in [(3, 0), (8, 2), (9, 2), (15, 3), (16, 4)] {
            kv.register_prefix(A, &hashes, computed);
            assert_eq!((kv.tables[&A].registered, kv.by_hash.len()), (registered, registered));
        }
        kv.admit(B, &[0, 1], 2);
        assert_eq!(kv.tables[&B].registered, 2);
        kv.make_writable(B, 5).unwrap();
        assert_eq!(kv.tables[&B].registered, 1, "the copy has no hash");
        kv.check_invariants().unwrap();
    }

    #[test]
    fn forgotten_blocks_are_free_and_those_of_others_stay() {
        let mut kv = manager(8);
        let hashes = prefix_hashes(&(0..16).collect::<Vec<_>>(), 4);
        kv.extend(A, 16).unwrap();
        kv.register_prefix(A, &hashes, 16);
        kv.admit(B, &[0, 1, 2], 4);
        kv.forget_behind(A, 6);
        assert_eq!(kv.match_prefix(&hashes), [0, 1, 2], "another sequence has the third");
        kv.free(A);
        kv.free(B);
        assert_eq!((kv.stats().cached_blocks, kv.num_free()), (3, 8));
        kv.check_invariants().unwrap();
    }

    #[test]
    fn wanted_blocks_are_saved_once_and_the_beginning_of_a_prefix_first() {
        let mut kv = manager(8);
        let hashes = prefix_hashes(&(0..16).collect::<Vec<_>>(), 4);
        kv.admit(A, &[], 4);
        kv.extend(A, 16).unwrap();
        kv.register_prefix(A, &hashes, 16);
        kv.free(A);
        assert_eq!(kv.next_to_save(), None, "nobody has used them again");
        kv.admit(B, &[0, 1], 2);
        assert_eq!(kv.next_to_save(), None, "a sequence holds them");
        kv.free(B);
        let saved = [(); 3].map(|()| kv.next_to_save());
        assert_eq!(saved, [Some((hashes[0], 0)), Some((hashes[1], 1)), None]);
        kv.admit(B, &[0, 1, 2, 3], 4);
        kv.want(B);
        kv.free(B);
        assert_eq!([(); 3].map(|()| kv.next_to_save().map(|(_, block)| block)), [Some(2), Some(3), None]);
        kv.check_invariants().unwrap();
    }

    #[test]
    fn restored_blocks_are_found_and_evict_no_part_of_their_prefix() {
        let mut kv = manager(6);
        let hashes = prefix_hashes(&(0..24).collect::<Vec<_>>(), 4);
        kv.admit(A, &[], 0);
        kv.extend(A, 8).unwrap();
        kv.register_prefix(A, &hashes, 8);
        kv.free(A);
        kv.extend(B, 8).unwrap();
        assert!(kv.changed_hashes().is_some() && kv.changed_hashes().is_none());
        let restored = kv.restore(&hashes, |hash| hash != hashes[4]);
        assert_eq!(restored.iter().map(|(hash, _)| *hash).collect::<Vec<_>>(), hashes[2..4]);
        assert_eq!(kv.match_prefix(&hashes).len(), 4, "up to what cannot come");
        assert_eq!(kv.changed_hashes().map(Iterator::count), Some(4));
        assert_eq!(kv.next_to_save(), None, "they came from a file");
        kv.check_invariants().unwrap();
        assert_eq!(kv.restore(&hashes, |_| true), [], "two are held, and four are the beginning");
        kv.extend(C, 4).unwrap();
        assert_eq!(kv.match_prefix(&hashes).len(), 3, "the end goes first");
        kv.forget_restored(&restored);
        assert_eq!((kv.match_prefix(&hashes).len(), kv.num_free()), (2, 3));
        kv.check_invariants().unwrap();
    }

    #[test]
    fn the_tail_of_an_idle_prefix_is_evicted_before_its_head() {
        let mut kv = manager(4);
        let hashes = prefix_hashes(&(0..16).collect::<Vec<_>>(), 4);
        kv.admit(A, &[], 4);
        kv.extend(A, 16).unwrap();
        kv.register_prefix(A, &hashes, 16);
        kv.free(A);
        kv.extend(B, 8).unwrap();
        assert_eq!(kv.match_prefix(&hashes), [0, 1], "half of the prefix is still reachable");
        kv.check_invariants().unwrap();
    }

    #[test]
    fn branches_share_blocks_until_they_write_and_end_without_a_child() {
        let mut kv = manager(12);
        let copy = |from, to| BlockCopy { from, to };
        kv.extend(A, 6).unwrap();
        kv.fork(A, &[0, 0, 0]).unwrap();
        assert_eq!((kv.table(A), kv.branch_tables(A)), (&[0, 1][..], &[vec![0, 1], vec![0, 1]][..]));
        assert_eq!((kv.references(0), kv.num_held(A), kv.num_free()), (3, 2, 10));
        // The first two copy the block that they share; the last keeps it.
        assert_eq!(kv.make_writable(A, 6).unwrap(), [copy(1, 2), copy(1, 3)]);
        assert!(kv.make_writable(A, 6).unwrap().is_empty());
        kv.check_invariants().unwrap();
        // The second branch continues twice, the third ends.
        kv.fork(A, &[1, 0, 1]).unwrap();
        assert_eq!((kv.table(A), kv.branch_tables(A)), (&[0, 3][..], &[vec![0, 2], vec![0, 3]][..]));
        assert_eq!(kv.num_free(), 9, "the block of the branch that ended is free");
        assert_eq!(kv.extend(A, 9).unwrap().len(), 3, "a block for each branch");
        assert!(kv.make_writable(A, 8).unwrap().is_empty());
        kv.check_invariants().unwrap();
        kv.fork(A, &[2]).unwrap();
        assert_eq!((kv.num_held(A), kv.branch_tables(A).len()), (3, 0));
        assert_eq!(kv.fork(A, &[0, 1]), Err(NoSuchBranch { branch: 1, branches: 1 }));
        assert!(kv.fork(A, &[]).is_err() && kv.fork(B, &[0]).is_err());
        kv.check_invariants().unwrap();
        kv.free(A);
        assert_eq!(kv.num_free(), 12);
    }

    #[test]
    fn branches_take_all_blocks_that_they_need_or_none() {
        let mut kv = manager(4);
        kv.extend(A, 6).unwrap();
        kv.fork(A, &[0, 0, 0, 0]).unwrap();
        assert_eq!((kv.copies_needed(A, 6), kv.copies_needed(A, 8), kv.copies_needed(B, 0)), (3, 0, 0));
        assert_eq!(kv.make_writable(A, 6), Err(OutOfBlocks { needed: 3, free: 2 }));
        assert_eq!(kv.extend(A, 9), Err(OutOfBlocks { needed: 4, free: 2 }));
        assert_eq!((kv.num_free(), kv.references(1)), (2, 4));
        // A block of another sequence is copied by every branch.
        kv.fork(A, &[0]).unwrap();
        kv.admit(B, &[0, 1], 0);
        kv.fork(A, &[0, 0]).unwrap();
        assert_eq!(kv.make_writable(A, 6).unwrap().len(), 2);
        kv.check_invariants().unwrap();
    }

    #[test]
    fn blocks_of_the_in_flight_step_are_freed_after_it() {
        let mut kv = manager(4);
        kv.extend(A, 8).unwrap();
        kv.begin_step([A]);
        kv.free(A);
        assert_eq!(kv.num_free(), 2);
        kv.end_step();
        assert_eq!(kv.num_free(), 4);
        kv.check_invariants().unwrap();
    }

    proptest! {
        #[test]
        fn invariants_hold_under_any_sequence_of_calls(
            calls in prop::collection::vec((0u8..9, 0u64..6, 1usize..40, 0u64..3), 1..200),
        ) {
            let mut kv = manager(12);
            let mut admitted: HashMap<u64, (Vec<u64>, bool)> = HashMap::new();
            for (call, name, size, variant) in calls {
                let id = SequenceId(name);
                match call {
                    0 if !admitted.contains_key(&name) => {
                        let prompt: Vec<u64> = (0..size as u64).map(|i| i * (variant + 1)).collect();
                        let hashes = prefix_hashes(&prompt, 4);
                        let shared = kv.match_prefix(&hashes);
                        kv.admit(id, &shared, hashes.len());
                        admitted.insert(name, (prompt, false));
                    }
                    1 if admitted.get(&name).is_some_and(|(_, freed)| !freed) => { let _ = kv.extend(id, size); }
                    2 if admitted.get(&name).is_some_and(|(_, freed)| !freed) => { let _ = kv.make_writable(id, size); }
                    3 if admitted.get(&name).is_some_and(|(_, freed)| !freed) => {
                        let covered = kv.table(id).len() * 4;
                        kv.register_prefix(id, &prefix_hashes(&admitted[&name].0, 4), covered.min(size));
                    }
                    4 => if let Some((_, freed)) = admitted.get_mut(&name) && !*freed {
                        *freed = true;
                        kv.free(id);
                    },
                    7 => {
                        let hashes = prefix_hashes(&(0..size as u64).map(|i| i * (variant + 1)).collect::<Vec<_>>(), 4);
                        let restored = kv.restore(&hashes, |hash| hash.get() % 3 != 0);
                        if name == 0 {
                            kv.forget_restored(&restored);
                        }
                    }
                    8 => drop(kv.next_to_save()),
                    5 => {
                        kv.end_step();
                        admitted.retain(|_, (_, freed)| !*freed);
                        kv.begin_step(admitted.keys().map(|&n| SequenceId(n)).filter(|n| n.0 % 2 == 0));
                    }
                    6 if admitted.get(&name).is_some_and(|(_, freed)| !freed) => {
                        let parents: Vec<usize> = (0..size % 5).map(|i| (i * size) % (1 + variant as usize)).collect();
                        let known = 1 + kv.branch_tables(id).len();
                        let allowed = !parents.is_empty() && parents.iter().all(|&parent| parent < known);
                        let extended = kv.fork(id, &parents).is_ok();
                        // A sequence that never had a block has no table.
                        prop_assert_eq!(extended, allowed && kv.tables.contains_key(&id));
                    }
                    _ => {}
                }
                prop_assert_eq!(kv.check_invariants(), Ok(()));
            }
            kv.end_step();
            for name in 0..6 { if admitted.get(&name).is_some_and(|(_, freed)| !freed) { kv.free(SequenceId(name)); } }
            prop_assert_eq!(kv.num_free(), 12);
        }
    }
}
