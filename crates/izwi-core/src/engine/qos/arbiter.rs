//! Arbitration of a device that several engines share: one step at a time, live streams first, and it counts time.
//!
//! - Of steps whose audio runs out soon the one with the earliest deadline has the device.
//! - Other steps go if all such deadlines are still met after them: those of streams that start, then the rest, each in
//!   the order of their arrival.
//! - Bulk work is owed [`BULK_SHARE`] of the time that it waits. A piece that is owed and fits goes first.
//! - A step that yields gives the device up at its yield points while others are more urgent. Only its pieces must fit.
//! - What fits at no time is not put off without end: bulk work goes once too much is owed to it, and a stream starts once its
//!   first audio is late, although streams that play may run out of audio.
//!
//! Waiting is asynchronous, so that it also works in simulated time. Must not know which sequences a step holds.

mod turn;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::pauses::Pauses;
pub(in crate::engine) use turn::{SharedTurn, Turn, TurnTimes};

/// Share of the time that bulk work gets while live streams could use all of it.
pub const BULK_SHARE: f64 = 0.1;
/// A live step that must end within this time goes before others.
pub(super) const DUE_SOON: Duration = Duration::from_millis(500);
/// How often a waiter looks whether it may go.
const RECHECK: Duration = Duration::from_millis(10);
/// How long a device stays idle for an engine that is expected to ask again, or to publish what its streams need.
const GRACE: Duration = Duration::from_millis(5);
/// The most bulk work that is owed, in seconds of the device.
const MAX_CREDIT_S: f64 = 10.0;
/// Seconds owed to bulk work, beyond its next piece, with which that piece goes at any time.
const FORCED_S: f64 = 2.0;
/// How late the first audio of a stream may be until its step goes at any time: streams that play would be interrupted for it.
pub(super) const MAX_LATE: Duration = Duration::from_secs(5);

/// A deadline of live streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// When the first of them runs out of audio.
    pub at: Instant,
    /// The longest time of the steps that it needs until then.
    pub work: Duration,
}

/// What a step asks for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TurnRequest {
    /// Deadline of a step for streams that play; `None` for other work.
    pub due: Option<Due>,
    /// Whether it is for live streams, that play or start; otherwise it is bulk work.
    pub is_live: bool,
    /// Its predicted time, with a margin.
    pub predicted: Duration,
    /// Its predicted time.
    pub expected: Duration,
    /// The longest time between two of its yield points, with a margin; `None` if it keeps the device until it ends.
    pub piece: Option<Duration>,
    /// The part of a live step's time that is bulk work.
    pub bulk: Duration,
    /// When the streams that it starts were promised to be heard; `None` if it starts none, or nothing was promised.
    pub promised: Option<Instant>,
    /// Whether the engine has checked that it fits before its own live streams must continue.
    pub is_checked: bool,
}

impl TurnRequest {
    /// How long it keeps the device at least, with a margin.
    fn least(&self) -> Duration {
        self.piece.unwrap_or(self.predicted)
    }

    /// What is left of it after `elapsed`.
    fn after(self, elapsed: Duration) -> Self {
        let (predicted, expected) = (self.predicted, self.expected);
        Self {
            predicted: predicted.saturating_sub(elapsed),
            expected: expected.saturating_sub(elapsed),
            ..self
        }
    }
}

/// What an engine's live streams need of the device, as published after each of its steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct EngineLoad {
    /// The next deadlines of its streams, the earliest first; none if no live stream can continue.
    pub(super) dues: Vec<Due>,
    /// What its streams must be ahead then, since they fall behind their players until they end.
    pub(super) behind: Duration,
    /// Device time per second for each live stream, and when the stream is expected to end.
    pub(super) streams: Vec<StreamLoad>,
    /// The need of each live stream that was accepted and waits.
    pub(super) held: Vec<HeldLoad>,
    /// The longest time of a step of all of them, in seconds.
    pub(super) step_s: f64,
    /// Variance of its device time, in seconds² for a second of audio.
    pub(super) variance: f64,
    /// Whether it has bulk work.
    pub(super) has_bulk: bool,
    /// The longest piece of bulk work for which its last step had no time.
    pub(super) bulk_piece: Duration,
}

/// The need of one live stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StreamLoad {
    /// Seconds of the device for a second of audio.
    pub(super) utilisation: f64,
    /// When it is expected to end.
    pub(super) ends_at: Instant,
}

/// The need of a live stream that was accepted and waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct HeldLoad {
    /// Seconds of the device for a second of audio.
    pub(super) utilisation: f64,
    /// Expected seconds of audio.
    pub(super) length_s: f64,
    /// Since when it waits.
    pub(super) since: Instant,
}

