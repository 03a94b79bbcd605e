//! What the installed models can speak with, read without loading them.

use izwi_core::engine::Task;
use izwi_core::engine::executor::installed_voices;
use izwi_hub::Store;
use izwi_types::Voice;

/// An installed TTS model and the voices of its own, the default first; none for a model that speaks in saved voices alone.
#[derive(Debug)]
pub(crate) struct ModelVoices {
    pub(crate) model: String,
    pub(crate) voices: Vec<Voice>,
}

/// A model that has a voice.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) model: String,
    /// The language of the voice, where it has one.
    pub(crate) language: Option<String>,
}

impl Found {
    /// A model whose voices are not known here.
    pub(crate) fn of(model: &str) -> Self {
        Self { model: model.to_owned(), language: None }
    }
}

/// The installed TTS models, that of the name `default` first. Voices that cannot be read are logged and left out.
pub(crate) fn installed(store: &Store, default: &str) -> Vec<ModelVoices> {
    let speaks =
        |status: &izwi_hub::ModelStatus<'_>| status.installed && status.manifest.tasks.contains(&Task::Tts);
    let names = store.list().into_iter().filter(speaks).map(|status| status.manifest.name.clone());
    let mut names: Vec<String> = names.collect();
    names.sort_by_key(|name| name != default);
    let read = |model: String| {
        let voices = installed_voices(store, &model).unwrap_or_else(|error| {
            tracing::warn!(model, %error, "the voices of a model cannot be read");
            Vec::new()
        });
        ModelVoices { model, voices }
    };
    names.into_iter().map(read).collect()
}

/// The model for a voice: the one that made it, where it is saved; else `default`, where that has it; else the first
/// installed one that has it, unless `only_default`. Knows blends of voices, and not the names that stand for others.
pub(crate) fn find(store: &Store, name: &str, default: &str, only_default: bool) -> Option<Found> {
    let models = installed(store, default);
    let own = models.iter().filter(|model| !only_default || model.model == default).find_map(|model| {
        let is_named = Voice::is_named(name, &model.voices);
        // A blend speaks the language of its first voice.
        let first = name.split(['+', '(']).next().unwrap_or_default().trim();
        let voice = model.voices.iter().find(|voice| voice.id == name || voice.id == first)?;
        is_named.then(|| Found { model: model.model.clone(), language: Some(voice.language.clone()) })
    });
    // A model's own voice comes before a saved one of the same name.
    own.or_else(|| {
        let (saved, _) = store.voices().read(name).ok()?;
        let model = if only_default { default.to_owned() } else { saved.made_by? };
        store.manifest(&model).is_ok().then_some(Found { model, language: None })
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::models;

    /// A store with two models that have voices: the folder lives as long as the store.
    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let models = folder.path().join("models");
        fs::create_dir_all(models.join("hibari")).unwrap();
        fs::create_dir_all(models.join("kokoro-82m/voices")).unwrap();
        for name in ["am_adam", "af_heart", "bf_emma"] {
            fs::write(models.join("kokoro-82m/voices").join(format!("{name}.bin")), []).unwrap();
        }
        let store = models::open_at(&folder.path().join("home"), Some(models)).unwrap();
        (folder, store)
    }

    #[test]
    fn voices_of_installed_models_are_listed_the_default_model_first() {
        let (_folder, store) = store();
        let shown = |default: &str| {
            let models = installed(&store, default).into_iter();
            let names = |model: ModelVoices| {
                let ids: Vec<String> = model.voices.into_iter().map(|voice| voice.id).collect();
                format!("{}: {}", model.model, ids.join(" "))
            };
            models.map(names).collect::<Vec<_>>()
        };
        let (hibari, kokoro) = ("hibari: heart", "kokoro-82m: af_heart am_adam bf_emma");
        assert_eq!(shown("hibari"), [hibari, kokoro]);
        assert_eq!(shown("kokoro-82m"), [kokoro, hibari]);
    }

    #[test]
    fn the_model_of_a_voice_is_found() {
        let (_folder, store) = store();
        let found = |name: &str, only| {
            find(&store, name, "hibari", only).map(|found| (found.model, found.language.unwrap_or_default()))
        };
        let is = |model: &str, language: &str| Some((model.to_owned(), language.to_owned()));
        assert_eq!(found("heart", false), is("hibari", "en-US"));
        assert_eq!(found("bf_emma", false), is("kokoro-82m", "en-GB"));
        assert_eq!(found("bf_emma(2)+am_adam(1)", false), is("kokoro-82m", "en-GB"));
        assert_eq!(found("bf_emma", true), None, "another model was asked for");
        assert_eq!((found("nobody", false), found("../heart", false)), (None, None));
    }
}
