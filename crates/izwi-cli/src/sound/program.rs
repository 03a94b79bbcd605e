//! Audio players of the platform: their command lines, and playing a file or a stream through one.

use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result};
use izwi_audio::encode::{self, EncodeError, Encoder, EncoderConfig, Format};
use izwi_audio::wav;
use izwi_hub::find_program;
use tokio::sync::mpsc;

use crate::failure;

/// Interval of the checks whether the player has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_STDERR_BYTES: u64 = 2_000;
const EARLY: &str = "ended before the audio";
/// Plays one file in PowerShell. The path comes in an environment variable, so that it is never parsed as code.
const POWERSHELL: &str = "(New-Object Media.SoundPlayer $env:IZWI_PLAY_FILE).PlaySync()";

/// A program that plays audio.
#[derive(Debug, Clone, Copy)]
struct Program {
    name: &'static str,
    /// Arguments before the path of a file.
    file: &'static [&'static str],
    stream: Option<Stream>,
}

/// How a program plays a stream on standard input.
#[derive(Debug, Clone, Copy)]
struct Stream {
    arguments: &'static [&'static str],
    /// Prefix of the argument with the sample rate, for formats without a header.
    rate_argument: Option<&'static str>,
    format: &'static Format,
}

const FFPLAY: Program = Program {
    name: "ffplay",
    file: &["-nodisp", "-autoexit", "-loglevel", "error"],
    stream: Some(Stream {
        arguments: &["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"],
        rate_argument: None,
        format: &encode::WAV,
    }),
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
        stream: Some(Stream {
            arguments: &["--raw", "--format=s16le", "--channels=1"],
            rate_argument: Some("--rate="),
            format: &encode::S16LE,
        }),
    },
    Program {
        name: "aplay",
        file: &["-q"],
        stream: Some(Stream {
            arguments: &["-q", "-t", "raw", "-f", "S16_LE", "-c", "1"],
            rate_argument: Some("--rate="),
            format: &encode::S16LE,
        }),
    },
    Program { name: "pw-play", file: &[], stream: None },
    FFPLAY,
];

/// An installed player.
#[derive(Debug, Clone)]
pub(crate) struct Player {
    program: Program,
    path: PathBuf,
}

impl Player {
    /// The first installed player; with `streaming`, the first that plays streams.
    ///
    /// # Errors
    /// No such player is installed.
    pub(crate) fn find(streaming: bool) -> Result<Self> {
        let search = std::env::var_os("PATH").unwrap_or_default();
        find_in(PROGRAMS, &search, streaming).ok_or_else(|| {
            let suitable: Vec<&str> = PROGRAMS
                .iter()
                .filter(|program| !streaming || program.stream.is_some())
                .map(|program| program.name)
                .collect();
            let (message, alternative) = if streaming {
                ("no player for streams was found", "leave out --stream, or write to a file with -o")
            } else {
                ("no audio player was found", "write to a file with -o")
            };
            failure::with_help(
                format!("{message} (searched for {})", suitable.join(", ")),
                format!("install one of them ({}), or {alternative}", packages()),
            )
        })
    }

    /// The program's name.
    pub(crate) fn name(&self) -> &'static str {
        self.program.name
    }

    /// Plays a file to its end.
    ///
    /// # Errors
    /// The player does not start or fails.
    async fn play_file(&self, file: &Path) -> Result<()> {
        // The player does not run in the working folder.
        let file = &std::path::absolute(file).context("the player's file has no absolute path")?;
        let mut command = self.command();
        command.args(self.program.file).env("IZWI_PLAY_FILE", file);
        if !self.program.file.contains(&POWERSHELL) {
            command.arg(file);
        }
        let child = self.start(command.stdin(Stdio::null()))?;
        Playing { player: self.name(), child, stream: None, writer: None }.finish().await
    }

    /// Plays a whole signal to its end.
    ///
    /// # Errors
    /// The player does not start or fails.
    pub(crate) async fn play_samples(&self, samples: &[f32], sample_rate_hz: u32) -> Result<()> {
        let folder = tempfile::tempdir().context("cannot create a folder for the file of the player")?;
        let file = folder.path().join("izwi.wav");
        wav::write_file(&file, samples, sample_rate_hz)?;
        self.play_file(&file).await
    }

    /// Starts to play a stream of mono samples.
    ///
    /// # Errors
    /// The player plays no streams, or does not start.
    pub(crate) fn open_stream(&self, sample_rate_hz: u32) -> Result<Playing> {
        let Some(stream) = self.program.stream else { anyhow::bail!("{} plays no streams", self.name()) };
        let mut command = self.command();
        command.args(stream.arguments);
        command.args(stream.rate_argument.map(|prefix| format!("{prefix}{sample_rate_hz}")));
        let encoder = stream.format.encoder(&EncoderConfig::streamed(sample_rate_hz))?;
        let mut child = self.start(command.stdin(Stdio::piped()))?;
        let stdin = child.stdin.take().context("the player has no standard input")?;
        let stream = Some(EncodedStream::start(encoder, stdin));
        Ok(Playing { player: self.name(), child, stream, writer: None })
    }

    /// A process in the player's own folder: nothing in the working folder is loaded.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.path);
        if let Some(folder) = self.path.parent() {
            command.current_dir(folder);
        }
        command
    }

    fn start(&self, command: &mut Command) -> Result<Child> {
        let started = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        started.with_context(|| format!("cannot start the player {}", self.path.display()))
    }
}

