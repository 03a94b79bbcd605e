//! From spectral heads and pitch to samples: pulses, their transform, shaping, and the inverse transform.
//!
//! Owns the signal processing of hibari-tts 0.2.1; knows no tensor.

use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{ComplexToReal, FftError, RealFftPlanner, RealToComplex};

use super::network::{BINS, HEAD_VALUES};
use izwi_kernels::spectrum::{SpectralFilter, SpectrumHeads};
use izwi_nn::codec::stft::hann;

/// Samples a second of what comes out.
pub(super) const SAMPLE_RATE_HZ: u32 = 24_000;
/// Points of the transform.
const FFT: usize = 1200;
/// Samples of a frame of 12.5 ms.
pub(super) const HOP: usize = 300;
const FRAMES_PER_WINDOW: usize = FFT / HOP;
/// Pitch up to here is unvoiced.
const VOICED_ABOVE_HZ: f32 = 40.0;
/// Harmonics reach up to here.
const HARMONICS_BELOW_HZ: f32 = 11_000.0;
/// Where |2 sin(t/2)| is this small, the pulse takes its limit.
const SINGULAR: f32 = 2e-3;
/// Log magnitudes are cut here.
const MAX_LOG_MAGNITUDE: f32 = 7.0;
/// Least sum of squared windows to divide by.
const MIN_WINDOW_SUM: f32 = 1e-11;

/// Plans and windows, shared by all syntheses.
pub(super) struct Synthesiser {
    forward: Arc<dyn RealToComplex<f32>>,
    inverse: Arc<dyn ComplexToReal<f32>>,
    window: Vec<f32>,
}

impl std::fmt::Debug for Synthesiser {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Synthesiser").finish_non_exhaustive()
    }
}

impl Synthesiser {
    pub(super) fn new() -> Self {
        let mut planner = RealFftPlanner::new();
        Self {
            forward: planner.plan_fft_forward(FFT),
            inverse: planner.plan_fft_inverse(FFT),
            window: hann(FFT, true),
        }
    }

    /// `heads` `[frames, HEAD_VALUES]` and the pitch of each frame to `frames * HOP` samples.
    /// `noise` fills in the real and imaginary parts of the noise of a frame.
    pub(super) fn synthesise(
        &self,
        heads: &[f32],
        pitch_hz: &[f32],
        noise: impl Fn(usize, [&mut [f32]; 2]),
    ) -> Result<Vec<f32>, FftError> {
        let frames = pitch_hz.len();
        let source = reflect(&pulses(pitch_hz), FFT / 2);
        let mut spectrum = self.forward.make_output_vec();
        let mut samples = self.forward.make_input_vec();
        let mut shaping = SpectralFilter::new(BINS);
        let [mut real, mut imaginary] = [vec![0f32; BINS], vec![0f32; BINS]];
        let mut sum = vec![0f32; (frames + FRAMES_PER_WINDOW - 1) * HOP];
        for (frame, heads) in heads.chunks_exact(HEAD_VALUES).take(frames).enumerate() {
            let windowed = source[frame * HOP..].iter().zip(&self.window);
            samples.iter_mut().zip(windowed).for_each(|(out, (x, w))| *out = x * (w / (FFT / 4) as f32));
            self.forward.process(&mut samples, &mut spectrum)?;
            noise(frame, [&mut real, &mut imaginary]);
            shape(&mut spectrum, heads, [&real, &imaginary], &mut shaping);
            self.inverse.process(&mut spectrum, &mut samples)?;
            let target = sum[frame * HOP..][..FFT].iter_mut();
            let windowed = samples.iter().zip(&self.window);
            target.zip(windowed).for_each(|(out, (x, w))| *out += x * (1.0 / FFT as f32) * w);
        }
        self.normalise(&mut sum, frames);
        Ok(sum[FFT / 2..][..frames * HOP].to_vec())
    }

    /// Divides each sample by the squared windows that cover it.
    fn normalise(&self, sum: &mut [f32], frames: usize) {
        for (block, samples) in sum.chunks_exact_mut(HOP).enumerate() {
            let covering = (0..FRAMES_PER_WINDOW).filter(|part| (*part..frames + part).contains(&block));
            let parts: Vec<&[f32]> = covering.map(|part| &self.window[part * HOP..][..HOP]).collect();
            for (at, sample) in samples.iter_mut().enumerate() {
                let weight: f32 = parts.iter().map(|window| window[at] * window[at]).sum();
                *sample /= weight.max(MIN_WINDOW_SUM);
            }
        }
    }
}

