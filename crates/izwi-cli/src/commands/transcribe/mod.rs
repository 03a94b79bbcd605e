//! `izwi transcribe`: transcribes recordings to standard output or to files.

mod recordings;
mod transcripts;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::ValueHint;
use izwi_core::engine::known_speakers::KnownSpeaker;
use izwi_core::engine::{EngineCoreConfig, EngineCoreRequest, TranscriptionOptions};
use izwi_hub::Task;

use crate::engine::{Loaded, incomplete};
use crate::failure::Failure;
use crate::progress::TranscriptionProgress;
use crate::settings::Resolved;
use crate::transcription::{self, Engines, Transcription};
use crate::transcription_options::TranscriptionFlags;
use crate::{engine, failure, logging, models, output, rttm};

use recordings::Recording;
use transcripts::{Destinations, Format, With};

/// Transcribe recordings
///
/// Reads wav, flac, mp3, ogg, m4a and webm at any sample rate. Several recordings are transcribed concurrently; each
/// transcript is printed as soon as it and all before it are complete, under a line "== NAME". A recording that cannot be
/// read or transcribed is reported on standard error, and the others continue; the exit code is then 1. One line on
/// standard error reports the duration and the language of each recording, and the RTF (time to compute over time of
/// audio) of all. Files appear whole or not at all and replace existing ones. A model that is not installed is pulled
/// first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Recordings, folders of recordings, or quoted glob patterns such as 'talks/*.mp3'; - reads one recording from standard
    /// input
    #[arg(required = true, value_name = "FILE", value_hint = ValueHint::AnyPath)]
    files: Vec<String>,
    /// Format of the transcript
    #[arg(long, short, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// File to write, or with several recordings the folder for NAME.txt, NAME.srt, NAME.vtt, NAME.json or NAME.rttm; - is
    /// standard output
    #[arg(long, short, value_name = "FILE|FOLDER", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,
    /// Tell who says what, with the first installed model that has the task diarize: speakers are A, B and so on, or have the
    /// names of saved ones (`izwi speakers`)
    #[arg(long)]
    speakers: bool,
    #[command(flatten)]
    options: TranscriptionFlags,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported by this command.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let TranscriptionFlags(options) = &args.options;
    if options.words() && args.format != Format::Json {
        return Err(failure::usage(
            format!("--words has no effect on {}", args.format.label()),
            "add --format json",
        ));
    }
    if options.words() && args.speakers {
        return Err(failure::usage("--words has no effect with --speakers", "leave one out"));
    }
    if options.max_speakers.is_some() && !args.speakers {
        return Err(failure::usage("--max-speakers bounds the speakers that are told", "add --speakers"));
    }
    if args.format == Format::Rttm && !args.speakers {
        return Err(failure::usage("rttm tells who speaks, and nothing else", "add --speakers"));
    }
    let options = options.clone().checked();
    let options = options.map_err(|error| failure::usage(error.message, "see `izwi help transcribe`"))?;
    // Speakers are those of words.
    let has_words = options.words();
    let options = if args.speakers { options.with_words() } else { options };
    let recordings = recordings::find(&args.files)?;
    let destinations = transcripts::destinations(args.format, args.output.as_deref(), &recordings)?;
    let store = models::open(&resolved.settings)?;
    let speakers = args.speakers.then(|| models::installed_with(&store, Task::Diarize)).transpose()?;
    let mut config = engine::local_config(resolved);
    config.model = models::asr_model(&store, resolved)?;
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);
    let known = speakers.as_ref().map(|model| models::known_speakers(&store, model)).transpose()?;
    let job = Job {
        known: known.unwrap_or_default(),
        format: args.format,
        options,
        has_words,
        speakers: speakers.map(|model| EngineCoreConfig { model, ..config.clone() }),
        recordings,
        destinations,
        max_bytes: config.max_audio_bytes,
    };
    engine::run_model(config, remote, async |loaded| job.run(loaded).await)
}

