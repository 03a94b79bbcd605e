//! `izwi read`: reads a book aloud into one file with chapters, or a file for each.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::{Instant, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::ValueHint;
use futures::StreamExt as _;
use izwi_audio::encode::Format;
use izwi_core::engine::{Engine, EngineCoreRequest, EngineError, FinishReason, Segment, VoiceInput};
use izwi_hub::Store;
use izwi_server::AlignmentFormat;
use izwi_types::{TextNotes, excerpt};
use sha2::{Digest as _, Sha256};

use crate::book::{self, Book};
use crate::build_info::VERSION;
use crate::engine::{Loaded, OutputStream, incomplete};
use crate::failure::Failure;
use crate::progress::{ReadingProgress, clock};
use crate::reading::{Binding, Cast, Journal, Loudness, Outputs, Plan, Unit, UnitSound};
use crate::settings::Resolved;
use crate::speech_options::SpeechFlags;
use crate::{engine, failure, logging, models, output, sink, voice_list};

/// Units that are spoken at once: what a step of a small machine takes together.
const CONCURRENT: usize = 4;
/// Different warnings that are shown.
const MAX_WARNINGS: usize = 20;
/// Hexadecimal digits of a key.
const KEY_DIGITS: usize = 32;

/// Read a book aloud
///
/// Reads EPUB, Markdown, HTML and text into one audio file with chapter marks (.mp3, .opus, .flac, .wav), or into a folder with a
/// file for each chapter. Each paragraph is spoken for itself and stored in OUTPUT.izwi-read as it is done: a run that is
/// interrupted or killed goes on where it was when the same command is given again, and the result is the same to the bit. Of a book
/// that was changed meanwhile, the changed paragraphs are spoken again. The result is brought to one loudness, its peaks are
/// limited, and pauses follow the structure. A model that is not installed is pulled first.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Book to read: .epub, .md, .html or .txt
    #[arg(value_name = "BOOK", value_hint = ValueHint::FilePath)]
    book: PathBuf,
    /// Audio file, in the format of its extension, or a folder (a name that ends in /)
    #[arg(long, short, value_name = "OUTPUT", value_hint = ValueHint::AnyPath)]
    output: PathBuf,
    /// Format of the audio [default: that of the extension; mp3 for folders]
    #[arg(long, value_parser = sink::format_parser())]
    format: Option<&'static Format>,
    /// Loudness of the book in LUFS; off leaves it as the model speaks
    #[arg(long, value_name = "LUFS", default_value = "-18", allow_hyphen_values = true)]
    loudness: Loudness,
    /// Voices by role: a TOML file with narrator, quotes and a table of speakers
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    cast: Option<PathBuf>,
    /// Write subtitles too, in the format of the extension (.srt, .vtt)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    subtitles: Option<PathBuf>,
    /// Keep the folder of spoken paragraphs at the end
    #[arg(long)]
    keep: bool,
    #[command(flatten)]
    options: SpeechFlags,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn");
    let book = book::read(&args.book)?;
    let cast = args.cast.as_deref().map(Cast::read).transpose()?.unwrap_or_default();
    let plan = Plan::new(&book, &cast);
    let outputs = Outputs::choose(&args.output, args.format, &plan.chapters)?;
    let subtitles = args.subtitles.as_deref().map(|path| subtitle_format(path, &outputs)).transpose()?;
    let mut config = engine::local_config(resolved);
    let store = models::open(&resolved.settings)?;
    // The voices of a remote model are not known before it is asked.
    if !resolved.is_flag("model")
        && resolved.settings.remote(&config.model).is_none()
        && let Some(name) = args.options.voice().or(cast.narrator())
        && let Some(found) = voice_list::find(&store, name, &config.model, false)
    {
        config.model = found.model;
    }
    models::ensure_known(&store, &resolved.settings, &config.model, !args.no_pull)?;
    let remote = resolved.settings.remote(&config.model);
    let journal = Journal::open(outputs.work.clone())?;
    engine::run_model(config, remote, async |loaded| {
        let reading = Reading {
            args,
            book: &book,
            cast: &cast,
            plan: &plan,
            outputs: &outputs,
            subtitles,
            store: &store,
        };
        reading.run(loaded, journal).await
    })
}

