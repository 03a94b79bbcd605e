//! The step loop. It owns the queues, the block accounting and the sessions; during a step it lends out the executor.
//!
//! One iteration: receive commands → schedule → execute on the blocking pool → process the results. While a step executes,
//! the loop schedules the next one ahead of time and buffers commands. If nothing changed, the prescheduled step is
//! launched first, and the results of the finished step are delivered while it runs. Must not know tensors or wire
//! formats.

mod admit;
mod command;
mod heartbeat;
mod in_flight;
mod swap;
mod waiters;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

pub(super) use command::{Added, Command, Refused, reject_rest};
use in_flight::{CompletedItem, InFlightStep, StepTimes};
pub(super) use waiters::Waiters;

use super::blocks::BlockGeometry;
use super::config::EngineCoreConfig;
use super::error::EngineError;
use super::executor::parts::PartsExecutor;
use super::executor::{ExecutorError, ItemResult, ModelExecutor, StepPlan};
use super::kv_cache::{KVCacheManager, KVCacheStats};
use super::metrics::MetricsCollector;
use super::qos::{Event, Outlook, Qos};
use super::request::workload;
use super::scheduler::{ScheduleDecision, ScheduleResult, ScheduledRequest, Scheduler};
use super::sequences::{AbortCause, DeliveryEvent, Pushed, Sequences, Watch};
use super::types::{FinishReason, SequenceId};
use izwi_types::StepOutput;

/// A step that ends this much later than expected discards the one that was scheduled ahead.
const MAX_LATE: Duration = Duration::from_millis(5);
/// Consecutive panics in steps of one sequence after which the executor warms up again, and the engine fails if it cannot.
const MAX_PANICS: u32 = 3;
/// How often an engine looks whether streams of other engines have made room.
const RETRY: Duration = Duration::from_millis(50);
/// How long a request waits for its client while its state takes memory that another request waits for.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(5);

/// State of an engine.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum EngineState {
    /// Warming up.
    #[default]
    Starting,
    /// Accepting requests.
    Ready,
    /// Finishing open requests, rejecting new ones.
    Draining,
    /// Stopped on request.
    Stopped,
    /// Stopped by a failure.
    Dead(String),
}

/// A snapshot of the step loop, published after every step and command.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineStatus {
    /// State.
    pub state: EngineState,
    /// Requests waiting for admission.
    pub pending: usize,
    /// Running sequences.
    pub running: usize,
    /// Requests that wait for more text or audio of their client.
    pub awaiting_input: usize,
    /// The live streams that play: each with the time when its delivered audio has been played.
    pub streams: Vec<(SequenceId, Instant)>,
    /// Block accounting.
    pub kv: KVCacheStats,
    /// Steps executed.
    pub steps: u64,
    /// Preempted sequences.
    pub preemptions: u64,
    /// Prescheduled steps that were executed.
    pub preschedule_used: u64,
    /// Prescheduled steps that were discarded.
    pub preschedule_discarded: u64,
    /// What another live stream could expect.
    pub outlook: Outlook,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// New: steps on request only, until started.
    Manual,
    /// Paused: steps on request only, until resumed.
    Paused,
    /// Steps while there is work.
    Running,
}

/// The step loop; runs as one task.
pub(super) struct EngineCore {
    config: Arc<EngineCoreConfig>,
    executor: Option<Box<dyn ModelExecutor>>,
    scheduler: Scheduler,
    /// Bytes of the model's state of one sequence.
    state_bytes: usize,
    kv: KVCacheManager,
    sequences: Sequences,
    qos: Box<dyn Qos>,
    metrics: MetricsCollector,
    swapping: swap::Swapping,
    heartbeat: heartbeat::Heartbeat,
    /// Sequences whose executor state can be released.
    released: Vec<SequenceId>,
    waiters: Waiters,
    mode: Mode,
    stopping: bool,
    senders_gone: bool,
    panics: u32,
    /// Number of steps at the last check of the invariants.
    checked_step: u64,
    epoch: Instant,
    status: EngineStatus,
    publish: watch::Sender<EngineStatus>,
}

