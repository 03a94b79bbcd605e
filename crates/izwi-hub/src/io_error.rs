//! A file operation that failed. Knows nothing of models and sources.

use std::io;
use std::path::{Path, PathBuf};

/// A file operation that failed: which one, on which path, and the remedy where there is one.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}{}", path.display(), remedy(source))]
pub struct IoError {
    /// The operation, as a verb.
    pub action: &'static str,
    /// The path it was called on.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

impl IoError {
    /// For `map_err`: adds the action and the path to an [`io::Error`].
    pub fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self { action, path, source }
    }
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": the disk is full; free some space or set IZWI_HOME to another disk"
        }
        io::ErrorKind::FileTooLarge => {
            ": the file system or a limit allows no larger file; set IZWI_HOME to another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": no permission; change the folder's owner or set IZWI_HOME to another folder"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_names_the_path_and_the_remedy() {
        let error = IoError::at("write", Path::new("/a/b"))(io::ErrorKind::StorageFull.into());
        assert_eq!(
            error.to_string(),
            "cannot write /a/b: the disk is full; free some space or set IZWI_HOME to another disk"
        );
    }
}