fn subtitle_format(path: &Path, outputs: &Outputs) -> Result<AlignmentFormat> {
    if outputs.single().is_none() {
        return Err(failure::usage("--subtitles needs a book in one file", "name a file after -o"));
    }
    let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
    let format = match extension.as_deref() {
        Some("srt") => AlignmentFormat::Srt,
        Some("vtt") => AlignmentFormat::Vtt,
        _ => {
            return Err(failure::usage(
                format!("'{}' names no format of subtitles", path.display()),
                "use the extension .srt or .vtt",
            ));
        }
    };
    sink::check_file(path)?;
    Ok(format)
}

/// A book and what is made of it.
struct Reading<'a> {
    args: &'a Args,
    book: &'a Book,
    cast: &'a Cast,
    plan: &'a Plan,
    outputs: &'a Outputs,
    subtitles: Option<AlignmentFormat>,
    store: &'a Store,
}

/// How one voice speaks.
struct Speaker {
    request: EngineCoreRequest,
    /// All that its sound depends on, except for the text.
    fingerprint: String,
}

/// What this run spoke.
#[derive(Default)]
struct Spoken {
    units: usize,
    audio_s: f64,
    left_out: HashSet<usize>,
    warnings: BTreeSet<String>,
}

impl Reading<'_> {
    async fn run(&self, loaded: Loaded, journal: Journal) -> Result<()> {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let speakers = self.speakers(&engine)?;
        let speaker = |unit: &Unit| speakers.get(&unit.voice).context("a voice of the cast is missing");
        let keys = self.plan.units.iter().map(|unit| Ok(speaker(unit)?.key(&unit.text)));
        let keys: Vec<String> = keys.collect::<Result<_>>()?;
        let (units, mut known) = (&self.plan.units, HashSet::new());
        // A text that comes again sounds the same.
        let todo: Vec<usize> =
            (0..units.len()).filter(|at| known.insert(&keys[*at]) && !journal.has(&keys[*at])).collect();
        let characters = |at: usize| units[at].text.chars().count() as u64;
        let (total, left): (u64, u64) =
            ((0..units.len()).map(characters).sum(), todo.iter().copied().map(characters).sum());
        let (progress, spoken) =
            (RefCell::new(ReadingProgress::new(total, total - left)), RefCell::new(Spoken::default()));
        let (found, begun) = (known.len() - todo.len(), Instant::now());
        if found > 0 {
            output::status(&format!("{found} of {} paragraphs were spoken before", known.len()));
        }

        let speak = |at: usize| {
            let (engine, keys, journal, spoken) = (&engine, &keys, &journal, &spoken);
            async move {
                let unit = &units[at];
                let (sound, notes) = match speak(engine, speaker(unit)?, &keys[at], &unit.text).await {
                    Ok(said) => said,
                    Err(error) if is_unspeakable(&error) => {
                        let warning = format!("'{}' is left out: {error}", excerpt(&unit.text));
                        let mut spoken = spoken.borrow_mut();
                        spoken.left_out.insert(at);
                        spoken.warnings.insert(warning);
                        return Ok((at, None));
                    }
                    Err(error) => {
                        return Err(error.context(format!("cannot speak '{}'", excerpt(&unit.text))));
                    }
                };
                tokio::task::block_in_place(|| journal.store(&keys[at], &sound))?;
                Ok((at, Some((sound.seconds(), notes))))
            }
        };
        let width = CONCURRENT.min(engine.config().max_batch_size).max(1);
        let speaking = async {
            let mut results = futures::stream::iter(&todo).map(|at| speak(*at)).buffer_unordered(width);
            while let Some(result) = results.next().await {
                let (at, Some((seconds, warnings))) = result? else { continue };
                let mut spoken = spoken.borrow_mut();
                spoken.units += 1;
                spoken.audio_s += seconds;
                spoken.warnings.extend(warnings.sentences(&engine, self.store));
                let place = format!("chapter {} of {}", units[at].chapter + 1, self.plan.chapters.len());
                progress.borrow_mut().spoken(characters(at), seconds, &place);
            }
            Ok(())
        };
        let result = interrupt.guard(speaking).await;
        let seconds = begun.elapsed().as_secs_f64();
        let spoken = spoken.into_inner();
        progress.borrow().suspend(|| warn(&spoken.warnings));
        if let Err(error) = result {
            progress.borrow().clear();
            let done = found + spoken.units;
            output::status(&format!(
                "{done} of {} paragraphs are spoken and kept in {}; the same command goes on with the others",
                known.len(),
                journal.folder().display()
            ));
            return Err(error);
        }

        let left_out: HashSet<&String> = spoken.left_out.iter().map(|at| &keys[*at]).collect();
        let keys: Vec<Option<String>> =
            keys.iter().map(|key| (!left_out.contains(key)).then(|| key.clone())).collect();
        let (loudness, sample_rate_hz) = (self.args.loudness, engine.profile().info.sample_rate_hz);
        let Reading { book, plan, outputs, .. } = *self;
        let binding =
            Binding { book, plan, keys: &keys, journal: &journal, outputs, loudness, sample_rate_hz };
        let passes = if loudness == Loudness::Off { 1 } else { 2 };
        progress.borrow().bind(passes * units.len() as u64);
        let bound =
            interrupt.guard(binding.bind(self.subtitles.is_some(), || progress.borrow().bound())).await;
        progress.borrow().clear();
        if matches!(bound.as_ref().map_err(|error| error.downcast_ref()), Err(Some(Failure::Interrupted))) {
            output::status("all paragraphs are spoken; the same command binds them");
        }
        let bound = bound?;
        self.write_subtitles(&bound.cues, bound.seconds)?;
        if !self.args.keep {
            journal.remove()?;
        }
        let rtf = if spoken.units > 0 {
            format!(", RTF {:.3}", seconds / spoken.audio_s.max(1e-3))
        } else {
            String::new()
        };
        let lufs = bound.lufs.map(|lufs| format!(", {lufs:.1} LUFS")).unwrap_or_default();
        output::status(&format!(
            "{}: {}, {} chapters, {} of {} paragraphs spoken{rtf}{lufs}",
            self.args.output.display(),
            clock(bound.seconds),
            plan.chapters.len(),
            spoken.units,
            known.len(),
        ));
        Ok(())
    }

    /// The voices of the book, by their names in the cast.
    fn speakers(&self, engine: &Engine) -> Result<BTreeMap<Option<String>, Speaker>> {
        let narrator = self.args.options.voice().is_none().then(|| self.cast.narrator()).flatten();
        let revision = revision(self.store, &engine.profile().model);
        let speaker = |voice: Option<&str>| {
            let request = self.args.options.request_as(voice, engine, self.store.voices(), String::new())?;
            let fingerprint = fingerprint(engine, &revision, &request);
            Ok::<_, anyhow::Error>(Speaker { request, fingerprint })
        };
        let mut speakers = BTreeMap::from([(None, speaker(narrator)?)]);
        for voice in self.cast.voices() {
            speakers.insert(Some(voice.to_owned()), speaker(Some(voice))?);
        }
        Ok(speakers)
    }

    fn write_subtitles(&self, cues: &[Segment], seconds: f64) -> Result<()> {
        let (Some(format), Some(path)) = (self.subtitles, &self.args.subtitles) else { return Ok(()) };
        let text = format.render(cues, seconds).context("cannot write the subtitles")?;
        sink::write_bytes(path, text.as_bytes())
    }
}

