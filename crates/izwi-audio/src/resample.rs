//! Resamples mono streams block by block, without delay and with an exact length.

use rubato::audioadapter_buffers::direct::SequentialSlice;
use rubato::{Fft, FixedSync, Indexing, Resampler as _, WindowFunction};

/// Samples at the lower rate in one block of the transform, for recordings. The filter is as long, so the transition band is a
/// few thousandths of the lower rate.
const RECORDING_BLOCK_SAMPLES: usize = 1024;
/// The same for streams, whose delay is about a block: 64 ms at 8 kHz, 21 ms at 24 kHz.
const STREAM_BLOCK_SAMPLES: usize = 512;
/// The same for live input, which is waited for.
const LIVE_BLOCK_SAMPLES: usize = 256;
/// Input samples in a period of the ratio beyond which rates are rounded, in general and for live input.
const MAX_PERIOD: usize = 100_000;
const MAX_LIVE_PERIOD: usize = 2_000;

/// The resampler refuses its parameters or its input.
#[derive(Debug, thiserror::Error)]
#[error("it cannot be resampled: {0}")]
pub struct ResampleError(String);

/// The state of one mono stream that changes its sample rate.
pub struct Resampler {
    /// Input rate of the caller; `rate_in_hz` is the rate that is computed with.
    nominal_in_hz: u32,
    rate_in_hz: u32,
    rate_out_hz: u32,
    fft: Option<Fft<f32>>,
    pending: Vec<f32>,
    block: Vec<f32>,
    samples_in: u64,
    samples_out: u64,
    delay_left: usize,
}

/// Work of planning the transforms and the filter, in blocks.
const SETUP_BLOCKS: usize = 16;

impl std::fmt::Debug for Resampler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resampler")
            .field("rate_in_hz", &self.rate_in_hz)
            .field("rate_out_hz", &self.rate_out_hz)
            .field("samples_in", &self.samples_in)
            .field("samples_out", &self.samples_out)
            .finish_non_exhaustive()
    }
}

impl Resampler {
    /// A resampler for recordings of one rate.
    ///
    /// # Errors
    /// A rate is 0.
    pub fn new(rate_in_hz: u32, rate_out_hz: u32) -> Result<Self, ResampleError> {
        Self::with_block(rate_in_hz, rate_out_hz, RECORDING_BLOCK_SAMPLES, MAX_PERIOD)
    }

    /// A resampler for live streams: less delay, and a transition band twice as wide.
    ///
    /// # Errors
    /// A rate is 0.
    pub fn streamed(rate_in_hz: u32, rate_out_hz: u32) -> Result<Self, ResampleError> {
        Self::with_block(rate_in_hz, rate_out_hz, STREAM_BLOCK_SAMPLES, MAX_PERIOD)
    }

    /// A resampler for live input: the output is at most 50 ms behind the input at rates from 8 to 48 kHz that are common, and
    /// 250 ms at any.
    ///
    /// # Errors
    /// A rate is 0.
    pub fn live(rate_in_hz: u32, rate_out_hz: u32) -> Result<Self, ResampleError> {
        Self::with_block(rate_in_hz, rate_out_hz, LIVE_BLOCK_SAMPLES, MAX_LIVE_PERIOD)
    }

    fn with_block(
        rate_in_hz: u32,
        rate_out_hz: u32,
        block: usize,
        max_period: usize,
    ) -> Result<Self, ResampleError> {
        if rate_in_hz == 0 || rate_out_hz == 0 {
            return Err(failed("a sample rate is 0"));
        }
        let (nominal_in_hz, rate_in_hz) = (rate_in_hz, tractable(rate_in_hz, rate_out_hz, max_period));
        let fft = if rate_in_hz == rate_out_hz {
            None
        } else {
            let (input, output) = (rate_in_hz as usize, rate_out_hz as usize);
            // An even number of input samples: the filter is centred on one, so the delay is an integer.
            let period = 2 * input / gcd(input, output);
            let chunk = (block * input.div_ceil(output)).next_multiple_of(period);
            let window = WindowFunction::BlackmanHarris2;
            let fft = Fft::new_custom(input, output, chunk, 1, 1, window, FixedSync::Both).map_err(failed)?;
            Some(fft)
        };
        let delay_left = fft.as_ref().map_or(0, |fft| fft.output_delay());
        let block = vec![0.0; fft.as_ref().map_or(0, |fft| fft.output_frames_max())];
        let pending = Vec::new();
        Ok(Self {
            nominal_in_hz,
            rate_in_hz,
            rate_out_hz,
            fft,
            pending,
            block,
            samples_in: 0,
            samples_out: 0,
            delay_left,
        })
    }

