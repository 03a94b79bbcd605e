//! A recording that is received in pieces: 16-bit little-endian mono PCM, of bounded length.

use std::time::Duration;

use bytes::Bytes;
use izwi_audio::wav;

use crate::error::ApiError;

/// The pieces received so far.
#[derive(Debug, Default)]
pub(super) struct Recording {
    pcm: Vec<u8>,
    /// It is too long, and its samples were dropped.
    is_too_long: bool,
}

impl Recording {
    /// Appends a piece. A recording longer than `longest` is dropped, and so are its further pieces until
    /// [`take`](Self::take).
    pub(super) fn push(&mut self, pcm: &[u8], rate_hz: u32, longest: Duration) -> Result<(), ApiError> {
        if !pcm.len().is_multiple_of(2) {
            let message = format!("{} bytes are not 16-bit samples; send whole samples", pcm.len());
            return Err(ApiError::invalid("audio", message));
        }
        if self.is_too_long {
            return Ok(());
        }
        let limit = (longest.as_secs_f64() * f64::from(rate_hz)) as usize * 2;
        if self.pcm.len() + pcm.len() > limit {
            *self = Self { pcm: Vec::new(), is_too_long: true };
            return Err(too_long(longest));
        }
        self.pcm.extend_from_slice(pcm);
        Ok(())
    }

    /// The recording as a WAV file; the next one begins.
    pub(super) fn take(&mut self, rate_hz: u32, longest: Duration) -> Result<Bytes, ApiError> {
        let Self { pcm, is_too_long } = std::mem::take(self);
        if is_too_long {
            return Err(too_long(longest));
        }
        if pcm.is_empty() {
            return Err(empty());
        }
        let bytes = u32::try_from(pcm.len()).unwrap_or(u32::MAX);
        let mut file = wav::header(rate_hz, bytes).to_vec();
        file.extend_from_slice(&pcm);
        Ok(file.into())
    }
}

pub(super) fn empty() -> ApiError {
    ApiError::invalid("audio", "nothing was recorded; send 16-bit PCM in binary frames")
}

fn too_long(longest: Duration) -> ApiError {
    let seconds = longest.as_secs();
    ApiError::TooLarge(format!("the recording is longer than {seconds} s; commit it in shorter turns"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_joined_and_a_recording_too_long_is_dropped_whole() {
        let longest = Duration::from_secs(1);
        let mut recording = Recording::default();
        assert_eq!(recording.take(10, longest).unwrap_err().param(), Some("audio"));
        assert_eq!(recording.push(&[1], 10, longest).unwrap_err().param(), Some("audio"));
        recording.push(&[1, 0], 10, longest).unwrap();
        recording.push(&[2, 0, 3, 0], 10, longest).unwrap();
        assert_eq!(recording.take(10, longest).unwrap()[44..], [1, 0, 2, 0, 3, 0]);
        recording.push(&[0; 20], 10, longest).unwrap();
        assert_eq!(recording.push(&[0; 2], 10, longest).unwrap_err().code(), "too_large");
        recording.push(&[0; 2], 10, longest).unwrap();
        assert_eq!(recording.take(10, longest).unwrap_err().code(), "too_large");
        recording.push(&[0; 2], 10, longest).unwrap();
        assert_eq!(recording.take(10, longest).unwrap().len(), 46);
    }
}
