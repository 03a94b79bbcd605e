//! The threads of the kernels.

mod pool;
mod workers;

pub use pool::{num_threads, run_pair};
pub(crate) use workers::{SyncPtr, for_each_task};
