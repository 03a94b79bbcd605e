//! Replicas of a model on several devices, behind one handle.
//!
//! A [`ReplicaRouter`] takes the place of the step loop behind the [`Engine`](super::Engine) handle. Each replica is a step
//! loop of its own, with its weights, its KV pool and its place on its device. The router passes a request on to the replica
//! on which it is heard first, as predicted, less the time of the positions that it has cached; one that is refused there
//! goes to the next, and is refused only where all refuse. From then on the replica delivers to the client directly. A
//! replica that fails takes no more requests; the others continue. Must not know tensors, wire formats or HTTP.

mod cached_prompts;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use cached_prompts::CachedPrompts;

use super::config::EngineCoreConfig;
use super::core::{Added, Command, EngineState, EngineStatus, Refused};
use super::error::EngineError;
use super::kv_cache::{BlockHash, KVCacheStats};
use super::metrics::{self, MetricsCollector};
use super::qos::Outlook;
use super::sequences::Admission;
use super::types::SequenceId;

/// State of one replica of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaStatus {
    /// Its device, e.g. `metal:0`.
    pub device: String,
    /// Bytes held on the device.
    pub memory_bytes: usize,
    /// Its step loop.
    pub engine: EngineStatus,
}

/// A replica as the handle knows it.
#[derive(Debug, Clone)]
pub(super) struct Replica {
    pub(super) device: String,
    pub(super) memory_bytes: usize,
    pub(super) status: watch::Receiver<EngineStatus>,
}

impl Replica {
    pub(super) fn status(&self) -> ReplicaStatus {
        let Self { device, memory_bytes, status } = self;
        ReplicaStatus {
            device: device.clone(),
            memory_bytes: *memory_bytes,
            engine: state_of(status, status.has_changed().is_err()),
        }
    }
}

/// The status of a step loop; `has_ended` says whether its task has.
fn state_of(status: &watch::Receiver<EngineStatus>, has_ended: bool) -> EngineStatus {
    let mut status = status.borrow().clone();
    if has_ended && !is_over(&status.state) {
        status.state = EngineState::Dead("the step loop ended abnormally".to_owned());
    }
    status
}

fn is_over(state: &EngineState) -> bool {
    matches!(state, EngineState::Stopped | EngineState::Dead(_))
}

/// A replica as the router knows it.
struct Routed {
    replica: Replica,
    /// `None` once all handles are gone.
    commands: Option<mpsc::UnboundedSender<Command>>,
    last: EngineStatus,
    /// Requests that it was offered and has not answered.
    unanswered: u32,
}

/// A request that is offered to one replica after the other.
struct Offer {
    reply: oneshot::Sender<Added>,
    is_live: bool,
    /// Positions of its prompt that each replica has computed.
    cached: Vec<usize>,
    /// The last full block of its prompt.
    last_block: Option<BlockHash>,
    /// Those that refused it.
    tried: Vec<usize>,
    /// The refusal with the shortest pause.
    refusal: Option<EngineError>,
}

/// What happened at a replica.
enum Event {
    /// It answered an offer; an error means that the request is lost.
    Answered(usize, Box<Offer>, Result<Added, oneshot::error::RecvError>),
    /// All have answered whether they knew a request that was aborted.
    Aborted(oneshot::Sender<bool>, Vec<bool>),
    /// It published a status; `has_ended` if it was the last.
    Changed { index: usize, status: watch::Receiver<EngineStatus>, has_ended: bool },
}

/// The loop that passes commands on; runs as one task.
pub(super) struct ReplicaRouter {
    model: String,
    replicas: Vec<Routed>,
    cached: CachedPrompts,
    metrics: MetricsCollector,
    events: FuturesUnordered<BoxFuture<'static, Event>>,
    publish: watch::Sender<EngineStatus>,
}

impl ReplicaRouter {
    pub(super) fn new(
        model: &str,
        config: &EngineCoreConfig,
        replicas: Vec<(Replica, mpsc::UnboundedSender<Command>)>,
        metrics: MetricsCollector,
        publish: watch::Sender<EngineStatus>,
    ) -> Self {
        let routed = |(replica, commands): (Replica, _)| {
            let last = replica.status.borrow().clone();
            Routed { replica, commands: Some(commands), last, unanswered: 0 }
        };
        let replicas = replicas.into_iter().map(routed).collect();
        Self {
            model: model.to_owned(),
            replicas,
            cached: CachedPrompts::new(config.enable_prefix_caching.then_some(config.block_size)),
            metrics,
            events: FuturesUnordered::new(),
            publish,
        }
    }

