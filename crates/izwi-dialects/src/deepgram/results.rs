//! Transcripts in Deepgram's shapes: words, alternatives, results, metadata. Knows no request.

use std::time::SystemTime;

use izwi_core::engine::Segment;
use serde::Serialize;

/// A word with its times, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Word {
    /// In lower case, without punctuation.
    word: String,
    pub(super) start: f64,
    pub(super) end: f64,
    confidence: f32,
    /// As it is written.
    punctuated_word: String,
}

/// A transcript.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Alternative {
    pub(super) transcript: String,
    /// Mean probability of the words; 0 without one.
    pub(super) confidence: f32,
    pub(super) words: Vec<Word>,
}

impl Alternative {
    /// The transcript of segments of audio that begins at `offset_s`.
    pub(super) fn of(segments: &[Segment], offset_s: f64) -> Self {
        let text: String = segments.iter().map(|segment| segment.text.as_str()).collect();
        let words: Vec<Word> = segments
            .iter()
            .flat_map(|segment| &segment.words)
            .map(|word| {
                let written = word.text.trim();
                Word {
                    word: written.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase(),
                    start: offset_s + word.start_s,
                    end: offset_s + word.end_s,
                    confidence: word.probability,
                    punctuated_word: written.to_owned(),
                }
            })
            .collect();
        let sum: f32 = words.iter().map(|word| word.confidence).sum();
        let confidence = if words.is_empty() { 0.0 } else { sum / words.len() as f32 };
        Self { transcript: text.trim().to_owned(), confidence, words }
    }
}

/// A sentence or the like, of `utterances`.
#[derive(Debug, Serialize)]
pub(super) struct Utterance {
    start: f64,
    end: f64,
    channel: u32,
    id: String,
    #[serde(flatten)]
    alternative: Alternative,
}

impl Utterance {
    pub(super) fn of(number: usize, segment: &Segment) -> Self {
        Self {
            start: segment.start_s,
            end: segment.end_s,
            channel: 0,
            id: format!("utterance-{number}"),
            alternative: Alternative::of(std::slice::from_ref(segment), 0.0),
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct ModelInfo {
    name: String,
    version: &'static str,
    arch: &'static str,
}

impl ModelInfo {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), version: env!("CARGO_PKG_VERSION"), arch: "izwi" }
    }
}

/// A digest as text.
pub(super) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The time now, as RFC 3339 has it.
pub(super) fn now() -> String {
    humantime::format_rfc3339_millis(SystemTime::now()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_told_as_written_and_bare() {
        let word = |text: &str, start_s, probability| izwi_types::Word {
            text: text.to_owned(),
            start_s,
            end_s: start_s + 0.5,
            probability,
        };
        let segment = Segment {
            text: " And so, my".to_owned(),
            words: vec![word(" And", 0.0, 1.0), word(" so,", 0.5, 0.5), word(" my", 1.0, 0.0)],
            ..Segment::default()
        };
        let alternative = Alternative::of(&[segment], 10.0);
        assert_eq!((alternative.transcript.as_str(), alternative.confidence), ("And so, my", 0.5));
        let so = &alternative.words[1];
        assert_eq!(
            (so.word.as_str(), so.punctuated_word.as_str(), so.start, so.end),
            ("so", "so,", 10.5, 11.0)
        );
        assert_eq!(Alternative::of(&[], 0.0).confidence, 0.0);
    }
}
