//! The random part of the spectrum, from a counter-based generator: a value depends on seed, unit, frame and bin only, not
//! on the batch, the order of units or the number of threads.

use izwi_kernels::spectrum::box_muller;
use izwi_nn::sampling::mix;

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

    /// Fills in two independent standard normal values for each bin of a frame.
    pub(super) fn fill(&self, frame: usize, [real, imaginary]: [&mut [f32]; 2]) {
        for (bin, (real, imaginary)) in real.iter_mut().zip(imaginary.iter_mut()).enumerate() {
            let bits = mix(self.key.wrapping_add(((frame as u64) << 32) | bin as u64));
            // 24 bits fill an f32 exactly; the half keeps the logarithm's argument above zero.
            let uniform = |bits: u64| ((bits >> 40) as f32 + 0.5) * (1.0 / (1u32 << 24) as f32);
            (*real, *imaginary) = (uniform(bits), uniform(bits << 32));
        }
        box_muller([real, imaginary]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(noise: &Noise, frame: usize) -> [Vec<f32>; 2] {
        let [mut real, mut imaginary] = [vec![0.0; 601], vec![0.0; 601]];
        noise.fill(frame, [&mut real, &mut imaginary]);
        [real, imaginary]
    }

    fn at(noise: &Noise, number: usize, bin: usize) -> [f32; 2] {
        frame(noise, number).map(|part| part[bin])
    }

    #[test]
    fn values_depend_on_seed_unit_frame_and_bin_only() {
        let noise = Noise::new(7, 3);
        let late = at(&noise, 90, 600);
        assert_eq!(late, at(&Noise::new(7, 3), 90, 600));
        for other in [Noise::new(8, 3), Noise::new(7, 4)] {
            assert_ne!(late, at(&other, 90, 600));
        }
        assert_ne!(late, at(&noise, 91, 600));
        assert_ne!(late, at(&noise, 90, 599));
    }

    #[test]
    fn values_are_standard_normal() {
        let noise = Noise::new(1, 0);
        let pairs = |number| {
            let [real, imaginary] = frame(&noise, number);
            real.into_iter().zip(imaginary).flat_map(|(real, imaginary)| [real, imaginary])
        };
        let values: Vec<f32> = (0..200).flat_map(pairs).collect();
        let count = values.len() as f32;
        let mean = values.iter().sum::<f32>() / count;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / count;
        let cross = values.chunks(2).map(|pair| pair[0] * pair[1]).sum::<f32>() / count;
        assert!(mean.abs() < 0.01 && (variance - 1.0).abs() < 0.01 && cross.abs() < 0.01);
        assert!(values.iter().all(|v| v.is_finite()));
    }
}
