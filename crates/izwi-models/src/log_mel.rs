//! Samples to log-mel frames of 10 ms: windows of 25 ms at 16 kHz, a range of 80 dB. The constants are those of
//! <https://arxiv.org/abs/2212.04356> (section 2.2). Knows neither windows of a model nor tensors.

use std::ops::Range;

use izwi_nn::codec::mel::MelFilterBank;
use izwi_nn::codec::stft::{Stft, hann};

/// Rate of the audio, in Hz.
pub(crate) const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples from one mel frame to the next.
pub(crate) const HOP: usize = 160;
/// Samples of one transform.
const FFT: usize = 400;
const SPECTRUM: usize = FFT / 2 + 1;
/// Frames after the last sample whose transform still covers it.
pub(crate) const FADE: usize = (FFT / 2).div_ceil(HOP);
/// The fewest samples that can be reflected at both ends.
pub(crate) const MIN_REFLECTED: usize = FFT / 2 + 1;
/// Energies below this are silence.
const FLOOR: f32 = 1e-10;
/// log10 of [`FLOOR`]: the value of a frame of zeros.
const SILENCE: f32 = -10.0;
/// Values further than this below the loudest are raised to it: 80 dB.
const RANGE: f32 = 8.0;

/// Turns samples into log-mel frames.
#[derive(Debug)]
pub(crate) struct FrontEnd {
    stft: Stft,
    bank: MelFilterBank,
}

/// log10 mel energies before normalisation.
#[derive(Debug, Clone)]
pub(crate) struct LogMel {
    bins: usize,
    frames: Range<usize>,
    values: Vec<f32>, // [frames, bins]
}

impl FrontEnd {
    /// A front end with `bins` mel bins.
    pub(crate) fn new(bins: usize) -> Self {
        Self {
            stft: Stft::new(hann(FFT, true)),
            bank: MelFilterBank::new(SAMPLE_RATE_HZ, FFT, bins, SAMPLE_RATE_HZ as f64 / 2.0),
        }
    }

    /// Frames `frames` of `samples`; the recording is reflected at its start and silent after its end.
    pub(crate) fn frames(&self, samples: &[f32], frames: Range<usize>) -> LogMel {
        self.padded(frames, |at| samples.get(at).copied().unwrap_or(0.0))
    }

    /// All whole frames of `samples`, which are reflected at both ends; none below [`MIN_REFLECTED`] samples.
    pub(crate) fn reflected(&self, samples: &[f32]) -> LogMel {
        let count = if samples.len() < MIN_REFLECTED { 0 } else { samples.len() };
        // Reflected around the last sample, which is not repeated.
        self.padded(0..count / HOP, |at| samples[if at < count { at } else { 2 * (count - 1) - at }])
    }

    /// Frames over the samples that `sample` gives from the start of the recording on.
    fn padded(&self, frames: Range<usize>, sample: impl Fn(usize) -> f32 + Sync) -> LogMel {
        let bins = self.bank.bins();
        let mut values = vec![SILENCE; frames.len() * bins];
        let cut = |frame: usize, input: &mut [f32]| {
            for (n, input) in input.iter_mut().enumerate() {
                *input = sample(((frames.start + frame) * HOP + n).abs_diff(FFT / 2));
            }
        };
        self.stft.rows(&mut values, bins, cut, |spectrum, values| {
            let power: [f32; SPECTRUM] = std::array::from_fn(|bin| spectrum[bin].norm_sqr());
            self.bank.apply(&power, values);
            values.iter_mut().for_each(|value| *value = value.max(FLOOR).log10());
        });
        LogMel { bins, frames, values }
    }
}

impl LogMel {
    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// The loudest value.
    pub(crate) fn peak(&self) -> f32 {
        self.values.iter().copied().fold(SILENCE, f32::max)
    }

    /// The normalised network input for `frames`: their values, up to [`FADE`] further known frames, then silence up to
    /// `length` frames, `[length, bins]`. `peak` is the loudest value of the whole recording.
    pub(crate) fn network_input(&self, frames: Range<usize>, length: usize, peak: f32) -> Vec<f32> {
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

#[cfg(test)]
mod tests {
    use izwi_nn::codec::mel::hz_to_mel;

    use super::*;

    #[test]
    fn a_tone_peaks_in_its_bin() {
        let front_end = FrontEnd::new(80);
        for hz in [300.0, 1000.0, 4000.0] {
            let tone = |n: usize| (std::f64::consts::TAU * hz * n as f64 / 16_000.0).sin() as f32;
            let samples: Vec<f32> = (0..16_000).map(tone).collect();
            let mel = front_end.frames(&samples, 50..51);
            let loudest = (0..80).max_by(|&a, &b| mel.values[a].total_cmp(&mel.values[b])).unwrap();
            let expected = hz_to_mel(hz) / hz_to_mel(8000.0) * 81.0 - 1.0;
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
    fn frames_after_the_recording_are_silent() {
        let mel = FrontEnd::new(80).frames(&[0.5; 1600], 0..20);
        let input = mel.network_input(15..20, 8, mel.peak());
        let silence = (SILENCE.max(mel.peak() - RANGE) + 4.0) / 4.0;
        assert!(input.iter().all(|&value| value == silence));
    }
}
