//! Players of the platform: which there are, how each is called, and playing a file or a stream through one.
//!
//! Knows no model and no request.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use izwi_audio::{pcm, wav};

use crate::failure::{self, Failure};
use crate::interrupt::Interrupt;

/// Between two looks whether the player has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_COMPLAINT_BYTES: u64 = 2_000;
/// Plays one file in PowerShell; the path comes by the environment, where nothing in it can be taken for code.
const POWERSHELL: &str = "(New-Object Media.SoundPlayer $env:IZWI_PLAY_FILE).PlaySync()";

/// A program that plays audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Program {
    name: &'static str,
    /// Arguments before the path of a file; `None` where the path goes by the environment.
    file: &'static [&'static str],
    stream: Option<Stream>,
}

/// How a program takes a stream on standard input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    /// Signed 16-bit mono, with the rate as the last part of an argument.
    Raw { arguments: &'static [&'static str], rate: &'static str },
    /// A WAV of unknown length.
    Wav(&'static [&'static str]),
}

const FFPLAY: Program = Program {
    name: "ffplay",
    file: &["-nodisp", "-autoexit", "-loglevel", "error"],
    stream: Some(Stream::Wav(&["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"])),
};

#[cfg(target_os = "macos")]
const PROGRAMS: &[Program] = &[Program { name: "afplay", file: &[], stream: None }, FFPLAY];

#[cfg(windows)]
const PROGRAMS: &[Program] = &[
    Program {
        name: "powershell",
        file: &["-NoProfile", "-NonInteractive", "-Command", POWERSHELL],
        stream: None,
    },
    FFPLAY,
];

#[cfg(not(any(target_os = "macos", windows)))]
const PROGRAMS: &[Program] = &[
    Program {
        name: "paplay",
        file: &[],
        stream: Some(Stream::Raw {
            arguments: &["--raw", "--format=s16le", "--channels=1"],
            rate: "--rate=",
        }),
    },
    Program {
        name: "aplay",
        file: &["-q"],
        stream: Some(Stream::Raw {
            arguments: &["-q", "-t", "raw", "-f", "S16_LE", "-c", "1"],
            rate: "--rate=",
        }),
    },
    Program { name: "pw-play", file: &[], stream: None },
    FFPLAY,
];

/// A player that is on this machine.
#[derive(Debug, Clone)]
pub(crate) struct Player {
    program: Program,
    path: PathBuf,
}

impl Player {
    /// The first player on the search path; one that takes a stream, where that is asked for.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(streaming: bool) -> Result<Self> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        find_in(PROGRAMS, &search, streaming).ok_or_else(|| {
            let fit: Vec<&str> = PROGRAMS
                .iter()
                .filter(|program| !streaming || program.stream.is_some())
                .map(|program| program.name)
                .collect();
            let (what, else_do) = if streaming {
                ("no player that takes a stream was found", "leave out --stream, or write to a file with -o")
            } else {
                ("no audio player was found", "write to a file with -o")
            };
            failure::with_help(
                format!("{what} (looked for {})", fit.join(", ")),
                format!("install one of them ({}), or {else_do}", packages()),
            )
        })
    }

    /// The program's name.
    pub(crate) fn name(&self) -> &'static str {
        self.program.name
    }

    /// Plays a file to its end, or until the process is asked to stop.
    ///
    /// # Errors
    /// The player does not start or fails, or the process was interrupted.
    pub(crate) async fn play_file(&self, file: &Path, interrupt: &mut Interrupt) -> Result<()> {
        let mut command = Command::new(&self.path);
        command.args(self.program.file).env("IZWI_PLAY_FILE", file);
        if !self.program.file.contains(&POWERSHELL) {
            command.arg(file);
        }
        let child = self.start(command.stdin(Stdio::null()))?;
        Playing { player: self.name(), child, stdin: None }.finish(interrupt).await
    }

    /// Starts to play a stream of mono samples.
    ///
    /// # Errors
    /// The player takes no stream, or does not start.
    pub(crate) fn open_stream(&self, sample_rate_hz: u32) -> Result<Playing> {
        let mut command = Command::new(&self.path);
        match self.program.stream {
            Some(Stream::Raw { arguments, rate }) => {
                command.args(arguments).arg(format!("{rate}{sample_rate_hz}"))
            }
            Some(Stream::Wav(arguments)) => command.args(arguments),
            None => anyhow::bail!("{} takes no stream", self.name()),
        };
        let mut child = self.start(command.stdin(Stdio::piped()))?;
        let stdin = child.stdin.take();
        let mut playing = Playing { player: self.name(), child, stdin };
        if let Some(Stream::Wav(_)) = self.program.stream {
            playing.write_bytes(&wav::streaming_header(sample_rate_hz))?;
        }
        Ok(playing)
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        let started = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        started.with_context(|| format!("cannot start the player {}", self.path.display()))
    }
}

