//! Response formats: which of the formats of `izwi-audio` a client can ask for and at which rates, and one utterance encoded
//! chunk by chunk. Knows no bytes of any format.

use bytes::Bytes;
use izwi_audio::chunk::{Chunk, ChunkLengths, Chunker};
use izwi_audio::encode::{EncodeError, Encoder, EncoderConfig, FORMATS, Format};
use izwi_audio::resample::{Resampler, resampled_length};
use izwi_core::engine::StreamingOutput;
use izwi_types::excerpt;

use crate::error::ApiError;

/// Formats without a request for one.
const HTTP_DEFAULT: &str = "mp3";
const SESSION_DEFAULT: &str = "pcm";

/// Reads `response_format` of an HTTP request: a format with its media type.
pub fn for_http(name: Option<&str>) -> Result<(&'static Format, &'static str), ApiError> {
    let offered = http_formats();
    let found = offered.clone().find(|(format, _)| format.name == name.unwrap_or(HTTP_DEFAULT));
    found.ok_or_else(|| unsupported(name, offered.map(|(format, _)| format)))
}

/// The formats that an HTTP request can ask for, with their media types.
pub fn http_formats() -> impl Iterator<Item = (&'static Format, &'static str)> + Clone {
    streamed().filter_map(|format| Some((format, format.media_type?)))
}

/// Reads `response_format` of a WebSocket session.
pub fn for_session(name: Option<&str>) -> Result<&'static Format, ApiError> {
    let found = streamed().find(|format| format.name == name.unwrap_or(SESSION_DEFAULT));
    found.ok_or_else(|| unsupported(name, streamed()))
}

/// The formats that can be sent while audio is generated.
fn streamed() -> impl Iterator<Item = &'static Format> + Clone {
    FORMATS.iter().filter(|format| format.streams)
}

fn unsupported(name: Option<&str>, offered: impl Iterator<Item = &'static Format>) -> ApiError {
    let name = excerpt(name.unwrap_or_default());
    let offered = offered.map(|format| format.name).collect::<Vec<_>>().join(", ");
    let message = format!("response_format '{name}' is not supported; use one of {offered}");
    ApiError::invalid("response_format", message)
}

/// A format with its rates, checked for a model.
#[derive(Debug, Clone, Copy)]
pub struct OutputFormat {
    pub(crate) format: &'static Format,
    /// Sample rate of what is sent.
    pub(crate) sample_rate_hz: u32,
    config: EncoderConfig,
}

impl OutputFormat {
    /// Checks `sample_rate` in Hz and `bit_rate` in bits per second for streams of a model's samples.
    pub fn resolve(
        format: &'static Format,
        sample_rate: Option<u32>,
        bit_rate: Option<u32>,
        model_rate_hz: u32,
    ) -> Result<Self, ApiError> {
        let config =
            EncoderConfig { output_rate_hz: sample_rate, bit_rate, ..EncoderConfig::streamed(model_rate_hz) };
        Ok(Self { format, sample_rate_hz: format.check(&config).map_err(refused)?, config })
    }

    /// The sample rate and the bit rate that were asked for.
    pub(crate) fn rates(&self) -> (Option<u32>, Option<u32>) {
        (self.config.output_rate_hz, self.config.bit_rate)
    }

    /// The encoder of one utterance whose bytes are sent as they come.
    pub fn utterance(&self) -> Result<EncodedUtterance, ApiError> {
        EncodedUtterance::with(self.format, self.config)
    }

    /// The encoder of one utterance that is sent in described chunks; `lengths` are those of the model's chunks at
    /// `sample_rate_hz`.
    pub(crate) fn chunks(&self, lengths: ChunkLengths) -> Result<EncodedChunks, ApiError> {
        EncodedChunks::new(self, lengths).map_err(refused)
    }
}

