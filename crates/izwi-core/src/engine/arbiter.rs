//! One device, one step at a time: the engines that share a device take turns at it.
//!
//! Knows urgencies and turns. Which sequences a step holds is its engine's business.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::executor::{ExecutorError, ExecutorProfile, ItemResult, ModelExecutor, RequestPreparer, StepPlan};
use super::types::{SequenceId, TaskType};

/// Turns that others may take before a step goes first whatever its urgency.
const PATIENCE: u32 = 4;

/// How much hurry a step is in, most first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// Somebody's audio is about to run out.
    AudioDue,
    /// Text that somebody waits for grows.
    Text,
    /// Prompts, recordings, and audio that is well ahead of its playback.
    Ahead,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    urgency: Urgency,
    passed_over: u32,
}

#[derive(Debug, Default)]
struct Queue {
    busy: bool,
    tickets: u64,
    waiting: Vec<Waiter>,
}

impl Queue {
    /// The ticket whose turn is next.
    fn next(&self) -> Option<u64> {
        let rank = |waiter: &&Waiter| {
            let has_waited = waiter.passed_over >= PATIENCE;
            let urgency = if has_waited { Urgency::AudioDue } else { waiter.urgency };
            (!has_waited, urgency, waiter.ticket)
        };
        self.waiting.iter().min_by_key(rank).map(|waiter| waiter.ticket)
    }
}

/// Hands a device to one step after another.
#[derive(Debug, Default)]
pub struct DeviceArbiter {
    queue: Mutex<Queue>,
    freed: Condvar,
}

/// The device, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    arbiter: &'a DeviceArbiter,
}

impl DeviceArbiter {
    /// An arbiter of a device that nobody uses yet.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits, blocking, for the device.
    pub fn turn(&self, urgency: Urgency) -> Turn<'_> {
        let mut queue = self.lock();
        let ticket = queue.tickets;
        queue.tickets += 1;
        queue.waiting.push(Waiter { ticket, urgency, passed_over: 0 });
        while queue.busy || queue.next() != Some(ticket) {
            queue = self.freed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue.busy = true;
        queue.waiting.retain(|waiter| waiter.ticket != ticket);
        for waiter in &mut queue.waiting {
            waiter.passed_over += 1;
        }
        Turn { arbiter: self }
    }

    /// The queue is whole between any two statements that hold it, so that a panic elsewhere does not spoil it.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.arbiter.lock().busy = false;
        self.arbiter.freed.notify_all();
    }
}

/// An executor that waits for its turn before it touches the device.
pub struct ArbitratedExecutor {
    inner: Box<dyn ModelExecutor>,
    arbiter: Arc<DeviceArbiter>,
    speaks: bool,
}

impl std::fmt::Debug for ArbitratedExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArbitratedExecutor").field("arbiter", &self.arbiter).finish_non_exhaustive()
    }
}

impl ArbitratedExecutor {
    /// `inner`, on a device that `arbiter` hands out.
    pub fn new(inner: Box<dyn ModelExecutor>, arbiter: Arc<DeviceArbiter>) -> Self {
        let speaks = inner.profile().tasks.iter().any(|task| *task != TaskType::Asr);
        Self { inner, arbiter, speaks }
    }

    fn urgency(&self, plan: &StepPlan) -> Urgency {
        match (self.speaks, plan.schedule.has_due, plan.schedule.decode_requests.is_empty()) {
            (true, true, _) => Urgency::AudioDue,
            (false, _, false) => Urgency::Text,
            (true, false, _) | (false, _, true) => Urgency::Ahead,
        }
    }
}

impl ModelExecutor for ArbitratedExecutor {
    fn profile(&self) -> Arc<ExecutorProfile> {
        self.inner.profile()
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        self.inner.preparer()
    }

    fn initialize(&mut self) -> Result<(), ExecutorError> {
        let _turn = self.arbiter.turn(Urgency::Ahead);
        self.inner.initialize()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<Vec<ItemResult>, ExecutorError> {
        let _turn = self.arbiter.turn(self.urgency(plan));
        self.inner.execute(plan)
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        self.inner.release(sequences);
    }

    fn is_ready(&self) -> bool {
        self.inner.is_ready()
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Runs one waiter for each urgency while the device is taken, and gives the order of their turns.
    fn order(urgencies: &[Urgency]) -> Vec<usize> {
        let arbiter = DeviceArbiter::new();
        let taken = arbiter.turn(Urgency::Ahead);
        let (sender, order) = mpsc::channel();
        std::thread::scope(|scope| {
            for (index, &urgency) in urgencies.iter().enumerate() {
                let (sender, arbiter) = (sender.clone(), &arbiter);
                scope.spawn(move || {
                    let _turn = arbiter.turn(urgency);
                    sender.send(index).unwrap();
                });
                while arbiter.lock().waiting.len() <= index {
                    std::thread::yield_now();
                }
            }
            drop(taken);
        });
        drop(sender);
        order.iter().collect()
    }

    #[test]
    fn the_urgent_go_first_and_equals_in_order() {
        use Urgency::{Ahead, AudioDue, Text};
        assert_eq!(order(&[Ahead, Text, AudioDue, Text, AudioDue]), [2, 4, 1, 3, 0]);
    }

    #[test]
    fn nobody_is_passed_over_for_ever() {
        let mut urgencies = vec![Urgency::Ahead];
        urgencies.extend([Urgency::AudioDue; 8]);
        assert_eq!(order(&urgencies), [1, 2, 3, 4, 0, 5, 6, 7, 8]);
    }

    #[test]
    fn one_has_the_device_at_a_time() {
        let arbiter = DeviceArbiter::new();
        let inside = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let _turn = arbiter.turn(Urgency::Text);
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
        });
    }
}
