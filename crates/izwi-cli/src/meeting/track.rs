//! One recording of a meeting: of the room, or of the microphone of one who takes part.

use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use izwi_audio::decode::DecodeLimits;
use izwi_audio::parts::part_end;
use izwi_core::engine::AudioInput;

use super::alignment;
use crate::input;

/// Rate of the samples, in Hz: what models that listen work with.
pub(crate) const RATE_HZ: usize = 16_000;
/// The longest recording.
const LONGEST: Duration = Duration::from_secs(24 * 3_600);
/// Samples of an energy.
const FRAME: usize = RATE_HZ / alignment::RATE_HZ;
/// Energies have at least this, in dB.
const SILENCE_DB: f32 = -90.0;

/// A recording, in memory.
#[derive(Debug)]
pub(crate) struct Track {
    /// Who it is of, where there are several.
    pub(crate) name: String,
    /// At 16 kHz.
    pub(crate) samples: Vec<i16>,
    /// When it began, in seconds from the beginning of the meeting.
    pub(crate) start_s: f64,
}

impl Track {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read or decoded, or has more than `max_bytes`.
    pub(crate) fn read(path: &Path, max_bytes: usize) -> Result<Self> {
        let limits = DecodeLimits { max_bytes, max_duration: LONGEST };
        let file = input::read_file(path, max_bytes as u64)?;
        let samples =
            AudioInput::from(file).decode(RATE_HZ as u32, &limits, &mut |_| ControlFlow::Continue(()));
        let samples = samples.with_context(|| format!("cannot read {}", path.display()))?;
        let samples = samples.iter().map(|&sample| (sample * 32_767.0).round() as i16).collect();
        let name = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
        Ok(Self::new(name, samples))
    }

    pub(super) fn new(name: String, samples: Vec<i16>) -> Self {
        Self { name, samples, start_s: 0.0 }
    }

    /// In seconds.
    pub(crate) fn duration_s(&self) -> f64 {
        self.samples.len() as f64 / RATE_HZ as f64
    }

    /// The parts of it, cut in pauses: each is transcribed for itself.
    pub(crate) fn parts(&self) -> Vec<Range<usize>> {
        let (mut parts, mut start) = (Vec::new(), 0);
        loop {
            let end = start + part_end(&self.samples[start..], RATE_HZ);
            parts.push(start..end);
            if end == self.samples.len() {
                return parts;
            }
            start = end;
        }
    }

    /// How loud it is in a span of the meeting, in dB.
    pub(super) fn loudness(&self, start_s: f64, end_s: f64) -> f32 {
        let at = |second: f64| ((second - self.start_s).max(0.0) * RATE_HZ as f64) as usize;
        let end = at(end_s).min(self.samples.len());
        energy(&self.samples[at(start_s).min(end)..end])
    }

    fn energies(&self) -> Vec<f32> {
        self.samples.chunks(FRAME).map(energy).collect()
    }
}

/// In dB.
fn energy(samples: &[i16]) -> f32 {
    (20.0 * root_mean_square(samples).log10()).max(SILENCE_DB)
}

fn root_mean_square(samples: &[i16]) -> f32 {
    let sum: f64 = samples.iter().map(|&sample| f64::from(sample).powi(2)).sum();
    ((sum / samples.len().max(1) as f64).sqrt() / 32_768.0) as f32
}

/// Finds when each track began, the first of them at 0. Tracks that hear nothing in common with the first are taken to have begun with
/// it; their names are returned.
///
/// # Errors
/// As [`alignment::lag`].
pub(crate) fn align(tracks: &mut [Track]) -> Result<Vec<String>> {
    let Some((first, others)) = tracks.split_first_mut() else { return Ok(Vec::new()) };
    let (mut apart, energies) = (Vec::new(), if others.is_empty() { Vec::new() } else { first.energies() });
    for track in others {
        match alignment::lag(&energies, &track.energies())? {
            Some(lag) => track.start_s = lag as f64 / alignment::RATE_HZ as f64,
            None => apart.push(track.name.clone()),
        }
    }
    let begin = tracks.iter().map(|track| track.start_s).fold(0.0, f64::min);
    tracks.iter_mut().for_each(|track| track.start_s -= begin);
    Ok(apart)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tone that is interrupted for half a second from each of these seconds on.
    pub(crate) fn tone(seconds: usize, pauses: &[usize]) -> Vec<i16> {
        let is_pause =
            |n: usize| pauses.iter().any(|at| (at * RATE_HZ..at * RATE_HZ + RATE_HZ / 2).contains(&n));
        let wave = |n: usize| ((n as f32 * 0.3).sin() * 9_000.0) as i16;
        (0..seconds * RATE_HZ).map(|n| if is_pause(n) { 0 } else { wave(n) }).collect()
    }

    #[test]
    fn parts_are_cut_in_pauses_and_have_everything() {
        let track = Track::new("a".to_owned(), tone(700, &[100, 280, 575]));
        let parts = track.parts();
        let cut = |at: usize| parts[at].end as f64 / RATE_HZ as f64;
        assert_eq!((parts.len(), parts[0].start, parts[2].end), (3, 0, 700 * RATE_HZ));
        assert!((280.0..280.6).contains(&cut(0)) && (575.0..575.6).contains(&cut(1)), "{parts:?}");
        assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!(Track::new(String::new(), Vec::new()).parts(), vec![0..0]);
        assert_eq!(Track::new(String::new(), tone(300, &[])).parts().len(), 1);
    }

    #[test]
    fn the_loudness_is_that_of_the_span_of_the_meeting() {
        let mut track = Track::new("a".to_owned(), tone(20, &[5]));
        track.start_s = 2.0;
        assert!((track.loudness(3.0, 4.0) + 14.2).abs() < 0.1, "{}", track.loudness(3.0, 4.0));
        for (start_s, end_s) in [(7.1, 7.4), (0.0, 1.5), (30.0, 31.0)] {
            assert_eq!(track.loudness(start_s, end_s), SILENCE_DB);
        }
    }
}
