//! The front end: recordings to log-mel frames. Knows no tensor. Source: `FilterbankFeatures` of the Python package
//! `nemo-toolkit` 3.0.0.

use std::ops::Range;

use izwi_nn::codec::mel::MelFilterBank;
use izwi_nn::codec::stft::{Stft, hann};

/// Share of a sample that is taken from the next.
const PRE_EMPHASIS: f32 = 0.97;
/// Added to energies under the logarithm: 2⁻²⁴.
const GUARD: f32 = 1.0 / (1 << 24) as f32;
/// Added to standard deviations.
const STD_GUARD: f64 = 1e-5;
/// Mel frames to a row of the encoder.
pub(crate) const FRAMES_PER_ROW: usize = 8;

/// How recordings become frames.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MelShape {
    /// Samples per second.
    pub(crate) rate_hz: usize,
    pub(crate) bins: usize,
    /// Length of the transform, of the window within it, and from one frame to the next, in samples.
    pub(crate) transform: usize,
    pub(crate) window: usize,
    pub(crate) hop: usize,
    /// Whether each bin is brought to mean 0 and standard deviation 1 over the recording.
    pub(crate) is_normalised: bool,
    /// Whether the network sees a frame of zeros after the recording.
    pub(crate) has_silent_frame: bool,
    /// The fewest samples that have frames.
    pub(crate) min_samples: usize,
}

/// Frames of one recording, as the network takes them.
#[derive(Debug, Clone)]
pub(crate) struct Mel {
    /// `[frames, features]`.
    pub(crate) values: Vec<f32>,
    /// Number of frames.
    pub(crate) frames: usize,
}

impl Mel {
    /// Rows of the encoder for these frames.
    pub(crate) fn rows(&self) -> usize {
        self.frames.div_ceil(FRAMES_PER_ROW)
    }

    /// Some of its frames.
    pub(crate) fn part(&self, frames: Range<usize>) -> Self {
        let bins = self.values.len() / self.frames.max(1);
        Self { values: self.values[frames.start * bins..frames.end * bins].to_vec(), frames: frames.len() }
    }
}

/// Turns samples into frames.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    stft: Stft,
    bank: MelFilterBank,
    shape: MelShape,
}

impl FrontEnd {
    /// A front end of a shape whose window fits its transform.
    pub(crate) fn new(shape: MelShape) -> Self {
        let mut window = vec![0f32; shape.transform];
        window[(shape.transform - shape.window) / 2..][..shape.window]
            .copy_from_slice(&hann(shape.window, false));
        let bank = MelFilterBank::new(shape.rate_hz, shape.transform, shape.bins, shape.rate_hz as f64 / 2.0);
        Self { stft: Stft::new(window), bank, shape }
    }

    /// The fewest samples that have frames.
    pub(crate) fn min_samples(&self) -> usize {
        self.shape.min_samples
    }

    /// Rows of the encoder for a recording of `samples` samples.
    pub(crate) fn rows(&self, samples: usize) -> usize {
        if samples < self.shape.min_samples { 0 } else { self.count(samples).div_ceil(FRAMES_PER_ROW) }
    }

    fn count(&self, samples: usize) -> usize {
        samples / self.shape.hop + usize::from(self.shape.has_silent_frame)
    }

    /// Samples at the front end's rate to frames, each recording by itself; empty below [`Self::min_samples`].
    pub(crate) fn frames(&self, samples: &[f32]) -> Mel {
        if samples.len() < self.shape.min_samples {
            return Mel { values: Vec::new(), frames: 0 };
        }
        let (bins, valid) = (self.bank.bins(), samples.len() / self.shape.hop);
        let mut values = self.spectra(samples, 0, 0..valid);
        if self.shape.is_normalised {
            normalise(&mut values, bins);
        }
        let frames = self.count(samples.len());
        values.resize(frames * bins, 0.0);
        Mel { values, frames }
    }

    /// Whether the frames of a recording that grows can be computed as it comes: none depends on the rest of it.
    pub(crate) fn is_local(&self) -> bool {
        !self.shape.is_normalised && !self.shape.has_silent_frame
    }

    /// Frames of the first `samples` samples of a recording, whether or not they are all: what follows changes none of
    /// them.
    pub(crate) fn ready(&self, samples: usize, is_all: bool) -> usize {
        let MelShape { min_samples, hop, window, .. } = self.shape;
        match samples.checked_sub(window / 2) {
            _ if samples < min_samples => 0,
            _ if is_all => samples / hop,
            Some(reached) => reached / hop + 1,
            None => 0,
        }
    }

    /// The samples that frames are made of.
    pub(crate) fn span(&self, frames: &Range<usize>) -> Range<usize> {
        // One more for the emphasis.
        let reach = self.stft.n_fft() / 2 + 1;
        (frames.start * self.shape.hop).saturating_sub(reach)..frames.end * self.shape.hop + reach
    }

    /// Frames of a recording that [is local](Self::is_local), of which `samples` is the part from `offset` on: at least their
    /// [span](Self::span), as far as the recording reaches.
    pub(crate) fn part(&self, samples: &[f32], offset: usize, frames: Range<usize>) -> Mel {
        Mel { values: self.spectra(samples, offset, frames.clone()), frames: frames.len() }
    }

    fn spectra(&self, samples: &[f32], offset: usize, frames: Range<usize>) -> Vec<f32> {
        let bins = self.bank.bins();
        let mut values = vec![0f32; frames.len() * bins];
        let cut = |frame: usize, input: &mut [f32]| self.cut(samples, offset, frames.start + frame, input);
        self.stft.rows(&mut values, bins, cut, |spectrum, values| {
            let power: Vec<f32> = spectrum.iter().map(|bin| bin.norm_sqr()).collect();
            self.bank.apply(&power, values);
            values.iter_mut().for_each(|value| *value = (*value + GUARD).ln());
        });
        values
    }

    /// The pre-emphasised samples centred on a frame; silence outside the samples, of which the first is at `offset`.
    fn cut(&self, samples: &[f32], offset: usize, frame: usize, input: &mut [f32]) {
        let first = offset + self.stft.n_fft() / 2;
        for (n, input) in input.iter_mut().enumerate() {
            let emphasised = (frame * self.shape.hop + n).checked_sub(first).and_then(|at| {
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
        squares.iter().map(|square| 1.0 / ((square / (frames - 1.0).max(1.0)).sqrt() + STD_GUARD)).collect();
    for frame in values.chunks_exact_mut(bins) {
        for (value, (mean, scale)) in frame.iter_mut().zip(means.iter().zip(&scales)) {
            *value = ((f64::from(*value) - mean) * scale) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_normalised_and_end_in_silence() {
        let front_end = FrontEnd::new(MelShape {
            rate_hz: 16_000,
            bins: 128,
            transform: 512,
            window: 400,
            hop: 160,
            is_normalised: true,
            has_silent_frame: true,
            min_samples: 1_280,
        });
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
