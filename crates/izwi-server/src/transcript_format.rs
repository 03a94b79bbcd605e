//! A transcript as people and programs read it: subtitles, and the verbose JSON form of the OpenAI API.

use std::fmt::Write as _;

use serde::Serialize;

use crate::engine::{Segment, Transcript};

/// The transcript as SubRip subtitles. <https://en.wikipedia.org/wiki/SubRip>
pub fn srt(segments: &[Segment]) -> String {
    let mut out = String::new();
    for (number, segment) in (1..).zip(segments) {
        let (start, end) = (clock(segment.start_s, ','), clock(segment.end_s, ','));
        // Writing to a string cannot fail.
        let _ = write!(out, "{number}\n{start} --> {end}\n{}\n\n", line(segment));
    }
    out
}

/// The transcript as WebVTT captions. <https://www.w3.org/TR/webvtt1/>
pub fn vtt(segments: &[Segment]) -> String {
    let mut out = String::from("WEBVTT\n\n");
    for segment in segments {
        let (start, end) = (clock(segment.start_s, '.'), clock(segment.end_s, '.'));
        let text = line(segment).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = write!(out, "{start} --> {end}\n{text}\n\n");
    }
    out
}

/// One line of text: a blank line or an arrow would end or begin a caption.
fn line(segment: &Segment) -> String {
    let words: Vec<&str> = segment.text.split_whitespace().collect();
    words.join(" ").replace("-->", "->")
}

/// `HH:MM:SS,mmm` with the given separator before the milliseconds.
fn clock(seconds: f64, separator: char) -> String {
    let ms = (seconds.max(0.0) * 1000.0).round() as u64;
    let (h, m, s) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    format!("{h:02}:{m:02}:{s:02}{separator}{:03}", ms % 1_000)
}

/// The verbose JSON form. Times in seconds.
/// <https://platform.openai.com/docs/api-reference/audio/verbose-json-object>
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerboseTranscript {
    /// `transcribe` or `translate`.
    pub task: &'static str,
    /// Code of the language heard; empty when nothing was said.
    pub language: String,
    /// Length of the recording.
    pub duration: f64,
    /// The whole text.
    pub text: String,
    /// Its segments.
    pub segments: Vec<VerboseSegment>,
    /// Its words, where they were asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<VerboseWord>>,
    /// What it is billed by elsewhere.
    pub usage: DurationUsage,
}

/// One segment of [`VerboseTranscript`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerboseSegment {
    /// Its number, from 0.
    pub id: usize,
    /// Start of its window, in frames of 10 ms.
    pub seek: u64,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
    /// Its text, with the space before it.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Temperature it was decoded at.
    pub temperature: f32,
    /// Mean log-probability of its window's tokens.
    pub avg_logprob: f32,
    /// How much its window's text repeats itself.
    pub compression_ratio: f32,
    /// Probability that its window holds no speech.
    pub no_speech_prob: f32,
}

/// One word of [`VerboseTranscript`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VerboseWord {
    /// The word.
    pub word: String,
    /// Start.
    pub start: f64,
    /// End.
    pub end: f64,
}

/// Usage by the length of the recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DurationUsage {
    /// Always `duration`.
    pub r#type: &'static str,
    /// Seconds, rounded up.
    pub seconds: u64,
}

impl DurationUsage {
    /// The usage of a recording of `duration_s` seconds.
    pub fn new(duration_s: f64) -> Self {
        Self { r#type: "duration", seconds: duration_s.max(0.0).ceil() as u64 }
    }
}

impl VerboseTranscript {
    /// The verbose form of a transcript of a recording of `duration_s` seconds, with its words where wanted.
    pub fn new(transcript: &Transcript, translated: bool, duration_s: f64, with_words: bool) -> Self {
        let words = transcript.segments.iter().flat_map(|segment| &segment.words);
        let words = words.map(|word| VerboseWord {
            word: word.text.trim().to_owned(),
            start: rounded(word.start_s),
            end: rounded(word.end_s),
        });
        Self {
            task: if translated { "translate" } else { "transcribe" },
            language: transcript.language.clone().unwrap_or_default(),
            duration: rounded(duration_s),
            text: transcript.text(),
            segments: transcript.segments.iter().enumerate().map(verbose_segment).collect(),
            words: with_words.then(|| words.collect()),
            usage: DurationUsage::new(duration_s),
        }
    }
}

fn verbose_segment((id, segment): (usize, &Segment)) -> VerboseSegment {
    VerboseSegment {
        id,
        seek: (segment.window_start_s.max(0.0) * 100.0).round() as u64,
        start: rounded(segment.start_s),
        end: rounded(segment.end_s),
        text: segment.text.clone(),
        tokens: segment.tokens.clone(),
        temperature: segment.temperature,
        avg_logprob: segment.avg_logprob,
        compression_ratio: segment.compression_ratio,
        no_speech_prob: segment.no_speech_prob,
    }
}

/// To whole milliseconds.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Word;

    fn segments() -> Vec<Segment> {
        let word =
            |text: &str, start_s, end_s| Word { text: text.to_owned(), start_s, end_s, probability: 0.5 };
        let words = vec![word(" Ask", 0.0, 0.4), word(" not.", 0.4, 1.2345)];
        let first = Segment { end_s: 1.2345, text: " Ask not.".to_owned(), words, ..Segment::default() };
        let second = Segment {
            window_start_s: 3600.0,
            start_s: 3661.5,
            end_s: 3662.0,
            text: " a < b\n\n--> c".to_owned(),
            ..Segment::default()
        };
        vec![first, second]
    }

    #[test]
    fn subtitles_number_and_time_every_segment() {
        assert_eq!(
            srt(&segments()),
            "1\n00:00:00,000 --> 00:00:01,235\nAsk not.\n\n2\n01:01:01,500 --> 01:01:02,000\na < b -> c\n\n"
        );
    }

    #[test]
    fn captions_escape_what_would_be_markup() {
        assert_eq!(
            vtt(&segments()),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.235\nAsk not.\n\n\
             01:01:01.500 --> 01:01:02.000\na &lt; b -&gt; c\n\n"
        );
        assert_eq!(vtt(&[]), "WEBVTT\n\n");
    }

    #[test]
    fn the_verbose_form_has_the_fields_of_the_api() {
        let transcript = Transcript { language: Some("en".to_owned()), segments: segments() };
        let verbose = VerboseTranscript::new(&transcript, false, 3662.25, true);
        let json = serde_json::to_value(&verbose).unwrap();
        assert_eq!((json["task"].as_str(), json["language"].as_str()), (Some("transcribe"), Some("en")));
        assert_eq!(json["segments"][1]["seek"], 360_000);
        assert_eq!(json["words"][1], serde_json::json!({"word": "not.", "start": 0.4, "end": 1.235}));
        assert_eq!(json["usage"], serde_json::json!({"type": "duration", "seconds": 3663}));
        let without = VerboseTranscript::new(&transcript, true, 1.0, false);
        assert_eq!((without.task, without.words), ("translate", None));
    }
}
