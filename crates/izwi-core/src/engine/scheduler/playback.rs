//! The playback of live streams as steps see it, on the engine's clock.
//!
//! Must not know queues or blocks.

/// A deadline of streams that play, on the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// When the first of them runs out of audio, in microseconds.
    pub at_us: u64,
    /// The longest time of the steps that it needs until then, in microseconds.
    pub work_us: u64,
}

impl Deadline {
    /// When the first of these steps must start at the latest.
    pub(super) fn latest_start_us(&self) -> u64 {
        self.at_us.saturating_sub(self.work_us)
    }
}

/// The playback of a live stream, on the engine's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Playback {
    /// When its delivered audio ends, in microseconds.
    pub end_us: u64,
    /// Steps until its next chunk leaves.
    pub steps: u32,
    /// Duration of a chunk in microseconds.
    pub chunk_us: u64,
    /// Steps for a chunk.
    pub chunk_steps: u32,
}

impl Playback {
    /// The playback after the stream's next step.
    pub(super) fn after_a_step(self) -> Self {
        match self.steps.saturating_sub(1) {
            0 => Self { end_us: self.end_us + self.chunk_us, steps: self.chunk_steps, ..self },
            steps => Self { steps, ..self },
        }
    }
}

/// What limits the time of the next step, beside the engine's own streams.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Pressure {
    /// Seconds that playing streams must stay ahead of their players.
    pub reserve_s: f64,
    /// Seconds of the device that are owed to bulk work.
    pub bulk_credit_s: f64,
    /// When the live streams of other engines on the device must go on, in microseconds on the engine's clock.
    pub others_us: Option<u64>,
    /// Share of the device that they use.
    pub others_share: f64,
}

impl Pressure {
    /// Share of the device that other engines leave.
    pub(super) fn own_share(&self) -> f64 {
        (1.0 - self.others_share).max(0.1)
    }
}
