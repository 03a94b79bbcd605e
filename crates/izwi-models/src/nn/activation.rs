//! Activations, fused with what stands before or behind them on the CPU.

use candle_core::{Result, Tensor, bail};

use super::cpu::elementwise;
use super::slices::{with_rows, with_slices};

/// `gelu(x + bias)` with `x` `[rows, width]` and `bias` `[width]`.
///
/// # Errors
/// Shapes do not fit.
pub fn bias_gelu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.broadcast_add(bias)?.gelu_erf();
    }
    if bias.dims().len() != 1 || bias.elem_count() == 0 || x.dims().last() != bias.dims().last() {
        bail!("bias-gelu: {:?} does not end in {:?}", x.dims(), bias.dims())
    }
    let y = with_slices([x, bias], |[x, bias]| {
        let mut y = vec![0f32; x.len()];
        elementwise::bias_gelu(x, bias, &mut y);
        y
    })?;
    Tensor::from_vec(y, x.dims(), x.device())
}

/// `silu(gate) * up`, where each row of `x` `[rows, 2 * width]` is `width` gates and then `width` ups.
///
/// # Errors
/// Shapes do not fit.
pub fn silu_gate(x: &Tensor) -> Result<Tensor> {
    let (rows, both) = x.dims2()?;
    let width = both / 2;
    if width == 0 || both % 2 == 1 {
        bail!("silu-gate: rows of {both}")
    }
    if !x.device().is_cpu() {
        return x.narrow(1, 0, width)?.silu()? * x.narrow(1, width, width)?;
    }
    let y = with_rows(x, |x| {
        let mut y = vec![0f32; rows * width];
        elementwise::silu_gate(x, width, &mut y);
        y
    })?;
    Tensor::from_vec(y, (rows, width), x.device())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn gelu_is_exact_to_single_precision() {
        let x: Vec<f32> = (-60_000..=60_000).map(|step| step as f32 * 1e-4).collect();
        let input = Tensor::new(x.as_slice(), &Device::Cpu).unwrap().reshape((x.len(), 1)).unwrap();
        let y = bias_gelu(&input, &Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap()).unwrap();
        let y: Vec<f32> = y.flatten_all().unwrap().to_vec1().unwrap();
        for (x, y) in x.into_iter().map(f64::from).zip(y.into_iter().map(f64::from)) {
            let exact = 0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x * std::f64::consts::FRAC_1_SQRT_2));
            assert!((y - exact).abs() < 3e-6, "{x}: {y} {exact}");
        }
    }

    #[test]
    fn gated_rows_equal_the_composite() {
        let x = Tensor::randn(0f32, 3.0, (9, 2 * 50), &Device::Cpu).unwrap();
        let composite = x.narrow(1, 0, 50).unwrap().silu().unwrap() * x.narrow(1, 50, 50).unwrap();
        let off = (silu_gate(&x).unwrap() - composite.unwrap()).unwrap().abs().unwrap();
        assert!(off.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
        let far = Tensor::new(&[[-1e4f32, -90.0, 90.0, 1e4, 1.0, 1.0, 1.0, 1.0]], &Device::Cpu).unwrap();
        assert_eq!(silu_gate(&far).unwrap().to_vec2::<f32>().unwrap()[0][2..], [90.0, 1e4]);
        let small = &silu_gate(&far).unwrap().to_vec2::<f32>().unwrap()[0][..2];
        assert!(small.iter().all(|y| y.abs() < 1e-30), "{small:?}");
    }

    #[test]
    fn gated_rows_are_the_same_bits_alone() {
        let x = Tensor::randn(0f32, 3.0, (300, 2 * 50), &Device::Cpu).unwrap();
        let whole = silu_gate(&x).unwrap().to_vec2::<f32>().unwrap();
        let part = silu_gate(&x.narrow(0, 17, 3).unwrap()).unwrap().to_vec2::<f32>().unwrap();
        assert_eq!(part, whole[17..20]);
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
