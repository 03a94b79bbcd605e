//! A recording in pieces: which frames the network sees in each step.
//!
//! Knows no tensor and no audio. Source: `SortformerEncLabelModel` of the Python package `nemo-toolkit` 3.0.0.

use std::ops::Range;

use super::latency::{LEFT, Latency};
use super::memory::Memory;
use super::turns::{Thresholds, Turns};
use crate::conformer::FRAMES_PER_ROW;

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
