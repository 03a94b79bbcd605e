//! Chunk length of WebSocket sessions.

use crate::error::ApiError;
use crate::extract::check_range;

/// Range and default of `chunk_ms`.
const CHUNK_MS: std::ops::RangeInclusive<u64> = 20..=2_000;
const DEFAULT_CHUNK_MS: u64 = 200;

/// Samples in a chunk of `chunk_ms`.
pub(super) fn samples(chunk_ms: Option<u64>, sample_rate_hz: u32) -> Result<usize, ApiError> {
    let chunk_ms = check_range("chunk_ms", chunk_ms.unwrap_or(DEFAULT_CHUNK_MS), &CHUNK_MS)?;
    Ok((u64::from(sample_rate_hz) * chunk_ms / 1_000) as usize)
}
