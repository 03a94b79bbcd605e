//! `izwi open`: the web page of the running server, in a browser.

use std::path::Path;

use anyhow::{Context as _, Result};

use crate::running_server::RunningServer;
use crate::settings::Resolved;
use crate::{failure, output};

/// Open the web page of the running server in a browser
///
/// Uses the program of the variable BROWSER, or the default browser of the system, and prints the address.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args, resolved: &Resolved) -> Result<()> {
    let server = RunningServer::at(&resolved.settings.server)?;
    server.report()?;
    output::print(&format!("{}\n", server.url))?;
    // The program is searched by its name, and a relative folder of the search path must not be the one worked in.
    std::env::set_current_dir(Path::new("/")).context("cannot leave the working folder")?;
    opener::open_browser(&server.url).map_err(|error| {
        failure::with_help(
            format!("no browser could be started: {error}"),
            format!("open {} in a browser by hand", server.url),
        )
    })
}
