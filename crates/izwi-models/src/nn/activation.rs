//! GELU with the exact error function, fused with the bias before it on the CPU.

use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use super::conv::cpu_slice;

/// Elements one rayon task computes.
const CHUNK: usize = 16 * 1024;

/// `gelu(x + bias)` with `x` `[rows, width]` and `bias` `[width]`.
///
/// # Errors
/// Shapes do not fit.
pub fn bias_gelu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if x.device().is_cpu() { x.apply_op2_no_bwd(bias, &BiasGelu) } else { x.broadcast_add(bias)?.gelu_erf() }
}

struct BiasGelu;

impl CustomOp2 for BiasGelu {
    fn name(&self) -> &'static str {
        "bias-gelu"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, bias) = (cpu_slice(x, x_layout)?, cpu_slice(bias, bias_layout)?);
        let width = bias.len();
        if width == 0 || x_layout.dims().last() != Some(&width) {
            bail!("bias-gelu: {:?} does not end in {width}", x_layout.dims())
        }
        let chunk = (CHUNK / width).max(1) * width;
        let mut y = vec![0f32; x.len()];
        y.par_chunks_mut(chunk).zip(x.par_chunks(chunk)).for_each(|(y, x)| {
            for (y, x) in y.chunks_exact_mut(width).zip(x.chunks_exact(width)) {
                for ((y, x), bias) in y.iter_mut().zip(x).zip(bias) {
                    *y = gelu(x + bias);
                }
            }
        });
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    0.5 * x * (1.0 + erf(x * std::f32::consts::FRAC_1_SQRT_2))
}

/// Rational approximation in f32, within 3e-7: branch-free, so that the compiler vectorises it.
/// <https://github.com/openxla/xla/blob/main/xla/hlo/builder/lib/math.cc> (`Erf`, f32).
#[inline(always)]
fn erf(x: f32) -> f32 {
    const P: [f32; 7] = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    const Q: [f32; 5] = [-1.456_607_2e-5, -2.133_740_6e-4, -1.682_827e-3, -7.373_329e-3, -1.426_473_9e-2];
    let x = x.clamp(-4.0, 4.0);
    let square = x * x;
    let p = P.iter().fold(0.0, |sum, c| sum * square + c);
    let q = Q.iter().fold(0.0, |sum, c| sum * square + c);
    x * p / q
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn erf_is_exact_to_single_precision() {
        for step in -60_000..=60_000 {
            let x = step as f32 * 1e-4;
            let exact = candle_core::cpu::erf::erf_f64(f64::from(x));
            assert!((f64::from(erf(x)) - exact).abs() < 5e-7, "{x}: {} {exact}", erf(x));
        }
    }

    #[test]
    fn the_fused_form_equals_the_composite() {
        let x = Tensor::randn(0f32, 3.0, (70, 768), &Device::Cpu).unwrap();
        let bias = Tensor::randn(0f32, 1.0, 768, &Device::Cpu).unwrap();
        let fused = bias_gelu(&x, &bias).unwrap();
        let composite = x.broadcast_add(&bias).unwrap().gelu_erf().unwrap();
        let worst =
            (fused - composite).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(worst < 3e-6, "{worst}");
    }
}
