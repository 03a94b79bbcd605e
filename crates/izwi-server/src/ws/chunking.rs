//! Chunk length of WebSocket sessions.

use crate::error::ApiError;

/// Range and default of `chunk_ms`.
const CHUNK_MS: std::ops::RangeInclusive<u64> = 20..=2_000;
const DEFAULT_CHUNK_MS: u64 = 200;

/// Samples in a chunk of `chunk_ms`.
pub(super) fn samples(chunk_ms: Option<u64>, sample_rate_hz: u32) -> Result<usize, ApiError> {
    let chunk_ms = chunk_ms.unwrap_or(DEFAULT_CHUNK_MS);
    if !CHUNK_MS.contains(&chunk_ms) {
        let message =
            format!("chunk_ms is {chunk_ms}; it must be between {} and {}", CHUNK_MS.start(), CHUNK_MS.end());
        return Err(ApiError::invalid("chunk_ms", message));
    }
    Ok((u64::from(sample_rate_hz) * chunk_ms / 1_000) as usize)
}
