//! The audio encoder and its adapter: mel frames of several recordings to rows of the language model.
//!
//! Recordings are packed into one block of rows with gaps as wide as the convolutions reach, so that none is padded to
//! the longest. Source: the Python package `liquid-audio` 1.3.0 (pip), whose encoder is NVIDIA NeMo's
//! `ConformerEncoder`; <https://arxiv.org/abs/2005.08100>.

mod config;
mod subsampling;

use candle_core::{DType, Device, Tensor};

use self::subsampling::Subsampling;
use super::mel::{FRAMES_PER_ROW, Mel};
use izwi_nn::Error;
use izwi_nn::attention::relative::{relative_mixed, sinusoids};
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::GluConv;
use izwi_nn::layers::{Epilogue, Fused, LayerNorm, Linear, Norm, PackedRows, cat_weights};
use izwi_types::Precision;

pub(crate) use self::config::Config;

/// Added to variances by the batch norms: PyTorch's default.
const BATCH_NORM_EPS: f64 = 1e-5;
/// StepInput of a feed-forward network that a layer adds.
const HALF: f64 = 0.5;

type Loaded<T> = Result<T, Error>;

/// The encoder and the adapter.
#[derive(Debug)]
pub(crate) struct AudioEncoder {
    subsampling: Subsampling,
    layers: Vec<Layer>,
    adapter: Adapter,
    heads: usize,
    width: usize,
    reach: usize,
    device: Device,
}

impl AudioEncoder {
    /// Takes `conformer.*` and `audio_adapter.*`; `hidden` is the width of the language model's rows. Large weights are
    /// kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(crate) fn load(
        from: &mut Checkpoint,
        config: &Config,
        hidden: usize,
        precision: Precision,
    ) -> Loaded<Self> {
        from.skip(|name| {
            name.starts_with("conformer.layers.") && name.ends_with(".conv.batch_norm.num_batches_tracked")
        });
        let layers = (0..config.n_layers)
            .map(|layer| Layer::load(from, &format!("conformer.layers.{layer}"), config, precision));
        Ok(Self {
            layers: layers.collect::<Loaded<_>>()?,
            subsampling: Subsampling::load(from, "conformer.pre_encode", config, precision)?,
            adapter: Adapter::load(from, "audio_adapter.model", (config.d_model, hidden), precision)?,
            heads: config.n_heads,
            width: config.d_model,
            reach: config.conv_kernel_size / 2,
            device: from.device().clone(),
        })
    }

    /// Encodes each recording, which has a frame at least: `[ceil(frames / 8), hidden]`. On the CPU a recording's result
    /// is the same bits whatever others there are.
    ///
    /// # Errors
    /// Out of device memory.
    pub(crate) fn forward(&self, recordings: &[&Mel]) -> Loaded<Vec<Tensor>> {
        self.forward_tapped(recordings, |_, _, _| Ok(()))
    }

    /// As [`Self::forward`]; `tap` gets what each layer makes, by name, packed.
    fn forward_tapped(
        &self,
        recordings: &[&Mel],
        mut tap: impl FnMut(&str, &Tensor, &PackedRows) -> Loaded<()>,
    ) -> Loaded<Vec<Tensor>> {
        if recordings.is_empty() {
            return Ok(Vec::new());
        }
        let lengths: Vec<usize> = recordings.iter().map(|mel| mel.rows()).collect();
        let packed = PackedRows::new(&lengths, self.reach, &self.device)?;
        let mut x = self.pack(recordings, &packed)?; // [rows, width]
        tap("pre_encode", &x, &packed)?;
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let distances = sinusoids(longest, self.width, &self.device)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, &distances, self.heads, &packed)?;
            tap(&format!("layer{index}"), &x, &packed)?;
        }
        let spans = packed.spans().iter();
        let rows =
            spans.map(|span| x.narrow(0, span.start, span.len())).collect::<candle_core::Result<Vec<_>>>()?;
        let y = self.adapter.forward(&Tensor::cat(&rows, 0)?)?;
        let mut start = 0;
        let mut encoded = Vec::with_capacity(lengths.len());
        for rows in lengths {
            encoded.push(y.narrow(0, start, rows)?);
            start += rows;
        }
        Ok(encoded)
    }

    /// The rows of every recording where the packing has them, zeros between.
    fn pack(&self, recordings: &[&Mel], packed: &PackedRows) -> Loaded<Tensor> {
        let mut parts = Vec::with_capacity(2 * recordings.len());
        let ends = packed.spans().iter().skip(1).map(|next| next.start).chain([packed.rows()]);
        for ((mel, span), end) in recordings.iter().zip(packed.spans()).zip(ends) {
            parts.push(self.subsampling.forward(mel)?);
            if span.end < end {
                parts.push(Tensor::zeros((end - span.end, self.width), DType::F32, &self.device)?);
            }
        }
        Ok(Tensor::cat(&parts, 0)?)
    }
}

