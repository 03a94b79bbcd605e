//! `izwi rm`: removes installed models.

use std::io::{self, BufRead as _, IsTerminal as _};

use anyhow::{Context as _, Result};

use crate::failure::{self, Failure};
use crate::settings::Settings;
use crate::{models, output};

/// Remove installed models
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Models, as `izwi list` shows them
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<()> {
    let store = models::open(settings)?;
    if !args.yes {
        ask(&format!("remove {} from {}?", args.names.join(", "), settings.home.display()))?;
    }
    for name in &args.names {
        store.remove(name)?;
        output::print(&format!("{name} is removed\n"))?;
    }
    Ok(())
}

/// Asks a person, who must say yes.
fn ask(question: &str) -> Result<()> {
    if !io::stdin().is_terminal() {
        return Err(failure::usage("nobody is there to be asked", "add --yes"));
    }
    output::complain(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("cannot read the answer")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => Err(Failure::Helpful {
            message: "nothing was removed".to_owned(),
            help: "answer y, or add --yes".to_owned(),
        }
        .into()),
    }
}