/// S = e^lh · e^(iπ·tanh θ) · S + e^ln · Z + e^lr · e^(iφ), in place.
fn shape(spectrum: &mut [Complex32], heads: &[f32], noise: [&[f32]; 2], shaping: &mut SpectralFilter) {
    let head = |index: usize| &heads[index * BINS..][..BINS];
    let [gain, turn, breath, added, phase] = [0, 1, 2, 3, 4].map(head);
    shaping.shape(&SpectrumHeads { gain, turn, noise: breath, added, phase, most: MAX_LOG_MAGNITUDE }, noise);
    let complex = |parts: &[Vec<f32>; 2], bin: usize| Complex32::new(parts[0][bin], parts[1][bin]);
    for (bin, value) in spectrum.iter_mut().enumerate() {
        *value = *value * complex(&shaping.gain, bin) + complex(&shaping.added, bin);
    }
    // A real signal has no imaginary part in its first and last bin.
    for edge in [0, BINS - 1] {
        spectrum[edge].im = 0.0;
    }
}

/// All harmonics of the pitch below [`HARMONICS_BELOW_HZ`] at unit amplitude, `[frames * HOP]`; zero where unvoiced.
fn pulses(pitch_hz: &[f32]) -> Vec<f32> {
    let mut turns = 0f64; // f64: the phase of a minute must stay exact to a sample
    let mut pulses = Vec::with_capacity(pitch_hz.len() * HOP);
    for sample in 0..pitch_hz.len() * HOP {
        let pitch = pitch_at(pitch_hz, sample);
        let held = pitch.max(VOICED_ABOVE_HZ);
        turns += f64::from(held);
        if pitch <= VOICED_ABOVE_HZ {
            pulses.push(0.0);
            continue;
        }
        let phase = ((turns / f64::from(SAMPLE_RATE_HZ)).fract() * std::f64::consts::TAU) as f32;
        let order = (HARMONICS_BELOW_HZ / held).floor() + 0.5;
        let below = 2.0 * (0.5 * phase).sin();
        let ratio = if below.abs() <= SINGULAR { order } else { (order * phase).sin() / below };
        pulses.push(ratio - 0.5);
    }
    pulses
}

/// Linear between frame centres, held before the first and after the last.
fn pitch_at(pitch_hz: &[f32], sample: usize) -> f32 {
    let (frame, within) = (sample / HOP, (sample % HOP) as f32 + 0.5);
    let last = pitch_hz.len() - 1;
    let (before, weight) = if sample % HOP < HOP / 2 {
        (frame.saturating_sub(1), within / HOP as f32 + 0.5)
    } else {
        (frame, within / HOP as f32 - 0.5)
    };
    let after = if sample % HOP < HOP / 2 { frame } else { (frame + 1).min(last) };
    pitch_hz[before] * (1.0 - weight) + pitch_hz[after] * weight
}

/// `x` with `pad` mirrored samples on both sides, the edge samples not repeated.
fn reflect(x: &[f32], pad: usize) -> Vec<f32> {
    let period = 2 * (x.len().max(2) - 1);
    let mirrored = |at: usize| {
        // `at` counts from the left end of the padding; two periods keep the difference positive.
        let folded = (at + period * (pad / period + 1) - pad) % period;
        x.get(folded.min(period - folded)).copied().unwrap_or(0.0)
    };
    (0..x.len() + 2 * pad).map(mirrored).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reflection_mirrors_without_repeating_the_edge() {
        assert_eq!(reflect(&[1.0, 2.0, 3.0], 2), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0, 1.0]);
        assert_eq!(reflect(&[1.0, 2.0], 3), [2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0]);
        assert_eq!(reflect(&[], 1), [0.0, 0.0]);
    }

    #[test]
    fn a_steady_pitch_pulses_at_its_rate() {
        let pulses = pulses(&[200.0; 20]);
        let peaks: Vec<usize> = (0..pulses.len()).filter(|&at| pulses[at] > 40.0).collect();
        assert!(peaks.windows(2).all(|pair| pair[1] - pair[0] == 120), "{peaks:?}");
        assert_eq!(peaks.len(), 20 * HOP / 120);
    }

    #[test]
    fn unvoiced_frames_carry_no_pulse() {
        assert!(pulses(&[0.0, -5.0, 40.0]).iter().all(|&x| x == 0.0));
    }

    #[test]
    fn the_transform_pair_returns_what_went_in() {
        let pitch = [150.0; 12];
        let mut frame = vec![-40.0; HEAD_VALUES];
        frame[..2 * BINS].fill(0.0);
        let heads: Vec<f32> = std::iter::repeat_n(frame, pitch.len()).flatten().collect();
        let samples = Synthesiser::new().synthesise(&heads, &pitch, |_, _| ()).unwrap();
        let expected = pulses(&pitch);
        for at in FFT..samples.len() - FFT {
            assert!((samples[at] * HOP as f32 - expected[at]).abs() < 1e-2, "{at}");
        }
    }
}
