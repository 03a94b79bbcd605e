//! What can go wrong in the store: each variant is what failed, its fields with what, its source why.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use crate::conversion::ConversionError;

/// A request to the model store that failed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No manifest has this name.
    #[error("unknown model '{name}': {remedy}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// Names that come near, or all there are.
        remedy: String,
    },
    /// The model exists but was never pulled.
    #[error("model '{name}' is not installed: run `izwi pull {name}`")]
    NotInstalled {
        /// The model.
        name: String,
    },
    /// The installed files are not what they should be.
    #[error("model '{name}' is installed, but {reason}: run `izwi rm {name}`, then `izwi pull {name}`")]
    Damaged {
        /// The model.
        name: String,
        /// What is wrong with which file.
        reason: String,
    },
    /// A manifest breaks a rule.
    #[error("manifest {file} cannot be used: {reason}")]
    Manifest {
        /// The manifest's file.
        file: String,
        /// The rule, with the value.
        reason: String,
    },
    /// The platform names no data folder.
    #[error("no home folder for the model store: set IZWI_HOME to a folder")]
    NoHome,
    /// No source of the model worked.
    #[error("model '{name}' could not be pulled{}", listed(failures))]
    AllSourcesFailed {
        /// The model.
        name: String,
        /// Why each source failed, in the order they were tried.
        failures: Vec<SourceFailure>,
    },
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// One source that was tried in vain.
#[derive(Debug)]
pub struct SourceFailure {
    /// The source, as [`crate::Source::id`] names it.
    pub id: String,
    /// Why it failed.
    pub error: SourceError,
}

/// Why one source could not give a model.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The hub is switched off.
    #[error("the hub is switched off by HF_HUB_OFFLINE: unset it")]
    Offline,
    /// No answer, or the connection broke too often.
    #[error("{url} could not be read: check the connection, or set HF_ENDPOINT to a mirror")]
    Request {
        /// What was asked for.
        url: String,
        /// Why.
        #[source]
        source: Box<ureq::Error>,
    },
    /// The server refused.
    #[error("{url} answered {status}: {remedy}")]
    Status {
        /// What was asked for.
        url: String,
        /// The HTTP status.
        status: u16,
        /// What to do.
        remedy: &'static str,
    },
    /// A file of another length than the manifest says.
    #[error("{file} has {found} bytes where the manifest says {expected}: the publisher changed it")]
    Size {
        /// The file.
        file: String,
        /// From the manifest.
        expected: u64,
        /// From the source; at least this many.
        found: u64,
    },
    /// A file with other contents than the manifest or the hub says. What was fetched is removed.
    #[error("{file} has the hash {found} where {expected} is stated: it was removed; pull again")]
    Checksum {
        /// The file.
        file: String,
        /// From the manifest or the hub.
        expected: String,
        /// Of what arrived.
        found: String,
    },
    /// A file that holds something else than at an earlier pull.
    #[error(
        "{file} has sha256 {found} where an earlier pull found {expected}: the publisher changed it; remove the model \
         with `izwi rm` to take what there is now"
    )]
    Changed {
        /// The file.
        file: String,
        /// From the record of the installation.
        expected: String,
        /// From the source.
        found: String,
    },
    /// A file of which neither the manifest nor the hub says what it holds.
    #[error(
        "{file}: the hub states no hash of it, so that nothing could be checked; set HF_ENDPOINT to one that does"
    )]
    Unstated {
        /// The file.
        file: String,
    },
    /// An index of a model's files that cannot be used.
    #[error("{file} {reason}")]
    Index {
        /// The index.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The package client is not on this machine.
    #[error("no package client found (tried {tried}): {remedy}")]
    NoClient {
        /// The commands.
        tried: String,
        /// What to install.
        remedy: &'static str,
    },
    /// The package client failed.
    #[error("`{command}` failed: {output}")]
    Client {
        /// What was run.
        command: String,
        /// The end of what it printed.
        output: String,
    },
    /// An archive that cannot be opened, lacks a file or holds one with an unsafe name.
    #[error("{archive}: {reason}")]
    Archive {
        /// The package.
        archive: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file that cannot be converted.
    #[error("{file} could not be converted")]
    Convert {
        /// The file.
        file: String,
        /// Why.
        #[source]
        source: ConversionError,
    },
    /// The disk refused; another source would not help.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// A file operation that failed: what, on which path, and where a person can help, how.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {}{}", path.display(), hint(source))]
pub struct IoError {
    /// What was tried, as a verb.
    pub action: &'static str,
    /// On what.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

impl IoError {
    /// For `map_err`: gives an [`io::Error`] its action and path.
    pub(crate) fn at(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self { action, path, source }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            ": the disk is full; free some space or set IZWI_HOME to another disk"
        }
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
            ": no permission; change the folder's owner or set IZWI_HOME to another folder"
        }
        _ => "",
    }
}

/// Every failure on its own line, with its chain of causes.
fn listed(failures: &[SourceFailure]) -> String {
    failures.iter().fold(String::new(), |mut text, failure| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n  {}: {}", failure.id, failure.error);
        let mut cause = std::error::Error::source(&failure.error);
        while let Some(error) = cause {
            let _ = write!(text, ": {error}");
            cause = error.source();
        }
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_failures_are_shown_with_their_causes() {
        let refused = SourceError::Io(IoError::at("write", Path::new("/a/b"))(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "denied",
        )));
        let error = HubError::AllSourcesFailed {
            name: "lark".into(),
            failures: vec![
                SourceFailure { id: "hub a/b@main".into(), error: SourceError::Offline },
                SourceFailure { id: "pip lark==1".into(), error: refused },
            ],
        };
        assert_eq!(
            error.to_string(),
            "model 'lark' could not be pulled\n  hub a/b@main: the hub is switched off by HF_HUB_OFFLINE: unset it\
             \n  pip lark==1: cannot write /a/b: no permission; change the folder's owner or set IZWI_HOME to \
             another folder: denied"
        );
    }

    #[test]
    fn a_full_disk_names_the_path_and_the_remedy() {
        let error = IoError::at("write", Path::new("/a/b"))(io::ErrorKind::StorageFull.into());
        assert_eq!(
            error.to_string(),
            "cannot write /a/b: the disk is full; free some space or set IZWI_HOME to another disk"
        );
    }
}
