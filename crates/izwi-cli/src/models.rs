//! The model store of the commands: opens it, and installs a model before it is used.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_core::engine::known_speakers::KnownSpeaker;
use izwi_hub::{HubError, Manifest, ModelStatus, Source, Store, Task};

use crate::failure;
use crate::output;
use crate::progress::PullProgress;
use crate::settings::{Resolved, Settings, pipelines, remote};

/// Opens the store of the settings.
///
/// # Errors
/// A manifest in it is invalid, or a remote model or a pipeline has the name of one.
pub(crate) fn open(settings: &Settings) -> Result<Store> {
    let store = open_at(&settings.home, settings.engine.models_dir.clone())?;
    let remotes =
        settings.remote_models.iter().map(|model| (&model.origin, remote::TABLES, &*model.config.name));
    let pipelines = settings.pipelines.iter().map(|model| (&model.origin, pipelines::TABLES, model.name()));
    if let Some((origin, table, name)) =
        remotes.chain(pipelines).find(|(_, _, name)| store.manifest(name).is_ok())
    {
        return Err(failure::with_help(
            format!("{origin}: {table}: name: '{name}' is a model of `izwi list`"),
            "choose another name for it",
        ));
    }
    Ok(store.with_voice_limits(settings.voices))
}

/// Opens the store of `home`; `models_dir` is a second folder of models.
///
/// # Errors
/// A manifest in it is invalid.
pub(crate) fn open_at(home: &Path, models_dir: Option<PathBuf>) -> Result<Store> {
    let store = Store::open(Some(home.to_path_buf()))
        .with_context(|| format!("cannot open the model store {}", home.display()))?;
    Ok(store.with_models_dir(models_dir))
}

/// Makes sure that the model of `name` can be loaded: it is remote, or installed, or pulled now if that is allowed.
///
/// # Errors
/// As [`ensure`].
pub(crate) fn ensure_known(store: &Store, settings: &Settings, name: &str, may_pull: bool) -> Result<()> {
    match settings.remote(name) {
        Some(remote) => {
            output::status(&format!("model '{name}' is remote: its inputs are sent to {}", remote.place()));
            Ok(())
        }
        None => ensure(store, name, may_pull),
    }
}

/// Makes sure that a model is installed; pulls it if that is allowed.
///
/// # Errors
/// The model is unknown, damaged, not installed and not to be pulled, or the pull failed.
pub(crate) fn ensure(store: &Store, name: &str, may_pull: bool) -> Result<()> {
    match store.installed(name) {
        Ok(_) => Ok(()),
        Err(HubError::NotInstalled { .. }) if may_pull => {
            let manifest = store.manifest(name)?;
            output::status(&format!(
                "model '{name}' is not installed yet; pulling {}",
                download_summary(manifest)
            ));
            store.pull(name, &mut PullProgress::new())?;
            Ok(())
        }
        Err(HubError::NotInstalled { .. }) => Err(failure::with_help(
            format!("model '{name}' is not installed, and --no-pull forbids pulling it"),
            format!("run `izwi pull {name}`"),
        )),
        Err(error) => Err(error.into()),
    }
}

/// The model of `--model`, else the setting `asr_model`; the setting `model` names a TTS model.
///
/// # Errors
/// No model is set, or it is unknown or transcribes nothing.
pub(crate) fn asr_model(store: &Store, resolved: &Resolved) -> Result<String> {
    let settings = &resolved.settings;
    let chosen = if resolved.is_flag("model") {
        Some(settings.engine.model.as_str())
    } else {
        settings.server.default_asr_model()
    };
    let default = store.default_for(Task::Asr).map(|manifest| manifest.name.as_str());
    let Some(name) = chosen.or(default) else {
        return Err(failure::with_help("no ASR model is set", "name one with --model"));
    };
    let tasks = match settings.remote(name) {
        Some(remote) => vec![remote.config.task],
        None => store.manifest(name)?.tasks.clone(),
    };
    if tasks.contains(&Task::Asr) {
        return Ok(name.to_owned());
    }
    let remedy = match default {
        Some(default) => format!("use --model {default}"),
        None => "`izwi list` shows the tasks of each model".to_owned(),
    };
    Err(failure::usage(format!("model '{name}' cannot transcribe"), remedy))
}

/// The saved speakers that recordings heard by `model` are compared with.
///
/// # Errors
/// One is damaged, or the folder cannot be read.
pub(crate) fn known_speakers(store: &Store, model: &str) -> Result<Vec<KnownSpeaker>> {
    Ok(izwi_server::speakers::saved_speakers(store.speakers(), model)?)
}

/// The model of `--model` for a task that no setting names a model of, else the first installed one that has the task.
///
/// # Errors
/// There is none, or the named one is unknown or has another task.
pub(crate) fn with_task(store: &Store, resolved: &Resolved, task: Task) -> Result<String> {
    let (task_name, chosen) = (task.name(), &resolved.settings.engine.model);
    if resolved.is_flag("model") {
        if store.manifest(chosen)?.tasks.contains(&task) {
            return Ok(chosen.clone());
        }
        let message = format!("model '{chosen}' does not support the task {task_name}");
        return Err(failure::usage(message, "`izwi list` shows the tasks of each model"));
    }
    installed_with(store, task)
}

/// The first installed model that has a task.
///
/// # Errors
/// There is none.
pub(crate) fn installed_with(store: &Store, task: Task) -> Result<String> {
    let has_task = |status: &ModelStatus<'_>| status.installed && status.manifest.tasks.contains(&task);
    let is_other = |status: &ModelStatus<'_>| !status.manifest.default_for.contains(&task);
    let found = store.list().into_iter().filter(has_task).min_by_key(is_other);
    found.map(|status| status.manifest.name.clone()).ok_or_else(|| {
        let pull = store
            .default_for(task)
            .map_or_else(String::new, |manifest| format!("run `izwi pull {}`, or ", manifest.name));
        failure::with_help(
            format!("no model with the task {} is installed", task.name()),
            format!("{pull}see docs/diarization.md"),
        )
    })
}

/// The installed turn model; without one, silence ends turns.
pub(crate) fn turn_model(store: &Store) -> Option<String> {
    installed_with(store, Task::Turn).ok()
}

/// The size of a pull and the licence of the model.
pub(crate) fn download_summary(manifest: &Manifest) -> String {
    format!("{} ({})", downloads(manifest), manifest.licence)
}

/// The sizes of a pull: from the publisher's hub, and from the first mirror.
pub(crate) fn downloads(manifest: &Manifest) -> String {
    let (hub, mirrors): (Vec<_>, Vec<_>) = manifest.sources.iter().partition(|source| source.is_hub());
    let size = |source: &&Source| match source.bytes() {
        Some(bytes) => output::format_bytes(bytes),
        None => "an unknown size".to_owned(),
    };
    match (hub.first().map(size), mirrors.first().map(size)) {
        (Some(hub), Some(mirror)) => format!("{hub} from the hub, or {mirror} from a mirror"),
        (Some(hub), None) => format!("{hub} from the hub"),
        (None, mirror) => format!("{} from a mirror", mirror.unwrap_or_default()),
    }
}
