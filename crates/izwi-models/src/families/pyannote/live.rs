//! Audio that is heard as it arrives: a window of 10 s ends with each second of it, and speakers keep their names.
//!
//! The first window has 9 s of zeros before the first second. What is told of the last window may change with the next one; what is
//! told of earlier ones changes where the voices are clustered again and some get another speaker. Times count from the start of
//! the audio. Each window runs the network of voices over its last 3 s and keeps the rows of the seconds before, and spectra are
//! normalised by a running mean, so that a window costs the same however long the recording is. Knows no queue.

use std::sync::Arc;

use candle_core::Result;
use izwi_nn::layers::conv::Plane;
use izwi_types::Segment;

use super::clustering::{Speakers, Voice};
use super::embedding::Pool;
use super::fbank::{FLOOR, HOP};
use super::segmentation::{SPEAKERS, WINDOW};
use super::turns;
use super::{HALF_ROWS, Heard, ROWS, Rules, SAMPLE_RATE_HZ, WINDOW_STEP, mean_embedding, pooled};

/// Milliseconds from one window to the next.
pub(super) const CHUNK_MS: u32 = 1_000;
/// Windows that begin before the audio.
const LEAD: usize = WINDOW / WINDOW_STEP - 1;
/// Samples of a row of the network of voices.
const ROW: usize = 8 * HOP;
/// Samples at the end of a window whose rows are computed, and rows at their start that lack what precedes them: earlier windows
/// have better ones.
const COMPUTED: usize = 3 * SAMPLE_RATE_HZ;
const EDGE: usize = 6;
/// Frames after which the sums of the running mean are halved: a minute.
const HALVED_AFTER: f64 = 6_000.0;
/// Windows whose voices are kept, an hour, and how many are dropped at once.
const KEPT: usize = 3_600;
const DROPPED: usize = 600;
/// The most voices that are clustered.
const MAX_CLUSTERED: usize = 1_024;
/// Voices are clustered again when 1 / 16 more have come, or 1 / 128 where the cosine of one to every speaker is below a threshold, so
/// that it may be a new one.
const MORE_PART: usize = 16;
const NEW_SPEAKER_PART: usize = 128;
const NEW_SPEAKER: f64 = 0.5;

/// What is known of audio that arrives, besides its windows and voices.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// Windows so far, and how many of them are dropped.
    windows: usize,
    dropped: usize,
    mean: Mean,
    rows: Rows,
    speakers: Speakers,
    /// The name of each of the speakers, and of each voice.
    names: Vec<usize>,
    named: Vec<Option<usize>>,
    /// Clear voices when they were clustered.
    clustered: usize,
}

/// The mean of each bin of the spectra, without silence.
#[derive(Debug, Default)]
struct Mean {
    sums: Vec<f64>,
    count: f64,
    /// Frames that were counted or are silence.
    frames: usize,
}

impl Mean {
    /// Counts the frames from `first` on that are new, and takes the mean off all.
    fn take_off(&mut self, frames: &mut [f32], first: usize, bins: usize) {
        self.sums.resize(bins, 0.0);
        for frame in frames.chunks_exact(bins).skip(self.frames.saturating_sub(first)) {
            if frame.iter().any(|&energy| energy > FLOOR.ln()) {
                self.sums.iter_mut().zip(frame).for_each(|(sum, &energy)| *sum += f64::from(energy));
                self.count += 1.0;
            }
        }
        self.frames = self.frames.max(first + frames.len() / bins);
        if self.count > HALVED_AFTER {
            self.sums.iter_mut().for_each(|sum| *sum /= 2.0);
            self.count /= 2.0;
        }
        for frame in frames.chunks_exact_mut(bins) {
            let means = self.sums.iter().map(|sum| (sum / self.count.max(1.0)) as f32);
            frame.iter_mut().zip(means).for_each(|(energy, mean)| *energy -= mean);
        }
    }
}

/// The last rows of the network of voices.
#[derive(Debug, Default)]
struct Rows {
    first: usize,
    values: Vec<f32>,
    width: usize,
}

impl Rows {
    /// Adds those of a plane whose first one is row `first`, in place of what is known of them but the edge.
    fn take(&mut self, plane: &Plane, first: usize) {
        let known = self.first + self.values.len().checked_div(self.width).unwrap_or(0);
        let from = if known > first { (first + EDGE).min(known) } else { first };
        self.values.truncate((from - self.first.min(from)) * self.width);
        if self.values.is_empty() {
            self.first = from;
        }
        for row in from - first..plane.rows() {
            self.width = plane.row(row).len();
            self.values.extend_from_slice(plane.row(row));
        }
        let more = (self.values.len() / self.width.max(1)).saturating_sub(ROWS + 1);
        self.values.drain(..more * self.width);
        self.first += more;
    }
}

impl Live {
    /// Windows so far.
    pub(super) fn windows(&self) -> usize {
        self.windows
    }

