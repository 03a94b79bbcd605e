//! The stages after the codec: mixes packets to mono, clamps them, checks the limits, resamples.

use std::ops::ControlFlow;
use std::time::Duration;

use super::budget::Budget;
use super::{Blocks, DecodeError, Watch, check_channels, check_rate};
use crate::pcm::bounded;
use crate::resample::Resampler;

/// Resamplers that are kept for further links of their rate.
const MAX_RESAMPLERS: usize = 4;

/// The mono output so far, and the state of the stages.
pub(super) struct Sink<'a> {
    rate_hz: u32,
    max_duration: Duration,
    decoded_s: f64,
    budget: Budget,
    watch: &'a mut Watch<'a>,
    /// The last one is in use, if `is_resampling`; the first one was used longest ago.
    resamplers: Vec<Resampler>,
    is_resampling: bool,
    mono: Vec<f32>,
    /// Output that `out` has not taken yet.
    resampled: Vec<f32>,
    out: &'a mut Blocks<'a>,
    is_empty: bool,
}

impl<'a> Sink<'a> {
    pub(super) fn new<'b: 'a>(
        rate_hz: u32,
        max_duration: Duration,
        budget: Budget,
        watch: &'a mut Watch<'b>,
        out: &'a mut Blocks<'b>,
    ) -> Self {
        Self {
            rate_hz,
            max_duration,
            decoded_s: 0.0,
            budget,
            watch,
            resamplers: Vec::new(),
            is_resampling: false,
            mono: Vec::new(),
            resampled: Vec::new(),
            out,
            is_empty: true,
        }
    }

    /// Counts a packet before it is read.
    pub(super) fn begin_packet(&mut self) -> Result<(), DecodeError> {
        self.watch(0)?;
        self.budget.packet()
    }

    /// Counts a link of a chained file.
    pub(super) fn begin_link(&mut self) -> Result<(), DecodeError> {
        self.budget.link()
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
        self.budget.samples(samples.len().saturating_add(frames))?;
        self.mono.clear();
        self.mono.extend(samples.chunks_exact(channels).map(|frame| {
            let sum: f32 = frame.iter().map(|&s| bounded(s)).sum();
            sum / channels as f32
        }));
        self.use_rate(rate_hz)?;
        if let Some(resampler) = self.resamplers.last_mut() {
            resampler.push(&self.mono, &mut self.resampled)?;
        }
        self.store()
    }

    /// All samples, at the output rate.
    pub(super) fn finish(mut self) -> Result<(), DecodeError> {
        self.flush()?;
        if self.is_empty { Err(DecodeError::Empty) } else { Ok(()) }
    }

    /// Puts the resampler of a rate at the end of the list. One that was in use for another rate gives its rest.
    fn use_rate(&mut self, rate_hz: u32) -> Result<(), DecodeError> {
        let found = self.resamplers.iter().position(|resampler| resampler.accepts(rate_hz));
        if self.is_resampling {
            if found == Some(self.resamplers.len() - 1) {
                return Ok(());
            }
            self.budget.rate_change()?;
            self.flush()?;
        }
        let resampler = match found {
            Some(index) => self.resamplers.remove(index),
            None => {
                let resampler = Resampler::new(rate_hz, self.rate_hz)?;
                self.budget.samples(resampler.setup_samples())?;
                resampler
            }
        };
        if self.resamplers.len() == MAX_RESAMPLERS {
            self.resamplers.remove(0);
        }
        self.resamplers.push(resampler);
        self.is_resampling = true;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), DecodeError> {
        if let Some(resampler) = self.resamplers.last_mut().filter(|_| self.is_resampling) {
            // The delay of the filter may take a second block.
            self.budget.samples(2 * resampler.block_samples())?;
            resampler.finish(&mut self.resampled)?;
        }
        self.is_resampling = false;
        self.store()
    }

    /// Moves what was resampled to the output.
    fn store(&mut self) -> Result<(), DecodeError> {
        if self.resampled.is_empty() {
            return Ok(());
        }
        self.watch(self.resampled.len())?;
        // The filter of the resampler may overshoot full scale.
        self.resampled.iter_mut().for_each(|s| *s = bounded(*s));
        let goes_on = (self.out)(&self.resampled);
        self.is_empty = false;
        self.resampled.clear();
        if goes_on.is_break() { Err(DecodeError::Stopped) } else { Ok(()) }
    }

    fn watch(&mut self, samples: usize) -> Result<(), DecodeError> {
        match (self.watch)(samples) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(DecodeError::Stopped),
        }
    }
}
