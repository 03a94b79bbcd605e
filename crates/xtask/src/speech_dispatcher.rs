//! Speech Dispatcher, for the test of its output module.
//!
//! Installs it if it can; if it cannot, says so and succeeds: the test is skipped then.

use anyhow::Result;

use crate::steps::Steps;
use crate::{apt, process};

/// The program, as `crates/izwi-cli/tests/cli/speech_dispatcher.rs` runs it, and its packages on Debian.
const PROGRAM: &str = "speech-dispatcher";
const PACKAGES: [&str; 2] = ["speech-dispatcher", "speech-dispatcher-audio-plugins"];

/// Installs the program, unless it is there.
pub(crate) fn make(steps: &mut Steps) -> Result<()> {
    let is_there = || process::is_installed(PROGRAM);
    if is_there() {
        return Ok(());
    }
    steps.time("speech-dispatcher", || apt::install(&PACKAGES))?;
    if !is_there() {
        eprintln!(
            "\n==> speech-dispatcher is not installed: the test of its output module is skipped; on Debian install {}",
            PACKAGES.join(" ")
        );
    }
    Ok(())
}
