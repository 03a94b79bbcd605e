//! The audio encoder: log-mel frames of several windows to one row for every 20 ms.
//!
//! Windows are packed into one tensor of rows: linear layers run over all of them, attention within each. Source of the
//! architecture: <https://github.com/openai/whisper/blob/main/whisper/model.py> (`AudioEncoder`).

use candle_core::{DType, Device, Tensor};

use super::config::{Config, FRAMES_PER_POSITION};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::StridedConv;
use izwi_nn::layers::{EncoderConfig, EncoderLayer, EncoderNames, LayerNorm, PackedRows, ROW_ALIGN};
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
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    bins: usize,
    device: Device,
}

/// Names of a layer's parts.
const NAMES: EncoderNames = EncoderNames {
    attention_norm: "self_attn_layer_norm",
    qkv: [("self_attn.q_proj", true), ("self_attn.k_proj", false), ("self_attn.v_proj", true)],
    output: "self_attn.out_proj",
    feed_forward_norm: "final_layer_norm",
    feed_forward: ["fc1", "fc2"],
};

impl Encoder {
    /// Takes everything under `model.encoder`, the weights of the layers kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, config: &Config, precision: Precision) -> Result<Self, Error> {
        let (width, bins) = (config.d_model, config.num_mel_bins);
        let device = from.device().clone();
        let name = "model.encoder";
        let sizes =
            EncoderConfig { width, heads: config.encoder_attention_heads, hidden: config.encoder_ffn_dim };
        let layers = (0..config.encoder_layers).map(|layer| {
            let name = format!("{name}.layers.{layer}");
            EncoderLayer::load_named(from, &name, &NAMES, sizes, precision)
        });
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            conv1: conv(from, &format!("{name}.conv1"), bins, width, 1)?,
            conv2: conv(from, &format!("{name}.conv2"), width, width, FRAMES_PER_POSITION)?,
            positions: from
                .take(&format!("{name}.embed_positions.weight"), &[config.max_source_positions, width])?,
            norm: LayerNorm::load(from, &format!("{name}.layer_norm"), width)?,
            bins,
            device,
        })
    }

    /// Encodes each window: `[positions, width]`. A window's result is the same bits in any batch.
    ///
    /// # Errors
    /// A window has too many positions, or the device is out of memory.
    pub(super) fn forward(&self, windows: &[WindowMel]) -> Result<Vec<Tensor>, Error> {
        let lengths: Vec<usize> = windows.iter().map(|window| window.positions).collect();
        let packed = PackedRows::new(&lengths, 0, &self.device)?;
        let mut rows = Vec::with_capacity(2 * windows.len());
        // The rows between windows attend to themselves.
        for window in windows {
            rows.push(self.embed(window)?);
            let gap = window.positions.next_multiple_of(ROW_ALIGN) - window.positions;
            if gap > 0 {
                rows.push(Tensor::zeros((gap, self.positions.dim(1)?), DType::F32, &self.device)?);
            }
        }
        let mut x = Tensor::cat(&rows, 0)?; // [rows, width]
        for layer in &self.layers {
            x = layer.forward(&x, &packed)?;
        }
        let x = self.norm.forward(&x)?;
        packed.spans().iter().map(|span| Ok(x.narrow(0, span.start, span.len())?)).collect()
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
