//! Pitch to the spectrum of a harmonic source, and spectra to samples. Knows no tensor.
//!
//! The signal processing of the package `kokoro` 0.9.4, `istftnet.py`.

use std::f64::consts::TAU;

use rayon::prelude::*;

use super::config::GeneratorConfig;
use izwi_nn::codec::stft::hann;

/// Rate of the output, in Hz.
pub(super) const SAMPLE_RATE_HZ: u32 = 24_000;
/// The fundamental and its overtones.
pub(super) const HARMONICS: usize = 9;
/// Amplitude of a harmonic.
const AMPLITUDE: f32 = 0.1;
/// Deviation of the noise where there is a pitch.
const VOICED_NOISE: f32 = 0.003;
/// Pitch up to this is unvoiced.
const VOICED_ABOVE_HZ: f32 = 10.0;
/// Frames of a parallel task.
const CHUNK_FRAMES: usize = 256;
/// Least sum of squared windows to divide by.
const MIN_WINDOW_SUM: f32 = 1e-11;

/// Transforms of one size, and how harmonics are mixed.
#[derive(Debug)]
pub(super) struct Waveform {
    /// Weight of each harmonic, and a constant.
    mix: [f32; HARMONICS],
    bias: f32,
    frame: usize,
    hop: usize,
    n_fft: usize,
    window: Vec<f32>,
    /// Cosine and sine of sample times bin, `[n_fft, bins]`.
    forward: [Vec<f32>; 2],
    /// The same, `[bins, n_fft]`.
    inverse: [Vec<f32>; 2],
}

impl Waveform {
    /// With the weights that mix the harmonics.
    pub(super) fn new(config: &GeneratorConfig, mix: [f32; HARMONICS], bias: f32) -> Self {
        let n_fft = config.gen_istft_n_fft;
        let bins = n_fft / 2 + 1;
        let wave = |of: fn(f64) -> f64, width: usize| {
            let turn = |at: usize| ((at / width) * (at % width) % n_fft) as f64 / n_fft as f64 * TAU;
            (0..bins * n_fft).map(|at| of(turn(at)) as f32).collect()
        };
        Self {
            mix,
            bias,
            frame: config.samples_per_contour_frame(),
            hop: config.gen_istft_hop_size,
            n_fft,
            window: hann(n_fft, true),
            forward: [wave(f64::cos, bins), wave(f64::sin, bins)],
            inverse: [wave(f64::cos, n_fft), wave(f64::sin, n_fft)],
        }
    }

    /// Bins of a spectrum.
    pub(super) fn bins(&self) -> usize {
        self.n_fft / 2 + 1
    }

    /// How much of a sample's noise the mixed harmonics have: the noise of each is drawn alone.
    pub(super) fn noise_gain(&self) -> f32 {
        self.mix.iter().map(|weight| weight * weight).sum::<f32>().sqrt()
    }

    /// The harmonics of a pitch, mixed: `frames * samples_per_contour_frame` samples. `noise` has the mixed noise of each
    /// sample at deviation 1.
    pub(super) fn source(&self, pitch_hz: &[f32], noise: &[f32]) -> Vec<f32> {
        // Turns of the fundamental and the overtones at the centre of each frame; f64, because they grow with time.
        let mut turns = Vec::with_capacity(pitch_hz.len());
        let mut turned = [0f64; HARMONICS];
        for pitch in pitch_hz {
            for (harmonic, turned) in turned.iter_mut().enumerate() {
                let step = f64::from(pitch * (harmonic + 1) as f32 / SAMPLE_RATE_HZ as f32);
                *turned += step.rem_euclid(1.0);
            }
            turns.push(turned);
        }
        let last = pitch_hz.len().saturating_sub(1);
        let mut samples = vec![0f32; (pitch_hz.len() * self.frame).min(noise.len())];
        samples.par_chunks_mut(self.frame).enumerate().for_each(|(at, samples)| {
            let is_voiced = pitch_hz[at] > VOICED_ABOVE_HZ;
            let deviation = if is_voiced { VOICED_NOISE } else { AMPLITUDE / 3.0 };
            let first = at * self.frame;
            for (offset, (value, noise)) in samples.iter_mut().zip(&noise[first..]).enumerate() {
                let mut mixed = 0.0;
                if is_voiced {
                    let place = (((first + offset) as f64 + 0.5) / self.frame as f64 - 0.5).max(0.0);
                    let (before, weight) = (place as usize, place.fract());
                    let (from, to) = (&turns[before.min(last)], &turns[(before + 1).min(last)]);
                    for (harmonic, mix) in self.mix.iter().enumerate() {
                        let turns = from[harmonic] + (to[harmonic] - from[harmonic]) * weight;
                        mixed += mix * sine(turns * self.frame as f64);
                    }
                }
                *value = (mixed * AMPLITUDE + deviation * noise + self.bias).tanh();
            }
        });
        samples
    }

