//! `izwi diarize`: tells who speaks when in a recording.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{ValueEnum, ValueHint};
use izwi_core::engine::known_speakers::named;
use izwi_core::engine::speakers::label;
use izwi_core::engine::{EngineCoreRequest, Segment, TranscriptionOptions};
use izwi_hub::Task;
use serde_json::json;

use crate::engine::{Loaded, incomplete};
use crate::progress::TranscriptionProgress;
use crate::settings::Resolved;
use crate::transcription::{self, Transcription};
use crate::{engine, input, logging, models, output, rttm, sink};

/// Tell who speaks when in a recording
///
/// Reads wav, flac, mp3, ogg, m4a and webm at any sample rate. Speakers are called A, B and so on, in the order in which they
/// begin, or by the names of saved speakers (`izwi speakers`). One line on standard error reports the duration, the speakers
/// and the RTF (time to compute over time of audio). The file appears whole or not at all and replaces an existing one. The
/// model is the first installed one with the task `diarize`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recording
    #[arg(value_name = "RECORDING", value_hint = ValueHint::FilePath)]
    recording: PathBuf,
    /// Format of the turns
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File to write; - is standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// The most speakers that are told apart
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=32))]
    max_speakers: Option<u64>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// Format of the turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// A line for each turn: its times in seconds, and the speaker
    Text,
    /// Duration and turns, on one line
    Json,
    /// Rich Transcription Time Marked, which scoring tools read
    Rttm,
}

impl Format {
    /// The turns of the recording `name`.
    fn render(self, name: &str, turns: &[Segment], duration_s: f64) -> String {
        let told = turns.iter().filter_map(|turn| Some((turn.start_s, turn.end_s, label(turn)?)));
        let mut text = String::new();
        match self {
            Self::Json => {
                let turns: Vec<_> = told
                    .map(|(start, end, speaker)| json!({"start": start, "end": end, "speaker": speaker}))
                    .collect();
                let duration = (duration_s * 1e3).round() / 1e3;
                text = json!({"duration": duration, "segments": turns}).to_string() + "\n";
            }
            // Writing to a string cannot fail.
            Self::Text => told.for_each(|(start, end, speaker)| {
                let _ = writeln!(text, "{start:.2}\t{end:.2}\t{speaker}");
            }),
            Self::Rttm => text = rttm::render(name, turns),
        }
        text
    }
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported by this command.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let file = args.output.as_deref().filter(|path| *path != Path::new("-"));
    file.map(sink::check_file).transpose()?;
    let mut config = engine::local_config(resolved);
    let recording = input::read_file(&args.recording, config.max_audio_bytes as u64)?;
    let store = models::open(&resolved.settings)?;
    config.model = models::with_task(&store, resolved, Task::Diarize)?;
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);
    let known = models::known_speakers(&store, &config.model)?;

    let (name, format) = (args.recording.display().to_string(), args.format);
    let stem =
        args.recording.file_stem().map_or_else(|| name.clone(), |stem| stem.to_string_lossy().into_owned());
    engine::run_model(config, remote, async |loaded| {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let progress = RefCell::new(TranscriptionProgress::new(1));
        let on_event = |event: transcription::Event<'_>| progress.borrow_mut().update(event);
        let deliver = |_, result: Result<Transcription>| {
            progress.borrow().suspend(|| {
                let mut done = result.with_context(|| format!("cannot tell the speakers of {name}"))?;
                let turns = std::mem::take(&mut done.transcript.segments);
                done.transcript.segments = named(turns, &known)?;
                let duration_s = done.stats.audio_duration.as_secs_f64();
                let rendered = format.render(&stem, &done.transcript.segments, duration_s);
                match file {
                    Some(path) => sink::write_bytes(path, rendered.as_bytes())?,
                    None => output::print(&rendered)?,
                }
                report(&name, &done);
                Ok(())
            })
        };
        let recordings = vec![std::future::ready(Ok(recording))];
        let options = TranscriptionOptions { max_speakers: args.max_speakers, ..Default::default() };
        let request = |audio| EngineCoreRequest::diarization(audio).with_transcription(options.clone());
        transcription::transcribe_all(&engine, recordings, request, &mut interrupt, on_event, deliver).await
    })
}

fn report(name: &str, done: &Transcription) {
    if let Some(warning) = incomplete(done.stats.finish_reason, "list of turns") {
        output::status(&format!("warning: {name}: {warning}"));
    }
    let mut speakers: Vec<u32> = done.transcript.segments.iter().filter_map(|turn| turn.speaker).collect();
    speakers.sort_unstable();
    speakers.dedup();
    let heard = match speakers.len() {
        0 => "no speech".to_owned(),
        1 => "1 speaker".to_owned(),
        count => format!("{count} speakers"),
    };
    let (seconds, rtf) = (done.stats.audio_duration.as_secs_f64(), done.stats.rtf());
    output::status(&format!("{name}: {seconds:.2} s, {heard}, RTF {rtf:.3}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_rendered() {
        let turn = |start_s, end_s, speaker| Segment { start_s, end_s, speaker, ..Segment::default() };
        let turns = [turn(0.0, 1.5, Some(0)), turn(1.25, 61.0, Some(1)), turn(2.0, 3.0, None)];
        let render = |format: Format, turns: &[Segment]| format.render("a b", turns, 62.00049);
        assert_eq!(render(Format::Text, &turns), "0.00\t1.50\tA\n1.25\t61.00\tB\n");
        assert_eq!(
            render(Format::Rttm, &turns),
            "SPEAKER a_b 1 0.000 1.500 <NA> <NA> speaker_0 <NA> <NA>\n\
             SPEAKER a_b 1 1.250 59.750 <NA> <NA> speaker_1 <NA> <NA>\n"
        );
        let saved = [Segment { speaker_name: Some("Ann B".into()), ..turns[1].clone() }];
        assert_eq!(render(Format::Text, &saved), "1.25\t61.00\tAnn B\n");
        assert!(render(Format::Rttm, &saved).contains(" <NA> <NA> Ann_B <NA>"));
        let json: serde_json::Value = serde_json::from_str(&render(Format::Json, &turns)).unwrap();
        assert_eq!(json["segments"][1], json!({"start": 1.25, "end": 61.0, "speaker": "B"}));
        assert_eq!(json["duration"], 62.0);
        assert_eq!(render(Format::Text, &[]), "");
        assert_eq!(render(Format::Json, &[]), "{\"duration\":62.0,\"segments\":[]}\n");
    }
}
