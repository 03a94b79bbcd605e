//! Content hashes of a sequence's full blocks, each chained to the one before it.
//!
//! Must not know blocks or sequences, only content keys.

use sha2::{Digest, Sha256};

/// Hash of a full block's content and of everything before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockHash(u128);

impl BlockHash {
    /// As a number.
    pub fn get(self) -> u128 {
        self.0
    }
}

/// Hashes of the full blocks of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrefixChain {
    block_size: usize,
    hashes: Vec<BlockHash>,
    /// Digest of the last full block.
    digest: [u8; 32],
    /// Keys after the last full block.
    tail: Vec<u64>,
    /// A position without a key was appended: no further block has a hash.
    is_closed: bool,
}

impl PrefixChain {
    /// The chain of a prompt with these content keys, in blocks of `block_size` positions.
    pub fn of(prompt: &[u64], block_size: usize) -> Self {
        let mut chain =
            Self { block_size, hashes: Vec::new(), digest: [0; 32], tail: Vec::new(), is_closed: false };
        prompt.iter().for_each(|&key| chain.push(Some(key)));
        chain
    }

    /// Appends the next position's key. A position without a key ends the chain.
    pub fn push(&mut self, key: Option<u64>) {
        let Some(key) = key.filter(|_| !self.is_closed) else {
            self.is_closed = true;
            return;
        };
        self.tail.push(key);
        if self.tail.len() == self.block_size {
            let mut hasher = Sha256::new();
            hasher.update(self.digest);
            self.tail.drain(..).for_each(|key| hasher.update(key.to_le_bytes()));
            self.digest = hasher.finalize().into();
            let mut half = [0u8; 16];
            half.copy_from_slice(&self.digest[..16]);
            self.hashes.push(BlockHash(u128::from_le_bytes(half)));
        }
    }

    /// One hash for each full block.
    pub fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(keys: &[u64]) -> Vec<BlockHash> {
        PrefixChain::of(keys, 4).hashes().to_vec()
    }

    #[test]
    fn hashes_depend_on_everything_before() {
        let a = hashes(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let b = hashes(&[0, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(a.len(), 2);
        assert_ne!(a[1], b[1]);
        assert_eq!(a, hashes(&[1, 2, 3, 4, 5, 6, 7, 8]));
    }

    #[test]
    fn generated_keys_extend_the_chain_until_one_is_missing() {
        let mut chain = PrefixChain::of(&[1, 2, 3, 4, 5, 6], 4);
        chain.push(Some(7));
        assert_eq!(chain.hashes().len(), 1);
        chain.push(Some(8));
        assert_eq!(chain.hashes(), hashes(&[1, 2, 3, 4, 5, 6, 7, 8]));
        chain.push(None);
        (9..20).for_each(|key| chain.push(Some(key)));
        assert_eq!(chain.hashes().len(), 2, "no hashes after a missing key");
    }
}
