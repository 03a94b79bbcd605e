//! Short-time Fourier transform of host samples: windowed frames to rows of values, in parallel. Knows no mel scale and
//! no tensor.

use std::f64::consts::TAU;
use std::sync::Arc;

use rayon::prelude::*;
use realfft::num_complex::Complex32;
use realfft::{RealFftPlanner, RealToComplex};

/// Frames one rayon task computes.
const CHUNK_FRAMES: usize = 32;

/// The Hann window of `length` values: periodic, as `torch.hann_window` makes it, or symmetric with zeros at both ends.
/// <https://docs.pytorch.org/docs/stable/generated/torch.hann_window.html>.
pub fn hann(length: usize, periodic: bool) -> Vec<f32> {
    let period = if periodic { length } else { length.saturating_sub(1) };
    let value = |n: usize| 0.5 - 0.5 * (TAU * n as f64 / period as f64).cos();
    (0..length).map(|n| value(n) as f32).collect()
}

/// A transform with its window; both have `n_fft` points.
pub struct Stft {
    fft: Arc<dyn RealToComplex<f32>>,
    window: Vec<f32>,
}

impl std::fmt::Debug for Stft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stft").field("n_fft", &self.window.len()).finish_non_exhaustive()
    }
}

impl Stft {
    /// A transform as long as `window`.
    pub fn new(window: Vec<f32>) -> Self {
        Self { fft: RealFftPlanner::new().plan_fft_forward(window.len()), window }
    }

    /// Points of the transform.
    pub fn n_fft(&self) -> usize {
        self.window.len()
    }

    /// Fills `values` `[frames, width]`: for each frame `cut(frame, input)` writes its `[n_fft]` samples, and
    /// `row(spectrum, values)` turns the spectrum `[n_fft / 2 + 1]` of the windowed samples into a row `[width]`.
    pub fn rows(
        &self,
        values: &mut [f32],
        width: usize,
        cut: impl Fn(usize, &mut [f32]) + Sync,
        row: impl Fn(&[Complex32], &mut [f32]) + Sync,
    ) {
        values.par_chunks_mut(CHUNK_FRAMES * width).enumerate().for_each(|(chunk, values)| {
            let mut input = self.fft.make_input_vec();
            let mut spectrum = self.fft.make_output_vec();
            let mut scratch = self.fft.make_scratch_vec();
            for (offset, values) in values.chunks_exact_mut(width).enumerate() {
                cut(chunk * CHUNK_FRAMES + offset, &mut input);
                input.iter_mut().zip(&self.window).for_each(|(x, window)| *x *= window);
                // Fails only for buffers of another length; the transform made these itself.
                if self.fft.process_with_scratch(&mut input, &mut spectrum, &mut scratch).is_ok() {
                    row(&spectrum, values);
                }
            }
        });
    }
}