/// What an engine must know of the others on its device.
#[derive(Debug, Clone, Default)]
pub(super) struct Others {
    /// Their live streams.
    pub(super) streams: Vec<StreamLoad>,
    /// Those that were accepted and wait.
    pub(super) held: Vec<HeldLoad>,
    /// Their deadlines, the earliest first.
    pub(super) dues: Vec<Due>,
    /// The longest piece of their work that waits until all streams are ahead enough for it.
    pub(super) piece: Duration,
    /// How long their steps may hold up others beyond their share, in seconds: one that has begun, and for each engine the
    /// part of a frame that is not in the chunk for which it is generated.
    pub(super) blocking_s: f64,
    /// Variance of their device time, in seconds² for a second of audio.
    pub(super) variance: f64,
}

impl Others {
    /// When one of them must continue at the latest.
    pub(super) fn latest_start(&self) -> Option<Instant> {
        State::latest_start(&self.dues)
    }
}

/// The whole device.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DeviceState {
    /// Whether an engine has bulk work.
    pub(super) has_bulk: bool,
    /// Seconds that are owed to it.
    pub(super) bulk_owed_s: f64,
    /// Seconds of its next piece, which cannot go before they are owed.
    pub(super) bulk_piece_s: f64,
    /// When the step that has the device is expected to end.
    pub(super) free_at: Option<Instant>,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    member: u64,
    request: TurnRequest,
    since: Instant,
    granted: oneshot::Sender<Turn>,
}

impl Waiter {
    /// Whether it starts live streams, and none that plays is in its step.
    fn starts(&self) -> bool {
        self.request.is_live && self.request.due.is_none()
    }

    /// Whether the first audio of streams that it starts is late. Where nothing was promised, it has its share as bulk work has.
    fn is_late(&self, now: Instant) -> bool {
        let share = || self.since + self.request.least().div_f64(BULK_SHARE);
        // Streams get ahead for it from when it asks.
        self.starts() && now >= self.request.promised.unwrap_or_else(share).max(self.since) + MAX_LATE
    }
}

/// An engine whose live step has just ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    member: u64,
    /// Whether it has published its load since.
    has_load: bool,
    /// Whether it has asked for its next turn since, or has nothing to do.
    has_asked: bool,
}

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    /// When the step that has the device is expected to end.
    free_at: Option<Instant>,
    /// When the last turn ended.
    idle_since: Option<Instant>,
    /// The engine whose live step has just ended, until it is known what its streams need now.
    ended: Option<Ended>,
    next_ticket: u64,
    next_member: u64,
    waiting: Vec<Waiter>,
    members: BTreeMap<u64, EngineLoad>,
    /// Seconds owed to bulk work, as of `accrued_at`.
    credit_s: f64,
    accrued_at: Option<Instant>,
    pauses: Pauses,
}

impl State {
    /// Adds what bulk work earned since the last call. While there is none, what it was owed is soon forgotten.
    fn accrue(&mut self, now: Instant) {
        // Those that gave up are owed nothing.
        self.waiting.retain(|waiter| !waiter.granted.is_closed());
        let since = self.accrued_at.replace(now).unwrap_or(now);
        let elapsed_s = now.saturating_duration_since(since).as_secs_f64();
        let change_s = if self.has_bulk() { BULK_SHARE * elapsed_s } else { -elapsed_s };
        self.credit_s = (self.credit_s + change_s).clamp(0.0, MAX_CREDIT_S);
    }

    /// The bulk work that waits first, and its index.
    fn first_bulk(&self) -> Option<(usize, &Waiter)> {
        let bulk = self.waiting.iter().enumerate().filter(|(_, waiter)| !waiter.request.is_live);
        bulk.min_by_key(|(_, waiter)| waiter.ticket)
    }

    /// The next piece of bulk work: the one that waits, or one for which an engine has no time.
    fn bulk_piece(&self) -> Duration {
        let waiting = self.first_bulk().map(|(_, waiter)| waiter.request.least());
        self.members.values().map(|load| load.bulk_piece).chain(waiting).max().unwrap_or_default()
    }

    /// The longest piece of other engines than `member` that waits to go: streams that start, and bulk work that is owed.
    fn piece_of_others(&self, member: u64) -> Duration {
        let is_owed = |waiter: &&Waiter| self.credit_s >= waiter.request.least().as_secs_f64();
        let bulk = self.first_bulk().map(|(_, waiter)| waiter).filter(is_owed);
        let waiting = self.waiting.iter().filter(|waiter| waiter.starts()).chain(bulk);
        let others = waiting.filter(|waiter| waiter.member != member);
        others.map(|waiter| waiter.request.least()).max().unwrap_or_default()
    }

    fn has_bulk(&self) -> bool {
        let waits = || self.waiting.iter().any(|waiter| !waiter.request.is_live);
        self.members.values().any(|load| load.has_bulk) || waits()
    }

