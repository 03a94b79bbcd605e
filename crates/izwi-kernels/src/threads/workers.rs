//! Tasks over a pool whose threads wait for the next call awake for a moment, then asleep: one decoding step is
//! hundreds of calls of a few microseconds, and waking a thread costs as much as one of them.
//!
//! The calling thread always works too and waits only for threads that have begun: where the machine has fewer free
//! cores than the pool has threads, it does the work alone. Results do not depend on who did what.

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::pool::is_second_of_pair;

/// How long a thread without work stays awake.
const AWAKE: Duration = Duration::from_micros(150);
/// Looks at the state between two looks at the clock.
const LOOKS: usize = 64;
/// Looks at the clock after which whoever waits awake offers its core: the caller itself may be waiting for it.
const OFFER: usize = 8;
/// Looks at the others' end before the caller offers its core.
const PATIENCE: usize = 4096;

/// A pointer whose users write disjoint places.
pub struct SyncPtr<T = f32>(pub *mut T);

impl<T> SyncPtr<T> {
    /// The pointer.
    pub fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: whoever writes through it writes a place no other task writes; see the users.
unsafe impl<T> Sync for SyncPtr<T> {}

/// Runs `task(scratch, index)` for every index below `tasks` on at most `threads` threads, the calling one among
/// them; each makes its own scratch. A panic of a task goes on in the caller once no other thread is at work.
pub fn for_each_task<S>(
    tasks: usize,
    threads: usize,
    scratch: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, usize) + Sync,
) {
    run_tasks(if is_second_of_pair() { &ASIDE } else { &POOL }, tasks, threads, scratch, task);
}

/// As [`for_each_task`], on the threads of `pool`.
pub(crate) fn run_tasks<S>(
    pool: &'static Pool,
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
    pool.run(others, &|| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(work)) {
            next.store(tasks, Ordering::Relaxed);
            lock(&failure).get_or_insert(panic);
        }
    });
    if let Some(panic) = failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
}

/// Nothing is left half done behind any of the locks here.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the threads of one call run: a closure on the caller's stack.
#[derive(Clone, Copy)]
struct Call {
    work: *const (),
    /// Calls the closure behind `work`.
    enter: unsafe fn(*const ()),
}

/// Low bits of [`Pool::state`]: threads at work on the call.
const INSIDE: u64 = (1 << 16) - 1;
/// Whether more may join.
const OPEN: u64 = 1 << 16;
/// One call further.
const NEXT: u64 = 1 << 17;

/// Threads that are started at need, serve one call at a time, and never end.
pub(crate) struct Pool {
    /// Number of the call, [`OPEN`], and [`INSIDE`].
    state: AtomicU64,
    /// Threads the call wants.
    wanted: AtomicU64,
    /// Written by the holder of `taken` while the state is neither open nor has anyone inside; read by threads inside.
    call: UnsafeCell<Call>,
    /// Somebody's call holds the pool.
    taken: AtomicBool,
    started: AtomicUsize,
    starting: Mutex<()>,
    asleep: AtomicUsize,
    bed: Mutex<()>,
    bell: Condvar,
}

// SAFETY: `call` is the one field that is not `Sync`; when it is written and read is said there.
unsafe impl Sync for Pool {}

unsafe fn nothing(_: *const ()) {}

/// For what runs in the foreground.
static POOL: Pool = Pool::new();
/// For what runs beside it.
static ASIDE: Pool = Pool::new();

