//! `izwi speakers`: people whose names recordings are told with.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use clap::{Subcommand, ValueHint};
use izwi_core::engine::EngineCoreRequest;
use izwi_core::engine::known_speakers::{likenesses, main_embedding};
use izwi_hub::{SavedError, SavedSpeaker, Store, Task};
use serde_json::json;

use crate::engine::{self, Loaded};
use crate::settings::Resolved;
use crate::{failure, input, logging, models, output};

/// Save speakers, whose names `izwi diarize` and `izwi transcribe --speakers` then tell
///
/// A saved speaker is an embedding of the voice, made of a recording, in the folder `speakers` of the model store, in a file that you
/// alone can read; the recording is not kept. It works with the model that made it. It identifies a person: save nobody who has
/// not agreed, and remove those who ask for it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: SpeakersCommand,
}

#[derive(Debug, Subcommand)]
enum SpeakersCommand {
    Add(Add),
    Identify(Identify),
    /// List saved speakers
    #[command(visible_alias = "ls")]
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove saved speakers
    #[command(visible_alias = "remove")]
    Rm {
        /// Speakers, as `izwi speakers list` shows them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Save a speaker by a recording
///
/// Reads wav, flac, mp3, ogg, m4a and webm. Some seconds of one voice alone are enough; of several speakers, it is the one who speaks
/// most.
#[derive(Debug, clap::Args)]
struct Add {
    /// Name of the speaker: a-z, 0-9, '.', '_' and '-'
    #[arg(value_name = "NAME")]
    name: String,
    /// Recording of the voice
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// The speaker has agreed to be recognised
    #[arg(long)]
    agreed: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// Tell which saved speaker a recording is of
///
/// Of several speakers, it is the one who speaks most. Prints the saved speakers, the most similar first, with their similarity from -1
/// to 1; those who are similar enough to be told by name are marked. If none is, the exit code is 1.
#[derive(Debug, clap::Args)]
struct Identify {
    /// Recording of the voice
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Print as JSON
    #[arg(long)]
    json: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let store = models::open(&resolved.settings)?;
    match &args.command {
        SpeakersCommand::Add(add) => add.run(&store, resolved),
        SpeakersCommand::Identify(identify) => identify.run(&store, resolved),
        SpeakersCommand::List { json } => list(&store, *json),
        SpeakersCommand::Rm { names } => names.iter().try_for_each(|name| {
            store.speakers().remove(name)?;
            output::print(&format!("{name} is removed\n"))
        }),
    }
}

fn list(store: &Store, json: bool) -> Result<()> {
    let speakers = store.speakers().list()?;
    if json {
        let shown = speakers.iter().map(|speaker| json!({"name": speaker.name, "model": speaker.model}));
        return output::print_json(&shown.collect::<Vec<_>>());
    }
    if speakers.is_empty() {
        output::status("no speaker is saved; `izwi speakers add` saves one");
        return Ok(());
    }
    let mut rows = vec![["SPEAKER", "MODEL"].map(str::to_owned)];
    rows.extend(speakers.into_iter().map(|speaker| [speaker.name, speaker.model]));
    output::print(&output::format_columns(&rows))
}

impl Add {
    fn run(&self, store: &Store, resolved: &Resolved) -> Result<()> {
        let name = &self.name;
        if !self.agreed {
            let message = format!("an embedding of a voice identifies a person, and {name} must agree to it");
            return Err(failure::usage(message, "add --agreed once that is so"));
        }
        store.speakers().check_free(name).map_err(with_remedy)?;
        let (model, embedding) = voice_of(&self.file, store, resolved, !self.no_pull)?;
        store.speakers().save(&SavedSpeaker::new(name, &model, &embedding)).map_err(with_remedy)?;
        output::print(&format!("{name} is saved; `izwi speakers rm {name}` forgets the voice\n"))
    }
}

impl Identify {
    fn run(&self, store: &Store, resolved: &Resolved) -> Result<()> {
        let (model, embedding) = voice_of(&self.file, store, resolved, !self.no_pull)?;
        let known = models::known_speakers(store, &model)?;
        let all = likenesses(&embedding, &known);
        let best = all.first().filter(|best| best.is_enough);
        if self.json {
            let similarities =
                all.iter().map(|one| json!({"name": &*one.name, "similarity": one.similarity}));
            let similarities: Vec<_> = similarities.collect();
            output::print_json(
                &json!({"speaker": best.map(|best| &*best.name), "similarities": similarities}),
            )?;
        } else {
            let mut rows = vec![["SPEAKER", "SIMILARITY", ""].map(str::to_owned)];
            rows.extend(all.iter().map(|one| {
                let mark = if one.is_enough { "similar enough" } else { "" };
                [one.name.to_string(), format!("{:.2}", one.similarity), mark.to_owned()]
            }));
            output::print(&output::format_columns(&rows))?;
        }
        let remedy = "`izwi speakers add` saves one with the same model";
        match best {
            Some(_) => Ok(()),
            None => Err(failure::with_help("the recording is of no saved speaker".to_owned(), remedy)),
        }
    }
}

/// The model that hears a recording, and the embedding of who speaks most in it.
fn voice_of(file: &Path, store: &Store, resolved: &Resolved, may_pull: bool) -> Result<(String, Arc<[f32]>)> {
    let mut config = engine::local_config(resolved);
    let recording = input::read_recording(file, config.max_audio_bytes)?;
    config.model = models::with_task(store, resolved, Task::Diarize)?;
    models::ensure(store, &config.model, may_pull)?;
    let model = config.model.clone();
    let heard = engine::run(config, async |loaded| {
        let Loaded { engine, mut interrupt, .. } = loaded;
        let request = EngineCoreRequest::diarization(recording);
        interrupt.guard(async { Ok(engine.generate(request).await?) }).await
    })?;
    let turns = heard.transcript.unwrap_or_default().segments;
    let embedding = main_embedding(&turns).map_err(|error| {
        failure::with_help(error.to_string(), "choose another one with --model, see docs/diarization.md")
    })?;
    let embedding = embedding.ok_or_else(|| {
        let message = format!("nobody speaks in {}", file.display());
        failure::with_help(message, "take a recording of some seconds of speech")
    })?;
    Ok((model, embedding))
}

/// Adds the command that resolves the error.
fn with_remedy(error: SavedError) -> anyhow::Error {
    match error {
        SavedError::Exists { name, .. } => failure::with_help(
            format!("a speaker '{name}' is saved already"),
            format!("choose another name, or run `izwi speakers rm {name}`"),
        ),
        other => other.into(),
    }
}
