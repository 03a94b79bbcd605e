//! Response formats of an alignment: JSON, subtitles, and tiers for Praat. HTTP routes and the command line write the same.
//!
//! It knows no request; the JSON types are in [`dto`](crate::dto).

use std::fmt::Write as _;

use izwi_core::engine::Segment;

use crate::dto::alignment::AlignmentObject;
use crate::transcript_format::{self, TranscriptFormat};

/// A format of an alignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AlignmentFormat {
    /// Words and segments with their times.
    Json,
    /// SubRip subtitles, one for each segment.
    Srt,
    /// WebVTT captions, one for each segment.
    Vtt,
    /// Two interval tiers of Praat: words and segments.
    TextGrid,
}

/// Every format with its name in `response_format`.
const FORMATS: [(&str, AlignmentFormat); 4] = [
    ("json", AlignmentFormat::Json),
    ("srt", AlignmentFormat::Srt),
    ("vtt", AlignmentFormat::Vtt),
    ("textgrid", AlignmentFormat::TextGrid),
];

impl AlignmentFormat {
    /// The format of this name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        FORMATS.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Names of all formats.
    pub(crate) fn names() -> [&'static str; FORMATS.len()] {
        FORMATS.map(|(name, _)| name)
    }

    /// Media type of a body in this format.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Json => TranscriptFormat::Json.media_type(),
            Self::Srt => TranscriptFormat::Srt.media_type(),
            Self::Vtt => TranscriptFormat::Vtt.media_type(),
            Self::TextGrid => TranscriptFormat::Text.media_type(),
        }
    }

    /// Writes segments with words, of a recording of `duration_s` seconds, in this format.
    ///
    /// # Errors
    /// Serialising to JSON fails.
    pub fn render(self, segments: &[Segment], duration_s: f64) -> Result<String, serde_json::Error> {
        match self {
            Self::Json => serde_json::to_string(&AlignmentObject::new(segments, duration_s)),
            Self::Srt => Ok(transcript_format::srt(segments)),
            Self::Vtt => Ok(transcript_format::vtt(segments)),
            Self::TextGrid => Ok(text_grid(segments, duration_s)),
        }
    }
}

/// An interval: its start and end in seconds, and its text.
type Interval<'a> = (f64, f64, &'a str);

/// A TextGrid of two tiers in its long form. <https://www.fon.hum.uva.nl/praat/manual/TextGrid_file_formats.html>
fn text_grid(segments: &[Segment], duration_s: f64) -> String {
    let words = segments.iter().flat_map(|segment| &segment.words);
    let words = tier(words.map(|word| (word.start_s, word.end_s, word.text.trim())), duration_s);
    let segments = tier(segments.iter().map(|s| (s.start_s, s.end_s, s.text.trim())), duration_s);
    let mut out = format!(
        "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\nxmin = 0\nxmax = {duration_s}\ntiers? <exists>\n\
         size = 2\nitem []:\n"
    );
    for (number, (name, intervals)) in (1..).zip([("words", words), ("segments", segments)]) {
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "    item [{number}]:\n        class = \"IntervalTier\"\n        name = \"{name}\"\n        xmin = 0\n        \
             xmax = {duration_s}\n        intervals: size = {}\n",
            intervals.len()
        );
        for (number, (start, end, text)) in (1..).zip(intervals) {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('"', "\"\"");
            let _ = write!(
                out,
                "        intervals [{number}]:\n            xmin = {start}\n            xmax = {end}\n            \
                 text = \"{text}\"\n"
            );
        }
    }
    out
}

/// The intervals of a tier, which cover the recording: what takes no time is left out, and pauses are empty intervals.
fn tier<'a>(found: impl Iterator<Item = Interval<'a>>, duration_s: f64) -> Vec<Interval<'a>> {
    let (mut intervals, mut at) = (Vec::new(), 0.0);
    for (start, end, text) in found.chain([(duration_s, duration_s, "")]) {
        let (start, end) = (start.clamp(at, duration_s.max(at)), end.min(duration_s));
        if start > at {
            intervals.push((at, start, ""));
            at = start;
        }
        if end > at {
            intervals.push((at, end, text));
            at = end;
        }
    }
    intervals
}

#[cfg(test)]
mod tests {
    use izwi_core::engine::Word;
    use serde_json::{Value, json};

    use super::*;

    fn segments() -> Vec<Segment> {
        let word =
            |text: &str, start_s, end_s| Word { text: text.to_owned(), start_s, end_s, probability: 0.5 };
        let words = vec![word("Say", 0.25, 0.5), word(" \"no\".", 0.75, 1.0), word(" Lost", 1.0, 1.0)];
        vec![Segment {
            start_s: 0.25,
            end_s: 1.0,
            text: "Say \"no\". Lost".to_owned(),
            words,
            ..Segment::default()
        }]
    }

    #[test]
    fn json_has_words_and_segments() {
        let text = AlignmentFormat::Json.render(&segments(), 1.5).unwrap();
        let object: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            object["words"][1],
            json!({"word": "\"no\".", "start": 0.75, "end": 1.0, "probability": 0.5})
        );
        assert_eq!(object["segments"], json!([{"text": "Say \"no\". Lost", "start": 0.25, "end": 1.0}]));
        assert_eq!((&object["duration"], &object["usage"]["seconds"]), (&json!(1.5), &json!(2)));
    }

    #[test]
    fn subtitles_are_those_of_transcripts() {
        let srt = AlignmentFormat::Srt.render(&segments(), 1.5).unwrap();
        assert_eq!(srt, "1\n00:00:00,250 --> 00:00:01,000\nSay \"no\". Lost\n\n");
        assert!(AlignmentFormat::Vtt.render(&segments(), 1.5).unwrap().starts_with("WEBVTT\n\n00:00:00.250"));
    }

    #[test]
    fn the_tiers_of_a_text_grid_cover_the_recording() {
        let segments = segments();
        let intervals =
            tier(segments[0].words.iter().map(|word| (word.start_s, word.end_s, word.text.trim())), 1.5);
        let expected =
            [(0.0, 0.25, ""), (0.25, 0.5, "Say"), (0.5, 0.75, ""), (0.75, 1.0, "\"no\"."), (1.0, 1.5, "")];
        assert_eq!(intervals, expected);
        let text = AlignmentFormat::TextGrid.render(&segments, 1.5).unwrap();
        assert!(text.starts_with(
            "File type = \"ooTextFile\"\nObject class = \"TextGrid\"\n\nxmin = 0\nxmax = 1.5\n"
        ));
        assert!(text.contains(
            "        name = \"words\"\n        xmin = 0\n        xmax = 1.5\n        intervals: size = 5\n"
        ));
        assert!(
            text.contains(
                "            xmin = 0.75\n            xmax = 1\n            text = \"\"\"no\"\".\"\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn every_name_has_a_format() {
        for (name, format) in FORMATS {
            assert_eq!(AlignmentFormat::parse(name), Some(format));
        }
        assert_eq!(AlignmentFormat::parse("xml"), None);
    }
}
