//! Arbitration of a device that several engines share: one step at a time, live streams first, and it counts time.
//!
//! - Of steps whose audio runs out soon the one that must start first has the device.
//! - Other steps go in the order of their arrival, if their predicted time fits before the next such step must start.
//! - Bulk work is owed [`BULK_SHARE`] of the time that it waits. A piece that is owed and fits goes first.
//!
//! Waiting is asynchronous, so that it also works in simulated time. Must not know which sequences a step holds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

/// Share of the time that bulk work gets while live streams could use all of it.
pub const BULK_SHARE: f64 = 0.1;
/// A live step that must start within this time goes before others.
pub(super) const DUE_SOON: Duration = Duration::from_millis(500);
/// How often a waiter looks whether it may go.
const RECHECK: Duration = Duration::from_millis(10);
/// How long a device stays idle for an engine that is expected to ask again.
const GRACE: Duration = Duration::from_millis(5);
/// The most bulk work that is owed, in seconds of the device. A piece that fits nowhere runs then, so that none starves.
pub(super) const MAX_CREDIT_S: f64 = 10.0;

/// What a step asks for.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TurnRequest {
    /// When a step with live audio must start at the latest; `None` for bulk work.
    pub latest_start: Option<Instant>,
    /// Its predicted time, with a margin.
    pub predicted: Duration,
    /// The part of a live step's time that is bulk work.
    pub bulk: Duration,
    /// Whether the engine has checked that it fits before its own live streams must go on.
    pub is_checked: bool,
}

/// What an engine's live streams need of the device, as published after each of its steps.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct EngineLoad {
    /// When its next live step must start at the latest; `None` if no live stream can go on.
    pub(super) latest_start: Option<Instant>,
    /// What its streams must be ahead then, since they fall behind their players until they end.
    pub(super) behind: Duration,
    /// Device time per second for each live stream, and when the stream is expected to end.
    pub(super) streams: Vec<StreamLoad>,
    /// Whether it has bulk work.
    pub(super) has_bulk: bool,
}

/// The need of one live stream.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct StreamLoad {
    /// Seconds of the device for a second of audio.
    pub(super) utilisation: f64,
    /// When it is expected to end.
    pub(super) ends_at: Instant,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    member: u64,
    request: TurnRequest,
    granted: oneshot::Sender<Turn>,
}

#[derive(Debug, Default)]
struct State {
    is_busy: bool,
    /// When the last turn ended.
    idle_since: Option<Instant>,
    next_ticket: u64,
    next_member: u64,
    waiting: Vec<Waiter>,
    members: BTreeMap<u64, EngineLoad>,
    /// Seconds owed to bulk work, as of `accrued_at`.
    credit_s: f64,
    accrued_at: Option<Instant>,
}

impl State {
    /// Adds what bulk work earned since the last call: nothing while there is none.
    fn accrue(&mut self, now: Instant) {
        let since = self.accrued_at.replace(now).unwrap_or(now);
        let waits = self.waiting.iter().any(|waiter| waiter.request.latest_start.is_none());
        if waits || self.members.values().any(|load| load.has_bulk) {
            let earned = BULK_SHARE * now.saturating_duration_since(since).as_secs_f64();
            self.credit_s = (self.credit_s + earned).min(MAX_CREDIT_S);
        }
    }

    fn charge(&mut self, bulk: Duration) {
        self.credit_s = (self.credit_s - bulk.as_secs_f64()).max(0.0);
    }

    /// When the live streams of an engine must go on at the latest: as its waiting step says, or as it published.
    fn latest_start(&self, member: u64) -> Option<Instant> {
        let own = |waiter: &&Waiter| waiter.member == member;
        let waiting = self.waiting.iter().filter(own).filter_map(|waiter| waiter.request.latest_start).min();
        let load = self.members.get(&member)?;
        let at = waiting.or(load.latest_start)?;
        Some(at.checked_sub(load.behind).unwrap_or(at))
    }

    /// When the live streams of other engines, or of any for work outside of steps, must go on.
    fn others(&self, waiter: &Waiter) -> impl Iterator<Item = Instant> {
        let ids = self.members.keys().filter(move |id| !waiter.request.is_checked || **id != waiter.member);
        ids.filter_map(|id| self.latest_start(*id))
    }

    /// Whether a step ends before then.
    fn fits(&self, waiter: &Waiter, now: Instant) -> bool {
        self.others(waiter).all(|at| now + waiter.request.predicted <= at)
    }