    /// The samples of the next window, as far as they are in the audio, and where they are in the window.
    pub(super) fn span(window: usize) -> (std::ops::Range<usize>, usize) {
        let end = (window + 1) * WINDOW_STEP;
        let start = end.saturating_sub(WINDOW);
        (start..end, WINDOW - (end - start))
    }

    /// Takes the next window: its samples, zeros included where there is no audio, and who speaks in it. Returns what is told of it:
    /// all turns from the start of the [revision](Segment::revision) on.
    ///
    /// # Errors
    /// The network failed.
    pub(super) fn take(
        &mut self,
        samples: &[f32],
        masks: Vec<u8>,
        heard: &mut Heard,
        rules: &Rules<'_>,
    ) -> Result<Vec<Segment>> {
        let voices = self.voices(samples, &masks, rules)?;
        heard.windows.push(masks);
        self.windows += 1;
        let is_new = self.name(voices, heard, rules);
        self.drop_old(heard);
        let first = if is_new { 0 } else { heard.windows.len().saturating_sub(LEAD + 1) };
        Ok(self.told(heard, first, rules.min_pause_s))
    }

    fn voices(&mut self, samples: &[f32], masks: &[u8], rules: &Rules<'_>) -> Result<Vec<Voice>> {
        let (window, (span, _)) = (self.windows, Self::span(self.windows));
        let first = span.end.saturating_sub(COMPUTED) / ROW;
        let own = &samples[WINDOW - (span.end - first * ROW)..];
        let mut frames = rules.embedding.energies(own);
        self.mean.take_off(&mut frames, first * ROW / HOP, rules.bins);
        self.rows.take(&rules.embedding.plane_of(&frames, rules.bins)?, first);
        let plane = Plane::of_rows(&self.rows.values, self.rows.width)?;
        let rows = self.rows.first..self.rows.first + plane.rows();
        let half_rows = HALF_ROWS as isize * (window as isize - LEAD as isize);
        let (mut voices, mut pools) = (Vec::new(), Vec::new());
        for place in 0..SPEAKERS {
            let Some((alone, speaks)) = pooled(masks, place, half_rows, rows.clone(), rules.excludes_overlap)
            else {
                continue;
            };
            voices.push((place, alone));
            pools.push(Pool { plane: &plane, start: 0, speaks });
        }
        let vectors = rules.embedding.vectors(&pools)?;
        let voice = |((place, alone), vector)| Voice { window, place, alone, vector };
        Ok(voices.into_iter().zip(vectors).map(voice).collect())
    }

    /// Names the voices of a window; true where earlier ones have other names than before.
    fn name(&mut self, new: Vec<Voice>, heard: &mut Heard, rules: &Rules<'_>) -> bool {
        let may_be_new =
            |voice: &Voice| rules.settings.is_clear(voice) && self.speakers.likeness(voice) < NEW_SPEAKER;
        let may_be_new = new.iter().any(may_be_new);
        let known = heard.voices.len();
        heard.voices.extend(new);
        let clear = heard.voices.iter().filter(|voice| rules.settings.is_clear(voice)).count();
        let part = if may_be_new { NEW_SPEAKER_PART } else { MORE_PART };
        let enough = self.clustered.min(MAX_CLUSTERED) / part;
        if clear <= self.clustered + enough {
            let new = self.speakers.of(&heard.voices[known..]);
            // Before any voice is clustered there is one speaker.
            let name = |speaker: usize| self.names.get(speaker).copied().unwrap_or(speaker);
            self.named.extend(new.into_iter().map(|speaker| speaker.map(name)));
            return false;
        }
        self.clustered = clear;
        self.speakers =
            Speakers::cluster(&heard.voices, (rules.plda, rules.settings), usize::MAX, MAX_CLUSTERED);
        let speakers = self.speakers.of(&heard.voices);
        self.names = matched(&speakers[..known], &self.named, self.speakers.count());
        let named: Vec<Option<usize>> =
            speakers.into_iter().map(|speaker| Some(self.names[speaker?])).collect();
        let is_new = named[..known] != self.named[..];
        self.named = named;
        is_new
    }

    /// Drops the oldest windows, so that memory is bounded.
    fn drop_old(&mut self, heard: &mut Heard) {
        if heard.windows.len() < KEPT + DROPPED {
            return;
        }
        self.dropped += DROPPED;
        heard.windows.drain(..DROPPED);
        let gone = heard.voices.partition_point(|voice| voice.window < self.dropped);
        heard.voices.drain(..gone);
        self.named.drain(..gone);
        self.clustered = self.clustered.saturating_sub(gone);
    }

