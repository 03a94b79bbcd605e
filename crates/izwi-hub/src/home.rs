//! Where the store of this user is.

use std::path::PathBuf;

/// The folder `root`, else `IZWI_HOME`, else the platform's data folder; `None` where no such folder can be named.
pub(crate) fn folder(root: Option<PathBuf>) -> Option<PathBuf> {
    let from_env = || std::env::var_os("IZWI_HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let platform =
        || directories::ProjectDirs::from("", "", "izwi").map(|folders| folders.data_dir().to_path_buf());
    root.or_else(from_env).or_else(platform)
}
