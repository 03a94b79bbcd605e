//! A recording in pieces: which frames the network sees in each step.
//!
//! Knows no tensor and no audio. Source: `SortformerEncLabelModel` of the Python package `nemo-toolkit` 3.0.0.

use std::ops::Range;

use super::memory::Memory;
use super::turns::{Thresholds, Turns};
use crate::conformer::FRAMES_PER_ROW;

/// Rows before a piece that the subsampling sees again.
const LEFT: usize = 1;

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

/// How far a recording is.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) memory: Memory,
    pub(super) turns: Turns,
    /// Frames of which the speakers are told.
    frames: usize,
}

/// What a step sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) frames: Range<usize>,
    /// Those of its rows that are told.
    pub(super) own: Range<usize>,
    /// The end of the frames that are told.
    pub(super) end: usize,
    /// The first frame that the next piece sees.
    pub(super) next: usize,
}

impl Session {
    /// The begin of a recording, for rows of `width` values.
    pub(super) fn new(width: usize, thresholds: Thresholds) -> Self {
        Self { memory: Memory::new(width), turns: Turns::new(thresholds), frames: 0 }
    }

    /// The next piece of a recording of which `ready` frames are known; `None` if more must come, or if it is over.
    pub(super) fn next(&self, ready: usize, is_all: bool, latency: &Latency) -> Option<Piece> {
        let Latency { chunk, right, .. } = *latency;
        let start = self.frames;
        if start >= ready || (!is_all && ready < start + FRAMES_PER_ROW * (chunk + right)) {
            return None;
        }
        let end = ready.min(start + FRAMES_PER_ROW * chunk);
        let before = |frame: usize| frame.saturating_sub(FRAMES_PER_ROW * LEFT);
        let left = start - before(start);
        let right = (ready - end).min(FRAMES_PER_ROW * right);
        let frames = start - left..end + right;
        let rows = frames.len().div_ceil(FRAMES_PER_ROW) - right.div_ceil(FRAMES_PER_ROW);
        Some(Piece { frames, own: left / FRAMES_PER_ROW..rows, end, next: before(end) })
    }

    /// Counts the frames of a piece.
    pub(super) fn pass(&mut self, piece: &Piece) {
        self.frames = piece.end;
    }
}
