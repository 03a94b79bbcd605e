//! Child processes: every chore starts cargo, git and izwi through here, so that each command is shown before it runs and
//! the exit status of a failed child becomes ours.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

/// A child that ran and failed.
#[derive(Debug)]
struct Failed {
    command: String,
    code: Option<i32>,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "`{}` failed with exit status {code}", self.command),
            None => write!(f, "`{}` was ended by a signal", self.command),
        }
    }
}

impl std::error::Error for Failed {}

/// The exit status to leave with: the failed child's own where there is one, else 1.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    let child = error.downcast_ref::<Failed>().and_then(|failed| failed.code);
    child.and_then(|code| u8::try_from(code).ok()).filter(|code| *code != 0).unwrap_or(1)
}

/// `cargo ARGS` in the repository's root, without the variables that `cargo run` gave this process: build scripts
/// that watch them (ring's does) would otherwise run again on each change between `cargo` and `cargo xtask`.
pub(crate) fn cargo(root: &Path, args: &[&str]) -> Command {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(root).args(args);
    forget_cargo_run(&mut command);
    command
}

/// Removes the variables that `cargo run` gave this process, for a command that builds.
pub(crate) fn forget_cargo_run(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(is_set_by_cargo_run) {
            command.env_remove(name);
        }
    }
}

/// The target folder: cargo put this program into its `debug/`.
pub(crate) fn target_folder() -> Result<PathBuf> {
    let here = std::env::current_exe().context("this program's own path is unknown")?;
    let folder = here.ancestors().nth(2).context("this program lies in no target folder")?;
    Ok(folder.to_path_buf())
}

fn is_set_by_cargo_run(name: &str) -> bool {
    name.starts_with("CARGO_PKG_")
        || ["CARGO_MANIFEST_DIR", "CARGO_MANIFEST_PATH", "CARGO_CRATE_NAME", "CARGO_BIN_NAME"].contains(&name)
}

/// Shows the command, runs it to its end, and fails if it failed.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    eprintln!("\n==> {shown}");
    let status = command
        .stdin(Stdio::null())
        .status()
        .with_context(|| format!("`{shown}` could not be started; is it installed?"))?;
    if status.success() { Ok(()) } else { Err(Failed { command: shown, code: status.code() }.into()) }
}

/// What the command prints on its standard output.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let shown = shown(command);
    let output = command
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("`{shown}` could not be started; is it installed?"))?;
    if output.status.success() {
        Ok(output.stdout)
    } else {
        Err(Failed { command: shown, code: output.status.code() }.into())
    }
}

/// Whether a program of this name starts and answers `--version`.
pub(crate) fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The command as a person would type it: the program's name without its folder, then the arguments.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let words = std::iter::once(name).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_childs_exit_status_becomes_ours() {
        let error = run(Command::new("sh").args(["-c", "exit 7"])).unwrap_err();
        assert_eq!(exit_code(&error), 7);
        assert_eq!(exit_code(&error.context("in a chore")), 7);
        assert_eq!(exit_code(&anyhow::anyhow!("no child")), 1);
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program-here")).unwrap_err();
        assert!(error.to_string().contains("no-such-program-here"), "{error}");
        assert!(!is_installed("no-such-program-here"));
    }

    #[test]
    fn commands_are_shown_as_typed() {
        assert_eq!(shown(Command::new("/usr/bin/git").args(["ls-files", "-z"])), "git ls-files -z");
    }
}
