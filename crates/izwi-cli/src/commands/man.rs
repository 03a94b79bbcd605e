//! `izwi man`: manual pages of all commands, made of the command line.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};

use crate::output;

/// Stands at the foot of each page.
const SOURCE: &str = concat!("izwi ", env!("CARGO_PKG_VERSION"));

/// Write the manual pages
///
/// `izwi man ~/.local/share/man/man1` makes `man izwi` and `man izwi-say` work.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder of the pages, `man1` of a folder that `man` searches
    #[arg(value_name = "DIR")]
    out: PathBuf,
}

/// Writes a page for each command that the help lists: `izwi.1`, `izwi-say.1` and so on.
pub(crate) fn run(args: &Args, command_line: clap::Command) -> Result<()> {
    fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    for (name, page) in pages(command_line)? {
        let path = args.out.join(name);
        fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

/// The pages with their file names.
pub(crate) fn pages(command_line: clap::Command) -> Result<Vec<(String, Vec<u8>)>> {
    // Completes the names of commands within commands.
    let mut root = command_line.disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    let mut left = vec![root];
    while let Some(command) = left.pop() {
        left.extend(command.get_subcommands().filter(|inner| !inner.is_hide_set()).cloned());
        let man = clap_mangen::Man::new(command).source(SOURCE);
        let mut page = Vec::new();
        man.render(&mut page).context("a manual page cannot be written")?;
        pages.push((man.get_filename(), page));
    }
    pages.sort();
    Ok(pages)
}