    /// Runs until all handles are gone and all replicas have ended.
    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        for index in 0..self.replicas.len() {
            let mut status = self.replicas[index].replica.status.clone();
            // What was published before this is seen as a change.
            status.mark_changed();
            self.watch(index, status);
        }
        let mut senders_gone = false;
        while !(senders_gone && self.replicas.iter().all(|routed| is_over(&routed.last.state))) {
            tokio::select! {
                biased;
                Some(event) = self.events.next() => self.happened(event),
                command = commands.recv(), if !senders_gone => match command {
                    Some(command) => self.handle(command),
                    None => {
                        senders_gone = true;
                        self.replicas.iter_mut().for_each(|routed| routed.commands = None);
                    }
                },
            }
        }
    }

    /// Awaits the next status of a replica.
    fn watch(&self, index: usize, mut status: watch::Receiver<EngineStatus>) {
        let changed = async move {
            let has_ended = status.changed().await.is_err();
            Event::Changed { index, status, has_ended }
        };
        self.events.push(changed.boxed());
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Changed { index, mut status, has_ended } => {
                status.mark_unchanged();
                self.update(index, state_of(&status, has_ended));
                if !has_ended {
                    self.watch(index, status);
                }
            }
            Event::Answered(index, offer, answer) => {
                self.replicas[index].unanswered -= 1;
                self.refresh(index);
                self.answered(index, offer, answer);
            }
            Event::Aborted(reply, known) => {
                // Whoever interrupts may ask again at once.
                (0..self.replicas.len()).for_each(|index| self.refresh(index));
                let _ = reply.send(known.contains(&true));
            }
        }
    }

    /// Records and publishes the status of a replica that has answered: it publishes before it answers.
    fn refresh(&mut self, index: usize) {
        let status = self.replicas[index].replica.status().engine;
        self.update(index, status);
    }

    /// Records and publishes the status of a replica.
    fn update(&mut self, index: usize, status: EngineStatus) {
        let routed = &mut self.replicas[index];
        if status.state != routed.last.state {
            let device = routed.replica.device.as_str();
            if let EngineState::Dead(reason) = &status.state {
                tracing::error!(
                    model = self.model,
                    device,
                    reason,
                    "a replica failed and takes no more requests"
                );
            }
            metrics::set_replica(&self.model, device, status.state == EngineState::Ready);
        }
        routed.last = status;
        let statuses: Vec<_> =
            self.replicas.iter().map(|routed| (routed.replica.device.as_str(), &routed.last)).collect();
        self.publish.send_replace(merged(&statuses));
    }

    fn answered(
        &mut self,
        index: usize,
        mut offer: Box<Offer>,
        answer: Result<Added, oneshot::error::RecvError>,
    ) {
        let Refused { error, admission } = match answer {
            Ok(Ok(())) => {
                metrics::count_replica_request(&self.model, &self.replicas[index].replica.device);
                if let Some(last) = offer.last_block {
                    self.cached.record(index, last);
                }
                let _ = offer.reply.send(Ok(()));
                return;
            }
            Ok(Err(refused)) => refused,
            Err(_) => EngineError::Stopped("a replica ended abnormally".to_owned()).into(),
        };
        offer.tried.push(index);
        match admission {
            Some(admission) if is_of_replica(&error) => {
                offer.refusal = Some(match offer.refusal.take() {
                    Some(other) if pause(&other) <= pause(&error) => other,
                    _ => error,
                });
                self.offer(admission, offer);
            }
            _ => drop(offer.reply.send(Err(error.into()))),
        }
    }

    /// Offers a request to the best of the replicas that have not refused it.
    fn offer(&mut self, mut admission: Box<Admission>, mut offer: Box<Offer>) {
        while let Some(index) = self.best(&offer) {
            let Some(commands) = &self.replicas[index].commands else { break };
            let (reply, answer) = oneshot::channel();
            match commands.send(Command::Add(admission, reply)) {
                Ok(()) => {
                    self.replicas[index].unanswered += 1;
                    let answered = async move { Event::Answered(index, offer, answer.await) };
                    self.events.push(answered.boxed());
                    return;
                }
                Err(mpsc::error::SendError(Command::Add(returned, _))) => {
                    offer.tried.push(index);
                    admission = returned;
                }
                Err(_) => break,
            }
        }
        let stopped = || EngineError::Stopped("the model runs on none of its devices".to_owned());
        let _ = offer.reply.send(Err(offer.refusal.unwrap_or_else(stopped).into()));
    }

    /// The replica on which a live stream is heard first, or other work has its steps soonest.
    fn best(&self, offer: &Offer) -> Option<usize> {
        let now = Instant::now();
        let candidates = self.replicas.iter().enumerate().filter(|(index, routed)| {
            !offer.tried.contains(index) && routed.commands.is_some() && !is_over(&routed.last.state)
        });
        candidates
            .min_by_key(|(index, routed)| {
                rank(&routed.last, routed.unanswered, offer.is_live, offer.cached[*index], now)
            })
            .map(|(index, _)| index)
    }

    /// Asks all replicas.
    fn ask_all<T: Send + 'static>(
        &self,
        command: impl Fn(oneshot::Sender<T>) -> Command,
    ) -> impl Future<Output = Vec<T>> + Send + 'static {
        let ask = |routed: &Routed| {
            let (reply, answer) = oneshot::channel();
            // One that has ended answers nothing.
            let _ = routed.commands.as_ref().map(|commands| commands.send(command(reply)));
            answer
        };
        let answers: Vec<_> = self.replicas.iter().map(ask).collect();
        async move { join_all(answers).await.into_iter().flatten().collect() }
    }

    /// Tells all replicas.
    fn tell_all(&self, command: impl Fn() -> Command) {
        for commands in self.replicas.iter().filter_map(|routed| routed.commands.as_ref()) {
            let _ = commands.send(command());
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Add(admission, reply) => {
                let is_live = admission.is_live_stream();
                let prompt = admission.request.work.prefix();
                let cached = self.cached.positions(prompt, self.replicas.len());
                let last_block = prompt.last().copied();
                let offer = Offer { reply, is_live, cached, last_block, tried: Vec::new(), refusal: None };
                self.offer(admission, Box::new(offer));
            }
            Command::Metrics(reply) => drop(reply.send(self.metrics.snapshot())),
            // Only the replica that has the request heeds the others.
            Command::Abort(id, cause, reply) => {
                let known = self.ask_all(|reply| Command::Abort(id.clone(), cause, reply));
                self.events.push(known.map(|known| Event::Aborted(reply, known)).boxed());
            }
            Command::InputGrew(id) => self.tell_all(|| Command::InputGrew(id.clone())),
            Command::PlaybackAck(id, report, at) => {
                self.tell_all(|| Command::PlaybackAck(id.clone(), report, at));
            }
            Command::Step(reply) => {
                let stepped = self.ask_all(Command::Step);
                tokio::spawn(async move { reply.send(whole(stepped.await).map(|outputs| outputs.concat())) });
            }
            // Each replica learns its own device; the first one answers for the model.
            Command::Learned(reply) => {
                let learned = self.ask_all(Command::Learned);
                tokio::spawn(async move {
                    // An asker that has gone needs no answer.
                    let _ = learned.await.into_iter().next().map(|first| drop(reply.send(first)));
                });
            }
            Command::CheckInvariants(reply) => {
                let checked = self.ask_all(Command::CheckInvariants);
                tokio::spawn(async move { reply.send(checked.await.into_iter().collect()) });
            }
            Command::Start => self.tell_all(|| Command::Start),
            Command::Resume => self.tell_all(|| Command::Resume),
            Command::Pause => self.tell_all(|| Command::Pause),
            Command::Stop => self.tell_all(|| Command::Stop),
            Command::Drain(reply) => {
                let drained = self.ask_all(Command::Drain);
                tokio::spawn(drained.map(|_| reply.send(())));
            }
            Command::AwaitEnd(reply) => {
                let ended = self.ask_all(Command::AwaitEnd);
                tokio::spawn(async move { reply.send(whole(ended.await).map(drop)) });
            }
        }
    }
}

