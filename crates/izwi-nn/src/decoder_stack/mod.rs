//! A stack of causal decoder layers: pre-norm; grouped-query attention with rotated heads over the paged pool, or a short
//! convolution; feed-forward. Rows of any number of sequences, at any positions, in one pass per layer.
//!
//! Architectures: <https://arxiv.org/abs/2505.09388> (Qwen3), <https://arxiv.org/abs/2511.23404> (LFM2),
//! <https://arxiv.org/abs/2410.00037> (Kyutai). Knows no embedding, no head and no model.

mod frame_decoder;
mod frame_steps;
mod fused;
mod shape;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::Error;
use crate::attention::{self, PagedRows, PagedSpan};
use crate::checkpoint::Checkpoint;
use crate::kv_pool::{ConvStateLayout, KvLayout, KvPool};
use crate::layers::conv::{ShortConv, ShortConvShape};
use crate::layers::{
    Epilogue, Fused, LayerNorm, Linear, RmsNorm, Rope, RopeRows, RowNorm, cat_weights,
    half_split_of_interleaved,
};
use crate::yielding::yield_point;
use izwi_metal::{Pass, StepTable};
use izwi_types::Precision;

pub use frame_decoder::{CodebookHead, FrameDecoder, FrameStart};
use frame_steps::FrameSteps;
use fused::AFTER_THE_POSITION_BEFORE;
pub use shape::{Mixing, Rotation, StackNames, StackShape, Style};

/// Weights of a stack and its last norm.
#[derive(Debug)]
pub struct DecoderStack {
    shape: StackShape,
    layers: Vec<Layer>,
    norm: Option<RmsNorm>,
    rope: Rope,
}

#[derive(Debug)]
struct Layer {
    mixing_norm: RowNorm,
    mixer: Mixer,
    feed_forward_norm: RowNorm,
    /// The gate and the values it multiplies, or only values, before the activation.
    up: Linear,
    activation: Epilogue,
    down: Linear,
}

#[derive(Debug)]
enum Mixer {
    /// With its index among the pool's layers.
    Attention(usize, Attention),
    /// With its index among the convolution layers.
    Convolution(usize, ShortConv),
}

#[derive(Debug)]
struct Attention {
    query_key_value: Linear,
    /// Norms of the heads of queries and keys.
    head_norms: Option<[RmsNorm; 2]>,
    output: Linear,
}

/// State of the convolution layers after a sequence's last position.
#[derive(Debug, Clone)]
pub struct StackState {
    columns: Vec<Tensor>, // [taps - 1, width] each
    /// Where the pool's blocks keep the state instead: the columns before those that the next row reads.
    skip: Option<u32>,
}

/// Rows of one forward pass: their sequences, positions and states.
#[derive(Debug)]
pub struct StackRows<'a> {
    spans: Vec<PagedSpan<'a>>,
    states: Vec<&'a mut StackState>,
    positions: Vec<u32>,
    /// Blocks whose last position is among the rows, and for each the span and the row in it.
    closed: (Vec<u32>, Vec<(usize, usize)>),
}

/// What all layers need of the rows of a pass, on the device of the pool.
enum Step<'a, 'b> {
    /// For one operation after another.
    Single {
        paged: PagedRows<'a>,
        turns: RopeRows,
        states: &'a mut [&'b mut StackState],
        /// As in [`StackRows`].
        closed: &'a (Vec<u32>, Vec<(usize, usize)>),
    },
    /// For fused kernels in one pass.
    Fused(&'a Pass<'b>, &'a StepTable),
}

impl<'a> StackRows<'a> {
    /// The rows of `spans`, in order, for a stack whose layers are all attention.
    pub fn new(kv: &KvPool, spans: Vec<PagedSpan<'a>>) -> Self {
        Self::with_states(kv, spans, Vec::new())
    }

