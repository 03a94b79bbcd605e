//! What was said in a meeting and by whom, and its file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use izwi_core::engine::speakers::label;
use izwi_core::engine::{Segment, Word};
use serde::Serialize;

use super::track::Track;
use crate::failure;
use crate::progress::clock;

/// The least difference of two microphones between what one of them says and what the other does, in dB.
const MIN_DIFFERENCE_DB: f32 = 12.0;
/// Where both speak at once, microphones differ by less than this share of that from the middle.
const DOUBLE_TALK: f32 = 0.2;
/// The share of words that are beyond what is taken for their ends.
const OUTLIERS: f32 = 0.03;
/// A pause after which an utterance ends, in seconds.
const PAUSE_S: f64 = 0.7;

/// What somebody says without a pause.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Utterance {
    /// From the beginning of the meeting, in seconds.
    pub(crate) start: f64,
    pub(crate) end: f64,
    /// `None` where it is not known.
    pub(crate) speaker: Option<String>,
    pub(crate) text: String,
}

/// Those of segments that have their speakers.
pub(crate) fn of_segments(segments: &[Segment]) -> Vec<Utterance> {
    let said = segments.iter().filter(|segment| !segment.text.trim().is_empty());
    said.map(|segment| Utterance {
        start: segment.start_s,
        end: segment.end_s,
        speaker: label(segment),
        text: segment.text.trim().to_owned(),
    })
    .collect()
}

/// The difference of two microphones, in dB, below which the first has only crosstalk of the other: differences are largest where one of both speaks,
/// and the middle is between those of one and of the other, whatever the gains.
fn crosstalk_below(own: &Track, other: &Track, spans: &[(f64, f64)]) -> f32 {
    let mut differences: Vec<f32> = spans.iter().filter_map(|span| difference(own, other, *span)).collect();
    differences.sort_unstable_by(f32::total_cmp);
    let last = differences.len().saturating_sub(1);
    let outliers = (differences.len() as f32 * OUTLIERS) as usize;
    let at = |at: usize| differences.get(at).copied().unwrap_or(0.0);
    let (least, most) = (at(outliers), at(last.saturating_sub(outliers)));
    if most - least < MIN_DIFFERENCE_DB {
        return -MIN_DIFFERENCE_DB * DOUBLE_TALK;
    }
    (least + most) / 2.0 - (most - least) * DOUBLE_TALK
}

/// By how much one is louder in a span, in dB; `None` where the other does not run.
fn difference(own: &Track, other: &Track, (start_s, end_s): (f64, f64)) -> Option<f32> {
    let runs = |track: &Track| start_s >= track.start_s && end_s <= track.start_s + track.duration_s();
    (runs(own) && runs(other)).then(|| own.loudness(start_s, end_s) - other.loudness(start_s, end_s))
}

/// Those of several microphones, each of one speaker: of the words of each, what its own speaker says. Times of words are from the
/// beginning of their track.
pub(crate) fn of_tracks(tracks: &[Track], words: &[Vec<Word>]) -> Vec<Utterance> {
    let span = |track: &Track, word: &Word| (word.start_s + track.start_s, word.end_s + track.start_s);
    let spans: Vec<Vec<(f64, f64)>> = tracks
        .iter()
        .zip(words)
        .map(|(track, words)| words.iter().map(|word| span(track, word)).collect())
        .collect();
    let mut found: Vec<Utterance> = Vec::new();
    for (own, (track, words)) in tracks.iter().zip(words).enumerate() {
        let others = tracks.iter().enumerate().filter(|(at, _)| *at != own);
        let others: Vec<(&Track, f32)> = others
            .map(|(at, other)| {
                let both = [&spans[own][..], &spans[at]].concat();
                (other, crosstalk_below(track, other, &both))
            })
            .collect();
        let mut utterance: Option<Utterance> = None;
        for word in words {
            let (start, end) = span(track, word);
            let is_crosstalk = |(other, below): &(&Track, f32)| {
                difference(track, other, (start, end)).is_some_and(|difference| difference < *below)
            };
            if others.iter().any(is_crosstalk) {
                continue;
            }
            match &mut utterance {
                Some(last) if start - last.end <= PAUSE_S => {
                    last.text.push_str(&word.text);
                    last.end = end;
                }
                _ => {
                    let speaker = Some(track.name.clone());
                    let begun = Utterance { start, end, speaker, text: word.text.clone() };
                    found.extend(utterance.replace(begun));
                }
            }
        }
        found.extend(utterance);
    }
    found.retain_mut(|utterance| {
        utterance.text = utterance.text.trim().to_owned();
        !utterance.text.is_empty()
    });
    found.sort_by(|one, other| one.start.total_cmp(&other.start));
    found
}