struct Job {
    format: Format,
    options: TranscriptionOptions,
    /// Whether words are written, too.
    has_words: bool,
    /// The model that tells speakers, if they are asked for.
    speakers: Option<EngineCoreConfig>,
    /// Speakers whose names are known to it.
    known: Vec<KnownSpeaker>,
    recordings: Vec<Recording>,
    destinations: Destinations,
    /// Largest file, in bytes.
    max_bytes: usize,
}

impl Job {
    async fn run(&self, loaded: Loaded) -> Result<()> {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let speakers = match &self.speakers {
            Some(config) => Some(engine::load(config.clone(), &mut interrupt).await?),
            None => None,
        };
        let engines = Engines { text: &engine, speakers: speakers.as_ref(), known: &self.known };
        let files = self.recordings.iter().map(|recording| recording.read(self.max_bytes)).collect();
        let progress = RefCell::new(TranscriptionProgress::new(self.recordings.len()));
        let (mut has_failed, mut audio_s) = (false, 0.0);
        let begun = Instant::now();
        let deliver = |index: usize, result: Result<Transcription>| {
            progress.borrow().suspend(|| {
                let delivered = result.and_then(|done| {
                    audio_s += done.stats.audio_duration.as_secs_f64();
                    self.deliver(index, &done)
                });
                match delivered {
                    Err(error) if is_closed_output(&error) => Err(error),
                    Err(error) => {
                        has_failed = true;
                        let name = self.recordings[index].name();
                        let error = error.context(format!("cannot transcribe {name}"));
                        output::stderr(&failure::render(&error));
                        Ok(())
                    }
                    Ok(()) => Ok(()),
                }
            })
        };
        let on_event = |event: transcription::Event<'_>| progress.borrow_mut().update(event);
        let request = |audio| EngineCoreRequest::asr(audio).with_transcription(self.options.clone());
        transcription::transcribe_all(engines, files, request, &mut interrupt, on_event, deliver).await?;
        if self.recordings.len() > 1 && audio_s > 0.0 {
            let took_s = begun.elapsed().as_secs_f64();
            output::status(&format!("all: {audio_s:.2} s in {took_s:.2} s, RTF {:.3}", took_s / audio_s));
        }
        if has_failed { Err(Failure::Reported.into()) } else { Ok(()) }
    }

    fn deliver(&self, index: usize, done: &Transcription) -> Result<()> {
        let with = With { words: self.has_words, speakers: self.speakers.is_some() };
        let text = match self.format {
            Format::Rttm => rttm::render(&self.recordings[index].stem().to_string_lossy(), &done.turns),
            format => format.render(done, self.options.translate, with)?,
        };
        let name = self.recordings[index].name();
        self.destinations.write(index, &name, &text)?;
        self.report(index, done);
        Ok(())
    }

    fn report(&self, index: usize, done: &Transcription) {
        let name = self.recordings[index].name();
        if let Some(warning) = incomplete(done.stats.finish_reason, "transcript") {
            output::status(&format!("warning: {name}: {warning}"));
        }
        let file = self.destinations.file(index);
        let file = file.map_or_else(String::new, |path| format!(" → {}", path.display()));
        let seconds = done.stats.audio_duration.as_secs_f64();
        let language = match &done.transcript.language {
            _ if done.transcript.segments.is_empty() => ", no speech".to_owned(),
            Some(language) => format!(", language {language}"),
            None => String::new(),
        };
        // Concurrent recordings have no RTF of their own.
        let is_single = self.recordings.len() == 1;
        let rtf = if is_single { format!(", RTF {:.3}", done.stats.rtf()) } else { String::new() };
        output::status(&format!("{name}{file}: {seconds:.2} s{rtf}{language}"));
    }
}

/// Whether no further result can be delivered.
fn is_closed_output(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Failure::OutputClosed))
}