/// An error of a request's rates or format.
pub(crate) fn refused(error: EncodeError) -> ApiError {
    let param = match error {
        EncodeError::SampleRate { .. } => "sample_rate",
        EncodeError::BitRate { .. } => "bit_rate",
        _ => "response_format",
    };
    ApiError::invalid(param, error.to_string())
}

/// The encoded stream of one utterance.
#[derive(Debug)]
pub struct EncodedUtterance(Box<dyn Encoder>);

impl EncodedUtterance {
    /// An utterance whose samples have the rate of `config`.
    pub fn with(format: &Format, config: EncoderConfig) -> Result<Self, ApiError> {
        format.encoder(&config).map(Self).map_err(refused)
    }

    /// The bytes of the next chunk; with the final chunk the end of the stream.
    pub fn encode(&mut self, chunk: &StreamingOutput) -> Result<Bytes, EncodeError> {
        let mut bytes = self.0.push(&chunk.samples)?;
        if chunk.is_final {
            bytes.extend(self.0.finish()?);
        }
        Ok(bytes.into())
    }
}

/// The encoded stream of one utterance in chunks. Samples are counted at the rate of what is sent.
///
/// In formats whose samples all have the same size, a chunk has the bytes of its samples. Other formats fill their frames
/// first: a chunk has the bytes that are complete by then, perhaps none.
#[derive(Debug)]
pub(crate) struct EncodedChunks {
    /// For samples that change their rate and must be divided into chunks again.
    resampled: Option<Resampled>,
    encoder: Box<dyn Encoder>,
    rate_in_hz: u32,
    rate_out_hz: u32,
    generated_samples: u64,
    sent_chunks: u64,
    sent_samples: u64,
}

#[derive(Debug)]
struct Resampled {
    resampler: Resampler,
    chunker: Chunker,
    lengths: ChunkLengths,
}

/// A part of an utterance, described.
#[derive(Debug)]
pub(crate) struct EncodedChunk {
    /// 0, 1, 2, …
    pub(crate) seq: u64,
    pub(crate) sample_offset: u64,
    pub(crate) samples: u64,
    pub(crate) is_final: bool,
    pub(crate) bytes: Bytes,
}

impl EncodedChunks {
    fn new(output: &OutputFormat, lengths: ChunkLengths) -> Result<Self, EncodeError> {
        let (format, config) = (output.format, output.config);
        let (rate_in_hz, rate_out_hz) = (config.sample_rate_hz, output.sample_rate_hz);
        let is_divided = format.sample_bytes.is_some() && rate_in_hz != rate_out_hz;
        let (resampled, config) = if is_divided {
            let resampler = Resampler::streamed(rate_in_hz, rate_out_hz)?;
            let resampled = Resampled { resampler, chunker: Chunker::new(lengths), lengths };
            (Some(resampled), EncoderConfig { sample_rate_hz: rate_out_hz, ..config })
        } else {
            (None, config)
        };
        let encoder = format.encoder(&config)?;
        let (generated_samples, sent_chunks, sent_samples) = (0, 0, 0);
        Ok(Self { resampled, encoder, rate_in_hz, rate_out_hz, generated_samples, sent_chunks, sent_samples })
    }

    /// Samples of the chunks so far, at the rate of what is sent.
    pub(crate) fn sent_samples(&self) -> u64 {
        self.sent_samples
    }

    /// Samples of the model so far, at its own rate.
    pub(crate) fn generated_samples(&self) -> u64 {
        self.generated_samples
    }

    /// The chunks that the model's next chunk completes.
    pub(crate) fn encode(&mut self, chunk: &StreamingOutput) -> Result<Vec<EncodedChunk>, EncodeError> {
        self.generated_samples += chunk.samples.len() as u64;
        let Some(resampled) = &mut self.resampled else {
            let end = resampled_length(self.generated_samples, self.rate_in_hz, self.rate_out_hz);
            let samples = end.saturating_sub(self.sent_samples);
            return Ok(self.describe(&chunk.samples, samples, chunk.is_final)?.into_iter().collect());
        };
        let pieces = resampled.divide(&chunk.samples, chunk.is_final)?;
        let mut chunks = Vec::with_capacity(pieces.len());
        for piece in pieces {
            chunks.extend(self.describe(&piece.samples, piece.samples.len() as u64, piece.is_final)?);
        }
        Ok(chunks)
    }

