//! Threads that wait for the next call: first spinning, then parked. One decoding step is hundreds of calls of a few
//! microseconds, and waking a thread takes as long as one of them.
//!
//! The calling thread always works too and waits only for threads that have begun: where the machine has fewer free
//! cores than there are threads, it does the work alone. No thread yields its core: alongside a busy program a thread that
//! yields loses a time slice, thousands of calls, where one that sleeps runs again when it is woken. Results do not depend on
//! which thread ran which task. Knows no kernel.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread without work spins before it parks.
const SPIN: Duration = Duration::from_micros(150);
/// Reads of the state between two reads of the clock.
const READS_PER_TICK: usize = 64;
/// Reads of the state before a caller that waits for the workers sleeps: one of them may have lost its core.
const READS_BEFORE_SLEEP: usize = 4096;

/// Runs `task(scratch, index)` for every index below `tasks` on at most `threads` threads, the calling one among
/// them; each makes its own scratch. A panic of a task resumes in the caller once no other thread runs a task.
pub(super) fn run_tasks<S>(
    workers: &'static Workers,
    tasks: usize,
    threads: usize,
    scratch: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, usize) + Sync,
) {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut own = None;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            task(own.get_or_insert_with(&scratch), index);
        }
    };
    let others = threads.min(tasks).saturating_sub(1);
    if others == 0 {
        return work();
    }
    let failure: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);
    workers.run(others, &|| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            next.store(tasks, Ordering::Relaxed);
            lock(&failure).get_or_insert(panic);
        }
    });
    if let Some(panic) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// Locks a mutex whose data a panic leaves valid, as for all locks of this module.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The work of one call: a closure on the stack of its caller.
#[derive(Clone, Copy)]
struct Call {
    work: *const (),
    /// Calls the closure behind `work`.
    enter: unsafe fn(*const ()),
}

/// Low bits of [`Workers::state`]: number of threads that run the call.
const RUNNING: u64 = (1 << 16) - 1;
/// Whether more threads may join.
const OPEN: u64 = 1 << 16;
/// Adds one to the number of the call.
const NEXT: u64 = 1 << 17;

/// Threads that start when a call first wants them, serve one call at a time, and never end.
pub(super) struct Workers {
    /// Number of the call, [`OPEN`], and [`RUNNING`].
    state: AtomicU64,
    /// Threads that the call wants.
    wanted: AtomicU64,
    /// Written by the caller that set `busy` while the state is not open and no thread runs; read by threads that run.
    call: UnsafeCell<Call>,
    /// Whether a call has the threads.
    busy: AtomicBool,
    /// Threads that were started.
    started: AtomicUsize,
    /// Held while threads start.
    starting: Mutex<()>,
    /// Threads that are parked, or about to be.
    parked: AtomicUsize,
    /// Held between the decision to park and the wait.
    parking: Mutex<()>,
    /// Wakes parked threads.
    wake: Condvar,
    /// Whether the caller sleeps until no thread runs its call.
    caller_sleeps: AtomicBool,
    /// Held between the caller's decision to sleep and the wait.
    sleeping: Mutex<()>,
    /// Wakes the caller.
    finished: Condvar,
}

// SAFETY: `call` is the only field that is not `Sync`; its comment says when it is written and read.
unsafe impl Sync for Workers {}

unsafe fn nothing(_: *const ()) {}

