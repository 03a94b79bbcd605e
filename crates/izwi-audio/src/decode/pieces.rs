//! A recording that grows in pieces, so that its memory is never copied as a whole while it grows.

use std::sync::Arc;

/// Samples of a full piece: 36 MiB, which allocators take from the system and give back to it at once.
const PIECE_SAMPLES: usize = 9 << 20;

/// Samples in order, in pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    full: Vec<Vec<f32>>,
    last: Vec<f32>,
}

impl Pieces {
    pub(super) fn is_empty(&self) -> bool {
        self.full.is_empty() && self.last.is_empty()
    }

    /// Appends samples.
    pub(super) fn extend(&mut self, mut samples: &[f32]) {
        while !samples.is_empty() {
            let (now, later) = samples.split_at(samples.len().min(PIECE_SAMPLES - self.last.len()));
            self.last.extend_from_slice(now);
            if self.last.len() == PIECE_SAMPLES {
                self.full.push(std::mem::take(&mut self.last));
            }
            samples = later;
        }
    }

    /// All samples in one allocation. Each piece is freed once it is copied.
    pub(super) fn into_shared(self) -> Arc<[f32]> {
        let total = self.full.len() * PIECE_SAMPLES + self.last.len();
        let mut samples = self.full.into_iter().chain([self.last]).flatten();
        // The length of a mapped range is known, so that the result is allocated once.
        (0..total).map(|_| samples.next().unwrap_or_default()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_in_order() {
        let mut pieces = Pieces::default();
        assert!(pieces.is_empty());
        let signal: Vec<f32> = (0..PIECE_SAMPLES + 100).map(|i| (i % 1013) as f32).collect();
        for part in signal.chunks(1_000_003) {
            pieces.extend(part);
        }
        assert_eq!((pieces.full.len(), pieces.last.len()), (1, 100));
        assert!(*pieces.into_shared() == signal[..]);
    }
}
