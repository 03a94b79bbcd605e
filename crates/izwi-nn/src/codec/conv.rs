//! Streaming causal convolutions: an output row depends on its own and earlier input rows. Knows no codec.

use candle_core::{Device, Result, Tensor, bail};

use super::stream::{StreamShape, Streams, TailPlace};
use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::activation::{Activation, activate, residual};
use crate::layers::conv::{Conv1d, Conv1dShape, DepthwiseConv, WinogradConv1d};
use izwi_metal::{ConvArgs, ConvEpilogue, Depthwise, DepthwiseForm, Edge};
use izwi_types::Precision;

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    /// Channels of the input.
    pub inputs: usize,
    /// Channels of the output.
    pub outputs: usize,
    /// Taps of the kernel.
    pub taps: usize,
    /// Rows between two taps.
    pub dilation: usize,
    /// Input rows per output row.
    pub stride: usize,
    /// Every chunk is a multiple of this many rows; 1 if unknown.
    pub group: usize,
    /// As [`Conv1d::with_precision`]; a [`WinogradConv1d`] is f32.
    pub precision: Precision,
}

impl Kernel {
    /// A kernel without dilation and stride, in f32, for chunks of any length.
    pub fn new(inputs: usize, outputs: usize, taps: usize) -> Self {
        Self { inputs, outputs, taps, dilation: 1, stride: 1, group: 1, precision: Precision::F32 }
    }

    /// Whether [`WinogradConv1d`] supports it and chunks fill at least a tile of rows.
    fn is_grouped(&self, device: &Device) -> bool {
        let has_form = self.taps == WinogradConv1d::TAPS && self.stride == 1 && device.is_cpu();
        has_form && self.group >= FEWEST_GROUPED
    }
}

/// Least rows of a group for which the Winograd kernel is faster.
const FEWEST_GROUPED: usize = 16;

/// Dense causal convolution, zero-padded at the start of a sequence.
#[derive(Debug, Clone)]
pub struct CausalConv {
    form: Form,
    stride: usize,
    tail: Option<TailPlace>,
}

#[derive(Debug, Clone)]
enum Form {
    Rows(Conv1d),
    Groups(WinogradConv1d),
}

