//! Commands of the handle to the step loop, and the loop's start, replies and end.

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::{EngineCore, EngineState, Mode, in_flight};
use crate::engine::error::{EngineError, Result};
use crate::engine::metrics::MetricsSnapshot;
use crate::engine::qos::Event;
use crate::engine::qos::admission::StreamRate;
use crate::engine::qos::cost::CostModel;
use crate::engine::sequences::{AbortCause, Admission};
use crate::engine::types::{EngineOutput, FinishReason, PlaybackReport, RequestId};

/// Why a request was not added.
#[derive(Debug)]
pub(in crate::engine) struct Refused {
    pub(in crate::engine) error: EngineError,
    /// The request, for another replica of the model; `None` if it is lost.
    pub(in crate::engine) admission: Option<Box<Admission>>,
}

impl From<EngineError> for Refused {
    fn from(error: EngineError) -> Self {
        Self { error, admission: None }
    }
}

/// The answer to a request to add a request.
pub(in crate::engine) type Added = std::result::Result<(), Refused>;

/// A command to the step loop.
#[derive(Debug)]
pub(in crate::engine) enum Command {
    Add(Box<Admission>, oneshot::Sender<Added>),
    Abort(RequestId, AbortCause, oneshot::Sender<bool>),
    /// More text or audio of a request has arrived, or its end.
    InputGrew(RequestId),
    /// What its client's player tells, and when.
    PlaybackAck(RequestId, PlaybackReport, Instant),
    Step(oneshot::Sender<Result<Vec<EngineOutput>>>),
    Metrics(oneshot::Sender<MetricsSnapshot>),
    /// What the engine has learned about the time and the audio of steps.
    Learned(oneshot::Sender<(CostModel, StreamRate)>),
    CheckInvariants(oneshot::Sender<std::result::Result<(), String>>),
    Start,
    Resume,
    Pause,
    Drain(oneshot::Sender<()>),
    Stop,
    AwaitEnd(oneshot::Sender<Result<()>>),
}

impl Command {
    /// Whether a step that was scheduled before this command may differ from one that is scheduled after it.
    pub(super) fn changes_schedule(&self, mode: Mode) -> bool {
        match self {
            Self::PlaybackAck(..) | Self::Metrics(_) | Self::Learned(_) | Self::CheckInvariants(_) => false,
            // Pieces come more often than steps: a sequence that waits for one joins the step after the next.
            Self::InputGrew(_) => false,
            // They let the loop run, or drain it, which it does already.
            Self::Start | Self::Resume | Self::Drain(_) | Self::AwaitEnd(_) => mode != Mode::Running,
            Self::Add(..) | Self::Abort(..) | Self::Step(_) | Self::Pause | Self::Stop => true,
        }
    }
}

impl EngineCore {
    /// Warms up the executor, again if it has panicked repeatedly. Returns the commands that arrived meanwhile.
    pub(super) async fn initialize(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Vec<Command> {
        let mut buffered = Vec::new();
        let Some(executor) = self.executor.take() else { return buffered };
        // It writes to the KV pool.
        self.scheduler.preempt_all(&mut self.kv);
        let mut warm_up = tokio::spawn(in_flight::warm_up(executor, self.qos.device()));
        let joined = loop {
            tokio::select! {
                biased;
                joined = &mut warm_up => break joined,
                Some(command) = commands.recv() => buffered.push(command),
            }
        };
        match joined.map_err(|lost| lost.to_string()).and_then(|joined| joined) {
            Ok((executor, Ok(steps))) => {
                self.executor = Some(executor);
                self.panics = 0;
                if self.status.state == EngineState::Starting {
                    self.status.state = EngineState::Ready;
                    self.sequences.set_ready();
                }
                // The first step also loads what is loaded once.
                for (shape, duration) in steps.into_iter().skip(1) {
                    self.observe(Event::WarmedUp(shape, duration));
                }
            }
            Ok((_, Err(error))) if self.panics > 0 => {
                self.die(&format!(
                    "the executor failed repeatedly, at last with: {error}; restart the service"
                ));
            }
            Ok((_, Err(error))) => self.die(&format!("the model cannot run: {error}")),
            Err(lost) => self.die(&format!("the warm-up was lost: {lost}")),
        }
        self.publish();
        buffered
    }

    /// Handles all pending commands.
    pub(super) fn take_commands(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        loop {
            match commands.try_recv() {
                Ok(command) => self.handle(command),
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.senders_gone = true;
                    return;
                }
            }
        }
    }

