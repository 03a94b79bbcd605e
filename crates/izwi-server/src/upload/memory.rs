//! Shares of the memory that all requests and sessions may take for recordings together.

use std::sync::Arc;

use bytes::Bytes;
use izwi_audio::pcm_input::RATE_HZ;
use izwi_audio::wav;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::ApiError;
use crate::state::AppState;

/// Unit of the memory.
const KIB: usize = 1 << 10;

/// The share of one request, or of one part of a session. Dropping it gives it back.
#[derive(Debug)]
pub struct UploadMemory {
    /// What is free, in KiB.
    room: Arc<Semaphore>,
    /// Bytes that are not counted, because any request or session may hold them.
    free: usize,
    /// Bytes of the share, with those that are not counted.
    bytes: usize,
    held: Option<OwnedSemaphorePermit>,
}

impl UploadMemory {
    /// An empty share.
    pub fn new(state: &AppState, free: usize) -> Self {
        Self::of(state.upload_memory(), free)
    }

    /// An empty share of a room, counted in KiB.
    pub(crate) fn of(room: Arc<Semaphore>, free: usize) -> Self {
        Self { room, free, bytes: 0, held: None }
    }

    /// The share of the audio that a session holds before it is used. As much as one message may have is free: a session
    /// that keeps up with its audio continues, however full the memory is.
    pub fn of_session(state: &AppState) -> Self {
        Self::new(state, state.config().max_frame_bytes)
    }

    /// An empty share of the same room.
    pub(crate) fn fresh(&self) -> Self {
        Self::of(Arc::clone(&self.room), self.free)
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
        let more = self.counted_kib(bytes).saturating_sub(self.held_kib());
        if more > 0 {
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let more = Arc::clone(&self.room).try_acquire_many_owned(more).map_err(|_| {
                ApiError::overloaded("too much recorded audio is being received; try again later")
            })?;
            self.hold(more);
        }
        self.shrink_to(bytes);
        self.bytes = bytes;
        Ok(())
    }

    /// Gives back what is more than `bytes` in all.
    pub(crate) fn shrink_to(&mut self, bytes: usize) {
        self.bytes = self.bytes.min(bytes);
        let less = self.held_kib().saturating_sub(self.counted_kib(bytes));
        drop(self.held.as_mut().and_then(|held| held.split(less)));
    }

    /// Adds another share of the same room.
    pub(crate) fn merge(&mut self, other: Self) {
        self.bytes += other.bytes;
        if let Some(held) = other.held {
            self.hold(held);
        }
    }

    fn hold(&mut self, more: OwnedSemaphorePermit) {
        match &mut self.held {
            Some(held) => held.merge(more),
            None => self.held = Some(more),
        }
    }

    fn counted_kib(&self, bytes: usize) -> usize {
        bytes.saturating_sub(self.free).div_ceil(KIB)
    }

    fn held_kib(&self) -> usize {
        self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits)
    }

    /// What is counted, for a request that was read.
    pub(super) fn take_counted(&mut self) -> Option<OwnedSemaphorePermit> {
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
        let room = Arc::new(Semaphore::new(4));
        let mut memory = UploadMemory::of(Arc::clone(&room), 0);
        memory.take(3 * KIB + 1).unwrap();
        assert_eq!(room.available_permits(), 0);
        let file = memory.into_file(vec![7; 3 * KIB + 1]).unwrap();
        let part = file.slice(1..2);
        drop(file);
        assert_eq!((room.available_permits(), part[0]), (0, 7));
        drop(part);
        assert_eq!(room.available_permits(), 4);
    }

    #[test]
    fn a_file_is_wholly_counted_and_shares_are_merged() {
        let room = Arc::new(Semaphore::new(4));
        let share = |free| UploadMemory::of(Arc::clone(&room), free);
        let mut session = share(2 * KIB);
        session.take(3 * KIB).unwrap();
        assert_eq!(room.available_permits(), 3);
        let file = session.into_file(vec![0; 3 * KIB]).unwrap();
        assert_eq!(room.available_permits(), 1);
        assert!(share(KIB).into_file(vec![0; 2 * KIB]).is_err());
        assert_eq!(room.available_permits(), 1);
        drop(file);
        let (mut one, mut other) = (share(0), share(0));
        one.take(10).unwrap();
        other.take(10).unwrap();
        one.merge(other);
        assert_eq!((one.bytes, room.available_permits()), (20, 2));
        one.shrink_to(15);
        assert_eq!((one.bytes, room.available_permits()), (15, 3));
        one.shrink_to(30);
        assert_eq!((one.bytes, room.available_permits()), (15, 3));
    }

    proptest! {
        #[test]
        fn a_share_holds_what_it_counts(
            free in 0usize..3_000,
            sizes in prop::collection::vec(0usize..20_000, 1..20),
        ) {
            let room = Arc::new(Semaphore::new(10));
            let mut memory = UploadMemory::of(Arc::clone(&room), free);
            let mut bytes = 0;
            for size in sizes {
                let fits = size.saturating_sub(free).div_ceil(KIB) <= 10;
                prop_assert_eq!(memory.resize(size).is_ok(), fits);
                bytes = if fits { size } else { bytes };
                let counted = bytes.saturating_sub(free).div_ceil(KIB);
                prop_assert_eq!((memory.bytes, room.available_permits()), (bytes, 10 - counted));
            }
            drop(memory);
            prop_assert_eq!(room.available_permits(), 10);
        }
    }
}
