//! `izwi voices add`: makes a voice of a recording and saves it.

use std::path::PathBuf;

use anyhow::Result;
use clap::ValueHint;
use izwi_core::engine::ReferenceAudio;
use izwi_hub::{ModelStatus, Store, VoiceError, VoiceNotes};

use super::list;
use crate::engine::{self, Loaded};
use crate::settings::Resolved;
use crate::{failure, input, models, output};

/// Make a voice from a recording and save it
///
/// Reads wav, flac, mp3, ogg, m4a and webm. A few seconds of one clear voice without music are enough. The model must
/// support voice cloning; without --model the only such installed model is used. It is pulled if it is not installed.
#[derive(Debug, clap::Args)]
pub(super) struct Add {
    /// Name of the new voice: a-z, 0-9, '.', '_' and '-'
    #[arg(value_name = "NAME")]
    name: String,
    /// Recording of the voice
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Transcript of the recording; without it only the timbre is used
    #[arg(long, value_name = "TEXT")]
    text: Option<String>,
    /// Use only the timbre
    #[arg(long)]
    timbre_only: bool,
    /// Replace a voice of this name
    #[arg(long)]
    force: bool,
    /// Print the voice as a JSON object to standard output
    #[arg(long)]
    json: bool,
    /// Fail if the model is not installed, instead of pulling it
    #[arg(long)]
    no_pull: bool,
}

impl Add {
    pub(super) fn run(&self, store: &Store, resolved: &Resolved) -> Result<()> {
        store.voices().check_free(&self.name, self.force).map_err(with_remedy)?;
        let mut config = engine::local_config(resolved);
        let audio = input::read_recording(&self.file, config.max_audio_bytes)?.into();
        if !resolved.is_flag("model") {
            config.model = cloning_model(store, &config.model)?;
        }
        models::ensure(store, &config.model, !self.no_pull)?;
        let model = config.model.clone();
        let recording = ReferenceAudio { audio, text: self.text.clone(), timbre_only: self.timbre_only };

        let pack = engine::run(config, async |loaded| {
            let Loaded { engine, mut interrupt, .. } = loaded;
            if !engine.profile().info.clones_voices {
                let message = format!("model '{model}' does not support voice cloning");
                return Err(failure::usage(message, "choose one that does with --model, see `izwi list`"));
            }
            interrupt.guard(async { Ok(engine.make_voice(recording).await?) }).await
        })?;
        let notes = VoiceNotes { made_by: Some(model), text: self.text.clone() };
        let voice = store.voices().save(&self.name, &pack, &notes, self.force).map_err(with_remedy)?;
        if self.json {
            return output::print_json(&list::saved_json(&voice));
        }
        let name = &voice.name;
        output::print(&format!("{name} is saved; use it with `izwi say --voice {name}`\n"))
    }
}

/// The model for a new voice without `--model`: the TTS model of the settings if it clones voices, else the only installed
/// model that does, else the only known one.
fn cloning_model(store: &Store, configured: &str) -> Result<String> {
    let clones = |status: &ModelStatus<'_>| status.manifest.clones_voices;
    let all: Vec<ModelStatus<'_>> = store.list().into_iter().filter(clones).collect();
    let names = |installed: bool| {
        let found = all.iter().filter(|status| status.installed || !installed);
        found.map(|status| status.manifest.name.as_str()).collect::<Vec<_>>()
    };
    let (installed, known) = (names(true), names(false));
    match (installed.as_slice(), known.as_slice()) {
        (_, known) if known.contains(&configured) => Ok(configured.to_owned()),
        ([only], _) | ([], [only]) => Ok((*only).to_owned()),
        (some, known) => {
            let choice = if some.is_empty() { known } else { some };
            let message = "no model is given, and several models clone voices";
            Err(failure::usage(message, format!("add --model with one of {}", choice.join(", "))))
        }
    }
}

/// Adds the flag that resolves the error.
fn with_remedy(error: VoiceError) -> anyhow::Error {
    match error {
        VoiceError::Exists { name } => failure::with_help(
            format!("a voice '{name}' is saved already"),
            format!("choose another name, add --force, or run `izwi voices rm {name}`"),
        ),
        other => other.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_only_model_that_clones_voices_is_the_default() {
        let home = tempfile::tempdir().unwrap();
        let kept = home.path().join("kept");
        let store = || models::open_at(home.path(), Some(kept.clone())).unwrap();
        let status = store();
        let cloners = status.list().into_iter().filter(|status| status.manifest.clones_voices);
        let names: Vec<String> = cloners.map(|status| status.manifest.name.clone()).collect();
        let [first, second, ..] = names.as_slice() else { panic!("{names:?}") };
        let error = cloning_model(&store(), "wren").unwrap_err();
        let message = failure::render(&error);
        assert!(message.contains(first) && message.contains(second), "{message}");
        assert_eq!(cloning_model(&store(), second).unwrap(), *second, "the configured one");
        std::fs::create_dir_all(kept.join(second)).unwrap();
        assert_eq!(cloning_model(&store(), "wren").unwrap(), *second, "the only one installed");
        std::fs::create_dir_all(kept.join(first)).unwrap();
        assert!(cloning_model(&store(), "wren").is_err());
    }
}