    /// Index of the waiter that has the next turn.
    fn next(&self, now: Instant) -> Option<usize> {
        let waiters = || self.waiting.iter().enumerate();
        let covered = |waiter: &Waiter| {
            let is_owed = self.credit_s > 0.0 && self.credit_s >= waiter.request.predicted.as_secs_f64();
            (is_owed && self.fits(waiter, now)) || self.credit_s >= MAX_CREDIT_S
        };
        let bulk = waiters().filter(|(_, waiter)| waiter.request.latest_start.is_none());
        let bulk = bulk.min_by_key(|(_, waiter)| waiter.ticket).filter(|(_, waiter)| covered(waiter));
        let due = || {
            let starts = waiters().filter_map(|(index, waiter)| Some((waiter.request.latest_start?, index)));
            let (at, index) = starts.filter(|(at, _)| *at <= now + DUE_SOON).min()?;
            let waiter = &self.waiting[index];
            let is_first = || self.others(waiter).all(|other| at <= other);
            let is_idle = || self.idle_since.is_some_and(|since| now >= since + GRACE);
            // The engine whose step has just ended may be more urgent, and asks again at once.
            (is_first() || self.fits(waiter, now) || is_idle()).then_some(index)
        };
        let other = || {
            let fitting = waiters().filter(|(_, waiter)| self.fits(waiter, now));
            fitting.min_by_key(|(_, waiter)| waiter.ticket).map(|(index, _)| index)
        };
        bulk.map(|(index, _)| index).or_else(due).or_else(other)
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

    /// Adds an engine to the device.
    pub(super) fn join(self: &Arc<Self>) -> Arc<Member> {
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

    /// Grants the device, if it is free, to the next waiter that may have it.
    fn dispatch(self: &Arc<Self>) {
        let mut state = self.lock();
        let now = Instant::now();
        state.accrue(now);
        if state.is_busy {
            return;
        }
        let Some(index) = state.next(now) else { return };
        let waiter = state.waiting.remove(index);
        state.is_busy = true;
        drop(state);
        let turn = Turn { arbiter: Arc::clone(self), request: waiter.request, started_at: now };
        // A waiter that is gone returns its turn, which ends by being dropped.
        drop(waiter.granted.send(turn));
    }
}

/// An engine of a device.
#[derive(Debug)]
pub(super) struct Member {
    arbiter: Arc<DeviceArbiter>,
    id: u64,
}

impl Member {
    /// Waits until the device is granted. Cancel-safe.
    pub(super) async fn turn(&self, request: TurnRequest) -> Turn {
        let (granted, mut turn) = oneshot::channel();
        {
            let mut state = self.arbiter.lock();
            state.accrue(Instant::now());
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waiting.push(Waiter { ticket, member: self.id, request, granted });
        }
        loop {
            self.arbiter.dispatch();
            tokio::select! {
                biased;
                // The sender lives in the state until it sends.
                Ok(turn) = &mut turn => return turn,
                // With time a step becomes due, or is covered.
                () = tokio::time::sleep(RECHECK) => {}
            }
        }
    }

    /// Publishes what the engine's live streams need.
    pub(super) fn set_load(&self, load: EngineLoad) {
        let mut state = self.arbiter.lock();
        state.accrue(Instant::now());
        state.members.insert(self.id, load);
        drop(state);
        self.arbiter.dispatch();
    }

    /// Seconds of the device that are owed to bulk work.
    pub(super) fn bulk_credit_s(&self) -> f64 {
        let mut state = self.arbiter.lock();
        state.accrue(Instant::now());
        state.credit_s
    }

    /// When the live streams of the other engines must go on at the latest.
    pub(super) fn others_latest_start(&self) -> Option<Instant> {
        let state = self.arbiter.lock();
        let others = state.members.iter().filter(|(id, _)| **id != self.id);
        others.filter_map(|(id, _)| state.latest_start(*id)).min()
    }

    /// The live streams of the other engines.
    pub(super) fn other_streams(&self) -> Vec<StreamLoad> {
        let state = self.arbiter.lock();
        let others = state.members.iter().filter(|(id, _)| **id != self.id);
        others.flat_map(|(_, load)| load.streams.iter().copied()).collect()
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.arbiter.lock().members.remove(&self.id);
        self.arbiter.dispatch();
    }
}

/// Exclusive use of the device until dropped.
#[derive(Debug)]
pub(super) struct Turn {
    arbiter: Arc<DeviceArbiter>,
    request: TurnRequest,
    started_at: Instant,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.arbiter.lock();
        state.is_busy = false;
        state.idle_since = Some(Instant::now());
        let is_bulk = self.request.latest_start.is_none();
        state.charge(if is_bulk { self.started_at.elapsed() } else { self.request.bulk });
        drop(state);
        self.arbiter.dispatch();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn bulk(predicted: Duration) -> TurnRequest {
        TurnRequest { predicted, is_checked: true, ..TurnRequest::default() }
    }

    fn live(in_ms: u64) -> TurnRequest {
        TurnRequest { latest_start: Some(Instant::now() + ms(in_ms)), ..bulk(ms(10)) }
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
        let load = |in_ms| EngineLoad { latest_start: Some(begun + ms(in_ms)), ..EngineLoad::default() };
        speech.set_load(load(100));
        let encoder = tokio::spawn(async move {
            let _turn = transcription.turn(bulk(ms(400))).await;
            begun.elapsed()
        });
        sleep(ms(20)).await;
        // The stream is served and is then half a second ahead.
        let turn = speech.turn(TurnRequest { latest_start: Some(begun + ms(100)), ..bulk(ms(50)) }).await;
        sleep(ms(50)).await;
        speech.set_load(load(600));
        drop(turn);
        assert_eq!(encoder.await.unwrap(), ms(70));
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
