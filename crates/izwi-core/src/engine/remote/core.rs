//! The loop behind the handle of a remote model. It owns the open requests, their answers and their sessions.
//!
//! It waits for commands, for parts of answers and for clients, and blocks on none. An answer is polled only while its
//! client keeps up: a slow client slows its own upstream connection, and at most one part of an answer waits here. Must not
//! know HTTP or wire formats.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{AbortHandle, Abortable, BoxFuture};
use futures::stream::{FuturesUnordered, StreamExt};
use izwi_types::{Input, StepOutput};
use tokio::sync::{mpsc, oneshot, watch};

use super::{RemoteModel, RemoteOutput};
use crate::engine::config::EngineCoreConfig;
use crate::engine::core::{Added, Command, EngineState, EngineStatus, Waiters, reject_rest};
use crate::engine::error::{EngineError, RemoteError, Result};
use crate::engine::kv_cache::KVCacheStats;
use crate::engine::metrics::MetricsCollector;
use crate::engine::sequences::{AbortCause, Admission, Delivery, DeliveryEvent, Pushed, Sequences, Watch};
use crate::engine::types::{FinishReason, RequestId, SequenceId};

/// Suggested time until a retry where nothing is known of the speed of the servers.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What arrived of one request.
enum Arrival {
    Started(std::result::Result<RemoteOutput, RemoteError>),
    Part(Option<std::result::Result<Box<StepOutput>, RemoteError>>, RemoteOutput),
}

type Pending = Abortable<BoxFuture<'static, (SequenceId, Arrival)>>;

/// A request that has not ended.
struct Open {
    id: RequestId,
    /// Ends what is awaited of the other server.
    abort: AbortHandle,
    /// Told once the answer begins, or that there is none.
    submitted: Option<oneshot::Sender<Added>>,
    /// Whether its client is slow; then `held` is not polled.
    is_paused: bool,
    held: Option<RemoteOutput>,
    /// Why it ends.
    reason: FinishReason,
}

/// The loop; runs as one task.
pub(in crate::engine) struct RemoteCore {
    config: Arc<EngineCoreConfig>,
    model: Arc<dyn RemoteModel>,
    sequences: Sequences,
    metrics: MetricsCollector,
    open: HashMap<SequenceId, Open>,
    pending: FuturesUnordered<Pending>,
    waiters: Waiters,
    is_paused: bool,
    stopping: bool,
    senders_gone: bool,
    status: EngineStatus,
    publish: watch::Sender<EngineStatus>,
}

impl RemoteCore {
    pub(in crate::engine) fn new(
        config: Arc<EngineCoreConfig>,
        model: Arc<dyn RemoteModel>,
        publish: watch::Sender<EngineStatus>,
    ) -> Self {
        let profile = model.profile();
        Self {
            config,
            model,
            sequences: Sequences::new(profile.info.sample_rate_hz),
            metrics: MetricsCollector::new(&profile.model).on(&profile.device),
            open: HashMap::new(),
            pending: FuturesUnordered::new(),
            waiters: Waiters::default(),
            is_paused: false,
            stopping: false,
            senders_gone: false,
            status: EngineStatus { state: EngineState::Ready, ..EngineStatus::default() },
            publish,
        }
    }

    /// Runs until stopped, or idle without handles.
    pub(in crate::engine) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        self.publish();
        while !self.is_over() {
            let stall = self.sequences.next_stall(self.config.slow_client_timeout);
            let stalled = async {
                match stall {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                command = commands.recv(), if !self.senders_gone => match command {
                    Some(command) => self.handle(command),
                    None => self.senders_gone = true,
                },
                event = self.sequences.next_event(Watch::All, &self.metrics), if !self.sequences.is_empty() => {
                    self.delivery_event(event);
                }
                Some(arrived) = self.pending.next(), if !self.is_paused => {
                    // One that was aborted has nothing to say.
                    if let Ok((sequence, arrival)) = arrived {
                        self.arrived(sequence, arrival);
                    }
                }
                () = stalled => {}
            }
            for sequence in self.sequences.stalled(self.config.slow_client_timeout) {
                self.abort(sequence, AbortCause::SlowClient);
            }
            self.answer_steps();
            self.publish();
        }
        self.end(&mut commands).await;
    }

