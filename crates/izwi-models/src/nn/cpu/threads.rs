//! Tasks over rayon's pool: the calling thread takes its share at once instead of sleeping while the pool wakes up.

use std::sync::atomic::{AtomicUsize, Ordering};

/// A pointer whose users write disjoint places.
pub(crate) struct Shared(pub(crate) *mut f32);

impl Shared {
    /// The pointer.
    pub(crate) fn get(&self) -> *mut f32 {
        self.0
    }
}

// SAFETY: whoever writes through it writes a place no other task writes; see the users.
unsafe impl Sync for Shared {}

/// Runs `task(scratch, index)` for every index below `tasks` on at most `threads` threads, the calling one among
/// them; each makes its own scratch.
pub(crate) fn for_each_task<S>(
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
    let helpers = threads.min(tasks).saturating_sub(1);
    if helpers == 0 {
        return work();
    }
    rayon::in_place_scope(|scope| {
        (0..helpers).for_each(|_| scope.spawn(|_| work()));
        work();
    });
}
