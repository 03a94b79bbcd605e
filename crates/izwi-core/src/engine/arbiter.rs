//! Arbitration of a device that several engines share: one step at a time, the most urgent first.
//!
//! Must not know which sequences a step holds.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::executor::{ExecutorError, ExecutorProfile, ItemResult, ModelExecutor, RequestPreparer, StepPlan};
use super::types::SequenceId;
use izwi_types::Task;

/// Turns of others after which a step has the highest urgency.
const PATIENCE: u32 = 4;

/// Urgency of a step, the highest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// The audio of a stream runs out soon.
    AudioDue,
    /// Text is being generated.
    Text,
    /// Prompts, recordings, and streams with enough audio ahead of playback.
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
    /// The ticket of the next turn.
    fn next(&self) -> Option<u64> {
        let rank = |waiter: &&Waiter| {
            let has_waited = waiter.passed_over >= PATIENCE;
            let urgency = if has_waited { Urgency::AudioDue } else { waiter.urgency };
            (!has_waited, urgency, waiter.ticket)
        };
        self.waiting.iter().min_by_key(rank).map(|waiter| waiter.ticket)
    }
}

/// Grants a device to one step at a time.
#[derive(Debug, Default)]
pub struct DeviceArbiter {
    queue: Mutex<Queue>,
    freed: Condvar,
}

/// Exclusive use of the device until dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    arbiter: &'a DeviceArbiter,
}

impl DeviceArbiter {
    /// An arbiter of an idle device.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Blocks until the device is granted.
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

    /// Ignores poisoning: every statement leaves the queue consistent.
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

/// An executor that waits for its turn before each use of the device.
pub struct ArbitratedExecutor {
    inner: Box<dyn ModelExecutor>,
    arbiter: Arc<DeviceArbiter>,
    has_audio: bool,
}

impl std::fmt::Debug for ArbitratedExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArbitratedExecutor").field("arbiter", &self.arbiter).finish_non_exhaustive()
    }
}

impl ArbitratedExecutor {
    /// `inner`, on the device of `arbiter`.
    pub fn new(inner: Box<dyn ModelExecutor>, arbiter: Arc<DeviceArbiter>) -> Self {
        let has_audio = inner.profile().info.tasks.iter().any(|task| *task != Task::Asr);
        Self { inner, arbiter, has_audio }
    }

    fn urgency(&self, plan: &StepPlan) -> Urgency {
        match (self.has_audio, plan.schedule.has_due, plan.schedule.decode_requests.is_empty()) {
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

    fn simulated_time(&mut self, plan: &StepPlan) -> Option<Duration> {
        self.inner.simulated_time(plan)
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

    /// Queues one waiter per urgency while the device is busy, and returns the order of their turns.
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
    fn urgent_steps_go_first_and_equals_in_order() {
        use Urgency::{Ahead, AudioDue, Text};
        assert_eq!(order(&[Ahead, Text, AudioDue, Text, AudioDue]), [2, 4, 1, 3, 0]);
    }

    #[test]
    fn no_step_starves() {
        let mut urgencies = vec![Urgency::Ahead];
        urgencies.extend([Urgency::AudioDue; 8]);
        assert_eq!(order(&urgencies), [1, 2, 3, 4, 0, 5, 6, 7, 8]);
    }

    #[test]
    fn one_step_has_the_device_at_a_time() {
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
