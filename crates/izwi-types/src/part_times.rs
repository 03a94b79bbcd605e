//! Time per named part of a model.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time spent in named parts of a model. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct PartTimes {
    parts: Arc<[Part]>,
}

#[derive(Debug)]
struct Part {
    name: &'static str,
    nanoseconds: AtomicU64,
}

impl PartTimes {
    /// Counters for these parts, all zero.
    pub fn new(names: &[&'static str]) -> Self {
        Self { parts: names.iter().map(|&name| Part { name, nanoseconds: AtomicU64::new(0) }).collect() }
    }

    /// Runs `work` and adds its time to the part at `index`.
    pub fn time<T>(&self, index: usize, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let done = work();
        self.add(index, begun.elapsed());
        done
    }

    /// Adds `time` to the part at `index`.
    pub fn add(&self, index: usize, time: Duration) {
        if let Some(part) = self.parts.get(index) {
            part.nanoseconds.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        }
    }

    /// Total time by part.
    pub fn totals(&self) -> Vec<(&'static str, Duration)> {
        let total = |part: &Part| (part.name, Duration::from_nanos(part.nanoseconds.load(Ordering::Relaxed)));
        self.parts.iter().map(total).collect()
    }
}

/// Equal if they share the counters.
impl PartialEq for PartTimes {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.parts, &other.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_counters() {
        let times = PartTimes::new(&["a", "b"]);
        assert_eq!(times.clone().time(1, || 7), 7);
        times.time(9, || ());
        let totals = times.totals();
        assert!(totals[0].1.is_zero() && totals[1] != ("b", Duration::ZERO));
        assert!(times == times.clone() && times != PartTimes::new(&["a", "b"]));
    }
}
