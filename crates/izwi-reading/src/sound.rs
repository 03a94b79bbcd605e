//! The sound of a unit: trimmed, so that silences between units are exact, and faded, so that none clicks.

use izwi_types::SpokenWord;
use serde::{Deserialize, Serialize};

/// Silence that a unit keeps before and behind its sound, in seconds.
pub(crate) const EDGE_S: f64 = 0.05;
/// Time of the fades.
const FADE_S: f64 = 0.005;
/// Time of the windows in which sound is looked for.
const WINDOW_S: f64 = 0.005;
/// The level of silence: −54 dB.
const SILENCE_RMS: f32 = 0.002;

/// A word with its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Word {
    /// First byte of its span in the unit's text.
    pub(crate) text_start: usize,
    /// Its first sample and the end of its last sound, in samples of the unit.
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The sound of a unit.
#[derive(Debug, PartialEq)]
pub struct UnitSound {
    pub(crate) sample_rate_hz: u32,
    pub(crate) samples: Vec<f32>,
    pub(crate) words: Vec<Word>,
}

impl UnitSound {
    /// Trims and fades what a model said.
    pub fn new(samples: &[f32], words: &[SpokenWord], sample_rate_hz: u32) -> Self {
        let count = |seconds: f64| (seconds * f64::from(sample_rate_hz)).round() as usize;
        let (edge, window) = (count(EDGE_S), count(WINDOW_S).max(1));
        let is_loud = |window: &[f32]| {
            window.iter().map(|sample| sample * sample).sum::<f32>()
                > SILENCE_RMS * SILENCE_RMS * window.len() as f32
        };
        let mut loud =
            samples.chunks(window).enumerate().filter(|(_, window)| is_loud(window)).map(|(at, _)| at);
        let (start, end) = match loud.next() {
            Some(first) => {
                (first * window, ((loud.next_back().unwrap_or(first) + 1) * window).min(samples.len()))
            }
            None => (0, 0),
        };
        // A model that ends in its sound gets the silence that others have.
        let at =
            |index: usize| index.checked_sub(edge).and_then(|at| samples.get(at)).copied().unwrap_or(0.0);
        let mut trimmed: Vec<f32> = (start..end + 2 * edge).map(at).collect();
        let (length, fade) = (trimmed.len(), count(FADE_S).max(1));
        for index in 0..fade.min(length) {
            let gain = index as f32 / fade as f32;
            trimmed[index] *= gain;
            trimmed[length - 1 - index] *= gain;
        }
        let moved = |sample: u64| (sample + edge as u64).saturating_sub(start as u64).min(length as u64);
        let words = words.iter().map(|word| Word {
            text_start: word.text_start,
            start: moved(word.sample_start),
            end: moved(word.sample_end),
        });
        Self { sample_rate_hz, words: words.collect(), samples: trimmed }
    }

    /// Bytes of its samples where they are stored.
    pub fn stored_bytes(&self) -> u64 {
        2 * self.samples.len() as u64
    }

    /// Its duration.
    pub fn seconds(&self) -> f64 {
        self.samples.len() as f64 / f64::from(self.sample_rate_hz)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_has_a_constant_edge_and_no_click() {
        for (before, behind) in [(0, 0), (7_200, 90), (240, 24_000)] {
            let mut samples = vec![0.0; before];
            samples.extend((0..4_800).map(|_| 0.5));
            samples.extend(vec![0.0005; behind]);
            let word = SpokenWord {
                text_start: 3,
                text_end: 9,
                sample_start: before as u64,
                sample_end: before as u64 + 4_800,
            };
            let sound = UnitSound::new(&samples, &[word], 24_000);
            assert_eq!(sound.samples.len(), 1_200 + 4_800 + 1_200, "{before} {behind}");
            assert_eq!((sound.samples[0], sound.samples[1_199], sound.samples[1_200]), (0.0, 0.0, 0.5));
            assert_eq!(sound.samples.last(), Some(&0.0));
            assert_eq!(sound.words, [Word { text_start: 3, start: 1_200, end: 6_000 }]);
        }
        assert!(UnitSound::new(&[0.0; 9_000], &[], 24_000).samples.iter().all(|sample| *sample == 0.0));
    }
}
