//! The stages after the codec: mixes packets to mono, clamps them, checks the duration limit, resamples.

use std::time::Duration;

use super::resample::Resampler;
use super::{DecodeError, check_channels, check_rate};

/// The mono output so far, and the state of the stages.
pub(super) struct Sink {
    rate_hz: u32,
    max_duration: Duration,
    decoded_s: f64,
    resampler: Option<Resampler>,
    mono: Vec<f32>,
    out: Vec<f32>,
}

impl Sink {
    pub(super) fn new(rate_hz: u32, max_duration: Duration) -> Self {
        Self { rate_hz, max_duration, decoded_s: 0.0, resampler: None, mono: Vec::new(), out: Vec::new() }
    }

    /// Adds interleaved samples. The rate may change between calls, as it does in chained files.
    pub(super) fn push(&mut self, rate_hz: u32, channels: usize, samples: &[f32]) -> Result<(), DecodeError> {
        check_rate(rate_hz)?;
        check_channels(channels)?;
        let frames = samples.len() / channels;
        self.decoded_s += frames as f64 / f64::from(rate_hz);
        // Tolerance of half a millisecond: a file of exactly the longest duration may exceed it by rounding.
        if self.decoded_s > self.max_duration.as_secs_f64() + 0.000_5 {
            return Err(DecodeError::TooLong { limit_s: self.max_duration.as_secs() });
        }
        self.mono.clear();
        self.mono.extend(samples.chunks_exact(channels).map(|frame| {
            let sum: f32 = frame.iter().map(|&s| bounded(s)).sum();
            sum / channels as f32
        }));
        if self.resampler.as_ref().is_some_and(|r| !r.accepts(rate_hz)) {
            self.flush()?;
        }
        let resampler = match &mut self.resampler {
            Some(resampler) => resampler,
            none => none.insert(Resampler::new(rate_hz, self.rate_hz)?),
        };
        resampler.push(&self.mono, &mut self.out)
    }

    /// All samples, at the output rate.
    pub(super) fn finish(mut self) -> Result<Vec<f32>, DecodeError> {
        self.flush()?;
        // The filter of the resampler may overshoot full scale.
        self.out.iter_mut().for_each(|s| *s = bounded(*s));
        if self.out.is_empty() { Err(DecodeError::Empty) } else { Ok(self.out) }
    }

    fn flush(&mut self) -> Result<(), DecodeError> {
        match self.resampler.take() {
            Some(resampler) => resampler.finish(&mut self.out),
            None => Ok(()),
        }
    }
}

fn bounded(sample: f32) -> f32 {
    if sample.is_finite() { sample.clamp(-1.0, 1.0) } else { 0.0 }
}
