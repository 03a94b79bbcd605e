//! The front end: samples to log-mel frames.
//!
//! Owns the filter bank and the transform; the numbers are openai-whisper's,
//! <https://github.com/openai/whisper/blob/main/whisper/audio.py>. Knows neither windows nor tensors.

use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use realfft::{RealFftPlanner, RealToComplex};

/// Rate of the audio, in Hz.
pub(super) const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples from one mel frame to the next.
pub(super) const HOP: usize = 160;
/// Samples of one transform.
const FFT: usize = 400;
const SPECTRUM: usize = FFT / 2 + 1;
/// Frames behind the last sample that still hear it.
pub(super) const FADE: usize = (FFT / 2).div_ceil(HOP);
/// Frames one rayon task computes.
const CHUNK_FRAMES: usize = 64;
/// Energies below this are silence.
const FLOOR: f32 = 1e-10;
/// log10 of [`FLOOR`]: the value of a frame of zeros.
const SILENCE: f32 = -10.0;
/// Values further than this below the loudest are raised to it: 80 dB.
const RANGE: f32 = 8.0;

/// Turns samples into log-mel frames.
pub(super) struct FrontEnd {
    fft: Arc<dyn RealToComplex<f32>>,
    hann: Vec<f32>,
    filters: Vec<Filter>,
}

impl std::fmt::Debug for FrontEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FrontEnd").field("bins", &self.filters.len()).finish_non_exhaustive()
    }
}

/// One triangle of the bank: the weights of neighbouring spectral bins, zeros left out.
#[derive(Debug)]
struct Filter {
    first: usize,
    weights: Vec<f32>,
}

/// log10 mel energies, not yet brought into the network's range.
#[derive(Debug, Clone)]
pub(super) struct LogMel {
    bins: usize,
    frames: Range<usize>,
    values: Vec<f32>, // [frames, bins]
}

impl FrontEnd {
    /// A front end with `bins` mel bins.
    pub(super) fn new(bins: usize) -> Self {
        // Periodic, as torch.hann_window makes it.
        let hann = |n: usize| 0.5 - 0.5 * (std::f64::consts::TAU * n as f64 / FFT as f64).cos();
        Self {
            fft: RealFftPlanner::new().plan_fft_forward(FFT),
            hann: (0..FFT).map(|n| hann(n) as f32).collect(),
            filters: bank(bins),
        }
    }

    /// Frames `frames` of `samples`; the recording is mirrored before its start and silent behind its end.
    pub(super) fn frames(&self, samples: &[f32], frames: Range<usize>) -> LogMel {
        let bins = self.filters.len();
        let mut values = vec![SILENCE; frames.len() * bins];
        values.par_chunks_mut(CHUNK_FRAMES * bins).enumerate().for_each(|(chunk, values)| {
            let mut input = vec![0f32; FFT];
            let mut spectrum = self.fft.make_output_vec();
            let mut scratch = self.fft.make_scratch_vec();
            for (offset, values) in values.chunks_exact_mut(bins).enumerate() {
                self.cut(samples, frames.start + chunk * CHUNK_FRAMES + offset, &mut input);
                // Fails only for buffers of another length; these are made by the transform itself.
                if self.fft.process_with_scratch(&mut input, &mut spectrum, &mut scratch).is_err() {
                    continue;
                }
                let power: [f32; SPECTRUM] = std::array::from_fn(|bin| spectrum[bin].norm_sqr());
                for (value, filter) in values.iter_mut().zip(&self.filters) {
                    let power = &power[filter.first..][..filter.weights.len()];
                    let energy: f32 = filter.weights.iter().zip(power).map(|(w, p)| w * p).sum();
                    *value = energy.max(FLOOR).log10();
                }
            }
        });
        LogMel { bins, frames, values }
    }

    /// The samples of one frame, under the window.
    fn cut(&self, samples: &[f32], frame: usize, input: &mut [f32]) {
        for (n, (input, hann)) in input.iter_mut().zip(&self.hann).enumerate() {
            let at = (frame * HOP + n).abs_diff(FFT / 2);
            *input = samples.get(at).copied().unwrap_or(0.0) * hann;
        }
    }
}

impl LogMel {
    /// The loudest value.
    pub(super) fn peak(&self) -> f32 {
        self.values.iter().copied().fold(SILENCE, f32::max)
    }

