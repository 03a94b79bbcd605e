//! Sound of this machine: playback and the microphone.
//!
//! Through the system's own interface where this build has it and a device works, else through a program of the platform. Knows no
//! model and no request.

#[cfg(any(target_os = "macos", windows, feature = "alsa"))]
mod device;
#[cfg(not(any(target_os = "macos", windows, feature = "alsa")))]
#[path = "no_device.rs"]
mod device;
mod program;
mod recorder;

use std::time::{Duration, Instant};

use anyhow::Result;
use tokio::sync::mpsc;

use crate::failure;
use crate::interrupt::Interrupt;

pub(crate) use recorder::read_in_background;

/// What `--json` calls the sound device.
const DEVICE: &str = "device";

/// Plays audio.
#[derive(Debug, Clone)]
pub(crate) enum Player {
    /// The sound device, which plays streams.
    Device(device::Speaker),
    /// A program.
    Program(program::Player),
}

impl Player {
    /// The sound device, or else the first installed player; with `streaming`, the first that plays streams.
    ///
    /// # Errors
    /// There is none.
    pub(crate) fn find(streaming: bool) -> Result<Self> {
        match device::Speaker::find() {
            Some(speaker) => Ok(Self::Device(speaker)),
            None => program::Player::find(streaming).map(Self::Program),
        }
    }

    /// The name of the device or program.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Device(_) => DEVICE,
            Self::Program(program) => program.name(),
        }
    }

    /// Whether audio should be passed on while it is generated although nobody asked for that.
    pub(crate) fn prefers_streams(&self) -> bool {
        matches!(self, Self::Device(_))
    }

    /// Starts to play a stream of mono samples.
    ///
    /// # Errors
    /// The player plays no streams, or does not start.
    pub(crate) fn open_stream(&self, sample_rate_hz: u32) -> Result<Playing> {
        match self {
            Self::Device(speaker) => {
                Ok(Playing::new(Stream::Device(Box::new(speaker.open(sample_rate_hz)?)), sample_rate_hz))
            }
            Self::Program(program) => {
                Ok(Playing::new(Stream::Program(program.open_stream(sample_rate_hz)?), sample_rate_hz))
            }
        }
    }

    /// Plays a whole signal to its end, or until the process is interrupted.
    ///
    /// # Errors
    /// The player does not start or fails, or the process is interrupted.
    pub(crate) async fn play_samples(
        &self,
        samples: &[f32],
        sample_rate_hz: u32,
        interrupt: &mut Interrupt,
    ) -> Result<()> {
        let playing = async {
            match self {
                Self::Device(_) => {
                    let mut playing = self.open_stream(sample_rate_hz)?;
                    playing.write(samples).await?;
                    playing.finish().await
                }
                Self::Program(program) => program.play_samples(samples, sample_rate_hz).await,
            }
        };
        interrupt.guard(playing).await
    }
}

/// A stream that is played. Dropping it stops it at once.
#[derive(Debug)]
pub(crate) struct Playing {
    stream: Stream,
    sample_rate_hz: u32,
    /// Samples so far, and when the first came.
    written: u64,
    begun: Option<Instant>,
}

#[derive(Debug)]
enum Stream {
    Device(Box<device::SpeakerStream>),
    Program(program::Playing),
}

impl Playing {
    fn new(stream: Stream, sample_rate_hz: u32) -> Self {
        Self { stream, sample_rate_hz, written: 0, begun: None }
    }

    /// Plays more samples. Waits while the player's buffer is full; no sample is lost if the future is dropped.
    ///
    /// # Errors
    /// The player has failed or ended.
    pub(crate) async fn write(&mut self, samples: &[f32]) -> Result<()> {
        self.begun.get_or_insert_with(Instant::now);
        self.written += samples.len() as u64;
        match &mut self.stream {
            Stream::Device(stream) => stream.write(samples).await,
            Stream::Program(playing) => playing.write(samples).await,
        }
    }

    /// Waits until all audio was played. May be called again if the future was dropped.
    ///
    /// # Errors
    /// The player failed.
    pub(crate) async fn finish(&mut self) -> Result<()> {
        match &mut self.stream {
            Stream::Device(stream) => stream.finish().await,
            Stream::Program(playing) => playing.finish().await,
        }
    }

    /// The audio that was heard so far; of a program, the most that can have been.
    pub(crate) fn heard(&self) -> Duration {
        let written = Duration::from_secs_f64(self.written as f64 / f64::from(self.sample_rate_hz));
        let heard = match &self.stream {
            Stream::Device(stream) => stream.heard(),
            Stream::Program(_) => self.begun.map_or(Duration::ZERO, |begun| begun.elapsed()),
        };
        heard.min(written)
    }

    /// The silence that was heard where audio came too late; of a program it is not known.
    pub(crate) fn missed(&self) -> Option<Duration> {
        match &self.stream {
            Stream::Device(stream) => Some(stream.missed()),
            Stream::Program(_) => None,
        }
    }
}

/// The microphone of this machine. Dropping it stops it.
#[derive(Debug)]
pub(crate) enum Microphone {
    Device(Box<device::MicrophoneStream>),
    Program(recorder::Recorder),
}

impl Microphone {
    /// Sample rate of [`read`](Self::read), in Hz.
    pub(crate) const RATE_HZ: u32 = 16_000;

    /// Starts the default microphone.
    ///
    /// # Errors
    /// There is none, or it does not start.
    pub(crate) fn open() -> Result<Self> {
        match device::MicrophoneStream::open(Self::RATE_HZ)? {
            Some(stream) => Ok(Self::Device(Box::new(stream))),
            None => recorder::Recorder::start(Self::RATE_HZ).map(Self::Program),
        }
    }

    /// The name of the device or program.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Device(_) => "the microphone",
            Self::Program(program) => program.name(),
        }
    }

    /// The name of the device as the system has it, or that of the program.
    pub(crate) fn description(&self) -> String {
        match self {
            Self::Device(_) => device::microphone_name().unwrap_or_else(|| self.name().to_owned()),
            Self::Program(program) => program.name().to_owned(),
        }
    }

    /// What [`open`](Self::open) would open, as [`description`](Self::description) names it; `None` without any.
    pub(crate) fn default_description() -> Option<String> {
        device::microphone_name().or_else(|| recorder::find().map(|found| found.name.to_owned()))
    }

    /// The next audio: mono 16-bit little-endian samples at [`RATE_HZ`](Self::RATE_HZ). `None` at the end of it. No audio is lost
    /// if the future is dropped.
    ///
    /// # Errors
    /// The microphone failed.
    pub(crate) async fn read(&mut self) -> Result<Option<Vec<u8>>> {
        match self {
            Self::Device(stream) => stream.read().await.map(Some),
            Self::Program(recorder) => recorder.read().await,
        }
    }
}

/// The next bytes of a source that is read on a thread of its own; `None` at its end.
///
/// # Errors
/// The source cannot be read.
pub(crate) async fn next_bytes(
    source: &mut mpsc::Receiver<std::io::Result<Vec<u8>>>,
) -> Result<Option<Vec<u8>>> {
    match source.recv().await {
        None => Ok(None),
        Some(Ok(bytes)) => Ok(Some(bytes)),
        Some(Err(error)) => {
            Err(failure::with_help(format!("the audio cannot be read: {error}"), "check where it comes from"))
        }
    }
}
