//! A recording that arrives in chunks of PCM of any width, rate and number of channels, kept as 16-bit mono. Knows no
//! engine.

use std::time::Duration;

use bytes::Bytes;
use izwi_audio::wav::{self, HEADER_BYTES};
use izwi_server::upload::UploadMemory;
use izwi_server::{ApiError, AppState};

use super::event::AudioFormat;

/// Bytes of a kept sample.
const SAMPLE_BYTES: usize = 2;

/// The chunks received so far.
pub(super) struct Recording {
    format: AudioFormat,
    /// Room for the header, then the samples.
    file: Vec<u8>,
    /// The most bytes of the file.
    limit: usize,
    longest: Duration,
    memory: UploadMemory,
}

impl Recording {
    /// A recording of at most `longest`, and of at most the size of an upload.
    pub(super) fn new(state: &AppState, format: AudioFormat, longest: Duration) -> Self {
        let samples = longest.as_secs_f64() * f64::from(format.rate_hz);
        let limit = (samples as usize).saturating_mul(SAMPLE_BYTES).min(state.config().max_upload_bytes);
        Self {
            format,
            file: vec![0; HEADER_BYTES],
            limit: limit.saturating_add(HEADER_BYTES),
            longest,
            memory: UploadMemory::new(state, 0),
        }
    }

    /// Appends a chunk of whole frames.
    pub(super) fn push(&mut self, format: AudioFormat, audio: &[u8]) -> Result<(), ApiError> {
        if format != self.format {
            let message =
                "the format of the audio changes within a recording; send audio-stop and audio-start between";
            return Err(ApiError::OutOfOrder(message));
        }
        let frame = usize::from(format.width) * usize::from(format.channels);
        if !audio.len().is_multiple_of(frame) {
            let message =
                format!("{} bytes are no whole frames of {frame} bytes; send whole frames", audio.len());
            return Err(ApiError::invalid("payload_length", message));
        }
        let bytes = audio.len() / frame * SAMPLE_BYTES;
        if self.file.len() + bytes > self.limit {
            let seconds = self.longest.as_secs();
            let message = format!("the recording is longer than {seconds} s, or too large; send it in parts");
            return Err(ApiError::TooLarge(message));
        }
        self.memory.take(bytes)?;
        for frame in audio.chunks_exact(frame) {
            let samples = frame.chunks_exact(usize::from(format.width)).map(sample);
            let mean = samples.map(i64::from).sum::<i64>() / i64::from(format.channels);
            // The upper half of 32 bits.
            self.file.extend_from_slice(&((mean >> 16) as i16).to_le_bytes());
        }
        Ok(())
    }

    /// The recording as a WAV file, which counts as the recording did.
    pub(super) fn finish(self) -> Result<Bytes, ApiError> {
        let Self { mut file, memory, format, .. } = self;
        let bytes = u32::try_from(file.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        file[..HEADER_BYTES].copy_from_slice(&wav::header(format.rate_hz, bytes));
        memory.into_file(file)
    }
}

/// A sample of 1 to 4 bytes, little-endian, scaled to 32 bits. One byte is unsigned, as in WAV files.
fn sample(bytes: &[u8]) -> i32 {
    if let [byte] = bytes {
        return (i32::from(*byte) - 128) << 24;
    }
    let mut scaled = [0; 4];
    scaled[4 - bytes.len()..].copy_from_slice(bytes);
    i32::from_le_bytes(scaled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_of_every_width_have_the_same_scale() {
        assert_eq!([0u8, 128, 255].map(|byte| sample(&[byte]) >> 24), [-128, 0, 127]);
        for value in [i16::MIN, -1, 0, 1, 1_234, i16::MAX] {
            let two = value.to_le_bytes();
            for bytes in [&two[..], &[9, two[0], two[1]], &[9, 9, two[0], two[1]]] {
                assert_eq!((sample(bytes) >> 16) as i16, value, "{bytes:?}");
            }
        }
    }
}
