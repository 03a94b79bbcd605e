//! The interface of a format: its properties, and the encoder of one stream. Knows no format.

use std::fmt::Debug;
use std::io::Write;

/// Samples that [`Format::write_all`] encodes at a time.
const BLOCK_SAMPLES: usize = 1 << 14;

/// Why audio could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The format's header holds the length, and the length is not known.
    #[error("{format} needs the number of samples before the first of them and cannot be streamed")]
    LengthRequired {
        /// Name of the format.
        format: &'static str,
    },
    /// The format's header cannot express the length.
    #[error("{samples} samples are more than a {format} file holds; split the audio")]
    TooLong {
        /// Name of the format.
        format: &'static str,
        /// Number of samples.
        samples: u64,
    },
    /// The file cannot be created.
    #[error("cannot create {path}")]
    Create {
        /// Path of the file.
        path: String,
        /// What the system answered.
        #[source]
        source: std::io::Error,
    },
    /// The sink refuses the bytes.
    #[error("cannot write the encoded audio")]
    Write(#[from] std::io::Error),
}

/// The state of one encoded stream of mono audio.
pub trait Encoder: Debug + Send {
    /// Encodes samples in −1.0..=1.0 (clipped) and returns the bytes that are complete. The first call returns the
    /// header, too, also without samples.
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError>;

    /// Ends the stream and returns its remaining bytes. Nothing may be pushed after this.
    fn finish(&mut self) -> Result<Vec<u8>, EncodeError>;
}

/// Parameters of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Samples per second.
    pub sample_rate_hz: u32,
    /// Number of samples that will be pushed; `None` for a stream of unknown length.
    pub total_samples: Option<u64>,
}

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
    pub(super) new_encoder: fn(&EncoderConfig) -> Result<Box<dyn Encoder>, EncodeError>,
}

impl Format {
    /// An encoder at the start of a stream.
    pub fn encoder(&self, config: &EncoderConfig) -> Result<Box<dyn Encoder>, EncodeError> {
        if config.total_samples.is_none() && !self.streams {
            return Err(EncodeError::LengthRequired { format: self.name });
        }
        (self.new_encoder)(config)
    }

    /// Encodes a whole signal into `sink`, block by block.
    pub fn write_all(
        &self,
        samples: &[f32],
        sample_rate_hz: u32,
        sink: &mut impl Write,
    ) -> Result<(), EncodeError> {
        let total_samples = Some(samples.len() as u64);
        let mut encoder = self.encoder(&EncoderConfig { sample_rate_hz, total_samples })?;
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
