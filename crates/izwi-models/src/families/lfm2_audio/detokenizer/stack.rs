//! The network between the codebooks and the spectra: layers that mix rows by short convolutions or by attention over a
//! window, in streams.

use candle_core::{Result, Tensor};

use super::config::{Config, Mixing};
use izwi_nn::Error;
use izwi_nn::attention::window::Window;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::short_conv::StreamedShortConv;
use izwi_nn::codec::stream::{MixedHeads, StreamShape, Streams, WindowPlace};
use izwi_nn::layers::conv::ShortConvShape;
use izwi_nn::layers::{Epilogue, Fused, Linear, Norm, RmsNorm, Rope, RopeRows};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

type Loaded<T> = std::result::Result<T, Error>;

/// The layers and the norm after them.
#[derive(Debug)]
pub(super) struct Stack {
    layers: Vec<Layer>,
    norm: RmsNorm,
    rope: Rope,
}

/// A mixing operator and a gated feed-forward network, each after its norm and around a residual.
#[derive(Debug)]
struct Layer {
    mixing_norm: RmsNorm,
    mixing: Operator,
    feed_forward_norm: RmsNorm,
    gate_up: Linear,
    down: Linear,
}

#[derive(Debug)]
enum Operator {
    Convolution(StreamedShortConv),
    Attention { attention: Attention, place: WindowPlace },
}

#[derive(Debug)]
struct Attention {
    qkv: Linear, // [(heads + 2 * kv_heads) * head_dim, width]
    query_norm: RmsNorm,
    key_norm: RmsNorm,
    output: Linear,
    heads: usize,
    kv_heads: usize,
    window: Window,
}

impl Stack {
    /// Takes `{prefix}.layers.*` and `{prefix}.embedding_norm`.
    pub(super) fn load(
        from: &mut Checkpoint,
        prefix: &str,
        config: &Config,
        precision: Precision,
        shape: &mut StreamShape,
    ) -> Loaded<Self> {
        let (width, eps) = (config.hidden_size, config.norm_eps);
        let layers = config.mixings().map_err(Error::Checkpoint)?.into_iter().enumerate();
        let layers = layers.map(|(i, mixing)| {
            Layer::load(from, &format!("{prefix}.layers.{i}"), (config, mixing), precision, shape)
        });
        Ok(Self {
            layers: layers.collect::<Loaded<_>>()?,
            norm: RmsNorm::load(from, &format!("{prefix}.embedding_norm"), width, eps)?,
            rope: Rope::new(width / config.num_attention_heads, config.rope_theta),
        })
    }

    /// New rows `[rows, width]` of each sequence to the same.
    pub(super) fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        // Every attention layer has seen as many positions.
        let place = self.layers.iter().find_map(|layer| match &layer.mixing {
            Operator::Attention { place, .. } => Some(*place),
            Operator::Convolution(_) => None,
        });
        let positions = place.map(|place| streams.positions(place)).unwrap_or_default();
        let positions = self.rope.rows(positions, x.device())?;
        let mut x = x.clone();
        for (index, layer) in self.layers.iter().enumerate() {
            yield_point();
            x = layer.forward(&x, (&self.rope, &positions), streams)?;
            streams.tap(|| format!("layer{index}"), &x);
        }
        self.norm.forward(&x)
    }
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (config, mixing): (&Config, Mixing),
        precision: Precision,
        shape: &mut StreamShape,
    ) -> Loaded<Self> {
        let (width, eps) = (config.hidden_size, config.norm_eps);
        let inner = config.feed_forward().map_err(Error::Checkpoint)?;
        let mixing = match mixing {
            Mixing::Convolution => {
                let sizes = ShortConvShape { width, taps: config.taps, precision };
                let name = format!("{name}.conv");
                Operator::Convolution(StreamedShortConv::load(from, &name, sizes, shape)?)
            }
            Mixing::Attention => {
                let kv_width = width / config.num_attention_heads * config.num_key_value_heads;
                let attention = Attention::load(from, &format!("{name}.self_attn"), config, precision)?;
                Operator::Attention { attention, place: shape.window(config.window(), kv_width) }
            }
        };
        let [gate, up, down] = ["w1", "w3", "w2"].map(|part| format!("{name}.feed_forward.{part}"));
        let gate_up = [(gate.as_str(), inner), (up.as_str(), inner)];
        Ok(Self {
            mixing_norm: RmsNorm::load(from, &format!("{name}.operator_norm"), width, eps)?,
            mixing,
            feed_forward_norm: RmsNorm::load(from, &format!("{name}.ffn_norm"), width, eps)?,
            gate_up: Linear::load_stacked(from, &gate_up, width, precision)?,
            down: Linear::load_stacked(from, &[(down.as_str(), width)], inner, precision)?,
        })
    }

    fn forward(&self, x: &Tensor, rope: (&Rope, &RopeRows), streams: &mut Streams<'_>) -> Result<Tensor> {
        let norm = Norm::Rms(&self.mixing_norm);
        let x = match &self.mixing {
            Operator::Convolution(conv) => conv.forward(x, norm, streams)?,
            Operator::Attention { attention, place } => {
                attention.forward((x, norm), rope, *place, streams)?
            }
        };
        let norm = Some(Norm::Rms(&self.feed_forward_norm));
        let gated = Fused { norm, epilogue: Epilogue::GatedSilu, ..Fused::default() };
        let inner = self.gate_up.forward_fused(&x, gated)?;
        self.down.forward_fused(&inner, Fused { residual: Some(&x), ..Fused::default() })
    }
}

impl Attention {
    fn load(from: &mut Checkpoint, name: &str, config: &Config, precision: Precision) -> Loaded<Self> {
        let (width, heads, kv_heads) =
            (config.hidden_size, config.num_attention_heads, config.num_key_value_heads);
        let head_dim = width / heads;
        let [q, k, v, output] =
            ["q_proj", "k_proj", "v_proj", "out_proj"].map(|part| format!("{name}.{part}"));
        let parts =
            [(q.as_str(), width), (k.as_str(), kv_heads * head_dim), (v.as_str(), kv_heads * head_dim)];
        Ok(Self {
            qkv: Linear::load_stacked(from, &parts, width, precision)?,
            query_norm: RmsNorm::load(from, &format!("{name}.q_layernorm"), head_dim, config.norm_eps)?,
            key_norm: RmsNorm::load(from, &format!("{name}.k_layernorm"), head_dim, config.norm_eps)?,
            output: Linear::load_stacked(from, &[(output.as_str(), width)], width, precision)?,
            heads,
            kv_heads,
            window: Window::new(config.window()),
        })
    }

    /// `x` and attention over its norm.
    fn forward(
        &self,
        (x, norm): (&Tensor, Norm<'_>),
        (rope, positions): (&Rope, &RopeRows),
        place: WindowPlace,
        streams: &mut Streams<'_>,
    ) -> Result<Tensor> {
        let mixed = self.qkv.forward_fused(x, Fused { norm: Some(norm), ..Fused::default() })?;
        let heads = MixedHeads {
            heads: self.heads,
            kv_heads: self.kv_heads,
            rope,
            positions,
            norms: Some([&self.query_norm, &self.key_norm]),
        };
        let attended = streams.attend(place, mixed, heads, self.window)?;
        self.output.forward_fused(&attended, Fused { residual: Some(x), ..Fused::default() })
    }
}
