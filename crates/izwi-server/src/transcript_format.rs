//! Response formats of a transcript: plain text, subtitles and JSON. HTTP routes and the command line write the same.
//!
//! It knows no request; the JSON types are in [`dto`](crate::dto).

use std::fmt::Write as _;

use izwi_core::engine::{Segment, Transcript};

use crate::dto::diarized::DiarizedTranscript;
use crate::dto::transcription::{
    DurationUsage, LanguageObject, TokensUsage, TranscriptObject, Usage, logprobs,
};
use crate::dto::verbose_json::VerboseTranscript;

/// A format of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranscriptFormat {
    /// `{text, usage}`.
    Json,
    /// The text alone.
    Text,
    /// SubRip subtitles.
    Srt,
    /// WebVTT captions.
    Vtt,
    /// Text, segments and words with their times.
    VerboseJson,
    /// Text and segments with their times and speakers.
    DiarizedJson,
}

/// What a speech recognition model was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AsrTask {
    /// Text in the language of the recording.
    Transcribe,
    /// Text in English.
    Translate,
}

/// A transcript to write, and what the verbose form needs besides it.
#[derive(Debug, Clone, Copy)]
pub struct FinishedTranscript<'a> {
    /// The transcript.
    pub transcript: &'a Transcript,
    /// The task it was made for.
    pub task: AsrTask,
    /// Length of the recording, in seconds.
    pub duration_s: f64,
    /// Whether the verbose form and that with speakers list words.
    pub with_words: bool,
    /// What the plain JSON form has besides the text.
    pub extras: JsonExtras,
}

/// What [`TranscriptFormat::Json`] has besides the text; by default usage by the length of the recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct JsonExtras {
    /// The log-probability of each token.
    pub logprobs: bool,
    /// The detected languages.
    pub languages: bool,
    /// Usage in tokens, in place of the length of the recording.
    pub tokens: Option<TokenUsage>,
}

/// Tokens that a request took.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenUsage {
    /// Tokens of its prompts.
    pub input: usize,
    /// Generated tokens.
    pub output: usize,
}

/// Every format with its name in `response_format` and its media type.
/// <https://www.iana.org/assignments/media-types/> has text/vtt; SubRip has this customary type.
const FORMATS: [(&str, TranscriptFormat, &str); 6] = [
    ("json", TranscriptFormat::Json, "application/json"),
    ("text", TranscriptFormat::Text, "text/plain; charset=utf-8"),
    ("srt", TranscriptFormat::Srt, "application/x-subrip"),
    ("vtt", TranscriptFormat::Vtt, "text/vtt"),
    ("verbose_json", TranscriptFormat::VerboseJson, "application/json"),
    ("diarized_json", TranscriptFormat::DiarizedJson, "application/json"),
];

impl TranscriptFormat {
    /// The format of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        FORMATS.iter().find(|(known, ..)| *known == name).map(|(_, format, _)| *format)
    }

    /// Names of all formats.
    pub(crate) fn names() -> [&'static str; FORMATS.len()] {
        FORMATS.map(|(name, ..)| name)
    }

    /// Media type of a body in this format.
    pub(crate) fn media_type(self) -> &'static str {
        FORMATS.iter().find(|(_, format, _)| *format == self).map_or("", |(.., media_type)| media_type)
    }

    /// Extension of a file in this format.
    pub(crate) fn extension(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
            Self::Json | Self::VerboseJson | Self::DiarizedJson => "json",
        }
    }

    /// Writes a transcript in this format.
    pub fn render(self, finished: &FinishedTranscript<'_>) -> Result<String, serde_json::Error> {
        let FinishedTranscript { transcript, task, duration_s, with_words, extras } = *finished;
        match self {
            Self::Text => Ok(transcript.text()),
            Self::Srt => Ok(srt(&transcript.segments)),
            Self::Vtt => Ok(vtt(&transcript.segments)),
            Self::Json => serde_json::to_string(&TranscriptObject {
                text: transcript.text(),
                languages: extras.languages.then(|| detected(transcript.language.as_deref())),
                logprobs: extras.logprobs.then(|| logprobs(&transcript.segments)),
                usage: match extras.tokens {
                    Some(tokens) => Usage::Tokens(TokensUsage::new(tokens.input, tokens.output)),
                    None => Usage::Duration(DurationUsage::new(duration_s)),
                },
            }),
            Self::DiarizedJson => {
                serde_json::to_string(&DiarizedTranscript::new(transcript, duration_s, with_words))
            }
            Self::VerboseJson => {
                let task = match task {
                    AsrTask::Transcribe => "transcribe",
                    AsrTask::Translate => "translate",
                };
                serde_json::to_string(&VerboseTranscript::new(transcript, task, duration_s, with_words))
            }
        }
    }
}

