//! What follows the encoder: a transformer over all rows of a recording, and the probability of each speaker in each row.

use candle_core::Tensor;

use super::config::HeadShape;
use super::latency::{Row, SPEAKERS};
use izwi_nn::Error;
use izwi_nn::attention::bidirectional;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{Epilogue, Fused, JointLinear, JointPart, LayerNorm, Linear};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// The weights.
#[derive(Debug)]
pub(super) struct Head {
    /// To the transformer's width, where it is another.
    projection: Option<Linear>,
    layers: Vec<Layer>,
    hidden: Linear,
    speakers: Linear,
}

/// Attention and a feed-forward network, each around a residual with a norm after it.
#[derive(Debug)]
struct Layer {
    qkv: JointLinear,
    output: Linear,
    attention_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
    norm: LayerNorm,
    heads: usize,
}

impl Head {
    /// Takes `transformer_encoder.*` and `sortformer_modules.*`. Large weights are kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, shape: HeadShape, precision: Precision) -> Result<Self, Error> {
        let HeadShape { inputs, width, .. } = shape;
        // The reference makes it and does not use it.
        from.skip(|name| name.starts_with("sortformer_modules.hidden_to_spks."));
        let layers = (0..shape.layers).map(|layer| Layer::load(from, layer, shape, precision));
        let layers = layers.collect::<Result<_, _>>()?;
        let mut linear = |part: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, &format!("sortformer_modules.{part}"), sizes, true, precision)
        };
        Ok(Self {
            layers,
            projection: (inputs != width).then(|| linear("encoder_proj", (inputs, width))).transpose()?,
            hidden: linear("first_hidden_to_hidden", (width, width))?,
            speakers: linear("single_hidden_to_spks", (width, SPEAKERS))?,
        })
    }

    /// The probabilities of the speakers in each row of recordings whose rows follow one another, `[rows, inputs]`,
    /// `lengths` of each.
    ///
    /// # Errors
    /// Out of device memory.
    pub(super) fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<Vec<Vec<Row>>, Error> {
        self.forward_tapped(x, lengths, |_, _| {})
    }

    /// As [`Self::forward`]; `tap` gets what each layer makes, by name.
    pub(super) fn forward_tapped(
        &self,
        x: &Tensor,
        lengths: &[usize],
        mut tap: impl FnMut(&str, &Tensor),
    ) -> Result<Vec<Vec<Row>>, Error> {
        let mut x = match &self.projection {
            Some(projection) => projection.forward(x)?, // [rows, width]
            None => x.clone(),
        };
        tap("encoder_proj", &x);
        for (index, layer) in self.layers.iter().enumerate() {
            yield_point();
            x = layer.forward(&x, lengths)?;
            tap(&format!("tf{index}"), &x);
        }
        let relu = Fused { epilogue: Epilogue::Relu, ..Fused::default() };
        let hidden = self.hidden.forward_fused(&x.relu()?, relu)?;
        let logits = self.speakers.forward(&hidden)?.to_vec2::<f32>()?; // [rows, SPEAKERS]
        let mut rows = logits.iter().map(|logits| {
            let mut row = Row::default();
            row.iter_mut().zip(logits).for_each(|(row, logit)| *row = 1.0 / (1.0 + (-logit).exp()));
            row
        });
        Ok(lengths.iter().map(|&length| rows.by_ref().take(length).collect()).collect())
    }
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        index: usize,
        HeadShape { width, heads, inner, .. }: HeadShape,
        precision: Precision,
    ) -> Result<Self, Error> {
        let name = |part: &str| format!("transformer_encoder.layers.{index}.{part}");
        let parts =
            ["query_net", "key_net", "value_net"].map(|part| name(&format!("first_sub_layer.{part}")));
        let parts = parts.each_ref().map(|name| JointPart { name, outputs: width, has_bias: true });
        let qkv = JointLinear::load(from, &parts, width, precision)?;
        let mut linear = |part: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, &name(part), sizes, true, precision)
        };
        let output = linear("first_sub_layer.out_projection", (width, width))?;
        let fc1 = linear("second_sub_layer.dense_in", (width, inner))?;
        let fc2 = linear("second_sub_layer.dense_out", (inner, width))?;
        Ok(Self {
            qkv,
            output,
            attention_norm: LayerNorm::load(from, &name("layer_norm_1"), width)?,
            fc1,
            fc2,
            norm: LayerNorm::load(from, &name("layer_norm_2"), width)?,
            heads,
        })
    }

    /// `[rows, width]` to the same.
    fn forward(&self, x: &Tensor, lengths: &[usize]) -> Result<Tensor, Error> {
        let joint = self.qkv.forward(x, None)?;
        let [q, k, v] = &joint.parts[..] else { return Err(Error::Internal("attention has three parts")) };
        let mixed = bidirectional(q, k, v, self.heads, lengths)?;
        let residual = |x| Fused { residual: Some(x), ..Fused::default() };
        let x = self.attention_norm.forward(&self.output.forward_fused(&mixed, residual(x))?)?;
        let relu = Fused { epilogue: Epilogue::Relu, ..Fused::default() };
        let hidden = self.fc1.forward_fused(&x, relu)?;
        Ok(self.norm.forward(&self.fc2.forward_fused(&hidden, residual(&x))?)?)
    }
}