/// The format of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Markdown,
    Json,
}

impl Format {
    /// By the extension of the file.
    ///
    /// # Errors
    /// It is another.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("md" | "markdown") => Ok(Self::Markdown),
            Some("json") => Ok(Self::Json),
            _ => Err(failure::usage(
                format!("'{}' names no format of meetings", path.display()),
                "use the extension .md or .json; `izwi transcribe --speakers` writes subtitles",
            )),
        }
    }
}

/// A meeting.
#[derive(Debug, Serialize)]
pub(crate) struct Notes {
    pub(crate) name: String,
    /// In seconds.
    pub(crate) duration: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) minutes: Option<String>,
    pub(crate) utterances: Vec<Utterance>,
}

impl Notes {
    /// How long each speaker speaks, in seconds, the longest first.
    pub(crate) fn speakers(&self) -> Vec<(&str, f64)> {
        let mut times: BTreeMap<&str, f64> = BTreeMap::new();
        for Utterance { start, end, speaker, .. } in &self.utterances {
            if let Some(speaker) = speaker {
                *times.entry(speaker).or_default() += end - start;
            }
        }
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_by(|one, other| other.1.total_cmp(&one.1));
        times
    }

    /// Turns of one speaker each: utterances that follow one another.
    fn turns(&self) -> Vec<Utterance> {
        let mut turns: Vec<Utterance> = Vec::new();
        for said in &self.utterances {
            match turns.last_mut().filter(|last| last.speaker == said.speaker) {
                Some(last) => {
                    last.text = format!("{} {}", last.text, said.text);
                    last.end = last.end.max(said.end);
                }
                None => turns.push(said.clone()),
            }
        }
        turns
    }

    /// The transcript as a language model reads it: a line for each turn.
    pub(crate) fn transcript(&self) -> String {
        let mut text = String::new();
        for Utterance { start, speaker, text: said, .. } in self.turns() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "[{}] {}: {said}", clock(start), speaker.as_deref().unwrap_or("?"));
        }
        text
    }

    /// The file.
    ///
    /// # Errors
    /// Serialising to JSON fails.
    pub(crate) fn render(&self, format: Format) -> Result<String> {
        match format {
            Format::Markdown => Ok(self.markdown()),
            Format::Json => {
                let mut value = serde_json::to_value(self).context("cannot write the meeting as JSON")?;
                let speakers = self.speakers();
                let speakers = speakers.iter().map(|(name, seconds)| ((*name).to_owned(), (*seconds).into()));
                value["speakers"] = serde_json::Value::Object(speakers.collect());
                Ok(format!("{value:#}\n"))
            }
        }
    }

    fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n- Length: {}\n", plain(&self.name), clock(self.duration));
        let speakers = self.speakers();
        let speakers =
            speakers.iter().map(|(name, seconds)| format!("{} ({})", plain(name), clock(*seconds)));
        let speakers = speakers.collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "- Speakers: {}", if speakers.is_empty() { "none" } else { &speakers });
        if let Some(minutes) = &self.minutes {
            let _ = write!(text, "\n## Minutes\n\n{}\n", minutes.trim());
        }
        text.push_str("\n## Transcript\n");
        for Utterance { start, speaker, text: said, .. } in self.turns() {
            let who = speaker.map_or_else(String::new, |name| format!(" {}", plain(&name)));
            let _ = write!(text, "\n**{}{who}** {}\n", clock(start), plain(&said));
        }
        text
    }
}

