//! Recording programs of the platform, and other sources of audio bytes that block.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use izwi_hub::find_program;
use tokio::sync::mpsc;

use super::next_bytes;
use crate::failure;

/// Bytes read at once: 50 ms at 16 kHz.
const READ_BYTES: usize = 1_600;
/// Reads that may wait.
const MAX_WAITING: usize = 64;

/// Programs that record raw mono audio of 16 bits to standard output: name, arguments, and the prefix of the argument with the
/// sample rate.
const PROGRAMS: [(&str, &[&str], &str); 2] = [
    ("parec", &["--raw", "--format=s16le", "--channels=1", "--latency-msec=20"], "--rate="),
    ("arecord", &["-q", "-t", "raw", "-f", "S16_LE", "-c", "1"], "--rate="),
];

/// A program of [`PROGRAMS`] that is installed.
pub(super) struct Found {
    pub(super) name: &'static str,
    path: PathBuf,
    arguments: &'static [&'static str],
    rate: &'static str,
}

/// The first installed program.
pub(super) fn find() -> Option<Found> {
    let search = std::env::var_os("PATH").unwrap_or_default();
    PROGRAMS.iter().find_map(|&(name, arguments, rate)| {
        Some(Found { name, path: find_program(name, &search)?, arguments, rate })
    })
}

/// A program that records. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Recorder {
    name: &'static str,
    child: Child,
    audio: mpsc::Receiver<io::Result<Vec<u8>>>,
}

impl Recorder {
    /// Starts the first installed program.
    ///
    /// # Errors
    /// None is installed, or it does not start.
    pub(super) fn start(rate_hz: u32) -> Result<Self> {
        let Some(Found { name, path, arguments, rate }) = find() else {
            return Err(failure::with_help(
                "no microphone and no recording program was found (searched for parec, arecord)",
                "install pulseaudio-utils or alsa-utils, build with --features alsa, or pipe raw audio into `izwi dictate -`",
            ));
        };
        let mut command = Command::new(&path);
        if let Some(folder) = path.parent() {
            // Nothing in the working folder is loaded.
            command.current_dir(folder);
        }
        command.args(arguments).arg(format!("{rate}{rate_hz}"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child =
            command.spawn().with_context(|| format!("cannot start the recorder {}", path.display()))?;
        let stdout = child.stdout.take().context("the recorder has no standard output")?;
        Ok(Self { name, child, audio: read_in_background(stdout) })
    }

    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    pub(super) async fn read(&mut self) -> Result<Option<Vec<u8>>> {
        let bytes = next_bytes(&mut self.audio).await?;
        if bytes.is_none()
            && let Some(status) = self.child.try_wait().context("cannot wait for the recorder")?
            && status.code().is_some_and(|code| code != 0)
        {
            return Err(failure::with_help(
                format!("the recorder {} ended with {status}", self.name),
                "check that this machine has a microphone, or pipe raw audio into `izwi dictate -`",
            ));
        }
        Ok(bytes)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // Waiting for the process prevents a zombie.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a source on a thread of its own, which ends with the source or with the receiver.
pub(crate) fn read_in_background(
    mut source: impl Read + Send + 'static,
) -> mpsc::Receiver<io::Result<Vec<u8>>> {
    let (sender, receiver) = mpsc::channel(MAX_WAITING);
    std::thread::spawn(move || {
        loop {
            let mut bytes = vec![0; READ_BYTES];
            let read = match source.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => {
                    bytes.truncate(count);
                    Ok(bytes)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => Err(error),
            };
            let has_failed = read.is_err();
            if sender.blocking_send(read).is_err() || has_failed {
                return;
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_source_is_read_to_its_end() {
        let bytes: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        let mut source = read_in_background(io::Cursor::new(bytes.clone()));
        let mut all = Vec::new();
        while let Some(part) = next_bytes(&mut source).await.unwrap() {
            all.extend(part);
        }
        assert_eq!(all, bytes);
    }
}
