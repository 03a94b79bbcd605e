//! How the program fails: what is printed and with which code it ends.

use std::fmt::Write as _;
use std::process::ExitCode;

/// A failure that says more than a message: what to do, or how the process ends.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Something failed, and a person can help.
    Helpful {
        /// What failed.
        message: String,
        /// What to do.
        help: String,
    },
    /// The command line asks for something that cannot be.
    Usage {
        /// What.
        message: String,
        /// What would be right.
        help: String,
    },
    /// A person or the system said stop.
    Interrupted,
    /// Whoever read standard output has gone.
    OutputClosed,
    /// The command has said what is wrong.
    Reported,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Helpful { message, .. } | Self::Usage { message, .. } => f.write_str(message),
            Self::Interrupted => f.write_str("interrupted"),
            Self::OutputClosed => f.write_str("standard output was closed"),
            Self::Reported => f.write_str("see above"),
        }
    }
}

impl std::error::Error for Failure {}

/// An error with its remedy.
pub(crate) fn with_help(message: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
    Failure::Helpful { message: message.into(), help: help.into() }.into()
}

/// An error of usage with its remedy.
pub(crate) fn usage(message: impl Into<String>, help: impl Into<String>) -> anyhow::Error {
    Failure::Usage { message: message.into(), help: help.into() }.into()
}

/// The code with which a failed process ends.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    match error.downcast_ref() {
        Some(Failure::Usage { .. }) => ExitCode::from(2),
        Some(Failure::Interrupted) => ExitCode::from(130),
        Some(Failure::OutputClosed) => ExitCode::SUCCESS,
        Some(Failure::Helpful { .. } | Failure::Reported) | None => ExitCode::from(1),
    }
}

/// What a person reads: the error, its causes that say something new, the remedy. Empty where nothing is to be said.
pub(crate) fn render(error: &anyhow::Error) -> String {
    let failure = error.downcast_ref();
    if matches!(failure, Some(Failure::OutputClosed | Failure::Reported)) {
        return String::new();
    }
    let mut text = format!("error: {error}\n");
    let mut said = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !said.contains(&cause) {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "  cause: {cause}");
            said.push_str(&cause);
        }
    }
    if let Some(Failure::Helpful { help, .. } | Failure::Usage { help, .. }) = failure {
        let _ = writeln!(text, "help: {help}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_with_causes_and_remedy() {
        let error = with_help("no player", "install one").context("cannot play");
        assert_eq!(render(&error), "error: cannot play\n  cause: no player\nhelp: install one\n");
        let told_twice = anyhow::anyhow!("disk full").context("cannot write: disk full");
        assert_eq!(render(&told_twice), "error: cannot write: disk full\n");
    }

    #[test]
    fn codes_follow_the_kind_of_failure() {
        let code = |failure: Failure| format!("{:?}", exit_code(&anyhow::Error::new(failure).context("c")));
        let expected = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(code(Failure::Usage { message: String::new(), help: String::new() }), expected(2));
        assert_eq!(code(Failure::Interrupted), expected(130));
        assert_eq!(code(Failure::OutputClosed), expected(0));
        assert_eq!(code(Failure::Reported), expected(1));
        assert_eq!(render(&Failure::OutputClosed.into()), "");
    }
}