    /// Records what the engine whose step has just ended tells.
    fn has_told(&mut self, member: u64, record: impl FnOnce(&mut Ended)) {
        if let Some(ended) = self.ended.as_mut().filter(|ended| ended.member == member) {
            record(ended);
            if ended.has_load && ended.has_asked {
                self.ended = None;
            }
        }
    }

    fn charge(&mut self, bulk: Duration) {
        self.credit_s = (self.credit_s - bulk.as_secs_f64()).max(0.0);
    }

    /// The next deadlines of an engine's live streams: as it published after its last step. Its waiting step was decided before
    /// the outputs of that one were delivered, and may tell of audio that has left since; but that step comes first.
    fn dues_of(&self, member: u64) -> Vec<Due> {
        let Some(load) = self.members.get(&member) else { return Vec::new() };
        let own = |waiter: &&Waiter| waiter.member == member && waiter.request.is_live;
        let step = self.waiting.iter().find(own).map(|waiter| waiter.request);
        let mut dues = load.dues.clone();
        match (dues.first_mut(), step) {
            (Some(first), Some(step)) if step.due.is_some() => first.work = first.work.max(step.predicted),
            (Some(first), Some(step)) => first.work += step.predicted,
            (None, step) => dues.extend(step.and_then(|step| step.due)),
            (Some(_), None) => {}
        }
        for due in &mut dues {
            due.at = due.at.checked_sub(load.behind).unwrap_or(due.at);
        }
        dues
    }

    /// The deadlines of other engines than `member`, the earliest first.
    fn dues(&self, member: Option<u64>) -> Vec<Due> {
        let ids = self.members.keys().filter(|id| Some(**id) != member);
        let mut dues: Vec<Due> = ids.flat_map(|id| self.dues_of(*id)).collect();
        dues.sort_by_key(|due| due.at);
        dues
    }

    /// When the first of the steps until all deadlines must start at the latest.
    fn latest_start(dues: &[Due]) -> Option<Instant> {
        let starts = dues.iter().scan(Duration::ZERO, |work, due| {
            *work += due.work;
            Some(due.at.checked_sub(*work).unwrap_or(due.at))
        });
        starts.min()
    }

    /// The deadlines alongside a waiter: those of other engines, or all of them for work outside of steps.
    fn dues_beside(&self, waiter: &Waiter) -> Vec<Due> {
        self.dues(waiter.request.is_checked.then_some(waiter.member))
    }

    /// When a step must end. One without streams that play must end before those of its engine continue.
    fn deadline(&self, waiter: &Waiter) -> Option<Instant> {
        let dues = self.dues_of(waiter.member);
        if waiter.request.due.is_some() { dues.first().map(|due| due.at) } else { Self::latest_start(&dues) }
    }

    /// Whether all deadlines are met after a step, or a piece of one that yields; after one of bulk work, even if the device pauses.
    fn fits(&self, waiter: &Waiter, now: Instant) -> bool {
        let reserve = if waiter.request.is_live { Duration::ZERO } else { self.pauses.longest(now) };
        let ends_at = now + waiter.request.least() + reserve;
        Self::latest_start(&self.dues_beside(waiter)).is_none_or(|at| ends_at <= at)
    }

    /// Index of the waiter that goes although it may not fit, since it would be put off without end.
    fn forced(&self, now: Instant) -> Option<usize> {
        let is_owed = |waiter: &Waiter| is_forced(self.credit_s, waiter.request.least().as_secs_f64());
        let bulk = self.first_bulk().filter(|(_, waiter)| is_owed(waiter));
        let late = self.waiting.iter().enumerate().filter(|(_, waiter)| waiter.is_late(now));
        bulk.into_iter().chain(late).min_by_key(|(_, waiter)| waiter.ticket).map(|(index, _)| index)
    }

    /// Index of the waiter that has the next turn.
    fn next(&self, now: Instant) -> Option<usize> {
        let waiters = || self.waiting.iter().enumerate();
        let covered = |waiter: &Waiter| {
            let is_owed = self.credit_s > 0.0 && self.credit_s >= waiter.request.least().as_secs_f64();
            is_owed && self.fits(waiter, now)
        };
        let bulk = || self.first_bulk().filter(|(_, waiter)| covered(waiter)).map(|(index, _)| index);
        let starting = || {
            let fitting = waiters().filter(|(_, waiter)| waiter.starts() && self.fits(waiter, now));
            fitting.min_by_key(|(_, waiter)| waiter.ticket).map(|(index, _)| index)
        };
        let due = || {
            let deadlines = waiters().filter_map(|(index, waiter)| Some((self.deadline(waiter)?, index)));
            let mut soon: Vec<_> = deadlines.filter(|(at, _)| *at <= now + DUE_SOON).collect();
            soon.sort_unstable();
            // The one after which all others are still met; with none, the first.
            let fitting = soon.iter().find(|(_, index)| self.fits(&self.waiting[*index], now));
            if let Some((_, index)) = fitting {
                return Some(*index);
            }
            let (at, index) = *soon.first()?;
            let is_first =
                || self.dues_beside(&self.waiting[index]).first().is_none_or(|other| at <= other.at);
            let is_idle = || self.idle_since.is_some_and(|since| now >= since + GRACE);
            // The engine whose step has just ended may be more urgent, and asks again at once.
            (is_first() || is_idle()).then_some(index)
        };
        let other = || {
            let fitting = waiters().filter(|(_, waiter)| self.fits(waiter, now));
            fitting.min_by_key(|(_, waiter)| waiter.ticket).map(|(index, _)| index)
        };
        bulk().or_else(|| self.forced(now)).or_else(starting).or_else(due).or_else(other)
    }
}

