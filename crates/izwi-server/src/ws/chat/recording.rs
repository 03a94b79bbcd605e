//! A recording that is received in pieces: 16-bit little-endian mono PCM, of bounded length.

use std::time::Duration;

use bytes::Bytes;
use izwi_audio::wav::{self, HEADER_BYTES};

use crate::error::ApiError;
use crate::upload::UploadMemory;

/// The pieces received so far.
#[derive(Debug)]
pub(super) struct Recording {
    /// Room for the header, then the samples; empty without any.
    file: Vec<u8>,
    memory: UploadMemory,
    /// It is too long, and its samples were dropped.
    is_too_long: bool,
}

impl Recording {
    /// An empty recording that counts in `memory`.
    pub(super) fn new(memory: UploadMemory) -> Self {
        Self { file: Vec::new(), memory, is_too_long: false }
    }

    /// Drops what was recorded.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.memory.fresh());
    }

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
        let length = self.file.len().max(HEADER_BYTES) + pcm.len();
        if length > HEADER_BYTES + limit {
            self.clear();
            self.is_too_long = true;
            return Err(too_long(longest));
        }
        if length > self.file.capacity() {
            let capacity = length + length / 4;
            self.memory.resize(capacity)?;
            self.file.reserve_exact(capacity - self.file.len());
        }
        self.file.resize(self.file.len().max(HEADER_BYTES), 0);
        self.file.extend_from_slice(pcm);
        Ok(())
    }

    /// The recording as a WAV file; the next one begins.
    pub(super) fn take(&mut self, rate_hz: u32, longest: Duration) -> Result<Bytes, ApiError> {
        let next = Self::new(self.memory.fresh());
        let Self { mut file, memory, is_too_long } = std::mem::replace(self, next);
        if is_too_long {
            return Err(too_long(longest));
        }
        if file.len() <= HEADER_BYTES {
            return Err(empty());
        }
        let bytes = u32::try_from(file.len() - HEADER_BYTES).unwrap_or(u32::MAX);
        file[..HEADER_BYTES].copy_from_slice(&wav::header(rate_hz, bytes));
        file.shrink_to_fit();
        memory.into_file(file)
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
    use izwi_core::engine::MemoryBudget;

    use super::*;

    #[test]
    fn pieces_are_joined_and_a_recording_too_long_is_dropped_whole() {
        let longest = Duration::from_secs(1);
        let budget = MemoryBudget::new(Some(2_000));
        let mut recording = Recording::new(UploadMemory::of(&budget, 0));
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
        let file = recording.take(10, longest).unwrap();
        assert_eq!((file.len(), budget.recordings()), (46, 46), "its file counts");
        let longest = Duration::from_secs(1_000);
        assert_eq!(recording.push(&[0; 2_000], 10, longest).unwrap_err().code(), "overloaded");
        assert_eq!(
            recording.take(10, longest).unwrap_err().param(),
            Some("audio"),
            "nothing of it was taken"
        );
        drop(file);
        assert_eq!(budget.recordings(), 0);
    }
}
