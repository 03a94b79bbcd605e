//! Samples to log-mel energies as Kaldi computes them: frames of 25 ms every 10 ms, Hamming windows, pre-emphasis, no dither;
//! the mean of each bin over all frames is taken from it. Knows no tensor.
//!
//! Source: `compute-fbank-feats` of Kaldi with the options of <https://github.com/wenet-e2e/wespeaker>.

use std::f64::consts::TAU;

use izwi_nn::codec::stft::Stft;

/// Samples of a frame, from one frame to the next, and of its transform.
const WINDOW: usize = 400;
pub(super) const HOP: usize = 160;
const TRANSFORM: usize = 512;
/// Rate of the samples, in Hz.
const RATE_HZ: f64 = 16_000.0;
/// Lower edge of the first bin and upper edge of the last, in Hz.
const EDGES_HZ: [f64; 2] = [20.0, 8_000.0];
/// Share of a sample that is taken from the next.
const PRE_EMPHASIS: f32 = 0.97;
/// Samples are 16-bit integers there.
const SCALE: f32 = 32_768.0;
/// The smallest energy, which silence has.
pub(super) const FLOOR: f32 = f32::EPSILON;

/// Turns samples into frames.
#[derive(Debug)]
pub(super) struct Fbank {
    stft: Stft,
    /// Of each bin, the first point of the spectrum and the weights from there on.
    bank: Vec<(usize, Vec<f32>)>,
}

fn mel(hz: f64) -> f64 {
    1127.0 * (1.0 + hz / 700.0).ln()
}

impl Fbank {
    /// Frames of `bins` bins.
    pub(super) fn new(bins: usize) -> Self {
        let hamming = |n: usize| 0.54 - 0.46 * (TAU * n as f64 / (WINDOW - 1) as f64).cos();
        let window = (0..TRANSFORM).map(|n| if n < WINDOW { hamming(n) as f32 } else { 0.0 });
        let [low, high] = EDGES_HZ.map(mel);
        let step = (high - low) / (bins + 1) as f64;
        let triangle = |bin: usize| {
            let left = low + bin as f64 * step;
            let weight = |point: usize| {
                let up = (mel(point as f64 * RATE_HZ / TRANSFORM as f64) - left) / step;
                up.min(2.0 - up).max(0.0) as f32
            };
            let weights: Vec<f32> = (0..TRANSFORM / 2).map(weight).collect();
            let first = weights.iter().position(|&weight| weight > 0.0).unwrap_or(0);
            let last = weights.iter().rposition(|&weight| weight > 0.0).map_or(first, |last| last + 1);
            (first, weights[first..last].to_vec())
        };
        Self { stft: Stft::new(window.collect()), bank: (0..bins).map(triangle).collect() }
    }

    /// The frames that lie wholly inside `samples`, `[frames, bins]`.
    pub(super) fn frames(&self, samples: &[f32]) -> Vec<f32> {
        let bins = self.bank.len();
        let mut values = self.energies(samples);
        let count = values.len() / bins;
        for bin in 0..bins {
            let sum: f64 = values.iter().skip(bin).step_by(bins).map(|&value| f64::from(value)).sum();
            let mean = (sum / count.max(1) as f64) as f32;
            values.iter_mut().skip(bin).step_by(bins).for_each(|value| *value -= mean);
        }
        values
    }

    /// The frames before their means are taken off.
    pub(super) fn energies(&self, samples: &[f32]) -> Vec<f32> {
        let bins = self.bank.len();
        let count = samples.len().checked_sub(WINDOW).map_or(0, |rest| rest / HOP + 1);
        let mut values = vec![0f32; count * bins];
        let cut = |frame: usize, input: &mut [f32]| {
            let own = &samples[frame * HOP..][..WINDOW];
            let mean = own.iter().map(|&x| f64::from(x)).sum::<f64>() / WINDOW as f64;
            let centred = |at: usize| (own[at] - mean as f32) * SCALE;
            input[WINDOW..].fill(0.0);
            for (at, input) in input[..WINDOW].iter_mut().enumerate() {
                *input = centred(at) - PRE_EMPHASIS * centred(at.saturating_sub(1));
            }
        };
        self.stft.rows(&mut values, bins, cut, |spectrum, values| {
            for (value, (first, weights)) in values.iter_mut().zip(&self.bank) {
                let points = spectrum[*first..].iter().zip(weights);
                let energy: f32 = points.map(|(point, weight)| point.norm_sqr() * weight).sum();
                *value = energy.max(FLOOR).ln();
            }
        });
        values
    }
}
