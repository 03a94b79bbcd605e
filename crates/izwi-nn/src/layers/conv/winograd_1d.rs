//! Winograd convolution F(4, 7) along rows that come in groups of one size, on the CPU: fewer products than
//! [`Conv1d`](crate::layers::conv::Conv1d) needs.

use std::sync::Arc;

use candle_core::{DType, Result, Tensor, bail};

use crate::Error;
use crate::checkpoint::{Checkpoint, Recipe};
use crate::layers::cat_weights;
use crate::slices::with_slices;
use izwi_kernels::conv::ConvPanels;
use izwi_kernels::conv::winograd::{PACKED_TAPS, RowGroups, TAPS, pack_winograd, winograd_conv1d};
use izwi_kernels::packed::Packed;
use izwi_types::Precision;

/// `y[i] = Σ_t W_t x[start + i + t * dilation] + b` for the rows of a group; a row of `y` is the same bits for any
/// other groups, and within 100 dB of the plain sum. A clone shares the weight.
#[derive(Debug, Clone)]
pub struct WinogradConv1d {
    weight: Arc<ConvPanels>,
    bias: Tensor, // [outputs]
    rows: usize,
    dilation: usize,
    inputs: usize,
    outputs: usize,
}

impl WinogradConv1d {
    /// Taps of every such convolution.
    pub const TAPS: usize = TAPS;

    /// From a weight `[outputs, inputs, 7]` in PyTorch's layout and a bias `[outputs]`, for groups of `rows`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn new(weight: &Tensor, bias: Tensor, rows: usize, dilation: usize) -> Result<Self> {
        let (outputs, inputs, _) = weight.dims3()?;
        Self::assemble(Arc::new(packed(weight)?), bias, [rows, dilation, inputs, outputs])
    }

    /// Takes `name` `[outputs, inputs, 7]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`] and [`Self::new`].
    pub fn load(
        from: &mut Checkpoint,
        name: String,
        bias: Tensor,
        [rows, dilation, inputs, outputs]: [usize; 4],
    ) -> std::result::Result<Self, Error> {
        let part = (name, vec![outputs, inputs, TAPS]);
        let sizes = [PACKED_TAPS, inputs, outputs];
        let recipe =
            Recipe { parts: &[part], transform_id: "winograd F(4, 7), ", precision: Precision::F32, sizes };
        let weight = from.take_packed(&recipe, |tensors| Ok(packed(&cat_weights(tensors)?)?))?;
        Ok(Self::assemble(weight, bias, [rows, dilation, inputs, outputs])?)
    }

    fn assemble(weight: Arc<ConvPanels>, bias: Tensor, sizes: [usize; 4]) -> Result<Self> {
        let [rows, dilation, inputs, outputs] = sizes;
        if rows == 0 || dilation == 0 || bias.dims() != [outputs] {
            bail!(
                "convolution: groups of {rows} rows, dilation {dilation}, or a bias without {outputs} elements"
            )
        }
        let bias = bias.to_dtype(DType::F32)?.contiguous()?;
        Ok(Self { weight, bias, rows, dilation, inputs, outputs })
    }

    /// Rows from the first tap to the last.
    pub fn reach(&self) -> usize {
        (TAPS - 1) * self.dilation
    }

    /// Channels of the input.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Elements of the weight.
    pub fn elements(&self) -> usize {
        self.outputs * self.inputs * TAPS
    }

    /// Bytes of the transformed weight.
    pub fn bytes(&self) -> usize {
        self.weight.data().len()
    }

    /// Rows of a group.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// `x` `[n, inputs]` to `[starts * rows, outputs]`, where `starts[g]` is the first row that group `g` reads.
    ///
    /// # Errors
    /// Shapes do not fit, or a row lies outside `x`.
    pub fn forward(&self, x: &Tensor, starts: &[u32]) -> Result<Tensor> {
        let (rows, inputs) = x.dims2()?;
        let last = starts.iter().copied().max().unwrap_or(0) as usize + self.rows - 1 + self.reach();
        if inputs != self.inputs || starts.is_empty() || last >= rows {
            bail!("convolution: [{rows}, {inputs}] for rows up to {last} of {} channels", self.inputs)
        }
        let y = with_slices([x, &self.bias], |[data, bias]| {
            let mut y = vec![0f32; starts.len() * self.rows * self.outputs];
            let x = RowGroups { data, starts, rows: self.rows, dilation: self.dilation };
            winograd_conv1d(x, &self.weight, Some(bias), &mut y);
            y
        })?;
        Tensor::from_vec(y, (starts.len() * self.rows, self.outputs), x.device())
    }
}

