//! Stands in for the sound device in builds without one: programs play and record instead.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;

/// No speaker.
#[derive(Debug, Clone)]
pub(crate) struct Speaker(Infallible);

/// No stream.
#[derive(Debug)]
pub(crate) struct SpeakerStream(Infallible);

/// No microphone.
#[derive(Debug)]
pub(crate) struct MicrophoneStream(Infallible);

impl Speaker {
    pub(super) fn find() -> Option<Self> {
        None
    }

    pub(super) fn open(&self, _rate_hz: u32) -> Result<SpeakerStream> {
        match self.0 {}
    }
}

/// The name of the default microphone.
pub(super) fn microphone_name() -> Option<String> {
    None
}

#[allow(clippy::unused_async, reason = "the signatures are those of a device")]
impl SpeakerStream {
    pub(super) async fn write(&mut self, _samples: &[f32]) -> Result<()> {
        match self.0 {}
    }

    pub(super) fn heard(&self) -> Duration {
        match self.0 {}
    }

    pub(super) fn missed(&self) -> Duration {
        match self.0 {}
    }

    pub(super) async fn finish(&mut self) -> Result<()> {
        match self.0 {}
    }
}

#[allow(clippy::unused_async, clippy::unnecessary_wraps, reason = "the signatures are those of a device")]
impl MicrophoneStream {
    pub(super) fn open(_rate_hz: u32) -> Result<Option<Self>> {
        Ok(None)
    }

    pub(super) async fn read(&mut self) -> Result<Vec<u8>> {
        match self.0 {}
    }
}
