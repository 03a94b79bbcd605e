//! Quality of service: a live stream that is accepted hears no gap, and bulk work gets its share.
//!
//! The loop asks a [`Qos`] which live streams may start, what the next step may take of the time, and what it asks of the
//! device, and tells it what happens. [`LiveStreams`] keeps the promise; with one that allows everything the engine is a
//! plain scheduler. Must not know channels, blocks or tensors.
//!
//! | question | where |
//! |---|---|
//! | how long does a step take? | `cost` |
//! | may a stream start, and what is its listener told? | `admission` |
//! | what may a step take alongside the streams that play? | `budget` |
//! | which engine has the device? | `arbiter` |
//! | how long does a step keep it? | `pieces` |
//! | how long does something else hold it up? | `pauses` |
//! | which streams pause on a machine that became too slow? | `pausing` |
//! | what has a listener heard? | `playback` |
//! | by when must a device have worked how long? | `demand` |
//! | what is known about the streams of an engine? | `live`, `situation`, `audio_rate` |

pub mod admission;
pub mod arbiter;
mod audio_rate;
pub mod budget;
pub mod cost;
pub(in crate::engine) mod demand;
mod live;
mod pauses;
mod pausing;
pub(super) mod pieces;
pub mod playback;
mod situation;

use std::sync::Arc;
use std::time::Duration;

use izwi_types::StepOutput;
use tokio::time::Instant;

use self::admission::{Candidate, Forecast, StreamRate};
use self::arbiter::{Member, TurnRequest};
use self::cost::{CostModel, StepShape};
pub(super) use self::live::LiveStreams;
use super::error::Result;
use super::request::PreparedRequest;
use super::scheduler::{ScheduleResult, ScheduledRequest, Scheduler};
use super::sequences::Sequences;
use super::types::SequenceId;

/// Quality of service of one engine.
pub(super) trait Qos: Send {
    /// The engine's place on its device.
    fn device(&self) -> Arc<Member>;

    /// Decides about a live stream that was accepted at `accepted_at`. `None` if it starts as any other request.
    ///
    /// # Errors
    /// It may not start: others would be interrupted.
    fn may_start(
        &mut self,
        request: &PreparedRequest,
        accepted_at: Instant,
        sequences: &Sequences,
    ) -> Result<Option<Start>>;

    /// Sets what the next step may take.
    fn budget(&mut self, scheduler: &mut Scheduler, sequences: &Sequences);

    /// What a step asks of the device.
    fn turn(&mut self, schedule: &ScheduleResult, scheduler: &Scheduler) -> TurnRequest;

    /// Notes what has happened.
    fn observe(&mut self, event: Event<'_>, scheduler: &mut Scheduler, sequences: &mut Sequences);

    /// When [`Event::PauseDue`] comes.
    fn next_pause(&self, sequences: &Sequences) -> Option<Instant>;

    /// What another live stream could expect now.
    fn outlook(&self, scheduler: &Scheduler, sequences: &Sequences) -> Outlook;

    /// What was learned about the time and the audio of steps.
    fn learned(&self) -> (CostModel, StreamRate);
}

/// How a live stream starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    candidate: Candidate,
    /// Characters of its text, if they are known.
    text_chars: Option<usize>,
    forecast: Forecast,
    /// Whether it waits for others to end.
    waits: bool,
    accepted_at: Instant,
}

/// What happens in the loop.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event<'a> {
    /// A live stream that may start is in the queues.
    Added(SequenceId, Start),
    /// A step of the warm-up took so long.
    WarmedUp(StepShape, Duration),
    /// A step took so long, and at most so long between two of its yield points.
    Step(&'a ScheduleResult, Duration, Duration),
    /// An item of it was computed. The scheduler does not know yet.
    Item(&'a ScheduledRequest, &'a StepOutput),
    /// The model ended a sequence with so many samples in its last step.
    Complete(SequenceId, u64),
    /// A sequence has left the queues.
    Left(SequenceId),
    /// The output of a step is about to be delivered.
    Output(SequenceId),
    /// Audio of a sequence was delivered, or its client told what it has played.
    Played(SequenceId),
    /// Its client is slow.
    Paused(SequenceId),
    /// Its client has caught up while a step is in flight; [`Event::CaughtUp`] follows.
    CatchesUp(SequenceId),
    /// Its client has caught up.
    CaughtUp(SequenceId),
    /// Streams have been silent for so long that they pause.
    PauseDue,
    /// Streams may have made room for others.
    Freed,
    /// The queues are as the next step will find them, or, `is_idle`, there is none.
    Settled { is_idle: bool },
    /// The loop ends.
    Ended,
}

/// What another live stream could expect now, as predicted.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Outlook {
    /// When it would be accepted; `None` if at once.
    pub refuses_until: Option<Instant>,
    /// From its arrival until its listener hears it; zero while nothing is known.
    pub first_sound: Duration,
    /// Time in which all sequences and another one have a step.
    pub step_with_another: Duration,
    /// Time of one more position of a prompt.
    pub prompt_token: Duration,
    /// Streams that were accepted and wait for others to end.
    pub held: usize,
}
