//! NeMo's conformer: mel frames of several recordings to rows.
//!
//! Recordings are packed into one block of rows with gaps as wide as the convolutions reach, so that none is padded to
//! the longest. Where rows see nothing after their chunk, a recording can come in pieces; its [`Stream`] keeps what the
//! next rows see. Knows no model family. Source: `ConformerEncoder` of the Python package `nemo-toolkit` 3.0.0;
//! <https://arxiv.org/abs/2005.08100>.

mod mel;
mod stream;
mod subsampling;

use candle_core::{DType, Device, Tensor};

pub(crate) use self::mel::{FRAMES_PER_ROW, FrontEnd, Mel, MelShape};
use self::stream::Kept;
pub(crate) use self::stream::{Context, Stream};
use self::subsampling::{Halving, Subsampling};
use izwi_nn::Error;
use izwi_nn::attention::relative::{RelativeSpan, relative, relative_mixed, sinusoids};
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::activation::sigmoid_gate;
use izwi_nn::layers::conv::{DepthwiseConv, GluConv};
use izwi_nn::layers::{Epilogue, Fused, LayerNorm, Linear, Norm, PackedRows, cat_weights};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Added to variances by the batch norms: PyTorch's default.
const BATCH_NORM_EPS: f64 = 1e-5;
/// Share of a feed-forward network that a layer adds.
const HALF: f64 = 0.5;

type Loaded<T> = Result<T, Error>;

/// Sizes of an encoder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Bins of a mel frame.
    pub(crate) bins: usize,
    pub(crate) layers: usize,
    pub(crate) width: usize,
    /// Channels of the subsampling.
    pub(crate) channels: usize,
    /// Width inside the feed-forward networks.
    pub(crate) inner: usize,
    pub(crate) heads: usize,
    /// Taps of the convolutions, an odd number.
    pub(crate) taps: usize,
    /// Whether the linear layers and convolutions of the layers have biases.
    pub(crate) has_biases: bool,
    /// Whether rows are multiplied by the square root of the width before the first layer.
    pub(crate) scales_input: bool,
    /// The rows that a row sees.
    pub(crate) context: Context,
}

impl Shape {
    fn halving(&self) -> Halving {
        Halving { lead: usize::from(matches!(self.context, Context::Chunked { .. })) }
    }

    /// Rows for the first frames of a recording.
    pub(crate) fn rows(&self, frames: usize) -> usize {
        let halving = self.halving();
        if frames == 0 { 0 } else { halving.places(halving.places(halving.places(frames))) }
    }
}

/// An encoder.
#[derive(Debug)]
pub(crate) struct Encoder {
    subsampling: Subsampling,
    layers: Vec<Layer>,
    shape: Shape,
    device: Device,
}

