//! The statistics of a finished request, as headers or trailers of its response.

use axum::http::{HeaderMap, HeaderValue};
use izwi_core::engine::RequestStats;

/// Names of the headers of [`of`], for the `Trailer` header.
pub(crate) const NAMES: &str = "X-RTF, X-Audio-Duration-Seconds, X-Generation-Time-Ms, X-Finish-Reason";

/// Headers with the statistics of a finished request.
pub(crate) fn of(stats: &RequestStats) -> HeaderMap {
    let values = [
        ("x-rtf", format!("{:.4}", stats.rtf())),
        ("x-audio-duration-seconds", format!("{:.3}", stats.audio_duration.as_secs_f64())),
        ("x-generation-time-ms", stats.generation_time.as_millis().to_string()),
        ("x-finish-reason", stats.finish_reason.label().to_owned()),
    ];
    let mut headers = HeaderMap::new();
    for (name, value) in values {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    headers
}
