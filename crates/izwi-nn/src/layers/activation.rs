//! Activations and residuals, fused with the neighbouring bias or gate on the CPU. Knows no weight.

use candle_core::{CpuStorage, DType, InplaceOp2, Layout, Result, Tensor, bail};

use crate::slices::{cpu_slice, with_rows, with_slices};
use izwi_kernels::elementwise;

pub use izwi_metal::{Activation, Epilogue};

/// `activation` of every element of `x` `[rows, width]`; the width of Snake is a multiple of its channels.
///
/// # Errors
/// Shapes do not fit.
pub fn activate(x: &Tensor, activation: Activation<'_>) -> Result<Tensor> {
    match activation {
        Activation::Silu => x.silu(),
        Activation::Gelu => x.gelu_erf(),
        Activation::Relu => x.relu(),
        Activation::Elu => elu(x),
        Activation::Clamp => x.clamp(-1f32, 1f32),
        Activation::Snake { frequency, amplitude } => snake(x, frequency, amplitude),
    }
}

/// `x + change`, both of one shape. On the CPU the sum overwrites `change`, whose storage must not be shared.
///
/// # Errors
/// Shapes do not fit.
pub fn residual(x: &Tensor, change: Tensor) -> Result<Tensor> {
    let in_place = x.device().is_cpu() && x.dims() == change.dims() && change.is_contiguous();
    if !in_place || x.dtype() != DType::F32 || change.dtype() != DType::F32 {
        return x + change;
    }
    change.inplace_op2(&x.contiguous()?, &AddTo)?;
    Ok(change)
}

struct AddTo;

impl InplaceOp2 for AddTo {
    fn name(&self) -> &'static str {
        "add-to"
    }

    fn cpu_fwd(
        &self,
        change: &mut CpuStorage,
        change_layout: &Layout,
        x: &CpuStorage,
        x_layout: &Layout,
    ) -> Result<()> {
        let (CpuStorage::F32(change), Some((start, end))) = (change, change_layout.contiguous_offsets())
        else {
            bail!("add-to: the tensor must be contiguous f32")
        };
        elementwise::add_assign(cpu_slice(x, x_layout)?, &mut change[start..end]);
        Ok(())
    }
}

/// `gelu(x + bias)` with `x` `[rows, width]` and `bias` `[width]`.
///
/// # Errors
/// Shapes do not fit.
pub fn bias_gelu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.broadcast_add(bias)?.gelu_erf();
    }
    with_bias(x, bias, elementwise::bias_gelu)
}

/// As [`bias_gelu`], by the approximation with tanh: <https://arxiv.org/abs/1606.08415> (section 2).
///
/// # Errors
/// Shapes do not fit.
pub fn bias_gelu_tanh(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.broadcast_add(bias)?.gelu();
    }
    with_bias(x, bias, elementwise::bias_gelu_tanh)
}

/// `activate` on the CPU, with `x` `[rows, width]` and `bias` `[width]`.
fn with_bias(x: &Tensor, bias: &Tensor, activate: impl Fn(&[f32], &[f32], &mut [f32])) -> Result<Tensor> {
    if bias.dims().len() != 1 || bias.elem_count() == 0 || x.dims().last() != bias.dims().last() {
        bail!("bias and activation: {:?} does not end in {:?}", x.dims(), bias.dims())
    }
    let y = with_slices([x, bias], |[x, bias]| {
        let mut y = vec![0f32; x.len()];
        activate(x, bias, &mut y);
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
        bail!("silu-gate: rows of {both} values do not halve")
    }
    if !x.device().is_cpu() {
        return x.narrow(1, 0, width)?.silu()? * x.narrow(1, width, width)?;
    }
    let y = with_rows(x, |x| {
        let mut y = vec![0f32; rows * width];
        elementwise::silu_mul(x, width, &mut y);
        y
    })?;
    Tensor::from_vec(y, (rows, width), x.device())
}

/// `silu(x + bias)` with `x` `[rows, width]` and `bias` `[width]`.
///
/// # Errors
/// Shapes do not fit.
pub fn bias_silu(x: &Tensor, bias: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.broadcast_add(bias)?.silu();
    }
    with_bias(x, bias, elementwise::bias_silu)
}

/// `value * sigmoid(gate)`, where each row of `x` `[rows, 2 * width]` is `width` values and then `width` gates.
///
/// # Errors
/// Shapes do not fit.
pub fn sigmoid_gate(x: &Tensor) -> Result<Tensor> {
    let (rows, both) = x.dims2()?;
    let width = both / 2;
    if width == 0 || both % 2 == 1 {
        bail!("sigmoid-gate: rows of {both} values do not halve")
    }
    if !x.device().is_cpu() {
        return x.narrow(1, 0, width)? * candle_nn::ops::sigmoid(&x.narrow(1, width, width)?)?;
    }
    let y = with_rows(x, |x| {
        let mut y = vec![0f32; rows * width];
        elementwise::glu(x, width, &mut y);
        y
    })?;
    Tensor::from_vec(y, (rows, width), x.device())
}

/// `x` above zero, `e^x - 1` below. <https://arxiv.org/abs/1511.07289>.
///
/// # Errors
/// The device is out of memory.
pub fn elu(x: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.elu(1.0);
    }
    let y = with_slices([x], |[x]| {
        let mut y = vec![0f32; x.len()];
        elementwise::elu(x, &mut y);
        y
    })?;
    Tensor::from_vec(y, x.dims(), x.device())
}