/// Packages with players.
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
    let suitable = programs.iter().filter(|program| !streaming || program.stream.is_some());
    suitable.copied().find_map(|program| {
        let path = find_program(program.name, search)?;
        Some(Player { program, path })
    })
}

/// A running player. Dropping it stops it.
#[derive(Debug)]
pub(crate) struct Playing {
    player: &'static str,
    child: Child,
    /// `None` for a player of a file.
    stream: Option<EncodedStream>,
    /// Writes the rest of a stream that is at its end.
    writer: Option<JoinHandle<bool>>,
}

/// Audio on its way to a player, by a thread that waits for it.
#[derive(Debug)]
struct EncodedStream {
    encoder: Box<dyn Encoder>,
    bytes: mpsc::Sender<Vec<u8>>,
    /// False once the player takes no more.
    writer: JoinHandle<bool>,
}

impl EncodedStream {
    fn start(encoder: Box<dyn Encoder>, mut stdin: ChildStdin) -> Self {
        let (bytes, mut waiting) = mpsc::channel::<Vec<u8>>(1);
        let writer = std::thread::spawn(move || {
            while let Some(bytes) = waiting.blocking_recv() {
                if stdin.write_all(&bytes).and_then(|()| stdin.flush()).is_err() {
                    return false;
                }
            }
            true
        });
        Self { encoder, bytes, writer }
    }

    /// Encodes once there is room. False if the player takes no more. Encodes nothing if the future is dropped.
    async fn send(
        &mut self,
        encode: impl FnOnce(&mut dyn Encoder) -> Result<Vec<u8>, EncodeError>,
    ) -> Result<bool> {
        let Ok(room) = self.bytes.reserve().await else { return Ok(false) };
        room.send(encode(self.encoder.as_mut())?);
        Ok(true)
    }
}

impl Playing {
    /// Plays more samples. Waits while the player's buffer is full; no sample is lost if the future is dropped.
    ///
    /// # Errors
    /// The player has ended.
    pub(crate) async fn write(&mut self, samples: &[f32]) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if stream.send(|encoder| encoder.push(samples)).await? { Ok(()) } else { Err(self.failure(EARLY)) }
    }

    /// Waits until all audio was played. May be called again if the future was dropped.
    ///
    /// # Errors
    /// The player failed.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        if let Some(stream) = &mut self.stream {
            stream.send(|encoder| encoder.finish()).await?;
            // Nothing follows, which the writer tells the player.
            self.writer = self.stream.take().map(|stream| stream.writer);
        }
        let status = loop {
            match self.child.try_wait().context("cannot wait for the player")? {
                None => tokio::time::sleep(POLL_INTERVAL).await,
                Some(status) => break status,
            }
        };
        let is_whole = self.writer.take().is_none_or(|writer| writer.join().unwrap_or(false));
        match (status.success(), is_whole) {
            (true, true) => Ok(()),
            (true, false) => Err(self.failure(EARLY)),
            (false, _) => Err(self.failure(&format!("ended with {status}"))),
        }
    }

    /// The failure with the player's error output.
    fn failure(&mut self, what: &str) -> anyhow::Error {
        // The player may hang; its output so far is enough.
        let _ = self.child.kill();
        let mut stderr = Vec::new();
        if let Some(pipe) = self.child.stderr.take() {
            let _ = pipe.take(MAX_STDERR_BYTES).read_to_end(&mut stderr);
        }
        let stderr = String::from_utf8_lossy(&stderr);
        let message = match stderr.trim() {
            "" => format!("the player {} {what}", self.player),
            stderr => format!("the player {} {what}: {stderr}", self.player),
        };
        failure::with_help(message, "check that sound works on this machine, or write to a file with -o")
    }
}

impl Drop for Playing {
    fn drop(&mut self) {
        // Waiting for the process prevents a zombie.
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
    fn the_first_suitable_player_on_the_path_is_chosen() {
        let folder = tempfile::tempdir().unwrap();
        let search = folder.path().as_os_str().to_owned();
        let found = |streaming| find_in(TEST_PROGRAMS, &search, streaming).map(|player| player.name());
        assert_eq!(found(false), None);
        install(folder.path(), "second", 0o755);
        install(folder.path(), "first", 0o644);
        assert_eq!(found(false), Some("second"), "a file that is not executable is skipped");
        install(folder.path(), "first", 0o755);
        assert_eq!(found(false), Some("first"));
        assert_eq!(found(true), Some("second"));
    }
}
