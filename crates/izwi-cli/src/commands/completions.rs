//! `izwi completions`: completion scripts for shells.

use anyhow::Result;
use clap_complete::Shell;

use crate::{cli, output};

/// Print a completion script for a shell
///
/// For bash: `izwi completions bash > ~/.local/share/bash-completion/completions/izwi`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Which shell
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut cli::definition(), "izwi", &mut script);
    output::write_bytes(&script)
}