impl Encoder {
    /// Takes `{name}.*`. Large weights are kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(crate) fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: Shape,
        precision: Precision,
    ) -> Loaded<Self> {
        let layers = format!("{name}.layers.");
        from.skip(|tensor| {
            tensor.starts_with(&layers) && tensor.ends_with(".batch_norm.num_batches_tracked")
        });
        let layers =
            (0..shape.layers).map(|layer| Layer::load(from, &format!("{layers}{layer}"), &shape, precision));
        Ok(Self {
            layers: layers.collect::<Loaded<_>>()?,
            subsampling: Subsampling::load(from, &format!("{name}.pre_encode"), &shape, precision)?,
            shape,
            device: from.device().clone(),
        })
    }

    /// Sizes.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Encodes recordings, which have a frame each at least: the rows of all of them, one after another,
    /// `[sum of rows, width]` (see [`Shape::rows`]). On the CPU a recording's result is the same bits whatever others there
    /// are, in one piece or in chunks.
    ///
    /// # Errors
    /// Out of device memory.
    pub(crate) fn forward(&self, recordings: &[&Mel]) -> Loaded<Tensor> {
        self.forward_tapped(recordings, |_, _, _| Ok(()))
    }

    /// As [`Self::forward`]; `tap` gets what each layer makes, by name, packed.
    pub(crate) fn forward_tapped(
        &self,
        recordings: &[&Mel],
        tap: impl FnMut(&str, &Tensor, &PackedRows) -> Loaded<()>,
    ) -> Loaded<Tensor> {
        let Context::Chunked { longest, .. } = self.shape.context else {
            return self.run(recordings, &mut [], tap);
        };
        let mut streams = vec![self.stream(longest); recordings.len()];
        self.run(recordings, &mut streams.iter_mut().collect::<Vec<_>>(), tap)
    }

    /// The begin of a recording whose frames come in chunks of `chunk` rows, of an encoder whose context is
    /// [`Context::Chunked`].
    pub(crate) fn stream(&self, chunk: usize) -> Stream {
        Stream::new(chunk, self.layers.len())
    }

    /// The most bytes that a [`Stream`] keeps.
    pub(crate) fn stream_bytes(&self) -> usize {
        let Context::Chunked { before, .. } = self.shape.context else { return 0 };
        self.layers.len() * (2 * before + self.shape.taps - 1) * self.shape.width * size_of::<f32>()
    }

    /// As [`Self::forward`] for the next frames of `streams`: whole chunks, of which the first of a recording lacks
    /// `FRAMES_PER_ROW - 1` frames; any number at the end.
    ///
    /// # Errors
    /// Frames came after a chunk that was not whole. Out of device memory; the streams are lost then.
    pub(crate) fn advance(&self, frames: &[&Mel], streams: &mut [&mut Stream]) -> Loaded<Tensor> {
        self.run(frames, streams, |_, _, _| Ok(()))
    }

    /// For tests: another context, neither before nor after chunked.
    #[cfg(test)]
    pub(crate) fn see(&mut self, context: Context) {
        self.shape.context = context;
    }

    /// The rows of each recording, which has a frame at least, before the first layer: `[rows, width]` each, for
    /// [`Self::forward_rows`]. Not where the context is [`Context::Chunked`].
    ///
    /// # Errors
    /// Out of device memory.
    pub(crate) fn rows_before_layers(&self, recordings: &[&Mel]) -> Loaded<Vec<Tensor>> {
        self.subsample(recordings, &mut [])
    }

    /// As [`Self::forward`] of rows before the first layer, `[rows, width]` for each recording: of one stretch of it or of
    /// several, as if they followed one another.
    ///
    /// # Errors
    /// The context is [`Context::Chunked`]. Out of device memory.
    pub(crate) fn forward_rows(&self, recordings: Vec<Tensor>) -> Loaded<Tensor> {
        if let Context::Chunked { .. } = self.shape.context {
            return Err(Error::Internal("rows of chunks come in streams"));
        }
        self.run_layers(recordings, &mut [], |_, _, _| Ok(()))
    }

    fn run(
        &self,
        recordings: &[&Mel],
        streams: &mut [&mut Stream],
        tap: impl FnMut(&str, &Tensor, &PackedRows) -> Loaded<()>,
    ) -> Loaded<Tensor> {
        let parts = self.subsample(recordings, streams)?;
        self.run_layers(parts, streams, tap)
    }

    fn run_layers(
        &self,
        parts: Vec<Tensor>,
        streams: &mut [&mut Stream],
        mut tap: impl FnMut(&str, &Tensor, &PackedRows) -> Loaded<()>,
    ) -> Loaded<Tensor> {
        let lengths = parts.iter().map(|part| part.dim(0)).collect::<candle_core::Result<Vec<_>>>()?;
        let packed = match self.shape.context {
            Context::Chunked { .. } => PackedRows::dense(&lengths, &self.device)?,
            _ => PackedRows::new(&lengths, self.shape.taps / 2, &self.device)?,
        };
        let mut x = self.pack(parts, &packed)?; // [rows, width]
        tap("pre_encode", &x, &packed)?;
        if self.shape.scales_input {
            x = (x * (self.shape.width as f64).sqrt())?;
        }
        let spans = self.shape.context.spans(&packed, streams);
        let longest = spans.iter().map(|span| span.keys.len()).max().unwrap_or(0);
        let distances = sinusoids(longest, self.shape.width, &self.device)?;
        let pass = Pass { shape: &self.shape, packed: &packed, spans, distances };
        for (index, layer) in self.layers.iter().enumerate() {
            yield_point();
            let mut kept: Vec<&mut Kept> =
                streams.iter_mut().map(|stream| &mut stream.layers[index]).collect();
            x = layer.forward(&x, &pass, &mut kept)?;
            tap(&format!("layer{index}"), &x, &packed)?;
        }
        streams.iter_mut().zip(&lengths).for_each(|(stream, &rows)| stream.pass(rows));
        let spans = packed.spans().iter();
        let rows =
            spans.map(|span| x.narrow(0, span.start, span.len())).collect::<candle_core::Result<Vec<_>>>()?;
        Ok(Tensor::cat(&rows, 0)?)
    }

    /// The rows of the new frames of every recording before the first layer.
    fn subsample(&self, recordings: &[&Mel], streams: &mut [&mut Stream]) -> Loaded<Vec<Tensor>> {
        if streams.is_empty() {
            return recordings.iter().map(|mel| self.subsampling.forward(mel, 0)).collect();
        }
        let parts = recordings.iter().zip(streams).map(|(mel, stream)| {
            let (mel, known) = stream.extend(mel, |frames| self.shape.rows(frames))?;
            self.subsampling.forward(&mel, known)
        });
        parts.collect()
    }

    /// Rows where the packing has them, zeros between.
    fn pack(&self, rows: Vec<Tensor>, packed: &PackedRows) -> Loaded<Tensor> {
        let mut parts = Vec::with_capacity(2 * rows.len());
        let ends = packed.spans().iter().skip(1).map(|next| next.start).chain([packed.rows()]);
        for ((rows, span), end) in rows.into_iter().zip(packed.spans()).zip(ends) {
            parts.push(rows);
            if span.end < end {
                parts.push(Tensor::zeros((end - span.end, self.shape.width), DType::F32, &self.device)?);
            }
        }
        Ok(Tensor::cat(&parts, 0)?)
    }
}

