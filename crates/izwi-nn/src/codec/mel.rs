//! Log-mel frames of magnitudes, as vocoders take them: no centring, a mirrored margin at both ends.

use std::sync::Arc;

use rayon::prelude::*;
use realfft::{RealFftPlanner, RealToComplex};

/// Frames one rayon task computes.
const CHUNK_FRAMES: usize = 32;

/// Sizes and constants of a spectrum.
#[derive(Debug, Clone, Copy)]
pub struct MelShape {
    /// Rate of the samples, in Hz.
    pub sample_rate_hz: usize,
    /// Samples of one transform and its window.
    pub transform: usize,
    /// Samples from one frame to the next.
    pub hop: usize,
    /// Mel bins, from 0 Hz to `top_hz`.
    pub bins: usize,
    /// Upper edge of the last bin.
    pub top_hz: f64,
    /// Added to the squared magnitude under the root.
    pub under_root: f32,
    /// Smaller values are raised to this before the logarithm.
    pub floor: f32,
}

/// Turns samples into mel frames.
pub struct MelSpectrum {
    shape: MelShape,
    fft: Arc<dyn RealToComplex<f32>>,
    hann: Vec<f32>,
    filters: Vec<Filter>,
}

impl std::fmt::Debug for MelSpectrum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MelSpectrum").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// One triangle of a bank: the weights of neighbouring spectral bins, zeros left out.
#[derive(Debug)]
pub struct Filter {
    first: usize,
    weights: Vec<f32>,
}

impl Filter {
    /// The weighted sum of a spectrum.
    pub fn energy(&self, spectrum: &[f32]) -> f32 {
        let part = &spectrum[self.first..][..self.weights.len()];
        self.weights.iter().zip(part).map(|(weight, value)| weight * value).sum()
    }
}

impl MelSpectrum {
    /// With a periodic Hann window and triangles on Slaney's scale.
    pub fn new(shape: MelShape) -> Self {
        let turn = std::f64::consts::TAU / shape.transform as f64;
        let hann = |n: usize| (0.5 - 0.5 * (turn * n as f64).cos()) as f32;
        Self {
            fft: RealFftPlanner::new().plan_fft_forward(shape.transform),
            hann: (0..shape.transform).map(hann).collect(),
            filters: bank(shape.sample_rate_hz, shape.transform, shape.bins, shape.top_hz),
            shape,
        }
    }

    /// Samples mirrored at each end.
    fn margin(&self) -> usize {
        (self.shape.transform - self.shape.hop) / 2
    }

    /// The fewest samples a frame can be made of.
    pub fn min_samples(&self) -> usize {
        // The margin mirrors around the outermost sample, which is not repeated.
        (self.margin() + 1).max(self.shape.hop)
    }

    /// `ln` of the mel magnitudes, `[frames, bins]`; empty below [`Self::min_samples`].
    pub fn frames(&self, samples: &[f32]) -> Vec<f32> {
        let MelShape { transform, hop, bins, .. } = self.shape;
        let (margin, count) = (self.margin(), samples.len());
        if count < self.min_samples() {
            return Vec::new();
        }
        let mirrored = (1..=margin).rev().map(|at| samples[at]);
        let mirrored = mirrored.chain(samples.iter().copied());
        let padded: Vec<f32> = mirrored.chain((1..=margin).map(|at| samples[count - 1 - at])).collect();
        let frames = padded.len().saturating_sub(transform) / hop + 1;
        let mut values = vec![0f32; frames * bins];
        values.par_chunks_mut(CHUNK_FRAMES * bins).enumerate().for_each(|(chunk, values)| {
            let mut input = vec![0f32; transform];
            let mut spectrum = self.fft.make_output_vec();
            let mut scratch = self.fft.make_scratch_vec();
            for (offset, values) in values.chunks_exact_mut(bins).enumerate() {
                let samples = &padded[(chunk * CHUNK_FRAMES + offset) * hop..][..transform];
                input.iter_mut().zip(samples).zip(&self.hann).for_each(|((x, s), hann)| *x = s * hann);
                // Fails only for buffers of another length; these are made by the transform itself.
                if self.fft.process_with_scratch(&mut input, &mut spectrum, &mut scratch).is_err() {
                    continue;
                }
                let magnitude: Vec<f32> =
                    spectrum.iter().map(|bin| (bin.norm_sqr() + self.shape.under_root).sqrt()).collect();
                for (value, filter) in values.iter_mut().zip(&self.filters) {
                    *value = filter.energy(&magnitude).max(self.shape.floor).ln();
                }
            }
        });
        values
    }
}