impl Speaker {
    /// The name of a text's sound in the journal.
    fn key(&self, text: &str) -> String {
        let digest = Sha256::digest(format!("{}\n{text}", self.fingerprint));
        hex(&digest)[..KEY_DIGITS].to_owned()
    }
}

/// Which weights a model has: its manifest with the digests of its files, and for a folder of the user's the age of its weights.
fn revision(store: &Store, model: &str) -> String {
    let Ok(status) = store.status(model) else { return String::new() };
    let folder = status.source.as_deref().map(Path::new).filter(|source| source.is_dir());
    let files = folder.and_then(|folder| std::fs::read_dir(folder).ok()).into_iter().flatten().flatten();
    let weights =
        files.filter(|file| file.path().extension().is_some_and(|extension| extension == "safetensors"));
    let age =
        |file: std::fs::DirEntry| file.metadata().ok()?.modified().ok()?.duration_since(UNIX_EPOCH).ok();
    format!("{:?} {:?} {:?}", status.manifest, status.source, weights.filter_map(age).max())
}

/// What the sound of a voice depends on.
fn fingerprint(engine: &Engine, revision: &str, request: &EngineCoreRequest) -> String {
    let profile = engine.profile();
    let reference = match &request.reference {
        Some(VoiceInput::Pack(pack)) => hex(&Sha256::digest(pack)),
        Some(recording) => hex(&Sha256::digest(format!("{recording:?}"))),
        None => String::new(),
    };
    let model = format!("{} {} {:?} {revision}", profile.model, profile.device, profile.precision);
    format!("{} {model} {:?} {:?} {reference}", VERSION.as_str(), request.voice, request.options)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a model says otherwise than it is written, and whether it ended early.
struct Notes(TextNotes, Option<String>);

impl Notes {
    fn sentences(&self, engine: &Engine, store: &Store) -> Vec<String> {
        let notes = self.0.sentences(&engine.profile().model, |code| store.speaker_hint(code));
        notes.into_iter().map(|note| note.message).chain(self.1.clone()).collect()
    }
}

/// Speaks a unit. Its seed follows from its key, so that it sounds the same in every run.
async fn speak(engine: &Engine, speaker: &Speaker, key: &str, text: &str) -> Result<(UnitSound, Notes)> {
    let mut request = EngineCoreRequest::tts(text).with_options(speaker.request.options.clone());
    request.voice.clone_from(&speaker.request.voice);
    request.reference.clone_from(&speaker.request.reference);
    // Nobody listens: the device may take as much at once as it can.
    request.live = false;
    request.options.seed = Some(u64::from_str_radix(&key[..8], 16)?);
    let mut chunks = OutputStream::start(engine, request).await?;
    let (mut samples, mut words, mut notes) = (Vec::new(), Vec::new(), TextNotes::default());
    loop {
        let chunk = chunks.next().await?;
        samples.extend(chunk.samples);
        words.extend(chunk.words);
        if chunk.sequence == 0 {
            notes = chunk.notes;
        }
        let Some(stats) = chunk.stats else { continue };
        if matches!(stats.finish_reason, FinishReason::Cancelled | FinishReason::Interrupted) {
            anyhow::bail!("the engine stopped");
        }
        let cut = incomplete(stats.finish_reason, "speech")
            .map(|warning| format!("'{}': {warning}", excerpt(text)));
        return Ok((UnitSound::new(&samples, &words, chunk.sample_rate), Notes(notes, cut)));
    }
}

/// Whether the model has no sound for a text, such as one of markup alone.
fn is_unspeakable(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<EngineError>();
    error.is_some_and(|error| matches!(error, EngineError::InvalidRequest { param, .. } if param == "input"))
}

fn warn(warnings: &BTreeSet<String>) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        output::status(&format!("warning: {warning}"));
    }
    if warnings.len() > MAX_WARNINGS {
        output::status(&format!("warning: and {} more", warnings.len() - MAX_WARNINGS));
    }
}