impl EngineCore {
    pub(super) fn new(
        config: Arc<EngineCoreConfig>,
        executor: Box<dyn ModelExecutor>,
        qos: Box<dyn Qos>,
        epoch: Instant,
        metrics: MetricsCollector,
        publish: watch::Sender<EngineStatus>,
    ) -> Self {
        let profile = executor.profile();
        let geometry = BlockGeometry { num_blocks: profile.kv_blocks, block_size: config.block_size };
        let kv = KVCacheManager::new(geometry, profile.kv_block_bytes, config.enable_prefix_caching);
        Self {
            scheduler: Scheduler::new(config.scheduler_config()),
            state_bytes: profile.info.state_bytes,
            kv,
            sequences: Sequences::new(profile.info.sample_rate_hz),
            qos,
            metrics,
            config,
            heartbeat: heartbeat::Heartbeat::of(&*executor),
            executor: Some(Box::new(PartsExecutor::new(executor))),
            swapping: swap::Swapping::default(),
            released: Vec::new(),
            waiters: Waiters::default(),
            mode: Mode::Manual,
            stopping: false,
            senders_gone: false,
            panics: 0,
            checked_step: 0,
            epoch,
            status: EngineStatus::default(),
            publish,
        }
    }

    /// Runs until stopped, failed, or idle without handles.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        let early = self.initialize(&mut commands).await;
        for command in early {
            self.handle(command);
        }
        let mut in_flight = None;
        while !self.is_over() {
            let current = match in_flight.take() {
                Some(current) => current,
                None => {
                    if self.panics >= MAX_PANICS {
                        for command in self.initialize(&mut commands).await {
                            self.handle(command);
                        }
                        continue;
                    }
                    self.take_commands(&mut commands);
                    self.reap_disconnected();
                    match self.launch_step(None) {
                        Some(current) => current,
                        None => {
                            self.idle(&mut commands).await;
                            continue;
                        }
                    }
                }
            };
            in_flight = self.step(current, &mut commands).await;
        }
        self.end(&mut commands).await;
    }

    /// One step: schedules the next one ahead of time, awaits the results, and processes them. Returns the next step if it
    /// is in flight.
    async fn step(
        &mut self,
        mut current: InFlightStep,
        commands: &mut mpsc::UnboundedReceiver<Command>,
    ) -> Option<InFlightStep> {
        self.update_clock();
        let ahead = (self.config.enable_optimistic_scheduling && self.mode == Mode::Running)
            .then(|| self.scheduler.compute_schedule(&self.kv, Some(&current.schedule)));
        let (mut arrived, mut events) = (Vec::new(), Vec::new());
        let mut pause_at = self.qos.next_pause(&self.sequences);
        let joined = loop {
            tokio::select! {
                biased;
                joined = current.ended() => break joined,
                Some(command) = commands.recv() => arrived.push(command),
                () = sleep_until(pause_at.unwrap_or_else(Instant::now)), if pause_at.is_some() => {
                    self.observe(Event::PauseDue);
                    pause_at = self.qos.next_pause(&self.sequences);
                }
                // Audio that waits for slow clients continues meanwhile.
                event = self.sequences.next_event(Watch::Slow, &self.metrics) => {
                    if let DeliveryEvent::CaughtUp(sequence) = event {
                        self.observe(Event::CatchesUp(sequence));
                    }
                    events.push(event);
                }
            }
        };
        let returned = current.returned(joined);
        let late = returned.late;
        let completed = self.process_results(returned);
        for event in events {
            self.delivery_event(event);
        }
        // A client that disconnected meanwhile must not get another step.
        self.reap_disconnected();
        self.observe(Event::Freed);
        // The next step was decided for the time at which this one was expected to end.
        let unchanged =
            late <= MAX_LATE && !arrived.iter().any(|command| command.changes_schedule(self.mode));
        let next = self.launch_prescheduled(ahead, unchanged);
        // Publish before delivery: a client that has its result must not see its request counted as running.
        self.publish();
        self.deliver(completed);
        self.observe(Event::Settled { is_idle: false });
        for command in arrived {
            self.handle(command);
        }
        next
    }

    /// Launches the prescheduled step if it is still current; `unchanged` says whether commands leave the schedule as it is.
    fn launch_prescheduled(
        &mut self,
        ahead: Option<ScheduleDecision>,
        unchanged: bool,
    ) -> Option<InFlightStep> {
        let decision = ahead.filter(|decision| !decision.is_empty())?;
        let used = unchanged && self.scheduler.is_current(&decision) && self.executor.is_some();
        self.metrics.prescheduled(used);
        self.status.preschedule_used += u64::from(used);
        self.status.preschedule_discarded += u64::from(!used);
        if used { self.launch_step(Some(decision)) } else { None }
    }

    /// Launches a step, `decided` or scheduled now. `None` if there is no work.
    fn launch_step(&mut self, decided: Option<ScheduleDecision>) -> Option<InFlightStep> {
        if self.mode != Mode::Running && self.waiters.step.is_empty() {
            return None;
        }
        let mut executor = self.executor.take()?;
        executor.release(&std::mem::take(&mut self.released));
        self.update_clock();
        if decided.is_none() {
            self.observe(Event::Freed);
        }
        let decision = decided.unwrap_or_else(|| self.scheduler.compute_schedule(&self.kv, None));
        if decision.is_empty() {
            self.executor = Some(executor);
            self.waiters.answer_steps();
            return None;
        }
        let schedule = Arc::new(self.scheduler.apply_schedule(decision, &mut self.kv));
        self.status.preemptions += schedule.preempted_requests.len() as u64;
        let restored = self.swapping.launch();
        let mut plan = StepPlan { new_sequences: Vec::new(), restored, schedule: Arc::clone(&schedule) };
        for item in schedule.items() {
            plan.new_sequences.extend(self.sequences.planned(item.sequence, &self.metrics));
        }
        let request = self.qos.turn(&schedule, &self.scheduler);
        Some(InFlightStep::launch(executor, plan, self.qos.device(), request))
    }

    /// Tells the scheduler the time and what limits the next step.
    fn update_clock(&mut self) {
        self.scheduler.set_now(self.epoch.elapsed().as_micros() as u64);
        self.qos.budget(&mut self.scheduler, &self.sequences);
    }

    fn observe(&mut self, event: Event<'_>) {
        self.qos.observe(event, &mut self.scheduler, &mut self.sequences);
    }

    /// Updates queues and block accounting after a step. Delivers nothing, so that the next step is launched early.
    fn process_results(&mut self, returned: in_flight::Returned) -> Vec<CompletedItem> {
        self.kv.end_step();
        self.status.steps += 1;
        self.metrics.step(&returned.schedule, returned.times.waited, returned.times.executed);
        self.heartbeat.stepped();
        match returned.executor {
            Ok(executor) => self.take_back(executor),
            Err(lost) => self.die(&format!("{lost}; restart the service")),
        }
        if returned.failed {
            self.forget_restored();
        }
        if self.executor.is_some() && returned.failed && returned.schedule.batch_size() > 1 {
            self.retry(&returned.schedule, &returned.results);
            return Vec::new();
        }
        self.panics = if returned.panicked { self.panics + 1 } else { 0 };
        if !returned.failed && self.executor.is_some() {
            let StepTimes { executed, longest_piece, .. } = returned.times;
            self.observe(Event::Step(&returned.schedule, executed, longest_piece));
        }
        let mut completed = Vec::new();
        for (item, result) in returned.schedule.items().zip(returned.results) {
            if !self.sequences.is_queued(item.sequence) {
                continue;
            }
            let result = result.and_then(|output| self.record(item, output));
            let finish = match &result {
                Err(_) => Some(FinishReason::Error),
                Ok((_, finish)) => *finish,
            };
            let result = result.map(|(output, _)| output);
            if let Some(reason) = finish {
                if reason == FinishReason::Stop && self.sequences.is_all_speech(item.sequence) {
                    let samples = result.as_ref().map_or(0, |output| output.samples.len());
                    self.observe(Event::Complete(item.sequence, samples as u64));
                }
                self.remove(item.sequence);
            }
            completed.push(CompletedItem { sequence: item.sequence, result, finish });
        }
        completed
    }

    /// Starts the sequences of a failed step again, each half apart from the other: in the end the one that makes steps fail
    /// is alone in its step.
    fn retry(&mut self, schedule: &ScheduleResult, results: &[ItemResult]) {
        let error = results.iter().find_map(|result| result.as_ref().err());
        let reason = error.map_or("", |error| error.0.as_str());
        tracing::error!(sequences = results.len(), reason, "a step failed; its sequences start again");
        let items = schedule.items().map(|item| item.sequence);
        let mut rest: Vec<SequenceId> =
            items.filter(|sequence| self.sequences.is_queued(*sequence)).collect();
        let second = rest.split_off(rest.len().div_ceil(2));
        for half in [rest, second] {
            self.scheduler.isolate(&half);
            for sequence in half {
                let max_tokens = self.sequences.max_tokens(sequence);
                let work = self.sequences.restart(sequence);
                // It was accepted with this work before.
                let work = work.and_then(|work| workload(&self.config, &work, max_tokens).ok());
                let Some((work, prompt_tokens)) = work else { continue };
                self.sequences.set_prompt_tokens(sequence, prompt_tokens);
                self.scheduler.next_pass(sequence, work, &mut self.kv);
            }
        }
    }

    /// Records a computed item. Returns its output and, if the sequence ended, the reason.
    fn record(
        &mut self,
        item: &ScheduledRequest,
        mut output: StepOutput,
    ) -> std::result::Result<(StepOutput, Option<FinishReason>), ExecutorError> {
        self.observe(Event::Item(item, &output));
        let limit = self.scheduler.complete(item, output.generated_tokens, output.content_key, &mut self.kv);
        let finish = match (&output.next_pass, output.finished, limit) {
            (_, true, _) if output.runaway => Some(FinishReason::RunawayTrimmed),
            (_, true, _) => Some(FinishReason::Stop),
            (Some(work), false, _) => {
                let max_tokens = self.sequences.max_tokens(item.sequence);
                let (work, prompt_tokens) = workload(&self.config, work, max_tokens)
                    .map_err(|error| ExecutorError(format!("the next pass does not fit: {error}")))?;
                self.sequences.add_prompt_tokens(item.sequence, prompt_tokens);
                self.scheduler.next_pass(item.sequence, work, &mut self.kv);
                None
            }
            (None, false, true) => Some(FinishReason::Length),
            (None, false, false) => None,
        };
        if finish.is_none() && output.next_pass.is_none() && !output.parents.is_empty() {
            let forked = self.scheduler.fork(item.sequence, &output.parents, &mut self.kv);
            forked.map_err(|error| ExecutorError(error.to_string()))?;
        }
        output.insert_silence();
        Ok((output, finish))
    }

    /// Delivers the outputs of a step.
    fn deliver(&mut self, completed: Vec<CompletedItem>) {
        for CompletedItem { sequence, result, finish } in completed {
            if !self.sequences.is_open(sequence) {
                continue;
            }
            let error = match result {
                Ok(output) => {
                    self.observe(Event::Output(sequence));
                    match self.sequences.push(sequence, output, &self.metrics) {
                        Pushed::Open { is_new } => {
                            if is_new {
                                self.scheduler.rejoin(sequence);
                            }
                        }
                        Pushed::Blocked => {
                            self.scheduler.set_paused(sequence, true);
                            self.observe(Event::Paused(sequence));
                        }
                        Pushed::Disconnected => {
                            self.abort(sequence, AbortCause::Disconnect);
                            continue;
                        }
                    }
                    self.observe(Event::Played(sequence));
                    None
                }
                Err(error) => {
                    tracing::error!(sequence = sequence.0, %error, "sequence failed");
                    Some(error.0)
                }
            };
            if let Some(reason) = finish {
                self.finish(sequence, reason, error);
            }
        }
        self.waiters.answer_steps();
    }

    /// Takes a sequence from the queues.
    fn remove(&mut self, sequence: SequenceId) {
        self.scheduler.finish_request(sequence, &mut self.kv);
        self.observe(Event::Left(sequence));
        self.released.extend(self.sequences.leave(sequence).then_some(sequence));
    }

    fn finish(&mut self, sequence: SequenceId, reason: FinishReason, error: Option<String>) {
        self.remove(sequence);
        let error = error.map(EngineError::Execution);
        let output = self.sequences.finish(sequence, reason, error, &mut self.metrics);
        self.waiters.outputs.extend(output);
    }

    /// Aborts a request.
    fn abort(&mut self, sequence: SequenceId, cause: AbortCause) {
        self.remove(sequence);
        let output = self.sequences.abort(sequence, cause, &mut self.metrics);
        self.waiters.outputs.extend(output);
    }

    /// Aborts requests of disconnected and stalled clients, and resumes those of clients that caught up.
    fn reap_disconnected(&mut self) {
        for event in self.sequences.ready_events(&self.metrics) {
            self.delivery_event(event);
        }
        for sequence in self.sequences.disconnected() {
            self.abort(sequence, AbortCause::Disconnect);
        }
        for sequence in self.sequences.stalled(self.stall_limit()) {
            self.abort(sequence, AbortCause::SlowClient);
        }
        self.check_inputs();
    }

    /// Ends requests whose input has not gone on for too long, and notes which wait for input now.
    fn check_inputs(&mut self) {
        let limit = self.crowded(self.config.text_timeout);
        self.sequences.note_waiting(|sequence| self.scheduler.awaits_input(sequence));
        for sequence in self.sequences.expired(limit) {
            let message = format!(
                "no more input came for {} s; end the input, or raise text_timeout",
                limit.as_secs_f64()
            );
            self.finish(sequence, FinishReason::TextTimeout, Some(message));
        }
    }

    /// A limit on waiting for a client, while others wait for the memory that its request holds.
    fn crowded(&self, limit: Duration) -> Duration {
        if self.scheduler.waits_for_state() { limit.min(CROWDED_TIMEOUT) } else { limit }
    }

    /// How far a client may fall behind real time.
    fn stall_limit(&self) -> Duration {
        self.crowded(self.config.slow_client_timeout)
    }

    fn delivery_event(&mut self, event: DeliveryEvent) {
        match event {
            DeliveryEvent::CaughtUp(sequence) => {
                self.scheduler.set_paused(sequence, false);
                self.observe(Event::CaughtUp(sequence));
            }
            DeliveryEvent::Disconnected(sequence) => self.abort(sequence, AbortCause::Disconnect),
        }
    }

    /// Waits for a command, or for a client that caught up, stalled, disconnected or sent no more input.
    async fn idle(&mut self, commands: &mut mpsc::UnboundedReceiver<Command>) {
        self.observe(Event::Settled { is_idle: true });
        self.swapping.rest();
        self.publish();
        self.check_idle();
        if self.is_over() {
            return;
        }
        let stall = self.sequences.next_stall(self.stall_limit());
        let expiry = self.sequences.next_expiry(self.crowded(self.config.text_timeout));
        // Streams of other engines make room unsaid.
        let waits = self.status.outlook.held > 0 || self.status.outlook.refuses_until.is_some();
        let retry = waits.then(|| Instant::now() + RETRY);
        let stalled = async {
            match stall.into_iter().chain(expiry).chain(retry).min() {
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
            () = self.swapping.may_save() => self.save_block().await,
            () = self.heartbeat.is_due(!self.sequences.is_empty()) => self.beat().await,
            event = self.sequences.next_event(Watch::Idle, &self.metrics), if self.sequences.has_idle() => self.delivery_event(event),
            () = stalled => {}
        }
    }

    /// Checks the block accounting whenever the engine becomes idle. A violation is a bug: it is logged as an error.
    fn check_idle(&mut self) {
        if !self.scheduler_is_empty() || self.checked_step == self.status.steps {
            return;
        }
        self.checked_step = self.status.steps;
        let used = self.status.kv.used_blocks;
        let violation = match self.kv.check_invariants() {
            Ok(()) if used == 0 => return,
            Ok(()) => format!("{used} blocks are referenced without a running sequence"),
            Err(violation) => violation,
        };
        tracing::error!(violation, "block accounting is inconsistent");
        debug_assert!(false, "block accounting is inconsistent: {violation}");
    }

    fn scheduler_is_empty(&self) -> bool {
        self.scheduler.num_waiting() + self.scheduler.num_running() == 0
    }

    fn has_ended_all(&self) -> bool {
        self.scheduler_is_empty() && self.sequences.is_empty()
    }

    fn is_over(&self) -> bool {
        let unreachable = self.senders_gone && (self.has_ended_all() || self.mode != Mode::Running);
        self.stopping || unreachable || matches!(self.status.state, EngineState::Dead(_))
    }

    /// Fails the engine: open requests fail when the loop ends, and new ones are rejected.
    fn die(&mut self, reason: &str) {
        tracing::error!(reason, "engine is dead");
        self.status.state = EngineState::Dead(reason.to_owned());
        self.executor = None;
    }

    fn publish(&mut self) {
        self.status.pending = self.scheduler.num_waiting();
        self.status.running = self.scheduler.num_running();
        self.status.awaiting_input = self.sequences.num_waiting();
        self.status.streams = self.sequences.playing().collect();
        self.status.kv = self.kv.stats();
        self.publish_resident();
        self.status.outlook = self.qos.outlook(&self.scheduler, &self.sequences);
        self.metrics.gauges(self.status.pending, self.status.running, &self.status.kv);
        if self.status.state == EngineState::Draining && self.has_ended_all() {
            self.waiters.answer_drained();
        }
        self.publish.send_replace(self.status.clone());
    }
}
