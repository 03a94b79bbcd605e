//! The random part of the spectrum: a counter-based generator, so that a value depends on its place alone.
//!
//! Neighbours in a batch, the order of units and the number of threads change nothing.

use crate::sampling::mix;

/// Noise of one unit of one request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Noise {
    key: u64,
}

impl Noise {
    /// Noise of unit `unit` under the request's `seed`.
    pub(super) fn new(seed: u64, unit: usize) -> Self {
        Self { key: mix(mix(seed).wrapping_add(unit as u64)) }
    }

    /// Two independent standard normal values (Box–Muller) for a place in the spectrum.
    pub(super) fn normal_pair(&self, frame: usize, bin: usize) -> [f32; 2] {
        let bits = mix(self.key.wrapping_add(((frame as u64) << 32) | bin as u64));
        // 24 bits fill an f32 exactly; the half keeps the logarithm's argument above zero.
        let uniform = |bits: u64| ((bits >> 40) as f32 + 0.5) * (1.0 / (1u32 << 24) as f32);
        let radius = (-2.0 * uniform(bits).ln()).sqrt();
        let (sin, cos) = (std::f32::consts::TAU * uniform(bits << 32)).sin_cos();
        [radius * cos, radius * sin]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_depends_on_its_place_alone() {
        let noise = Noise::new(7, 3);
        let again = Noise::new(7, 3);
        let late = noise.normal_pair(90, 600);
        assert_eq!(late, again.normal_pair(90, 600));
        for other in [Noise::new(8, 3), Noise::new(7, 4)] {
            assert_ne!(late, other.normal_pair(90, 600));
        }
        assert_ne!(late, noise.normal_pair(91, 600));
        assert_ne!(late, noise.normal_pair(90, 599));
    }

    #[test]
    fn values_are_standard_normal() {
        let noise = Noise::new(1, 0);
        let values: Vec<f32> =
            (0..200).flat_map(|f| (0..601).flat_map(move |b| noise.normal_pair(f, b))).collect();
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / count;
        let cross = values.chunks(2).map(|pair| pair[0] * pair[1]).sum::<f32>() / count;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01 && cross.abs() < 0.01);
        assert!(values.iter().all(|v| v.is_finite()));
    }
}
