//! Geometry of the paged KV cache: how positions map to blocks.
//!
//! Must not know which sequence owns a block.

/// Index of a block in the KV pool.
pub type BlockId = u32;

/// Size of the KV pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockGeometry {
    /// Blocks in the pool.
    pub num_blocks: usize,
    /// Positions in a block.
    pub block_size: usize,
}

impl BlockGeometry {
    /// Positions in the whole pool.
    pub fn capacity(self) -> usize {
        self.num_blocks * self.block_size
    }

    /// Blocks that hold `positions` positions, the last one possibly in part.
    pub fn blocks_for(self, positions: usize) -> usize {
        positions.div_ceil(self.block_size)
    }

    /// Blocks that `positions` positions fill completely.
    pub fn full_blocks(self, positions: usize) -> usize {
        positions / self.block_size
    }

    /// Index into the block table, and offset inside that block, of a sequence's position.
    pub fn locate(self, position: usize) -> (usize, usize) {
        (position / self.block_size, position % self.block_size)
    }

    /// Index of a slot of a block in a pool that is one array of positions.
    pub fn slot(self, block: BlockId, offset: usize) -> usize {
        block as usize * self.block_size + offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_map_to_blocks_and_slots() {
        let geometry = BlockGeometry { num_blocks: 3, block_size: 4 };
        assert_eq!(geometry.capacity(), 12);
        assert_eq!([0, 1, 4, 5].map(|positions| geometry.blocks_for(positions)), [0, 1, 1, 2]);
        assert_eq!([0, 3, 4, 9].map(|positions| geometry.full_blocks(positions)), [0, 0, 1, 2]);
        assert_eq!((geometry.locate(3), geometry.locate(4)), ((0, 3), (1, 0)));
        assert_eq!(geometry.slot(2, 1), 9);
    }
}
