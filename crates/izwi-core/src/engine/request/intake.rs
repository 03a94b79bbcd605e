//! What a recording is decoded into: its share of the memory, and whether its caller still waits for it.
//!
//! Must not know codecs or requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::error::{EngineError, Result};
use crate::engine::memory::MemoryShare;

/// Bytes by which a share grows: a second of audio at 16 kHz.
const STEP_BYTES: u64 = 64_000;

/// Whether the caller of a preparation has gone. Clones share the answer.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct Abandoned(Arc<AtomicBool>);

impl Abandoned {
    pub(in crate::engine) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// A value that the caller holds while it waits.
    pub(in crate::engine) fn set_on_drop(&self) -> SetOnDrop {
        SetOnDrop(self.clone())
    }
}

/// Sets its [`Abandoned`] when it is dropped.
#[derive(Debug)]
pub(in crate::engine) struct SetOnDrop(Abandoned);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// The memory of the recordings of a request, which grows while they are decoded.
#[derive(Debug)]
pub(in crate::engine) struct AudioIntake {
    share: MemoryShare,
    abandoned: Abandoned,
}

impl AudioIntake {
    /// An intake of a caller without a recording.
    pub(in crate::engine) fn new(share: MemoryShare, abandoned: Abandoned) -> Self {
        Self { share, abandoned }
    }

    /// Takes the memory of a recording that has so many samples so far.
    ///
    /// # Errors
    /// The caller has gone, or recordings take all memory that they may.
    pub(in crate::engine) fn grow(&mut self, samples: u64) -> Result<()> {
        if self.abandoned.is_set() {
            return Err(EngineError::Aborted);
        }
        self.cover(samples)
    }

    /// Grows the share to that of so many samples in total.
    ///
    /// # Errors
    /// Recordings take all memory that they may.
    pub(in crate::engine) fn cover(&mut self, samples: u64) -> Result<()> {
        let bytes = samples.saturating_mul(size_of::<f32>() as u64).div_ceil(STEP_BYTES) * STEP_BYTES;
        if bytes > self.share.bytes() {
            self.share.resize(bytes)?;
        }
        Ok(())
    }

    /// The share.
    pub(in crate::engine) fn into_share(self) -> MemoryShare {
        self.share
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::memory::{MemoryBudget, MemoryFull};

    #[test]
    fn a_share_grows_with_its_samples_until_recordings_take_all() {
        let budget = MemoryBudget::new(Some(10 * STEP_BYTES));
        let mut intake = AudioIntake::new(budget.share(), Abandoned::default());
        let step = STEP_BYTES / 4;
        for (samples, steps) in [(0, 0), (1, 1), (step, 1), (step + 1, 2), (step, 2), (6 * step + 1, 7)] {
            intake.grow(samples).unwrap();
            assert_eq!(budget.recordings(), steps * STEP_BYTES, "{samples}");
        }
        let mut other = AudioIntake::new(budget.share(), Abandoned::default());
        other.grow(3 * step).unwrap();
        let full = EngineError::MemoryFull(MemoryFull { room: 10 * STEP_BYTES });
        assert_eq!(other.grow(4 * step), Err(full));
        drop((intake.into_share(), other));
        assert_eq!(budget.recordings(), 0);
    }

    #[test]
    fn nothing_grows_for_a_caller_who_has_gone() {
        let abandoned = Abandoned::default();
        let mut intake = AudioIntake::new(MemoryBudget::default().share(), abandoned.clone());
        let waiting = abandoned.set_on_drop();
        intake.grow(16_000).unwrap();
        drop(waiting);
        assert_eq!(intake.grow(0), Err(EngineError::Aborted));
    }
}
