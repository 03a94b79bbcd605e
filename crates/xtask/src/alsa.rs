//! The headers of ALSA, with which the command line is built with the sound device of Linux.
//!
//! Installs them if it can; without them the device is left out of the build and of the tests.

use std::process::Command;

use anyhow::Result;

use crate::steps::Steps;
use crate::{apt, process};

const PACKAGES: [&str; 2] = ["libasound2-dev", "pkg-config"];

/// Installs the headers, unless they are there.
pub(crate) fn make(steps: &mut Steps) -> Result<()> {
    if !cfg!(target_os = "linux") || is_there() {
        return Ok(());
    }
    steps.time("alsa", || apt::install(&PACKAGES))?;
    if !is_there() {
        eprintln!(
            "\n==> the headers of ALSA are missing: no test of the sound device; on Debian install {}",
            PACKAGES.join(" ")
        );
    }
    Ok(())
}

/// Arguments of cargo for the whole workspace.
pub(crate) fn features() -> &'static [&'static str] {
    if cfg!(target_os = "linux") && is_there() { &["--features", "izwi-cli/alsa"] } else { &[] }
}

fn is_there() -> bool {
    process::output(Command::new("pkg-config").args(["--exists", "alsa"])).is_ok()
}
