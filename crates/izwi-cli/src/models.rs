//! Models for commands: opens the store and installs missing models. Knows no command.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use izwi_hub::{HubError, Manifest, Source, Store};

use crate::failure;
use crate::output;
use crate::progress::PullProgress;
use crate::settings::Settings;

/// Opens the store that the settings name.
///
/// # Errors
/// A manifest in it is unusable.
pub(crate) fn open(settings: &Settings) -> Result<Store> {
    open_at(&settings.home, settings.engine.models_dir.clone())
}

/// Opens the store of `home` with the external models of `models_dir`.
///
/// # Errors
/// A manifest in it is unusable.
pub(crate) fn open_at(home: &Path, models_dir: Option<PathBuf>) -> Result<Store> {
    let store = Store::open(Some(home.to_path_buf()))
        .with_context(|| format!("cannot open the model store {}", home.display()))?;
    Ok(store.with_models_dir(models_dir))
}

/// Makes sure that a model is installed; pulls it if that is allowed.
///
/// # Errors
/// There is no such model, it is damaged, a pull is not allowed, or the pull failed.
pub(crate) fn ensure(store: &Store, name: &str, may_pull: bool) -> Result<()> {
    match store.installed(name) {
        Ok(_) => Ok(()),
        Err(HubError::NotInstalled { .. }) if may_pull => {
            let manifest = store.manifest(name)?;
            output::say(&format!(
                "model '{name}' is not installed yet; pulling {}",
                download_summary(manifest)
            ));
            store.pull(name, &mut PullProgress::new())?;
            Ok(())
        }
        Err(HubError::NotInstalled { .. }) => Err(failure::with_help(
            format!("model '{name}' is not installed, and --no-pull forbids a download"),
            format!("run `izwi pull {name}`"),
        )),
        Err(error) => Err(error.into()),
    }
}

/// Size of a download and its licence, for a message.
pub(crate) fn download_summary(manifest: &Manifest) -> String {
    let stated_by_hub = manifest.sources.first().is_some_and(|source| source.bytes().is_none());
    let size = match (download_bytes(manifest), stated_by_hub) {
        (None, _) => "the hub states the size".to_owned(),
        (Some(bytes), true) => format!("the hub states the size, {} from a mirror", output::bytes(bytes)),
        (Some(bytes), false) => output::bytes(bytes),
    };
    format!("{size} ({})", manifest.licence)
}

/// Bytes to download from the first source of known size; `None` where only the hub states sizes.
pub(crate) fn download_bytes(manifest: &Manifest) -> Option<u64> {
    manifest.sources.iter().find_map(Source::bytes)
}
