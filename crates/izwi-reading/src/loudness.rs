//! Loudness after EBU R 128: measured over the whole book, then brought to a target, with peaks held under a ceiling.

use ebur128::{EbuR128, Mode};

use crate::error::{BindError, Result};

/// The ceiling of peaks: −1 dBTP, less what the encoders of a lossy format overshoot.
const CEILING_DBTP: f64 = -1.5;
/// Samples of a step of the limiter: 5 ms at 24 kHz.
const STEP_SAMPLES: usize = 120;
/// By how much the limiter's gain rises in a step at most: 40 dB in a second.
const RELEASE: f32 = 1.023;

/// The loudness that is asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Loudness {
    /// As the model speaks.
    Off,
    /// Integrated, in LUFS.
    Lufs(f64),
}

impl std::str::FromStr for Loudness {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        match (text, text.parse::<f64>()) {
            ("off", _) => Ok(Self::Off),
            (_, Ok(lufs)) if (-40.0..=-8.0).contains(&lufs) => Ok(Self::Lufs(lufs)),
            _ => Err("it must be off, or LUFS between -40 and -8".to_owned()),
        }
    }
}

/// A meter of the loudness of mono audio.
pub(crate) struct Meter(EbuR128);

impl Meter {
    pub(crate) fn new(sample_rate_hz: u32) -> Result<Self> {
        // A histogram takes the same room for an hour and for a day.
        Ok(Self(analyser(sample_rate_hz, Mode::I | Mode::HISTOGRAM)?))
    }

    pub(crate) fn push(&mut self, samples: &[f32]) -> Result<()> {
        self.0
            .add_frames_f32(samples)
            .map_err(|error| BindError::audio("the loudness cannot be measured", &error))
    }

    /// The integrated loudness in LUFS; `None` of silence.
    pub(crate) fn lufs(&self) -> Option<f64> {
        self.0.loudness_global().ok().filter(|lufs| lufs.is_finite())
    }
}

fn analyser(sample_rate_hz: u32, mode: Mode) -> Result<EbuR128> {
    EbuR128::new(1, sample_rate_hz, mode)
        .map_err(|error| BindError::audio("the loudness cannot be measured", &error))
}

/// Applies a gain, and holds peaks under the ceiling: before one comes, the gain falls within a step, and rises slowly after.
pub(crate) struct Limiter {
    gain: f32,
    peaks: EbuR128,
    /// The step that is being filled.
    filling: Vec<f32>,
    /// The step before, which waits for what the next one needs, and the gain that it needs.
    waiting: Option<(Vec<f32>, f32)>,
    /// The gain at the start of the waiting step.
    current: f32,
}

impl Limiter {
    pub(crate) fn new(gain_db: f64, sample_rate_hz: u32) -> Result<Self> {
        let gain = 10f64.powf(gain_db / 20.0) as f32;
        let peaks = analyser(sample_rate_hz, Mode::TRUE_PEAK)?;
        Ok(Self { gain, peaks, filling: Vec::new(), waiting: None, current: 1.0 })
    }

    /// Passes on what is decided; the same bytes however the samples are sliced.
    pub(crate) fn push(&mut self, samples: &[f32]) -> Result<Vec<f32>> {
        let mut out = Vec::with_capacity(samples.len() + STEP_SAMPLES);
        for sample in samples {
            self.filling.push(sample * self.gain);
            if self.filling.len() == STEP_SAMPLES {
                self.step(&mut out)?;
            }
        }
        Ok(out)
    }

    /// Passes on the rest.
    pub(crate) fn finish(mut self) -> Result<Vec<f32>> {
        let mut out = Vec::new();
        self.step(&mut out)?;
        self.step(&mut out)?;
        Ok(out)
    }

    fn step(&mut self, out: &mut Vec<f32>) -> Result<()> {
        let step = std::mem::take(&mut self.filling);
        self.peaks
            .add_frames_f32(&step)
            .map_err(|error| BindError::audio("the peaks cannot be measured", &error))?;
        let ceiling = 10f64.powf(CEILING_DBTP / 20.0);
        let peak = self
            .peaks
            .prev_true_peak(0)
            .map_err(|error| BindError::audio("the peaks cannot be measured", &error))?;
        let need = (ceiling / peak.max(ceiling)) as f32;
        if let Some((samples, own)) = self.waiting.replace((step, need)) {
            let end = need.min(own).min(self.current * RELEASE).min(1.0);
            let start = self.current.min(own);
            let count = samples.len().max(1) as f32;
            out.extend(
                samples
                    .iter()
                    .enumerate()
                    .map(|(at, sample)| sample * (start + (end - start) * at as f32 / count)),
            );
            self.current = end;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(samples: &[f32]) -> (f64, f64) {
        let mut meter = analyser(24_000, Mode::I | Mode::TRUE_PEAK).unwrap();
        meter.add_frames_f32(samples).unwrap();
        (meter.loudness_global().unwrap(), meter.true_peak(0).unwrap())
    }

    #[test]
    fn a_gain_is_exact_and_peaks_stay_under_the_ceiling() {
        let tone = |at: usize, level: f32| (at as f32 * 0.26).sin() * level;
        let quiet: Vec<f32> = (0..72_000).map(|at| tone(at, 0.05)).collect();
        let mut peaks = quiet.clone();
        for at in [10_000, 40_000] {
            (at..at + 600).for_each(|at| peaks[at] = tone(at, 0.9));
        }
        let limited = |samples: &[f32], block: usize| {
            let mut limiter = Limiter::new(6.0, 24_000).unwrap();
            let mut out = Vec::new();
            samples.chunks(block).for_each(|block| out.extend(limiter.push(block).unwrap()));
            out.extend(limiter.finish().unwrap());
            out
        };
        let louder = limited(&quiet, 1_000);
        assert_eq!(louder.len(), quiet.len());
        assert!((measured(&louder).0 - measured(&quiet).0 - 6.0).abs() < 0.11);
        let held = limited(&peaks, 777);
        let peak_db = 20.0 * measured(&held).1.log10();
        assert!(measured(&peaks).1 > 0.89 && peak_db < -1.0, "{peak_db}");
        assert_eq!(held, limited(&peaks, 20_000), "slices do not matter");
        let gains = held.iter().zip(&peaks).filter(|(_, sample)| sample.abs() > 0.02);
        let gains: Vec<f32> = gains.map(|(held, sample)| held / sample).collect();
        let jump = gains.windows(2).map(|pair| (pair[1] - pair[0]).abs()).fold(0.0, f32::max);
        assert!(jump < 0.05, "the gain moves by {jump}");
    }

    #[test]
    fn targets_are_checked() {
        assert_eq!("off".parse(), Ok(Loudness::Off));
        assert_eq!("-18".parse(), Ok(Loudness::Lufs(-18.0)));
        assert!("18".parse::<Loudness>().is_err() && "loud".parse::<Loudness>().is_err());
    }
}
