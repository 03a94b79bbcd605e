//! Mel filter banks, and log-mel frames of magnitudes as vocoders take them: no centring, reflected at both ends.
//!
//! Works on host memory; knows no tensor.

use super::stft::{Stft, hann};

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

/// Turns samples into log-mel frames.
#[derive(Debug)]
pub struct MelSpectrum {
    shape: MelShape,
    stft: Stft,
    bank: MelFilterBank,
}

impl MelSpectrum {
    /// A spectrum with a periodic Hann window.
    pub fn new(shape: MelShape) -> Self {
        let MelShape { sample_rate_hz, transform, bins, top_hz, .. } = shape;
        Self {
            stft: Stft::new(hann(transform, true)),
            bank: MelFilterBank::new(sample_rate_hz, transform, bins, top_hz),
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
        self.stft.rows(
            &mut values,
            bins,
            |frame, input| input.copy_from_slice(&padded[frame * hop..][..transform]),
            |spectrum, values| {
                let magnitude: Vec<f32> =
                    spectrum.iter().map(|bin| (bin.norm_sqr() + self.shape.under_root).sqrt()).collect();
                self.bank.apply(&magnitude, values);
                values.iter_mut().for_each(|value| *value = value.max(self.shape.floor).ln());
            },
        );
        values
    }
}

/// A bank of triangular filters on Slaney's mel scale, each of unit area: librosa's `filters.mel`,
/// <https://librosa.org/doc/0.10.2/generated/librosa.filters.mel.html> (`htk=False`, `norm="slaney"`).
#[derive(Debug)]
pub struct MelFilterBank {
    filters: Vec<Filter>,
}

/// One triangle: the weights of neighbouring spectral bins, zeros left out.
#[derive(Debug)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

impl MelFilterBank {
    /// `bins` filters from 0 Hz to `top_hz` over the `n_fft / 2 + 1` bins of a spectrum.
    pub fn new(sample_rate_hz: usize, n_fft: usize, bins: usize, top_hz: f64) -> Self {
        let top = hz_to_mel(top_hz);
        let edges: Vec<f64> = (0..bins + 2).map(|i| mel_to_hz(top * i as f64 / (bins + 1) as f64)).collect();
        let hz = |bin: usize| (bin * sample_rate_hz) as f64 / n_fft as f64;
        let filter = |edges: &[f64]| {
            let weight = |bin: usize| {
                let rising = (hz(bin) - edges[0]) / (edges[1] - edges[0]);
                let falling = (edges[2] - hz(bin)) / (edges[2] - edges[1]);
                (rising.min(falling).max(0.0) * 2.0 / (edges[2] - edges[0])) as f32
            };
            let all: Vec<f32> = (0..n_fft / 2 + 1).map(weight).collect();
            let first = all.iter().position(|&w| w > 0.0).unwrap_or(0);
            let last = all.iter().rposition(|&w| w > 0.0).unwrap_or(0);
            Filter { first, weights: all[first..=last].to_vec() }
        };
        Self { filters: edges.windows(3).map(filter).collect() }
    }

    /// Number of filters.
    pub fn bins(&self) -> usize {
        self.filters.len()
    }

    /// The weighted sums of a spectrum `[n_fft / 2 + 1]`: `[bins]`.
    pub fn apply(&self, spectrum: &[f32], mel: &mut [f32]) {
        for (value, Filter { first, weights }) in mel.iter_mut().zip(&self.filters) {
            let part = &spectrum[*first..][..weights.len()];
            *value = weights.iter().zip(part).map(|(weight, value)| weight * value).sum();
        }
    }
}

/// Slaney's scale is linear below 1 kHz and logarithmic above.
const LINEAR_HZ: f64 = 200.0 / 3.0;
const BREAK_HZ: f64 = 1000.0;
const BREAK_MEL: f64 = BREAK_HZ / LINEAR_HZ;

fn log_step() -> f64 {
    6.4f64.ln() / 27.0
}

/// Position of a frequency on Slaney's scale, in mel.
pub fn hz_to_mel(hz: f64) -> f64 {
    if hz < BREAK_HZ { hz / LINEAR_HZ } else { BREAK_MEL + (hz / BREAK_HZ).ln() / log_step() }
}

fn mel_to_hz(mel: f64) -> f64 {
    if mel < BREAK_MEL { mel * LINEAR_HZ } else { BREAK_HZ * ((mel - BREAK_MEL) * log_step()).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_have_unit_area_and_cover_the_spectrum() {
        for bins in [80, 128] {
            let bank = MelFilterBank::new(16_000, 400, bins, 8000.0);
            assert_eq!(bank.bins(), bins);
            // 40 Hz apart: a triangle much wider than that sums to its area.
            for filter in &bank.filters[bins - 20..] {
                let area = filter.weights.iter().sum::<f32>() * 40.0;
                assert!((area - 1.0).abs() < 0.02, "{area}");
            }
            assert!(bank.filters.iter().all(|filter| filter.weights.iter().any(|&w| w > 0.0)));
        }
    }

    #[test]
    fn a_tone_peaks_in_its_bin_and_short_input_is_empty() {
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
            let expected = hz_to_mel(hz) / hz_to_mel(12_000.0) * 129.0 - 1.0;
            assert!((loudest as f64 - expected).abs() <= 1.0, "{hz}: {loudest} {expected}");
        }
    }
}
