//! The audio encoder: log-mel frames of several windows to one row for every 20 ms.
//!
//! It runs in parts of some layers, so that other work of the device waits for a part only. Windows are packed into one tensor
//! of rows: linear layers run over all of them, attention within each. Source of the architecture: <https://github.com/openai/whisper/blob/main/whisper/model.py> (`AudioEncoder`).

use candle_core::{Device, Tensor};

use super::config::Config;
use crate::mel_encoder::{InputLayers, LAYER_NAMES};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{EncoderConfig, EncoderLayer, LayerNorm, PackedRows};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Multiply-adds of a part for a whole window: 20 to 40 ms of two cores. A part has at least one layer.
const PART_OPERATIONS: usize = 8_000_000_000;

/// Normalised log-mel frames of one window.
#[derive(Debug)]
pub(super) struct WindowMel {
    /// `[positions * FRAMES_PER_POSITION, bins]`.
    pub(super) values: Vec<f32>,
    /// Encoder positions.
    pub(super) positions: usize,
}

/// How far a window is encoded.
#[derive(Debug)]
pub(super) enum Encoding {
    /// Not yet.
    Input(WindowMel),
    /// The parts before `part` are computed: `[positions, width]`.
    Partial {
        rows: Tensor,
        part: usize,
    },
    Done,
}

impl Encoding {
    /// The part that follows; `None` after the last.
    pub(super) fn next_part(&self) -> Option<usize> {
        match self {
            Self::Input(_) => Some(0),
            Self::Partial { part, .. } => Some(*part),
            Self::Done => None,
        }
    }
}

/// The encoder's weights.
#[derive(Debug)]
pub(super) struct Encoder {
    input: InputLayers,
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    layers_of_part: usize,
    device: Device,
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
        let sizes =
            EncoderConfig { width, heads: config.encoder_attention_heads, hidden: config.encoder_ffn_dim };
        let layers = (0..config.encoder_layers).map(|layer| {
            let name = format!("{name}.layers.{layer}");
            EncoderLayer::load_named(from, &name, &LAYER_NAMES, sizes, precision)
        });
        let (rows, hidden) = (config.max_source_positions, config.encoder_ffn_dim);
        let operations = rows * (4 * width * width + 2 * width * hidden) + 2 * rows * rows * width;
        Ok(Self {
            layers_of_part: (PART_OPERATIONS / operations.max(1)).max(1),
            layers: layers.collect::<Result<_, _>>()?,
            input: InputLayers::load(from, name, bins, (rows, width))?,
            norm: LayerNorm::load(from, &format!("{name}.layer_norm"), width)?,
            device,
        })
    }

    /// Number of its parts.
    pub(super) fn parts(&self) -> usize {
        self.layers.len().div_ceil(self.layers_of_part).max(1)
    }

    /// Computes one part for windows that all wait for this one. Returns for each its rows `[positions, width]`, after the
    /// last part those for the decoder. A window's result is the same bits in any batch.
    ///
    /// # Errors
    /// A window has too many positions or waits for no part, or the device is out of memory.
    pub(super) fn forward(&self, part: usize, windows: &[&Encoding]) -> Result<Vec<Tensor>, Error> {
        let inputs = windows.iter().map(|window| match window {
            Encoding::Input(mel) => self.input.forward(&mel.values, mel.positions),
            Encoding::Partial { rows, .. } => Ok(rows.clone()),
            Encoding::Done => Err(Error::Internal("a window is encoded twice")),
        });
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let lengths = inputs.iter().map(|rows| Ok(rows.dim(0)?)).collect::<Result<Vec<usize>, Error>>()?;
        let packed = PackedRows::new(&lengths, 0, &self.device)?;
        // The rows between windows attend to themselves.
        let mut x = packed.pack(&inputs)?; // [rows, width]
        let first = part * self.layers_of_part;
        for layer in self.layers.iter().skip(first).take(self.layers_of_part) {
            yield_point();
            x = layer.forward(&x, &packed)?;
        }
        if part + 1 >= self.parts() {
            x = self.norm.forward(&x)?;
        }
        packed.spans().iter().map(|span| Ok(x.narrow(0, span.start, span.len())?)).collect()
    }

    /// Encodes windows whole.
    #[cfg(test)]
    pub(super) fn encode(&self, windows: Vec<WindowMel>) -> Result<Vec<Tensor>, Error> {
        let mut encodings: Vec<Encoding> = windows.into_iter().map(Encoding::Input).collect();
        for part in 0..self.parts() {
            let rows = self.forward(part, &encodings.iter().collect::<Vec<_>>())?;
            encodings = rows.into_iter().map(|rows| Encoding::Partial { rows, part: part + 1 }).collect();
        }
        let rows = encodings.into_iter().filter_map(|encoding| match encoding {
            Encoding::Partial { rows, .. } => Some(rows),
            _ => None,
        });
        Ok(rows.collect())
    }
}