/// The answers of the replicas that gave one; an error where all failed.
fn whole<T>(answers: Vec<super::error::Result<T>>) -> super::error::Result<Vec<T>> {
    let (found, mut errors): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    match errors.pop() {
        Some(Err(error)) if found.is_empty() => Err(error),
        _ => Ok(found.into_iter().flatten().collect()),
    }
}

/// Whether another replica may take what one refused with this error.
fn is_of_replica(error: &EngineError) -> bool {
    matches!(error, EngineError::Saturated { .. } | EngineError::Overloaded { .. } | EngineError::Stopped(_))
}

/// How soon a refused request may be tried again.
fn pause(refusal: &EngineError) -> Duration {
    match refusal {
        EngineError::Saturated { retry_after } | EngineError::Overloaded { retry_after, .. } => *retry_after,
        _ => Duration::MAX,
    }
}

/// The order of replicas for a request of whose prompt they have computed `cached` positions; the least is the best.
fn rank(
    status: &EngineStatus,
    unanswered: u32,
    is_live: bool,
    cached: usize,
    now: Instant,
) -> (bool, bool, Duration, Reverse<usize>, usize) {
    let outlook = &status.outlook;
    let refuses = is_live && outlook.refuses_until.is_some_and(|until| until > now);
    let predicted = if is_live { outlook.first_sound } else { outlook.step_with_another };
    // Those that are on their way there delay it as much again.
    let expected = predicted.saturating_mul(1 + unanswered);
    let saved = outlook.prompt_token.saturating_mul(u32::try_from(cached).unwrap_or(u32::MAX));
    let expected = expected.saturating_sub(saved);
    let open = status.pending + status.running + unanswered as usize;
    (status.state != EngineState::Ready, refuses, expected, Reverse(cached), open)
}

