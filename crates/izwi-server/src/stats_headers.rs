//! What was predicted for a request and what is left out of its text as headers, and its statistics as headers or
//! trailers of its response.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use izwi_core::engine::{Prediction, RequestStats};
use izwi_types::TextNotes;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

/// Names of the headers of [`of`], for the `Trailer` header.
pub(crate) const NAMES: &str = "X-RTF, X-Audio-Duration-Seconds, X-Generation-Time-Ms, X-Finish-Reason";

/// Headers with the statistics of a finished request.
pub fn of(stats: &RequestStats) -> HeaderMap {
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

/// Headers with what the model says otherwise than it is written; none if it says everything. `suggested` is a model that
/// speaks the first foreign language.
pub(crate) fn of_notes(notes: &TextNotes, suggested: Option<&str>) -> HeaderMap {
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let marks: Vec<String> = notes.markup.iter().map(|mark| encoded(mark)).collect();
    let mut headers = headers([
        ("x-unspoken-characters", encoded(&notes.unspoken)),
        ("x-ignored-markup", marks.join(",")),
        ("x-foreign-languages", notes.foreign.join(",")),
        ("x-suggested-model", suggested.unwrap_or_default().to_owned()),
    ]);
    let absent: Vec<HeaderName> =
        headers.iter().filter(|(_, value)| value.is_empty()).map(|(name, _)| name.clone()).collect();
    for name in absent {
        headers.remove(name);
    }
    headers
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