/// `bins` triangles of unit area from 0 Hz to `top_hz`, for spectra of transforms of `transform` samples:
/// <https://librosa.org/doc/0.10.2/generated/librosa.filters.mel.html> (`norm="slaney"`).
pub fn bank(sample_rate_hz: usize, transform: usize, bins: usize, top_hz: f64) -> Vec<Filter> {
    let top = mel_of(top_hz);
    let edges: Vec<f64> = (0..bins + 2).map(|i| hz_of(top * i as f64 / (bins + 1) as f64)).collect();
    let hz = |bin: usize| (bin * sample_rate_hz) as f64 / transform as f64;
    let filter = |edges: &[f64]| {
        let weight = |bin: usize| {
            let rising = (hz(bin) - edges[0]) / (edges[1] - edges[0]);
            let falling = (edges[2] - hz(bin)) / (edges[2] - edges[1]);
            (rising.min(falling).max(0.0) * 2.0 / (edges[2] - edges[0])) as f32
        };
        let all: Vec<f32> = (0..transform / 2 + 1).map(weight).collect();
        let first = all.iter().position(|&w| w > 0.0).unwrap_or(0);
        let last = all.iter().rposition(|&w| w > 0.0).unwrap_or(0);
        Filter { first, weights: all[first..=last].to_vec() }
    };
    edges.windows(3).map(filter).collect()
}

/// Slaney's scale is linear below 1 kHz and logarithmic above.
const LINEAR_HZ: f64 = 200.0 / 3.0;
const BREAK_HZ: f64 = 1000.0;
const BREAK_MEL: f64 = BREAK_HZ / LINEAR_HZ;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

fn mel_of(hz: f64) -> f64 {
    if hz < BREAK_HZ { hz / LINEAR_HZ } else { BREAK_MEL + (hz / BREAK_HZ).ln() / log_step() }
}

fn hz_of(mel: f64) -> f64 {
    if mel < BREAK_MEL { mel * LINEAR_HZ } else { BREAK_HZ * ((mel - BREAK_MEL) * log_step()).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_lands_in_its_bin_and_short_input_is_empty() {
        let shape = MelShape {
            sample_rate_hz: 24_000,
            transform: 1024,
            hop: 256,
            bins: 128,
            top_hz: 12_000.0,
            under_root: 1e-9,
            floor: 1e-5,
        };
        let spectrum = MelSpectrum::new(shape);
        assert!(spectrum.frames(&vec![0.0; spectrum.min_samples() - 1]).is_empty());
        assert_eq!(spectrum.frames(&vec![0.0; spectrum.min_samples()]).len(), 128);
        for hz in [500.0, 3000.0, 9000.0] {
            let tone = |n: usize| (std::f64::consts::TAU * hz * n as f64 / 24_000.0).sin() as f32;
            let frames = spectrum.frames(&(0..12_000).map(tone).collect::<Vec<_>>());
            assert_eq!(frames.len() / 128, (12_000 + 768 - 1024) / 256 + 1);
            let frame = &frames[20 * 128..][..128];
            let loudest = (0..128).max_by(|&a, &b| frame[a].total_cmp(&frame[b])).unwrap();
            let expected = mel_of(hz) / mel_of(12_000.0) * 129.0 - 1.0;
            assert!((loudest as f64 - expected).abs() <= 1.0, "{hz}: {loudest} {expected}");
        }
    }
}
