//! `izwi voices`: saved voices, made of recordings by models that clone voices.

use std::path::PathBuf;

use anyhow::Result;
use clap::{Subcommand, ValueHint};
use izwi_core::engine::ReferenceAudio;
use izwi_hub::{ModelStatus, SavedVoice, Store, VoiceError, VoiceNotes};
use serde::Serialize;

use crate::failure::{self, Failure};
use crate::interrupt::Interrupt;
use crate::settings::Resolved;
use crate::{logging, manner, models, output, speech};

/// List saved voices, make and remove them
///
/// A saved voice is made of some seconds of a recording and lies in the `voices` folder of the model store. It fits the
/// model that made it, and is spoken in with `izwi say --voice NAME`, and by its name over HTTP and WebSocket.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<VoicesCommand>,
}

#[derive(Debug, Subcommand)]
enum VoicesCommand {
    /// List saved voices; what `izwi voices` does alone
    List {
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
    Add(Add),
    /// Remove saved voices
    Rm {
        /// Voices, as `izwi voices` shows them
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
    /// Show what is known of a saved voice
    Show {
        /// A voice, as `izwi voices` shows it
        #[arg(value_name = "NAME")]
        name: String,
        /// Print as JSON
        #[arg(long)]
        json: bool,
    },
}

/// Make a voice of a recording and save it
///
/// Takes wav, flac, mp3, ogg, m4a and webm. Some seconds of one clear voice without music are enough. The model must be one
/// that clones voices; where none is named, the only one installed is taken. It is pulled if it is not installed.
#[derive(Debug, clap::Args)]
struct Add {
    /// Name of the new voice: a-z, 0-9, '.', '_' and '-'
    #[arg(value_name = "NAME")]
    name: String,
    /// Recording of the voice
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// What is said in the recording; without it only the timbre is taken
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Take the timbre alone
    #[arg(long)]
    timbre_only: bool,
    /// Replace a voice of this name
    #[arg(long)]
    force: bool,
    /// Print a JSON object about the voice to standard output
    #[arg(long)]
    json: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

/// What `--json` prints of a voice.
#[derive(Debug, Serialize)]
struct Shown<'a> {
    name: &'a str,
    /// The model that made it, where that is known.
    made_by: Option<&'a str>,
    family: &'a str,
    /// Fingerprint of the checkpoint that it fits.
    fingerprint: &'a str,
    created: &'a str,
    text: Option<&'a str>,
    bytes: u64,
}

pub(crate) fn run(args: &Args, resolved: &Resolved) -> Result<()> {
    logging::begin(&resolved.settings, "warn,symphonia=off");
    let store = models::open(&resolved.settings)?;
    match &args.command {
        None => list(&store.voices().list()?, false),
        Some(VoicesCommand::List { json }) => list(&store.voices().list()?, *json),
        Some(VoicesCommand::Add(add)) => add.run(resolved),
        Some(VoicesCommand::Rm { names }) => {
            for name in names {
                store.voices().remove(name)?;
                output::print(&format!("{name} is removed\n"))?;
            }
            Ok(())
        }
        Some(VoicesCommand::Show { name, json }) => show(&store.voices().read(name)?.0, *json),
    }
}

fn list(voices: &[SavedVoice], json: bool) -> Result<()> {
    if json {
        return output::print_json(&voices.iter().map(shown).collect::<Vec<_>>());
    }
    if voices.is_empty() {
        output::say("no voice is saved yet; `izwi voices add NAME FILE` makes one");
        return Ok(());
    }
    let mut rows = vec![["NAME", "MODEL", "SIZE", "CREATED", "TEXT"].map(str::to_owned)];
    rows.extend(voices.iter().map(|voice| {
        [
            voice.name.clone(),
            voice.made_by.as_ref().unwrap_or(&voice.family).clone(),
            output::bytes(voice.bytes),
            voice.created.clone(),
            voice.text.clone().unwrap_or_default(),
        ]
    }));
    output::print(&output::columns(&rows))
}

fn show(voice: &SavedVoice, json: bool) -> Result<()> {
    if json {
        return output::print_json(&shown(voice));
    }
    let unknown = || "(not known)".to_owned();
    let rows = [
        ["name", &voice.name],
        ["made by", voice.made_by.as_ref().unwrap_or(&unknown())],
        ["family", &voice.family],
        ["checkpoint", &voice.model],
        ["created", &voice.created],
        ["size", &output::bytes(voice.bytes)],
        ["text", voice.text.as_ref().unwrap_or(&unknown())],
    ]
    .map(|row| row.map(str::to_owned));
    output::print(&output::columns(&rows))
}

fn shown(voice: &SavedVoice) -> Shown<'_> {
    Shown {
        name: &voice.name,
        made_by: voice.made_by.as_deref(),
        family: &voice.family,
        fingerprint: &voice.model,
        created: &voice.created,
        text: voice.text.as_deref(),
        bytes: voice.bytes,
    }
}

impl Add {
    fn run(&self, resolved: &Resolved) -> Result<()> {
        let store = models::open(&resolved.settings)?;
        store.voices().check_free(&self.name, self.force).map_err(taken)?;
        let mut config = speech::engine_config(resolved);
        let audio = manner::read_recording(&self.file, config.max_audio_bytes)?;
        if !resolved.is_flag("model") {
            config.model = cloner(&store, &config.model)?;
        }
        models::ensure(&store, &config.model, !self.no_pull)?;
        let model = config.model.clone();
        let recording = ReferenceAudio { audio, text: self.text.clone(), timbre_only: self.timbre_only };

        speech::start_threads(config.num_threads);
        let runtime = speech::runtime()?;
        let made = runtime.block_on(async {
            let mut interrupt = Interrupt::listen()?;
            let engine = speech::load(config, &mut interrupt).await?;
            if !engine.profile().info.clones_voices {
                let message = format!("model '{model}' clones no voices");
                return Err(failure::usage(message, "name one that does with --model, see `izwi list`"));
            }
            tokio::select! {
                made = engine.make_voice(recording) => Ok(made?),
                () = interrupt.requested() => Err(Failure::Interrupted.into()),
            }
        });
        // A model that still loads after an interrupt is not waited for.
        runtime.shutdown_background();
        let notes = VoiceNotes { made_by: Some(model), text: self.text.clone() };
        let voice = store.voices().save(&self.name, &made?, &notes, self.force).map_err(taken)?;
        if self.json {
            return output::print_json(&shown(&voice));
        }
        let name = &voice.name;
        output::print(&format!("{name} is saved; speak in it with `izwi say --voice {name}`\n"))
    }
}

/// The model to make a voice with where none is named: the one set for speaking if it clones voices, else the only one
/// that does, of those installed or of all.
fn cloner(store: &Store, set: &str) -> Result<String> {
    let clones = |status: &ModelStatus<'_>| status.manifest.clones_voices;
    let all: Vec<ModelStatus<'_>> = store.list().into_iter().filter(clones).collect();
    let names = |installed: bool| {
        let found = all.iter().filter(|status| status.installed || !installed);
        found.map(|status| status.manifest.name.as_str()).collect::<Vec<_>>()
    };
    let (installed, known) = (names(true), names(false));
    match (installed.as_slice(), known.as_slice()) {
        (_, known) if known.contains(&set) => Ok(set.to_owned()),
        ([only], _) | ([], [only]) => Ok((*only).to_owned()),
        (some, known) => {
            let choice = if some.is_empty() { known } else { some };
            let message = "no model is named, and several clone voices";
            Err(failure::usage(message, format!("add --model with one of {}", choice.join(", "))))
        }
    }
}

/// The same error with the flag that helps.
fn taken(error: VoiceError) -> anyhow::Error {
    match error {
        VoiceError::Exists { name } => failure::with_help(
            format!("a voice '{name}' is saved already"),
            format!("take another name, add --force, or run `izwi voices rm {name}`"),
        ),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_that_clones_is_found_where_it_is_the_only_one() {
        let home = tempfile::tempdir().unwrap();
        let kept = home.path().join("kept");
        let store = || models::open_at(home.path(), Some(kept.clone())).unwrap();
        let status = store();
        let cloners = status.list().into_iter().filter(|status| status.manifest.clones_voices);
        let names: Vec<String> = cloners.map(|status| status.manifest.name.clone()).collect();
        let [first, second, ..] = names.as_slice() else { panic!("{names:?}") };
        let told = cloner(&store(), "wren").unwrap_err();
        let told = failure::render(&told);
        assert!(told.contains(first) && told.contains(second), "{told}");
        assert_eq!(cloner(&store(), second).unwrap(), *second, "the one that is set");
        std::fs::create_dir_all(kept.join(second)).unwrap();
        assert_eq!(cloner(&store(), "wren").unwrap(), *second, "the only one installed");
        std::fs::create_dir_all(kept.join(first)).unwrap();
        assert!(cloner(&store(), "wren").is_err());
    }
}
