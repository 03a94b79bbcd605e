//! The front end: recordings to normalised log-mel frames.
//!
//! Owns the part `preprocessor` of a configuration; knows no tensor. Source:
//! the Python package `liquid-audio` 1.3.0 (pip; NeMo's `FilterbankFeatures`).

use serde::Deserialize;

use izwi_nn::codec::mel::MelFilterBank;
use izwi_nn::codec::stft::{Stft, hann};

/// StepInput of a sample that is taken from the next.
const PRE_EMPHASIS: f32 = 0.97;
/// Added to energies under the logarithm: 2⁻²⁴.
const GUARD: f32 = 1.0 / (1 << 24) as f32;
/// Added to standard deviations.
const STD_GUARD: f64 = 1e-5;
/// Mel frames to a row of the encoder.
pub(super) const FRAMES_PER_ROW: usize = 8;

/// The part `preprocessor` of a configuration.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    pub(super) sample_rate: usize,
    pub(super) features: usize,
    n_fft: usize,
    window_size: f64,
    window_stride: f64,
    window: String,
    normalize: String,
    log: bool,
    frame_splicing: usize,
    pad_to: usize,
}

impl Config {
    /// Refuses settings that are not supported.
    pub(super) fn check(&self) -> Result<(), String> {
        let fault = |what: &str, value: &dyn std::fmt::Display, only: &str| {
            Err(format!("preprocessor.{what} {value} is not supported, only {only}"))
        };
        if self.window != "hann" {
            return fault("window", &self.window, "hann");
        }
        if self.normalize != "per_feature" {
            return fault("normalize", &self.normalize, "per_feature");
        }
        if !self.log {
            return fault("log", &self.log, "true");
        }
        if self.frame_splicing != 1 {
            return fault("frame_splicing", &self.frame_splicing, "1");
        }
        if self.pad_to != 0 {
            return fault("pad_to", &self.pad_to, "0");
        }
        let (window, hop) = (self.window_samples(), self.hop());
        if hop == 0 || window < 2 || window > self.n_fft || self.n_fft % 2 == 1 || self.features == 0 {
            return Err(format!(
                "preprocessor: windows of {window} samples every {hop} in a transform of {} are not supported",
                self.n_fft
            ));
        }
        Ok(())
    }

    fn window_samples(&self) -> usize {
        (self.window_size * self.sample_rate as f64) as usize
    }

    fn hop(&self) -> usize {
        (self.window_stride * self.sample_rate as f64) as usize
    }
}

/// Frames of one recording, as the network takes them.
#[derive(Debug, Clone)]
pub(super) struct Mel {
    /// `[frames, features]`.
    pub(super) values: Vec<f32>,
    /// Frames; the last of them is silence to the network.
    pub(super) frames: usize,
}

impl Mel {
    /// Rows of the encoder for these frames.
    pub(super) fn rows(&self) -> usize {
        self.frames.div_ceil(FRAMES_PER_ROW)
    }
}

/// Turns samples into frames.
#[derive(Debug)]
pub(super) struct FrontEnd {
    stft: Stft,
    hop: usize,
    bank: MelFilterBank,
}

impl FrontEnd {
    /// A front end of a checked configuration.
    pub(super) fn new(config: &Config) -> Self {
        let (length, transform) = (config.window_samples(), config.n_fft);
        let mut window = vec![0f32; transform];
        window[(transform - length) / 2..][..length].copy_from_slice(&hann(length, false));
        let rate = config.sample_rate;
        Self {
            stft: Stft::new(window),
            hop: config.hop(),
            bank: MelFilterBank::new(rate, transform, config.features, rate as f64 / 2.0),
        }
    }

    /// The fewest samples whose frames can be normalised.
    pub(super) fn min_samples(&self) -> usize {
        self.hop * FRAMES_PER_ROW
    }

    /// Rows of the encoder for a recording of `samples` samples.
    pub(super) fn rows(&self, samples: usize) -> usize {
        if samples < self.min_samples() { 0 } else { (samples / self.hop + 1).div_ceil(FRAMES_PER_ROW) }
    }

    /// Samples at the configuration's rate to frames, each recording by itself; empty below [`Self::min_samples`].
    pub(super) fn frames(&self, samples: &[f32]) -> Mel {
        if samples.len() < self.min_samples() {
            return Mel { values: Vec::new(), frames: 0 };
        }
        let bins = self.bank.bins();
        let valid = samples.len() / self.hop;
        // The frame after the valid ones counts and stays zero.
        let mut values = vec![0f32; (valid + 1) * bins];
        let cut = |frame: usize, input: &mut [f32]| self.cut(samples, frame, input);
        self.stft.rows(&mut values[..valid * bins], bins, cut, |spectrum, values| {
            let power: Vec<f32> = spectrum.iter().map(|bin| bin.norm_sqr()).collect();
            self.bank.apply(&power, values);
            values.iter_mut().for_each(|value| *value = (*value + GUARD).ln());
        });
        normalise(&mut values[..valid * bins], bins);
        Mel { values, frames: valid + 1 }
    }

