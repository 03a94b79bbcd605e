//! Lengths of the chunks of a stream, as clients choose them: `chunk_ms` and `first_chunk_ms`.

use std::ops::RangeInclusive;

use izwi_audio::chunk::ChunkLengths;
use izwi_core::engine::EngineCoreRequest;

use crate::error::ApiError;
use crate::extract::check_range;

/// Range and default of `chunk_ms`, and the range of `first_chunk_ms`.
const CHUNK_MS: RangeInclusive<u64> = 20..=2_000;
const DEFAULT_CHUNK_MS: u64 = 200;

/// Lengths of chunks, in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkSizes {
    first: Option<usize>,
    /// `None` for the engine's setting.
    others: Option<usize>,
}

impl ChunkSizes {
    /// Reads `chunk_ms` and `first_chunk_ms`. The first chunk is as long as the others without a length of its own, and
    /// may not be longer.
    pub fn resolve(
        chunk_ms: Option<u64>,
        first_chunk_ms: Option<u64>,
        sample_rate_hz: u32,
    ) -> Result<Self, ApiError> {
        let samples = |ms: u64| (u64::from(sample_rate_hz) * ms / 1_000) as usize;
        let chunk_ms = check_range("chunk_ms", chunk_ms.unwrap_or(DEFAULT_CHUNK_MS), &CHUNK_MS)?;
        let allowed = *CHUNK_MS.start()..=chunk_ms;
        let first = first_chunk_ms.map(|first| check_range("first_chunk_ms", first, &allowed)).transpose()?;
        // A first chunk of the common length is an ordinary one.
        let first = first.filter(|first| *first < chunk_ms).map(samples);
        Ok(Self { first, others: Some(samples(chunk_ms)) })
    }

    /// Reads `first_chunk_ms` of a request whose other chunks have the engine's length of `others` samples.
    pub(crate) fn first_only(
        first_chunk_ms: Option<u64>,
        others: usize,
        sample_rate_hz: u32,
    ) -> Result<Self, ApiError> {
        let chunk_ms = (others as u64 * 1_000 / u64::from(sample_rate_hz.max(1))).min(*CHUNK_MS.end());
        let sizes = Self::resolve(Some(chunk_ms.max(*CHUNK_MS.start())), first_chunk_ms, sample_rate_hz)?;
        Ok(Self { others: None, ..sizes })
    }

    /// The same, for samples that are divided again. Not for requests whose other chunks have the engine's length.
    pub(crate) fn lengths(self) -> ChunkLengths {
        ChunkLengths::new(self.others.unwrap_or_default(), self.first)
    }

    /// The request with chunks of these lengths.
    pub fn of(self, request: EngineCoreRequest) -> EngineCoreRequest {
        let mut request = request.with_first_chunk_samples(self.first);
        request.chunk_samples = self.others;
        request
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chunk_may_be_shorter_but_not_longer() {
        let sizes = |chunk_ms, first_chunk_ms| ChunkSizes::resolve(chunk_ms, first_chunk_ms, 24_000);
        assert_eq!(sizes(None, None), Ok(ChunkSizes { first: None, others: Some(4_800) }));
        assert_eq!(sizes(None, Some(80)), Ok(ChunkSizes { first: Some(1_920), others: Some(4_800) }));
        assert_eq!(sizes(Some(100), Some(100)), Ok(ChunkSizes { first: None, others: Some(2_400) }));
        for (chunk_ms, first_chunk_ms) in [(None, Some(201)), (None, Some(19)), (Some(50), Some(51))] {
            let error = sizes(chunk_ms, first_chunk_ms).unwrap_err();
            assert_eq!(error.param(), Some("first_chunk_ms"), "{error}");
        }
        assert_eq!(sizes(Some(19), Some(10)).unwrap_err().param(), Some("chunk_ms"));
        let http = |first_chunk_ms| ChunkSizes::first_only(first_chunk_ms, 4_800, 24_000);
        assert_eq!(http(Some(80)), Ok(ChunkSizes { first: Some(1_920), others: None }));
        assert_eq!(http(Some(300)).unwrap_err().param(), Some("first_chunk_ms"));
    }
}
