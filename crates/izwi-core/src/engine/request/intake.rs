//! What a recording is decoded into: its share of the open audio, and whether its caller still waits for it.
//!
//! Must not know codecs or requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::engine::error::{EngineError, Result};

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

/// A share of the open audio that grows while a recording is decoded. A permit is a second.
#[derive(Debug)]
pub(in crate::engine) struct AudioIntake {
    /// `None` for recordings that are limited elsewhere.
    room: Option<Arc<Semaphore>>,
    limit: Duration,
    abandoned: Abandoned,
    share: Option<OwnedSemaphorePermit>,
}

impl AudioIntake {
    /// A share of `room`, which holds `limit` of audio.
    pub(in crate::engine) fn new(room: Arc<Semaphore>, limit: Duration, abandoned: Abandoned) -> Self {
        Self { room: Some(room), limit, abandoned, share: None }
    }

    /// The same caller, without a share.
    pub(in crate::engine) fn uncounted(self) -> Self {
        Self { room: None, share: None, ..self }
    }

    /// Takes what a recording needs that is `length` so far.
    ///
    /// # Errors
    /// The caller has gone, or the open audio would exceed its limit.
    pub(in crate::engine) fn grow(&mut self, length: Duration) -> Result<()> {
        if self.abandoned.is_set() {
            return Err(EngineError::Aborted);
        }
        self.cover(length)
    }

    /// Grows the share to `length` of audio in total.
    ///
    /// # Errors
    /// The open audio would exceed its limit.
    pub(in crate::engine) fn cover(&mut self, length: Duration) -> Result<()> {
        let Some(room) = &self.room else { return Ok(()) };
        let held = self.share.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = permits(length.min(self.limit)).saturating_sub(u32::try_from(held).unwrap_or(u32::MAX));
        if more == 0 {
            return Ok(());
        }
        let more = Arc::clone(room).try_acquire_many_owned(more);
        let more = more.map_err(|_| EngineError::AudioOverload { limit: self.limit })?;
        match &mut self.share {
            Some(share) => share.merge(more),
            None => self.share = Some(more),
        }
        Ok(())
    }

    /// The share; `None` without audio.
    pub(in crate::engine) fn into_share(self) -> Option<OwnedSemaphorePermit> {
        self.share
    }
}

/// Seconds of audio, rounded up, as semaphore permits, at most what a semaphore counts on every platform.
pub(in crate::engine) fn permits(length: Duration) -> u32 {
    const MOST: f64 = (1u32 << 28) as f64;
    length.as_secs_f64().ceil().min(MOST) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_grows_by_started_seconds_until_the_room_is_full() {
        let room = Arc::new(Semaphore::new(10));
        let limit = Duration::from_secs(10);
        let mut intake = AudioIntake::new(Arc::clone(&room), limit, Abandoned::default());
        for (ms, left) in [(0, 10), (1, 9), (1_000, 9), (1_001, 8), (900, 8), (6_500, 3)] {
            intake.grow(Duration::from_millis(ms)).unwrap();
            assert_eq!(room.available_permits(), left, "{ms} ms");
        }
        let mut other = AudioIntake::new(Arc::clone(&room), limit, Abandoned::default());
        other.grow(Duration::from_secs(3)).unwrap();
        assert_eq!(other.grow(Duration::from_secs(4)), Err(EngineError::AudioOverload { limit }));
        let mut uncounted = other.uncounted();
        uncounted.grow(Duration::from_secs(60)).unwrap();
        assert_eq!(room.available_permits(), 3, "the share of an intake ends with it");
        drop(intake.into_share());
        assert_eq!(room.available_permits(), 10);
    }

    #[test]
    fn nothing_grows_for_a_caller_who_has_gone() {
        let abandoned = Abandoned::default();
        let mut intake =
            AudioIntake::new(Arc::new(Semaphore::new(9)), Duration::from_secs(9), abandoned.clone());
        let waiting = abandoned.set_on_drop();
        intake.grow(Duration::from_secs(1)).unwrap();
        drop(waiting);
        assert_eq!(intake.grow(Duration::ZERO), Err(EngineError::Aborted));
    }
}
