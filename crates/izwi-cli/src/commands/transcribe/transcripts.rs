//! The formats of transcripts, and their destinations.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use izwi_core::engine::speakers::label;
use izwi_core::engine::{Segment, Transcript};
use izwi_server::{AsrTask, FinishedTranscript, JsonExtras, TranscriptFormat};

use crate::transcription::Transcription;
use crate::{failure, output, sink};

use super::recordings::Recording;

/// Format of a transcript.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// Plain text
    Text,
    /// SubRip subtitles
    Srt,
    /// WebVTT captions
    Vtt,
    /// The verbose JSON object of the OpenAI API, on one line
    Json,
    /// Rich Transcription Time Marked: who speaks when, with --speakers
    Rttm,
}

/// What a transcript has besides its text.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct With {
    pub(super) words: bool,
    pub(super) speakers: bool,
}

impl Format {
    /// The name on the command line.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Text => "text",
            Self::Srt => "srt",
            Self::Vtt => "vtt",
            Self::Json => "json",
            Self::Rttm => "rttm",
        }
    }

    fn extension(self) -> &'static str {
        match self {
            Self::Text => "txt",
            Self::Srt | Self::Vtt | Self::Json | Self::Rttm => self.label(),
        }
    }

    /// The transcript in this format.
    ///
    /// # Errors
    /// Serialising to JSON fails.
    pub(super) fn render(self, done: &Transcription, translated: bool, with: With) -> Result<String> {
        let named = with.speakers.then(|| with_names(&done.transcript));
        let transcript = named.as_ref().filter(|_| self != Self::Json).unwrap_or(&done.transcript);
        let (format, end) = match self {
            Self::Text | Self::Rttm => (TranscriptFormat::Text, "\n"),
            Self::Srt => (TranscriptFormat::Srt, ""),
            Self::Vtt => (TranscriptFormat::Vtt, ""),
            Self::Json if with.speakers => (TranscriptFormat::DiarizedJson, "\n"),
            Self::Json => (TranscriptFormat::VerboseJson, "\n"),
        };
        let finished = FinishedTranscript {
            transcript,
            task: if translated { AsrTask::Translate } else { AsrTask::Transcribe },
            duration_s: done.stats.audio_duration.as_secs_f64(),
            with_words: with.words,
            extras: JsonExtras::default(),
        };
        let text = format.render(&finished).context("cannot write the transcript as JSON")?;
        Ok(text + end)
    }
}

/// A transcript whose text has the name of each speaker where they begin, on a line of its own.
fn with_names(transcript: &Transcript) -> Transcript {
    let mut before = None;
    let named = transcript.segments.iter().map(|segment| {
        let text = match label(segment) {
            Some(name) if before != segment.speaker => {
                format!("{}{name}: {}", if before.is_some() { "\n" } else { "" }, segment.text.trim_start())
            }
            _ => segment.text.clone(),
        };
        before = segment.speaker.or(before);
        Segment { text, ..segment.clone() }
    });
    Transcript { segments: named.collect(), ..transcript.clone() }
}

/// Destinations of the transcripts.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Destinations {
    /// Standard output.
    Stdout {
        /// Whether a line with the recording's name precedes each transcript.
        named: bool,
    },
    /// One file for each.
    Files(Vec<PathBuf>),
}

impl Destinations {
    /// The file of the recording with this index, if it has one.
    pub(super) fn file(&self, index: usize) -> Option<&Path> {
        match self {
            Self::Stdout { .. } => None,
            Self::Files(paths) => paths.get(index).map(PathBuf::as_path),
        }
    }

    /// Writes a transcript.
    ///
    /// # Errors
    /// Standard output was closed, or the file cannot be written.
    pub(super) fn write(&self, index: usize, name: &str, text: &str) -> Result<()> {
        match self.file(index) {
            Some(path) => sink::write_bytes(path, text.as_bytes()),
            None if *self == (Self::Stdout { named: true }) => output::print(&format!("== {name}\n{text}")),
            None => output::print(text),
        }
    }
}

/// Chooses the destinations. Creates the folder, and checks that files can be written.
///
/// # Errors
/// The output does not fit the format or the number of recordings, two transcripts have the same file name, or a file
/// cannot be written.
pub(super) fn destinations(
    format: Format,
    output: Option<&Path>,
    recordings: &[Recording],
) -> Result<Destinations> {
    let several = recordings.len() > 1;
    let Some(path) = output.filter(|path| *path != Path::new("-")) else {
        if several && format != Format::Text {
            return Err(failure::usage(
                format!(
                    "{} transcripts as {} cannot share standard output",
                    recordings.len(),
                    format.label()
                ),
                "name a folder for them with --output",
            ));
        }
        return Ok(Destinations::Stdout { named: several });
    };
    let is_folder = several || path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/");
    if !is_folder {
        sink::check_file(path)?;
        return Ok(Destinations::Files(vec![path.to_path_buf()]));
    }
    if path.exists() && !path.is_dir() {
        return Err(failure::usage(
            format!("{} is a file, and {} transcripts go into a folder", path.display(), recordings.len()),
            "name a folder with --output",
        ));
    }
    let files = files_in(path, format, recordings)?;
    fs::create_dir_all(path).with_context(|| format!("cannot create the folder {}", path.display()))?;
    for file in &files {
        sink::check_file(file)?;
    }
    Ok(Destinations::Files(files))
}

