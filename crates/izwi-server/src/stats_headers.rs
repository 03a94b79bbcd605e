//! The numbers of a finished request, as headers or trailers of its response, and its server-sent events.

use axum::http::{HeaderMap, HeaderValue};
use bytes::Bytes;
use izwi_core::engine::RequestStats;
use serde::Serialize;

/// Names of what [`of`] gives, for the `Trailer` header.
pub(crate) const NAMES: &str = "X-RTF, X-Audio-Duration-Seconds, X-Generation-Time-Ms, X-Finish-Reason";

/// The numbers of a finished request.
pub(crate) fn of(stats: &RequestStats) -> HeaderMap {
    let values = [
        ("x-rtf", format!("{:.4}", stats.rtf())),
        ("x-audio-duration-seconds", format!("{:.3}", stats.audio_duration.as_secs_f64())),
        ("x-generation-time-ms", stats.generation_time.as_millis().to_string()),
        ("x-finish-reason", stats.finish_reason.label().to_owned()),
    ];
    let mut numbers = HeaderMap::new();
    for (name, value) in values {
        if let Ok(value) = HeaderValue::from_str(&value) {
            numbers.insert(name, value);
        }
    }
    numbers
}

/// One server-sent event. <https://html.spec.whatwg.org/multipage/server-sent-events.html>
pub(crate) fn event<T: Serialize>(event: &T) -> Bytes {
    // Serializing strings and numbers cannot fail.
    let json = serde_json::to_string(event).unwrap_or_default();
    format!("data: {json}\n\n").into()
}
