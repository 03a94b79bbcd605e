//! One budget of memory for the models and the recordings of a process.
//!
//! Must not know what a model or a recording is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Recordings may take one part in so many of the budget, however much the models take.
const RECORDINGS_LEAST: u64 = 8;

/// Memory that the models and the recordings of a process may take together. Clones share it; so do engines that are
/// configured with one.
///
/// Recordings are what requests and sessions hold: uploads, decoded audio, audio of live sessions, turns of conversations. They
/// may take what the models leave, and always an eighth. The models may take what the recordings leave at the time.
#[derive(Debug, Clone, Default)]
pub struct MemoryBudget(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// In bytes; `None` for no limit.
    limit: Option<u64>,
    used: Mutex<Used>,
}

/// In bytes.
#[derive(Debug, Default)]
struct Used {
    models: u64,
    shares: u64,
    /// Recordings that count for as long as somebody holds them, and their bytes when they were looked at last.
    kept: Vec<Weak<[f32]>>,
    kept_bytes: u64,
}

impl Used {
    fn recordings(&self) -> u64 {
        self.shares + self.kept_bytes
    }

    /// Forgets recordings that nobody holds any more.
    fn look_at_kept(&mut self) {
        self.kept.retain(|recording| recording.strong_count() > 0);
        let held = self.kept.iter().filter_map(Weak::upgrade);
        self.kept_bytes = held.map(|samples| size_of_val(&*samples) as u64).sum();
    }
}

/// Recordings take all of the budget that the models leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "recordings may take {} MiB beside the models in memory, and this one exceeds that; try again later, send a shorter one, or \
     raise memory_budget_mib",
    room >> 20
)]
pub struct MemoryFull {
    /// Bytes that all recordings may take.
    pub room: u64,
}

impl MemoryBudget {
    /// A budget of so many bytes; `None` for no limit.
    pub fn new(limit: Option<u64>) -> Self {
        Self(Arc::new(Shared { limit, used: Mutex::default() }))
    }

    /// Bytes of the whole budget; `None` for no limit.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Bytes that the models in memory take.
    pub fn models(&self) -> u64 {
        self.lock().models
    }

    /// Bytes that recordings take now.
    pub fn recordings(&self) -> u64 {
        let mut used = self.lock();
        used.look_at_kept();
        used.recordings()
    }

    /// Tells how many bytes the models in memory take.
    pub fn set_models(&self, bytes: u64) {
        self.lock().models = bytes;
    }

    /// An empty share of a recording.
    pub fn share(&self) -> MemoryShare {
        MemoryShare { budget: self.clone(), bytes: 0 }
    }

    /// Counts decoded samples until nobody holds them.
    ///
    /// # Errors
    /// There is no room for them.
    pub fn keep(&self, samples: &Arc<[f32]>) -> Result<(), MemoryFull> {
        let mut used = self.lock();
        let bytes = size_of_val(&**samples) as u64;
        self.make_room(&mut used, bytes)?;
        used.kept.push(Arc::downgrade(samples));
        used.kept_bytes += bytes;
        Ok(())
    }

    fn make_room(&self, used: &mut Used, more: u64) -> Result<(), MemoryFull> {
        let Some(limit) = self.0.limit else { return Ok(()) };
        let room = limit.saturating_sub(used.models).max(limit / RECORDINGS_LEAST);
        let fits = |used: &Used| used.recordings().saturating_add(more) <= room;
        if !fits(used) {
            used.look_at_kept();
        }
        if fits(used) { Ok(()) } else { Err(MemoryFull { room }) }
    }

    /// Ignores poisoning: every statement leaves the sums consistent.
    fn lock(&self) -> MutexGuard<'_, Used> {
        self.0.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for MemoryBudget {
    /// Whether both are the same budget, or neither has a limit.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || (self.0.limit.is_none() && other.0.limit.is_none())
    }
}

impl Eq for MemoryBudget {}

/// What a recording takes of a [`MemoryBudget`]. Dropping it gives it back.
#[derive(Debug)]
pub struct MemoryShare {
    budget: MemoryBudget,
    bytes: u64,
}

impl MemoryShare {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes it a share of `bytes` in all.
    ///
    /// # Errors
    /// There is no room for more. The share stays as it was.
    pub fn resize(&mut self, bytes: u64) -> Result<(), MemoryFull> {
        let mut used = self.budget.lock();
        if bytes > self.bytes {
            self.budget.make_room(&mut used, bytes - self.bytes)?;
        }
        used.shares = used.shares - self.bytes + bytes;
        drop(used);
        self.bytes = bytes;
        Ok(())
    }

    /// Adds another share of the same budget.
    pub fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Takes all of it into another value; an empty share is left.
    #[must_use]
    pub fn take(&mut self) -> Self {
        Self { budget: self.budget.clone(), bytes: std::mem::take(&mut self.bytes) }
    }

    /// An empty share of the same budget.
    pub fn fresh(&self) -> Self {
        self.budget.share()
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.budget.lock().shares -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn recordings_take_what_models_leave_and_always_an_eighth() {
        let budget = MemoryBudget::new(Some(800));
        let mut share = budget.share();
        share.resize(800).unwrap();
        assert_eq!(share.resize(801), Err(MemoryFull { room: 800 }));
        budget.set_models(500);
        share.resize(300).unwrap();
        assert_eq!(share.resize(301), Err(MemoryFull { room: 300 }));
        budget.set_models(790);
        assert_eq!(share.resize(301), Err(MemoryFull { room: 100 }), "what it has stays");
        share.resize(100).unwrap();
        assert_eq!((share.bytes(), budget.recordings()), (100, 100));
        let mut other = budget.share();
        assert_eq!(other.resize(1), Err(MemoryFull { room: 100 }));
        drop(share);
        other.resize(100).unwrap();
        let mut unlimited = MemoryBudget::default().share();
        unlimited.resize(1 << 50).unwrap();
    }

    #[test]
    fn samples_count_as_long_as_somebody_holds_them() {
        let budget = MemoryBudget::new(Some(400));
        let [first, second]: [Arc<[f32]>; 2] = [vec![0.0; 60].into(), vec![0.0; 50].into()];
        budget.keep(&first).unwrap();
        assert_eq!(budget.keep(&second), Err(MemoryFull { room: 400 }));
        let turn = Arc::clone(&first);
        drop(first);
        assert!(budget.keep(&second).is_err(), "a turn holds it");
        drop(turn);
        budget.keep(&second).unwrap();
        assert_eq!(budget.recordings(), 200);
        drop(second);
        let mut share = budget.share();
        share.resize(400).unwrap();
    }

    proptest! {
        #[test]
        fn the_sum_is_that_of_the_shares(
            sizes in prop::collection::vec((0usize..4, 0u64..500), 1..60),
        ) {
            let budget = MemoryBudget::new(Some(1_000));
            let mut shares: Vec<MemoryShare> = (0..4).map(|_| budget.share()).collect();
            for (index, size) in sizes {
                let rest: u64 = shares.iter().map(MemoryShare::bytes).sum::<u64>() - shares[index].bytes();
                let fits = size <= shares[index].bytes() || rest + size <= 1_000;
                prop_assert_eq!(shares[index].resize(size).is_ok(), fits);
                let sum: u64 = shares.iter().map(MemoryShare::bytes).sum();
                prop_assert_eq!(budget.recordings(), sum);
            }
            let last = shares.pop().unwrap();
            shares[0].merge(last);
            let all = shares[0].take();
            drop(shares);
            prop_assert_eq!(budget.recordings(), all.bytes());
            drop(all);
            prop_assert_eq!(budget.recordings(), 0);
        }
    }
}