    /// Handles one command. Replies to dropped receivers are discarded.
    pub(super) fn handle(&mut self, command: Command) {
        match command {
            Command::Add(admission, reply) => {
                let answer = self.admit(admission);
                self.publish();
                let _ = reply.send(answer);
            }
            Command::Abort(id, cause, reply) => {
                let sequence = self.sequences.find(&id);
                if let Some(sequence) = sequence {
                    self.abort(sequence, cause);
                    // Whoever interrupts may ask again at once, of any engine of the device.
                    self.observe(Event::Settled { is_idle: false });
                    self.publish();
                }
                let _ = reply.send(sequence.is_some());
            }
            Command::InputGrew(id) => {
                let sequence = self.sequences.find(&id);
                let grown =
                    sequence.and_then(|sequence| Some((sequence, self.sequences.input_grew(sequence)?)));
                if let Some((sequence, positions)) = grown {
                    self.scheduler.set_positions(sequence, positions);
                    self.sequences.set_waiting(sequence, self.scheduler.awaits_input(sequence));
                }
            }
            Command::PlaybackAck(id, report, at) => {
                if let Some(sequence) = self.sequences.find(&id) {
                    self.sequences.acknowledge(sequence, report, at, &self.metrics);
                    self.observe(Event::Played(sequence));
                }
            }
            Command::Step(reply) => self.waiters.step.push(reply),
            Command::Metrics(reply) => {
                let _ = reply.send(self.metrics.snapshot());
            }
            Command::Learned(reply) => {
                let _ = reply.send(self.qos.learned());
            }
            Command::CheckInvariants(reply) => {
                let _ = reply.send(self.kv.check_invariants());
            }
            Command::Start if self.mode == Mode::Manual => self.mode = Mode::Running,
            Command::Start => {}
            Command::Resume => self.mode = Mode::Running,
            Command::Pause => self.mode = Mode::Paused,
            Command::Drain(reply) => {
                if self.status.state == EngineState::Ready {
                    self.status.state = EngineState::Draining;
                }
                self.mode = Mode::Running;
                self.waiters.drained.push(reply);
                self.publish();
            }
            Command::Stop => self.stopping = true,
            Command::AwaitEnd(reply) => {
                self.mode = Mode::Running;
                self.waiters.end.push(reply);
            }
        }
    }

    /// Ends the loop: closes all requests, shuts the executor down, and rejects later commands.
    pub(super) async fn end(mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        let verdict = match &self.status.state {
            EngineState::Dead(reason) => Err(EngineError::Stopped(reason.clone())),
            _ => Ok(()),
        };
        for sequence in self.sequences.ids() {
            match &self.status.state {
                EngineState::Dead(reason) => {
                    let reason = reason.clone();
                    self.finish(sequence, FinishReason::Error, Some(reason));
                }
                _ => self.abort(sequence, AbortCause::Shutdown),
            }
        }
        if verdict.is_ok() {
            self.status.state = EngineState::Stopped;
        }
        self.waiters.answer_steps();
        self.observe(Event::Ended);
        if let Some(mut executor) = self.executor.take() {
            // Freeing memory may block; a panic in it affects no request.
            let _ = tokio::task::spawn_blocking(move || executor.shutdown()).await;
        }
        self.publish();
        self.waiters.answer_end(&verdict);
        reject_rest(commands, &verdict, |command| self.handle(command)).await;
    }
}

/// Rejects what comes to a loop that has ended as `verdict` says; `handle` answers what can still be told.
pub(in crate::engine) async fn reject_rest(
    commands: &mut mpsc::UnboundedReceiver<Command>,
    verdict: &Result<()>,
    mut handle: impl FnMut(Command),
) {
    let stopped = || EngineError::Stopped("stop was requested".to_owned());
    let refusal = verdict.clone().err().unwrap_or_else(stopped);
    while let Some(command) = commands.recv().await {
        match command {
            Command::Add(admission, reply) => {
                let refused = Refused { error: refusal.clone(), admission: Some(admission) };
                drop(reply.send(Err(refused)));
            }
            Command::Step(reply) => drop(reply.send(Err(refusal.clone()))),
            Command::AwaitEnd(reply) => drop(reply.send(verdict.clone())),
            Command::Drain(reply) => drop(reply),
            other => handle(other),
        }
    }
}
