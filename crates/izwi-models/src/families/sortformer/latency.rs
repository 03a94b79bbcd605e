//! What the network tells of a row, and how many rows it sees at once. Knows no tensor and no audio.

use crate::conformer::FRAMES_PER_ROW;

/// Speakers that the network tells apart.
pub(super) const SPEAKERS: usize = 4;

/// The probability of each speaker in a row.
pub(super) type Row = [f32; SPEAKERS];

/// Rows before a piece that the subsampling sees again.
pub(super) const LEFT: usize = 1;

/// How much of a recording is seen at once, in rows. The latency is that of a chunk and of what comes after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Latency {
    /// New rows of a step, and rows after them that it sees.
    pub(super) chunk: usize,
    pub(super) right: usize,
    /// The most rows that wait for the cache, and the fewest that go into it at once.
    pub(super) fifo: usize,
    pub(super) update: usize,
}

impl Latency {
    /// 30.4 s, for recordings that are known whole.
    pub(super) const RECORDING: Self = Self { chunk: 340, right: 40, fifo: 40, update: 300 };
    /// 1.04, 0.32 and 10 s, for audio that arrives. Sources: the models' cards.
    pub(super) const LIVE: [Self; 3] = [
        Self { chunk: 6, right: 7, fifo: 188, update: 144 },
        Self { chunk: 3, right: 1, fifo: 188, update: 144 },
        Self { chunk: 124, right: 1, fifo: 124, update: 124 },
    ];

    /// All of a recording of at most `rows` rows in one step.
    pub(super) const fn whole(rows: usize) -> Self {
        Self { chunk: rows, right: 0, fifo: rows, update: 0 }
    }

    /// The most rows of a step with a cache of `cache` rows.
    pub(super) fn rows(&self, cache: usize) -> usize {
        cache + self.fifo + LEFT + self.chunk + self.right
    }

    /// Rows of whole chunks that can be told with the first `frames` frames.
    pub(super) fn told(&self, frames: usize) -> usize {
        (frames / FRAMES_PER_ROW).saturating_sub(self.right) / self.chunk * self.chunk
    }
}
