//! Codes to samples: residual codebooks, a windowed transformer, two plain upsampling stages and a convolutional vocoder.
//!
//! Kernel sizes and dilations are not in the configuration; they are those of
//! the Python package `qwen-tts` 0.1.1 (pip; `modeling_qwen3_tts_tokenizer_v2.py`).

use candle_core::{Device, Result, Tensor};

use super::config::DecoderConfig;
use izwi_nn::Error;
use izwi_nn::attention::window::Window;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::conv::{CausalConv, CausalDepthwiseConv, CausalTransposedConv, Kernel};
use izwi_nn::codec::quantiser::{CodebookNames, CodebookShape, ResidualQuantiser};
use izwi_nn::codec::snake::SnakeBeta;
use izwi_nn::codec::stream::{StreamShape, Streams};
use izwi_nn::codec::transformer::{CausalTransformer, Naming, Style, TransformerShape};
use izwi_nn::layers::activation::Activation;
use izwi_nn::layers::{Epilogue, Fused, LayerNorm, Linear, Norm, RmsNorm};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Taps of the convolution after the codebooks.
const PRE_TAPS: usize = 3;
/// Taps of every other convolution.
const TAPS: usize = 7;
/// Dilations of a block's residual units.
const DILATIONS: [usize; 3] = [1, 3, 9];
/// Addend of the norms inside the upsampling stages.
const STAGE_EPS: f64 = 1e-6;
/// Widening inside the upsampling stages.
const STAGE_WIDENING: usize = 4;

type Loaded<T> = std::result::Result<T, Error>;

/// The decoder.
#[derive(Debug)]
pub(super) struct Decoder {
    device: Device,
    shape: StreamShape,
    semantic: ResidualQuantiser,
    acoustic: ResidualQuantiser,
    pre_conv: CausalConv,
    transformer: CausalTransformer,
    input: Linear,
    norm: RmsNorm,
    output: Linear,
    stages: Vec<(CausalTransposedConv, ConvNext)>,
    entry: CausalConv,
    blocks: Vec<Block>,
    last_snake: SnakeBeta,
    last: CausalConv,
}

