//! `izwi read`: reads a book aloud into one file with chapters, or a file for each.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::ValueHint;
use futures::{StreamExt as _, TryStreamExt as _};
use izwi_audio::encode::Format;
use izwi_core::engine::Engine;
use izwi_hub::Store;
use izwi_reading::{BindError, Binding, Book, Bound, Cast, Journal, Loudness, Plan, Unit, book};
use izwi_server::AlignmentFormat;
use izwi_types::excerpt;

use crate::engine::Loaded;
use crate::progress::{ReadingProgress, clock};
use crate::reading::{Outputs, Speaker, is_unspeakable};
use crate::settings::Resolved;
use crate::speech_options::SpeechFlags;
use crate::{engine, failure, input, logging, models, output, sink, voice_list};

/// Units that are spoken at once: what a step of a small machine takes together.
const CONCURRENT: usize = 4;
/// Different warnings that are shown.
const MAX_WARNINGS: usize = 20;

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
    let book = book::read(&args.book).map_err(failure::of_book)?;
    let cast = args.cast.as_deref().map(read_cast).transpose()?.unwrap_or_default();
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
    let journal = Journal::open(outputs.work.clone()).map_err(failure::of_work)?;
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

/// The largest cast.
const MAX_CAST_BYTES: u64 = 1 << 20;