/// What all layers take.
struct Pass<'a> {
    shape: &'a Shape,
    packed: &'a PackedRows,
    spans: Vec<RelativeSpan>,
    /// See [`sinusoids`].
    distances: Tensor,
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
    fn load(from: &mut Checkpoint, name: &str, shape: &Shape, precision: Precision) -> Loaded<Self> {
        let (width, inner) = (shape.width, shape.inner);
        let norm =
            |from: &mut Checkpoint, part: &str| LayerNorm::load(from, &format!("{name}.norm_{part}"), width);
        let feed_forward = |from: &mut Checkpoint, part: &str| {
            let sizes = (width, inner);
            FeedForward::load(from, &format!("{name}.feed_forward{part}"), sizes, shape.has_biases, precision)
        };
        Ok(Self {
            first_norm: norm(from, "feed_forward1")?,
            first: feed_forward(from, "1")?,
            attention_norm: norm(from, "self_att")?,
            attention: Attention::load(from, &format!("{name}.self_attn"), shape, precision)?,
            convolution_norm: norm(from, "conv")?,
            convolution: Convolution::load(from, &format!("{name}.conv"), shape, precision)?,
            second_norm: norm(from, "feed_forward2")?,
            second: feed_forward(from, "2")?,
            norm: norm(from, "out")?,
        })
    }

    /// `[rows, width]` to the same; rows of gaps are undefined.
    fn forward(&self, x: &Tensor, pass: &Pass<'_>, kept: &mut [&mut Kept]) -> Loaded<Tensor> {
        let x = self.first.forward(x, &self.first_norm)?;
        let x = self.attention.forward(&x, &self.attention_norm, pass, kept)?;
        let x = self.convolution.forward(&x, &self.convolution_norm, pass, kept)?;
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
        has_biases: bool,
        precision: Precision,
    ) -> Loaded<Self> {
        let fc1 = format!("{name}.linear1");
        let fc2 = [(format!("{name}.linear2.weight"), vec![width, inner])];
        // Halving is exact in every floating-point type.
        let halved = |weights| Ok((cat_weights(weights)? * HALF)?);
        let mut fc2 = Linear::load_transformed(from, (&fc2, "halved, "), (inner, width), precision, halved)?;
        if has_biases {
            fc2 = fc2.with_bias(&(from.take(&format!("{name}.linear2.bias"), &[width])? * HALF)?)?;
        }
        Ok(Self { fc1: Linear::load_with_precision(from, &fc1, (width, inner), has_biases, precision)?, fc2 })
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
    place: Place,
    biases: [Tensor; 2], // of content and place, [width]
    output: Linear,
}