    /// Whether this is the input rate.
    pub fn accepts(&self, rate_hz: u32) -> bool {
        self.nominal_in_hz == rate_hz
    }

    /// Appends the output that `samples` completes, however the stream is sliced.
    ///
    /// # Errors
    /// The transform fails.
    pub fn push(&mut self, samples: &[f32], out: &mut Vec<f32>) -> Result<(), ResampleError> {
        self.samples_in += samples.len() as u64;
        let Some(fft) = &self.fft else {
            out.extend_from_slice(samples);
            return Ok(());
        };
        let needed = fft.input_frames_next();
        self.pending.extend_from_slice(samples);
        let mut used = 0;
        while self.pending.len() - used >= needed {
            self.run(used, needed, out)?;
            used += needed;
        }
        self.pending.drain(..used);
        Ok(())
    }

    /// Samples of one block, in and out. A stream may end with an incomplete one, which costs as much.
    pub(crate) fn block_samples(&self) -> usize {
        self.fft.as_ref().map_or(0, |fft| fft.input_frames_next() + fft.output_frames_max())
    }

    /// Work of [`new`](Self::new), in samples.
    pub(crate) fn setup_samples(&self) -> usize {
        SETUP_BLOCKS * self.block_samples()
    }

    /// Appends the rest, in total `samples_in · out / in` samples, rounded. The next stream begins.
    ///
    /// # Errors
    /// The transform fails.
    pub fn finish(&mut self, out: &mut Vec<f32>) -> Result<(), ResampleError> {
        self.flush(out)?;
        if let Some(fft) = &mut self.fft {
            fft.reset();
            self.delay_left = fft.output_delay();
        }
        self.pending.clear();
        (self.samples_in, self.samples_out) = (0, 0);
        Ok(())
    }

    fn flush(&mut self, out: &mut Vec<f32>) -> Result<(), ResampleError> {
        if self.fft.is_none() {
            return Ok(());
        }
        let total = resampled_length(self.samples_in, self.rate_in_hz, self.rate_out_hz);
        while self.samples_out < total {
            let rest = self.pending.len();
            self.run(0, rest, out)?;
            self.pending.clear();
        }
        // Of the last block, what is beyond the end.
        let excess = self.samples_out.saturating_sub(total) as usize;
        out.truncate(out.len().saturating_sub(excess));
        Ok(())
    }

    fn run(&mut self, from: usize, valid: usize, out: &mut Vec<f32>) -> Result<(), ResampleError> {
        let Some(fft) = &mut self.fft else { return Ok(()) };
        let input = &self.pending[from..from + valid];
        let input = SequentialSlice::new(input, 1, valid).map_err(failed)?;
        let room = self.block.len();
        let mut output = SequentialSlice::new_mut(&mut self.block, 1, room).map_err(failed)?;
        let part = Indexing::new().partial_len(valid);
        let (_, made) = fft.process_into_buffer(&input, &mut output, Some(&part)).map_err(failed)?;
        let skipped = self.delay_left.min(made);
        self.delay_left -= skipped;
        self.samples_out += (made - skipped) as u64;
        out.extend_from_slice(&self.block[skipped..made]);
        Ok(())
    }
}

