//! `izwi logs`: the log of the installed service.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::service;

/// Show the log of the installed service
///
/// Runs `journalctl --user --unit izwi.service` on Linux, `tail` on ~/Library/Logs/izwi.log on macOS. A server that was
/// started by `izwi serve` logs to its terminal.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Wait for new lines and print them, until Ctrl-C
    #[arg(long, short)]
    follow: bool,

    /// Number of last lines
    #[arg(long, short = 'n', value_name = "N", default_value_t = 100)]
    lines: u32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let manager = service::manager()?;
    service::expect_installed(manager.as_ref())?;
    become_program(manager.log(args.lines, args.follow)?)
}

/// Continues as another program: its exit code and signals are those of this process.
#[cfg(unix)]
fn become_program(mut command: Command) -> Result<()> {
    use std::os::unix::process::CommandExt as _;
    let program = command.get_program().to_string_lossy().into_owned();
    Err(command.exec()).with_context(|| format!("cannot start {program}"))
}

#[cfg(not(unix))]
fn become_program(mut command: Command) -> Result<()> {
    let status = command.status().context("cannot start the program that prints the log")?;
    anyhow::ensure!(status.success(), "the program that prints the log failed ({status})");
    Ok(())
}
