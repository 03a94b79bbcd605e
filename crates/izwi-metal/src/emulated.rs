//! Counters of the emulated Metal device, for tests under `cargo xtask metal-emulate`; empty elsewhere.
//!
//! Knows nothing of what a kernel computes. The counters belong to the process, so a test that reads them needs one of
//! its own, as under nextest.

#[cfg(all(feature = "metal", not(target_vendor = "apple")))]
pub use crate::counters::most_flop_of_a_command_buffer;
#[cfg(all(feature = "metal", not(target_vendor = "apple")))]
pub use objc2_metal::counters::{
    Counts, KernelCounts, allocated_bytes, counts, kernels, peak_bytes, reset, text,
};

#[cfg(all(test, feature = "metal", not(target_vendor = "apple")))]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use izwi_types::Precision;

    use super::*;
    use crate::{Fused, MetalWeights, Pass};

    #[test]
    fn launches_and_uploads_are_counted() {
        let device = Device::new_metal(0).unwrap();
        let x = Tensor::new(&[1.0f32, 2.0, 3.0], &device).unwrap();
        device.synchronize().unwrap();
        reset();
        let y = x.affine(2.0, 1.0).unwrap();
        let z = Tensor::zeros((2, 2), DType::F32, &Device::Cpu).unwrap().to_device(&device).unwrap();
        assert_eq!(y.to_vec1::<f32>().unwrap(), [3.0, 5.0, 7.0]);
        let counts = counts();
        assert_eq!((counts.dispatches, counts.uploads, counts.waits), (1, 1, 1), "{}", text("affine"));
        assert_eq!(kernels().values().map(|kernel| kernel.dispatches).sum::<u64>(), 1);
        assert!(peak_bytes() >= allocated_bytes() && allocated_bytes() > 0);
        drop(z);
    }
    #[test]
    fn much_work_is_committed_in_between_and_gives_the_same_bits() {
        let device = Device::new_metal(0).unwrap();
        let on = crate::metal_device(&device).unwrap();
        let random = |shape| Tensor::randn(0f32, 0.2, shape, &Device::Cpu).unwrap();
        let weights = MetalWeights::new(&random((64, 64)), Precision::Q8, on).unwrap();
        let x = random((3, 64)).to_device(&device).unwrap();
        let chain = |flop: usize| {
            device.synchronize().unwrap();
            reset();
            let pass = Pass::open(on).unwrap();
            let mut y = x.clone();
            for _ in 0..6 {
                pass.expect(flop, 0).unwrap();
                y = pass.linear(&y, &weights, Fused::default()).unwrap();
            }
            drop(pass);
            let values = y.to_vec2::<f32>().unwrap();
            (values.into_iter().flatten().map(f32::to_bits).collect::<Vec<_>>(), counts())
        };
        let (small, large) = (chain(0), chain(60_000_000_000));
        assert_eq!(small.0, large.0);
        assert_eq!((small.1.commits, large.1.commits), (1, 4), "{}", text("chain"));
        assert!(most_flop_of_a_command_buffer() <= 130_000_000_000);
    }
    #[test]
    fn a_prepared_device_compiles_no_kernel_at_its_first_use() {
        let device = Device::new_metal(0).unwrap();
        let on = crate::metal_device(&device).unwrap();
        crate::prepare(on).unwrap();
        let weight = Tensor::zeros((40, 64), DType::F32, &Device::Cpu).unwrap();
        let inputs = [1, 2, 9, 40].map(|rows| Tensor::zeros((rows, 64), DType::F32, &Device::Cpu).unwrap());
        reset();
        for precision in [Precision::F32, Precision::F16, Precision::Q8, Precision::Q4] {
            let weights = MetalWeights::new(&weight, precision, on).unwrap();
            for x in &inputs {
                let x = x.to_device(&device).unwrap();
                Pass::open(on).unwrap().linear(&x, &weights, Fused::default()).unwrap();
            }
        }
        let counts = counts();
        assert!(counts.dispatches >= 16, "{}", text("linear"));
        assert_eq!((counts.pipelines, counts.libraries), (0, 0), "{}", text("linear"));
    }
}
