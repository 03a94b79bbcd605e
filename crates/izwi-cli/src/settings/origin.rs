//! The origins of values, and errors about them.

use std::fmt;
use std::path::PathBuf;

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A flag, without dashes.
    Flag(String),
    /// A variable of the environment.
    Environment(String),
    /// The configuration file, and the line from 1.
    File(PathBuf, usize),
    /// The default.
    Default,
}

impl Origin {
    /// The line of a value from the file, else 0.
    pub(crate) fn line(&self) -> usize {
        if let Self::File(_, line) = self { *line } else { 0 }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(name) => write!(f, "--{name}"),
            Self::Environment(name) => f.write_str(name),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Default => f.write_str("default"),
        }
    }
}

/// A value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Problem {
    /// Its source.
    pub(crate) origin: Origin,
    /// The error, with the valid values.
    pub(crate) message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            // Several settings contradict each other.
            Origin::Default => f.write_str(&self.message),
            origin => write!(f, "{origin}: {}", self.message),
        }
    }
}
