//! The threads of the kernels, and two pieces of work that share them: the next forward pass of a model, and the codec
//! decoding of the last one.
//!
//! While both run, the second has one part of the threads and the first the others; when one ends, the other has all.
//! Results do not depend on it. Knows no kernel.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::workers::{Workers, lock, run_tasks};

thread_local! {
    /// Whether this thread runs the second of a pair alongside the first.
    static IS_BACKGROUND: Cell<bool> = const { Cell::new(false) };
}

/// Threads and what is known about their use.
pub(super) struct Pool {
    /// Serve calls of every thread but the one that runs the second of a pair.
    foreground: Workers,
    /// Serve calls of the thread that runs the second of a pair.
    background: Workers,
    /// The one thread that a pair uses alongside that of its caller.
    pair: Workers,
    /// Whether a pair runs: one at a time.
    has_pair: AtomicBool,
    /// Whether the first of the pair runs.
    first_runs: AtomicBool,
    /// Threads that the second of the pair takes from all others.
    lent: AtomicUsize,
}

impl Pool {
    /// Starts no thread yet.
    pub(super) const fn new() -> Self {
        Self {
            foreground: Workers::new(),
            background: Workers::new(),
            pair: Workers::new(),
            has_pair: AtomicBool::new(false),
            first_runs: AtomicBool::new(false),
            lent: AtomicUsize::new(0),
        }
    }

    /// See [`super::for_each_task`].
    pub(super) fn for_each_task<S>(
        &'static self,
        tasks: usize,
        threads: usize,
        scratch: impl Fn() -> S + Sync,
        task: impl Fn(&mut S, usize) + Sync,
    ) {
        let workers = if IS_BACKGROUND.get() { &self.background } else { &self.foreground };
        run_tasks(workers, tasks, threads, scratch, task);
    }

    /// See [`super::num_threads`].
    pub(super) fn num_threads(&self) -> usize {
        let all = rayon::current_num_threads();
        match IS_BACKGROUND.get() {
            true if self.first_runs.load(Ordering::Relaxed) => part(all),
            true => all,
            false => all.saturating_sub(self.lent.load(Ordering::Relaxed)).max(1),
        }
    }

    /// See [`super::run_pair`].
    pub(super) fn run_pair(&'static self, first: impl FnOnce() + Send, second: impl FnOnce() + Send) {
        if rayon::current_num_threads() < 2 || self.has_pair.swap(true, Ordering::Acquire) {
            first();
            return second();
        }
        let _pair = OnDrop(|| self.has_pair.store(false, Ordering::Release));
        self.first_runs.store(true, Ordering::Relaxed);
        let (first, second) = (Mutex::new(Some(first)), Mutex::new(Some(second)));
        let run = |index: usize| {
            if index == 0 {
                let _first = OnDrop(|| self.first_runs.store(false, Ordering::Relaxed));
                call(&first);
            } else if self.first_runs.load(Ordering::Relaxed) {
                self.lent.store(part(rayon::current_num_threads()), Ordering::Relaxed);
                IS_BACKGROUND.set(true);
                let _second = OnDrop(|| {
                    IS_BACKGROUND.set(false);
                    self.lent.store(0, Ordering::Relaxed);
                });
                call(&second);
            } else {
                call(&second);
            }
        };
        run_tasks(&self.pair, 2, 2, || (), |(), index| run(index));
    }
}

/// Threads of the second of a pair: a first that waits for the memory has enough with the others.
fn part(all: usize) -> usize {
    (all / 2).max(1)
}

/// Calls the work, once.
fn call<F: FnOnce()>(work: &Mutex<Option<F>>) {
    let work = lock(work).take();
    if let Some(work) = work {
        work();
    }
}

/// Calls the function when it is dropped, also by a panic.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;

    fn pool() -> &'static Pool {
        Box::leak(Box::new(Pool::new()))
    }

    /// Runs `work` where rayon has this many threads.
    fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    }

    /// A sum over tasks, and the largest number of threads that they could use.
    fn sum(pool: &'static Pool) -> (usize, usize) {
        let (sum, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let task = |index: usize| {
            sum.fetch_add(index, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(50));
        };
        for _ in 0..20 {
            most.fetch_max(pool.num_threads(), Ordering::Relaxed);
            pool.for_each_task(8, pool.num_threads(), || (), |(), index| task(index));
        }
        (sum.into_inner(), most.into_inner())
    }

    #[test]
    fn both_run_once_and_use_at_most_all_threads() {
        let pool = pool();
        for threads_of_pool in [1, 2, 3, 8] {
            on(threads_of_pool, || {
                for _ in 0..50 {
                    let (mut one, mut other) = ((0, 0), (0, 0));
                    pool.run_pair(|| one = sum(pool), || other = sum(pool));
                    assert_eq!((one.0, other.0), (560, 560));
                    assert!(one.1.max(other.1) <= threads_of_pool);
                }
            });
        }
    }

    #[test]
    fn concurrent_and_nested_pairs_end() {
        let pool = pool();
        let pair = || {
            let (mut one, mut other) = (0, 0);
            pool.run_pair(|| one = sum(pool).0, || pool.run_pair(|| other = sum(pool).0, || ()));
            assert_eq!((one, other), (560, 560));
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| on(4, || (0..20).for_each(|_| pair())))))
        });
    }

    #[test]
    fn a_panic_of_either_reaches_the_caller_and_the_next_pair_runs() {
        let pool = pool();
        on(2, || {
            for culprit in [0, 1] {
                let fail = |me: usize| assert!(me != culprit, "{me} fails");
                let pair = || pool.run_pair(|| fail(0), || fail(1));
                let panic = catch_unwind(AssertUnwindSafe(pair)).unwrap_err();
                assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("{culprit} fails"));
                assert!(!IS_BACKGROUND.get());
                let mut done = 0;
                pool.run_pair(|| (), || done = 1);
                assert_eq!(done, 1);
            }
        });
    }
}
