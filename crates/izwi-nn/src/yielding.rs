//! Yield points: places between layers at which a computation may let a more urgent one go first.
//!
//! Layers call [`yield_point`]. What happens there is up to whoever runs the computation, and nothing unless it is run by
//! [`with_yields`]. Nothing that others need may be locked at a yield point.

use std::cell::RefCell;

thread_local! {
    static YIELD: RefCell<Option<Box<dyn FnMut()>>> = const { RefCell::new(None) };
}

/// Runs a computation that calls `yields` at each of its yield points on this thread.
pub fn with_yields<T>(yields: impl FnMut() + 'static, compute: impl FnOnce() -> T) -> T {
    let _restored = Restored(YIELD.replace(Some(Box::new(yields))));
    compute()
}

/// A computation can pause here.
pub fn yield_point() {
    // Taken out meanwhile: what runs instead has yield points of its own.
    if let Some(mut yields) = YIELD.take() {
        yields();
        YIELD.set(Some(yields));
    }
}

/// Sets back what was set before, also after a panic.
struct Restored(Option<Box<dyn FnMut()>>);

impl Drop for Restored {
    fn drop(&mut self) {
        YIELD.set(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn a_computation_yields_only_while_it_is_asked_to() {
        let count = Rc::new(RefCell::new(0));
        let counts = |by: usize| {
            let count = Rc::clone(&count);
            move || *count.borrow_mut() += by
        };
        yield_point();
        with_yields(counts(1), || {
            yield_point();
            with_yields(counts(10), yield_point);
            yield_point();
        });
        yield_point();
        assert_eq!(*count.borrow(), 12);
    }

    #[test]
    fn a_panic_ends_the_yields_of_its_computation() {
        let caught = std::panic::catch_unwind(|| with_yields(|| panic!("at a yield point"), yield_point));
        assert!(caught.is_err());
        yield_point();
    }
}
