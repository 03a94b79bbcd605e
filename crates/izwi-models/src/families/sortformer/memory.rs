//! What is remembered of a recording in pieces: the rows that are most typical of each speaker (the speaker cache), and the
//! last rows (the FIFO), both as they are before the first layer. The network sees them before each new piece, so that a
//! speaker keeps their column.
//!
//! Knows no tensor and no audio. Source: `SortformerModules` of the Python package `nemo-toolkit` 3.0.0, in its synchronous
//! mode; <https://arxiv.org/abs/2507.18446>. Where scores are equal, the lower index is taken first.

use std::ops::Range;

use serde::Deserialize;

use super::super::nemo::MAX_COUNT;
use super::super::settings::within;
use super::latency::{Latency, Row, SPEAKERS};

/// Which rows are remembered: `sortformer_modules` of a configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Rules {
    /// Rows of the cache.
    pub(super) spkcache_len: usize,
    /// Rows of silence after those of each speaker.
    spkcache_sil_frames_per_spk: usize,
    /// Sum of probabilities below which a row is silence.
    sil_threshold: f32,
    /// The least probability in a score.
    pred_score_threshold: f32,
    /// What rows that are new in the cache gain.
    scores_boost_latest: f32,
    /// Rows of each speaker that gain much, and some, as shares of their part of the cache.
    strong_boost_rate: f64,
    weak_boost_rate: f64,
    /// Rows in which a speaker is alone, as a share of their part, from which on those with others are left out.
    min_pos_scores_rate: f64,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            spkcache_len: 188,
            spkcache_sil_frames_per_spk: 3,
            sil_threshold: 0.2,
            pred_score_threshold: 0.25,
            scores_boost_latest: 0.05,
            strong_boost_rate: 0.75,
            weak_boost_rate: 1.5,
            min_pos_scores_rate: 0.5,
        }
    }
}

impl Rules {
    /// Refuses rules by which nothing can be kept.
    pub(super) fn checked(self) -> Result<Self, String> {
        within("sortformer_modules", &[("spkcache_len", self.spkcache_len)], MAX_COUNT)?;
        let least = self.spkcache_sil_frames_per_spk.saturating_add(1).saturating_mul(SPEAKERS);
        if self.spkcache_len < least {
            let rows = self.spkcache_len;
            return Err(format!("sortformer_modules: spkcache_len is {rows}; it must be at least {least}"));
        }
        let rates = [self.strong_boost_rate, self.weak_boost_rate, self.min_pos_scores_rate];
        let threshold = f64::from(self.pred_score_threshold);
        let numbers = [f64::from(self.sil_threshold), f64::from(self.scores_boost_latest), threshold];
        if threshold <= 0.0 || rates.iter().chain(&numbers).any(|number| !(0.0..=16.0).contains(number)) {
            return Err("sortformer_modules: a rate or threshold is outside 0 to 16".to_owned());
        }
        Ok(self)
    }

    /// The rows of a cache that is too long that are kept, by speaker and in time, `None` for one of silence: `spkcache_len` of
    /// them.
    fn keep(&self, probabilities: &[Row]) -> Vec<Option<usize>> {
        let capacity = self.spkcache_len;
        let part = (capacity / SPEAKERS).saturating_sub(self.spkcache_sil_frames_per_spk);
        let share = |rate: f64| (part as f64 * rate).floor() as usize;
        let places = probabilities.len() + self.spkcache_sil_frames_per_spk;
        let mut scores = vec![f32::INFINITY; SPEAKERS * places];
        for (speaker, scores) in scores.chunks_exact_mut(places).enumerate() {
            let scores = &mut scores[..probabilities.len()];
            scores.iter_mut().zip(probabilities).for_each(|(score, row)| *score = self.score(row, speaker));
            if scores.iter().filter(|&&score| score > 0.0).count() >= share(self.min_pos_scores_rate) {
                let shared = scores.iter_mut().filter(|score| **score <= 0.0);
                shared.for_each(|score| *score = f32::NEG_INFINITY);
            }
            scores.iter_mut().skip(capacity).for_each(|score| *score += self.scores_boost_latest);
            for (rate, halvings) in [(self.strong_boost_rate, 2.0), (self.weak_boost_rate, 1.0)] {
                let best = highest(scores, share(rate));
                best.into_iter().for_each(|row| scores[row] += halvings * std::f32::consts::LN_2);
            }
        }
        let mut kept: Vec<usize> = highest(&scores, capacity);
        kept.retain(|&index| scores[index] > f32::NEG_INFINITY);
        kept.sort_unstable();
        let mut kept: Vec<Option<usize>> =
            kept.iter().map(|index| Some(index % places).filter(|&row| row < probabilities.len())).collect();
        kept.resize(capacity, None);
        kept
    }

    /// How typical a row is of a speaker: above 0 where they are likely and no one else is, −∞ where they are silent.
    fn score(&self, row: &Row, speaker: usize) -> f32 {
        let log = |value: f32| value.max(self.pred_score_threshold).ln();
        if row[speaker] <= 0.5 {
            return f32::NEG_INFINITY;
        }
        let others: f32 = row.iter().map(|probability| log(1.0 - probability)).sum();
        log(row[speaker]) - log(1.0 - row[speaker]) + others - 0.5f32.ln()
    }
}

