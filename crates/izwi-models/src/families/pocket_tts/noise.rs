//! Noise that latents are made of: a value depends on seed, pass, frame and place only, not on the batch.

use std::sync::Arc;

use izwi_kernels::spectrum::box_muller;
use izwi_nn::sampling::mix;

/// Standard normal values of one pass.
#[derive(Debug, Clone)]
pub(super) struct Noise {
    key: u64,
    /// Recorded values of all frames, for parity with a reference.
    given: Option<Arc<[f32]>>,
}

impl Noise {
    /// Noise of one seed.
    pub(super) fn new(seed: u64) -> Self {
        Self { key: mix(seed), given: None }
    }

    /// Recorded values, frame after frame.
    #[cfg(test)]
    pub(super) fn recorded(values: Arc<[f32]>) -> Self {
        Self { key: 0, given: Some(values) }
    }

    /// The `width` values of a frame.
    pub(super) fn frame(&self, frame: usize, width: usize) -> Vec<f32> {
        if let Some(given) = &self.given {
            let known = given.get(frame * width..(frame + 1) * width);
            return known.map_or_else(|| vec![0.0; width], <[f32]>::to_vec);
        }
        let half = width.div_ceil(2);
        let (mut first, mut second) = (Vec::with_capacity(half), Vec::with_capacity(half));
        for place in 0..half {
            let bits = mix(self.key.wrapping_add(((frame as u64) << 32) | place as u64));
            // 24 bits fill an f32 exactly; the half keeps the logarithm's argument above zero.
            let uniform = |bits: u64| ((bits >> 40) as f32 + 0.5) * (1.0 / (1u32 << 24) as f32);
            first.push(uniform(bits));
            second.push(uniform(bits << 32));
        }
        box_muller([&mut first, &mut second]);
        first.append(&mut second);
        first.truncate(width);
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_standard_normal_and_depend_on_seed_and_frame() {
        let noise = Noise::new(1);
        let values: Vec<f32> = (0..4000).flat_map(|frame| noise.frame(frame, 33)).collect();
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / count;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.02, "{mean} {variance}");
        assert_eq!(noise.frame(7, 33), Noise::new(1).frame(7, 33));
        assert!(noise.frame(7, 33) != noise.frame(8, 33) && noise.frame(7, 33) != Noise::new(2).frame(7, 33));
        let recorded = Noise::recorded([1.0, 2.0, 3.0].into());
        assert_eq!((recorded.frame(0, 2), recorded.frame(1, 2)), (vec![1.0, 2.0], vec![0.0, 0.0]));
    }
}