    /// `None` for a chunk of neither samples nor bytes, and for an utterance without audio.
    fn describe(
        &mut self,
        pushed: &[f32],
        samples: u64,
        is_final: bool,
    ) -> Result<Option<EncodedChunk>, EncodeError> {
        let mut bytes = self.encoder.push(pushed)?;
        if is_final {
            bytes.extend(self.encoder.finish()?);
        }
        let has_rest = is_final && self.sent_samples > 0 && !bytes.is_empty();
        if samples == 0 && !has_rest {
            return Ok(None);
        }
        let (seq, sample_offset) = (self.sent_chunks, self.sent_samples);
        self.sent_chunks += 1;
        self.sent_samples += samples;
        Ok(Some(EncodedChunk { seq, sample_offset, samples, is_final, bytes: bytes.into() }))
    }
}

impl Resampled {
    fn divide(&mut self, samples: &[f32], is_final: bool) -> Result<Vec<Chunk>, EncodeError> {
        let mut resampled = Vec::new();
        self.resampler.push(samples, &mut resampled)?;
        if is_final {
            self.resampler.finish(&mut resampled)?;
        }
        let mut chunks = self.chunker.push(&resampled);
        if is_final {
            chunks.push(std::mem::replace(&mut self.chunker, Chunker::new(self.lengths)).finish());
        }
        Ok(chunks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_offers_formats_with_a_media_type() {
        let (format, media_type) = for_http(None).unwrap();
        assert_eq!((format.name, media_type), ("mp3", "audio/mpeg"));
        assert_eq!(for_http(Some("pcm")).unwrap().1, "audio/pcm");
        for name in ["pcm_f32", "aac"] {
            let error = for_http(Some(name)).unwrap_err().to_string();
            assert!(error.ends_with("use one of mp3, opus, flac, wav, pcm, ulaw, alaw"), "{error}");
        }
    }

    #[test]
    fn a_session_offers_every_format_and_16_bit_pcm_by_default() {
        assert_eq!(for_session(None).unwrap().encoding, "pcm_s16le");
        assert_eq!(for_session(Some("pcm_f32")).unwrap().encoding, "pcm_f32le");
        let error = for_session(Some("aac")).unwrap_err();
        assert_eq!(error.param(), Some("response_format"));
    }

    #[test]
    fn rates_are_checked_by_format() {
        let resolve = |name, sample_rate, bit_rate| {
            OutputFormat::resolve(for_session(Some(name)).unwrap(), sample_rate, bit_rate, 24_000)
        };
        for (name, sample_rate, expected) in [
            ("pcm", None, 24_000),
            ("pcm", Some(22_050), 22_050),
            ("opus", None, 48_000),
            ("ulaw", None, 8_000),
            ("mp3", Some(44_100), 44_100),
        ] {
            assert_eq!(resolve(name, sample_rate, None).unwrap().sample_rate_hz, expected, "{name}");
        }
        for (name, sample_rate, bit_rate, param, part) in [
            ("wav", Some(12_345), None, "sample_rate", "8000, 16000, 22050, 24000, 32000, 44100, 48000"),
            ("opus", Some(24_000), None, "sample_rate", "one of 48000"),
            ("mp3", None, Some(400_000), "bit_rate", "8000 to 320000"),
            ("flac", None, Some(64_000), "bit_rate", "leave it out"),
        ] {
            let error = resolve(name, sample_rate, bit_rate).unwrap_err();
            assert_eq!(error.param(), Some(param), "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