/// Text without what Markdown would take for its own.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        if "\\`*_{}[]<>#|~".contains(character) {
            plain.push('\\');
        }
        plain.push(character);
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::super::track::RATE_HZ;
    use super::*;

    fn word(text: &str, start_s: f64) -> Word {
        Word { text: text.to_owned(), start_s, end_s: start_s + 0.5, probability: 1.0 }
    }

    /// Speaks in these seconds, and is heard softly in others.
    fn track(name: &str, loud: &[usize], soft: &[usize]) -> Track {
        let amplitude = |second: usize| match () {
            () if loud.contains(&second) => 9_000.0,
            () if soft.contains(&second) => 1_500.0,
            () => 0.0,
        };
        let wave = |n: usize| ((n as f32 * 0.3).sin() * amplitude(n / RATE_HZ)) as i16;
        Track::new(name.to_owned(), (0..10 * RATE_HZ).map(wave).collect())
    }

    fn said(start: f64, speaker: &str, text: &str) -> Utterance {
        Utterance { start, end: start + 1.0, speaker: Some(speaker.to_owned()), text: text.to_owned() }
    }

    #[test]
    fn words_are_of_whose_microphone_is_louder_and_of_both_where_both_speak() {
        let tracks = [track("ann", &[1, 2, 5], &[3, 4]), track("bob", &[3, 5], &[1, 2])];
        let heard = [
            vec![word(" So", 1.1), word(" then", 2.1), word(" yes", 3.2), word(" but", 5.2)],
            vec![word(" So", 1.1), word(" Yes.", 3.2), word(" No", 5.1)],
        ];
        let texts: Vec<(Option<String>, String)> =
            of_tracks(&tracks, &heard).into_iter().map(|said| (said.speaker, said.text)).collect();
        let expected = [("ann", "So then"), ("bob", "Yes."), ("bob", "No"), ("ann", "but")];
        assert_eq!(texts, expected.map(|(who, text)| (Some(who.to_owned()), text.to_owned())));
    }

    #[test]
    fn a_later_track_has_its_words_at_the_time_of_the_meeting() {
        let mut tracks = [track("ann", &[1], &[]), track("bob", &[1], &[])];
        tracks[1].start_s = 4.0;
        let found = of_tracks(&tracks, &[vec![word("Hm.", 1.0)], vec![word("Ja.", 1.0)]]);
        assert_eq!(found.iter().map(|said| said.start).collect::<Vec<_>>(), [1.0, 5.0]);
    }

    #[test]
    fn a_meeting_is_written_as_markdown_and_as_json() {
        let notes = Notes {
            name: "week_7".to_owned(),
            duration: 3_700.0,
            minutes: Some("### Decisions\n\n- None.\n".to_owned()),
            utterances: vec![said(0.0, "ann", "Well,"), said(1.5, "ann", "*no*."), said(62.0, "B", "<b>")],
        };
        let text = notes.render(Format::Markdown).unwrap();
        let expected = "# week\\_7\n\n- Length: 1:01:40\n- Speakers: ann (0:02), B (0:01)\n\n## Minutes\n\n### Decisions\n\n\
            - None.\n\n## Transcript\n\n**0:00 ann** Well, \\*no\\*.\n\n**1:02 B** \\<b\\>\n";
        assert_eq!(text, expected);
        let json: serde_json::Value = serde_json::from_str(&notes.render(Format::Json).unwrap()).unwrap();
        assert_eq!(
            (&json["speakers"]["ann"], &json["utterances"][1]["text"]),
            (&2.0.into(), &"*no*.".into())
        );
        assert_eq!(notes.transcript(), "[0:00] ann: Well, *no*.\n[1:02] B: <b>\n");
        assert!(Format::of(Path::new("a.MD")).is_ok() && Format::of(Path::new("a.srt")).is_err());
    }
}
