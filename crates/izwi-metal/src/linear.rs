//! Products with stored weights, fused with the norm before and the operations after. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};
use crate::weights::MetalWeights;

/// Rows up to which a kernel reads each weight once without tiles.
const FEW_ROWS: usize = 16;
/// Simdgroups of a threadgroup for few rows.
const SIMDGROUPS: usize = 2;

/// What happens to a product, after the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Epilogue {
    /// Nothing.
    #[default]
    None,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// By the error function.
    Gelu,
    /// By the approximation with tanh: <https://arxiv.org/abs/1606.08415> (section 2).
    GeluTanh,
    /// The larger of the value and 0.
    Relu,
    /// The weight has twice the outputs: SiLU of the first half times the second half.
    GatedSilu,
}

/// The norm of the rows before a product.
#[derive(Debug, Clone, Copy, Default)]
pub enum Norm<'a> {
    /// None.
    #[default]
    None,
    /// Root mean square with a weight `[inputs]`.
    Rms {
        /// `[inputs]`.
        weight: &'a Tensor,
        /// Added to the mean square.
        eps: f32,
    },
    /// Mean and variance with a weight and a bias, `[inputs]` each.
    Layer {
        /// `[inputs]`.
        weight: &'a Tensor,
        /// `[inputs]`.
        bias: &'a Tensor,
        /// Added to the variance.
        eps: f32,
    },
}

/// A product and what is fused with it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Fused<'a> {
    /// Of the rows before.
    pub norm: Norm<'a>,
    /// `[stored outputs]`.
    pub bias: Option<&'a Tensor>,
    /// After the bias.
    pub epilogue: Epilogue,
    /// Factors of the outputs, `[outputs]`.
    pub scale: Option<&'a Tensor>,
    /// Added to the result, of its shape.
    pub residual: Option<&'a Tensor>,
}

impl Pass<'_> {
    /// `[rows, inputs]` f32, each row contiguous, to `[rows, outputs]` f32.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn linear(&self, x: &Tensor, weights: &MetalWeights, fused: Fused<'_>) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        let outputs = outputs(weights, fused);
        let odd = fused.epilogue == Epilogue::GatedSilu && !weights.outputs().is_multiple_of(2);
        if inputs != weights.inputs() || odd {
            bail!(
                "linear: {:?} does not fit a weight of {} outputs and {} inputs",
                x.dims(),
                weights.outputs(),
                weights.inputs()
            )
        }
        let y = self.empty((rows, outputs), DType::F32)?;
        let (norm, [norm_weight, norm_bias], eps) = norm_args(fused.norm, inputs)?;
        let activation = match fused.epilogue {
            Epilogue::None => 0,
            Epilogue::Silu => 1,
            Epilogue::Gelu => 2,
            Epilogue::Relu => 3,
            Epilogue::GatedSilu => 4,
            Epilogue::GeluTanh => 5,
        };
        let fits =
            |tensor: Option<&Tensor>, dims: &[usize]| tensor.is_none_or(|tensor| tensor.dims() == dims);
        let fit = [
            fits(fused.bias, &[weights.outputs()]),
            fits(fused.scale, &[outputs]),
            fits(fused.residual, y.dims()),
        ];
        if fit.contains(&false) {
            bail!("linear: the bias, the scale or the residual does not fit {outputs} outputs of {rows} rows")
        }
        let params = [
            inputs as u32,
            outputs as u32,
            rows as u32,
            x.stride()[0] as u32,
            weights.row_bytes() as u32,
            weights.scales() as u32,
            weights.blocks() as u32,
            norm,
            eps.to_bits(),
            fused.bias.is_some().into(),
            activation,
            fused.residual.is_some().into(),
            outputs as u32,
            fused.scale.is_some().into(),
        ];
        let args = [
            Arg::In(weights.data()),
            Arg::Rows(x),
            Arg::Out(&y),
            Arg::Params(&params),
            norm_weight,
            norm_bias,
            Arg::optional(fused.bias),
            Arg::optional(fused.residual),
            Arg::optional(fused.scale),
        ];
        let reads = if rows > FEW_ROWS { rows.div_ceil(32) } else { 1 };
        self.expect(2 * rows * inputs * weights.outputs(), reads * weights.bytes())?;
        let (name, grid) = plan(weights, rows, outputs, fused.epilogue == Epilogue::GatedSilu);
        self.run(Kernel(Source::Linear, name), &args, grid)?;
        Ok(y)
    }
}

fn outputs(weights: &MetalWeights, fused: Fused<'_>) -> usize {
    if fused.epilogue == Epilogue::GatedSilu { weights.outputs() / 2 } else { weights.outputs() }
}

fn norm_args<'a>(norm: Norm<'a>, inputs: usize) -> Result<(u32, [Arg<'a>; 2], f32)> {
    let tensors = match norm {
        Norm::None => return Ok((0, [Arg::Unused; 2], 0.0)),
        Norm::Rms { weight, .. } => [weight, weight],
        Norm::Layer { weight, bias, .. } => [weight, bias],
    };
    if tensors.iter().any(|tensor| tensor.dims() != [inputs]) {
        bail!("linear: a norm of {:?} does not fit {inputs} inputs", tensors[0].dims())
    }
    Ok(match norm {
        Norm::Rms { weight, eps } => (1, [Arg::In(weight), Arg::Unused], eps),
        Norm::Layer { weight, bias, eps } => (2, [Arg::In(weight), Arg::In(bias)], eps),
        Norm::None => (0, [Arg::Unused; 2], 0.0),
    })
}

/// The kernel and its grid.
fn plan(weights: &MetalWeights, rows: usize, outputs: usize, gated: bool) -> (&'static str, Grid) {
    if rows > FEW_ROWS {
        let step = if gated { 16 } else { 32 };
        let groups = [outputs.div_ceil(step), rows.div_ceil(32), 1];
        return (weights.tiles_kernel(), Grid { groups, threads: 128 });
    }
    let at_once = rows.next_power_of_two();
    // Stored rows of a simdgroup, as in linear.metal.
    let stored = if at_once == 16 { 2 } else { 4 };
    let step = SIMDGROUPS * if gated { stored / 2 } else { stored };
    let grid = Grid { groups: [outputs.div_ceil(step), 1, 1], threads: 32 * SIMDGROUPS };
    (weights.rows_kernel(at_once), grid)
}
