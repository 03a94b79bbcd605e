//! Panics: those that a reader catches itself are no findings, and their messages are not printed.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work`. If it panics, the error is the message with its place.
///
/// # Errors
/// The message of the panic.
pub fn guarded(work: impl FnOnce()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|panic| {
            LAST.with_borrow_mut(|last| *last = panic.to_string());
        }));
    });
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| LAST.take())
}
