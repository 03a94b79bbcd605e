//! The random part of the source, from a counter-based generator: a value depends on seed, unit and sample only, not on the
//! batch, the order of units or the number of threads.

use izwi_kernels::spectrum::box_muller;
use izwi_nn::sampling::mix;

/// `samples` standard normal values of unit `unit` under the request's `seed`, times `gain`.
pub(super) fn noise(seed: u64, unit: usize, samples: usize, gain: f32) -> Vec<f32> {
    let key = mix(mix(seed).wrapping_add(unit as u64));
    let pairs = samples.div_ceil(2);
    let (mut real, mut imaginary) = (vec![0f32; pairs], vec![0f32; pairs]);
    for (pair, (real, imaginary)) in real.iter_mut().zip(&mut imaginary).enumerate() {
        let bits = mix(key.wrapping_add(pair as u64));
        // 24 bits fill an f32 exactly; the half keeps the logarithm's argument above zero.
        let uniform = |bits: u64| ((bits >> 40) as f32 + 0.5) * (1.0 / (1u32 << 24) as f32);
        (*real, *imaginary) = (uniform(bits), uniform(bits << 32));
    }
    box_muller([&mut real, &mut imaginary]);
    let values =
        real.into_iter().zip(imaginary).flat_map(|(real, imaginary)| [real * gain, imaginary * gain]);
    values.take(samples).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_depend_on_seed_unit_and_sample_only_and_are_normal() {
        let values = noise(7, 3, 40_001, 2.0);
        assert_eq!(values[..100], noise(7, 3, 100, 2.0));
        assert!(values != noise(8, 3, 40_001, 2.0) && values != noise(7, 4, 40_001, 2.0));
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|value| value * value).sum::<f32>() / count;
        assert!(mean.abs() < 0.05 && (variance - 4.0).abs() < 0.15, "{mean} {variance}");
    }
}
