//! `izwi transcribe`: transcribes recordings to standard output or to files.

mod recordings;
mod transcripts;

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Result;
use clap::ValueHint;
use izwi_core::engine::{AudioInput, BeamSearch, EngineCoreRequest, TranscriptionOptions};

use crate::engine::{Loaded, incomplete};
use crate::failure::Failure;
use crate::progress::TranscriptionProgress;
use crate::settings::Resolved;
use crate::transcription::{self, Transcription};
use crate::{engine, failure, logging, models, output};

use recordings::Recording;
use transcripts::{Destinations, Format};

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
    /// File to write, or with several recordings the folder for NAME.txt, NAME.srt, NAME.vtt or NAME.json; - is
    /// standard output
    #[arg(long, short, value_name = "FILE|FOLDER", value_hint = ValueHint::AnyPath)]
    output: Option<PathBuf>,
    /// Language of the recording, as a BCP 47 tag [default: detected]
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Add word timestamps; needs --format json
    #[arg(long)]
    words: bool,
    /// Translate to English
    #[arg(long)]
    translate: bool,
    /// Text that could precede the recording: names, spellings, style
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Texts that are continued side by side to find the likeliest, 1 to 10; 1 is the fastest [default: the model's]
    #[arg(long, value_name = "N")]
    beam_size: Option<usize>,
    /// Texts that are finished before the search ends, as a multiple of the beam size, up to 8 [default: 1]
    #[arg(long, value_name = "P")]
    patience: Option<f32>,
    /// Exponent of the length by which the log-probability of a text is divided, 0 to 1 [default: the number of tokens]
    #[arg(long, value_name = "A")]
    length_penalty: Option<f32>,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

impl Args {
    fn search(&self) -> BeamSearch {
        let Self { beam_size, patience, length_penalty, .. } = *self;
        BeamSearch { beam_size, patience, length_penalty }
    }
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    // Errors of the decoder are reported by this command.
    logging::begin(&resolved.settings, "warn,symphonia=off");
    if args.words && args.format != Format::Json {
        return Err(failure::usage(
            format!("--words has no effect on {}", args.format.label()),
            "add --format json",
        ));
    }
    if let Err(error) = args.search().check() {
        return Err(failure::usage(error.message, "see `izwi help transcribe`"));
    }
    let recordings = recordings::find(&args.files)?;
    let destinations = transcripts::destinations(args.format, args.output.as_deref(), &recordings)?;
    let store = models::open(&resolved.settings)?;
    let mut config = engine::local_config(resolved);
    config.model = models::asr_model(&store, resolved)?;
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);

    let job = Job { args, recordings, destinations, max_bytes: config.max_audio_bytes };
    engine::run_model(config, remote, async |loaded| job.run(loaded).await)
}

struct Job<'a> {
    args: &'a Args,
    recordings: Vec<Recording>,
    destinations: Destinations,
    /// Largest file, in bytes.
    max_bytes: usize,
}

impl Job<'_> {
    async fn run(&self, loaded: Loaded) -> Result<()> {
        let Loaded { engine, mut interrupt, .. } = loaded;
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
        let request = |audio| self.request(audio);
        transcription::transcribe_all(&engine, files, request, &mut interrupt, on_event, deliver).await?;
        if self.recordings.len() > 1 && audio_s > 0.0 {
            let took_s = begun.elapsed().as_secs_f64();
            output::status(&format!("all: {audio_s:.2} s in {took_s:.2} s, RTF {:.3}", took_s / audio_s));
        }
        if has_failed { Err(Failure::Reported.into()) } else { Ok(()) }
    }

    fn request(&self, audio: AudioInput) -> EngineCoreRequest {
        let mut request = EngineCoreRequest::asr(audio).with_transcription(TranscriptionOptions {
            prompt: self.args.prompt.clone(),
            translate: self.args.translate,
            word_timestamps: self.args.words,
            search: self.args.search(),
            ..TranscriptionOptions::default()
        });
        request.language.clone_from(&self.args.language);
        request
    }

    fn deliver(&self, index: usize, done: &Transcription) -> Result<()> {
        let Args { format, translate, words, .. } = self.args;
        let text = format.render(done, *translate, *words)?;
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
