//! Gated short convolution (LFM2): a causal operator whose state is a sequence's last rows.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::Linear;
use crate::slices::with_slices;
use izwi_kernels::conv::GatedConv1d;
use izwi_types::Precision;

/// Sizes of an operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShortConvShape {
    /// Channels in, inside and out.
    pub width: usize,
    /// Taps of the kernel.
    pub taps: usize,
    /// Type of the two linear weights.
    pub precision: Precision,
}

/// A linear layer maps each row to a factor, a gate and an input; factor times input passes a causal depthwise
/// convolution, the result times the gate a second linear layer. No biases.
///
/// The state of a sequence is `[taps - 1, width]`. On the CPU a row's result is the same bits for any chunking and any
/// batch.
#[derive(Debug, Clone)]
pub struct ShortConv {
    input: Linear,  // [3 * width, width]
    weight: Tensor, // [taps, width]
    output: Linear,
}

impl ShortConv {
    /// Takes `{name}.in_proj.weight` `[3 * width, width]`, `{name}.conv.weight` `[width, 1, taps]` and
    /// `{name}.out_proj.weight` `[width, width]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: ShortConvShape,
    ) -> std::result::Result<Self, Error> {
        let ShortConvShape { width, taps, precision } = shape;
        let linear = |from: &mut Checkpoint, part: &str, outputs: usize| {
            let name = format!("{name}.{part}");
            Linear::load_stacked(from, &[(name.as_str(), outputs)], width, precision)
        };
        let input = linear(from, "in_proj", 3 * width)?;
        let weight = from.take(&format!("{name}.conv.weight"), &[width, 1, taps])?;
        let weight = weight.squeeze(1)?.t()?.contiguous()?;
        Ok(Self { input, weight, output: linear(from, "out_proj", width)? })
    }

    /// State of a new sequence: zeros.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn start(&self, device: &Device) -> Result<Tensor> {
        let (taps, width) = self.weight.dims2()?;
        Tensor::zeros((taps - 1, width), DType::F32, device)
    }

    /// Taps of the kernel.
    pub fn taps(&self) -> usize {
        self.weight.dims()[0]
    }

    /// Bytes of a sequence's state.
    pub fn state_bytes(&self) -> usize {
        (self.weight.elem_count() - self.weight.dims()[1]) * size_of::<f32>()
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.input.bytes() + self.output.bytes() + self.weight.elem_count() * size_of::<f32>()
    }

    /// New rows of several sequences, `rows[i]` of the `i`-th, one after another: `[sum of rows, width]` to the same.
    /// Replaces the states.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, rows: &[usize], states: &mut [&mut Tensor]) -> Result<Tensor> {
        self.output.forward(&self.convolve(&self.input.forward(x)?, rows, states)?)
    }

    /// The products that the rows `seen` (sequence, row in the chunk) read in [`Self::convolve`], their own last:
    /// `[seen, taps * width]`.
    ///
    /// # Errors
    /// Shapes do not fit, or there is no such row.
    pub(crate) fn seen(
        &self,
        wide: &Tensor,
        rows: &[usize],
        states: &[&mut Tensor],
        seen: &[(usize, usize)],
    ) -> Result<Tensor> {
        let (taps, width) = self.weight.dims2()?;
        let products = |start: usize, count: usize| {
            let part = |index: usize| wide.narrow(0, start, count)?.narrow(1, index * width, width);
            part(0)? * part(2)?
        };
        let mut kept = Vec::with_capacity(seen.len());
        for &(sequence, row) in seen {
            let start: usize = rows.iter().take(sequence).sum();
            kept.push(match row.checked_sub(taps - 1) {
                Some(first) => products(start + first, taps)?,
                None => {
                    let Some(state) = states.get(sequence) else {
                        bail!("short convolution: sequence {sequence} of {}", states.len())
                    };
                    let kept_rows = state.narrow(0, row, taps - 1 - row)?;
                    Tensor::cat(&[kept_rows, products(start, row + 1)?], 0)?
                }
            });
        }
        Tensor::cat(&kept, 0)?.reshape((seen.len(), taps * width))
    }

    /// The products before and after the convolution.
    pub(crate) fn linears(&self) -> [&Linear; 2] {
        [&self.input, &self.output]
    }

    /// `[taps, width]`.
    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// Convolves what the product before made, and replaces the states.
    pub(crate) fn convolve(&self, x: &Tensor, rows: &[usize], states: &mut [&mut Tensor]) -> Result<Tensor> {
        let (total, wide) = x.dims2()?;
        let (taps, width) = self.weight.dims2()?;
        let fits = |state: &&mut Tensor| state.dims() == [taps - 1, width];
        if wide != 3 * width || rows.len() != states.len() || !states.iter().all(fits) {
            bail!("short convolution: [{total}, {wide}] or the states do not fit {width} channels")
        }
        if rows.iter().sum::<usize>() != total || rows.is_empty() {
            bail!("short convolution: {total} rows for pieces of {rows:?}")
        }
        if x.device().is_cpu() { self.on_cpu(x, rows, states) } else { self.composite(x, rows, states) }
    }

    fn on_cpu(&self, x: &Tensor, rows: &[usize], states: &mut [&mut Tensor]) -> Result<Tensor> {
        let (taps, width) = self.weight.dims2()?;
        let before: Vec<&Tensor> = states.iter().map(|state| &**state).collect();
        let before = Tensor::cat(&before, 0)?;
        let (y, after) = with_slices([x, &before, &self.weight], |[x, tails, weight]| {
            let (mut y, mut after) = (vec![0f32; x.len() / 3], vec![0f32; tails.len()]);
            GatedConv1d { x, states: tails, weight, channels: width }.convolve(rows, &mut y, &mut after);
            (y, after)
        })?;
        let kept = (taps - 1) * width;
        for (sequence, state) in states.iter_mut().enumerate() {
            let part = &after[sequence * kept..][..kept];
            **state = Tensor::from_slice(part, (taps - 1, width), x.device())?;
        }
        let total = x.dim(0)?;
        Tensor::from_vec(y, (total, width), x.device())
    }

    fn composite(&self, x: &Tensor, rows: &[usize], states: &mut [&mut Tensor]) -> Result<Tensor> {
        let (taps, width) = self.weight.dims2()?;
        let part = |index: usize| x.narrow(1, index * width, width);
        let products = (part(0)? * part(2)?)?;
        let mut start = 0;
        let mut parts = Vec::with_capacity(rows.len());
        for (&rows, state) in rows.iter().zip(states) {
            let joined = Tensor::cat(&[&**state, &products.narrow(0, start, rows)?], 0)?;
            let mut sum = joined.narrow(0, 0, rows)?.broadcast_mul(&self.weight.narrow(0, 0, 1)?)?;
            for tap in 1..taps {
                let weight = self.weight.narrow(0, tap, 1)?;
                sum = (sum + joined.narrow(0, tap, rows)?.broadcast_mul(&weight)?)?;
            }
            parts.push(sum);
            **state = joined.narrow(0, rows, taps - 1)?.force_contiguous()?;
            start += rows;
        }
        part(1)? * Tensor::cat(&parts, 0)?
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn random(rows: usize, width: usize) -> Tensor {
        Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        #[test]
        fn chunks_in_a_batch_equal_the_whole_to_the_bit(
            width in 1usize..40,
            taps in 1usize..5,
            cuts in prop::collection::vec(1usize..70, 1..5),
        ) {
            let linear = |outputs| Linear::new(&random(outputs, width), None).unwrap();
            let conv = ShortConv { input: linear(3 * width), weight: random(taps, width), output: linear(width) };
            let x = random(cuts.iter().sum(), width);
            let total = x.dim(0).unwrap();
            let [mut whole_state, mut near_state, mut state, mut other] =
                [(); 4].map(|()| conv.start(&Device::Cpu).unwrap());
            let whole = conv.forward(&x, &[total], &mut [&mut whole_state]).unwrap().to_vec2::<f32>().unwrap();
            let wide = conv.input.forward(&x).unwrap();
            let near = conv.composite(&wide, &[total], &mut [&mut near_state]).unwrap();
            let ours = conv.on_cpu(&wide, &[total], &mut [&mut other.clone()]).unwrap();
            let largest = |x: Tensor| x.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            let off = largest((&ours - near).unwrap()) / largest(ours).max(1.0);
            prop_assert!(off < 1e-5, "{off}");
            prop_assert_eq!(near_state.to_vec2::<f32>().unwrap(), whole_state.to_vec2::<f32>().unwrap());
            let mut start = 0;
            for rows in cuts {
                let both = Tensor::cat(&[random(2, width), x.narrow(0, start, rows).unwrap()], 0).unwrap();
                let seen = [(1, rows - 1)];
                let mixed = conv.input.forward(&both).unwrap();
                let seen = conv.seen(&mixed, &[2, rows], &[&mut other, &mut state], &seen).unwrap();
                let y = conv.forward(&both, &[2, rows], &mut [&mut other, &mut state]).unwrap();
                prop_assert_eq!(&seen.flatten_all().unwrap().to_vec1::<f32>().unwrap()[width..], state.flatten_all().unwrap().to_vec1::<f32>().unwrap());
                prop_assert_eq!(&y.to_vec2::<f32>().unwrap()[2..], &whole[start..start + rows]);
                start += rows;
            }
            prop_assert_eq!(state.to_vec2::<f32>().unwrap(), whole_state.to_vec2::<f32>().unwrap());
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        let linear = |outputs| Linear::new(&random(outputs, 4), None).unwrap();
        let conv = ShortConv { input: linear(12), weight: random(3, 4), output: linear(4) };
        let mut state = conv.start(&Device::Cpu).unwrap();
        assert_eq!(conv.state_bytes(), 2 * 4 * size_of::<f32>());
        assert!(conv.forward(&random(3, 4), &[2], &mut [&mut state]).is_err());
        assert!(conv.forward(&random(3, 4), &[3], &mut []).is_err());
        assert!(conv.forward(&random(3, 4), &[3], &mut [&mut random(1, 4)]).is_err());
        assert!(conv.forward(&random(3, 4), &[3], &mut [&mut state]).is_ok());
    }
}
