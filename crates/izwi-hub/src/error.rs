//! Errors of the model store. Each variant names what failed; its fields name the values.

use std::error::Error;
use std::fmt::Write as _;

use crate::io_error::IoError;
use crate::source_error::SourceError;

/// A request to the model store that failed.
#[derive(Debug, thiserror::Error)]
pub enum HubError {
    /// No manifest has this name.
    #[error("unknown model '{name}': {remedy}")]
    Unknown {
        /// The requested name.
        name: String,
        /// Similar names, or all names.
        remedy: String,
    },
    /// The model exists but was never pulled.
    #[error("model '{name}' is not installed: run `izwi pull {name}`")]
    NotInstalled {
        /// The model.
        name: String,
    },
    /// The installed files differ from the record of the installation or from the manifest.
    #[error("model '{name}' is installed, but {reason}: run `izwi rm {name}`, then `izwi pull {name}`")]
    Damaged {
        /// The model.
        name: String,
        /// The file and the difference.
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
    /// The hub's address cannot be trusted.
    #[error(
        "HF_ENDPOINT is '{endpoint}': {reason}; correct or unset it, or set HF_HUB_OFFLINE=1 to use mirrors alone"
    )]
    Endpoint {
        /// The address, shortened.
        endpoint: String,
        /// The rule that it breaks.
        reason: &'static str,
    },
    /// No source of the model worked.
    #[error("model '{name}' could not be pulled{}", listed(failures))]
    AllSourcesFailed {
        /// The model.
        name: String,
        /// Why each source failed, in the order of the attempts.
        failures: Vec<SourceFailure>,
    },
    /// A file operation failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

/// A source that failed.
#[derive(Debug)]
pub struct SourceFailure {
    /// The source, as [`crate::Source::id`] names it.
    pub id: String,
    /// Why it failed.
    pub error: SourceError,
}

/// An error and its chain of causes on one line.
pub(crate) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        // Writing to a String cannot fail.
        let _ = write!(text, ": {error}");
        cause = error.source();
    }
    text
}

/// Every failure on a line of its own.
fn listed(failures: &[SourceFailure]) -> String {
    failures.iter().map(|failure| format!("\n  {}: {}", failure.id, with_causes(&failure.error))).collect()
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_failed_source_is_listed_with_its_causes() {
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
            "model 'lark' could not be pulled\n  hub a/b@main: HF_HUB_OFFLINE disables the hub: unset it\
             \n  pip lark==1: cannot write /a/b: no permission; change the folder's owner or set IZWI_HOME to \
             another folder: denied"
        );
    }
}