impl CausalConv {
    /// Takes `{name}.weight` `[outputs, inputs, taps]` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the stride is longer than the kernel.
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        kernel: Kernel,
        shape: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let Kernel { inputs, outputs, taps, dilation, stride, precision, group } = kernel;
        let bias = from.take(&format!("{name}.bias"), &[outputs])?;
        let weight = format!("{name}.weight");
        if kernel.is_grouped(from.device()) {
            return Ok(Self::by_groups(
                WinogradConv1d::load(from, weight, bias, [group, dilation, inputs, outputs])?,
                shape,
            ));
        }
        let part = (weight, vec![outputs, inputs, taps]);
        let kernel = Conv1dShape { sizes: [taps, inputs, outputs], dilation, precision };
        let conv = Conv1d::load_transformed(from, (part, ""), Some(bias), kernel, Ok)?;
        Ok(Self::new(conv, stride, shape)?)
    }

    /// From a convolution of which every `stride`-th output is computed.
    ///
    /// # Errors
    /// The stride is longer than the kernel.
    pub fn new(conv: Conv1d, stride: usize, shape: &mut StreamShape) -> Result<Self> {
        if stride == 0 || conv.reach() + 1 < stride {
            bail!("causal convolution: a stride of {stride} over a kernel of {}", conv.reach() + 1)
        }
        let tail = conv.reach() + 1 - stride;
        let tail = (tail > 0).then(|| shape.tail(tail, conv.inputs()));
        Ok(Self { form: Form::Rows(conv), stride, tail })
    }

    /// From a Winograd convolution: chunks are multiples of its group.
    pub fn by_groups(conv: WinogradConv1d, shape: &mut StreamShape) -> Self {
        let tail = Some(shape.tail(conv.reach(), conv.inputs()));
        Self { form: Form::Groups(conv), stride: 1, tail }
    }

    /// Elements and bytes of the weight of a Winograd convolution, else zeros.
    pub fn grouped(&self) -> [usize; 2] {
        match &self.form {
            Form::Rows(_) => [0, 0],
            Form::Groups(conv) => [conv.elements(), conv.bytes()],
        }
    }

    /// `[rows, inputs]` to `[rows / stride, outputs]`. A chunk that is no multiple of the stride is padded
    /// with zeros: it must be the last of its sequence.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        if let Some([Some(y), _]) = self.on_metal(x, ConvEpilogue::default(), streams)? {
            return Ok(y);
        }
        let (x, starts) = match self.tail {
            Some(tail) => streams.join(tail, x, self.stride)?,
            None if self.stride == 1 => (x.clone(), vec![0]),
            None => bail!("causal convolution: a kernel as long as its stride needs whole chunks"),
        };
        streams.divide(self.stride);
        if self.tail.is_none() {
            return self.form.rows(&x, (0..x.dim(0)?).map(|row| row as u32).collect());
        }
        let group = self.form.group();
        if let Some(rows) = streams.rows().iter().find(|rows| !rows.is_multiple_of(group)) {
            bail!("causal convolution: a chunk of {rows} rows is no multiple of {group}")
        }
        let outputs = starts.iter().zip(streams.rows());
        let step = group * self.stride;
        let starts =
            outputs.flat_map(|(&start, &rows)| (0..rows / group).map(move |at| (start + at * step) as u32));
        self.form.rows(&x, starts.collect())
    }

    /// As [`Self::forward`] with `addend` of its shape added, if any; that, and the same activated.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_pair(
        &self,
        x: &Tensor,
        addend: Option<&Tensor>,
        activation: Activation<'_>,
        streams: &mut Streams<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let epilogue = ConvEpilogue { residual: addend, activation: Some(activation), drops_plain: false };
        if let Some([Some(y), Some(activated)]) = self.on_metal(x, epilogue, streams)? {
            return Ok((y, activated));
        }
        let y = self.forward(x, streams)?;
        let y = if let Some(addend) = addend { residual(addend, y)? } else { y };
        let activated = activate(&y, activation)?;
        Ok((y, activated))
    }

    /// The second of [`Self::forward_pair`].
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_activated(
        &self,
        x: &Tensor,
        addend: Option<&Tensor>,
        activation: Activation<'_>,
        streams: &mut Streams<'_>,
    ) -> Result<Tensor> {
        let epilogue = ConvEpilogue { residual: addend, activation: Some(activation), drops_plain: true };
        if let Some([_, Some(activated)]) = self.on_metal(x, epilogue, streams)? {
            return Ok(activated);
        }
        Ok(self.forward_pair(x, addend, activation, streams)?.1)
    }

    /// With the kernel for Metal, if the weight is there.
    fn on_metal(
        &self,
        x: &Tensor,
        epilogue: ConvEpilogue<'_>,
        streams: &mut Streams<'_>,
    ) -> Result<Option<[Option<Tensor>; 2]>> {
        let Form::Rows(conv) = &self.form else { return Ok(None) };
        let (Some(weights), Some(table)) = (conv.on_metal(), streams.sequence_table(self.tail, self.stride)?)
        else {
            return Ok(None);
        };
        if self.tail.is_none() && self.stride > 1 {
            bail!("causal convolution: a kernel as long as its stride needs whole chunks")
        }
        let args = ConvArgs { stride: self.stride, before: conv.reach() + 1 - self.stride, edge: Edge::Zero };
        let results = izwi_metal::conv(x, weights, args, &table, epilogue)?;
        streams.divide(self.stride);
        Ok(Some(results))
    }
}

impl Form {
    /// Output rows per start row.
    fn group(&self) -> usize {
        match self {
            Self::Rows(_) => 1,
            Self::Groups(conv) => conv.rows(),
        }
    }

