//! Encoders: mono samples in, bytes of an audio format out, block by block.
//!
//! Owns the table of formats; a format is one file next to this one and one line in [`FORMATS`]. Knows no protocol and
//! no client.

mod comments;
mod encoder;
mod flac;
mod format;
mod g711;
mod mp3;
mod opus;
mod pcm;
mod resampled;
#[cfg(test)]
mod round_trip;
pub mod wav;

pub use encoder::{EncodeError, Encoder, EncoderConfig};
pub use flac::FLAC;
pub use format::Format;
pub use g711::{ALAW, ULAW};
pub use mp3::MP3;
pub use opus::OPUS;
pub use pcm::{F32LE, S16LE};
pub use wav::WAV;

/// Every format, in the order in which messages list them.
pub static FORMATS: &[Format] = &[MP3, OPUS, FLAC, WAV, S16LE, F32LE, ULAW, ALAW];

/// Sample rates in Hz that can be asked for of formats without losses.
pub const SAMPLE_RATES_HZ: &[u32] = &[8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000];

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
}

#[cfg(test)]
mod tests {
    use super::*;

    // example: format
    /// Unsigned 8-bit PCM without a header.
    const U8: Format = Format {
        name: "pcm_u8",
        encoding: "pcm_u8",
        media_type: None,
        extensions: &[],
        sample_bytes: Some(1),
        streams: true,
        sample_rates_hz: SAMPLE_RATES_HZ,
        keeps_rate: true,
        bit_rates: None,
        new_encoder: |_| Ok(Box::new(U8Encoder)),
    };

    #[derive(Debug)]
    struct U8Encoder;

    impl Encoder for U8Encoder {
        fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
            Ok(samples.iter().map(|sample| (128.0 + sample.clamp(-1.0, 1.0) * 127.0) as u8).collect())
        }

        fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
            Ok(Vec::new())
        }
    }
    // end of example

    #[test]
    fn a_format_is_a_value_and_an_encoder() {
        assert_eq!(U8.encode_all(&[0.0, 1.0, -2.0], 24_000).unwrap(), [128, 255, 1]);
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
        assert!(Format::by_extension("aac").is_none());
    }

    #[test]
    fn a_format_that_needs_its_length_is_not_streamed() {
        let format = Format { streams: false, ..WAV };
        let config = EncoderConfig::streamed(24_000);
        assert!(matches!(format.encoder(&config), Err(EncodeError::LengthRequired { format: "wav" })));
        assert!(format.encode_all(&[0.0; 4], 24_000).is_ok());
    }
}
