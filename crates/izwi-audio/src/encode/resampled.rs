//! An encoder behind a resampler, for output of another sample rate. Knows no format.

use super::encoder::{EncodeError, Encoder};
use crate::pcm;
use crate::resample::{ResampleError, Resampler};

/// Resamples, then encodes.
#[derive(Debug)]
pub(super) struct Resampled {
    resampler: Resampler,
    encoder: Box<dyn Encoder>,
}

impl Resampled {
    /// `encoder` takes samples at `rate_out_hz`.
    pub(super) fn new(
        rate_in_hz: u32,
        rate_out_hz: u32,
        encoder: Box<dyn Encoder>,
    ) -> Result<Self, ResampleError> {
        Ok(Self { resampler: Resampler::streamed(rate_in_hz, rate_out_hz)?, encoder })
    }
}

impl Encoder for Resampled {
    fn set_comments(&mut self, comments: &[(String, String)]) {
        self.encoder.set_comments(comments);
    }

    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        // One sample that is not finite would spoil a block of the transform.
        let samples: Vec<f32> = samples.iter().map(|&sample| pcm::bounded(sample)).collect();
        let mut resampled = Vec::new();
        self.resampler.push(&samples, &mut resampled)?;
        self.encoder.push(&resampled)
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        let mut rest = Vec::new();
        self.resampler.finish(&mut rest)?;
        let mut bytes = self.encoder.push(&rest)?;
        bytes.extend(self.encoder.finish()?);
        Ok(bytes)
    }
}