    fn rows(&self, x: &Tensor, starts: Vec<u32>) -> Result<Tensor> {
        match self {
            Self::Rows(conv) => conv.forward(x, &starts),
            Self::Groups(conv) => conv.forward(x, &starts),
        }
    }
}

/// Dense causal transposed convolution, `stride` output rows per input row, without the output after the last input row.
/// Computed as a causal convolution with `stride` times the outputs (polyphase).
#[derive(Debug, Clone)]
pub struct CausalTransposedConv {
    conv: CausalConv,
    stride: usize,
    outputs: usize,
}

impl CausalTransposedConv {
    /// Takes `{name}.weight` `[inputs, outputs, taps]` and `{name}.bias`; `kernel.stride` is the factor.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        kernel: Kernel,
        shape: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let Kernel { inputs, outputs, taps, stride, precision, .. } = kernel;
        if stride == 0 || taps == 0 {
            let message = format!("{name}: transposed convolution of {taps} taps, stride {stride}");
            return Err(Error::Checkpoint(message));
        }
        let bias = from.take(&format!("{name}.bias"), &[outputs])?;
        let bias = Tensor::cat(&vec![bias; stride], 0)?;
        let part = (format!("{name}.weight"), vec![inputs, outputs, taps]);
        let transform_id = format!("polyphase {stride}, ");
        let kernel =
            Conv1dShape { sizes: [taps.div_ceil(stride), inputs, stride * outputs], dilation: 1, precision };
        let conv = Conv1d::load_transformed(from, (part, &transform_id), Some(bias), kernel, |weight| {
            polyphase(&weight, stride)
        })?;
        Ok(Self { conv: CausalConv::new(conv, 1, shape)?, stride, outputs })
    }

    /// `[rows, inputs]` to `[rows * stride, outputs]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let y = self.conv.forward(x, streams)?;
        self.spread(&y, streams)
    }

    /// As [`Self::forward`]; that, and the same activated.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_pair(
        &self,
        x: &Tensor,
        activation: Activation<'_>,
        streams: &mut Streams<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let epilogue = ConvEpilogue { activation: Some(activation), ..Default::default() };
        if let Some([Some(y), Some(activated)]) = self.conv.on_metal(x, epilogue, streams)? {
            let y = self.spread(&y, streams)?;
            let activated = activated.reshape(y.dims())?;
            return Ok((y, activated));
        }
        let y = self.forward(x, streams)?;
        let activated = activate(&y, activation)?;
        Ok((y, activated))
    }

    /// `[rows, stride * outputs]` as `[rows * stride, outputs]`.
    fn spread(&self, y: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        streams.multiply(self.stride);
        y.reshape((streams.total_rows(), self.outputs))
    }
}

/// A weight `[inputs, outputs, taps]` of a transposed convolution as a polyphase convolution:
/// `[stride * outputs, inputs, steps]`.
fn polyphase(weight: &Tensor, stride: usize) -> Result<Tensor> {
    let (inputs, outputs, taps) = weight.dims3()?;
    let steps = taps.div_ceil(stride);
    let weight = weight.pad_with_zeros(2, 0, steps * stride - taps)?;
    let weight = weight.reshape((inputs, outputs, steps, stride))?.permute((3, 1, 0, 2))?;
    // The oldest row first: [stride, outputs, inputs, steps].
    let newest_last: Vec<_> =
        (0..steps).rev().map(|step| weight.narrow(3, step, 1)).collect::<Result<_>>()?;
    Tensor::cat(&newest_last, 3)?.reshape((stride * outputs, inputs, steps))
}

/// Depthwise causal transposed convolution, `stride` output rows per input row, without the output after the last input
/// row. No bias.
#[derive(Debug, Clone)]
pub struct CausalDepthwiseTransposedConv {
    weight: Tensor, // [steps, stride, channels], the oldest row's first
    tail: TailPlace,
}