impl Workers {
    /// Starts no thread yet.
    pub(super) const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            call: UnsafeCell::new(Call { work: std::ptr::null(), enter: nothing }),
            busy: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            starting: Mutex::new(()),
            parked: AtomicUsize::new(0),
            parking: Mutex::new(()),
            wake: Condvar::new(),
            caller_sleeps: AtomicBool::new(false),
            sleeping: Mutex::new(()),
            finished: Condvar::new(),
        }
    }

    /// Runs `work`, which must not panic, on the calling thread and on up to `others` threads that join in time; on the
    /// calling thread alone while another call has the threads.
    fn run<F: Fn() + Sync>(&'static self, others: usize, work: &F) {
        /// # Safety
        /// `work` points to an `F` that lives until this returns.
        unsafe fn enter<F: Fn()>(work: *const ()) {
            (*work.cast::<F>())();
        }
        if self.busy.swap(true, Ordering::Acquire) {
            return work();
        }
        self.start(others);
        let call = Call { work: std::ptr::from_ref(work).cast(), enter: enter::<F> };
        // SAFETY: this call set `busy`, and the last one left the state closed with no thread running.
        unsafe { *self.call.get() = call };
        self.wanted.store(others as u64, Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed) / NEXT * NEXT;
        self.state.store(state.wrapping_add(NEXT) | OPEN, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.parking));
            (0..others).for_each(|_| self.wake.notify_one());
        }
        work();
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        // From here on this thread sees what the others wrote, and no thread reads `work`.
        let mut reads = 0;
        while self.state.load(Ordering::Acquire) & RUNNING > 0 {
            reads += 1;
            if reads < READS_BEFORE_SLEEP { std::hint::spin_loop() } else { self.sleep_until_finished() }
        }
        self.busy.store(false, Ordering::Release);
    }

    /// Sleeps until no thread runs the call, which is closed.
    fn sleep_until_finished(&self) {
        let mut sleeping = lock(&self.sleeping);
        self.caller_sleeps.store(true, Ordering::SeqCst);
        // The last thread ends its call before it reads `caller_sleeps`: one of the two sees the other.
        while self.state.load(Ordering::SeqCst) & RUNNING > 0 {
            sleeping = self.finished.wait(sleeping).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::Relaxed);
    }

    /// Starts threads until there are `count`, or the system refuses one.
    fn start(&'static self, count: usize) {
        if self.started.load(Ordering::Relaxed) >= count {
            return;
        }
        let _guard = lock(&self.starting);
        while self.started.load(Ordering::Relaxed) < count {
            let thread = std::thread::Builder::new().name("izwi-kernels".into());
            if thread.spawn(|| self.serve()).is_err() {
                return;
            }
            self.started.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Serves calls, without end.
    fn serve(&self) {
        let mut served = 0;
        loop {
            let state = self.next_call(served);
            if state & RUNNING >= self.wanted.load(Ordering::Relaxed) {
                served = state / NEXT;
                continue;
            }
            // Succeeds only while the call is the one just read, still open, with as many threads running.
            let joined = self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
            if joined.is_ok() {
                served = state / NEXT;
                // SAFETY: the call is not replaced and its closure not dropped while this thread counts as running.
                unsafe {
                    let Call { work, enter } = *self.call.get();
                    enter(work);
                }
                let before = self.state.fetch_sub(1, Ordering::SeqCst);
                if before & RUNNING == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
                    drop(lock(&self.sleeping));
                    self.finished.notify_one();
                }
            }
        }
    }

    /// Waits for an open call after the call `served`.
    fn next_call(&self, served: u64) -> u64 {
        let ready = |state: u64| state & OPEN > 0 && state / NEXT != served;
        loop {
            let since = Instant::now();
            while since.elapsed() < SPIN {
                for _ in 0..READS_PER_TICK {
                    let state = self.state.load(Ordering::Acquire);
                    if ready(state) {
                        return state;
                    }
                    std::hint::spin_loop();
                }
            }
            let parking = lock(&self.parking);
            self.parked.fetch_add(1, Ordering::SeqCst);
            // A caller opens its call before it reads `parked`: one of the two sees the other.
            if !ready(self.state.load(Ordering::SeqCst)) {
                // A woken thread spins for a while, even if the call is over by then: the next one comes soon.
                drop(self.wake.wait(parking).unwrap_or_else(PoisonError::into_inner));
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers() -> &'static Workers {
        Box::leak(Box::new(Workers::new()))
    }

    fn squares(workers: &'static Workers, tasks: usize, threads: usize) -> usize {
        let sum = AtomicUsize::new(0);
        run_tasks(
            workers,
            tasks,
            threads,
            || (),
            |(), index| {
                sum.fetch_add(index * index, Ordering::Relaxed);
            },
        );
        sum.into_inner()
    }

    #[test]
    fn every_task_runs_once_at_any_number_of_threads() {
        let workers = workers();
        for tasks in [0, 1, 2, 7, 100] {
            for threads in [0, 1, 2, 5, 40] {
                assert_eq!(
                    squares(workers, tasks, threads),
                    (0..tasks).map(|index| index * index).sum::<usize>()
                );
            }
        }
    }

    #[test]
    fn concurrent_and_nested_calls_end() {
        let workers = workers();
        let caller = || (0..3000).for_each(|_| assert_eq!(squares(workers, 10, 4), 285));
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(caller))));
        run_tasks(workers, 8, 4, || (), |(), _| assert_eq!(squares(workers, 10, 4), 285));
    }

    #[test]
    fn parked_threads_serve_the_next_call() {
        let workers = workers();
        for _ in 0..20 {
            std::thread::sleep(SPIN * 3);
            (0..50).for_each(|_| assert_eq!(squares(workers, 10, 3), 285));
        }
    }

    #[test]
    fn a_caller_that_sleeps_is_woken_by_the_last_thread() {
        let workers = workers();
        for _ in 0..50 {
            let caller = std::thread::current().id();
            run_tasks(
                workers,
                4,
                4,
                || (),
                |(), _| {
                    // The caller is done at once; the others continue until it sleeps.
                    while std::thread::current().id() != caller
                        && !workers.caller_sleeps.load(Ordering::SeqCst)
                    {
                        std::thread::yield_now();
                    }
                },
            );
            assert!(!workers.caller_sleeps.load(Ordering::SeqCst));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_next_call_runs() {
        let workers = workers();
        for culprit in [0, 3, 9] {
            let call =
                || run_tasks(workers, 10, 3, || (), |(), index| assert!(index != culprit, "task {index}"));
            let panic = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("task {culprit}"));
            assert_eq!(squares(workers, 10, 3), 285);
        }
    }

    #[test]
    fn at_most_the_wanted_threads_run_at_once() {
        let workers = workers();
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        squares(workers, 100, 6);
        run_tasks(
            workers,
            200,
            2,
            || (),
            |(), _| {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(Duration::from_micros(20));
                now.fetch_sub(1, Ordering::SeqCst);
            },
        );
        assert!(most.into_inner() <= 2);
    }
}