impl Decoder {
    /// Takes `{name}.*`; layers that mix channels are kept and multiplied in `precision`, `F32` or `Bf16`, but for those
    /// that are computed by groups on the CPU, in f32.
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        config: &DecoderConfig,
        precision: Precision,
    ) -> Loaded<Self> {
        let kernel = |inputs, outputs, taps| Kernel { precision, ..Kernel::new(inputs, outputs, taps) };
        let mut shape = StreamShape::default();
        let s = &mut shape;
        let (latent, hidden) = (config.latent_dim, config.hidden_size);
        let load_codebooks = |from: &mut Checkpoint, group: &str, codebooks: usize| {
            let prefix = format!("{name}.quantizer.{group}");
            let shape = CodebookShape {
                codebooks,
                entries: config.codebook_size,
                width: config.codebook_dim / 2,
                outer: config.codebook_dim,
            };
            let names = CodebookNames { sum: "embedding_sum", usage: "cluster_usage", flag: None };
            ResidualQuantiser::load(from, &prefix, shape, names, |k| {
                format!("{prefix}.vq.layers.{k}._codebook")
            })
        };
        let semantic = load_codebooks(from, "rvq_first", config.num_semantic_quantizers)?;
        let acoustic =
            load_codebooks(from, "rvq_rest", config.num_quantizers - config.num_semantic_quantizers)?;
        let pre = kernel(config.codebook_dim, latent, PRE_TAPS);
        let pre_conv = CausalConv::load(from, &format!("{name}.pre_conv.conv"), pre, s)?;
        let inner = format!("{name}.pre_transformer");
        let transformer_shape = transformer_shape(config, precision);
        let window = Some((Window::new(config.sliding_window), &mut *s));
        let transformer =
            CausalTransformer::load(from, &format!("{inner}.layers"), &transformer_shape, window)?;
        let stages = config.upsampling_ratios.iter().enumerate().map(|(i, &ratio)| {
            let up = Kernel { stride: ratio, ..kernel(latent, latent, ratio) };
            let up = CausalTransposedConv::load(from, &format!("{name}.upsample.{i}.0.conv"), up, s)?;
            Ok((up, ConvNext::load(from, &format!("{name}.upsample.{i}.1"), (latent, precision), s)?))
        });
        let stages = stages.collect::<Loaded<_>>()?;
        let name = format!("{name}.decoder");
        let entry = kernel(latent, config.decoder_dim, TAPS);
        let entry = CausalConv::load(from, &format!("{name}.0.conv"), entry, s)?;
        let (mut channels, mut group) = (config.decoder_dim, config.upsampling_ratios.iter().product());
        let mut blocks = Vec::with_capacity(config.upsample_rates.len());
        for (i, &rate) in config.upsample_rates.iter().enumerate() {
            group *= rate;
            let up = Kernel { group, ..kernel(channels, channels / 2, 2 * rate) };
            blocks.push(Block::load(from, &format!("{name}.{}.block", i + 1), up, s)?);
            channels /= 2;
        }
        let next = blocks.len() + 1;
        let last = kernel(channels, 1, TAPS);
        let linear = |from: &mut Checkpoint, part: &str, shape: (usize, usize)| {
            Linear::load_with_precision(from, &format!("{inner}.{part}"), shape, true, precision)
        };
        Ok(Self {
            device: from.device().clone(),
            semantic,
            acoustic,
            pre_conv,
            transformer,
            input: linear(from, "input_proj", (latent, hidden))?,
            norm: RmsNorm::load(from, &format!("{inner}.norm"), hidden, config.rms_norm_eps)?,
            output: linear(from, "output_proj", (hidden, latent))?,
            stages,
            entry,
            blocks,
            last_snake: SnakeBeta::load(from, &format!("{name}.{next}"), channels)?,
            last: CausalConv::load(from, &format!("{name}.{}.conv", next + 1), last, s)?,
            shape,
        })
    }

    /// Shape of a stream's state.
    pub(super) fn shape(&self) -> &StreamShape {
        &self.shape
    }

    /// Elements of the weights that are computed by groups, and the bytes they take.
    pub(super) fn grouped(&self) -> [usize; 2] {
        let units = self.blocks.iter().flat_map(|block| &block.units).map(|unit| unit.fc1.grouped());
        units.fold([0, 0], |sum, [elements, bytes]| [sum[0] + elements, sum[1] + bytes])
    }

    /// New frames of every stream, one after another, to samples `[samples, 1]` in the same order.
    pub(super) fn forward(&self, frames: &[&Vec<u32>], streams: &mut Streams<'_>) -> Result<Tensor> {
        let device = &self.device;
        let semantic = frames.iter().map(|frame| &frame[..frame.len().min(1)]);
        let acoustic = frames.iter().map(|frame| &frame[frame.len().min(1)..]);
        let x = (self.semantic.decode(semantic, device)? + self.acoustic.decode(acoustic, device)?)?;
        streams.tap(|| "dec.quantized".to_owned(), &x);
        let x = self.pre_conv.forward(&x, streams)?; // [frames, latent]
        streams.tap(|| "dec.pre_conv".to_owned(), &x);
        let x = self.transformer.forward(&self.input.forward(&x)?, streams, "dec.layer")?;
        let norm = Some(Norm::Rms(&self.norm));
        let mut x = self.output.forward_fused(&x, Fused { norm, ..Fused::default() })?;
        streams.tap(|| "dec.pre_transformer".to_owned(), &x);
        for (i, (up, mix)) in self.stages.iter().enumerate() {
            yield_point();
            x = up.forward(&x, streams)?;
            streams.tap(|| format!("dec.upsample{i}_0"), &x);
            x = mix.forward(&x, streams)?;
            streams.tap(|| format!("dec.upsample{i}_1"), &x);
        }
        let (x, samples) = self.vocode(&x, streams)?;
        streams.tap(|| format!("dec.block{}", self.blocks.len() + 2), &x);
        Ok(samples)
    }

    /// Rows `[rows, latent]` to samples, and the same from -1 to 1. Every layer returns its rows activated for the next one.
    fn vocode(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<(Tensor, Tensor)> {
        let next = |block: usize| self.blocks.get(block).map_or(&self.last_snake, |block| &block.snake);
        let (x, mut activated) = self.entry.forward_pair(x, None, next(0).activation(), streams)?;
        streams.tap(|| "dec.block0".to_owned(), &x);
        for (i, block) in self.blocks.iter().enumerate() {
            yield_point();
            let (x, of_next) = block.forward(&activated, next(i + 1), streams)?;
            streams.tap(|| format!("dec.block{}", i + 1), &x);
            activated = of_next;
        }
        streams.tap(|| format!("dec.block{}", self.blocks.len() + 1), &activated);
        self.last.forward_pair(&activated, None, Activation::Clamp, streams)
    }
}