    /// The pre-emphasised samples centred on a frame; silence outside the recording.
    fn cut(&self, samples: &[f32], frame: usize, input: &mut [f32]) {
        let half = self.stft.n_fft() / 2;
        for (n, input) in input.iter_mut().enumerate() {
            let emphasised = (frame * self.hop + n).checked_sub(half).and_then(|at| {
                let before =
                    at.checked_sub(1).map_or(0.0, |before| samples.get(before).copied().unwrap_or(0.0));
                Some(samples.get(at)? - PRE_EMPHASIS * before)
            });
            *input = emphasised.unwrap_or(0.0);
        }
    }
}

/// Every bin of all frames to mean 0 and standard deviation 1.
fn normalise(values: &mut [f32], bins: usize) {
    let frames = (values.len() / bins) as f64;
    let (mut sums, mut squares) = (vec![0f64; bins], vec![0f64; bins]);
    for frame in values.chunks_exact(bins) {
        sums.iter_mut().zip(frame).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    let means: Vec<f64> = sums.iter().map(|sum| sum / frames).collect();
    for frame in values.chunks_exact(bins) {
        let off = frame.iter().zip(&means).map(|(&value, mean)| f64::from(value) - mean);
        squares.iter_mut().zip(off).for_each(|(square, off)| *square += off * off);
    }
    let scales: Vec<f64> =
        squares.iter().map(|square| 1.0 / ((square / (frames - 1.0)).sqrt() + STD_GUARD)).collect();
    for frame in values.chunks_exact_mut(bins) {
        for (value, (mean, scale)) in frame.iter_mut().zip(means.iter().zip(&scales)) {
            *value = ((f64::from(*value) - mean) * scale) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(change: impl FnOnce(&mut serde_json::Value)) -> Result<Config, String> {
        let mut config = serde_json::json!({
            "sample_rate": 16000, "features": 128, "n_fft": 512, "window_size": 0.025, "window_stride": 0.01,
            "window": "hann", "normalize": "per_feature", "log": true, "frame_splicing": 1, "pad_to": 0,
        });
        change(&mut config);
        let config: Config = serde_json::from_value(config).map_err(|error| error.to_string())?;
        config.check().map(|()| config)
    }

    #[test]
    fn unsupported_settings_are_named() {
        for (field, value) in [
            ("window", serde_json::json!("hamming")),
            ("normalize", serde_json::json!("all_features")),
            ("log", serde_json::json!(false)),
            ("frame_splicing", serde_json::json!(2)),
            ("pad_to", serde_json::json!(16)),
        ] {
            let error = config(|config| config[field] = value).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        let error = config(|config| config["window_size"] = serde_json::json!(0.1)).unwrap_err();
        assert!(error.contains("1600 samples"), "{error}");
        let error = config(|config| drop(config.as_object_mut().unwrap().remove("n_fft"))).unwrap_err();
        assert!(error.contains("n_fft"), "{error}");
    }

    #[test]
    fn frames_are_normalised_and_end_in_silence() {
        let front_end = FrontEnd::new(&config(|_| ()).unwrap());
        let samples: Vec<f32> = (0..5000).map(|n| ((n * n % 977) as f32 - 488.0) / 500.0).collect();
        for (count, frames) in [(1279, 0), (1280, 9), (1439, 9), (1440, 10), (5000, 32)] {
            let mel = front_end.frames(&samples[..count]);
            assert_eq!((mel.frames, mel.values.len()), (frames, frames * 128), "{count}");
            if frames == 0 {
                continue;
            }
            let (known, last) = mel.values.split_at((frames - 1) * 128);
            assert!(last.iter().all(|&value| value == 0.0));
            for bin in 0..128 {
                let mean: f32 = known.iter().skip(bin).step_by(128).sum::<f32>() / (frames - 1) as f32;
                assert!(mean.abs() < 1e-3, "{count} [{bin}]: {mean}");
            }
            assert_eq!((mel.rows(), front_end.rows(count)), (frames.div_ceil(8), frames.div_ceil(8)));
        }
        assert!(front_end.frames(&[0.0; 1600]).values.iter().all(|value| value.is_finite()));
    }
}