/// Whether a piece of bulk work goes at any time that takes `piece_s` seconds while `owed_s` are owed.
pub(super) fn is_forced(owed_s: f64, piece_s: f64) -> bool {
    owed_s >= (piece_s + FORCED_S).min(MAX_CREDIT_S)
}

/// The arbiters of the devices of a process, by the names of devices that were opened.
#[derive(Debug, Default)]
pub struct DeviceArbiters(Mutex<BTreeMap<String, Arc<DeviceArbiter>>>);

impl DeviceArbiters {
    /// The arbiter of a device, the same for all engines. `device` is [`ExecutorProfile::device`]: engines that chose the
    /// device themselves share it with those that were told to use it.
    ///
    /// [`ExecutorProfile::device`]: crate::engine::ExecutorProfile::device
    pub fn of(&self, device: &str) -> Arc<DeviceArbiter> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(known.entry(device.to_owned()).or_default())
    }

    /// Whether live streams play on a device.
    pub(in crate::engine) fn have_streams(&self) -> bool {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().any(|arbiter| arbiter.has_streams())
    }
}

/// Grants a device to one step at a time.
#[derive(Debug, Default)]
pub struct DeviceArbiter {
    state: Mutex<State>,
}

impl DeviceArbiter {
    /// An arbiter of an idle device.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Whether live streams play.
    pub(in crate::engine) fn has_streams(&self) -> bool {
        self.lock().members.values().any(|load| !load.streams.is_empty())
    }

    /// Adds an engine to the device.
    pub(in crate::engine) fn join(self: &Arc<Self>) -> Arc<Member> {
        let mut state = self.lock();
        state.next_member += 1;
        let id = state.next_member;
        state.members.insert(id, EngineLoad::default());
        Arc::new(Member { arbiter: Arc::clone(self), id })
    }

    /// Ignores poisoning: every statement leaves the state consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a waiter has its turn. Cancel-safe.
    async fn granted(self: &Arc<Self>, mut turn: oneshot::Receiver<Turn>) -> Turn {
        loop {
            self.dispatch();
            tokio::select! {
                biased;
                // The sender lives in the state until it sends.
                Ok(turn) = &mut turn => return turn,
                // With time a step becomes due, or is covered.
                () = tokio::time::sleep(RECHECK) => {}
            }
        }
    }

    /// Grants the device, if it is free, to the next waiter that may have it.
    fn dispatch(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = Instant::now();
        state.accrue(now);
        let is_known = state.ended.is_none() || state.idle_since.is_none_or(|since| now >= since + GRACE);
        if state.is_busy || !is_known {
            return;
        }
        while let Some(index) = state.next(now) {
            let pays_all = state.forced(now) == Some(index) && !state.fits(&state.waiting[index], now);
            let Waiter { ticket, member, request, since, granted } = state.waiting.remove(index);
            let arbiter = Some(Arc::clone(self));
            let turn =
                Turn { arbiter, ticket, member, request, since, pays_all, rests: false, started_at: now };
            match granted.send(turn) {
                Ok(()) => {
                    state.is_busy = true;
                    state.free_at = Some(now + request.expected);
                    return;
                }
                // It has left meanwhile, and the next one goes.
                Err(mut unused) => unused.arbiter = None,
            }
        }
    }
}

/// An engine of a device.
#[derive(Debug)]
pub(in crate::engine) struct Member {
    arbiter: Arc<DeviceArbiter>,
    id: u64,
}

impl Member {
    /// Waits until the device is granted. Cancel-safe.
    pub(in crate::engine) async fn turn(&self, request: TurnRequest) -> Turn {
        let (granted, turn) = oneshot::channel();
        {
            let mut state = self.arbiter.lock();
            let since = Instant::now();
            state.accrue(since);
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.push(Waiter { ticket, member: self.id, request, since, granted });
            state.has_told(self.id, |ended| ended.has_asked = true);
        }
        self.arbiter.granted(turn).await
    }

    /// Publishes what the engine's live streams need, and whether it has nothing to do.
    pub(super) fn set_load(&self, load: EngineLoad, is_idle: bool) {
        let mut state = self.arbiter.lock();
        state.accrue(Instant::now());
        state.members.insert(self.id, load);
        state.has_told(self.id, |ended| {
            ended.has_load = true;
            ended.has_asked |= is_idle;
        });
        drop(state);
        self.arbiter.dispatch();
    }

