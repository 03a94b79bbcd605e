//! WAV: mono 16-bit PCM after a RIFF header. Layout: <http://soundfile.sapp.org/doc/WaveFormat/>.

use std::io::BufWriter;
use std::path::Path;

use super::SAMPLE_RATES_HZ;
use super::encoder::{EncodeError, Encoder, EncoderConfig};
use super::format::Format;
use crate::pcm;

/// Mono 16-bit PCM in a RIFF file.
pub const WAV: Format = Format {
    name: "wav",
    encoding: "wav",
    media_type: Some("audio/wav"),
    extensions: &["wav", "wave"],
    sample_bytes: Some(2),
    streams: true,
    sample_rates_hz: SAMPLE_RATES_HZ,
    keeps_rate: true,
    bit_rates: None,
    new_encoder: |config| Ok(Box::new(WavEncoder::new(config)?)),
};

/// Bytes of the header, which ends where the samples begin.
pub const HEADER_BYTES: usize = 44;
/// Bytes of a sample.
const SAMPLE_BYTES: u32 = 2;
/// Bytes of the header that the RIFF size counts.
const COUNTED_HEADER_BYTES: u32 = 36;

#[derive(Debug)]
struct WavEncoder {
    /// `None` once it was written.
    header: Option<[u8; HEADER_BYTES]>,
}

impl WavEncoder {
    fn new(config: &EncoderConfig) -> Result<Self, EncodeError> {
        let header = match config.total_samples {
            None => streaming_header(config.sample_rate_hz),
            Some(samples) => {
                let bytes = samples.checked_mul(u64::from(SAMPLE_BYTES));
                let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok());
                let bytes = bytes.filter(|bytes| *bytes <= u32::MAX - COUNTED_HEADER_BYTES);
                let bytes = bytes.ok_or(EncodeError::TooLong { format: WAV.name, samples })?;
                header(config.sample_rate_hz, bytes)
            }
        };
        Ok(Self { header: Some(header) })
    }

    /// The header before the first sample, nothing after it.
    fn pending_header(&mut self) -> Vec<u8> {
        self.header.take().map_or_else(Vec::new, Vec::from)
    }
}

impl Encoder for WavEncoder {
    fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = self.pending_header();
        pcm::write_i16_le(samples, &mut bytes);
        Ok(bytes)
    }

    fn finish(&mut self) -> Result<Vec<u8>, EncodeError> {
        Ok(self.pending_header())
    }
}

/// Writes a whole file to `path`.
pub fn write_file(path: impl AsRef<Path>, samples: &[f32], sample_rate_hz: u32) -> Result<(), EncodeError> {
    let path = path.as_ref();
    let file = std::fs::File::create(path)
        .map_err(|source| EncodeError::Create { path: path.display().to_string(), source })?;
    WAV.write_all(samples, sample_rate_hz, &mut BufWriter::new(file))
}

/// A whole file in memory.
pub fn to_bytes(samples: &[f32], sample_rate_hz: u32) -> Result<Vec<u8>, EncodeError> {
    WAV.encode_all(samples, sample_rate_hz)
}

/// A whole file in memory, of samples that are 16-bit already. Players read one of more than 4 GiB as a stream.
pub fn from_i16(samples: &[i16], sample_rate_hz: u32) -> Vec<u8> {
    let bytes = u32::try_from(size_of_val(samples)).unwrap_or(u32::MAX);
    let mut file = Vec::with_capacity(HEADER_BYTES + size_of_val(samples));
    file.extend_from_slice(&header(sample_rate_hz, bytes));
    file.extend(samples.iter().flat_map(|sample| sample.to_le_bytes()));
    file
}

/// The header of a stream of unknown length.
///
/// Both size fields hold the largest value, the convention that players and ffmpeg accept for streams.
pub fn streaming_header(sample_rate_hz: u32) -> [u8; HEADER_BYTES] {
    header(sample_rate_hz, u32::MAX)
}

/// The header of `bytes` bytes of samples.
pub fn header(sample_rate_hz: u32, bytes: u32) -> [u8; HEADER_BYTES] {
    let mut header = [0u8; HEADER_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"RIFF");
    put(&bytes.saturating_add(COUNTED_HEADER_BYTES).to_le_bytes());
    put(b"WAVEfmt ");
    put(&16u32.to_le_bytes());
    put(&1u16.to_le_bytes());
    put(&1u16.to_le_bytes());
    put(&sample_rate_hz.to_le_bytes());
    put(&(sample_rate_hz.saturating_mul(SAMPLE_BYTES)).to_le_bytes());
    put(&2u16.to_le_bytes());
    put(&16u16.to_le_bytes());
    put(b"data");
    put(&bytes.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_file_equals_the_one_that_hound_writes() {
        let samples: Vec<f32> = (0..480).map(|i| (i as f32 / 240.0) - 1.0).collect();
        let spec = hound::WavSpec {
            channels: 1,
            sample_rate: 24_000,
            bits_per_sample: 16,
            sample_format: hound::SampleFormat::Int,
        };
        let mut expected = Cursor::new(Vec::new());
        let mut writer = hound::WavWriter::new(&mut expected, spec).unwrap();
        for &sample in &samples {
            writer.write_sample(pcm::to_i16(sample)).unwrap();
        }
        writer.finalize().unwrap();
        let expected = expected.into_inner();
        assert_eq!(to_bytes(&samples, 24_000).unwrap(), expected);
        let samples: Vec<i16> = samples.iter().map(|sample| pcm::to_i16(*sample)).collect();
        assert_eq!(from_i16(&samples, 24_000), expected);
    }

    #[test]
    fn a_stream_differs_from_a_file_in_its_sizes_alone() {
        let file = to_bytes(&[0.5; 4], 24_000).unwrap();
        let config = EncoderConfig::streamed(24_000);
        let mut encoder = WAV.encoder(&config).unwrap();
        let stream =
            [encoder.push(&[]).unwrap(), encoder.push(&[0.5; 4]).unwrap(), encoder.finish().unwrap()]
                .concat();
        assert_eq!(stream[..HEADER_BYTES], streaming_header(24_000));
        assert_eq!((&stream[..4], &stream[8..40], &stream[44..]), (&file[..4], &file[8..40], &file[44..]));
    }

    #[test]
    fn an_empty_signal_gives_a_header() {
        assert_eq!(to_bytes(&[], 24_000).unwrap(), header(24_000, 0));
    }

    #[test]
    fn a_length_above_4_gib_is_refused() {
        for (samples, is_taken) in
            [((u64::from(u32::MAX) - 36) / 2, true), (1 << 31, false), (u64::MAX, false)]
        {
            let config = EncoderConfig::whole(24_000, samples);
            assert_eq!(WAV.encoder(&config).is_ok(), is_taken, "{samples}");
        }
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = write_file(Path::new("/nonexistent/x.wav"), &[0.0], 24_000).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.wav"));
    }
}