impl CausalDepthwiseTransposedConv {
    /// Takes `{name}.weight` `[channels, 1, taps]`, `taps` a multiple of `stride`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the sizes do not fit.
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        (channels, taps, stride): (usize, usize, usize),
        shape: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        Ok(Self::new(&from.take(&format!("{name}.weight"), &[channels, 1, taps])?, stride, shape)?)
    }

    /// From a weight `[channels, 1, taps]`.
    ///
    /// # Errors
    /// `taps` is no multiple of `stride`.
    pub fn new(weight: &Tensor, stride: usize, shape: &mut StreamShape) -> Result<Self> {
        let (channels, _, taps) = weight.dims3()?;
        if stride == 0 || taps == 0 || !taps.is_multiple_of(stride) {
            bail!("transposed convolution: {taps} taps, stride {stride}")
        }
        let steps = taps / stride;
        let weight = weight.reshape((channels, steps, stride))?.permute((1, 2, 0))?;
        let oldest_first: Vec<_> =
            (0..steps).rev().map(|step| weight.narrow(0, step, 1)).collect::<Result<_>>()?;
        let weight = Tensor::cat(&oldest_first, 0)?.contiguous()?;
        Ok(Self { weight, tail: shape.tail(steps - 1, channels) })
    }

    /// `[rows, channels]` to `[rows * stride, channels]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let (steps, stride, channels) = self.weight.dims3()?;
        if let Some(table) = streams.sequence_table(Some(self.tail), 1)? {
            let conv = Depthwise {
                weight: &self.weight.reshape((steps, stride * channels))?,
                bias: None,
                inputs: channels,
                dilation: 1,
                before: steps - 1,
                form: DepthwiseForm::Plain,
                activation: None,
            };
            let y = conv.run(x, &table)?;
            streams.multiply(stride);
            return y.reshape((streams.total_rows(), channels));
        }
        let (x, starts) = streams.join(self.tail, x, 1)?;
        let mut parts = Vec::with_capacity(starts.len());
        for (&start, &rows) in starts.iter().zip(streams.rows()) {
            let product = |step: usize| {
                let x = x.narrow(0, start + step, rows)?.unsqueeze(1)?;
                x.broadcast_mul(&self.weight.narrow(0, step, 1)?) // [rows, stride, channels]
            };
            let mut sum = product(0)?;
            for step in 1..steps {
                sum = (sum + product(step)?)?;
            }
            parts.push(sum.reshape((rows * stride, channels))?);
        }
        streams.multiply(stride);
        Tensor::cat(&parts, 0)
    }
}

/// Depthwise causal convolution.
#[derive(Debug, Clone)]
pub struct CausalDepthwiseConv {
    conv: DepthwiseConv,
    centre: usize,
    tail: TailPlace,
}