/// What to install for a player.
fn packages() -> &'static str {
    if cfg!(target_os = "macos") {
        "ffplay is part of ffmpeg"
    } else if cfg!(windows) {
        "ffplay is part of FFmpeg"
    } else {
        "pulseaudio-utils, alsa-utils, pipewire-bin or ffmpeg"
    }
}

fn find_in(programs: &[Program], search: &OsString, streaming: bool) -> Option<Player> {
    let fit = programs.iter().filter(|program| !streaming || program.stream.is_some());
    fit.copied().find_map(|program| {
        let path = executable(program.name, search)?;
        Some(Player { program, path })
    })
}

/// The file that a name means on a search path.
pub(crate) fn executable(name: &str, search: &OsString) -> Option<PathBuf> {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(search).map(|folder| folder.join(&file)).find(|path| is_executable(path))
}

#[cfg(unix)]
fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(not(unix))]
fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// A player at work. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Playing {
    player: &'static str,
    child: Child,
    stdin: Option<ChildStdin>,
}

impl Playing {
    /// Plays more samples; blocks while the player has enough.
    ///
    /// # Errors
    /// The player has ended.
    pub(crate) fn write(&mut self, samples: &[f32]) -> Result<()> {
        let mut bytes = Vec::with_capacity(samples.len() * 2);
        pcm::write_i16_le(samples, &mut bytes);
        self.write_bytes(&bytes)
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(stdin) = &mut self.stdin else { anyhow::bail!("{} takes no stream", self.player) };
        match stdin.write_all(bytes).and_then(|()| stdin.flush()) {
            Ok(()) => Ok(()),
            Err(_) => Err(self.failure("stopped listening")),
        }
    }

    /// Waits until everything was heard, or the process is asked to stop.
    ///
    /// # Errors
    /// The player failed, or the process was interrupted.
    pub(crate) async fn finish(mut self, interrupt: &mut Interrupt) -> Result<()> {
        drop(self.stdin.take());
        loop {
            match self.child.try_wait().context("cannot wait for the player")? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failure(&format!("ended with {status}"))),
                None => {}
            }
            tokio::select! {
                () = interrupt.requested() => return Err(Failure::Interrupted.into()),
                () = tokio::time::sleep(POLL_INTERVAL) => {}
            }
        }
    }

    /// What went wrong, in the player's own words where it has some.
    fn failure(&mut self, what: &str) -> anyhow::Error {
        // It may hang instead of ending; what it said up to here is enough.
        let _ = self.child.kill();
        let mut said = Vec::new();
        if let Some(stderr) = self.child.stderr.take() {
            let _ = stderr.take(MAX_COMPLAINT_BYTES).read_to_end(&mut said);
        }
        let said = String::from_utf8_lossy(&said);
        let message = match said.trim() {
            "" => format!("the player {} {what}", self.player),
            said => format!("the player {} {what}: {said}", self.player),
        };
        failure::with_help(message, "check that sound works on this machine, or write to a file with -o")
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // It has ended, or must end now; either way it is waited for and leaves no zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    const TEST_PROGRAMS: &[Program] =
        &[Program { name: "first", file: &[], stream: None }, Program { name: "second", ..FFPLAY }];

    fn install(folder: &Path, name: &str, mode: u32) {
        let path = folder.join(name);
        std::fs::write(&path, "").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_first_fitting_player_on_the_path_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let search = folder.path().as_os_str().to_owned();
        let found = |streaming| find_in(TEST_PROGRAMS, &search, streaming).map(|player| player.name());
        assert_eq!(found(false), None);
        install(folder.path(), "second", 0o755);
        install(folder.path(), "first", 0o644);
        assert_eq!(found(false), Some("second"), "what cannot be executed is no player");
        install(folder.path(), "first", 0o755);
        assert_eq!(found(false), Some("first"));
        assert_eq!(found(true), Some("second"));
    }
}