/// The detected language as the list of the API; empty without speech.
pub(crate) fn detected(language: Option<&str>) -> Vec<LanguageObject> {
    language.map(|code| LanguageObject { code: code.to_owned() }).into_iter().collect()
}

/// SubRip subtitles. <https://en.wikipedia.org/wiki/SubRip>
pub(crate) fn srt(segments: &[Segment]) -> String {
    let mut out = String::new();
    for (number, segment) in (1..).zip(segments) {
        let (start, end) = (clock(segment.start_s, ','), clock(segment.end_s, ','));
        // Writing to a string cannot fail.
        let _ = write!(out, "{number}\n{start} --> {end}\n{}\n\n", line(segment));
    }
    out
}

/// WebVTT captions. <https://www.w3.org/TR/webvtt1/>
pub(crate) fn vtt(segments: &[Segment]) -> String {
    let mut out = String::from("WEBVTT\n\n");
    for segment in segments {
        let (start, end) = (clock(segment.start_s, '.'), clock(segment.end_s, '.'));
        let text = line(segment).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let _ = write!(out, "{start} --> {end}\n{text}\n\n");
    }
    out
}

/// The text on one line, without arrows: a blank line would end a caption, and an arrow would begin one.
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

#[cfg(test)]
mod tests {
    use izwi_core::engine::Word;
    use serde_json::{Value, json};

    use super::*;

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
    fn captions_escape_markup() {
        assert_eq!(
            vtt(&segments()),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.235\nAsk not.\n\n\
             01:01:01.500 --> 01:01:02.000\na &lt; b -&gt; c\n\n"
        );
        assert_eq!(vtt(&[]), "WEBVTT\n\n");
    }

    #[test]
    fn verbose_json_has_the_fields_of_the_api() {
        let transcript =
            Transcript { language: Some("en".to_owned()), segments: segments(), ..Transcript::default() };
        let verbose = |task, with_words| {
            let finished = FinishedTranscript {
                transcript: &transcript,
                task,
                duration_s: 3662.25,
                with_words,
                extras: JsonExtras::default(),
            };
            serde_json::from_str::<Value>(&TranscriptFormat::VerboseJson.render(&finished).unwrap()).unwrap()
        };
        let object = verbose(AsrTask::Transcribe, true);
        assert_eq!((&object["task"], &object["language"]), (&json!("transcribe"), &json!("english")));
        assert_eq!(object["segments"][1]["seek"], 360_000);
        assert_eq!(object["words"][1], json!({"word": "not.", "start": 0.4, "end": 1.235}));
        assert_eq!(object["usage"], json!({"type": "duration", "seconds": 3663}));
        let translated = verbose(AsrTask::Translate, false);
        assert_eq!((&translated["task"], translated.get("words")), (&json!("translate"), None));
    }

    #[test]
    fn every_name_has_a_format() {
        for (name, format, media_type) in FORMATS {
            assert_eq!(TranscriptFormat::parse(name), Some(format));
            assert_eq!(format.media_type(), media_type);
        }
        assert_eq!(TranscriptFormat::parse("xml"), None);
    }
}
