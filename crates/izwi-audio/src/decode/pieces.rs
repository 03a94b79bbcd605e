//! A recording that grows in pieces, so that its memory is never copied as a whole while it grows.

use std::sync::Arc;

use memmap2::MmapMut;

/// Samples of a piece: 16 MiB.
const PIECE_SAMPLES: usize = 4 << 20;
/// The most samples that are held without a piece: 1 MiB, as most recordings have.
const SMALL_SAMPLES: usize = 1 << 18;

/// Samples in order: the first ones in memory that grows, the others in pieces.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    small: Vec<f32>,
    pieces: Vec<Piece>,
    /// Samples in the last piece.
    last: usize,
}

/// Room for [`PIECE_SAMPLES`].
#[derive(Debug)]
enum Piece {
    /// Mapped from the system, which has it back at once when it is dropped: an allocator keeps freed blocks for a while, and
    /// those of a long recording are as large as itself.
    Mapped(MmapMut),
    /// Allocated, where the system maps nothing.
    Allocated(Vec<f32>),
}

impl Piece {
    fn new() -> Self {
        match MmapMut::map_anon(PIECE_SAMPLES * size_of::<f32>()) {
            Ok(map) => Self::Mapped(map),
            Err(_) => Self::Allocated(vec![0.0; PIECE_SAMPLES]),
        }
    }

    fn samples(&self) -> &[f32] {
        match self {
            // A map starts at a page.
            Self::Mapped(map) => bytemuck::try_cast_slice(map).unwrap_or_default(),
            Self::Allocated(samples) => samples,
        }
    }

    fn samples_mut(&mut self) -> &mut [f32] {
        match self {
            Self::Mapped(map) => bytemuck::try_cast_slice_mut(map).unwrap_or_default(),
            Self::Allocated(samples) => samples,
        }
    }
}

impl Pieces {
    fn len(&self) -> usize {
        let full = self.pieces.len().saturating_sub(1) * PIECE_SAMPLES;
        self.small.len() + full + self.last
    }

    /// Appends samples.
    pub(super) fn extend(&mut self, samples: &[f32]) {
        let fits = samples.len().min(SMALL_SAMPLES - self.small.len());
        let (now, mut later) = samples.split_at(fits);
        self.small.extend_from_slice(now);
        while !later.is_empty() {
            if self.pieces.is_empty() || self.last == PIECE_SAMPLES {
                self.pieces.push(Piece::new());
                self.last = 0;
            }
            let Some(piece) = self.pieces.last_mut() else { return };
            let (now, rest) = later.split_at(later.len().min(PIECE_SAMPLES - self.last));
            let to = self.last..self.last + now.len();
            if let Some(place) = piece.samples_mut().get_mut(to) {
                place.copy_from_slice(now);
            }
            self.last += now.len();
            later = rest;
        }
    }

    /// All samples in one allocation. Each piece is dropped once it is copied.
    pub(super) fn into_shared(self) -> Arc<[f32]> {
        let total = self.len();
        if self.pieces.is_empty() {
            return self.small.into();
        }
        let mut pieces = self.pieces.into_iter();
        let (mut part, mut at) = (Piece::Allocated(self.small), 0);
        // The length of a mapped range is known, so that the result is allocated once.
        let next = |_| {
            if at == part.samples().len() {
                part = pieces.next().unwrap_or(Piece::Allocated(Vec::new()));
                at = 0;
            }
            at += 1;
            part.samples().get(at - 1).copied().unwrap_or_default()
        };
        (0..total).map(next).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_in_order() {
        for length in [0, 100, SMALL_SAMPLES, SMALL_SAMPLES + 1, SMALL_SAMPLES + 2 * PIECE_SAMPLES + 100] {
            let signal: Vec<f32> = (0..length).map(|i| (i % 1013) as f32).collect();
            let mut pieces = Pieces::default();
            for part in signal.chunks(1_000_003) {
                pieces.extend(part);
            }
            assert_eq!(pieces.len(), length);
            assert!(pieces.pieces.iter().all(|piece| matches!(piece, Piece::Mapped(_))));
            assert!(*pieces.into_shared() == signal[..], "{length}");
        }
    }
}
