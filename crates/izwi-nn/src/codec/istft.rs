//! Streaming inverse STFT: spectra to samples, frame by frame, by overlap-add. Works on host memory; knows no tensor.

use std::sync::Arc;

use realfft::num_complex::Complex32;
use realfft::{ComplexToReal, RealFftPlanner};

/// Least sum of squared windows to divide by.
const MIN_WINDOW_SUM: f32 = 1e-11;

/// The inverse of an STFT with `padding="same"`: half of the overlap lies before the first sample, so that each frame gives
/// one hop of samples.
pub struct InverseStft {
    inverse: Arc<dyn ComplexToReal<f32>>,
    window: Vec<f32>,
    hop: usize,
}

impl std::fmt::Debug for InverseStft {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InverseStft").field("hop", &self.hop).finish_non_exhaustive()
    }
}

/// Overlap-add state of a stream: partial sums of samples that later frames complete.
#[derive(Debug, Clone, Default)]
pub struct Overlap {
    sums: Vec<f32>,
    frames: usize,
}

impl Overlap {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        size_of_val(self.sums.as_slice())
    }
}

impl InverseStft {
    /// With a window as long as the transform, a multiple of `2 * hop`.
    ///
    /// # Errors
    /// The window has another length.
    pub fn new(window: Vec<f32>, hop: usize) -> Result<Self, String> {
        if hop == 0 || window.is_empty() || !window.len().is_multiple_of(2 * hop) {
            return Err(format!("a window of {} samples is no multiple of two hops of {hop}", window.len()));
        }
        Ok(Self { inverse: RealFftPlanner::new().plan_fft_inverse(window.len()), window, hop })
    }

    /// Bins of a spectrum.
    pub fn bins(&self) -> usize {
        self.window.len() / 2 + 1
    }

    /// Latency in samples; [`Self::finish`] returns the last of them.
    pub fn held_back(&self) -> usize {
        (self.window.len() - self.hop) / 2
    }

    /// Bytes of a stream's state after its first frame.
    pub fn state_bytes(&self) -> usize {
        (self.window.len() - self.hop) * size_of::<f32>()
    }

    /// The next frames of a stream: `fill` makes the spectrum of each of `count`. Completed samples are
    /// appended to `to`; they are the same bits for any chunking.
    pub fn push(
        &self,
        overlap: &mut Overlap,
        count: usize,
        mut fill: impl FnMut(usize, &mut [Complex32]),
        to: &mut Vec<f32>,
    ) {
        let (length, hop) = (self.window.len(), self.hop);
        let mut spectrum = self.inverse.make_input_vec();
        let mut samples = self.inverse.make_output_vec();
        let mut scratch = self.inverse.make_scratch_vec();
        overlap.sums.resize(length - hop, 0.0);
        for frame in 0..count {
            fill(frame, &mut spectrum);
            // A real signal has no imaginary part in its first and last bin.
            spectrum[0].im = 0.0;
            spectrum[length / 2].im = 0.0;
            // Fails only for buffers of another length or such parts; neither is there.
            if self.inverse.process_with_scratch(&mut spectrum, &mut samples, &mut scratch).is_err() {
                samples.fill(0.0);
            }
            overlap.sums.resize(length, 0.0);
            let windowed = samples.iter().zip(&self.window).map(|(x, w)| x * (1.0 / length as f32) * w);
            overlap.sums.iter_mut().zip(windowed).for_each(|(sum, x)| *sum += x);
            let at = overlap.frames;
            self.emit(&overlap.sums[..hop], at, 0, to);
            overlap.sums.drain(..hop);
            overlap.frames += 1;
        }
    }

    /// The last samples of a stream, and resets it; empty for a stream without frames.
    pub fn finish(&self, overlap: &mut Overlap) -> Vec<f32> {
        let Overlap { sums, frames } = std::mem::take(overlap);
        let mut samples = Vec::with_capacity(self.held_back());
        for (behind, sums) in sums.chunks_exact(self.hop).enumerate() {
            self.emit(sums, frames + behind, behind + 1, &mut samples);
        }
        samples.truncate(if frames == 0 { 0 } else { self.held_back() });
        samples
    }

    /// Appends the samples of hop `at`, whose newest `missing` frames do not exist, without samples before the first.
    fn emit(&self, sums: &[f32], at: usize, missing: usize, to: &mut Vec<f32>) {
        let covering = missing..(at + 1).min(self.window.len() / self.hop);
        let before = self.held_back().saturating_sub(at * self.hop).min(self.hop);
        for (offset, sum) in sums.iter().enumerate().skip(before) {
            let squares = covering.clone().map(|part| self.window[part * self.hop + offset]).map(|w| w * w);
            to.push(sum / squares.sum::<f32>().max(MIN_WINDOW_SUM));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_reconstructed_whole_and_in_chunks() {
        let (length, hop, count) = (40, 10, 12);
        let turn = std::f32::consts::TAU / length as f32;
        let window: Vec<f32> = (0..length).map(|n| 0.5 - 0.5 * (turn * n as f32).cos()).collect();
        let inverse = InverseStft::new(window.clone(), hop).unwrap();
        let margin = inverse.held_back();
        let signal: Vec<f32> = (0..count * hop).map(|n| ((n * n % 97) as f32 - 48.0) / 50.0).collect();
        let forward = RealFftPlanner::<f32>::new().plan_fft_forward(length);
        let spectra: Vec<Vec<Complex32>> = (0..count)
            .map(|frame| {
                let sample = |n: usize| (frame * hop + n).checked_sub(margin).and_then(|at| signal.get(at));
                let mut x: Vec<f32> =
                    (0..length).map(|n| sample(n).copied().unwrap_or(0.0) * window[n]).collect();
                let mut spectrum = forward.make_output_vec();
                forward.process(&mut x, &mut spectrum).unwrap();
                spectrum
            })
            .collect();
        let mut overlap = Overlap::default();
        let mut whole = Vec::new();
        inverse.push(&mut overlap, count, |frame, to| to.copy_from_slice(&spectra[frame]), &mut whole);
        assert_eq!((whole.len(), overlap.bytes()), (count * hop - margin, inverse.state_bytes()));
        whole.extend(inverse.finish(&mut overlap));
        assert_eq!((whole.len(), overlap.bytes()), (count * hop, 0));
        let off = whole.iter().zip(&signal).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(off < 1e-5, "{off}");
        let (mut pieces, mut start) = (Vec::new(), 0);
        for cut in [1, 5, 2, 4] {
            inverse.push(
                &mut overlap,
                cut,
                |frame, to| to.copy_from_slice(&spectra[start + frame]),
                &mut pieces,
            );
            start += cut;
        }
        pieces.extend(inverse.finish(&mut overlap));
        assert_eq!(pieces, whole);
        assert!(inverse.finish(&mut Overlap::default()).is_empty());
        assert_eq!(inverse.bins(), 21);
        assert!(InverseStft::new(window, 15).is_err());
    }
}
