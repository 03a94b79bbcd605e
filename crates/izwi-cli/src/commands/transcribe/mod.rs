//! `izwi transcribe`: writes down what is said in recordings, on standard output or in files.

mod recordings;
mod transcripts;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::ValueHint;
use izwi_core::engine::{AudioInput, EngineCoreRequest, TranscriptionOptions};
use izwi_hub::{Store, Task};

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::listening::{self, Heard};
use crate::progress::HearingProgress;
use crate::settings::Resolved;
use crate::{failure, logging, models, output, speech};

use recordings::Recording;
use transcripts::{Format, Places};

/// Nobody waits behind a pager that is left open for a while.
const PATIENCE: Duration = Duration::from_secs(86_400);

/// Write down what is said in recordings
///
/// Takes wav, flac, mp3, ogg, m4a and webm, at any rate. Several recordings are transcribed together; each transcript
/// is printed as soon as it and all before it are ready, under a line "== NAME". A recording that cannot be read or
/// understood is named on standard error and the others go on; the command then ends with 1. One line about each goes
/// to standard error: its length and the language heard, and RTF (time to compute over time of audio) of all. Files appear whole
/// or not at all, replacing what was there. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recordings, or quoted patterns of them such as 'talks/*.mp3'; - reads one from standard input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    files: Vec<String>,
    /// Form of the transcript
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File to write, or with several recordings the folder for NAME.txt, NAME.srt, NAME.vtt or NAME.json; - is
    /// standard output
    #[arg(long, short, value_name = "FILE|FOLDER", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,
    /// Language spoken, as a BCP 47 tag [default: the one heard]
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Tell when each word was said; needs --format json
    #[arg(long)]
    words: bool,
    /// Write English, whatever is spoken
    #[arg(long)]
    translate: bool,
    /// Text that might have come before: names, spellings, style
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // What a decoder logs about a file that is no recording is told as the error.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    if args.words && args.format != Format::Json {
        return Err(failure::usage(
            format!("--words has no place in {}", args.format.label()),
            "add --format json, whose transcripts have words",
        ));
    }
    let recordings = recordings::find(&args.files)?;
    let places = transcripts::places(args.format, args.output.as_deref(), &recordings)?;
    let store = models::open(&resolved.settings)?;
    let mut config = speech::engine_config(resolved);
    config.model = model(&store, resolved)?;
    config.slow_client_timeout = PATIENCE;
    models::ensure(&store, &config.model, !args.no_pull)?;

    speech::start_threads(config.num_threads);
    let runtime = speech::runtime()?;
    let job = Job { args, recordings, places, max_bytes: config.max_audio_bytes };
    let heard = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let engine = speech::load(config, &mut interrupt).await?;
        job.transcribe(&engine, &mut interrupt).await
    });
    // A model that still loads after an interrupt is not waited for.
    runtime.shutdown_background();
    heard
}

/// The model of the flag, else the one set for listening: what is set for speaking cannot listen.
fn model(store: &Store, resolved: &Resolved) -> Result<String> {
    let settings = &resolved.settings;
    let set =
        if resolved.is_flag("model") { Some(settings.engine.model.as_str()) } else { settings.server.ear() };
    let default = store.default_for(Task::Asr).map(|manifest| manifest.name.as_str());
    let Some(name) = set.or(default) else {
        return Err(failure::with_help("no model is set for listening", "name one with --model"));
    };
    let manifest = store.manifest(name)?;
    if manifest.tasks.contains(&Task::Asr) {
        return Ok(manifest.name.clone());
    }
    let remedy = match default {
        Some(default) => format!("use --model {default}"),
        None => "`izwi list` shows what each model does".to_owned(),
    };
    Err(failure::usage(format!("model '{name}' cannot transcribe"), remedy))
}

struct Job<'a> {
    args: &'a Args,
    recordings: Vec<Recording>,
    places: Places,
    /// The largest file taken.
    max_bytes: usize,
}

impl Job<'_> {
    async fn transcribe(&self, engine: &izwi_core::engine::Engine, interrupt: &mut Interrupt) -> Result<()> {
        let files = self.recordings.iter().map(|recording| recording.read(self.max_bytes)).collect();
        let progress = RefCell::new(HearingProgress::new(self.recordings.len()));
        let (mut failed, mut heard_s) = (false, 0.0);
        let begun = Instant::now();
        let deliver = |index: usize, heard: Result<Heard>| {
            progress.borrow().aside(|| {
                let result = heard.and_then(|heard| {
                    heard_s += heard.stats.audio_duration.as_secs_f64();
                    self.deliver(index, &heard)
                });
                match result {
                    Err(error) if is_about_output(&error) => Err(error),
                    Err(error) => {
                        failed = true;
                        let error =
                            error.context(format!("cannot transcribe {}", self.recordings[index].name()));
                        output::complain(&failure::render(&error));
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            })
        };
        let course = |event: listening::Course<'_>| progress.borrow_mut().follow(event);
        let request = |audio| self.request(audio);
        listening::listen(engine, files, request, interrupt, course, deliver).await?;
        if self.recordings.len() > 1 && heard_s > 0.0 {
            let took_s = begun.elapsed().as_secs_f64();
            output::say(&format!("all: {heard_s:.2} s in {took_s:.2} s, RTF {:.3}", took_s / heard_s));
        }
        if failed { Err(Failure::Reported.into()) } else { Ok(()) }
    }

    fn request(&self, audio: AudioInput) -> EngineCoreRequest {
        let mut request = EngineCoreRequest::asr(audio).with_transcription(TranscriptionOptions {
            prompt: self.args.prompt.clone(),
            translate: self.args.translate,
            word_timestamps: self.args.words,
        });
        request.language.clone_from(&self.args.language);
        request
    }

    fn deliver(&self, index: usize, heard: &Heard) -> Result<()> {
        let Args { format, translate, words, .. } = self.args;
        let text = format.render(heard, *translate, *words)?;
        let name = self.recordings[index].name();
        self.places.write(index, &name, &text)?;
        self.report(index, heard);
        Ok(())
    }

    fn report(&self, index: usize, heard: &Heard) {
        let name = self.recordings[index].name();
        if let Some(warning) = listening::cut_short(heard.stats.finish_reason) {
            output::say(&format!("warning: {name}: {warning}"));
        }
        let place = self.places.file(index).map_or_else(String::new, |path| format!(" → {}", path.display()));
        let seconds = heard.stats.audio_duration.as_secs_f64();
        let language = match &heard.transcript.language {
            _ if heard.transcript.segments.is_empty() => ", nothing was said".to_owned(),
            Some(language) => format!(", language {language}"),
            None => String::new(),
        };
        // Among others its own time says nothing.
        let alone = self.recordings.len() == 1;
        let rtf = if alone { format!(", RTF {:.3}", heard.stats.rtf()) } else { String::new() };
        output::say(&format!("{name}{place}: {seconds:.2} s{rtf}{language}"));
    }
}

/// Whether nothing more can be delivered, however good the other recordings are.
fn is_about_output(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::OutputClosed))
}
