//! An X server without a screen and programs with text fields, for the tests of dictation into other programs.
//!
//! Installs them if it can; if it cannot, says so and succeeds: the tests are skipped then.

use anyhow::Result;

use crate::steps::Steps;
use crate::{apt, balancers};

/// Programs, as `crates/izwi-cli/tests/cli/desktop/screen.rs` runs them, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 8] = [
    ("Xvfb", "xvfb"),
    ("openbox", "openbox"),
    ("xterm", "xterm"),
    ("xdotool", "xdotool"),
    ("xclip", "xclip"),
    ("zenity", "zenity"),
    ("xkbcomp", "x11-xkb-utils"),
    ("dbus-daemon", "dbus-daemon"),
];

/// Installs what is missing.
pub(crate) fn make(steps: &mut Steps) -> Result<()> {
    let missing = || {
        let missing = PROGRAMS.iter().filter(|(program, _)| balancers::find(program).is_none());
        missing.map(|(_, package)| *package).collect::<Vec<&str>>()
    };
    let packages = missing();
    if packages.is_empty() {
        return Ok(());
    }
    steps.time("desktop", || apt::install(&packages))?;
    let packages = missing();
    if !packages.is_empty() {
        eprintln!(
            "\n==> the tests of dictation into other programs are skipped; on Debian install {}",
            packages.join(" ")
        );
    }
    Ok(())
}
