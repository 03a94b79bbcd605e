//! The causal transformer of a codec: over a window in streams, or over a whole sequence.

use candle_core::{Result, Tensor};

use super::stream::{MixedHeads, StreamShape, Streams, WindowPlace, attend_whole};
use crate::Error;
use crate::attention::window::Window;
use crate::checkpoint::Checkpoint;
use crate::layers::{
    Epilogue, Fused, LayerNorm, Linear, RmsNorm, Rope, RopeRows, RowNorm, cat_weights,
    half_split_of_interleaved,
};
use crate::yielding::yield_point;
use izwi_types::Precision;

/// Which normalisation and feed-forward layers a transformer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// RMS norm, SiLU-gated feed-forward.
    Gated,
    /// Layer norm with bias, GELU feed-forward.
    Plain,
    /// As [`Self::Plain`], GELU by its approximation with tanh.
    PlainTanh,
}

/// How a checkpoint names and lays out the tensors of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Naming {
    /// As Hugging Face's models: separate projections, rotation of a head's element `i` with `i + head_dim / 2`.
    Split,
    /// As Kyutai's models (<https://github.com/kyutai-labs/moshi>): the three projections in one tensor, rotation of
    /// neighbouring elements.
    Fused,
}

/// Sizes of a transformer.
#[derive(Debug, Clone, Copy)]
pub struct TransformerShape {
    /// Which layers it has.
    pub style: Style,
    /// What their tensors are called.
    pub naming: Naming,
    /// Layers.
    pub layers: usize,
    /// Channels between layers.
    pub width: usize,
    /// Heads of queries, keys and values alike.
    pub heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels inside the feed-forward layers.
    pub feed_forward: usize,
    /// Addend of the norms.
    pub eps: f64,
    /// Longest wave of the rotary embedding, over 2π.
    pub rope_theta: f64,
    /// Type of the large weights.
    pub precision: Precision,
}

/// Layers that add attention and a feed-forward network to their input, each scaled by channel; no biases.
#[derive(Debug, Clone)]
pub struct CausalTransformer {
    layers: Vec<Layer>,
    rope: Rope,
    heads: usize,
    window: Option<(Window, Vec<WindowPlace>)>,
}

#[derive(Debug, Clone)]
struct Layer {
    attention_norm: RowNorm,
    qkv: Linear, // [width, 3 * heads * head_dim]
    output: Linear,
    attention_scale: Tensor, // [width]
    feed_forward_norm: RowNorm,
    feed_forward: FeedForward,
    feed_forward_scale: Tensor, // [width]
}

#[derive(Debug, Clone)]
enum FeedForward {
    Gated { gate_up: Linear, down: Linear },
    Plain { up: Linear, epilogue: Epilogue, down: Linear },
}

