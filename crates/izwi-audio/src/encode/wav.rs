//! WAV out: whole files through `hound`, and the header of a stream whose length is not known yet.

use std::io::{Cursor, Seek, Write};
use std::path::Path;

use crate::pcm;

/// Why a WAV could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WavError {
    /// The file could not be created.
    #[error("cannot create {path}")]
    Create {
        /// The path that was asked for.
        path: String,
        /// What the system answered.
        #[source]
        source: std::io::Error,
    },
    /// The encoder or the sink failed.
    #[error("cannot write wav data")]
    Encode(#[from] hound::Error),
}

/// Writes mono 16-bit PCM to `path`.
///
/// # Errors
/// The file cannot be created or written, or the audio is longer than a WAV can hold (4 GiB).
pub fn write_file(path: &Path, samples: &[f32], sample_rate_hz: u32) -> Result<(), WavError> {
    let file = std::fs::File::create(path)
        .map_err(|source| WavError::Create { path: path.display().to_string(), source })?;
    encode(std::io::BufWriter::new(file), samples, sample_rate_hz)
}

/// A complete mono 16-bit PCM file in memory.
///
/// # Errors
/// The audio is longer than a WAV can hold (4 GiB).
pub fn to_bytes(samples: &[f32], sample_rate_hz: u32) -> Result<Vec<u8>, WavError> {
    let mut bytes = Cursor::new(Vec::with_capacity(44 + samples.len() * 2));
    encode(&mut bytes, samples, sample_rate_hz)?;
    Ok(bytes.into_inner())
}

fn encode<W: Write + Seek>(sink: W, samples: &[f32], sample_rate_hz: u32) -> Result<(), WavError> {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: sample_rate_hz,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::new(sink, spec)?;
    for &sample in samples {
        writer.write_sample(pcm::to_i16(sample))?;
    }
    Ok(writer.finalize()?)
}

/// The 44-byte header of a mono 16-bit PCM stream of unknown length.
///
/// Both size fields hold the largest value, the convention players and ffmpeg accept for streams
/// (RIFF/WAVE layout: <http://soundfile.sapp.org/doc/WaveFormat/>).
pub fn streaming_header(sample_rate_hz: u32) -> [u8; 44] {
    header(sample_rate_hz, u32::MAX)
}

/// The 44-byte header of `bytes` bytes of mono 16-bit PCM.
pub fn header(sample_rate_hz: u32, bytes: u32) -> [u8; 44] {
    let mut header = [0u8; 44];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        header[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(b"RIFF");
    put(&bytes.saturating_add(36).to_le_bytes());
    put(b"WAVEfmt ");
    put(&16u32.to_le_bytes());
    put(&1u16.to_le_bytes());
    put(&1u16.to_le_bytes());
    put(&sample_rate_hz.to_le_bytes());
    put(&(sample_rate_hz * 2).to_le_bytes());
    put(&2u16.to_le_bytes());
    put(&16u16.to_le_bytes());
    put(b"data");
    put(&bytes.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_back() {
        let samples: Vec<f32> = (0..480).map(|i| (i as f32 / 240.0) - 1.0).collect();
        let bytes = to_bytes(&samples, 24_000).unwrap();
        let reader = hound::WavReader::new(Cursor::new(bytes)).unwrap();
        assert_eq!(reader.spec().sample_rate, 24_000);
        let back: Vec<i16> = reader.into_samples().map(Result::unwrap).collect();
        assert_eq!(back, samples.iter().map(|&s| pcm::to_i16(s)).collect::<Vec<_>>());
    }

    #[test]
    fn the_streaming_header_has_the_layout_hound_writes() {
        let file = to_bytes(&[0.0; 4], 24_000).unwrap();
        let stream = streaming_header(24_000);
        assert_eq!(stream[..4], file[..4]);
        assert_eq!(stream[8..40], file[8..40], "everything but the two sizes");
    }

    #[test]
    fn a_missing_folder_is_named() {
        let error = write_file(Path::new("/nonexistent/x.wav"), &[0.0], 24_000).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/x.wav"));
    }
}
