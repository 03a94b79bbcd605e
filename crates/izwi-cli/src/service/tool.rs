//! Runs the programs of a service manager. They are found in absolute folders of the search path alone.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result};
use izwi_hub::find_program;

use crate::failure;

/// How much of a program's messages an error shows.
const SHOWN_CHARS: usize = 2_000;

/// A program of the service manager.
#[derive(Debug)]
pub(super) struct Tool {
    name: &'static str,
    path: PathBuf,
}

impl Tool {
    /// Finds the program; `help` is the remedy where it is missing.
    ///
    /// # Errors
    /// It is not installed.
    pub(super) fn find(name: &'static str, help: &str) -> Result<Self> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        let missing = || failure::with_help(format!("the program `{name}` was not found"), help);
        Ok(Self { name, path: find_program(name, &search).ok_or_else(missing)? })
    }

    /// A process of the program that has the terminal of this one.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.path);
        command.args(arguments);
        command
    }

    /// Runs the program to its end, without input.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) fn output(&self, arguments: &[&str]) -> Result<Output> {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {}", self.path.display()))
    }

    /// Runs the program and returns what it prints.
    ///
    /// # Errors
    /// It fails; the error has its message.
    pub(super) fn run(&self, arguments: &[&str]) -> Result<String> {
        let output = self.output(arguments)?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let command = format!("{} {}", self.name, arguments.join(" "));
        Err(failure::with_help(
            format!("`{command}` failed ({}): {}", output.status, message(&output)),
            "`izwi logs` shows what the server wrote, `izwi service status` its state",
        ))
    }
}

/// What a program wrote to standard error, or else to standard output.
pub(super) fn message(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().chars().take(SHOWN_CHARS).collect();
    let stderr: String = text(&output.stderr);
    if stderr.is_empty() { text(&output.stdout) } else { stderr }
}
