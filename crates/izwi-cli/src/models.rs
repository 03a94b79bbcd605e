//! Models as commands need them: the store of this home, and a model that is there before it is used.

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

/// Opens the store of `home`, beside which `models_dir` may hold models.
///
/// # Errors
/// A manifest in it is unusable.
pub(crate) fn open_at(home: &Path, models_dir: Option<PathBuf>) -> Result<Store> {
    let store = Store::open(Some(home.to_path_buf()))
        .with_context(|| format!("cannot open the model store {}", home.display()))?;
    Ok(store.with_models_dir(models_dir))
}

/// Makes sure that a model is installed, pulling it where that is allowed.
///
/// # Errors
/// There is no such model, it is damaged, it may not be pulled, or the pull failed.
pub(crate) fn ensure(store: &Store, name: &str, may_pull: bool) -> Result<()> {
    match store.installed(name) {
        Ok(_) => Ok(()),
        Err(HubError::NotInstalled { .. }) if may_pull => {
            let manifest = store.manifest(name)?;
            output::say(&format!("model '{name}' is not installed yet; pulling {}", what_comes(manifest)));
            store.pull(name, &mut PullProgress::new())?;
            Ok(())
        }
        Err(HubError::NotInstalled { .. }) => Err(failure::with_help(
            format!("model '{name}' is not installed, and --no-pull forbids to fetch it"),
            format!("run `izwi pull {name}`"),
        )),
        Err(error) => Err(error.into()),
    }
}

/// How much a pull fetches, and under which licence.
pub(crate) fn what_comes(manifest: &Manifest) -> String {
    let bytes = download_bytes(manifest);
    let size = bytes.map_or_else(|| "as much as the hub has".to_owned(), output::bytes);
    format!("{size} ({})", manifest.licence)
}

/// Bytes of the files of the first source; `None` where only the hub knows.
pub(crate) fn download_bytes(manifest: &Manifest) -> Option<u64> {
    manifest.sources.first().map_or(Some(0), Source::bytes)
}