    /// Publishes deadlines, if they are earlier than those published before.
    pub(super) fn bring_forward(&self, dues: Vec<Due>) {
        let mut state = self.arbiter.lock();
        let first = |dues: &[Due]| dues.first().map(|due| due.at);
        if let Some(load) = state.members.get_mut(&self.id)
            && (load.dues.is_empty() || first(&dues) < first(&load.dues))
        {
            load.dues = dues;
        }
        drop(state);
        self.arbiter.dispatch();
    }

    /// Seconds of the device that are owed to bulk work of this engine: what another one's waits for is kept for that.
    pub(super) fn own_credit_s(&self) -> f64 {
        let mut state = self.arbiter.lock();
        state.accrue(Instant::now());
        let others =
            state.waiting.iter().filter(|waiter| !waiter.request.is_live && waiter.member != self.id);
        let kept = others.map(|waiter| waiter.request.least().as_secs_f64()).fold(0.0, f64::max);
        (state.credit_s - kept).max(0.0)
    }

    /// Notes that a step took so much longer than was counted on.
    pub(super) fn note_pause(&self, length: Duration) {
        self.arbiter.lock().pauses.record(Instant::now(), length);
    }

    /// The longest pause of the device that is to be expected.
    pub(super) fn longest_pause(&self) -> Duration {
        self.arbiter.lock().pauses.longest(Instant::now())
    }

    /// The longest pause of the device in the last minutes: streams begin ahead of another one.
    pub(super) fn recent_pause(&self) -> Duration {
        self.arbiter.lock().pauses.longest_recent(Instant::now())
    }

    /// The other engines of the device.
    pub(super) fn others(&self) -> Others {
        let state = self.arbiter.lock();
        let (dues, piece) = (state.dues(Some(self.id)), state.piece_of_others(self.id));
        let mut others = Others { dues, piece, ..Others::default() };
        let mut longest_s: f64 = 0.0;
        for (_, load) in state.members.iter().filter(|(id, _)| **id != self.id) {
            others.streams.extend(&load.streams);
            others.held.extend(&load.held);
            longest_s = longest_s.max(load.step_s);
            others.blocking_s += load.step_s;
            others.variance += load.variance;
        }
        others.blocking_s += longest_s;
        others
    }

