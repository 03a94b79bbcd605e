//! Encoders: mono samples in, bytes of an audio format out, block by block.
//!
//! Owns the table of formats; a format is one file beside this one and one line in [`FORMATS`]. Knows no protocol and
//! no client.

mod pcm;
pub mod wav;

use std::fmt::Debug;
use std::io::Write;

pub use pcm::{F32LE, S16LE};
pub use wav::WAV;

/// Every format, in the order in which messages list them.
pub static FORMATS: &[Format] = &[WAV, S16LE, F32LE];

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
    /// Whether bytes can be sent before the number of samples is known.
    pub streams: bool,
    new_encoder: fn(&EncoderConfig) -> Result<Box<dyn Encoder>, EncodeError>,
}

impl Format {
    /// The format that clients call `name`.
    pub fn by_name(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|format| format.name == name)
    }

    /// The format of files with this extension, in any case.
    pub fn by_extension(extension: &str) -> Option<&'static Self> {
        let extension = extension.to_lowercase();
        FORMATS.iter().find(|format| format.extensions.contains(&extension.as_str()))
    }

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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn signal(length: usize) -> Vec<f32> {
        (0..length).map(|i| (i as f32 * 0.1).sin() * 1.1).collect()
    }

    #[test]
    fn names_and_extensions_are_unique() {
        let mut names: Vec<&str> = FORMATS.iter().map(|format| format.name).collect();
        let mut extensions: Vec<&str> =
            FORMATS.iter().flat_map(|format| format.extensions).copied().collect();
        for list in [&mut names, &mut extensions] {
            let count = list.len();
            list.sort_unstable();
            list.dedup();
            assert_eq!(list.len(), count);
        }
        assert_eq!(Format::by_name("pcm_f32").unwrap().encoding, "pcm_f32le");
        assert_eq!(Format::by_extension("WAV").unwrap().name, "wav");
        assert!(Format::by_extension("mp3").is_none());
    }

    #[test]
    fn a_format_that_needs_its_length_is_not_streamed() {
        let format = Format { streams: false, ..WAV };
        let config = EncoderConfig { sample_rate_hz: 24_000, total_samples: None };
        assert!(matches!(format.encoder(&config), Err(EncodeError::LengthRequired { format: "wav" })));
        assert!(format.encode_all(&[0.0; 4], 24_000).is_ok());
    }

    proptest! {
        #[test]
        fn any_slicing_gives_the_same_bytes(
            lengths in prop::collection::vec(0usize..700, 1..20),
            which in 0..FORMATS.len(),
        ) {
            let total = lengths.iter().sum::<usize>();
            let signal = signal(total);
            let config = EncoderConfig { sample_rate_hz: 24_000, total_samples: Some(total as u64) };
            let mut encoder = FORMATS[which].encoder(&config).unwrap();
            let (mut bytes, mut at) = (Vec::new(), 0);
            for length in lengths {
                bytes.extend(encoder.push(&signal[at..at + length]).unwrap());
                at += length;
            }
            bytes.extend(encoder.finish().unwrap());
            prop_assert_eq!(bytes, FORMATS[which].encode_all(&signal, 24_000).unwrap());
        }
    }
}