    /// The rows of `spans`, in order, with the convolution state of each.
    pub fn with_states(kv: &KvPool, spans: Vec<PagedSpan<'a>>, states: Vec<&'a mut StackState>) -> Self {
        let positions = spans.iter().flat_map(|span| (span.start..).take(span.num_tokens));
        let positions = positions.map(|at| at as u32).collect();
        let size = kv.block_size();
        let mut closed = (Vec::new(), Vec::new());
        for (index, span) in spans.iter().enumerate() {
            let end = span.start + span.num_tokens;
            for block in span.start / size..end / size {
                closed.0.push(span.block_table[block]);
                closed.1.push((index, (block + 1) * size - 1 - span.start));
            }
        }
        Self { spans, states, positions, closed }
    }
}

impl DecoderStack {
    /// Takes `{name}.layers.*` and the last norm.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: StackShape,
        names: &StackNames,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let (mut attention, mut convolutions) = (0, 0);
        let mut layers = Vec::with_capacity(shape.layers.len());
        for (index, mixing) in shape.layers.iter().enumerate() {
            let name = format!("{name}.layers.{index}");
            let mixer = match *mixing {
                Mixing::Attention => {
                    attention += 1;
                    let loaded = Attention::load(from, &name, &shape, names, precision)?;
                    Mixer::Attention(attention - 1, loaded)
                }
                Mixing::Convolution { taps } => {
                    convolutions += 1;
                    let name = format!("{name}.{}", names.convolution);
                    let of = ShortConvShape { width: shape.width, taps, precision };
                    let loaded = ShortConv::load(from, &name, of)?;
                    Mixer::Convolution(convolutions - 1, loaded)
                }
            };
            layers.push(Layer::load(from, &name, mixer, (&shape, names), precision)?);
        }
        let norm = names.last_norm.map(|norm| {
            let name = format!("{name}.{norm}");
            RmsNorm::load(from, &name, shape.width, shape.eps)
        });
        let rope = Rope::new(shape.head_dim, shape.theta);
        Ok(Self { shape, layers, norm: norm.transpose()?, rope })
    }

    /// Bytes of the weights, the norms aside.
    pub fn bytes(&self) -> usize {
        let linears = self.layers.iter().map(|layer| {
            let mixer = match &layer.mixer {
                Mixer::Attention(_, attention) => {
                    attention.query_key_value.bytes() + attention.output.bytes()
                }
                Mixer::Convolution(_, convolution) => convolution.bytes(),
            };
            mixer + layer.up.bytes() + layer.down.bytes()
        });
        linears.sum()
    }

    /// Shape of one position's keys and values, and of the convolution state of a block.
    pub fn kv_layout(&self, dtype: DType) -> KvLayout {
        let StackShape { width, kv_heads, head_dim, .. } = self.shape;
        let reaches: Vec<usize> = self.reaches().collect();
        // One column more than a layer's state: a sequence that computes a block's last position again needs the state
        // before it.
        let conv_state = ConvStateLayout {
            layers: reaches.len(),
            width: reaches.iter().max().map_or(0, |reach| (reach + 1) * width),
        };
        let layers = self.layers.len() - reaches.len();
        KvLayout { layers, kv_heads, head_dim, dtype, conv_state }
    }

    /// Bytes of a sequence's state.
    pub fn state_bytes(&self) -> usize {
        self.reaches().map(|reach| reach * self.shape.width * size_of::<f32>()).sum()
    }

    /// Positions that each convolution reads before a row's own.
    fn reaches(&self) -> impl Iterator<Item = usize> {
        self.layers.iter().filter_map(|layer| match &layer.mixer {
            Mixer::Attention(..) => None,
            Mixer::Convolution(_, convolution) => Some(convolution.taps() - 1),
        })
    }

    /// The state of a new sequence.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn begin(&self, device: &Device) -> Result<StackState> {
        if device.is_metal() {
            return Ok(StackState { columns: Vec::new(), skip: Some(1) });
        }
        let zeros = |reach| Tensor::zeros((reach, self.shape.width), DType::F32, device);
        Ok(StackState { columns: self.reaches().map(zeros).collect::<Result<_>>()?, skip: None })
    }

    /// The state of a sequence whose positions before `start` are already in the pool: whole blocks, or whole blocks
    /// without their last position.
    ///
    /// # Errors
    /// `start` is another position, or a block lies outside the pool.
    pub fn resume(
        &self,
        kv: &KvPool,
        start: usize,
        block_table: &[u32],
        device: &Device,
    ) -> Result<StackState> {
        let size = kv.block_size();
        let (block, first) = match (start % size, (start + 1) % size) {
            _ if start == 0 => return self.begin(device),
            (0, _) => (start / size - 1, 1),
            (_, 0) => (start / size, 0),
            _ => bail!("decoder stack: blocks of {size} keep no state for position {start}"),
        };
        let Some(&block) = block_table.get(block) else {
            bail!(
                "decoder stack: a block table of {} blocks does not cover position {start}",
                block_table.len()
            )
        };
        if device.is_metal() {
            return Ok(StackState { columns: Vec::new(), skip: Some(first as u32) });
        }
        let columns = self.reaches().enumerate().map(|(layer, reach)| {
            let kept = kv.conv_state(layer, block)?;
            let seen = kept.narrow(0, 0, (reach + 1) * self.shape.width)?;
            seen.reshape((reach + 1, self.shape.width))?.narrow(0, first, reach)?.force_contiguous()
        });
        Ok(StackState { columns: columns.collect::<Result<_>>()?, skip: None })
    }

    /// Rows `[rows, width]` through every layer, without the last norm. `watch` gets the rows after each layer.
    ///
    /// # Errors
    /// Shapes do not fit, or a block lies outside the pool.
    pub fn forward(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        rows: &mut StackRows<'_>,
        watch: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        if let Some(device) = self.fused_on(&x.device().clone(), kv) {
            let table = self.table(device, rows, kv.block_size())?;
            let x = x.contiguous()?;
            let pass = Pass::open(device)?;
            let mut seen = Vec::with_capacity(self.layers.len());
            let y = self.layers(x, kv, Step::Fused(&pass, &table), |x| seen.push(x.clone()));
            drop(pass);
            let y = y?;
            // Reading a result is an operation of its own: after the pass.
            seen.iter().for_each(watch);
            rows.states.iter_mut().for_each(|state| state.skip = Some(AFTER_THE_POSITION_BEFORE));
            return Ok(y);
        }
        let StackRows { spans, states, positions, closed } = rows;
        let turns = self.rope.rows(positions.clone(), x.device())?;
        let paged = PagedRows::new(kv, spans)?;
        self.layers(x, kv, Step::Single { paged, turns, states, closed }, watch)
    }

    fn layers(
        &self,
        mut x: Tensor,
        kv: &mut KvPool,
        mut step: Step<'_, '_>,
        mut watch: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let pass = step.pass();
        for layer in &self.layers {
            yield_point();
            let normed = Fused { norm: Some(layer.mixing_norm.of_rows()), ..Fused::default() };
            let added = Fused { residual: Some(&x), ..Fused::default() };
            x = match &layer.mixer {
                Mixer::Attention(index, attention) => {
                    let mixed = attention.query_key_value.forward_in(pass, &x, normed)?;
                    let y = self.attend(attention, *index, &mixed, kv, &step)?;
                    attention.output.forward_in(pass, &y, added)?
                }
                Mixer::Convolution(index, convolution) => {
                    let [input, output] = convolution.linears();
                    let mixed = input.forward_in(pass, &x, normed)?;
                    let y = convolve(convolution, *index, &mixed, kv, &mut step)?;
                    output.forward_in(pass, &y, added)?
                }
            };
            let norm = Some(layer.feed_forward_norm.of_rows());
            let inner = Fused { norm, epilogue: layer.activation, ..Fused::default() };
            let inner = layer.up.forward_in(pass, &x, inner)?;
            let added = Fused { residual: Some(&x), ..Fused::default() };
            x = layer.down.forward_in(pass, &inner, added)?;
            watch(&x);
        }
        Ok(x)
    }

    /// The norm after the last layer, if any.
    pub fn last_norm(&self) -> Option<&RmsNorm> {
        self.norm.as_ref()
    }

    /// The norm after the last layer, if any: `[rows, width]` to the same.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn norm(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(x))
    }

    /// Rows `[rows, width]` through every layer and the last norm: of those only the `wanted` ones, `[wanted, width]`;
    /// none may be wanted.
    ///
    /// # Errors
    /// As [`Self::forward`], or a wanted row does not exist.
    pub fn forward_normed(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        rows: &mut StackRows<'_>,
        wanted: &[u32],
    ) -> Result<Tensor> {
        let x = self.forward(x, kv, rows, |_| ())?;
        if wanted.is_empty() {
            // Devices have no empty buffers: no kernel runs on this view.
            return x.narrow(0, 0, 0);
        }
        let x = if wanted.len() == x.dim(0)? {
            x
        } else {
            x.contiguous()?.index_select(&Tensor::new(wanted, x.device())?, 0)?
        };
        self.norm(&x)
    }

    /// Attention of the rows whose queries, keys and values are `mixed` `[rows, (heads + 2 kv_heads) * head_dim]`.
    fn attend(
        &self,
        layer: &Attention,
        index: usize,
        mixed: &Tensor,
        kv: &mut KvPool,
        step: &Step<'_, '_>,
    ) -> Result<Tensor> {
        let (paged, turns) = match step {
            Step::Single { paged, turns, .. } => (paged, turns),
            Step::Fused(pass, table) => {
                return pass.attend(mixed, kv.layer(index)?, table, self.heads(layer));
            }
        };
        let StackShape { heads, kv_heads, head_dim, .. } = self.shape;
        let (q, own) = (heads * head_dim, kv_heads * head_dim);
        let part = |start: usize, width: usize| mixed.narrow(1, start, width);
        let rotated = |x: Tensor, norm: usize| match &layer.head_norms {
            Some(norms) => self.rope.forward_normed(&x, turns, &norms[norm]),
            None => self.rope.forward(&x, turns),
        };
        let (queries, keys) = (rotated(part(0, q)?, 0)?, rotated(part(q, own)?, 1)?);
        let values = part(q + own, own)?.contiguous()?;
        let shape = (mixed.dim(0)?, kv_heads, head_dim);
        paged.write(kv, index, &keys.reshape(shape)?, &values.reshape(shape)?)?;
        attention::paged(kv, index, &queries, paged, heads)
    }
}

