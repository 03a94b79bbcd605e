//! What was predicted for a request and what is left out of its text as headers, and its statistics as headers or
//! trailers of its response.

use axum::http::{HeaderMap, HeaderValue};
use izwi_core::engine::{Prediction, RequestStats};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

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
    headers(values)
}

/// Headers with what was predicted for a live stream.
pub(crate) fn of_prediction(prediction: &Prediction) -> HeaderMap {
    headers([
        ("x-predicted-first-audio-ms", prediction.first_audio.as_millis().to_string()),
        ("x-predicted-rtf", format!("{:.3}", prediction.rtf)),
        ("x-prebuffer-ms", prediction.prebuffer.as_millis().to_string()),
    ])
}

/// A header with the characters that the model leaves out, percent-encoded; none if it says everything.
pub(crate) fn of_unspoken(unspoken: &str) -> HeaderMap {
    if unspoken.is_empty() {
        return HeaderMap::new();
    }
    headers([("x-unspoken-characters", utf8_percent_encode(unspoken, NON_ALPHANUMERIC).to_string())])
}

fn headers<const N: usize>(values: [(&'static str, String); N]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in values {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    headers
}
