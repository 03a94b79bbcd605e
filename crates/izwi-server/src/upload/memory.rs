//! Shares of the memory that all requests and sessions may take for recordings together.

use bytes::Bytes;
use izwi_audio::pcm_input::RATE_HZ;
use izwi_audio::wav;
use izwi_core::engine::{MemoryBudget, MemoryShare};

use crate::error::ApiError;
use crate::state::AppState;

/// The share of one request, or of one part of a session. Dropping it gives it back.
#[derive(Debug)]
pub struct UploadMemory {
    /// Bytes that are not counted, because any request or session may hold them.
    free: usize,
    /// Bytes of the share, with those that are not counted.
    bytes: usize,
    held: MemoryShare,
}

impl UploadMemory {
    /// An empty share.
    pub fn new(state: &AppState, free: usize) -> Self {
        Self::of(state.memory(), free)
    }

    /// An empty share of a budget.
    pub(crate) fn of(budget: &MemoryBudget, free: usize) -> Self {
        Self { free, bytes: 0, held: budget.share() }
    }

    /// The share of the audio that a session holds before it is used. As much as one message may have is free: a session
    /// that keeps up with its audio continues, however full the memory is.
    pub fn of_session(state: &AppState) -> Self {
        Self::new(state, state.config().max_frame_bytes)
    }

    /// An empty share of the same budget.
    pub(crate) fn fresh(&self) -> Self {
        Self { free: self.free, bytes: 0, held: self.held.fresh() }
    }

    /// Takes memory for `bytes` more.
    ///
    /// # Errors
    /// There is not as much. The share stays as it was.
    pub fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        self.resize(self.bytes.saturating_add(bytes))
    }

    /// Makes it a share of `bytes` in all.
    ///
    /// # Errors
    /// There is not as much. The share stays as it was.
    pub(crate) fn resize(&mut self, bytes: usize) -> Result<(), ApiError> {
        let counted = bytes.saturating_sub(self.free) as u64;
        self.held.resize(counted).map_err(|full| ApiError::overloaded(full.to_string()))?;
        self.bytes = bytes;
        Ok(())
    }

    /// Gives back what is more than `bytes` in all.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        // Less always fits.
        let _ = self.resize(bytes.min(self.bytes));
    }

    /// Adds another share of the same budget.
    pub(crate) fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.held.merge(other.held);
    }

    /// What is counted, for a request that was read.
    pub(super) fn take_counted(&mut self) -> MemoryShare {
        self.held.take()
    }

    /// A file that is wholly counted, until its last copy is dropped.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn into_file(mut self, bytes: Vec<u8>) -> Result<Bytes, ApiError> {
        self.free = 0;
        self.resize(bytes.len())?;
        Ok(Bytes::from_owner(SharedFile { bytes, _memory: self }))
    }

    /// A WAV file of mono samples at the rate of live audio, counted until its last copy is dropped.
    ///
    /// # Errors
    /// There is not as much memory.
    pub fn wav_file(state: &AppState, samples: &[i16]) -> Result<Bytes, ApiError> {
        let mut memory = Self::new(state, 0);
        memory.resize(wav::HEADER_BYTES + size_of_val(samples))?;
        memory.into_file(wav::from_i16(samples, RATE_HZ))
    }
}

struct SharedFile {
    bytes: Vec<u8>,
    _memory: UploadMemory,
}

impl AsRef<[u8]> for SharedFile {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_share_ends_with_the_last_copy_of_its_file() {
        let budget = MemoryBudget::new(Some(4_000));
        let mut memory = UploadMemory::of(&budget, 0);
        memory.take(3_001).unwrap();
        assert_eq!(budget.recordings(), 3_001);
        let file = memory.into_file(vec![7; 3_001]).unwrap();
        let part = file.slice(1..2);
        drop(file);
        assert_eq!((budget.recordings(), part[0]), (3_001, 7));
        drop(part);
        assert_eq!(budget.recordings(), 0);
    }

    #[test]
    fn a_file_is_wholly_counted_and_shares_are_merged() {
        let budget = MemoryBudget::new(Some(4_000));
        let share = |free| UploadMemory::of(&budget, free);
        let mut session = share(2_000);
        session.take(3_000).unwrap();
        assert_eq!(budget.recordings(), 1_000);
        let file = session.into_file(vec![0; 3_000]).unwrap();
        assert_eq!(budget.recordings(), 3_000);
        assert!(share(1_000).into_file(vec![0; 2_000]).is_err());
        assert_eq!(budget.recordings(), 3_000);
        drop(file);
        let (mut one, mut other) = (share(0), share(0));
        one.take(10).unwrap();
        other.take(10).unwrap();
        one.merge(other);
        assert_eq!((one.bytes, budget.recordings()), (20, 20));
        one.shrink_to(15);
        assert_eq!((one.bytes, budget.recordings()), (15, 15));
        one.shrink_to(30);
        assert_eq!((one.bytes, budget.recordings()), (15, 15));
    }

    proptest! {
        #[test]
        fn a_share_holds_what_it_counts(
            free in 0usize..3_000,
            sizes in prop::collection::vec(0usize..20_000, 1..20),
        ) {
            let budget = MemoryBudget::new(Some(10_000));
            let mut memory = UploadMemory::of(&budget, free);
            let mut bytes = 0;
            for size in sizes {
                let fits = size.saturating_sub(free) <= 10_000;
                prop_assert_eq!(memory.resize(size).is_ok(), fits);
                bytes = if fits { size } else { bytes };
                let counted = bytes.saturating_sub(free) as u64;
                prop_assert_eq!((memory.bytes, budget.recordings()), (bytes, counted));
            }
            drop(memory);
            prop_assert_eq!(budget.recordings(), 0);
        }
    }
}
