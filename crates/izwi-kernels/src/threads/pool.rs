//! Two pieces of work at once that share the threads: a model's next pass, and what becomes of the last one.
//!
//! While both run the second has a part of the threads and the first the others; when one ends, the other has all.
//! Results do not depend on it.

use std::cell::Cell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::workers::{Pool, lock, run_tasks};

/// The one thread that a pair takes beside its caller's.
static PAIRS: Pool = Pool::new();
/// Whether there is a pair: one at a time.
static TAKEN: AtomicBool = AtomicBool::new(false);
/// Whether the first of the pair still runs.
static FIRST_RUNS: AtomicBool = AtomicBool::new(false);
/// Threads that the second of the pair has taken from everyone else.
static LENT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread runs the second of a pair.
    static IS_ASIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread runs the second of a pair.
pub(crate) fn is_second_of_pair() -> bool {
    IS_ASIDE.get()
}

/// Threads that work started here may take, the calling one among them.
pub fn num_threads() -> usize {
    let all = rayon::current_num_threads();
    match is_second_of_pair() {
        true if FIRST_RUNS.load(Ordering::Relaxed) => part(all),
        true => all,
        false => all.saturating_sub(LENT.load(Ordering::Relaxed)).max(1),
    }
}

/// The second's part: a first that waits for the memory has enough with the other half.
fn part(all: usize) -> usize {
    (all / 2).max(1)
}

/// Runs both and returns when both are done: at once where there is more than one thread and no other pair, else one
/// after the other. A panic of either goes on here once neither is at work.
pub fn run_pair(first: impl FnOnce() + Send, second: impl FnOnce() + Send) {
    if rayon::current_num_threads() < 2 || TAKEN.swap(true, Ordering::Acquire) {
        first();
        return second();
    }
    let _pair = Undo(|| TAKEN.store(false, Ordering::Release));
    FIRST_RUNS.store(true, Ordering::Relaxed);
    let (first, second) = (Mutex::new(Some(first)), Mutex::new(Some(second)));
    let run = |index: usize| {
        if index == 0 {
            let _first = Undo(|| FIRST_RUNS.store(false, Ordering::Relaxed));
            call(&first);
        } else if FIRST_RUNS.load(Ordering::Relaxed) {
            LENT.store(part(rayon::current_num_threads()), Ordering::Relaxed);
            IS_ASIDE.set(true);
            let _second = Undo(|| {
                IS_ASIDE.set(false);
                LENT.store(0, Ordering::Relaxed);
            });
            call(&second);
        } else {
            call(&second);
        }
    };
    run_tasks(&PAIRS, 2, 2, || (), |(), index| run(index));
}

/// Calls what nobody has called.
fn call<F: FnOnce()>(work: &Mutex<Option<F>>) {
    let work = lock(work).take();
    if let Some(work) = work {
        work();
    }
}

/// Does something when it is dropped, in a panic too.
struct Undo<F: Fn()>(F);

impl<F: Fn()> Drop for Undo<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::threads::for_each_task;

    /// On a pool of so many threads.
    fn on<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    }

    /// A sum over tasks; and the most threads that one of them was told it may take.
    fn sum() -> (usize, usize) {
        let (sum, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let task = |index: usize| {
            sum.fetch_add(index, Ordering::Relaxed);
            std::thread::sleep(Duration::from_micros(50));
        };
        for _ in 0..20 {
            most.fetch_max(num_threads(), Ordering::Relaxed);
            for_each_task(8, num_threads(), || (), |(), index| task(index));
        }
        (sum.into_inner(), most.into_inner())
    }

    #[test]
    fn both_run_once_each_and_a_pair_leaves_the_threads_as_they_were() {
        for threads_of_pool in [1, 2, 3, 8] {
            on(threads_of_pool, || {
                for _ in 0..50 {
                    let (mut one, mut other) = ((0, 0), (0, 0));
                    run_pair(|| one = sum(), || other = sum());
                    assert_eq!((one.0, other.0), (560, 560));
                    assert!(one.1.max(other.1) <= threads_of_pool);
                }
            });
        }
    }

    #[test]
    fn pairs_within_and_beside_pairs_end() {
        let pair = || {
            let (mut one, mut other) = (0, 0);
            run_pair(|| one = sum().0, || run_pair(|| other = sum().0, || ()));
            assert_eq!((one, other), (560, 560));
        };
        std::thread::scope(|scope| {
            (0..4).for_each(|_| drop(scope.spawn(|| on(4, || (0..20).for_each(|_| pair())))))
        });
    }

    #[test]
    fn a_panic_of_either_reaches_the_caller_and_the_next_pair_runs() {
        on(2, || {
            for culprit in [0, 1] {
                let fail = |me: usize| assert!(me != culprit, "{me} fails");
                let pair = || run_pair(|| fail(0), || fail(1));
                let panic = catch_unwind(AssertUnwindSafe(pair)).unwrap_err();
                assert_eq!(panic.downcast_ref::<String>().unwrap(), &format!("{culprit} fails"));
                assert!(!is_second_of_pair());
                let mut done = 0;
                run_pair(|| (), || done = 1);
                assert_eq!(done, 1);
            }
        });
    }
}