impl CausalTransformer {
    /// Takes the layers `{prefix}.{i}`. A window allows streaming, in chunks of whole steps of the window.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        prefix: &str,
        shape: &TransformerShape,
        window: Option<(Window, &mut StreamShape)>,
    ) -> std::result::Result<Self, Error> {
        let layers = (0..shape.layers).map(|i| Layer::load(from, &format!("{prefix}.{i}"), shape));
        let layers = layers.collect::<std::result::Result<_, _>>()?;
        let width = shape.heads * shape.head_dim;
        let window = window.map(|(window, streams)| {
            (window, (0..shape.layers).map(|_| streams.window(window.positions, width)).collect())
        });
        Ok(Self { layers, rope: Rope::new(shape.head_dim, shape.rope_theta), heads: shape.heads, window })
    }

    /// New rows `[rows, width]` of each sequence to the same; `tap` prefixes the names of recorded layer outputs.
    ///
    /// # Errors
    /// Shapes do not fit, or there is no window.
    pub fn forward(&self, x: &Tensor, streams: &mut Streams<'_>, tap: &str) -> Result<Tensor> {
        let Some((window, places)) = &self.window else {
            candle_core::bail!("transformer: loaded without a window")
        };
        let Some(&place) = places.first() else { return Ok(x.clone()) };
        // Every layer has seen as many positions.
        let positions = self.rope.rows(streams.positions(place), x.device())?;
        let heads = self.heads(&positions);
        let mut x = x.clone();
        for (index, (layer, &place)) in self.layers.iter().zip(places).enumerate() {
            yield_point();
            x = layer.forward(&x, |mixed| streams.attend(place, mixed, heads, *window))?;
            streams.tap(|| format!("{tap}{index}"), &x);
        }
        Ok(x)
    }

    /// All rows `[rows, width]` of one sequence to the same, with full causal attention; `tap` gets the output of each
    /// layer.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_whole(&self, x: &Tensor, mut tap: impl FnMut(usize, &Tensor)) -> Result<Tensor> {
        let positions = self.rope.rows((0..x.dim(0)? as u32).collect(), x.device())?;
        let mut x = x.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            yield_point();
            x = layer.forward(&x, |mixed| attend_whole(mixed, self.heads(&positions)))?;
            tap(index, &x);
        }
        Ok(x)
    }

    fn heads<'a>(&'a self, positions: &'a RopeRows) -> MixedHeads<'a> {
        MixedHeads { heads: self.heads, kv_heads: self.heads, rope: &self.rope, positions, norms: None }
    }
}

impl Layer {
    fn load(from: &mut Checkpoint, name: &str, shape: &TransformerShape) -> std::result::Result<Self, Error> {
        let attention_width = shape.heads * shape.head_dim;
        let names = shape.naming.names();
        let named = |part: &str| format!("{name}.{part}");
        let [attention_norm, feed_forward_norm] = names.norms.map(named);
        let [attention_scale, feed_forward_scale] = names.scales.map(|part| format!("{name}.{part}.scale"));
        let output = from.first_of(names.outputs.iter().map(|part| format!("{name}.{part}.weight")));
        Ok(Self {
            attention_norm: load_norm(from, &attention_norm, shape)?,
            qkv: shape.naming.qkv(from, &named("self_attn"), shape)?,
            output: {
                let parts = [(output, vec![shape.width, attention_width])];
                let sizes = (attention_width, shape.width);
                Linear::load_transformed(from, (&parts, ""), sizes, shape.precision, cat_weights)?
            },
            attention_scale: from.take(&attention_scale, &[shape.width])?,
            feed_forward_norm: load_norm(from, &feed_forward_norm, shape)?,
            feed_forward: FeedForward::load(from, name, shape)?,
            feed_forward_scale: from.take(&feed_forward_scale, &[shape.width])?,
        })
    }

    fn forward(&self, x: &Tensor, attend: impl FnOnce(Tensor) -> Result<Tensor>) -> Result<Tensor> {
        let norm = Some(self.attention_norm.of_rows());
        let mixed = self.qkv.forward_fused(x, Fused { norm, ..Fused::default() })?;
        let scaled = Fused { scale: Some(&self.attention_scale), residual: Some(x), ..Fused::default() };
        let x = self.output.forward_fused(&attend(mixed)?, scaled)?;
        let norm = Some(self.feed_forward_norm.of_rows());
        let (epilogue, up, down) = match &self.feed_forward {
            FeedForward::Gated { gate_up, down } => (Epilogue::GatedSilu, gate_up, down),
            FeedForward::Plain { up, epilogue, down } => (*epilogue, up, down),
        };
        let inner = up.forward_fused(&x, Fused { norm, epilogue, ..Fused::default() })?;
        let scaled = Fused { scale: Some(&self.feed_forward_scale), residual: Some(&x), ..Fused::default() };
        down.forward_fused(&inner, scaled)
    }
}

