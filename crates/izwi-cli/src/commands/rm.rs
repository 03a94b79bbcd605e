//! `izwi rm`: removes installed models.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::{Context as _, Result};

use crate::failure;
use crate::settings::Settings;
use crate::{models, output};

/// Remove installed models
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models, as `izwi list` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Remove without confirmation
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let store = models::open(settings)?;
    if !args.yes {
        confirm(&format!("remove {} from {}?", args.names.join(", "), settings.home.display()))?;
    }
    for name in &args.names {
        store.remove(name)?;
        output::print(&format!("{name} is removed\n"))?;
    }
    Ok(())
}

/// Asks for confirmation on the terminal.
fn confirm(question: &str) -> Result<()> {
    if !io::stdin().is_terminal() {
        return Err(failure::usage(
            "standard input is not a terminal, and the removal needs a confirmation",
            "add --yes",
        ));
    }
    output::stderr(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(failure::with_help("nothing was removed", "answer y, or add --yes")),
    }
}
