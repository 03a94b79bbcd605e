//! A format: its properties, and encoders that are made of them. Knows none of the formats.

use std::io::Write;
use std::ops::RangeInclusive;

use super::encoder::{EncodeError, Encoder, EncoderConfig};
use super::resampled::Resampled;
use crate::resample::resampled_length;

/// Samples that [`Format::write_all`] encodes at a time.
const BLOCK_SAMPLES: usize = 1 << 14;

/// An audio format that samples can be encoded to.
#[derive(Debug)]
pub struct Format {
    /// Name that clients use: the value of `response_format`.
    pub name: &'static str,
    /// Name of the encoding, sample type included, for clients that parse the bytes.
    pub encoding: &'static str,
    /// Media type of a file; `None` for formats that no media type describes.
    pub media_type: Option<&'static str>,
    /// Extensions of file names in lower case; empty for formats whose files do not tell rate and sample type.
    pub extensions: &'static [&'static str],
    /// Bytes of a sample, where all take the same: then a stream can be continued at any sample.
    pub sample_bytes: Option<usize>,
    /// Whether bytes can be sent before the number of samples is known.
    pub streams: bool,
    /// Sample rates of the output that can be asked for, ascending.
    pub sample_rates_hz: &'static [u32],
    /// Whether the samples may also keep their own rate, whatever it is.
    pub keeps_rate: bool,
    /// Bit rates that can be asked for, in bits per second; `None` for formats whose bit rate follows from their samples.
    pub bit_rates: Option<RangeInclusive<u32>>,
    /// Makes an encoder for samples of one of the format's own rates.
    pub(super) new_encoder: fn(&EncoderConfig) -> Result<Box<dyn Encoder>, EncodeError>,
}

impl Format {
    /// An encoder at the start of a stream.
    pub fn encoder(&self, config: &EncoderConfig) -> Result<Box<dyn Encoder>, EncodeError> {
        if config.total_samples.is_none() && !self.streams {
            return Err(EncodeError::LengthRequired { format: self.name });
        }
        let (rate_in_hz, rate_out_hz) = (config.sample_rate_hz, self.check(config)?);
        let length = |samples| resampled_length(samples, rate_in_hz, rate_out_hz);
        let encoder = (self.new_encoder)(&EncoderConfig {
            sample_rate_hz: rate_out_hz,
            output_rate_hz: None,
            bit_rate: config.bit_rate,
            total_samples: config.total_samples.map(length),
        })?;
        if rate_in_hz == rate_out_hz {
            return Ok(encoder);
        }
        Ok(Box::new(Resampled::new(rate_in_hz, rate_out_hz, encoder)?))
    }

    /// Checks the rates that are asked for; returns the sample rate of the encoded audio.
    ///
    /// # Errors
    /// [`EncodeError::SampleRate`], [`EncodeError::BitRate`]: the format does not have the rate.
    pub fn check(&self, config: &EncoderConfig) -> Result<u32, EncodeError> {
        if let Some(bit_rate) = config.bit_rate {
            self.check_bit_rate(bit_rate)?;
        }
        let own = config.sample_rate_hz;
        let has = |rate: u32| self.sample_rates_hz.contains(&rate) || (self.keeps_rate && rate == own);
        match config.output_rate_hz {
            Some(rate) if has(rate) => Ok(rate),
            Some(rate_hz) => {
                let offered: Vec<String> = self.sample_rates_hz.iter().map(u32::to_string).collect();
                Err(EncodeError::SampleRate { format: self.name, rate_hz, offered: offered.join(", ") })
            }
            None if has(own) => Ok(own),
            None => {
                let rates = self.sample_rates_hz.iter();
                let higher = rates.clone().find(|rate| **rate >= own);
                Ok(*higher.or(rates.last()).unwrap_or(&own))
            }
        }
    }

    fn check_bit_rate(&self, bit_rate: u32) -> Result<(), EncodeError> {
        let remedy = match &self.bit_rates {
            Some(rates) if rates.contains(&bit_rate) => return Ok(()),
            Some(rates) => format!("use {} to {}", rates.start(), rates.end()),
            None => "leave it out, it follows from the samples".to_owned(),
        };
        Err(EncodeError::BitRate { format: self.name, bit_rate, remedy })
    }

    /// Encodes a whole signal into `sink`, block by block.
    pub fn write_all(
        &self,
        samples: &[f32],
        sample_rate_hz: u32,
        sink: &mut impl Write,
    ) -> Result<(), EncodeError> {
        let mut encoder = self.encoder(&EncoderConfig::whole(sample_rate_hz, samples.len() as u64))?;
        for block in samples.chunks(BLOCK_SAMPLES) {
            sink.write_all(&encoder.push(block)?)?;
        }
        sink.write_all(&encoder.finish()?)?;
        Ok(sink.flush()?)
    }

    /// Encodes a whole signal into memory.
    pub fn encode_all(&self, samples: &[f32], sample_rate_hz: u32) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::with_capacity(64 + samples.len() * 2);
        self.write_all(samples, sample_rate_hz, &mut bytes)?;
        Ok(bytes)
    }
}
