//! Inputs for warm-up.

use std::sync::Arc;

use izwi_nn::sampling::mix;

/// Soft white noise, the same each time.
pub(crate) fn noise(num_samples: usize) -> Arc<[f32]> {
    let uniform = |n: usize| (mix(n as u64) >> 40) as f32 / (1u64 << 24) as f32;
    (0..num_samples).map(|n| 0.1 * (uniform(n) - 0.5)).collect()
}
