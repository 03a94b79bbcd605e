//! Runs the codec decode of earlier frames beside the next step of the language model.
//!
//! Knows neither: both are closures.

use std::time::{Duration, Instant};

use candle_core::Device;
use izwi_kernels::pair;
use izwi_types::PartTimes;

/// Whether work on the device can overlap: on the CPU, whose threads two closures can share.
pub(crate) fn is_supported(device: &Device) -> bool {
    device.is_cpu()
}

/// Whether there are threads for both now.
pub(crate) fn has_threads() -> bool {
    pair::threads() > 1
}

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
    pair::both(first, || b = second());
    times.add(index, started.elapsed().saturating_sub(ended));
    Ok((a?, b?))
}
