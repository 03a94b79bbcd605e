//! The audio encoder: log-mel frames of several windows to one row for every 20 ms.
//!
//! Windows are packed into one tensor of rows: linear layers run over all of them, attention within each. Source of the
//! architecture: <https://github.com/openai/whisper/blob/main/whisper/model.py> (`AudioEncoder`).

use candle_core::{Device, Tensor};

use super::config::{Config, FRAMES_PER_POSITION};
use izwi_nn::Error;
use izwi_nn::attention::bidirectional;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::StridedConv;
use izwi_nn::layers::{Epilogue, Fused, LayerNorm, Linear, Norm, ROW_ALIGN};
use izwi_types::Precision;

/// Kernel width of both convolutions.
const TAPS: usize = 3;

/// Normalised log-mel frames of one window.
#[derive(Debug)]
pub(super) struct WindowMel {
    /// `[positions * FRAMES_PER_POSITION, bins]`.
    pub(super) values: Vec<f32>,
    /// Encoder positions.
    pub(super) positions: usize,
}

/// The encoder's weights.
#[derive(Debug)]
pub(super) struct Encoder {
    conv1: StridedConv,
    conv2: StridedConv,
    positions: Tensor, // [max positions, width]
    layers: Vec<Layer>,
    norm: LayerNorm,
    bins: usize,
    heads: usize,
    device: Device,
}

/// Pre-norm attention and feed-forward with residuals.
#[derive(Debug)]
struct Layer {
    attention_norm: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

impl Encoder {
    /// Takes everything under `model.encoder`, the weights of the layers kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        let (width, bins) = (config.d_model, config.num_mel_bins);
        let device = from.device().clone();
        let name = "model.encoder";
        let shape = (width, config.encoder_ffn_dim);
        let layers = (0..config.encoder_layers)
            .map(|layer| Layer::load(from, &format!("{name}.layers.{layer}"), shape, precision));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            conv1: conv(from, &format!("{name}.conv1"), bins, width, 1)?,
            conv2: conv(from, &format!("{name}.conv2"), width, width, FRAMES_PER_POSITION)?,
            positions: from
                .take(&format!("{name}.embed_positions.weight"), &[config.max_source_positions, width])?,
            norm: LayerNorm::load(from, &format!("{name}.layer_norm"), width)?,
            bins,
            heads: config.encoder_attention_heads,
            device,
        })
    }

    /// Encodes each window: `[positions, width]`. A window's result is the same bits in any batch.
    ///
    /// # Errors
    /// A window has too many positions, or the device is out of memory.
    pub(super) fn forward(&self, windows: &[WindowMel]) -> Result<Vec<Tensor>, Error> {
        let mut rows = Vec::with_capacity(2 * windows.len());
        // Windows start at multiples of ROW_ALIGN; the rows in between attend to themselves.
        let mut spans = Vec::with_capacity(2 * windows.len());
        for window in windows {
            rows.push(self.embed(window)?);
            spans.push(window.positions);
            let gap = window.positions.next_multiple_of(ROW_ALIGN) - window.positions;
            if gap > 0 {
                rows.push(Tensor::zeros((gap, self.norm_width()?), candle_core::DType::F32, &self.device)?);
                spans.push(gap);
            }
        }
        let mut x = Tensor::cat(&rows, 0)?; // [rows, width]
        for layer in &self.layers {
            x = layer.forward(&x, self.heads, &spans)?;
        }
        let x = self.norm.forward(&x)?;
        let mut start = 0;
        let mut encoded = Vec::with_capacity(windows.len());
        for window in windows {
            encoded.push(x.narrow(0, start, window.positions)?);
            start += window.positions.next_multiple_of(ROW_ALIGN);
        }
        Ok(encoded)
    }

    fn norm_width(&self) -> Result<usize, Error> {
        Ok(self.positions.dim(1)?)
    }

    /// The two convolutions and the position embedding: `[positions, width]`.
    fn embed(&self, window: &WindowMel) -> Result<Tensor, Error> {
        let frames = window.positions * FRAMES_PER_POSITION;
        let mel = Tensor::from_slice(&window.values, (frames, self.bins), &self.device)?;
        let x = self.conv1.forward_gelu(&mel)?; // [frames, width]
        let x = self.conv2.forward_gelu(&x)?; // [positions, width]
        Ok((x + self.positions.narrow(0, 0, window.positions)?)?)
    }
}

fn conv(
    from: &mut Checkpoint,
    name: &str,
    inputs: usize,
    outputs: usize,
    stride: usize,
) -> Result<StridedConv, Error> {
    let weight = from.take(&format!("{name}.weight"), &[outputs, inputs, TAPS])?;
    let bias = from.take(&format!("{name}.bias"), &[outputs])?;
    Ok(StridedConv::new(&weight, bias, stride)?)
}

impl Layer {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (width, hidden): (usize, usize),
        precision: Precision,
    ) -> Result<Self, Error> {
        let attention = format!("{name}.self_attn");
        let linear = |from: &mut Checkpoint, part: &str, shape: (usize, usize), bias: bool| {
            Linear::load_with_precision(from, part, shape, bias, precision)
        };
        Ok(Self {
            attention_norm: LayerNorm::load(from, &format!("{name}.self_attn_layer_norm"), width)?,
            query: linear(from, &format!("{attention}.q_proj"), (width, width), true)?,
            key: linear(from, &format!("{attention}.k_proj"), (width, width), false)?,
            value: linear(from, &format!("{attention}.v_proj"), (width, width), true)?,
            output: linear(from, &format!("{attention}.out_proj"), (width, width), true)?,
            feed_forward_norm: LayerNorm::load(from, &format!("{name}.final_layer_norm"), width)?,
            fc1: linear(from, &format!("{name}.fc1"), (width, hidden), true)?,
            fc2: linear(from, &format!("{name}.fc2"), (hidden, width), true)?,
        })
    }

    /// `[rows, width]` to the same.
    fn forward(&self, x: &Tensor, heads: usize, spans: &[usize]) -> Result<Tensor, Error> {
        let h = self.attention_norm.forward(x)?;
        let (q, k, v) = (self.query.forward(&h)?, self.key.forward(&h)?, self.value.forward(&h)?);
        let mixed = bidirectional(&q, &k, &v, heads, spans)?;
        let x = self.output.forward_fused(&mixed, Fused { residual: Some(x), ..Fused::default() })?;
        let norm = Some(Norm::Layer(&self.feed_forward_norm));
        let gelu = Fused { norm, epilogue: Epilogue::Gelu, ..Fused::default() };
        let h = self.fc1.forward_fused(&x, gelu)?; // [rows, hidden]
        Ok(self.fc2.forward_fused(&h, Fused { residual: Some(&x), ..Fused::default() })?)
    }
}