impl<'a, 'b> Step<'a, 'b> {
    fn pass(&self) -> Option<&'a Pass<'b>> {
        match self {
            Self::Single { .. } => None,
            Self::Fused(pass, _) => Some(pass),
        }
    }
}

/// The convolution of `mixed`, which the layer's first product made.
fn convolve(
    layer: &ShortConv,
    index: usize,
    mixed: &Tensor,
    kv: &mut KvPool,
    step: &mut Step<'_, '_>,
) -> Result<Tensor> {
    let (paged, states, (blocks, ends)) = match step {
        Step::Single { paged, states, closed, .. } => (paged, states, closed),
        Step::Fused(pass, table) => {
            return pass.short_conv(mixed, layer.weight(), kv.conv_layer(index)?, table);
        }
    };
    if states.iter().any(|state| state.skip.is_some()) {
        bail!("decoder stack: the pool keeps the convolution states, which needs the fused kernels")
    }
    let counts: Vec<usize> = paged.spans().iter().map(|span| span.num_tokens).collect();
    let states = states.iter_mut().filter_map(|state| state.columns.get_mut(index));
    let mut states: Vec<&mut Tensor> = states.collect();
    if !blocks.is_empty() {
        kv.write_conv_state(index, blocks, &layer.seen(mixed, &counts, &states, ends)?)?;
    }
    layer.convolve(mixed, &counts, &mut states)
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        mixer: Mixer,
        (shape, names): (&StackShape, &StackNames),
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let StackShape { style, width, hidden, eps, .. } = *shape;
        let part = |part: &str| format!("{name}.{part}");
        let [gate, up, down] = names.gate_up_down.map(part);
        let norm = |from: &mut Checkpoint, name: &str| match style {
            Style::Gated => RmsNorm::load(from, &part(name), width, eps).map(RowNorm::Rms),
            Style::Plain => LayerNorm::load_with_eps(from, &part(name), width, eps).map(RowNorm::Layer),
        };
        let (inner, activation) = match style {
            Style::Gated => (vec![(&*gate, hidden), (&*up, hidden)], Epilogue::GatedSilu),
            Style::Plain => (vec![(&*up, hidden)], Epilogue::GeluTanh),
        };
        Ok(Self {
            mixing_norm: norm(from, names.mixing_norm)?,
            mixer,
            feed_forward_norm: norm(from, names.feed_forward_norm)?,
            up: Linear::load_stacked(from, &inner, width, precision)?,
            activation,
            down: Linear::load_stacked(from, &[(&down, width)], hidden, precision)?,
        })
    }
}