/// Parts of a layer's tensor names; of several alternatives, the checkpoint has one.
struct Names {
    norms: [&'static str; 2],
    outputs: &'static [&'static str],
    plain: [&'static str; 2],
    scales: [&'static str; 2],
}

impl Naming {
    fn names(self) -> Names {
        match self {
            Self::Split => Names {
                norms: ["input_layernorm", "post_attention_layernorm"],
                outputs: &["self_attn.o_proj"],
                plain: ["mlp.fc1", "mlp.fc2"],
                scales: ["self_attn_layer_scale", "mlp_layer_scale"],
            },
            Self::Fused => Names {
                norms: ["norm1", "norm2"],
                outputs: &["self_attn.out_proj", "self_attn.out_projs.0"],
                plain: ["linear1", "linear2"],
                scales: ["layer_scale_1", "layer_scale_2"],
            },
        }
    }

    /// The three projections as one, in the half-split layout of [`Rope`].
    fn qkv(
        self,
        from: &mut Checkpoint,
        name: &str,
        shape: &TransformerShape,
    ) -> std::result::Result<Linear, Error> {
        let (width, inner) = (shape.width, shape.heads * shape.head_dim);
        match self {
            Self::Split => {
                let [q, k, v] = ["q", "k", "v"].map(|part| format!("{name}.{part}_proj"));
                let parts = [&q, &k, &v].map(|part| (part.as_str(), inner));
                Linear::load_stacked(from, &parts, width, shape.precision)
            }
            Self::Fused => {
                let fused = ["in_proj_weight", "in_proj.weight", "in_projs.0.weight"];
                let fused = from.first_of(fused.iter().map(|part| format!("{name}.{part}")));
                let transform_id = format!("half-split rope {}, ", shape.head_dim);
                let parts = [(fused, vec![3 * inner, width])];
                Linear::load_transformed(
                    from,
                    (&parts, &transform_id),
                    (width, 3 * inner),
                    shape.precision,
                    |weights| {
                        let weight = cat_weights(weights)?;
                        let rotated =
                            half_split_of_interleaved(&weight.narrow(0, 0, 2 * inner)?, shape.head_dim)?;
                        Ok(Tensor::cat(&[rotated, weight.narrow(0, 2 * inner, inner)?], 0)?)
                    },
                )
            }
        }
    }
}

fn load_norm(
    from: &mut Checkpoint,
    name: &str,
    shape: &TransformerShape,
) -> std::result::Result<RowNorm, Error> {
    Ok(match shape.style {
        Style::Gated => RowNorm::Rms(RmsNorm::load(from, name, shape.width, shape.eps)?),
        Style::Plain | Style::PlainTanh => {
            RowNorm::Layer(LayerNorm::load_with_eps(from, name, shape.width, shape.eps)?)
        }
    })
}

impl FeedForward {
    fn load(from: &mut Checkpoint, name: &str, shape: &TransformerShape) -> std::result::Result<Self, Error> {
        let (width, inner) = (shape.width, shape.feed_forward);
        Ok(match shape.style {
            Style::Gated => {
                let [gate, up] = ["gate", "up"].map(|part| format!("{name}.mlp.{part}_proj"));
                let parts = [(gate.as_str(), inner), (up.as_str(), inner)];
                Self::Gated {
                    gate_up: Linear::load_stacked(from, &parts, width, shape.precision)?,
                    down: linear(from, &format!("{name}.mlp.down_proj"), (inner, width), shape)?,
                }
            }
            Style::Plain | Style::PlainTanh => {
                let [up, down] = shape.naming.names().plain.map(|part| format!("{name}.{part}"));
                let up = linear(from, &up, (width, inner), shape)?;
                let down = linear(from, &down, (inner, width), shape)?;
                let is_tanh = shape.style == Style::PlainTanh;
                let epilogue = if is_tanh { Epilogue::GeluTanh } else { Epilogue::Gelu };
                Self::Plain { up, epilogue, down }
            }
        })
    }
}

fn linear(
    from: &mut Checkpoint,
    name: &str,
    (inputs, outputs): (usize, usize),
    shape: &TransformerShape,
) -> std::result::Result<Linear, Error> {
    Linear::load_stacked(from, &[(name, outputs)], inputs, shape.precision)
}
