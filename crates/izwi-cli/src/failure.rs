//! Failures of a command: their messages, their remedies and the exit codes.

use std::fmt::Write as _;
use std::process::ExitCode;

use izwi_hub::{IoError, WorkError};
use izwi_reading::BookError;

/// A failure with a remedy or an exit code of its own.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed, and the user can fix it.
    Fixable {
        /// What failed.
        message: String,
        /// The remedy.
        help: String,
    },
    /// The command line is wrong.
    Usage {
        /// What is wrong.
        message: String,
        /// The remedy.
        help: String,
    },
    /// A signal asked the process to stop.
    Interrupted,
    /// The reader of standard output closed it.
    OutputClosed,
    /// The command has reported the failure already.
    Reported,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Fixable { message, .. } | Self::Usage { message, .. } => f.write_str(message),
            Self::Interrupted => f.write_str("interrupted"),
            Self::OutputClosed => f.write_str("standard output was closed"),
            Self::Reported => f.write_str("see above"),
        }
    }
}

impl std::error::Error for Failure {}

/// An error with its remedy.
pub(crate) fn with_help(message: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
    Failure::Fixable { message: message.into(), help: help.into() }.into()
}

/// An error of usage with its remedy.
pub(crate) fn usage(message: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
    Failure::Usage { message: message.into(), help: help.into() }.into()
}

/// A book that cannot be read.
pub(crate) fn of_book(error: BookError) -> anyhow::Error {
    match error {
        BookError::Unusable { message, remedy } => with_help(message, remedy),
        BookError::Io(error) => error.into(),
    }
}

/// A folder of a long piece of work that cannot be opened.
pub(crate) fn of_work(error: WorkError) -> anyhow::Error {
    match error {
        WorkError::Busy(_) => with_help(error.to_string(), "wait for it, stop it, or name another output"),
        WorkError::Io(error) => error.into(),
    }
}

/// What is done of a long piece of work, and cannot be stored.
pub(crate) fn of_storing(error: IoError) -> anyhow::Error {
    let (path, source) = (error.path.display(), &error.source);
    let message = format!("cannot {} {path}: {source}", error.action);
    with_help(message, "what is done is kept: make room, and give the same command again")
}

/// The code with which a failed process ends.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(Failure::Usage { .. }) => ExitCode::from(2),
        Some(Failure::Interrupted) => ExitCode::from(130),
        Some(Failure::OutputClosed) => ExitCode::SUCCESS,
        Some(Failure::Fixable { .. } | Failure::Reported) | None => ExitCode::from(1),
    }
}

/// The text for a terminal: the error, the causes that its message does not contain, the remedy. Empty for failures
/// that need no report.
pub(crate) fn render(error: &anyhow::Error) -> String {
    let failure = error.downcast_ref();
    if matches!(failure, Some(Failure::OutputClosed | Failure::Reported)) {
        return String::new();
    }
    let mut text = format!("error: {error}\n");
    let mut shown = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !shown.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  cause: {cause}");
            shown.push_str(&cause);
        }
    }
    if let Some(Failure::Fixable { help, .. } | Failure::Usage { help, .. }) = failure {
        let _ = writeln!(text, "help: {help}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_shown_with_causes_and_remedy() {
        let error = with_help("no player", "install one").context("cannot play");
        assert_eq!(render(&error), "error: cannot play\n  cause: no player\nhelp: install one\n");
        let repeated = anyhow::anyhow!("disk full").context("cannot write: disk full");
        assert_eq!(render(&repeated), "error: cannot write: disk full\n");
    }

    #[test]
    fn exit_codes_follow_the_kind_of_failure() {
        let code = |failure: Failure| format!("{:?}", exit_code(&anyhow::Error::new(failure).context("c")));
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Failure::Usage { message: String::new(), help: String::new() }), expected(2));
        assert_eq!(code(Failure::Interrupted), expected(130));
        assert_eq!(code(Failure::OutputClosed), expected(0));
        assert_eq!(code(Failure::Reported), expected(1));
        assert_eq!(render(&Failure::OutputClosed.into()), "");
    }
}