    /// What the network sees of `frames`, which fade out where more of them are known, followed by silence up to
    /// `length` frames: `[length, bins]`. `peak` is the loudest value of the whole recording.
    pub(super) fn network_input(&self, frames: Range<usize>, length: usize, peak: f32) -> Vec<f32> {
        let in_range = |value: f32| (value.max(peak - RANGE) + 4.0) / 4.0;
        let known = frames.start.max(self.frames.start)..(frames.end + FADE).min(self.frames.end);
        let mut input = vec![in_range(SILENCE); length * self.bins];
        if known.start < known.end {
            let from = (known.start - self.frames.start) * self.bins;
            let into = (known.start - frames.start) * self.bins;
            let count = (known.len() * self.bins).min(input.len().saturating_sub(into));
            let known = self.values[from..from + count].iter();
            input[into..into + count]
                .iter_mut()
                .zip(known)
                .for_each(|(input, &value)| *input = in_range(value));
        }
        input
    }
}

/// Triangles on Slaney's mel scale, each of unit area, from 0 Hz to half the sampling rate; librosa's
/// `filters.mel`, <https://librosa.org/doc/0.10.2/generated/librosa.filters.mel.html>, is where the official bank came from.
fn bank(bins: usize) -> Vec<Filter> {
    let top = mel_of(SAMPLE_RATE_HZ as f64 / 2.0);
    let edges: Vec<f64> = (0..bins + 2).map(|i| hz_of(top * i as f64 / (bins + 1) as f64)).collect();
    let hz = |bin: usize| bin as f64 * SAMPLE_RATE_HZ as f64 / FFT as f64;
    let filter = |edges: &[f64]| {
        let weight = |bin: usize| {
            let rising = (hz(bin) - edges[0]) / (edges[1] - edges[0]);
            let falling = (edges[2] - hz(bin)) / (edges[2] - edges[1]);
            (rising.min(falling).max(0.0) * 2.0 / (edges[2] - edges[0])) as f32
        };
        let all: Vec<f32> = (0..SPECTRUM).map(weight).collect();
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
    fn filters_have_unit_area_and_cover_the_spectrum() {
        for bins in [80, 128] {
            let bank = bank(bins);
            assert_eq!(bank.len(), bins);
            // 40 Hz apart: a triangle much wider than that sums to its area.
            for filter in &bank[bins - 20..] {
                let area = filter.weights.iter().sum::<f32>() * 40.0;
                assert!((area - 1.0).abs() < 0.02, "{area}");
            }
            assert!(bank.iter().all(|filter| filter.weights.iter().any(|&w| w > 0.0)));
        }
    }

    #[test]
    fn a_tone_lands_in_its_bin() {
        let front_end = FrontEnd::new(80);
        for hz in [300.0, 1000.0, 4000.0] {
            let tone = |n: usize| (std::f64::consts::TAU * hz * n as f64 / 16_000.0).sin() as f32;
            let samples: Vec<f32> = (0..16_000).map(tone).collect();
            let mel = front_end.frames(&samples, 50..51);
            let loudest = (0..80).max_by(|&a, &b| mel.values[a].total_cmp(&mel.values[b])).unwrap();
            let expected = mel_of(hz) / mel_of(8000.0) * 81.0 - 1.0;
            assert!((loudest as f64 - expected).abs() <= 1.0, "{hz}: {loudest} {expected}");
        }
    }

    #[test]
    fn frames_do_not_depend_on_the_range_asked_for() {
        let front_end = FrontEnd::new(80);
        let samples: Vec<f32> = (0..40_000).map(|n| ((n * n % 977) as f32 - 488.0) / 500.0).collect();
        let all = front_end.frames(&samples, 0..260);
        let part = front_end.frames(&samples, 101..203);
        assert_eq!(part.values, all.values[101 * 80..203 * 80]);
        let peak = all.peak();
        assert_eq!(part.network_input(110..200, 120, peak), all.network_input(110..200, 120, peak));
        let faded = all.network_input(110..201, 120, peak);
        assert_eq!(faded[..(90 + FADE) * 80], part.network_input(110..200, 120, peak)[..(90 + FADE) * 80]);
    }

    #[test]
    fn behind_the_recording_is_silence() {
        let mel = FrontEnd::new(80).frames(&[0.5; 1600], 0..20);
        let input = mel.network_input(15..20, 8, mel.peak());
        let silence = (SILENCE.max(mel.peak() - RANGE) + 4.0) / 4.0;
        assert!(input.iter().all(|&value| value == silence));
    }
}