impl Attention {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: &StackShape,
        names: &StackNames,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let StackShape { width, heads, kv_heads, head_dim, eps, .. } = *shape;
        let (queries, own) = (heads * head_dim, kv_heads * head_dim);
        let part = |part: &str| format!("{name}.{part}");
        let parts: Vec<String> = names.query_key_value.iter().map(|&name| part(name)).collect();
        let parts: Vec<(&str, usize)> = match parts.as_slice() {
            [q, k, v] => vec![(q, queries), (k, own), (v, own)],
            stacked => stacked.iter().map(|name| (name.as_str(), queries + 2 * own)).collect(),
        };
        let rotates_pairs = shape.rotation == Rotation::Pairs;
        let transform_id =
            if rotates_pairs { format!("half-split rope {head_dim}, ") } else { String::new() };
        let stacks = parts.iter().map(|(name, outputs)| (format!("{name}.weight"), vec![*outputs, width]));
        let stacks: Vec<_> = stacks.collect();
        let sizes = (width, queries + 2 * own);
        let query_key_value =
            Linear::load_transformed(from, (&stacks, &transform_id), sizes, precision, |weights| {
                let weight = cat_weights(weights)?;
                if !rotates_pairs {
                    return Ok(weight);
                }
                let rotated = half_split_of_interleaved(&weight.narrow(0, 0, queries + own)?, head_dim)?;
                Ok(Tensor::cat(&[rotated, weight.narrow(0, queries + own, own)?], 0)?)
            })?;
        let norm = |from: &mut Checkpoint, name: &str| {
            let norm = from.take(&format!("{}.weight", part(name)), &[head_dim])?;
            let norm = if rotates_pairs { half_split_of_interleaved(&norm, head_dim)? } else { norm };
            Ok::<_, Error>(RmsNorm::new(norm, eps))
        };
        let head_norms = match shape.style {
            Style::Gated => Some([norm(from, names.query_norm)?, norm(from, names.key_norm)?]),
            Style::Plain => None,
        };
        Ok(Self {
            query_key_value,
            head_norms,
            output: Linear::load_stacked(from, &[(&part(names.output), width)], queries, precision)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 4;

    fn stack(rotation: Rotation) -> DecoderStack {
        stack_on(rotation, &Device::Cpu)
    }

    fn stack_on(rotation: Rotation, device: &Device) -> DecoderStack {
        let convolution = Mixing::Convolution { taps: 3 };
        let shape = StackShape {
            style: Style::Gated,
            width: 24,
            hidden: 40,
            layers: vec![convolution, Mixing::Attention, convolution, Mixing::Attention],
            heads: 4,
            kv_heads: 2,
            head_dim: 6,
            eps: 1e-5,
            theta: 1e4,
            rotation,
        };
        let mut from = Checkpoint::random(device, DType::F32);
        DecoderStack::load(&mut from, "x", shape, &StackNames::TRANSFORMERS, Precision::F32).unwrap()
    }

    fn plain_stack_on(device: &Device) -> DecoderStack {
        let shape = StackShape {
            style: Style::Plain,
            width: 24,
            hidden: 40,
            layers: vec![Mixing::Attention; 2],
            heads: 3,
            kv_heads: 1,
            head_dim: 6,
            eps: 1e-5,
            theta: 1e4,
            rotation: Rotation::Pairs,
        };
        let mut from = Checkpoint::random(device, DType::F32);
        DecoderStack::load(&mut from, "x", shape, &StackNames::KYUTAI, Precision::F32).unwrap()
    }

    fn random(rows: usize) -> Tensor {
        Tensor::randn(0f32, 1.0, (rows, 24), &Device::Cpu).unwrap()
    }

    /// Rows of one sequence from `start` on.
    fn run(
        stack: &DecoderStack,
        x: &Tensor,
        kv: &mut KvPool,
        (start, table): (usize, &[u32]),
        state: &mut StackState,
    ) -> Vec<Vec<f32>> {
        let span = PagedSpan { start, num_tokens: x.dim(0).unwrap(), block_table: table };
        let mut rows = StackRows::with_states(kv, vec![span], vec![state]);
        stack.forward(x.clone(), kv, &mut rows, |_| ()).unwrap().to_vec2().unwrap()
    }

    /// Equal to the bit on the CPU.
    fn assert_near(a: &[Vec<f32>], b: &[Vec<f32>], device: &Device) {
        let most = if device.is_cpu() { 0.0 } else { 1e-5 };
        let off = a.concat().iter().zip(b.concat()).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
        assert!(a.len() == b.len() && off <= most, "{off}");
    }

    #[test]
    fn continuing_after_shared_blocks_equals_the_whole_sequence() {
        let device = crate::device::of_tests();
        let stack = stack_on(Rotation::Halves, &device);
        let layout = stack.kv_layout(DType::F32);
        assert_eq!((layout.layers, layout.conv_state), (2, ConvStateLayout { layers: 2, width: 72 }));
        let mut kv = KvPool::new(Some(layout), 16, SIZE, &device).unwrap();
        let x = random(3 * SIZE + 2).to_device(&device).unwrap();
        let mut state = stack.begin(&device).unwrap();
        let mut whole = Vec::new();
        for (start, count) in [(0, 3), (3, 1), (4, 6), (10, 1), (11, 3)] {
            let part = x.narrow(0, start, count).unwrap();
            whole.extend(run(&stack, &part, &mut kv, (start, &[9, 2, 5, 7]), &mut state));
        }
        let mut fresh = KvPool::new(Some(layout), 16, SIZE, &device).unwrap();
        let mut alone = stack.begin(&device).unwrap();
        assert_near(&run(&stack, &x, &mut fresh, (0, &[0, 1, 2, 3]), &mut alone), &whole, &device);
        // After two shared blocks, and at the last position of the second one in a copy of it.
        kv.copy_blocks(&[(2, 11)]).unwrap();
        for (start, table) in [(2 * SIZE, [9, 2, 12, 13]), (2 * SIZE - 1, [9, 11, 14, 15])] {
            let mut state = stack.resume(&kv, start, &table, &device).unwrap();
            let rest = x.narrow(0, start, 3 * SIZE + 2 - start).unwrap();
            assert_near(&run(&stack, &rest, &mut kv, (start, &table), &mut state), &whole[start..], &device);
        }
        assert!(stack.resume(&kv, SIZE + 1, &[9, 2], &device).is_err());
        assert!(stack.resume(&kv, 3 * SIZE, &[9, 2], &device).is_err());
    }

    #[test]
    fn a_plain_stack_gives_the_same_rows_in_any_chunks_and_on_a_device() {
        let (x, table) = (random(11), [3, 0, 2]);
        let in_chunks = |device: &Device, chunks: &[usize]| {
            let stack = plain_stack_on(device);
            let mut kv = KvPool::new(Some(stack.kv_layout(DType::F32)), 4, SIZE, device).unwrap();
            let mut state = stack.begin(device).unwrap();
            let (mut start, mut rows) = (0, Vec::new());
            for &count in chunks {
                let part = x.narrow(0, start, count).unwrap().to_device(device).unwrap();
                rows.extend(run(&stack, &part, &mut kv, (start, &table), &mut state));
                start += count;
            }
            rows
        };
        let whole = in_chunks(&Device::Cpu, &[11]);
        assert_near(&in_chunks(&Device::Cpu, &[1, 5, 4, 1]), &whole, &Device::Cpu);
        let device = crate::device::of_tests();
        assert_near(&in_chunks(&device, &[7, 1, 3]), &whole, &device);
    }

    #[test]
    fn a_step_in_which_no_row_is_wanted_fills_the_pool() {
        let device = crate::device::of_tests();
        let stack = stack_on(Rotation::Halves, &device);
        let layout = Some(stack.kv_layout(DType::F32));
        let x = random(5).to_device(&device).unwrap();
        let run = |cut: usize| {
            let mut kv = KvPool::new(layout, 2, SIZE, &device).unwrap();
            let mut state = stack.begin(&device).unwrap();
            let mut last = Vec::new();
            for (start, count, wanted) in [(0, cut, &[][..]), (cut, 5 - cut, &[4 - cut as u32])] {
                let span = PagedSpan { start, num_tokens: count, block_table: &[1, 0] };
                let mut rows = StackRows::with_states(&kv, vec![span], vec![&mut state]);
                let x = x.narrow(0, start, count).unwrap();
                let y = stack.forward_normed(x, &mut kv, &mut rows, wanted).unwrap();
                assert_eq!(y.dims(), [wanted.len(), 24]);
                last = if wanted.is_empty() { last } else { y.to_vec2::<f32>().unwrap().concat() };
            }
            last
        };
        run(1).into_iter().zip(run(3)).for_each(|(a, b)| assert!((a - b).abs() < 1e-5, "{a} {b}"));
    }

    #[test]
    fn a_device_computes_what_the_cpu_does_over_slots_that_were_never_written() {
        let device = crate::device::of_tests();
        let (x, tables) = (random(17), [[3, 0, 6], [1, 7, 2], [5, 4, 8]]);
        let run = |device: &Device, dtype: DType| {
            let stack = stack_on(Rotation::Halves, device);
            let mut kv = KvPool::new(Some(stack.kv_layout(dtype)), 9, SIZE, device).unwrap();
            let mut states = [(); 3].map(|()| stack.begin(device).unwrap());
            let mut outputs = Vec::new();
            // A prefill of two sequences; then the rest of one, a decode of the other, and a third.
            let mut first = 0;
            for spans in [
                &[(0, 0, 5), (1, 0, 2)][..],
                &[(0, 5, 4), (1, 2, 1)],
                &[(1, 3, 1), (2, 0, 1)],
                &[(0, 9, 1), (1, 4, 1), (2, 1, 1)],
            ] {
                let mut used: Vec<_> = states.iter_mut().map(Some).collect();
                let picked = spans.iter().map(|&(sequence, ..)| used[sequence].take().unwrap()).collect();
                let of = |&(sequence, start, num_tokens): &(usize, usize, usize)| PagedSpan {
                    start,
                    num_tokens,
                    block_table: &tables[sequence],
                };
                let mut rows = StackRows::with_states(&kv, spans.iter().map(of).collect(), picked);
                let count = rows.positions.len();
                let x = x.narrow(0, first, count).unwrap().to_device(device).unwrap();
                let y = stack.forward(x, &mut kv, &mut rows, |_| ()).unwrap();
                outputs.extend(y.to_vec2::<f32>().unwrap().concat());
                first += count;
            }
            outputs
        };
        for (dtype, most) in [(DType::F32, 1e-4), (DType::F16, 1e-2)] {
            let (ours, theirs) = (run(&device, dtype), run(&Device::Cpu, dtype));
            assert_eq!(ours.len(), 17 * 24);
            ours.iter().zip(theirs).for_each(|(a, b)| assert!((a - b).abs() < most, "{a} {b}"));
        }
    }

    #[test]
    fn interleaved_heads_equal_half_split_heads_reordered() {
        // At position 0 nothing is rotated: the order of a head's elements makes no difference there.
        let first = |rotation| {
            let stack = stack(rotation);
            let mut kv = KvPool::new(Some(stack.kv_layout(DType::F32)), 1, SIZE, &Device::Cpu).unwrap();
            let mut state = stack.begin(&Device::Cpu).unwrap();
            let x = Tensor::ones((1, 24), DType::F32, &Device::Cpu).unwrap();
            run(&stack, &x, &mut kv, (0, &[0]), &mut state).concat()
        };
        let pairs = first(Rotation::Halves).into_iter().zip(first(Rotation::Pairs));
        pairs.for_each(|(a, b)| assert!((a - b).abs() < 1e-5));
    }
}
