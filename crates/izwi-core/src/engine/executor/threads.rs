//! Threads that a model computes with. Knows no model.

/// The default: the performance cores of the machine, at most 8.
pub(crate) fn default_threads() -> usize {
    izwi_kernels::threads::default_threads()
}