    /// Magnitudes and phases of each frame of `samples`, `[frames, 2 * bins]`: one frame more than hops.
    pub(super) fn spectra(&self, samples: &[f32]) -> Vec<f32> {
        let (bins, pad) = (self.bins(), self.n_fft / 2);
        let frames = samples.len() / self.hop + 1;
        let mut spectra = vec![0f32; frames * 2 * bins];
        let own = CHUNK_FRAMES * 2 * bins;
        spectra.par_chunks_mut(own).enumerate().for_each(|(chunk, spectra)| {
            let (mut real, mut imaginary) = (vec![0f32; bins], vec![0f32; bins]);
            for (offset, spectrum) in spectra.chunks_exact_mut(2 * bins).enumerate() {
                real.fill(0.0);
                imaginary.fill(0.0);
                let first = ((chunk * CHUNK_FRAMES + offset) * self.hop) as isize - pad as isize;
                let [cosines, sines] = self.forward.each_ref().map(|wave| wave.chunks_exact(bins));
                let waves = cosines.zip(sines).zip(&self.window);
                for (at, ((cosines, sines), window)) in waves.enumerate() {
                    let x = window * mirrored(samples, first + at as isize);
                    real.iter_mut().zip(cosines).for_each(|(real, cosine)| *real += x * cosine);
                    imaginary.iter_mut().zip(sines).for_each(|(part, sine)| *part -= x * sine);
                }
                // A real signal has no imaginary part in its first and last bin.
                imaginary[0] = 0.0;
                imaginary[bins - 1] = 0.0;
                let (magnitudes, phases) = spectrum.split_at_mut(bins);
                for (bin, (magnitude, phase)) in magnitudes.iter_mut().zip(phases).enumerate() {
                    *magnitude = real[bin].hypot(imaginary[bin]);
                    *phase = imaginary[bin].atan2(real[bin]);
                }
            }
        });
        spectra
    }