/// Half a feed-forward network, attention, convolution, half a feed-forward network, each after its norm and around a
/// residual; a norm at the end.
#[derive(Debug)]
struct Layer {
    first_norm: LayerNorm,
    first: FeedForward,
    attention_norm: LayerNorm,
    attention: Attention,
    convolution_norm: LayerNorm,
    convolution: Convolution,
    second_norm: LayerNorm,
    second: FeedForward,
    norm: LayerNorm,
}

impl Layer {
    fn load(from: &mut Checkpoint, name: &str, config: &Config, precision: Precision) -> Loaded<Self> {
        let width = config.d_model;
        let inner = width * config.ff_expansion_factor;
        let norm =
            |from: &mut Checkpoint, part: &str| LayerNorm::load(from, &format!("{name}.norm_{part}"), width);
        let feed_forward = |from: &mut Checkpoint, part: &str| {
            FeedForward::load(from, &format!("{name}.feed_forward{part}"), (width, inner), precision)
        };
        Ok(Self {
            first_norm: norm(from, "feed_forward1")?,
            first: feed_forward(from, "1")?,
            attention_norm: norm(from, "self_att")?,
            attention: Attention::load(from, &format!("{name}.self_attn"), config, precision)?,
            convolution_norm: norm(from, "conv")?,
            convolution: Convolution::load(from, &format!("{name}.conv"), config, precision)?,
            second_norm: norm(from, "feed_forward2")?,
            second: feed_forward(from, "2")?,
            norm: norm(from, "out")?,
        })
    }

    /// `[rows, width]` to the same; rows of gaps are undefined.
    fn forward(&self, x: &Tensor, distances: &Tensor, heads: usize, packed: &PackedRows) -> Loaded<Tensor> {
        let x = self.first.forward(x, &self.first_norm)?;
        let x = self.attention.forward(&x, &self.attention_norm, (distances, heads), packed)?;
        let x = self.convolution.forward(&x, &self.convolution_norm, packed)?;
        let x = self.second.forward(&x, &self.second_norm)?;
        Ok(self.norm.forward(&x)?)
    }
}

/// Two linear layers with SiLU between; the output is halved and added to the input.
#[derive(Debug)]
struct FeedForward {
    fc1: Linear,
    fc2: Linear, // halved
}

impl FeedForward {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (width, inner): (usize, usize),
        precision: Precision,
    ) -> Loaded<Self> {
        let fc1 = format!("{name}.linear1");
        let fc2 = [(format!("{name}.linear2.weight"), vec![width, inner])];
        // Halving is exact in every floating-point type.
        let halved = |weights| Ok((cat_weights(weights)? * HALF)?);
        let fc2 = Linear::load_transformed(from, (&fc2, "halved, "), (inner, width), precision, halved)?;
        let bias = (from.take(&format!("{name}.linear2.bias"), &[width])? * HALF)?;
        Ok(Self {
            fc1: Linear::load_with_precision(from, &fc1, (width, inner), true, precision)?,
            fc2: fc2.with_bias(&bias)?,
        })
    }

    fn forward(&self, x: &Tensor, norm: &LayerNorm) -> Loaded<Tensor> {
        let silu = Fused { norm: Some(Norm::Layer(norm)), epilogue: Epilogue::Silu, ..Fused::default() };
        let h = self.fc1.forward_fused(x, silu)?;
        Ok(self.fc2.forward_fused(&h, Fused { residual: Some(x), ..Fused::default() })?)
    }
}

/// Attention by content and distance, added to the input.
#[derive(Debug)]
struct Attention {
    qkv: Linear, // [3 * width, width]
    place: Linear,
    biases: [Tensor; 2], // of content and place, [width]
    output: Linear,
}

