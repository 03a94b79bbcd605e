//! A gate that blocks steps of the simulated executor, so that tests order events without clocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use izwi_core::engine::executor::StepPlan;
use izwi_core::engine::executor::simulated::Script;

use crate::GUARD;

/// Releases executor steps one by one, or all. Dropping it releases everything.
#[derive(Debug)]
pub struct Gate {
    tickets: mpsc::Sender<usize>,
    seen: Arc<AtomicUsize>,
}

impl Gate {
    /// A gate, and a script that waits at it before each step for which `holds` is true.
    pub fn new(holds: impl Fn(&StepPlan) -> bool + Send + 'static) -> (Self, Script) {
        let (tickets, turnstile) = mpsc::channel::<usize>();
        let seen = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&seen);
        let mut left = 0usize;
        let script = move |plan: &StepPlan| {
            counter.fetch_add(1, Ordering::SeqCst);
            if holds(plan) && left == 0 {
                // A gate that stays closed must not hang the test.
                left = turnstile.recv_timeout(GUARD).unwrap_or(usize::MAX);
            }
            if holds(plan) {
                left = left.saturating_sub(1);
            }
            None
        };
        (Self { tickets, seen }, Box::new(script))
    }

    /// Releases `steps` steps.
    pub fn admit(&self, steps: usize) {
        // A stopped executor does not wait.
        let _ = self.tickets.send(steps);
    }

    /// Releases all further steps.
    pub fn open(&self) {
        self.admit(usize::MAX);
    }

    /// Steps that reached the gate.
    pub fn arrived(&self) -> usize {
        self.seen.load(Ordering::SeqCst)
    }
}