/// The places of the `count` highest scores, the lower place first where they are equal.
fn highest(scores: &[f32], count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..scores.len()).collect();
    places.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    places.truncate(count);
    places
}

/// What is remembered.
#[derive(Debug, Clone)]
pub(super) struct Memory {
    width: usize,
    /// `[rows, width]` each.
    pub(super) cache: Vec<f32>,
    pub(super) fifo: Vec<f32>,
    /// Of the rows of the cache, once it has been too long.
    pub(super) probabilities: Option<Vec<Row>>,
    /// The mean row of silence, and of how many it is.
    pub(super) silence: Vec<f32>,
    pub(super) silent_rows: usize,
}

impl Memory {
    /// Nothing, of rows of `width` values.
    pub(super) fn new(width: usize) -> Self {
        let (cache, fifo, silence) = (Vec::new(), Vec::new(), vec![0.0; width]);
        Self { width, cache, fifo, probabilities: None, silence, silent_rows: 0 }
    }

    /// What the network sees for the rows of a piece: `[rows, width]`.
    pub(super) fn before(&self, piece: &[f32]) -> Vec<f32> {
        [&self.cache, &self.fifo, piece].concat()
    }

    /// Takes the rows `own` of a piece, with the probabilities of all rows that the network saw. Returns those of its own.
    pub(super) fn take(
        &mut self,
        piece: &[f32],
        own: Range<usize>,
        seen: &[Row],
        (latency, rules): (&Latency, &Rules),
    ) -> Vec<Row> {
        let (cached, queued) = (self.cache.len() / self.width, self.fifo.len() / self.width);
        let first = cached + queued;
        let told = seen[first + own.start..first + own.end].to_vec();
        let probabilities = [&seen[cached..first], &told].concat();
        self.fifo.extend_from_slice(&piece[own.start * self.width..own.end * self.width]);
        if probabilities.len() > latency.fifo {
            let excess = probabilities.len() - latency.fifo;
            let count = latency.update.max(excess).min(probabilities.len());
            let (probabilities, _) = probabilities.split_at(count);
            let rows: Vec<f32> = self.fifo.drain(..count * self.width).collect();
            self.learn_silence(&rows, probabilities, rules.sil_threshold);
            self.cache.extend(rows);
            let known = self.probabilities.take().map(|known| [&known, probabilities].concat());
            self.probabilities = if cached + count > rules.spkcache_len {
                let known = known.unwrap_or_else(|| [&seen[..cached], probabilities].concat());
                Some(self.compress(&known, rules))
            } else {
                known
            };
        }
        told
    }

    fn learn_silence(&mut self, rows: &[f32], probabilities: &[Row], threshold: f32) {
        let silent = |row: &Row| row.iter().sum::<f32>() < threshold;
        let known = self.silent_rows as f32;
        self.silence.iter_mut().for_each(|mean| *mean *= known);
        for (row, _) in rows.chunks_exact(self.width).zip(probabilities).filter(|(_, row)| silent(row)) {
            self.silence.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            self.silent_rows += 1;
        }
        let count = self.silent_rows.max(1) as f32;
        self.silence.iter_mut().for_each(|sum| *sum /= count);
    }

    /// Keeps the rows that count. Returns their probabilities.
    fn compress(&mut self, probabilities: &[Row], rules: &Rules) -> Vec<Row> {
        let kept = rules.keep(probabilities);
        let row = |&place: &Option<usize>| match place {
            Some(row) => &self.cache[row * self.width..(row + 1) * self.width],
            None => &self.silence,
        };
        self.cache = kept.iter().flat_map(row).copied().collect();
        kept.into_iter().map(|place| place.map_or_else(Row::default, |row| probabilities[row])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_scores_are_kept_in_order_and_silence_fills_the_rest() {
        let rules = Rules { spkcache_len: 20, ..Rules::default() };
        // A part is 2 rows and 3 of silence: both speak in all rows, so that each row has two equal scores.
        let both = vec![[0.9, 0.9, 0.0, 0.0]; 21];
        let kept = rules.keep(&both);
        assert_eq!(kept.len(), 20);
        let rows: Vec<usize> = kept.iter().flatten().copied().collect();
        assert_eq!(kept.iter().filter(|row| row.is_none()).count(), 4 * 3);
        // Of each speaker the first row gains most, then the new one and the second; the rest goes to the first speaker.
        assert_eq!(rows, [0, 1, 2, 3, 20, 0, 1, 20]);
        assert_eq!(rules.keep(&[[0.0; SPEAKERS]; 30]), vec![None; 20]);
    }

    #[test]
    fn rules_that_keep_nothing_are_refused() {
        assert_eq!(Rules::default().checked(), Ok(Rules::default()));
        let few = Rules { spkcache_len: 15, ..Rules::default() };
        assert!(few.checked().unwrap_err().contains("at least 16"));
        for rate in [f64::NAN, -1.0, 1e9] {
            assert!(Rules { weak_boost_rate: rate, ..Rules::default() }.checked().is_err());
        }
    }
}