impl Pool {
    /// No thread yet.
    pub(crate) const fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            wanted: AtomicU64::new(0),
            call: UnsafeCell::new(Call { work: std::ptr::null(), enter: nothing }),
            taken: AtomicBool::new(false),
            started: AtomicUsize::new(0),
            starting: Mutex::new(()),
            asleep: AtomicUsize::new(0),
            bed: Mutex::new(()),
            bell: Condvar::new(),
        }
    }

    /// Runs `work`, which must not panic, here and on up to `others` threads that come in time. While another call
    /// holds the pool, here alone.
    fn run<F: Fn() + Sync>(&'static self, others: usize, work: &F) {
        /// # Safety
        /// `work` points to an `F` that lives until this returns.
        unsafe fn enter<F: Fn()>(work: *const ()) {
            (*work.cast::<F>())();
        }
        if self.taken.swap(true, Ordering::Acquire) {
            return work();
        }
        self.start(others);
        let call = Call { work: std::ptr::from_ref(work).cast(), enter: enter::<F> };
        // SAFETY: this call has the pool, and the last one left the state closed with nobody inside.
        unsafe { *self.call.get() = call };
        self.wanted.store(others as u64, Ordering::Relaxed);
        let state = self.state.load(Ordering::Relaxed) / NEXT * NEXT;
        self.state.store(state.wrapping_add(NEXT) | OPEN, Ordering::SeqCst);
        if self.asleep.load(Ordering::SeqCst) > 0 {
            drop(lock(&self.bed));
            (0..others).for_each(|_| self.bell.notify_one());
        }
        work();
        self.state.fetch_and(!OPEN, Ordering::AcqRel);
        // What they did is seen from here on, and nobody reads `work` any more.
        let mut looks = 0;
        while self.state.load(Ordering::Acquire) & INSIDE > 0 {
            looks += 1;
            if looks < PATIENCE { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        self.taken.store(false, Ordering::Release);
    }

    /// Sees to it that there are `count` threads, if the system gives them.
    fn start(&'static self, count: usize) {
        if self.started.load(Ordering::Relaxed) >= count {
            return;
        }
        let _alone = lock(&self.starting);
        while self.started.load(Ordering::Relaxed) < count {
            let thread = std::thread::Builder::new().name("izwi-kernels".into());
            if thread.spawn(|| self.serve()).is_err() {
                return;
            }
            self.started.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The life of a thread.
    fn serve(&self) {
        let mut served = 0;
        loop {
            let state = self.next_call(served);
            if state & INSIDE >= self.wanted.load(Ordering::Relaxed) {
                served = state / NEXT;
                continue;
            }
            // Succeeds only while the call is the one just read, open still, with as many inside.
            let joined = self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed);
            if joined.is_ok() {
                served = state / NEXT;
                // SAFETY: the call is not replaced and its closure not dropped while this thread counts as inside.
                unsafe {
                    let Call { work, enter } = *self.call.get();
                    enter(work);
                }
                self.state.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Waits for an open call after the call `served`.
    fn next_call(&self, served: u64) -> u64 {
        let ready = |state: u64| state & OPEN > 0 && state / NEXT != served;
        loop {
            let since = Instant::now();
            let mut turns = 0;
            while since.elapsed() < AWAKE {
                turns += 1;
                if turns % OFFER == 0 {
                    std::thread::yield_now();
                }
                for _ in 0..LOOKS {
                    let state = self.state.load(Ordering::Acquire);
                    if ready(state) {
                        return state;
                    }
                    std::hint::spin_loop();
                }
            }
            let bed = lock(&self.bed);
            self.asleep.fetch_add(1, Ordering::SeqCst);
            // A caller opens its call before it counts the sleepers: one of the two sees the other.
            if !ready(self.state.load(Ordering::SeqCst)) {
                // Whoever is woken stays awake for a while, even if the call is over by then: the next one is near.
                drop(self.bell.wait(bed).unwrap_or_else(PoisonError::into_inner));
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn squares(tasks: usize, threads: usize) -> usize {
        let sum = AtomicUsize::new(0);
        for_each_task(
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
    fn every_task_runs_once_whatever_the_threads() {
        for tasks in [0, 1, 2, 7, 100] {
            for threads in [0, 1, 2, 5, 40] {
                assert_eq!(squares(tasks, threads), (0..tasks).map(|index| index * index).sum::<usize>());
            }
        }
    }

    #[test]
    fn many_callers_at_once_and_calls_within_calls_end() {
        let caller = || (0..3000).for_each(|_| assert_eq!(squares(10, 4), 285));
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(caller))));
        for_each_task(8, 4, || (), |(), _| assert_eq!(squares(10, 4), 285));
    }

    #[test]
    fn calls_after_a_sleep_are_served() {
        for _ in 0..20 {
            std::thread::sleep(AWAKE * 3);
            (0..50).for_each(|_| assert_eq!(squares(10, 3), 285));
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        for culprit in [0, 3, 9] {
            let call = || for_each_task(10, 3, || (), |(), index| assert!(index != culprit, "task {index}"));
            let panic = catch_unwind(call).unwrap_err();
            assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("task {culprit}"));
            assert_eq!(squares(10, 3), 285);
        }
    }

    #[test]
    fn no_more_threads_than_wanted_work_at_once() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        squares(100, 6);
        for_each_task(
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
