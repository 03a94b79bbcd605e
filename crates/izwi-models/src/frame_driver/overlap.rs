//! Runs the codec decode of earlier frames alongside the next step of the language model.
//!
//! Knows neither: both are closures.

use std::time::{Duration, Instant};

use izwi_kernels::threads::run_pair;
use izwi_types::PartTimes;

/// Runs both, concurrently where there are threads for both. Adds to the part at `index` the time by which `second`
/// outlasts `first`, which records its own time. Without a second, runs the first alone.
///
/// # Errors
/// That of the first, or of the second.
pub(crate) fn run<A: Default + Send, B: Default + Send, E: Send>(
    times: &PartTimes,
    index: usize,
    first: impl FnOnce() -> Result<A, E> + Send,
    second: Option<impl FnOnce() -> Result<B, E> + Send>,
) -> Result<(A, B), E> {
    let Some(second) = second else { return Ok((first()?, B::default())) };
    let started = Instant::now();
    let (mut a, mut b, mut ended) = (Ok(A::default()), Ok(B::default()), Duration::ZERO);
    let first = || {
        a = first();
        ended = started.elapsed();
    };
    run_pair(first, || b = second());
    times.add(index, started.elapsed().saturating_sub(ended));
    Ok((a?, b?))
}
