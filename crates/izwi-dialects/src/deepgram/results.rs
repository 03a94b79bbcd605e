//! Transcripts in Deepgram's shapes: words, alternatives, results, metadata. Knows no request.

use std::sync::Arc;
use std::time::SystemTime;

use izwi_core::engine::Segment;
use izwi_server::live::LiveWord;
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
    /// Who says it, from 0; absent where it was not asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker: Option<u32>,
    /// The name of a saved speaker.
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker_name: Option<Arc<str>>,
}

impl Word {
    fn new(text: &str, start: f64, end: f64, confidence: f32) -> Self {
        let punctuated_word = text.trim().to_owned();
        let word = punctuated_word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
        Self { word, start, end, confidence, punctuated_word, speaker: None, speaker_name: None }
    }
}

/// Milliseconds as seconds.
pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1_000.0
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
    /// The transcript of segments.
    pub(super) fn of(segments: &[Segment]) -> Self {
        let text: String = segments.iter().map(|segment| segment.text.as_str()).collect();
        let words = segments.iter().flat_map(|segment| {
            segment.words.iter().map(|word| Word {
                speaker: segment.speaker,
                speaker_name: segment.speaker_name.clone(),
                ..Word::new(&word.text, word.start_s, word.end_s, word.probability)
            })
        });
        Self::new(&text, words)
    }

    /// A text of live audio, and its words.
    pub(super) fn of_live(
        text: &str,
        words: &[LiveWord],
        speaker: impl Fn(&LiveWord) -> Option<(u32, Option<Arc<str>>)>,
    ) -> Self {
        let has_sound = |word: &LiveWord| word.text.contains(char::is_alphanumeric);
        // Marks alone belong to the word before.
        let words = words.chunk_by(|_, next| !has_sound(next)).map(|with_marks| {
            let written: String = with_marks.iter().map(|word| word.text.as_str()).collect();
            let LiveWord { start_ms, end_ms, probability, .. } = with_marks[0];
            let (speaker, speaker_name) = speaker(&with_marks[0]).unzip();
            let speaker_name = speaker_name.flatten();
            Word {
                speaker,
                speaker_name,
                ..Word::new(&written, seconds(start_ms), seconds(end_ms), probability)
            }
        });
        Self::new(text, words)
    }

    fn new(text: &str, words: impl Iterator<Item = Word>) -> Self {
        let words: Vec<Word> = words.collect();
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
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    speaker_name: Option<Arc<str>>,
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
            speaker: segment.speaker,
            speaker_name: segment.speaker_name.clone(),
            alternative: Alternative::of(std::slice::from_ref(segment)),
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
        let alternative = Alternative::of(&[segment]);
        assert_eq!((alternative.transcript.as_str(), alternative.confidence), ("And so, my", 0.5));
        let so = &alternative.words[1];
        assert_eq!(
            (so.word.as_str(), so.punctuated_word.as_str(), so.start, so.end),
            ("so", "so,", 0.5, 1.0)
        );
        assert_eq!(Alternative::of(&[]).confidence, 0.0);
    }
}