impl CausalDepthwiseConv {
    /// Takes `{name}.weight` `[channels, 1, taps]` and `{name}.bias`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        channels: usize,
        taps: usize,
        shape: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let conv = DepthwiseConv::load(from, name, channels, taps, 1)?;
        Ok(Self { conv, centre: taps / 2, tail: shape.tail(taps.saturating_sub(1), channels) })
    }

    /// `[rows, channels]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        if let Some(table) = streams.sequence_table(Some(self.tail), 1)? {
            return self.conv.on_metal(2 * self.centre).run(x, &table);
        }
        let (x, starts) = streams.join(self.tail, x, 1)?;
        let y = self.conv.forward(&x)?; // centred: a causal output lies half a kernel after its first row
        let parts = starts.iter().zip(streams.rows());
        let parts = parts.map(|(&start, &rows)| y.narrow(0, start + self.centre, rows));
        Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use proptest::prelude::*;

    use super::super::stream::StreamState;
    use super::*;

    fn random(shape: impl Into<candle_core::Shape>) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    /// Runs a layer over chunks of one sequence, batched with another.
    fn in_pieces(
        shape: &StreamShape,
        x: &Tensor,
        cuts: &[usize],
        forward: impl Fn(&Tensor, &mut Streams<'_>) -> Tensor,
    ) -> Vec<Vec<f32>> {
        let (mut state, mut other) = (StreamState::default(), StreamState::default());
        let mut start = 0;
        let mut y = Vec::new();
        for &rows in cuts {
            let both = Tensor::cat(&[random((2, x.dim(1).unwrap())), x.narrow(0, start, rows).unwrap()], 0);
            let states = vec![&mut other, &mut state];
            let mut streams = Streams::new(shape, states, vec![2, rows], &Device::Cpu).unwrap();
            let part = forward(&both.unwrap(), &mut streams);
            let skip = streams.rows()[0];
            y.extend(part.to_vec2::<f32>().unwrap().split_off(skip));
            start += rows;
        }
        y
    }

    fn worst(a: &[Vec<f32>], b: &Tensor) -> f32 {
        let b = b.to_vec2::<f32>().unwrap();
        assert_eq!(a.len(), b.len());
        a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
    }

    /// candle's zero-padded convolution, `[rows, channels]`.
    fn reference(x: &Tensor, weight: &Tensor, dilation: usize, stride: usize) -> Tensor {
        let pad = (weight.dim(2).unwrap() - 1) * dilation + 1 - stride;
        let x = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap().pad_with_zeros(2, pad, 0).unwrap();
        let y = x.conv1d(&weight.contiguous().unwrap(), 0, stride, dilation, 1).unwrap();
        y.squeeze(0).unwrap().t().unwrap().contiguous().unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn chunks_equal_the_whole_to_the_bit(
            inputs in 1usize..20,
            outputs in 1usize..20,
            taps in 1usize..8,
            dilation in 1usize..5,
            cuts in prop::collection::vec(1usize..9, 1..6),
        ) {
            let weight = random((outputs, inputs, taps));
            let mut shape = StreamShape::default();
            let conv = CausalConv::new(Conv1d::new(&weight, None, dilation).unwrap(), 1, &mut shape).unwrap();
            let x = random((cuts.iter().sum::<usize>(), inputs));
            let forward = |x: &Tensor, streams: &mut Streams<'_>| conv.forward(x, streams).unwrap();
            let whole = in_pieces(&shape, &x, &[x.dim(0).unwrap()], forward);
            prop_assert_eq!(&in_pieces(&shape, &x, &cuts, forward), &whole);
            prop_assert!(worst(&whole, &reference(&x, &weight, dilation, 1)) < 1e-4);
        }

        #[test]
        fn transposed_chunks_equal_the_whole_to_the_bit(
            taps in 1usize..12,
            stride in 1usize..6,
            cuts in prop::collection::vec(1usize..9, 1..6),
        ) {
            let (weight, bias) = (random((5, 3, taps)), random(3));
            let mut shape = StreamShape::default();
            let conv = Conv1d::new(
                &polyphase(&weight, stride).unwrap(),
                Some(Tensor::cat(&vec![bias.clone(); stride], 0).unwrap()),
                1,
            );
            let conv = CausalConv::new(conv.unwrap(), 1, &mut shape).unwrap();
            let conv = CausalTransposedConv { conv, stride, outputs: 3 };
            let x = random((cuts.iter().sum::<usize>(), 5));
            let forward = |x: &Tensor, streams: &mut Streams<'_>| conv.forward(x, streams).unwrap();
            let whole = in_pieces(&shape, &x, &[x.dim(0).unwrap()], forward);
            prop_assert_eq!(&in_pieces(&shape, &x, &cuts, forward), &whole);
            let columns = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let y = columns.conv_transpose1d(&weight, 0, 0, stride, 1, 1).unwrap().squeeze(0).unwrap();
            let rows = y.t().unwrap().broadcast_add(&bias).unwrap();
            let rows = rows.to_vec2::<f32>().unwrap();
            for (row, (ours, theirs)) in whole.iter().zip(&rows).enumerate() {
                for (ours, theirs) in ours.iter().zip(theirs) {
                    prop_assert!((ours - theirs).abs() < 1e-4, "{row}");
                }
            }
            prop_assert!(whole.len() == x.dim(0).unwrap() * stride);
        }
    }

    #[test]
    fn depthwise_transposed_chunks_equal_the_whole_and_candle() {
        for (taps, stride) in [(4, 2), (3, 3), (6, 2)] {
            let weight = random((5, 1, taps));
            let mut shape = StreamShape::default();
            let conv = CausalDepthwiseTransposedConv::new(&weight, stride, &mut shape).unwrap();
            let x = random((9, 5));
            let forward = |x: &Tensor, streams: &mut Streams<'_>| conv.forward(x, streams).unwrap();
            let whole = in_pieces(&shape, &x, &[9], forward);
            assert_eq!(in_pieces(&shape, &x, &[2, 1, 6], forward), whole);
            let columns = x.t().unwrap().unsqueeze(0).unwrap().contiguous().unwrap();
            let y = columns.conv_transpose1d(&weight, 0, 0, stride, 1, 5).unwrap().squeeze(0).unwrap();
            let rows = y.t().unwrap().narrow(0, 0, 9 * stride).unwrap().contiguous().unwrap();
            assert!(worst(&whole, &rows) < 1e-5);
            assert!(CausalDepthwiseTransposedConv::new(&weight, taps + 1, &mut shape).is_err());
        }
    }

    #[test]
    fn chunks_of_whole_groups_equal_the_whole_to_the_bit() {
        let (weight, bias) = (random((20, 12, 7)), random(20));
        for dilation in [1, 3, 9] {
            let mut shape = StreamShape::default();
            let conv = CausalConv::by_groups(
                WinogradConv1d::new(&weight, bias.clone(), 16, dilation).unwrap(),
                &mut shape,
            );
            let x = random((96, 12));
            let mut state = StreamState::default();
            let states = vec![&mut state];
            let mut streams = Streams::new(&shape, states, vec![96], &Device::Cpu).unwrap();
            let whole = conv.forward(&x, &mut streams).unwrap();
            let (mut state, mut start, mut pieces) = (StreamState::default(), 0, Vec::new());
            for rows in [16, 48, 32] {
                let mut streams = Streams::new(&shape, vec![&mut state], vec![rows], &Device::Cpu).unwrap();
                pieces.push(conv.forward(&x.narrow(0, start, rows).unwrap(), &mut streams).unwrap());
                start += rows;
            }
            let pieces = Tensor::cat(&pieces, 0).unwrap().to_vec2::<f32>().unwrap();
            assert_eq!(pieces, whole.to_vec2::<f32>().unwrap());
            let plain = reference(&x, &weight, dilation, 1).broadcast_add(&bias).unwrap();
            assert!(worst(&pieces, &plain) < 1e-3);
            let mut streams = Streams::new(&shape, vec![&mut state], vec![20], &Device::Cpu).unwrap();
            assert!(conv.forward(&x.narrow(0, 0, 20).unwrap(), &mut streams).is_err());
        }
    }

    #[test]
    fn a_partial_last_chunk_is_padded_with_zeros() {
        let weight = random((6, 4, 8));
        let mut shape = StreamShape::default();
        let conv = CausalConv::new(Conv1d::new(&weight, None, 1).unwrap(), 4, &mut shape).unwrap();
        let x = random((12 + 8 + 3, 4));
        let forward = |x: &Tensor, streams: &mut Streams<'_>| conv.forward(x, streams).unwrap();
        let whole = in_pieces(&shape, &x, &[23], forward);
        assert_eq!(in_pieces(&shape, &x, &[12, 8, 3], forward), whole);
        let padded = x.pad_with_zeros(0, 0, 1).unwrap();
        assert!(worst(&whole, &reference(&padded, &weight, 1, 4)) < 1e-4);
        assert!(CausalConv::new(Conv1d::new(&weight, None, 1).unwrap(), 9, &mut shape).is_err());
    }
}