    /// The state of the device.
    pub(super) fn device(&self) -> DeviceState {
        let mut state = self.arbiter.lock();
        state.accrue(Instant::now());
        let (bulk_owed_s, bulk_piece_s) = (state.credit_s, state.bulk_piece().as_secs_f64());
        DeviceState { has_bulk: state.has_bulk(), bulk_owed_s, bulk_piece_s, free_at: state.free_at }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut state = self.arbiter.lock();
        state.members.remove(&self.id);
        state.ended = state.ended.filter(|ended| ended.member != self.id);
        drop(state);
        self.arbiter.dispatch();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::sleep;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn bulk(predicted: Duration) -> TurnRequest {
        TurnRequest { predicted, is_checked: true, ..TurnRequest::default() }
    }

    fn due(at: Instant) -> Due {
        Due { at, work: Duration::ZERO }
    }

    fn live(in_ms: u64) -> TurnRequest {
        TurnRequest { due: Some(due(Instant::now() + ms(in_ms))), is_live: true, ..bulk(ms(10)) }
    }

    /// Queues the requests of one engine each while the device is busy, and returns the order of their turns.
    async fn order(requests: Vec<TurnRequest>) -> Vec<usize> {
        let arbiter = DeviceArbiter::new();
        let holder = arbiter.join();
        let taken = holder.turn(bulk(ms(1))).await;
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for (index, request) in requests.into_iter().enumerate() {
            let (member, sender) = (arbiter.join(), sender.clone());
            tokio::spawn(async move {
                let _turn = member.turn(request).await;
                sender.send(index).unwrap();
                sleep(request.predicted).await;
            });
            tokio::task::yield_now().await;
        }
        drop((taken, sender));
        let mut turns = Vec::new();
        while let Some(index) = order.recv().await {
            turns.push(index);
        }
        turns
    }

    #[test]
    fn engines_of_one_opened_device_share_its_arbiter() {
        let arbiters = DeviceArbiters::default();
        assert!(Arc::ptr_eq(&arbiters.of("metal:0"), &arbiters.of("metal:0")));
        assert!(!Arc::ptr_eq(&arbiters.of("metal:0"), &arbiters.of("cpu")));
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_known_whether_streams_play_on_a_device() {
        let arbiters = DeviceArbiters::default();
        let engines = [arbiters.of("metal:0").join(), arbiters.of("cpu").join()];
        assert!(!arbiters.have_streams());
        let stream = StreamLoad { utilisation: 0.1, ends_at: Instant::now() };
        engines[1].set_load(EngineLoad { streams: vec![stream], ..EngineLoad::default() }, false);
        assert!(arbiters.have_streams() && !arbiters.of("metal:0").has_streams());
        drop(engines);
        assert!(!arbiters.have_streams(), "its engine has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn turns_of_waiters_that_have_left_are_passed_on_at_once() {
        const LEFT: usize = 100_000;
        let arbiter = DeviceArbiter::new();
        let (holder, waiting) = (arbiter.join(), arbiter.join());
        let taken = holder.turn(bulk(ms(1))).await;
        {
            let mut state = arbiter.lock();
            for ticket in 0..LEFT as u64 {
                let (granted, _) = oneshot::channel();
                let (request, since) = (bulk(ms(1)), Instant::now());
                state.waiting.push(Waiter { ticket, member: waiting.id, request, since, granted });
            }
            state.next_ticket = LEFT as u64;
        }
        drop(taken);
        assert!(waiting.turn(bulk(ms(1))).now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn due_steps_go_first_by_their_deadline_and_others_in_order() {
        let requests = vec![bulk(ms(10)), live(5_000), live(300), bulk(ms(10)), live(100)];
        assert_eq!(order(requests).await, [4, 2, 0, 1, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn bulk_work_that_does_not_fit_before_another_engines_stream_waits() {
        let arbiter = DeviceArbiter::new();
        let (speech, transcription) = (arbiter.join(), arbiter.join());
        let begun = Instant::now();
        let load = |in_ms| EngineLoad { dues: vec![due(begun + ms(in_ms))], ..EngineLoad::default() };
        speech.set_load(load(100), false);
        let encoder = tokio::spawn(async move {
            let _turn = transcription.turn(bulk(ms(400))).await;
            begun.elapsed()
        });
        sleep(ms(20)).await;
        // The stream is served and is then half a second ahead.
        let turn =
            speech.turn(TurnRequest { due: Some(due(begun + ms(100))), is_live: true, ..bulk(ms(50)) }).await;
        sleep(ms(50)).await;
        drop(turn);
        speech.set_load(load(600), true);
        assert_eq!(encoder.await.unwrap(), ms(70));
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_starts_waits_for_those_that_play_and_comes_before_bulk_work() {
        let starting = |predicted| TurnRequest { is_live: true, ..bulk(predicted) };
        // A start of 90 ms ends too late for the stream that is due in 60, and fits after it.
        assert_eq!(order(vec![bulk(ms(10)), starting(ms(90)), live(60)]).await, [2, 1, 0]);
        assert_eq!(order(vec![bulk(ms(10)), starting(ms(20)), live(60)]).await, [1, 2, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn deadlines_of_several_engines_are_met_together() {
        let arbiter = DeviceArbiter::new();
        let begun = Instant::now();
        let members = [arbiter.join(), arbiter.join()];
        // Each alone leaves 60 ms, both together 20.
        for member in &members {
            let due = Due { at: begun + ms(100), work: ms(40) };
            member.set_load(EngineLoad { dues: vec![due], ..EngineLoad::default() }, true);
        }
        assert_eq!(arbiter.join().others().latest_start(), Some(begun + ms(20)));
        assert_eq!(members[0].others().latest_start(), Some(begun + ms(60)));
    }

    #[tokio::test(start_paused = true)]
    async fn the_device_is_kept_until_the_streams_of_a_step_are_known_again() {
        let arbiter = DeviceArbiter::new();
        let (speech, transcription) = (arbiter.join(), arbiter.join());
        let turn = speech.turn(TurnRequest { is_live: true, ..bulk(ms(50)) }).await;
        let encoder = tokio::spawn(async move { drop(transcription.turn(bulk(ms(400))).await) });
        tokio::task::yield_now().await;
        let waits = || arbiter.lock().waiting.len();
        drop(turn);
        assert_eq!(waits(), 1, "the first chunk of a stream may leave with the end of the step");
        let begins = vec![due(Instant::now() + ms(200))];
        speech.set_load(EngineLoad { dues: begins, ..EngineLoad::default() }, false);
        assert_eq!(waits(), 1);
        speech.set_load(EngineLoad::default(), true);
        assert_eq!(waits(), 0);
        encoder.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn bulk_work_gets_its_share_and_no_more_while_streams_are_always_due() {
        let arbiter = DeviceArbiter::new();
        let transcription = arbiter.join();
        let begun = Instant::now();
        // One of two streams always waits, a tenth of a second before its step is due.
        for _ in 0..2 {
            let speech = arbiter.join();
            tokio::spawn(async move {
                while begun.elapsed() < ms(20_000) {
                    let turn = speech.turn(live(100)).await;
                    sleep(ms(50)).await;
                    drop(turn);
                    speech.set_load(EngineLoad::default(), false);
                }
            });
        }
        let mut used = Duration::ZERO;
        while begun.elapsed() < ms(20_000) {
            let turn = transcription.turn(bulk(ms(40))).await;
            sleep(ms(40)).await;
            used += ms(40);
            drop(turn);
        }
        let share = used.as_secs_f64() / 20.0;
        assert!((0.07..0.12).contains(&share), "{share}");
    }

    /// An engine whose stream is 1.6 s ahead at any time, as one that is read as slowly as it plays.
    fn plays_on(arbiter: &Arc<DeviceArbiter>) {
        let speech = arbiter.join();
        let tell = move || {
            let dues = vec![due(Instant::now() + ms(1_600))];
            speech.set_load(EngineLoad { dues, ..EngineLoad::default() }, true);
        };
        tell();
        tokio::spawn(async move {
            loop {
                sleep(ms(50)).await;
                tell();
            }
        });
    }

    #[tokio::test(start_paused = true)]
    async fn bulk_work_that_never_fits_goes_once_too_much_is_owed_to_it_and_is_owed_nothing_then() {
        let arbiter = DeviceArbiter::new();
        plays_on(&arbiter);
        let transcription = arbiter.join();
        let begun = Instant::now();
        for turns in 1..4 {
            let turn = transcription.turn(bulk(ms(1_700)));
            let turn = tokio::time::timeout(ms(120_000), turn).await.expect("it is not put off without end");
            sleep(ms(1_700)).await;
            drop(turn);
            let state = transcription.device();
            assert!(state.bulk_owed_s < 0.1, "{state:?}");
            // A share of the time, as for work that fits, and FORCED_S.
            assert!(begun.elapsed() > turns * ms(37_000), "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_owed_to_bulk_work_that_gave_up_is_forgotten() {
        let arbiter = DeviceArbiter::new();
        plays_on(&arbiter);
        let cloning = arbiter.join();
        // As a client that leaves while its voice waits to be cloned.
        let left = tokio::time::timeout(ms(30_000), cloning.turn(bulk(ms(5_000)))).await;
        assert!(left.is_err());
        let state = cloning.device();
        assert!(!state.has_bulk && state.bulk_owed_s > 2.5, "{state:?}");
        sleep(ms(5_000)).await;
        assert!(cloning.device().bulk_owed_s < 0.1, "{:?}", cloning.device());
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_never_fits_goes_once_it_is_late() {
        let arbiter = DeviceArbiter::new();
        plays_on(&arbiter);
        let (chat, captions) = (arbiter.join(), arbiter.join());
        let begun = Instant::now();
        let starts = TurnRequest { is_live: true, ..bulk(ms(2_000)) };
        let promised = TurnRequest { promised: Some(begun + ms(3_000)), ..starts };
        let turn = tokio::time::timeout(ms(60_000), chat.turn(promised)).await.expect("it is late");
        let late = begun.elapsed() - ms(3_000);
        assert!((MAX_LATE..MAX_LATE + ms(100)).contains(&late), "{late:?}");
        drop(turn);
        chat.set_load(EngineLoad::default(), true);
        // Nothing was promised to a window of live audio.
        let turn = tokio::time::timeout(ms(60_000), captions.turn(starts)).await;
        turn.expect("it gets its share");
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_that_asks_when_it_is_late_waits_until_streams_could_get_ahead() {
        let arbiter = DeviceArbiter::new();
        plays_on(&arbiter);
        let (chat, other) = (arbiter.join(), arbiter.join());
        sleep(ms(5_000)).await;
        let (begun, promised) = (Instant::now(), Some(Instant::now() - ms(4_000)));
        let starts = TurnRequest { is_live: true, promised, ..bulk(ms(2_000)) };
        let turn = tokio::spawn(async move {
            let piece = || chat.others().piece;
            assert_eq!(piece(), ms(0));
            drop(chat.turn(starts).await);
            begun.elapsed()
        });
        tokio::task::yield_now().await;
        assert_eq!(other.others().piece, ms(2_000), "others leave time for it");
        let waited = turn.await.unwrap();
        assert!((MAX_LATE..MAX_LATE + ms(100)).contains(&waited), "{waited:?}");
        assert_eq!(other.others().piece, ms(0));
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_that_was_published_last_counts_and_not_that_of_a_step_decided_before() {
        let arbiter = DeviceArbiter::new();
        let (holder, speech, chat) = (arbiter.join(), arbiter.join(), arbiter.join());
        let (taken, begun) = (holder.turn(bulk(ms(1))).await, Instant::now());
        let load = EngineLoad { dues: vec![due(begun + ms(250))], ..EngineLoad::default() };
        {
            let waits = speech.turn(live(50));
            tokio::pin!(waits);
            assert!(waits.as_mut().now_or_never().is_none());
            // The chunk that was due in 50 ms leaves.
            speech.set_load(load, false);
            assert_eq!(chat.others().latest_start(), Some(begun + ms(240)), "its step takes ten");
        }
        drop(taken);
    }

    /// A step of ten pieces of 100 ms, and its times.
    async fn in_pieces(member: Arc<Member>, is_live: bool) -> (Instant, TurnTimes) {
        let request = TurnRequest { piece: Some(ms(100)), is_live, ..bulk(ms(1_000)) };
        let turn = SharedTurn::new(&member, member.turn(request).await);
        for _ in 0..10 {
            turn.yield_point().await;
            sleep(ms(100)).await;
        }
        (Instant::now(), turn.end())
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_in_pieces_lets_streams_go_first_that_could_not_wait_for_all_of_it() {
        for is_live in [false, true] {
            let (arbiter, begun) = (DeviceArbiter::new(), Instant::now());
            let (speech, encoder) = (arbiter.join(), arbiter.join());
            let load = |in_ms| EngineLoad { dues: vec![due(begun + ms(in_ms))], ..EngineLoad::default() };
            speech.set_load(load(450), true);
            let encoder = tokio::spawn(in_pieces(encoder, is_live));
            sleep(ms(310)).await;
            let at_450 = TurnRequest { due: load(450).dues.first().copied(), is_live: true, ..bulk(ms(40)) };
            let turn = speech.turn(at_450).await;
            assert_eq!(begun.elapsed(), ms(400), "at the end of a piece");
            sleep(ms(40)).await;
            drop(turn);
            speech.set_load(load(5_000), true);
            let (ended, times) = encoder.await.unwrap();
            assert_eq!((ended - begun, times.rested), (ms(1_040), ms(40)));
            assert_eq!(times.longest_piece, ms(100));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_starts_within_a_piece_of_bulk_work_and_not_within_that_of_another_start() {
        for (is_live, waits) in [(false, ms(100)), (true, ms(1_000))] {
            let (arbiter, begun) = (DeviceArbiter::new(), Instant::now());
            let (speech, encoder) = (arbiter.join(), arbiter.join());
            let encoder = tokio::spawn(in_pieces(encoder, is_live));
            sleep(ms(10)).await;
            let turn = speech.turn(TurnRequest { is_live: true, ..bulk(ms(30)) }).await;
            assert_eq!(begun.elapsed(), waits);
            drop(turn);
            speech.set_load(EngineLoad::default(), true);
            encoder.await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_in_pieces_gets_its_share_and_pays_for_what_it_used() {
        let (arbiter, begun) = (DeviceArbiter::new(), Instant::now());
        plays_on(&arbiter);
        let speech = arbiter.join();
        tokio::spawn(async move {
            loop {
                let turn = speech.turn(live(400)).await;
                sleep(ms(50)).await;
                drop(turn);
                speech.set_load(EngineLoad::default(), false);
            }
        });
        let transcription = arbiter.join();
        for _ in 0..3 {
            in_pieces(Arc::clone(&transcription), false).await;
        }
        let share = 3.0 / begun.elapsed().as_secs_f64();
        assert!((0.07..0.13).contains(&share), "{share}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_step_that_hangs_while_it_rests_keeps_the_device_from_nobody() {
        let (arbiter, begun) = (DeviceArbiter::new(), Instant::now());
        let (speech, encoder) = (arbiter.join(), arbiter.join());
        let request = TurnRequest { piece: Some(ms(100)), ..bulk(ms(1_000)) };
        let turn = SharedTurn::new(&encoder, encoder.turn(request).await);
        let waits = tokio::spawn(async move { speech.turn(live(100)).await });
        tokio::task::yield_now().await;
        let resting = turn.clone();
        let rests = tokio::spawn(async move { resting.yield_point().await });
        sleep(ms(30)).await;
        let playing = waits.await.unwrap();
        assert_eq!((turn.rested(), turn.end().rested), (ms(30), ms(30)));
        drop(playing);
        rests.await.unwrap();
        let _turn = encoder.turn(bulk(ms(1))).await;
        assert!(begun.elapsed() < ms(100), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_gives_up_blocks_nobody() {
        let arbiter = DeviceArbiter::new();
        let member = arbiter.join();
        let taken = member.turn(bulk(ms(1))).await;
        let given_up = tokio::time::timeout(ms(5), member.turn(live(10))).await;
        assert!(given_up.is_err());
        drop(taken);
        let _turn = member.turn(bulk(ms(1))).await;
    }

    #[tokio::test]
    async fn one_step_has_the_device_at_a_time() {
        let arbiter = DeviceArbiter::new();
        let inside = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let tasks = (0..4).map(|_| {
            let (member, inside) = (arbiter.join(), Arc::clone(&inside));
            tokio::spawn(async move {
                for _ in 0..200 {
                    let _turn = member.turn(bulk(ms(0))).await;
                    assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    }
}
