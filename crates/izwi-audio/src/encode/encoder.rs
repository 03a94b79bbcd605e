//! The encoder of one stream: its interface, parameters and errors. Knows no format.

use std::fmt::Debug;

use crate::resample::ResampleError;

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
    /// The format does not have this sample rate.
    #[error("{format} has no sample rate of {rate_hz} Hz; use one of {offered}")]
    SampleRate {
        /// Name of the format.
        format: &'static str,
        /// The rate that was asked for.
        rate_hz: u32,
        /// The rates that can be asked for.
        offered: String,
    },
    /// The format does not have this bit rate.
    #[error("{format} has no bit rate of {bit_rate} bits per second; {remedy}")]
    BitRate {
        /// Name of the format.
        format: &'static str,
        /// The rate that was asked for, in bits per second.
        bit_rate: u32,
        /// What to do instead.
        remedy: String,
    },
    /// The samples cannot be brought to the format's sample rate.
    #[error(transparent)]
    Resample(#[from] ResampleError),
    /// The codec failed.
    #[error("{format} cannot encode the audio: {reason}")]
    Codec {
        /// Name of the format.
        format: &'static str,
        /// The codec's message.
        reason: String,
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
    /// Sets what the header tells of the audio, as Vorbis comments (`TITLE`, `ARTIST`, `CHAPTER001`, …), before anything is
    /// pushed. A format whose header has no comments ignores them.
    fn set_comments(&mut self, _comments: &[(String, String)]) {}

    /// Encodes samples in −1.0..=1.0 (clipped) and returns the bytes that are complete; none while a frame is being filled.
    /// The first bytes are the header. However a signal is sliced, its bytes are the same.
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError>;

    /// Ends the stream and returns its remaining bytes. Nothing may be pushed after this.
    fn finish(&mut self) -> Result<Vec<u8>, EncodeError>;
}

/// Parameters of one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderConfig {
    /// Sample rate of the samples that are pushed.
    pub sample_rate_hz: u32,
    /// Sample rate of the encoded audio. `None`: the same where the format has it, else the next higher one that it has.
    pub output_rate_hz: Option<u32>,
    /// Bits per second of a lossy format; `None` for its default.
    pub bit_rate: Option<u32>,
    /// Number of samples that will be pushed; `None` for a stream of unknown length.
    pub total_samples: Option<u64>,
}

impl EncoderConfig {
    /// A stream of unknown length, at the rate of its samples where the format has it.
    pub const fn streamed(sample_rate_hz: u32) -> Self {
        Self { sample_rate_hz, output_rate_hz: None, bit_rate: None, total_samples: None }
    }

    /// A signal of a known length, at the rate of its samples where the format has it.
    pub const fn whole(sample_rate_hz: u32, total_samples: u64) -> Self {
        Self { total_samples: Some(total_samples), ..Self::streamed(sample_rate_hz) }
    }
}