/// Samples at `rate_out_hz` that `samples` at `rate_in_hz` give: their quotient, rounded half up. 0 for a rate of 0.
pub fn resampled_length(samples: u64, rate_in_hz: u32, rate_out_hz: u32) -> u64 {
    let (input, output) = (u128::from(rate_in_hz), u128::from(rate_out_hz));
    let scaled = (u128::from(samples) * output + input / 2).checked_div(input).unwrap_or(0);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// An input rate near the given one whose transform is small. A transform contains a whole period of the ratio, which
/// is 1.5 million samples from 767,999 to 16,000 Hz. Such rates come only from broken headers; the nearest multiple of
/// 25 Hz differs by at most 0.013 % there, and by 0.16 % from a live stream at 8 kHz.
fn tractable(rate_in_hz: u32, rate_out_hz: u32, max_period: usize) -> u32 {
    let period = rate_in_hz as usize / gcd(rate_in_hz as usize, rate_out_hz as usize);
    if period > max_period { (rate_in_hz + 12) / 25 * 25 } else { rate_in_hz }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn failed(error: impl std::fmt::Display) -> ResampleError {
    ResampleError(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::f64::consts::TAU;

    use super::*;

    fn sine(hz: f64, rate_hz: u32, samples: usize) -> Vec<f32> {
        (0..samples).map(|i| (0.5 * (TAU * hz * i as f64 / f64::from(rate_hz)).sin()) as f32).collect()
    }

    fn resampled(signal: &[f32], from: u32, to: u32, step: usize) -> Vec<f32> {
        let mut resampler = Resampler::new(from, to).unwrap();
        let mut out = Vec::new();
        for piece in signal.chunks(step) {
            resampler.push(piece, &mut out).unwrap();
        }
        resampler.finish(&mut out).unwrap();
        out
    }

    fn rms_db(signal: &[f32]) -> f64 {
        let power: f64 = signal.iter().map(|&s| f64::from(s).powi(2)).sum::<f64>() / signal.len() as f64;
        10.0 * power.log10()
    }

    #[test]
    fn a_sine_keeps_frequency_level_phase_and_length() {
        for from in
            [8_000, 11_025, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000, 768_000, 44_056, 767_999]
        {
            let out = resampled(&sine(1000.0, from, from as usize * 2 + 77), from, 16_000, 999);
            let total = ((f64::from(from) * 2.0 + 77.0) * 16_000.0 / f64::from(from)).round() as usize;
            assert_eq!(out.len(), total, "{from} Hz");
            let expected = sine(1000.0, 16_000, out.len());
            let middle = 2000..out.len() - 2000;
            let error: Vec<f32> = middle.clone().map(|i| out[i] - expected[i]).collect();
            let change = rms_db(&out[middle.clone()]) - rms_db(&expected[middle]);
            assert!(change.abs() < 0.1, "{from} Hz: level changes by {change} dB");
            // 767,999 Hz is computed as 768,000 Hz and drifts by a millionth.
            let most = if from == 767_999 { -45.0 } else { -60.0 };
            assert!(rms_db(&error) < most, "{from} Hz: error {} dB", rms_db(&error));
        }
    }

    #[test]
    fn frequencies_above_the_new_nyquist_limit_are_removed() {
        for (from, hz) in [(48_000, 10_000.0), (44_100, 9_000.0), (192_000, 60_000.0), (48_000, 8_300.0)] {
            let signal = sine(hz, from, from as usize);
            let out = resampled(&signal, from, 16_000, 4096);
            let left = rms_db(&out[2000..14_000]) - rms_db(&signal);
            assert!(left < -60.0, "{hz} Hz at {from} Hz is only {left} dB down");
        }
    }

    #[test]
    fn a_resampler_starts_anew_after_each_stream() {
        let (first, second) = (sine(440.0, 44_100, 7_001), sine(900.0, 44_100, 5_003));
        let mut resampler = Resampler::new(44_100, 16_000).unwrap();
        for signal in [&first, &second, &first] {
            let mut out = Vec::new();
            resampler.push(signal, &mut out).unwrap();
            resampler.finish(&mut out).unwrap();
            assert_eq!(out, resampled(signal, 44_100, 16_000, signal.len()));
        }
    }

    #[test]
    fn any_slicing_gives_the_same_samples() {
        let signal = sine(440.0, 44_100, 10_000);
        let whole = resampled(&signal, 44_100, 16_000, signal.len());
        for step in [1, 7, 441, 1024, 5000] {
            assert_eq!(resampled(&signal, 44_100, 16_000, step), whole, "{step}");
        }
        assert_eq!(resampled(&signal, 16_000, 16_000, 7), signal);
        for short in [1, 2, 3, 50] {
            assert_eq!(resampled(&signal[..short], 8_000, 16_000, 1).len(), short * 2);
        }
        assert!(resampled(&[], 8_000, 16_000, 1).is_empty());
    }
}