fn transformer_shape(config: &DecoderConfig, precision: Precision) -> TransformerShape {
    TransformerShape {
        style: Style::Gated,
        naming: Naming::Split,
        layers: config.num_hidden_layers,
        width: config.hidden_size,
        heads: config.num_attention_heads,
        head_dim: config.head_dim,
        feed_forward: config.intermediate_size,
        eps: config.rms_norm_eps,
        rope_theta: config.rope_theta,
        precision,
    }
}

/// A depthwise convolution and two linear layers, scaled by channel and added to their input.
/// <https://arxiv.org/abs/2201.03545>.
#[derive(Debug)]
struct ConvNext {
    conv: CausalDepthwiseConv,
    norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    gamma: Tensor, // [channels]
}

impl ConvNext {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (channels, precision): (usize, Precision),
        shape: &mut StreamShape,
    ) -> Loaded<Self> {
        let inner = STAGE_WIDENING * channels;
        let fc1 = format!("{name}.pwconv1");
        Ok(Self {
            conv: CausalDepthwiseConv::load(from, &format!("{name}.dwconv.conv"), channels, TAPS, shape)?,
            norm: LayerNorm::load_with_eps(from, &format!("{name}.norm"), channels, STAGE_EPS)?,
            fc1: Linear::load_with_precision(from, &fc1, (channels, inner), true, precision)?,
            fc2: Linear::load_with_precision(
                from,
                &format!("{name}.pwconv2"),
                (inner, channels),
                true,
                precision,
            )?,
            gamma: from.take(&format!("{name}.gamma"), &[channels])?,
        })
    }

    fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let y = self.conv.forward(x, streams)?;
        let norm = Some(Norm::Layer(&self.norm));
        let y = self.fc1.forward_fused(&y, Fused { norm, epilogue: Epilogue::Gelu, ..Fused::default() })?;
        let scaled = Fused { scale: Some(&self.gamma), residual: Some(x), ..Fused::default() };
        self.fc2.forward_fused(&y, scaled)
    }
}

/// One stage of the vocoder: `rate` times the rows, half the channels.
#[derive(Debug)]
struct Block {
    snake: SnakeBeta,
    up: CausalTransposedConv,
    units: Vec<Unit>,
}

#[derive(Debug)]
struct Unit {
    wide_snake: SnakeBeta,
    fc1: CausalConv,
    point_snake: SnakeBeta,
    point: CausalConv,
}

impl Block {
    /// `up` has the sizes of the transposed convolution but for its stride, half its taps; its group is of output rows.
    fn load(from: &mut Checkpoint, name: &str, up: Kernel, shape: &mut StreamShape) -> Loaded<Self> {
        let up = Kernel { stride: up.taps / 2, ..up };
        let inner = Kernel { inputs: up.outputs, stride: 1, ..up };
        let snake = SnakeBeta::load(from, &format!("{name}.0"), up.inputs)?;
        let up = CausalTransposedConv::load(from, &format!("{name}.1.conv"), up, shape)?;
        let units = DILATIONS
            .iter()
            .enumerate()
            .map(|(i, &dilation)| Unit::load(from, &format!("{name}.{}", i + 2), inner, dilation, shape));
        Ok(Self { snake, up, units: units.collect::<Loaded<_>>()? })
    }

    /// Rows activated by the block's own function to the result, and the same activated by the one after it.
    fn forward(
        &self,
        activated: &Tensor,
        next: &SnakeBeta,
        streams: &mut Streams<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let after = |unit: usize| self.units.get(unit).map_or(next, |unit| &unit.wide_snake).activation();
        let mut pair = self.up.forward_pair(activated, after(0), streams)?;
        for (i, Unit { fc1, point_snake, point, .. }) in self.units.iter().enumerate() {
            let y = fc1.forward_activated(&pair.1, None, point_snake.activation(), streams)?;
            pair = point.forward_pair(&y, Some(&pair.0), after(i + 1), streams)?;
        }
        Ok(pair)
    }
}

impl Unit {
    /// `inner` has the channels and the precision.
    fn load(
        from: &mut Checkpoint,
        name: &str,
        inner: Kernel,
        dilation: usize,
        shape: &mut StreamShape,
    ) -> Loaded<Self> {
        let channels = inner.inputs;
        let fc1 = Kernel { taps: TAPS, dilation, ..inner };
        let point = Kernel { taps: 1, ..inner };
        Ok(Self {
            wide_snake: SnakeBeta::load(from, &format!("{name}.act1"), channels)?,
            fc1: CausalConv::load(from, &format!("{name}.conv1.conv"), fc1, shape)?,
            point_snake: SnakeBeta::load(from, &format!("{name}.act2"), channels)?,
            point: CausalConv::load(from, &format!("{name}.conv2.conv"), point, shape)?,
        })
    }
}
