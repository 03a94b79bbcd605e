//! `izwi completions`: completion scripts for shells.

use anyhow::Result;
use clap_complete::Shell;

use crate::output;

/// Print a completion script for a shell
///
/// For bash: `izwi completions bash > ~/.local/share/bash-completion/completions/izwi`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The shell
    shell: Shell,
}

/// Prints the script for a command line.
pub(crate) fn run(args: &Args, mut command_line: clap::Command) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command_line, "izwi", &mut script);
    output::write_bytes(&script)
}
