//! PCM of any width and number of channels as 16-bit mono. Knows no engine.

use izwi_server::ApiError;

use super::event::AudioFormat;

impl AudioFormat {
    /// The mean of the channels of each frame, as 16-bit samples, little-endian.
    ///
    /// # Errors
    /// The last frame is not whole.
    pub(super) fn mono(self, audio: &[u8]) -> Result<Vec<u8>, ApiError> {
        let frame = usize::from(self.width) * usize::from(self.channels);
        if !audio.len().is_multiple_of(frame) {
            let message =
                format!("{} bytes are no whole frames of {frame} bytes; send whole frames", audio.len());
            return Err(ApiError::invalid("payload_length", message));
        }
        let mean = |frame: &[u8]| {
            let samples = frame.chunks_exact(usize::from(self.width)).map(sample);
            // The upper half of 32 bits.
            ((samples.map(i64::from).sum::<i64>() / i64::from(self.channels)) >> 16) as i16
        };
        Ok(audio.chunks_exact(frame).flat_map(|frame| mean(frame).to_le_bytes()).collect())
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

    #[test]
    fn channels_are_mixed_and_frames_are_whole() {
        let stereo = AudioFormat { rate_hz: 8_000, width: 2, channels: 2 };
        let frames = [[100i16, 300], [-50, 50]].concat();
        let bytes: Vec<u8> = frames.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        let mono = [200i16, 0].map(i16::to_le_bytes).concat();
        assert_eq!(stereo.mono(&bytes).unwrap(), mono);
        assert_eq!(stereo.mono(&bytes[1..]).unwrap_err().param(), Some("payload_length"));
    }
}