    /// Log magnitudes and sines of phases `[frames, 2 * bins]` to `(frames - 1) * hop` samples.
    pub(super) fn synthesise(&self, spectra: &[f32]) -> Vec<f32> {
        let (bins, n_fft, hop) = (self.bins(), self.n_fft, self.hop);
        let frames = spectra.len() / (2 * bins);
        let length = frames.saturating_sub(1) * hop;
        let mut sums = vec![0f32; length + n_fft];
        let mut weights = vec![0f32; length + n_fft];
        let mut parts = vec![0f32; frames * n_fft];
        let spectra = spectra.par_chunks(CHUNK_FRAMES * 2 * bins);
        parts.par_chunks_mut(CHUNK_FRAMES * n_fft).zip(spectra).for_each(|(parts, spectra)| {
            for (part, spectrum) in parts.chunks_exact_mut(n_fft).zip(spectra.chunks_exact(2 * bins)) {
                let [cosines, sines] = self.inverse.each_ref().map(|wave| wave.chunks_exact(n_fft));
                for (bin, (cosines, sines)) in cosines.zip(sines).enumerate() {
                    let (magnitude, phase) = (spectrum[bin].exp(), spectrum[bins + bin].sin());
                    let is_edge = bin == 0 || bin + 1 == bins;
                    let scale = magnitude * if is_edge { 1.0 } else { 2.0 } / n_fft as f32;
                    let (real, imaginary) =
                        (scale * phase.cos(), if is_edge { 0.0 } else { scale * phase.sin() });
                    for (sample, (cosine, sine)) in part.iter_mut().zip(cosines.iter().zip(sines)) {
                        *sample += real * cosine - imaginary * sine;
                    }
                }
                part.iter_mut().zip(&self.window).for_each(|(sample, window)| *sample *= window);
            }
        });
        for (at, part) in parts.chunks_exact(n_fft).enumerate() {
            let places = sums[at * hop..].iter_mut().zip(&mut weights[at * hop..]);
            for ((sum, weight), (sample, window)) in places.zip(part.iter().zip(&self.window)) {
                *sum += sample;
                *weight += window * window;
            }
        }
        let inner = n_fft / 2..n_fft / 2 + length;
        let normalised = sums[inner.clone()].iter().zip(&weights[inner]);
        normalised.map(|(sum, weight)| sum / weight.max(MIN_WINDOW_SUM)).collect()
    }
}

/// Exact to f32 for any number of turns.
fn sine(turns: f64) -> f32 {
    ((turns.fract() * TAU) as f32).sin()
}

/// The value at `at`, mirrored at the outermost ones, which are not repeated.
fn mirrored(samples: &[f32], at: isize) -> f32 {
    let last = samples.len().saturating_sub(1);
    let at = at.unsigned_abs();
    let at = if at > last { (2 * last).saturating_sub(at) } else { at };
    samples.get(at).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waveform() -> Waveform {
        let config = GeneratorConfig {
            upsample_kernel_sizes: vec![20, 12],
            upsample_rates: vec![10, 6],
            gen_istft_hop_size: 5,
            gen_istft_n_fft: 20,
            resblock_dilation_sizes: vec![vec![1]],
            resblock_kernel_sizes: vec![3],
            upsample_initial_channel: 512,
        };
        let mut mix = [0.0; HARMONICS];
        mix[0] = 1.0;
        Waveform::new(&config, mix, 0.0)
    }

    #[test]
    fn spectra_of_samples_give_as_many_samples() {
        let waveform = waveform();
        let samples: Vec<f32> = (0..600).map(|at| (at as f32 * 0.37).sin() + 0.2).collect();
        let mut spectra = waveform.spectra(&samples);
        for spectrum in spectra.chunks_exact_mut(2 * waveform.bins()) {
            let (magnitudes, phases) = spectrum.split_at_mut(waveform.bins());
            magnitudes.iter_mut().for_each(|magnitude| *magnitude = magnitude.ln());
            // The network gives the sine of a value: only phases of at most 1 can be asked for.
            phases.iter_mut().for_each(|phase| *phase = phase.clamp(-1.0, 1.0).asin());
        }
        assert_eq!(waveform.synthesise(&spectra).len(), samples.len());
    }

    #[test]
    fn a_steady_pitch_is_a_sine_and_silence_has_none() {
        let waveform = waveform();
        let noise = vec![0.0; 20 * 300];
        let source = waveform.source(&[240.0; 20], &noise);
        let crossings = source.windows(2).filter(|pair| pair[0] < 0.0 && pair[1] >= 0.0).count();
        // The phase is held before the centre of the first frame and after that of the last.
        assert!((56..=58).contains(&crossings), "{crossings}");
        assert!(source.iter().all(|x| x.abs() <= 0.1));
        assert!(waveform.source(&[0.0; 20], &noise).iter().all(|x| *x == 0.0));
    }
}