    /// The turns from the kept window `first` on, less those of the windows before that would tell of them.
    fn told(&self, heard: &Heard, first: usize, min_pause_s: f64) -> Vec<Segment> {
        let mut names = vec![[None; SPEAKERS]; heard.windows.len() - first];
        let from = heard.voices.partition_point(|voice| voice.window < self.dropped + first);
        for (voice, name) in heard.voices[from..].iter().zip(&self.named[from..]) {
            names[voice.window - self.dropped - first][voice.place] = *name;
        }
        let start = self.dropped + first;
        let speaking = turns::speaking(&heard.windows[first..], &names);
        let offset_s = start as f64 * turns::WINDOW_STEP_S - LEAD as f64 * turns::WINDOW_STEP_S;
        let (since_s, end_s) =
            (start as f64 * turns::WINDOW_STEP_S, self.windows as f64 * turns::WINDOW_STEP_S);
        let (turns, order) = turns::turns(&speaking, end_s - offset_s, min_pause_s);
        let embeddings: Vec<Arc<[f32]>> =
            order.iter().map(|&name| mean_embedding(&heard.voices, &self.named, name)).collect();
        let turns = turns.into_iter().filter_map(|turn| {
            let start_s = (turn.start_s + offset_s).max(since_s);
            let end_s = turn.end_s + offset_s;
            let speaker = u32::try_from(order[turn.speaker]).ok();
            let embedding = Some(Arc::clone(&embeddings[turn.speaker]));
            (end_s > start_s).then(|| Segment { start_s, end_s, speaker, embedding, ..Segment::default() })
        });
        std::iter::once(Segment::revision(since_s, end_s)).chain(turns).collect()
    }
}

/// A name for each of `count` speakers: that which most of its voices have, which no other gets, or else the lowest that is free.
fn matched(speakers: &[Option<usize>], named: &[Option<usize>], count: usize) -> Vec<usize> {
    let names = named.iter().flatten().max().map_or(0, |last| last + 1).max(count);
    let mut votes = vec![vec![0usize; names]; count];
    for (speaker, name) in speakers.iter().zip(named) {
        if let (Some(speaker), Some(name)) = (*speaker, *name) {
            votes[speaker][name] += 1;
        }
    }
    let mut pairs: Vec<(usize, usize)> =
        (0..count).flat_map(|speaker| (0..names).map(move |name| (speaker, name))).collect();
    pairs.sort_by_key(|&(speaker, name)| (std::cmp::Reverse(votes[speaker][name]), name));
    let (mut found, mut is_taken) = (vec![None; count], vec![false; names]);
    for (speaker, name) in pairs {
        if found[speaker].is_none() && !is_taken[name] {
            (found[speaker], is_taken[name]) = (Some(name), true);
        }
    }
    found.into_iter().map(Option::unwrap_or_default).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speakers_keep_the_names_of_their_voices() {
        let some = |names: &[usize]| names.iter().map(|&name| Some(name)).collect::<Vec<_>>();
        assert_eq!(matched(&some(&[1, 1, 0, 0, 0]), &some(&[0, 0, 1, 1, 1]), 2), [1, 0]);
        assert_eq!(
            matched(&some(&[0, 0, 1]), &some(&[0, 0, 0]), 2),
            [0, 1],
            "of two, the larger part keeps the name"
        );
        assert_eq!(matched(&some(&[0, 0, 0]), &some(&[2, 2, 1]), 1), [2]);
        assert_eq!(matched(&[None], &[None], 1), [0]);
    }

    #[test]
    fn an_hour_is_kept_and_told_again() {
        let voice = |window| Voice { window, place: 0, alone: 589, vector: vec![1.0] };
        let count = KEPT + DROPPED;
        let mut heard = Heard { windows: vec![vec![1; 589]; count], voices: (0..count).map(voice).collect() };
        let mut live = Live { windows: count, named: vec![Some(2); count], ..Live::default() };
        live.drop_old(&mut heard);
        assert_eq!((heard.windows.len(), heard.voices.len(), live.named.len()), (KEPT, KEPT, KEPT));
        assert_eq!(heard.voices[0].window, DROPPED);
        let (kept_s, end_s) = (DROPPED as f64, count as f64);
        for (first, since_s) in [(0, kept_s), (KEPT - LEAD - 1, end_s - 10.0)] {
            let told = live.told(&heard, first, 0.0);
            assert_eq!(told[0], Segment::revision(since_s, end_s));
            assert_eq!((told.len(), told[1].start_s, told[1].speaker), (2, since_s, Some(2)));
            assert!((told[1].end_s - end_s).abs() < 0.1, "{:?}", told[1]);
        }
        let before = heard.windows.len();
        live.drop_old(&mut heard);
        assert_eq!(heard.windows.len(), before);
    }

    #[test]
    fn windows_begin_before_the_audio() {
        assert_eq!(Live::span(0), (0..16_000, 144_000));
        assert_eq!(Live::span(9), (0..160_000, 0));
        assert_eq!(Live::span(10), (16_000..176_000, 0));
    }
}