/// The file of each recording in a folder.
fn files_in(folder: &Path, format: Format, recordings: &[Recording]) -> Result<Vec<PathBuf>> {
    let mut taken: HashMap<PathBuf, &Recording> = HashMap::new();
    let mut files = Vec::with_capacity(recordings.len());
    for recording in recordings {
        let mut name = recording.stem().as_os_str().to_owned();
        name.push(".");
        name.push(format.extension());
        let file = folder.join(name);
        if let Some(other) = taken.insert(file.clone(), recording) {
            return Err(failure::usage(
                format!(
                    "the transcripts of {} and {} would both be {}",
                    other.name(),
                    recording.name(),
                    file.display()
                ),
                "transcribe them in two runs, each with its own --output",
            ));
        }
        files.push(file);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use izwi_core::engine::{FinishReason, RequestStats, Word};

    use super::*;

    fn files(names: &[&str]) -> Vec<Recording> {
        names.iter().map(|name| Recording::File(name.into())).collect()
    }

    fn transcription() -> Transcription {
        let word = Word { text: " Hi.".to_owned(), start_s: 0.0, end_s: 0.5, probability: 1.0 };
        let segment =
            Segment { end_s: 1.0, text: " Hi.".to_owned(), words: vec![word], ..Segment::default() };
        let transcript =
            Transcript { language: Some("en".to_owned()), segments: vec![segment], ..Transcript::default() };
        let stats = RequestStats {
            finish_reason: FinishReason::Stop,
            error: None,
            seed: 0,
            prompt_tokens: 1,
            generated_tokens: 1,
            samples: 0,
            audio_duration: Duration::from_secs(1),
            accepted_at: tokio::time::Instant::now(),
            prepare_time: Duration::ZERO,
            queue_time: Duration::ZERO,
            generation_time: Duration::from_millis(100),
            time_to_first_output: None,
            time_to_first_audio: None,
        };
        Transcription { transcript, turns: Vec::new(), stats }
    }

    #[test]
    fn each_format_is_rendered() {
        let render = |format: Format, words| {
            let with = With { words, speakers: false };
            format.render(&transcription(), false, with).unwrap()
        };
        assert_eq!(render(Format::Text, false), "Hi.\n");
        assert_eq!(render(Format::Srt, false), "1\n00:00:00,000 --> 00:00:01,000\nHi.\n\n");
        assert_eq!(render(Format::Vtt, false), "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\nHi.\n\n");
        let json = |words| serde_json::from_str::<serde_json::Value>(&render(Format::Json, words)).unwrap();
        assert_eq!(json(true)["words"][0]["word"], "Hi.");
        assert!(json(false).get("words").is_none());
        assert_eq!(
            (json(false)["duration"].as_f64(), json(false)["task"].as_str()),
            (Some(1.0), Some("transcribe"))
        );
    }

    #[test]
    fn speakers_are_named_where_they_begin() {
        let mut done = transcription();
        let said = |text: &str, speaker| Segment { text: text.to_owned(), speaker, ..Segment::default() };
        done.transcript.segments =
            vec![said(" Hi.", Some(0)), said(" How?", Some(0)), said(" Fine.", Some(1)), said(" So", None)];
        let render =
            |format: Format| format.render(&done, false, With { words: false, speakers: true }).unwrap();
        assert_eq!(render(Format::Text), "A: Hi. How?\nB: Fine. So\n");
        assert!(render(Format::Srt).contains("\nB: Fine.\n"));
        let json: serde_json::Value = serde_json::from_str(&render(Format::Json)).unwrap();
        assert_eq!(
            (&json["segments"][2]["speaker"], &json["segments"][2]["text"]),
            (&"B".into(), &"Fine.".into())
        );
    }

    #[test]
    fn standard_output_takes_text_or_one_transcript() {
        let one = files(&["a.wav"]);
        let two = files(&["a.wav", "b.wav"]);
        assert_eq!(destinations(Format::Srt, None, &one).unwrap(), Destinations::Stdout { named: false });
        assert_eq!(
            destinations(Format::Text, Some(Path::new("-")), &two).unwrap(),
            Destinations::Stdout { named: true }
        );
        let error = destinations(Format::Srt, None, &two).unwrap_err();
        assert!(failure::render(&error).contains("help: name a folder"), "{error}");
    }

    #[test]
    fn files_are_named_after_recordings() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let found = destinations(Format::Vtt, Some(&out), &files(&["x/a.wav", "b.c.mp3"])).unwrap();
        assert_eq!(found, Destinations::Files(vec![out.join("a.vtt"), out.join("b.c.vtt")]));
        assert!(out.is_dir());
        let found = destinations(Format::Text, Some(&out), &[Recording::Stdin]).unwrap();
        assert_eq!(found, Destinations::Files(vec![out.join("stdin.txt")]));
        let file = folder.path().join("a.srt");
        let found = destinations(Format::Srt, Some(&file), &files(&["a.wav"])).unwrap();
        assert_eq!(found, Destinations::Files(vec![file.clone()]));
        found.write(0, "a.wav", "1\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "1\n");

        let error = destinations(Format::Json, Some(&out), &files(&["x/a.wav", "y/a.mp3"])).unwrap_err();
        assert!(error.to_string().contains("x/a.wav and y/a.mp3"), "{error}");
        let error = destinations(Format::Json, Some(&file), &files(&["a.wav", "b.wav"])).unwrap_err();
        assert!(error.to_string().contains("is a file"), "{error}");
    }
}
