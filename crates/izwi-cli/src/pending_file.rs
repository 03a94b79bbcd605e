//! A file that appears whole or not at all.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::failure;

/// Whether the path is a device or a pipe.
pub(crate) fn is_special(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| !found.is_file() && !found.is_dir())
}

/// A file that is being written.
#[derive(Debug)]
pub(crate) enum PendingFile {
    /// A temporary file in the same folder, renamed to `path` at the end.
    Temporary { file: tempfile::NamedTempFile, path: PathBuf },
    /// A device or a pipe, which is not replaced.
    InPlace(PathBuf),
}

impl PendingFile {
    /// Begins to write the file at `path`.
    ///
    /// # Errors
    /// The folder is missing or read-only, or the path is a folder.
    pub(crate) fn begin(path: &Path) -> Result<Self> {
        let cannot = || format!("cannot write {}", path.display());
        if is_special(path) {
            return Ok(Self::InPlace(path.to_path_buf()));
        }
        if path.is_dir() {
            return Err(failure::with_help(format!("{} is a folder", path.display()), "name a file in it"));
        }
        // A link stays; the file that it points to is replaced.
        let target =
            if path.exists() { fs::canonicalize(path).with_context(cannot)? } else { path.to_path_buf() };
        if path.exists() {
            OpenOptions::new().write(true).open(&target).with_context(cannot)?;
        }
        let folder = match target.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        if !folder.is_dir() {
            let message = format!("cannot write {}: there is no folder {}", path.display(), folder.display());
            return Err(failure::with_help(message, "create the folder, or name another"));
        }
        // Named after the file, for those who look for it while it grows or after the process was killed.
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let prefix = format!("{name}.");
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(".part");
        #[cfg(unix)]
        let permissions = {
            use std::os::unix::fs::PermissionsExt as _;
            // The mode of a new file, before the umask.
            fs::Permissions::from_mode(0o666)
        };
        #[cfg(unix)]
        builder.permissions(permissions);
        let file = builder.tempfile_in(folder).with_context(cannot)?;
        Ok(Self::Temporary { file, path: target })
    }

    /// Opens it for writing.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn open(&self) -> io::Result<File> {
        match self {
            Self::Temporary { file, .. } => file.as_file().try_clone(),
            Self::InPlace(path) => OpenOptions::new().write(true).open(path),
        }
    }

    /// Lets what was written appear at the file's path.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn keep(self) -> io::Result<()> {
        match self {
            Self::Temporary { file, path } => file.persist(path).map(drop).map_err(|error| error.error),
            Self::InPlace(_) => Ok(()),
        }
    }
}