/// What makes keys of distances.
#[derive(Debug)]
enum Place {
    Linear(Linear),
    /// The keys of all distances that occur.
    Keys(Tensor),
}

impl Attention {
    fn load(from: &mut Checkpoint, name: &str, shape: &Shape, precision: Precision) -> Loaded<Self> {
        let (width, heads) = (shape.width, shape.heads);
        let parts = ["q", "k", "v"].map(|part| format!("{name}.linear_{part}"));
        let weights = parts.each_ref().map(|part| (part.as_str(), width));
        let mut qkv = Linear::load_stacked(from, &weights, width, precision)?;
        if shape.has_biases {
            let biases = parts.iter().map(|part| from.take(&format!("{part}.bias"), &[width]));
            qkv = qkv.with_bias(&Tensor::cat(&biases.collect::<Loaded<Vec<_>>>()?, 0)?)?;
        }
        let place = format!("{name}.linear_pos");
        let place = Linear::load_with_precision(from, &place, (width, width), false, precision)?;
        let place = match shape.context {
            Context::Chunked { before, longest } => {
                Place::Keys(place.product(&sinusoids(before + longest, width, from.device())?)?)
            }
            _ => Place::Linear(place),
        };
        let mut bias_of = |part: &str| {
            let bias = from.take(&format!("{name}.pos_bias_{part}"), &[heads, width / heads])?;
            Ok::<_, Error>(bias.flatten_all()?)
        };
        let biases = [bias_of("u")?, bias_of("v")?];
        Ok(Self {
            qkv,
            place,
            biases,
            output: Linear::load_with_precision(
                from,
                &format!("{name}.linear_out"),
                (width, width),
                shape.has_biases,
                precision,
            )?,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        pass: &Pass<'_>,
        kept: &mut [&mut Kept],
    ) -> Loaded<Tensor> {
        let qkv = self.qkv.forward_fused(x, Fused { norm: Some(Norm::Layer(norm)), ..Fused::default() })?;
        let Pass { shape: Shape { width, heads, .. }, packed, spans, distances } = pass;
        let biases = self.biases.each_ref();
        let mixed = match (&self.place, pass.shape.context) {
            (Place::Keys(distances), Context::Chunked { before, .. }) => {
                let new = qkv.narrow(1, *width, 2 * width)?;
                let all = packed
                    .spans()
                    .iter()
                    .zip(kept)
                    .map(|(span, kept)| kept.keys(&new.narrow(0, span.start, span.len())?, before));
                let all = Tensor::cat(&all.collect::<Loaded<Vec<_>>>()?, 0)?;
                let (q, k, v) =
                    (qkv.narrow(1, 0, *width)?, all.narrow(1, 0, *width)?, all.narrow(1, *width, *width)?);
                relative([&q, &k, &v], distances, biases, *heads, spans)?
            }
            (Place::Linear(place), _) => {
                let distances = place.product(distances)?; // [2 * longest - 1, width]
                relative_mixed(&qkv, &distances, biases, *heads, spans)?
            }
            _ => return Err(Error::Internal("distances of chunks are known")),
        };
        Ok(self.output.forward_fused(&mixed, Fused { residual: Some(x), ..Fused::default() })?)
    }
}

/// A gated linear layer, a convolution of each channel with a norm after it, SiLU, a linear layer; added to the input.
#[derive(Debug)]
struct Convolution {
    gated: Linear,
    mixing: Mixing,
    output: Linear,
}

/// The convolution and its norm.
#[derive(Debug)]
enum Mixing {
    /// Around each row, with a batch norm, whose shift is that of the convolution.
    Centred(GluConv),
    /// Of each row and those before it, with a layer norm.
    Causal(DepthwiseConv, LayerNorm),
}

impl Convolution {
    fn load(from: &mut Checkpoint, name: &str, shape: &Shape, precision: Precision) -> Loaded<Self> {
        let width = shape.width;
        let mut point = |part: &str, outputs: usize| {
            let name = format!("{name}.pointwise_conv{part}");
            let parts = [(format!("{name}.weight"), vec![outputs, width, 1])];
            let flat = |weights| Ok(cat_weights(weights)?.squeeze(2)?);
            let linear = Linear::load_transformed(from, (&parts, ""), (width, outputs), precision, flat)?;
            if !shape.has_biases {
                return Ok::<_, Error>(linear);
            }
            Ok(linear.with_bias(&from.take(&format!("{name}.bias"), &[outputs])?)?)
        };
        let (gated, output) = (point("1", 2 * width)?, point("2", width)?);
        let depthwise = format!("{name}.depthwise_conv");
        let weight = from.take(&format!("{depthwise}.weight"), &[width, 1, shape.taps])?;
        let bias = match shape.has_biases {
            true => Some(from.take(&format!("{depthwise}.bias"), &[width])?),
            false => None,
        };
        if let Context::Chunked { .. } = shape.context {
            let bias = bias.map_or_else(|| Tensor::zeros(width, DType::F32, from.device()), Ok)?;
            let norm = LayerNorm::load(from, &format!("{name}.batch_norm"), width)?;
            let mixing = Mixing::Causal(DepthwiseConv::new(&weight, bias, 1)?, norm);
            return Ok(Self { gated, mixing, output });
        }
        let mut norm = |part: &str| from.take(&format!("{name}.batch_norm.{part}"), &[width]);
        let (mean, variance) = (norm("running_mean")?, norm("running_var")?);
        let (factor, shift) = (norm("weight")?, norm("bias")?);
        let scale = (factor / (variance + BATCH_NORM_EPS)?.sqrt()?)?;
        let weight = weight.broadcast_mul(&scale.reshape((width, 1, 1))?)?;
        let centre = match bias {
            Some(bias) => (bias - mean)?,
            None => mean.neg()?,
        };
        let shift = (shift + (centre * scale)?)?;
        Ok(Self { gated, mixing: Mixing::Centred(GluConv::new(&weight, shift)?), output })
    }

    fn forward(
        &self,
        x: &Tensor,
        norm: &LayerNorm,
        pass: &Pass<'_>,
        kept: &mut [&mut Kept],
    ) -> Loaded<Tensor> {
        let gated = Fused { norm: Some(Norm::Layer(norm)), ..Fused::default() };
        let h = self.gated.forward_fused(x, gated)?;
        let h = match &self.mixing {
            Mixing::Centred(conv) => conv.forward(&h, pass.packed)?,
            Mixing::Causal(conv, norm) => {
                let mixed = stream::convolve(conv, pass.shape.taps, &sigmoid_gate(&h)?, pass.packed, kept)?;
                norm.forward(&mixed)?.silu()?
            }
        };
        Ok(self.output.forward_fused(&h, Fused { residual: Some(x), ..Fused::default() })?)
    }
}