impl Attention {
    fn load(from: &mut Checkpoint, name: &str, config: &Config, precision: Precision) -> Loaded<Self> {
        let (width, heads) = (config.d_model, config.n_heads);
        let parts = ["q", "k", "v"].map(|part| format!("{name}.linear_{part}"));
        let weights = parts.each_ref().map(|part| (part.as_str(), width));
        let qkv = Linear::load_stacked(from, &weights, width, precision)?;
        let biases = parts.iter().map(|part| from.take(&format!("{part}.bias"), &[width]));
        let bias = Tensor::cat(&biases.collect::<Loaded<Vec<_>>>()?, 0)?;
        let place = format!("{name}.linear_pos");
        let place = Linear::load_with_precision(from, &place, (width, width), false, precision)?;
        let mut bias_of = |part: &str| {
            let bias = from.take(&format!("{name}.pos_bias_{part}"), &[heads, width / heads])?;
            Ok::<_, Error>(bias.flatten_all()?)
        };
        let biases = [bias_of("u")?, bias_of("v")?];
        Ok(Self {
            qkv: qkv.with_bias(&bias)?,
            place,
            biases,
            output: Linear::load_with_precision(
                from,
                &format!("{name}.linear_out"),
                (width, width),
                true,
                precision,
            )?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        (distances, heads): (&Tensor, usize),
        packed: &PackedRows,
    ) -> Loaded<Tensor> {
        let qkv = self.qkv.forward_fused(x, Fused { norm: Some(Norm::Layer(norm)), ..Fused::default() })?;
        let distances = self.place.product(distances)?; // [2 * longest - 1, width]
        let [content, place] = &self.biases;
        let mixed = relative_mixed(&qkv, &distances, [content, place], heads, packed.spans())?;
        Ok(self.output.forward_fused(&mixed, Fused { residual: Some(x), ..Fused::default() })?)
    }
}

/// A gated linear layer, a convolution of each channel with the batch norm after it, SiLU, a linear layer; added to the
/// input.
#[derive(Debug)]
struct Convolution {
    gated: Linear,
    mixing: GluConv, // its shift is what the batch norm adds
    output: Linear,
}

impl Convolution {
    fn load(from: &mut Checkpoint, name: &str, config: &Config, precision: Precision) -> Loaded<Self> {
        let width = config.d_model;
        let mut point = |part: &str, outputs: usize| {
            let name = format!("{name}.pointwise_conv{part}");
            let parts = [(format!("{name}.weight"), vec![outputs, width, 1])];
            let flat = |weights| Ok(cat_weights(weights)?.squeeze(2)?);
            let linear = Linear::load_transformed(from, (&parts, ""), (width, outputs), precision, flat)?;
            let bias = from.take(&format!("{name}.bias"), &[outputs])?;
            Ok::<_, Error>(linear.with_bias(&bias)?)
        };
        let (gated, output) = (point("1", 2 * width)?, point("2", width)?);
        let mut norm = |part: &str| from.take(&format!("{name}.batch_norm.{part}"), &[width]);
        let (mean, variance) = (norm("running_mean")?, norm("running_var")?);
        let (weight, bias) = (norm("weight")?, norm("bias")?);
        let scale = (weight / (variance + BATCH_NORM_EPS)?.sqrt()?)?;
        let name = format!("{name}.depthwise_conv");
        let weight = from.take(&format!("{name}.weight"), &[width, 1, config.conv_kernel_size])?;
        let weight = weight.broadcast_mul(&scale.reshape((width, 1, 1))?)?;
        let own = from.take(&format!("{name}.bias"), &[width])?;
        let shift = (bias + ((own - mean)? * scale)?)?;
        Ok(Self { gated, mixing: GluConv::new(&weight, shift)?, output })
    }

    fn forward(&self, x: &Tensor, norm: &LayerNorm, packed: &PackedRows) -> Loaded<Tensor> {
        let gated = Fused { norm: Some(Norm::Layer(norm)), ..Fused::default() };
        let h = self.mixing.forward(&self.gated.forward_fused(x, gated)?, packed)?;
        Ok(self.output.forward_fused(&h, Fused { residual: Some(x), ..Fused::default() })?)
    }
}

/// A norm and two linear layers with GELU between: the encoder's rows to the language model's.
#[derive(Debug)]
struct Adapter {
    norm: LayerNorm,
    fc1: Linear,
    output: Linear,
}

impl Adapter {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (width, hidden): (usize, usize),
        precision: Precision,
    ) -> Loaded<Self> {
        let fc1 = format!("{name}.1");
        Ok(Self {
            norm: LayerNorm::load(from, &format!("{name}.0"), width)?,
            fc1: Linear::load_with_precision(from, &fc1, (width, hidden), true, precision)?,
            output: Linear::load_with_precision(
                from,
                &format!("{name}.3"),
                (hidden, hidden),
                true,
                precision,
            )?,
        })
    }

    fn forward(&self, x: &Tensor) -> Loaded<Tensor> {
        let gelu =
            Fused { norm: Some(Norm::Layer(&self.norm)), epilogue: Epilogue::Gelu, ..Fused::default() };
        Ok(self.output.forward(&self.fc1.forward_fused(x, gelu)?)?)
    }
}

/// For tests: intermediate results, recording by recording.
#[cfg(test)]
impl AudioEncoder {
    /// The output of each layer for each recording, with its name.
    pub(super) fn taps(&self, recordings: &[&Mel]) -> Vec<(String, Vec<Tensor>)> {
        let mut taps = Vec::new();
        let keep = |name: &str, x: &Tensor, packed: &PackedRows| {
            let rows = packed.spans().iter().map(|span| x.narrow(0, span.start, span.len()).unwrap());
            taps.push((name.to_owned(), rows.collect()));
            Ok(())
        };
        let encoded = self.forward_tapped(recordings, keep).unwrap();
        taps.push(("adapter".to_owned(), encoded));
        taps
    }
}
