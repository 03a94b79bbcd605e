//! Tasks over the threads of the process. All state lives in one [`Pool`]. Knows no kernel.

mod default;
mod pool;
mod workers;

pub use default::default_threads;
use pool::Pool;

/// The pool of the process: kernels are functions, which own no threads.
static POOL: Pool = Pool::new();

/// Runs `task(scratch, index)` for every index below `tasks` on at most `threads` threads, the calling one among
/// them; each makes its own scratch. A panic of a task resumes in the caller once no other thread runs a task.
pub(crate) fn for_each_task<S>(
    tasks: usize,
    threads: usize,
    scratch: impl Fn() -> S + Sync,
    task: impl Fn(&mut S, usize) + Sync,
) {
    POOL.for_each_task(tasks, threads, scratch, task);
}

/// Threads that work of the calling thread may use, the calling one among them.
pub fn num_threads() -> usize {
    POOL.num_threads()
}

/// Runs both and returns when both are done: at once where there is more than one thread and no other pair, else one
/// after the other. A panic of either resumes in the caller once neither runs.
pub fn run_pair(first: impl FnOnce() + Send, second: impl FnOnce() + Send) {
    POOL.run_pair(first, second);
}

/// A pointer that the tasks of a call share, each of which writes its own part of what it points to.
pub(crate) struct SyncPtr<T = f32>(pub(crate) *mut T);

impl<T> SyncPtr<T> {
    /// The pointer.
    pub(crate) fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: to read or write through the pointer is unsafe: the task that does so upholds that no other task accesses the
// same place.
unsafe impl<T> Sync for SyncPtr<T> {}
