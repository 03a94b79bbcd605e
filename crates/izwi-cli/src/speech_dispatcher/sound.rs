//! The samples of an utterance as a screen reader wants them: without the silence at their beginning, in its pitch, tempo and
//! volume.

use std::f32::consts::TAU;

use anyhow::Result;
use izwi_audio::pcm;
use izwi_audio::resample::Resampler;
use izwi_audio::tempo::Tempo;

use super::parameters::Parameters;

/// Amplitude below which the beginning is silence, and how much of it stays before the first sound.
const SILENCE: f32 = 0.003;
const LEAD_MS: usize = 5;
/// The sound of a capital letter.
const TONE_HZ: f32 = 1_200.0;
const TONE_MS: usize = 40;
const TONE_AMPLITUDE: f32 = 0.2;

/// The samples of one utterance, changed as they come.
#[derive(Debug)]
pub(super) struct Sound {
    rate_hz: u32,
    speed: f64,
    gain: f32,
    /// The beginning of the source, while it is silent.
    lead: Option<Vec<f32>>,
    /// Samples of the source that were left out.
    trimmed: u64,
    pitch: Option<Resampler>,
    tempo: Tempo,
}

impl Sound {
    /// Sound of mono samples at `rate_hz`.
    ///
    /// # Errors
    /// The rate is 0.
    pub(super) fn new(rate_hz: u32, parameters: &Parameters) -> Result<Self> {
        let (speed, factor) = (parameters.speed(), parameters.pitch());
        // Played at another rate, a voice is higher and faster; the tempo makes up for the latter.
        let played_hz = (f64::from(rate_hz) * factor).round() as u32;
        let pitch = if played_hz == rate_hz { None } else { Some(Resampler::streamed(played_hz, rate_hz)?) };
        Ok(Self {
            rate_hz,
            speed,
            gain: parameters.gain(),
            lead: Some(Vec::new()),
            trimmed: 0,
            pitch,
            tempo: Tempo::new(rate_hz, speed / factor),
        })
    }

    /// Samples per second.
    pub(super) fn rate_hz(&self) -> u32 {
        self.rate_hz
    }

    /// Where a sample of the source is in what comes out.
    pub(super) fn place(&self, sample: u64) -> u64 {
        (sample.saturating_sub(self.trimmed) as f64 / self.speed) as u64
    }

    /// The samples that are known after these of the source.
    ///
    /// # Errors
    /// They cannot be resampled.
    pub(super) fn push(&mut self, samples: &[f32]) -> Result<Vec<i16>> {
        let Some(lead) = &mut self.lead else { return self.change(samples, false) };
        lead.extend_from_slice(samples);
        let Some(first) = lead.iter().position(|sample| sample.abs() > SILENCE) else {
            return Ok(Vec::new());
        };
        let lead = self.lead.take().unwrap_or_default();
        let from = first.saturating_sub(LEAD_MS * self.rate_hz as usize / 1_000);
        self.trimmed = from as u64;
        self.change(&lead[from..], false)
    }

    /// The rest.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(super) fn finish(&mut self) -> Result<Vec<i16>> {
        self.lead = None;
        self.change(&[], true)
    }

    fn change(&mut self, samples: &[f32], is_last: bool) -> Result<Vec<i16>> {
        let mut pitched = Vec::new();
        let samples = match &mut self.pitch {
            Some(pitch) => {
                pitch.push(samples, &mut pitched)?;
                if is_last {
                    pitch.finish(&mut pitched)?;
                }
                &pitched
            }
            None => samples,
        };
        let mut out = Vec::new();
        self.tempo.push(samples, &mut out);
        if is_last {
            self.tempo.finish(&mut out);
        }
        Ok(out.into_iter().map(|sample| pcm::to_i16(sample * self.gain)).collect())
    }

    /// The sound of a capital letter.
    pub(super) fn tone(&self) -> Vec<i16> {
        let count = TONE_MS * self.rate_hz as usize / 1_000;
        let sample = |n: usize| {
            let shape = (std::f32::consts::PI * n as f32 / count as f32).sin();
            TONE_AMPLITUDE * shape * self.gain * (TAU * TONE_HZ * n as f32 / self.rate_hz as f32).sin()
        };
        (0..count).map(|n| pcm::to_i16(sample(n))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sine(hz: f32, samples: usize) -> Vec<f32> {
        (0..samples).map(|n| 0.5 * (TAU * hz * n as f32 / 24_000.0).sin()).collect()
    }

    fn sound(source: &[f32], lines: &[&str]) -> (Vec<i16>, Sound) {
        let mut parameters = Parameters::default();
        assert!(lines.iter().all(|line| parameters.set(line)));
        let mut sound = Sound::new(24_000, &parameters).unwrap();
        let mut out = Vec::new();
        for piece in source.chunks(700) {
            out.extend(sound.push(piece).unwrap());
        }
        out.extend(sound.finish().unwrap());
        (out, sound)
    }

    fn hz(samples: &[i16]) -> f32 {
        let rises = samples.windows(2).filter(|pair| pair[0] < 0 && pair[1] >= 0).count();
        rises as f32 * 24_000.0 / samples.len() as f32
    }

    #[test]
    fn pitch_and_tempo_do_not_change_each_other() {
        let source = sine(220.0, 48_000);
        for (lines, factor, length) in [
            (&["rate=0"][..], 1.0, 48_000),
            (&["rate=100"], 1.0, 12_000),
            (&["pitch=100"], 1.414, 48_000),
            (&["pitch=-100", "rate=50"], 0.707, 24_000),
        ] {
            let (out, _) = sound(&source, lines);
            assert!((hz(&out) / 220.0 / factor - 1.0).abs() < 0.02, "{lines:?}: {}", hz(&out));
            assert!(out.len().abs_diff(length) < 400, "{lines:?}: {}", out.len());
        }
    }

    #[test]
    fn the_silence_at_the_beginning_is_left_out() {
        let source = [vec![0.0; 8_000], sine(220.0, 4_000)].concat();
        let (out, sound) = sound(&source, &["volume=0"]);
        assert!(out.len().abs_diff(4_120) < 5, "{}", out.len());
        assert!(sound.place(8_000).abs_diff(120) < 5, "{}", sound.place(8_000));
        let peak = out.iter().map(|sample| sample.abs()).max().unwrap();
        assert!((8_000..8_300).contains(&peak), "{peak}");
        assert!(super::tests::sound(&[0.0; 5_000], &[]).0.is_empty());
    }
}
