//! Turns of a device, which a step may give up at its yield points while others are more urgent.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{DeviceArbiter, Ended, Member, TurnRequest, Waiter};

/// Exclusive use of the device until dropped.
#[derive(Debug)]
pub(in crate::engine) struct Turn {
    /// `None` for a turn that nobody took.
    pub(super) arbiter: Option<Arc<DeviceArbiter>>,
    pub(super) ticket: u64,
    pub(super) member: u64,
    pub(super) request: TurnRequest,
    pub(super) since: Instant,
    /// Whether streams that play waited for it: bulk work is owed nothing more then.
    pub(super) pays_all: bool,
    /// Whether its step goes on in another turn.
    pub(super) rests: bool,
    pub(super) started_at: Instant,
}

impl Turn {
    /// Whether others are more urgent than the next piece of its step. It waits for its next turn then.
    fn rest(&mut self) -> Option<oneshot::Receiver<Self>> {
        self.request.piece?;
        let arbiter = self.arbiter.as_ref()?;
        let mut state = arbiter.lock();
        if state.waiting.is_empty() {
            return None;
        }
        let now = Instant::now();
        state.accrue(now);
        if !self.request.is_live {
            state.charge(self.bulk(now));
        }
        self.request = self.request.after(now - self.started_at);
        self.started_at = now;
        let Self { ticket, member, request, since, .. } = *self;
        let (granted, turn) = oneshot::channel();
        state.waiting.push(Waiter { ticket, member, request, since, granted });
        let own = state.waiting.len() - 1;
        self.rests = state.next(now) != Some(own);
        if !self.rests {
            state.waiting.pop();
        }
        self.rests.then_some(turn)
    }

    /// What bulk work is charged for the time since the turn began.
    fn bulk(&self, now: Instant) -> Duration {
        match self.request.is_live {
            true => self.request.bulk,
            false if self.pays_all => Duration::MAX,
            false => now - self.started_at,
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(arbiter) = self.arbiter.take() else { return };
        let mut state = arbiter.lock();
        let now = Instant::now();
        (state.is_busy, state.free_at, state.idle_since) = (false, None, Some(now));
        if !self.rests {
            let ended = Ended { member: self.member, has_load: false, has_asked: false };
            let is_shared = state.members.len() > 1;
            state.ended = Some(ended).filter(|_| self.request.is_live && is_shared);
            state.charge(self.bulk(now));
        }
        drop(state);
        arbiter.dispatch();
    }
}

/// A turn that the thread of its step gives up at yield points, and takes again.
#[derive(Debug, Clone)]
pub(in crate::engine) struct SharedTurn(Arc<StepTurn>);

#[derive(Debug)]
struct StepTurn {
    arbiter: Arc<DeviceArbiter>,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// `None` while its step rests, and after it has ended.
    turn: Option<Turn>,
    /// When the step began, went on after a rest, or yielded last.
    piece_began: Instant,
    longest_piece: Duration,
    rested: Duration,
    rests_since: Option<Instant>,
    has_ended: bool,
}

/// Where the time of a step went that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct TurnTimes {
    /// While others had the device.
    pub(in crate::engine) rested: Duration,
    /// Between two yield points at most.
    pub(in crate::engine) longest_piece: Duration,
}

impl SharedTurn {
    pub(in crate::engine) fn new(member: &Member, turn: Turn) -> Self {
        let held = Held {
            turn: Some(turn),
            piece_began: Instant::now(),
            longest_piece: Duration::ZERO,
            rested: Duration::ZERO,
            rests_since: None,
            has_ended: false,
        };
        Self(Arc::new(StepTurn { arbiter: Arc::clone(&member.arbiter), held: Mutex::new(held) }))
    }

    /// Lets others have the device first that are more urgent.
    pub(in crate::engine) async fn yield_point(&self) {
        if let Some(turn) = self.rest() {
            self.go_on(turn).await;
        }
    }

    /// Like [`Self::yield_point`], on a thread of the blocking pool.
    pub(in crate::engine) fn block_at_yield_point(&self) {
        if let Some(turn) = self.rest() {
            tokio::runtime::Handle::current().block_on(self.go_on(turn));
        }
    }

    /// Gives the turn up if others are more urgent.
    fn rest(&self) -> Option<oneshot::Receiver<Turn>> {
        let mut held = self.lock();
        let now = Instant::now();
        held.end_piece(now);
        let next = held.turn.as_mut()?.rest()?;
        (held.rests_since, held.turn) = (Some(now), None);
        Some(next)
    }

    async fn go_on(&self, turn: oneshot::Receiver<Turn>) {
        let turn = self.0.arbiter.granted(turn).await;
        let mut held = self.lock();
        let now = Instant::now();
        held.end_rest(now);
        held.piece_began = now;
        if !held.has_ended {
            held.turn = Some(turn);
        }
    }

    /// How long others have had the device since the step began.
    pub(in crate::engine) fn rested(&self) -> Duration {
        let held = self.lock();
        let rests = held.rests_since.map(|since| since.elapsed()).unwrap_or_default();
        held.rested + rests
    }

    /// Ends the turn, also of a step whose thread hangs.
    pub(in crate::engine) fn end(&self) -> TurnTimes {
        let mut held = self.lock();
        let now = Instant::now();
        held.end_piece(now);
        held.end_rest(now);
        (held.has_ended, held.turn) = (true, None);
        TurnTimes { rested: held.rested, longest_piece: held.longest_piece }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    fn end_piece(&mut self, now: Instant) {
        if self.turn.is_some() {
            self.longest_piece = self.longest_piece.max(now - self.piece_began);
            self.piece_began = now;
        }
    }

    fn end_rest(&mut self, now: Instant) {
        self.rested += self.rests_since.take().map(|since| now - since).unwrap_or_default();
    }
}
