//! `izwi align`: tells when the words of a text are said in a recording.

use std::cell::RefCell;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::{ValueEnum, ValueHint};
use izwi_core::engine::request::MAX_TEXT_CHARS;
use izwi_core::engine::{EngineCoreRequest, TranscriptionOptions};
use izwi_server::AlignmentFormat;

use crate::engine::{Loaded, incomplete};
use crate::progress::TranscriptionProgress;
use crate::settings::Resolved;
use crate::transcription::{self, Transcription};
use crate::{engine, failure, input, logging, models, output, sink};

/// The most bytes of a text.
const MAX_TEXT_BYTES: u64 = MAX_TEXT_CHARS as u64 * 4;

/// Tell when the words of a text are said in a recording
///
/// Reads wav, flac, mp3, ogg, m4a and webm at any sample rate. The words are timed as they are written; subtitles are the
/// sentences and lines of the text, cut where they are long. A word that the model does not find takes no time and has the
/// probability 0. One line on standard error reports the duration, the words and the RTF (time to compute over time of audio).
/// The file appears whole or not at all and replaces an existing one. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recording
    #[arg(value_name = "RECORDING", value_hint = ValueHint::FilePath)]
    recording: PathBuf,
    /// File with the text that is said in it; - reads standard input
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "text")]
    file: Option<PathBuf>,
    /// The text, in place of FILE
    #[arg(long, value_name = "TEXT", conflicts_with = "file")]
    text: Option<String>,
    /// Language of the recording, as a BCP 47 tag [default: detected]
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Format of the times
    #[arg(long, short, value_enum, default_value_t = Format::Json)]
    format: Format,
    /// File to write; - is standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    output: Option<PathBuf>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// Format of the times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Words and segments, on one line
    Json,
    /// SubRip subtitles
    Srt,
    /// WebVTT captions
    Vtt,
    /// Tiers of words and segments for Praat
    #[value(name = "textgrid")]
    TextGrid,
}

impl Format {
    fn render(self, done: &Transcription) -> Result<String> {
        let (format, end) = match self {
            Self::Json => (AlignmentFormat::Json, "\n"),
            Self::Srt => (AlignmentFormat::Srt, ""),
            Self::Vtt => (AlignmentFormat::Vtt, ""),
            Self::TextGrid => (AlignmentFormat::TextGrid, ""),
        };
        let duration_s = done.stats.audio_duration.as_secs_f64();
        let text = format.render(&done.transcript.segments, duration_s);
        Ok(text.context("cannot write the times as JSON")? + end)
    }
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported by this command.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let options =
        TranscriptionOptions { language: args.language.clone(), ..TranscriptionOptions::default() }.checked();
    let options = options.map_err(|error| failure::usage(error.message, "see `izwi help align`"))?;
    let text = text(args)?;
    let file = args.output.as_deref().filter(|path| *path != Path::new("-"));
    file.map(sink::check_file).transpose()?;
    let mut config = engine::local_config(resolved);
    let recording = input::read_file(&args.recording, config.max_audio_bytes as u64)?;
    let store = models::open(&resolved.settings)?;
    config.model = models::asr_model(&store, resolved)?;
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);

    let (name, format) = (args.recording.display().to_string(), args.format);
    engine::run_model(config, remote, async |loaded| {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let progress = RefCell::new(TranscriptionProgress::new(1));
        let on_event = |event: transcription::Event<'_>| progress.borrow_mut().update(event);
        let request =
            |audio| EngineCoreRequest::alignment(audio, text.as_str()).with_transcription(options.clone());
        let deliver = |_, result: Result<Transcription>| {
            progress.borrow().suspend(|| {
                let done = result.with_context(|| format!("cannot align {name}"))?;
                let rendered = format.render(&done)?;
                match file {
                    Some(path) => sink::write_bytes(path, rendered.as_bytes())?,
                    None => output::print(&rendered)?,
                }
                report(&name, &done);
                Ok(())
            })
        };
        let recordings = vec![std::future::ready(Ok(recording))];
        transcription::transcribe_all(&engine, recordings, request, &mut interrupt, on_event, deliver).await
    })
}

fn report(name: &str, done: &Transcription) {
    if let Some(warning) = incomplete(done.stats.finish_reason, "alignment") {
        output::status(&format!("warning: {name}: {warning}"));
    }
    let words = || done.transcript.segments.iter().flat_map(|segment| &segment.words);
    let lost = words().filter(|word| word.probability == 0.0).count();
    let lost = if lost > 0 { format!(", {lost} not found") } else { String::new() };
    let (seconds, rtf) = (done.stats.audio_duration.as_secs_f64(), done.stats.rtf());
    output::status(&format!("{name}: {seconds:.2} s, {} words{lost}, RTF {rtf:.3}", words().count()));
}

/// The text of the arguments.
fn text(args: &Args) -> Result<String> {
    let text = match (&args.text, args.file.as_deref()) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) if path != Path::new("-") => {
            utf8(input::read_file(path, MAX_TEXT_BYTES)?, &path.display().to_string())?
        }
        _ if io::stdin().is_terminal() => {
            return Err(failure::usage(
                "- reads standard input, which is a terminal",
                "pipe the text in, or name a file",
            ));
        }
        _ => {
            let bytes = input::read_bounded(io::stdin().lock(), MAX_TEXT_BYTES)
                .context("cannot read standard input")?;
            utf8(bytes.ok_or_else(|| input::too_large("standard input", MAX_TEXT_BYTES))?, "standard input")?
        }
    };
    if text.trim().is_empty() {
        return Err(failure::usage("the text is empty", "give what is said in the recording"));
    }
    Ok(text)
}

fn utf8(bytes: Vec<u8>, name: &str) -> Result<String> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        failure::usage(format!("{name} is not UTF-8 text (byte {at})"), "convert it, e.g. with iconv")
    })?;
    // Editors of Windows begin files with a mark that is no text.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}
