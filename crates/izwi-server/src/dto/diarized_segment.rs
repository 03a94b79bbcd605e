//! A segment of a transcript with speakers, in a body or as an event.

use izwi_core::engine::Segment;
use izwi_core::engine::speakers::label;
use serde::Serialize;
use utoipa::ToSchema;

use super::seconds::rounded;
use super::timed_segment::VerboseWord;

/// The name of a speaker where nobody was heard.
const UNKNOWN: &str = "unknown";

/// What one speaker says.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiarizedSegment {
    /// `seg_` and its number, from 0.
    id: String,
    start: f64,
    end: f64,
    /// The name of a known speaker; others are `A`, `B` and so on, in the order in which they begin.
    speaker: String,
    text: String,
    /// With `word` in `timestamp_granularities`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    words: Option<Vec<VerboseWord>>,
}

impl DiarizedSegment {
    /// The segment of this number, `with_words` or without.
    pub(crate) fn new((number, segment): (usize, &Segment), with_words: bool) -> Self {
        Self {
            id: format!("seg_{number}"),
            start: rounded(segment.start_s),
            end: rounded(segment.end_s),
            speaker: label(segment).unwrap_or_else(|| UNKNOWN.to_owned()),
            text: segment.text.trim().to_owned(),
            words: with_words.then(|| segment.words.iter().map(VerboseWord::from).collect()),
        }
    }
}