/// `x + sin²(a x) b` of each channel: `x` `[rows, width]`, `a` and `b` `[width]`.
/// <https://arxiv.org/abs/2006.08195>, with an amplitude independent of the frequency.
///
/// # Errors
/// Shapes do not fit.
pub fn snake(x: &Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x + x.broadcast_mul(a)?.sin()?.sqr()?.broadcast_mul(b)?;
    }
    if a.dims().len() != 1
        || a.elem_count() == 0
        || a.dims() != b.dims()
        || x.dims().last() != a.dims().last()
    {
        bail!("snake: {:?} does not end in {:?} and {:?}", x.dims(), a.dims(), b.dims())
    }
    let y = with_slices([x, a, b], |[x, a, b]| {
        let mut y = vec![0f32; x.len()];
        elementwise::snake(x, a, b, &mut y);
        y
    })?;
    Tensor::from_vec(y, x.dims(), x.device())
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn a_residual_is_the_sum_for_any_layout() {
        let random = |rows, width| Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap();
        let values = |x: &Tensor| x.to_vec2::<f32>().unwrap();
        for (rows, width) in [(1, 1), (3, 40), (400, 300)] {
            let (x, change) = (random(rows, width), random(rows, width));
            let sum = (&x + &change).unwrap();
            assert_eq!(values(&residual(&x, change.copy().unwrap()).unwrap()), values(&sum));
            let turned = random(width, rows);
            let sum = (turned.t().unwrap() + &change).unwrap();
            assert_eq!(
                values(&residual(&turned.t().unwrap(), change.copy().unwrap()).unwrap()),
                values(&sum)
            );
            assert_eq!(values(&residual(&change, turned.t().unwrap()).unwrap()), values(&sum));
        }
        assert!(residual(&random(2, 3), random(3, 2)).is_err());
    }

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
    fn gelu_by_tanh_is_its_formula_to_single_precision() {
        let x: Vec<f32> = (-60_000..=60_000).map(|step| step as f32 * 2e-4).collect();
        let input = Tensor::new(x.as_slice(), &Device::Cpu).unwrap().reshape((x.len(), 1)).unwrap();
        let none = Tensor::zeros(1, candle_core::DType::F32, &Device::Cpu).unwrap();
        let y: Vec<f32> = bias_gelu_tanh(&input, &none).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        for (x, y) in x.into_iter().map(f64::from).zip(y.into_iter().map(f64::from)) {
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            let exact = 0.5 * x * (1.0 + u.tanh());
            assert!((y - exact).abs() < 3e-6, "{x}: {y} {exact}");
        }
        let far = Tensor::new(&[[-1e20f32, -30.0, 30.0, 1e12]], &Device::Cpu).unwrap();
        let zeros = Tensor::zeros(4, candle_core::DType::F32, &Device::Cpu).unwrap();
        let y = bias_gelu_tanh(&far, &zeros).unwrap().to_vec2::<f32>().unwrap().remove(0);
        assert!(y[0].abs() < 1e-15 && y[1].abs() < 1e-15 && y[2..] == [30.0, 1e12], "{y:?}");
    }

    #[test]
    fn snake_is_exact_to_single_precision() {
        let x: Vec<f32> = (-60_000..=60_000).map(|step| step as f32 * 1e-2).collect();
        let input = Tensor::new(x.as_slice(), &Device::Cpu).unwrap().reshape((x.len(), 1)).unwrap();
        let [a, b] = [1.7f32, 0.6].map(|value| Tensor::new(&[value], &Device::Cpu).unwrap());
        let y: Vec<f32> = snake(&input, &a, &b).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        for (x, y) in x.into_iter().zip(y) {
            let exact = f64::from(x) + f64::from(x * 1.7f32).sin().powi(2) * f64::from(0.6f32);
            let allowed = 4e-7 + exact.abs() * 6e-8;
            assert!((f64::from(y) - exact).abs() < allowed, "{x}: {y} {exact}");
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
    fn elu_silu_and_gates_equal_candle() {
        let x = Tensor::randn(0f32, 3.0, (9, 2 * 50), &Device::Cpu).unwrap();
        let worst = |a: Tensor, b: Tensor| {
            (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap()
        };
        assert!(worst(elu(&x).unwrap(), x.elu(1.0).unwrap()) < 1e-6);
        let bias = Tensor::randn(0f32, 1.0, 100, &Device::Cpu).unwrap();
        let silu = x.broadcast_add(&bias).unwrap().silu().unwrap();
        assert!(worst(bias_silu(&x, &bias).unwrap(), silu) < 1e-5);
        let gate = candle_nn::ops::sigmoid(&x.narrow(1, 50, 50).unwrap()).unwrap();
        assert!(worst(sigmoid_gate(&x).unwrap(), (x.narrow(1, 0, 50).unwrap() * gate).unwrap()) < 1e-5);
        let far = Tensor::new(&[[-1e4f32, -90.0, 90.0, 1e4]], &Device::Cpu).unwrap();
        assert_eq!(elu(&far).unwrap().to_vec2::<f32>().unwrap()[0], [-1.0, -1.0, 90.0, 1e4]);
        assert!(bias_silu(&x, &bias.narrow(0, 0, 3).unwrap()).is_err());
        assert!(sigmoid_gate(&x.narrow(1, 0, 3).unwrap()).is_err());
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
