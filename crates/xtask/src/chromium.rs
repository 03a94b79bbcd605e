//! The browser of the tests of the web page.
//!
//! Installs it if it can; if it cannot, says so and succeeds: the tests of the page are skipped then.

use anyhow::Result;

use crate::steps::Steps;
use crate::{apt, process};

/// Names of the program, as `tests/tests/clients/page.rs` tries them.
const NAMES: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
const PACKAGE: &str = "chromium";

/// Installs the browser, unless it is there.
pub(crate) fn make(steps: &mut Steps) -> Result<()> {
    let is_there = || NAMES.iter().any(|name| process::is_installed(name));
    if is_there() {
        return Ok(());
    }
    steps.time("chromium", || apt::install(&[PACKAGE]))?;
    if !is_there() {
        eprintln!(
            "\n==> chromium is not installed: the tests of the web page are skipped; install it (on Debian: {PACKAGE}), or set \
             IZWI_CHROMIUM to another program"
        );
    }
    Ok(())
}