/// Transforms and packs a weight `[outputs, inputs, 7]`.
fn packed(weight: &Tensor) -> Result<ConvPanels> {
    let (outputs, inputs, taps) = weight.dims3()?;
    if taps != TAPS {
        bail!("convolution: {taps} taps instead of {TAPS}")
    }
    let rows = weight.to_dtype(DType::F32)?.transpose(1, 2)?.contiguous()?; // [outputs, taps, inputs]
    with_slices([&rows], |[rows]| pack_winograd(rows, outputs, inputs))
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use proptest::prelude::*;

    use super::*;
    use crate::layers::conv::Conv1d;

    fn random(shape: impl Into<candle_core::Shape>) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    fn size(x: &Tensor) -> f32 {
        x.sqr().unwrap().mean_all().unwrap().sqrt().unwrap().to_scalar().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn groups_equal_a_plain_sum_and_each_group_alone(
            inputs in 1usize..150,
            outputs in 1usize..200,
            rows in 1usize..50,
            dilation in 1usize..10,
            starts in prop::collection::vec(0u32..60, 1..12),
        ) {
            let (weight, bias) = (random((outputs, inputs, TAPS)), random(outputs));
            let conv = WinogradConv1d::new(&weight, bias.clone(), rows, dilation).unwrap();
            let plain = Conv1d::new(&weight, Some(bias), dilation).unwrap();
            let x = random((60 + rows + conv.reach(), inputs));
            let y = conv.forward(&x, &starts).unwrap();
            let each: Vec<u32> = starts.iter().flat_map(|start| (0..rows as u32).map(move |row| start + row)).collect();
            let plain = plain.forward(&x, &each).unwrap();
            let off = size(&(&y - &plain).unwrap());
            prop_assert!(off < 2e-5 * size(&plain), "{off}");
            for (group, start) in starts.iter().enumerate() {
                let alone = conv.forward(&x, &[*start]).unwrap().to_vec2::<f32>().unwrap();
                prop_assert_eq!(alone, y.narrow(0, group * rows, rows).unwrap().to_vec2::<f32>().unwrap());
            }
        }
    }

    #[test]
    fn many_tiles_equal_each_tile_alone() {
        for (inputs, outputs, rows, dilation) in [(192, 192, 640, 3), (300, 130, 32, 9), (96, 96, 1920, 9)] {
            let conv = WinogradConv1d::new(&random((outputs, inputs, TAPS)), random(outputs), rows, dilation)
                .unwrap();
            let x = random((3 * rows + conv.reach(), inputs));
            let starts: Vec<u32> = (0..3).map(|group| group * rows as u32).collect();
            let y = conv.forward(&x, &starts).unwrap();
            for (group, start) in starts.iter().enumerate() {
                let alone = conv.forward(&x, &[*start]).unwrap().to_vec2::<f32>().unwrap();
                assert_eq!(alone, y.narrow(0, group * rows, rows).unwrap().to_vec2::<f32>().unwrap());
            }
            assert!(conv.forward(&x, &[2 * rows as u32 + 1]).is_err());
        }
        assert!(WinogradConv1d::new(&random((4, 4, 5)), random(4), 8, 1).is_err());
        assert!(WinogradConv1d::new(&random((4, 4, TAPS)), random(4), 0, 1).is_err());
        assert!(WinogradConv1d::new(&random((4, 4, TAPS)), random(5), 8, 1).is_err());
    }
}
