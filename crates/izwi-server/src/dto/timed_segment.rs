//! A segment of a transcript in progress, and words with their times, which whole transcripts have as well.

use izwi_core::engine::{Segment, Word};
use serde::Serialize;
use utoipa::ToSchema;

use super::seconds::rounded;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VerboseWord {
    word: String,
    start: f64,
    end: f64,
}

impl From<&Word> for VerboseWord {
    fn from(word: &Word) -> Self {
        Self { word: word.text.trim().to_owned(), start: rounded(word.start_s), end: rounded(word.end_s) }
    }
}

/// A segment of a transcript in progress. Times in seconds.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TimedSegment {
    start: f64,
    end: f64,
    /// Its text, with the space before it.
    text: String,
    /// With `word` in `timestamp_granularities`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    words: Option<Vec<VerboseWord>>,
}

impl TimedSegment {
    /// A segment `with_words` or without.
    pub(crate) fn new(segment: &Segment, with_words: bool) -> Self {
        Self {
            start: rounded(segment.start_s),
            end: rounded(segment.end_s),
            text: segment.text.clone(),
            words: with_words.then(|| segment.words.iter().map(VerboseWord::from).collect()),
        }
    }
}