/// One status of all replicas, by their devices.
fn merged(replicas: &[(&str, &EngineStatus)]) -> EngineStatus {
    let count = replicas.len() as u64;
    let mut all = EngineStatus { state: merged_state(replicas), ..EngineStatus::default() };
    for (index, (_, status)) in (0..).zip(replicas) {
        all.pending += status.pending;
        all.running += status.running;
        all.awaiting_input += status.awaiting_input;
        // Each replica counts from 1.
        let number = |(id, end): &(SequenceId, Instant)| (SequenceId(id.0 * count + index), *end);
        all.streams.extend(status.streams.iter().map(number));
        add_kv(&mut all.kv, &status.kv);
        all.steps += status.steps;
        all.preemptions += status.preemptions;
        all.preschedule_used += status.preschedule_used;
        all.preschedule_discarded += status.preschedule_discarded;
    }
    let working = || replicas.iter().filter(|(_, status)| !is_over(&status.state));
    let outlooks = || working().map(|(_, status)| &status.outlook);
    let least = |part: fn(&Outlook) -> Duration| outlooks().map(part).min().unwrap_or_default();
    all.outlook = Outlook {
        // `None` is the least: one that accepts at once.
        refuses_until: outlooks().map(|outlook| outlook.refuses_until).min().flatten(),
        first_sound: least(|outlook| outlook.first_sound),
        prompt_token: least(|outlook| outlook.prompt_token),
        step_with_another: least(|outlook| outlook.step_with_another),
        held: replicas.iter().map(|(_, status)| status.outlook.held).sum(),
    };
    all
}

/// Ready as soon as one replica is; ended where all are.
fn merged_state(replicas: &[(&str, &EngineStatus)]) -> EngineState {
    let has = |state: EngineState| replicas.iter().any(|(_, status)| status.state == state);
    for state in [EngineState::Ready, EngineState::Draining, EngineState::Starting, EngineState::Stopped] {
        if has(state.clone()) {
            return state;
        }
    }
    let reason = |(device, status): &(&str, &EngineStatus)| match &status.state {
        EngineState::Dead(reason) => format!("{device}: {reason}"),
        _ => String::new(),
    };
    EngineState::Dead(replicas.iter().map(reason).collect::<Vec<_>>().join("; "))
}

fn add_kv(all: &mut KVCacheStats, one: &KVCacheStats) {
    all.total_blocks += one.total_blocks;
    all.used_blocks += one.used_blocks;
    all.cached_blocks += one.cached_blocks;
    all.free_blocks += one.free_blocks;
    all.sequences += one.sequences;
    all.memory_used_bytes += one.memory_used_bytes;
    all.prefix_queries += one.prefix_queries;
    all.prefix_hits += one.prefix_hits;
}

/// What the handle of several replicas tells of the model: the facts of the first, on all devices.
pub(super) fn merged_profile(
    profiles: &[Arc<super::executor::ExecutorProfile>],
) -> Option<super::executor::ExecutorProfile> {
    let mut all = (**profiles.first()?).clone();
    let devices: Vec<&str> = profiles.iter().map(|profile| profile.device.as_str()).collect();
    all.device = devices.join(",");
    all.memory_bytes = profiles.iter().map(|profile| profile.memory_bytes).sum();
    Some(all)
}