    fn is_over(&self) -> bool {
        self.stopping || (self.senders_gone && self.open.is_empty() && self.sequences.is_empty())
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Add(admission, reply) => match self.check(&admission) {
                Ok(input) => self.admit(*admission, input, reply),
                Err(error) => drop(reply.send(Err(error.into()))),
            },
            Command::Abort(id, cause, reply) => {
                let sequence = self.sequences.find(&id);
                if let Some(sequence) = sequence {
                    self.abort(sequence, cause);
                }
                let _ = reply.send(sequence.is_some());
            }
            Command::PlaybackAck(id, report, at) => {
                if let Some(sequence) = self.sequences.find(&id) {
                    self.sequences.acknowledge(sequence, report, at, &self.metrics);
                }
            }
            Command::Step(reply) => self.waiters.step.push(reply),
            Command::Metrics(reply) => drop(reply.send(self.metrics.snapshot())),
            // Nothing is known about the steps of another server.
            Command::Learned(reply) => drop(reply),
            // There are no blocks.
            Command::CheckInvariants(reply) => drop(reply.send(Ok(()))),
            // A remote model has nothing to start, and takes no text while it speaks.
            Command::Start | Command::InputGrew(_) => {}
            Command::Resume => self.is_paused = false,
            Command::Pause => self.is_paused = true,
            Command::Drain(reply) => {
                if self.status.state == EngineState::Ready {
                    self.status.state = EngineState::Draining;
                }
                self.is_paused = false;
                self.waiters.drained.push(reply);
            }
            Command::Stop => self.stopping = true,
            Command::AwaitEnd(reply) => self.waiters.end.push(reply),
        }
    }

    /// Whether a request may begin now, and its input.
    fn check(&self, admission: &Admission) -> Result<Arc<Input>> {
        let id = &admission.request.info.id;
        if self.status.state == EngineState::Draining {
            return Err(EngineError::Draining);
        }
        if self.sequences.find(id).is_some() {
            return Err(EngineError::DuplicateId(id.to_string()));
        }
        let (open, limit) = (self.open.len(), self.config.max_running_requests);
        if open >= limit {
            let per_second = self.metrics.snapshot().requests_per_sec;
            let retry_after = match per_second > 0.0 {
                true => Duration::from_secs_f64((1.0 / per_second).clamp(1.0, 60.0)),
                false => RETRY_AFTER,
            };
            let message = format!(
                "model '{}' has {open} open requests, its max_concurrent; try again in {:.0} s",
                self.config.model,
                retry_after.as_secs_f64().ceil()
            );
            return Err(RemoteError::Busy { message, retry_after }.into());
        }
        let payload = Arc::clone(&admission.request.prepared.payload);
        payload.downcast().map_err(|_| EngineError::Execution("the input is not a remote model's".to_owned()))
    }

    fn admit(&mut self, mut admission: Admission, input: Arc<Input>, submitted: oneshot::Sender<Added>) {
        let info = &mut admission.request.info;
        // The other server counts its own.
        info.prompt_tokens = 0;
        let id = info.id.clone();
        let live = info.live && matches!(admission.client.delivery, Delivery::Stream(_));
        let (sequence, _) = self.sequences.add(admission, live);
        self.sequences.planned(sequence, &self.metrics);
        let start = self.model.start(input);
        let abort = self.await_arrival(start.map(move |result| (sequence, Arrival::Started(result))).boxed());
        let open = Open {
            id,
            abort,
            submitted: Some(submitted),
            is_paused: false,
            held: None,
            reason: FinishReason::Stop,
        };
        self.open.insert(sequence, open);
    }

    fn await_arrival(&self, arrival: BoxFuture<'static, (SequenceId, Arrival)>) -> AbortHandle {
        let (abort, registration) = AbortHandle::new_pair();
        self.pending.push(Abortable::new(arrival, registration));
        abort
    }

    /// Awaits the next part of an answer, unless its client is slow.
    fn await_part(&mut self, sequence: SequenceId, mut output: RemoteOutput) {
        if self.open.get(&sequence).is_some_and(|open| open.is_paused) {
            if let Some(open) = self.open.get_mut(&sequence) {
                open.held = Some(output);
            }
            return;
        }
        let part = async move {
            let part = output.next().await.map(|part| part.map(Box::new));
            (sequence, Arrival::Part(part, output))
        };
        let abort = self.await_arrival(part.boxed());
        if let Some(open) = self.open.get_mut(&sequence) {
            open.abort = abort;
        }
    }

    fn arrived(&mut self, sequence: SequenceId, arrival: Arrival) {
        let Some(open) = self.open.get_mut(&sequence) else { return };
        match arrival {
            Arrival::Started(Ok(output)) => {
                // A submitter that has gone is found by its closed channel.
                let _ = open.submitted.take().map(|submitted| submitted.send(Ok(())));
                self.await_part(sequence, output);
            }
            Arrival::Started(Err(error)) => {
                let submitted = open.submitted.take();
                self.remove(sequence);
                self.sequences.discard(sequence);
                let _ = submitted.map(|submitted| submitted.send(Err(EngineError::from(error).into())));
            }
            Arrival::Part(None, _) => {
                let reason = open.reason;
                self.finish(sequence, reason, None);
            }
            Arrival::Part(Some(Err(error)), _) => {
                tracing::error!(model = self.config.model, request = %open.id, %error, "a remote answer was cut");
                self.finish(sequence, FinishReason::Error, Some(error.into()));
            }
            Arrival::Part(Some(Ok(part)), output) => {
                if part.is_cut {
                    open.reason = FinishReason::Length;
                }
                match self.sequences.push(sequence, *part, &self.metrics) {
                    Pushed::Open { .. } => self.await_part(sequence, output),
                    Pushed::Blocked => {
                        open.is_paused = true;
                        open.held = Some(output);
                    }
                    Pushed::Disconnected => self.abort(sequence, AbortCause::Disconnect),
                }
            }
        }
    }

    fn delivery_event(&mut self, event: DeliveryEvent) {
        match event {
            DeliveryEvent::CaughtUp(sequence) => {
                let held = self.open.get_mut(&sequence).and_then(|open| {
                    open.is_paused = false;
                    open.held.take()
                });
                if let Some(output) = held {
                    self.await_part(sequence, output);
                }
            }
            DeliveryEvent::Disconnected(sequence) => self.abort(sequence, AbortCause::Disconnect),
        }
    }

    /// Removes a request everywhere but in its session, and ends it at the other server.
    fn remove(&mut self, sequence: SequenceId) {
        if let Some(open) = self.open.remove(&sequence) {
            open.abort.abort();
            self.sequences.leave(sequence);
        }
    }

    fn finish(&mut self, sequence: SequenceId, reason: FinishReason, error: Option<EngineError>) {
        self.remove(sequence);
        let output = self.sequences.finish(sequence, reason, error, &mut self.metrics);
        self.waiters.outputs.extend(output);
    }

    /// Aborts a request.
    fn abort(&mut self, sequence: SequenceId, cause: AbortCause) {
        let submitted = self.open.get_mut(&sequence).and_then(|open| open.submitted.take());
        self.remove(sequence);
        let output = self.sequences.abort(sequence, cause, &mut self.metrics);
        self.waiters.outputs.extend(output);
        if let Some(submitted) = submitted {
            // The result, if anybody waits for it, says that the request was aborted.
            let _ = submitted.send(Ok(()));
        }
    }

    fn answer_steps(&mut self) {
        if !self.waiters.outputs.is_empty() || self.open.is_empty() {
            self.waiters.answer_steps();
        }
    }

    fn publish(&mut self) {
        self.status.running = self.open.len();
        self.status.streams = self.sequences.playing().collect();
        self.metrics.gauges(0, self.status.running, &KVCacheStats::default());
        if self.status.state == EngineState::Draining && self.open.is_empty() && self.sequences.is_empty() {
            self.waiters.answer_drained();
        }
        self.publish.send_replace(self.status.clone());
    }

    /// Ends the loop: closes all requests and rejects later commands.
    async fn end(mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        for sequence in self.sequences.ids() {
            self.abort(sequence, AbortCause::Shutdown);
        }
        // Drops what was awaited, and with it the connections.
        self.pending = FuturesUnordered::new();
        self.status.state = EngineState::Stopped;
        self.answer_steps();
        self.publish();
        self.waiters.answer_end(&Ok(()));
        reject_rest(commands, &Ok(()), |command| self.handle(command)).await;
    }
}
