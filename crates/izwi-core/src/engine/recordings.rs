//! Recordings that conversations keep between their turns, and how much there may be of them.
//!
//! Must not know conversations or requests.

use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The recordings that were handed out and that somebody still holds.
#[derive(Debug, Default)]
pub(super) struct KeptRecordings {
    kept: Mutex<Vec<Weak<[f32]>>>,
}

impl KeptRecordings {
    /// Notes a recording, unless those that are held have more than `most` samples with it. Returns whether it is noted.
    pub(super) fn keep(&self, samples: &Arc<[f32]>, most: usize) -> bool {
        // No method leaves the list half changed.
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|recording| recording.strong_count() > 0);
        let held: usize = kept.iter().filter_map(Weak::upgrade).map(|recording| recording.len()).sum();
        let fits = held + samples.len() <= most;
        if fits {
            kept.push(Arc::downgrade(samples));
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recording_counts_as_long_as_somebody_holds_it() {
        let kept = KeptRecordings::default();
        let [first, second]: [Arc<[f32]>; 2] = [vec![0.0; 60].into(), vec![0.0; 50].into()];
        assert!(kept.keep(&first, 100));
        assert!(!kept.keep(&second, 100));
        let turn = Arc::clone(&first);
        drop(first);
        assert!(!kept.keep(&second, 100), "a turn holds it");
        drop(turn);
        assert!(kept.keep(&second, 100));
    }
}
