//! A recording in pieces: which frames the network sees in each step.
//!
//! Knows no tensor and no audio. Source: `SortformerEncLabelModel` of the Python package `nemo-toolkit` 3.0.0.

use std::ops::Range;

use super::latency::{LEFT, Latency};
use super::memory::Memory;
use super::segment;
use super::turns::{Thresholds, Turn, Turns};
use crate::conformer::FRAMES_PER_ROW;
use izwi_types::Segment;

/// How far a recording is.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) memory: Memory,
    pub(super) turns: Turns,
    /// Frames of which the speakers are told.
    frames: usize,
    /// Of audio that arrives: from where on turns that were told may change, in seconds, and final ones that end after it.
    open_s: f64,
    reaching: Vec<Turn>,
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
        Self {
            memory: Memory::new(width),
            turns: Turns::new(thresholds),
            frames: 0,
            open_s: 0.0,
            reaching: Vec::new(),
        }
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

    /// All turns from where they were not final on, of audio that arrives.
    pub(super) fn revised(&mut self, finished: bool) -> Vec<Segment> {
        let now_s = self.turns.now_s();
        let (told, open) = (self.turns.take(finished), self.turns.open());
        let since_s = std::mem::replace(&mut self.open_s, open.first().map_or(now_s, |turn| turn.start_s));
        let goes_on = |turn: &Turn| Turn { start_s: turn.start_s.max(since_s), ..*turn };
        let turns = self.reaching.iter().map(goes_on).chain(told.iter().copied()).chain(open).map(segment);
        let revised = std::iter::once(Segment::revision(since_s, now_s)).chain(turns).collect();
        self.reaching.extend(told);
        self.reaching.retain(|turn| turn.end_s > self.open_s);
        revised
    }

    /// Counts the frames of a piece.
    pub(super) fn pass(&mut self, piece: &Piece) {
        self.frames = piece.end;
    }
}
