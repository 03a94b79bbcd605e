//! PL-BERT: one ALBERT layer applied several times to phonemes. <https://arxiv.org/abs/2301.08810>,
//! <https://arxiv.org/abs/1909.11942>. Knows no duration and no voice.

use candle_core::{Result, Tensor};

use super::config::{BertConfig, Config};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{JointLinear, JointPart, LayerNorm, Linear, PackedRows, attend};
use izwi_types::Precision;

const EPS: f64 = 1e-12;
/// The one layer's name.
const LAYER: &str = "bert.encoder.albert_layer_groups.0.albert_layers.0";

/// Phoneme ids to features, which a projection brings to the width of the text.
#[derive(Debug)]
pub(super) struct Bert {
    words: Tensor,     // [ids, embedding]
    positions: Tensor, // [positions, embedding]
    kind: Tensor,      // [embedding]: every sequence is of the first kind
    norm: LayerNorm,
    widen: Linear,
    layer: Layer,
    loops: usize,
    out: Linear,
}

#[derive(Debug)]
struct Layer {
    qkv: JointLinear,
    heads: usize,
    dense: Linear,
    attention_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    norm: LayerNorm,
}

impl Bert {
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let sizes = &config.plbert;
        let (width, narrow) = (sizes.hidden_size, sizes.embedding_size);
        let kinds = from.take("bert.embeddings.token_type_embeddings.weight", &[2, narrow])?;
        let norm = LayerNorm::load_with_eps(from, "bert.embeddings.LayerNorm", narrow, EPS)?;
        let positions = &[sizes.max_position_embeddings, narrow];
        Ok(Self {
            words: from.take("bert.embeddings.word_embeddings.weight", &[config.n_token, narrow])?,
            positions: from.take("bert.embeddings.position_embeddings.weight", positions)?,
            kind: kinds.get(0)?,
            norm,
            widen: Linear::load(from, "bert.encoder.embedding_hidden_mapping_in", narrow, width)?,
            layer: Layer::load(from, sizes, precision)?,
            loops: sizes.num_hidden_layers,
            out: Linear::load(from, "bert_encoder", width, config.hidden_dim)?,
        })
    }

    /// Packed `ids` to `[rows, hidden_size]`; gap rows are undefined.
    pub(super) fn forward(&self, ids: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let places = packed.fill(|_, position| position as u32);
        let places = Tensor::from_vec(places, packed.rows(), ids.device())?;
        let x = (self.words.index_select(ids, 0)? + self.positions.index_select(&places, 0)?)?;
        let x = self.norm.forward(&x.broadcast_add(&self.kind)?)?;
        let mut x = self.widen.forward(&x)?;
        for _ in 0..self.loops {
            x = self.layer.forward(&x, packed)?;
        }
        Ok(x)
    }

    /// Features `[rows, hidden_size]` to `[rows, hidden_dim]`, gaps zero.
    pub(super) fn project(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        packed.clear_gaps(&self.out.forward(x)?)
    }
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        sizes: &BertConfig,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let (width, hidden) = (sizes.hidden_size, sizes.intermediate_size);
        let names = ["query", "key", "value"].map(|part| format!("{LAYER}.attention.{part}"));
        let parts = names.each_ref().map(|name| JointPart { name, outputs: width, has_bias: true });
        let qkv = JointLinear::load(from, &parts, width, precision)?;
        let mut linear = |part: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, &format!("{LAYER}.{part}"), sizes, true, precision)
        };
        let dense = linear("attention.dense", (width, width))?;
        let fc1 = linear("ffn", (width, hidden))?;
        let fc2 = linear("ffn_output", (hidden, width))?;
        let mut norm = |part: &str| LayerNorm::load_with_eps(from, &format!("{LAYER}.{part}"), width, EPS);
        let attention_norm = norm("attention.LayerNorm")?;
        let norm = norm("full_layer_layer_norm")?;
        Ok(Self { qkv, heads: sizes.num_attention_heads, dense, attention_norm, fc1, fc2, norm })
    }

    fn forward(&self, x: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let mixed = attend(&self.qkv.forward(x, None)?.parts, self.heads, packed)?;
        let x = self.attention_norm.forward(&(self.dense.forward(&mixed)? + x)?)?;
        // GELU by tanh, as the publisher's configuration has it.
        let hidden = self.fc1.forward(&x)?.gelu()?;
        self.norm.forward(&(self.fc2.forward(&hidden)? + &x)?)
    }
}