fn read_cast(path: &Path) -> Result<Cast> {
    let bytes = input::read_file(path, MAX_CAST_BYTES)?;
    let text = String::from_utf8(bytes).with_context(|| format!("{} is not UTF-8 text", path.display()))?;
    Cast::parse(&text).map_err(|message| {
        failure::usage(
            format!("{} is no cast: {message}", path.display()),
            "it may have narrator, quotes, and a table [speakers] of names and voices",
        )
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

/// What this run spoke.
#[derive(Default)]
struct Spoken {
    units: usize,
    audio_s: f64,
    /// Keys of what the model has no sound for.
    left_out: HashSet<String>,
    warnings: BTreeSet<String>,
}

/// The units of a book with a loaded model.
struct Session<'a> {
    reading: &'a Reading<'a>,
    engine: &'a Engine,
    speakers: BTreeMap<Option<String>, Speaker>,
    /// The units' names in the journal.
    keys: Vec<String>,
    journal: &'a Journal,
    progress: RefCell<ReadingProgress>,
    spoken: RefCell<Spoken>,
}

impl Reading<'_> {
    async fn run(&self, loaded: Loaded, journal: Journal) -> Result<()> {
        let result = self.read(loaded, &journal).await;
        if result.is_ok() && !self.args.keep {
            journal.remove()?;
        } else if result.is_err() && journal.is_empty() {
            // The error says more than that this failed as well.
            let _ = journal.remove();
        }
        result
    }

    async fn read(&self, loaded: Loaded, journal: &Journal) -> Result<()> {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let mut session = Session::new(self, &engine, journal)?;
        let todo = session.todo();
        let all = session.keys.iter().collect::<HashSet<_>>().len();
        let found = all - todo.len();
        if found > 0 {
            output::status(&format!("{found} of {all} paragraphs were spoken before"));
        }
        let begun = Instant::now();
        let result = interrupt.guard(session.speak_all(&todo)).await;
        let elapsed_s = begun.elapsed().as_secs_f64();
        let spoken = std::mem::take(session.spoken.get_mut());
        session.progress.get_mut().suspend(|| warn(&spoken.warnings));
        let result = match result {
            Ok(()) => interrupt.guard(session.bind(&spoken.left_out)).await,
            Err(error) => Err(error),
        };
        session.progress.get_mut().clear();
        let bound = result.inspect_err(|_| {
            let (done, folder) = (found + spoken.units, journal.folder().display());
            let remedy = "the same command goes on from there";
            if done > 0 {
                output::status(&format!(
                    "{done} of {all} paragraphs are spoken and kept in {folder}; {remedy}"
                ));
            }
        })?;
        self.write_subtitles(&bound)?;
        let rtf = match spoken.units {
            0 => String::new(),
            _ => format!(", RTF {:.3}", elapsed_s / spoken.audio_s.max(1e-3)),
        };
        let lufs = bound.lufs.map(|lufs| format!(", {lufs:.1} LUFS")).unwrap_or_default();
        let (name, duration) = (self.args.output.display(), clock(bound.seconds));
        let (chapters, units) = (self.plan.chapters.len(), spoken.units);
        let line =
            format!("{name}: {duration}, {chapters} chapters, {units} of {all} paragraphs spoken{rtf}{lufs}");
        output::status(&line);
        Ok(())
    }

    fn write_subtitles(&self, bound: &Bound) -> Result<()> {
        let (Some(format), Some(path)) = (self.subtitles, &self.args.subtitles) else { return Ok(()) };
        let text = format.render(&bound.cues, bound.seconds).context("cannot write the subtitles")?;
        sink::write_bytes(path, text.as_bytes())
    }
}

impl<'a> Session<'a> {
    fn new(reading: &'a Reading<'a>, engine: &'a Engine, journal: &'a Journal) -> Result<Self> {
        let (flags, cast, store) = (&reading.args.options, reading.cast, reading.store);
        let narrator = cast.narrator().filter(|_| flags.voice().is_none());
        let mut speakers = BTreeMap::from([(None, Speaker::new(flags, narrator, engine, store)?)]);
        for voice in cast.voices() {
            speakers.insert(Some(voice.to_owned()), Speaker::new(flags, Some(voice), engine, store)?);
        }
        let (progress, spoken) = (RefCell::new(ReadingProgress::new(0, 0)), RefCell::default());
        let mut session = Self { reading, engine, speakers, keys: Vec::new(), journal, progress, spoken };
        let keys = reading.plan.units.iter().map(|unit| Ok(session.speaker(unit)?.key(&unit.text)));
        session.keys = keys.collect::<Result<_>>()?;
        Ok(session)
    }

    fn speaker(&self, unit: &Unit) -> Result<&Speaker> {
        self.speakers.get(&unit.voice).context("the cast lacks a voice")
    }

    fn characters(&self, unit: usize) -> u64 {
        self.reading.plan.units[unit].text.chars().count() as u64
    }

    /// The units that are not stored, each sound once.
    fn todo(&mut self) -> Vec<usize> {
        let mut known = HashSet::new();
        let is_new = |at: &usize| known.insert(&self.keys[*at]) && !self.journal.has(&self.keys[*at]);
        let todo: Vec<usize> = (0..self.keys.len()).filter(is_new).collect();
        let total: u64 = (0..self.keys.len()).map(|at| self.characters(at)).sum();
        let left: u64 = todo.iter().map(|at| self.characters(*at)).sum();
        *self.progress.get_mut() = ReadingProgress::new(total, total - left);
        todo
    }

    /// Speaks units and stores them, several at once.
    async fn speak_all(&self, todo: &[usize]) -> Result<()> {
        let width = CONCURRENT.min(self.engine.config().max_batch_size).max(1);
        let speaking = futures::stream::iter(todo).map(|at| self.speak(*at)).buffer_unordered(width);
        speaking.try_for_each(|()| std::future::ready(Ok(()))).await
    }

    async fn speak(&self, at: usize) -> Result<()> {
        let (unit, key) = (&self.reading.plan.units[at], &self.keys[at]);
        let said = self.speaker(unit)?.speak(self.engine, self.reading.store, &unit.text).await;
        let (sound, warnings) = match said {
            Err(error) if is_unspeakable(&error) => {
                let mut spoken = self.spoken.borrow_mut();
                spoken.left_out.insert(key.clone());
                spoken.warnings.insert(format!("'{}' is left out: {error}", excerpt(&unit.text)));
                return Ok(());
            }
            said => said.with_context(|| format!("cannot speak '{}'", excerpt(&unit.text)))?,
        };
        tokio::task::block_in_place(|| self.journal.store(key, &sound)).map_err(failure::of_storing)?;
        let mut spoken = self.spoken.borrow_mut();
        spoken.units += 1;
        spoken.audio_s += sound.seconds();
        spoken.warnings.extend(warnings);
        let place = format!("chapter {} of {}", unit.chapter + 1, self.reading.plan.chapters.len());
        self.progress.borrow_mut().spoken(self.characters(at), sound.seconds(), &place);
        Ok(())
    }

    /// Makes the files of what is stored.
    async fn bind(&self, left_out: &HashSet<String>) -> Result<Bound> {
        let Reading { args, book, plan, outputs, subtitles, .. } = *self.reading;
        let keys: Vec<Option<&str>> =
            self.keys.iter().map(|key| (!left_out.contains(key)).then_some(&**key)).collect();
        let (loudness, sample_rate_hz) = (args.loudness, self.engine.profile().info.sample_rate_hz);
        let binding = Binding {
            book,
            plan,
            keys: &keys,
            journal: self.journal,
            outputs: &outputs.bound,
            loudness,
            sample_rate_hz,
        };
        let passes = if loudness == Loudness::Off { 1 } else { 2 };
        self.progress.borrow().bind(passes * keys.len() as u64);
        let bound = binding.bind(subtitles.is_some(), || {
            self.progress.borrow().bound();
            Ok(())
        });
        bound.await.map_err(|error| match error {
            BindError::Io(error) => failure::of_storing(error),
            error => error.into(),
        })
    }
}

fn warn(warnings: &BTreeSet<String>) {
    for warning in warnings.iter().take(MAX_WARNINGS) {
        output::status(&format!("warning: {warning}"));
    }
    if warnings.len() > MAX_WARNINGS {
        output::status(&format!("warning: and {} more", warnings.len() - MAX_WARNINGS));
    }
}
