//! Text on Wayland, by the program `wtype`, in compositors with the protocol for virtual keyboards.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use izwi_hub::find_program;

use crate::failure;

const PROGRAM: &str = "wtype";
const REMEDY: &str = "use a session of X11, or a compositor with virtual keyboards such as Sway, Hyprland or labwc; WAYLAND_DISPLAY= \
     before the command types into programs of XWayland alone";

/// The program.
#[derive(Debug, Clone)]
pub(crate) struct Wtype(PathBuf);

/// Whether this is a session of Wayland.
pub(super) fn is_session() -> bool {
    std::env::var_os("WAYLAND_DISPLAY").is_some_and(|name| !name.is_empty())
}

impl Wtype {
    /// The installed program.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn find() -> Result<Self> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        find_program(PROGRAM, &search).map(Self).ok_or_else(|| {
            failure::with_help(
                "text is typed on Wayland by the program wtype, which was not found",
                format!("install wtype; or {REMEDY}"),
            )
        })
    }

    /// Types all of a text.
    pub(super) async fn write(&self, text: &str) -> Result<usize> {
        let (program, count, text) = (self.0.clone(), text.len(), text.to_owned());
        let run = move || -> Result<()> {
            let mut command = Command::new(program);
            command.arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
            let mut child = command.spawn().context("cannot start wtype")?;
            if let Some(mut stdin) = child.stdin.take() {
                // Its own message tells more than a closed pipe.
                let _ = stdin.write_all(text.as_bytes());
            }
            let output = child.wait_with_output().context("cannot wait for wtype")?;
            if output.status.success() {
                return Ok(());
            }
            let told = String::from_utf8_lossy(&output.stderr);
            Err(failure::with_help(format!("wtype ended with {}: {}", output.status, told.trim()), REMEDY))
        };
        tokio::task::spawn_blocking(run).await.context("wtype was not run")??;
        Ok(count)
    }
}
