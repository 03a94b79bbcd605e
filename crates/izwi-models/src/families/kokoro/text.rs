//! Phoneme ids to features of their sounds, without prosody: convolutions and an LSTM. Knows no voice.

use candle_core::{Result, Tensor};

use super::config::Config;
use super::style::leaky_relu;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::{Conv1dShape, SameConv};
use izwi_nn::layers::{BiLstm, LayerNorm, PackedRows};
use izwi_types::Precision;

const EPS: f64 = 1e-5;
const SLOPE: f64 = 0.2;

/// The encoder.
#[derive(Debug)]
pub(super) struct TextEncoder {
    embedding: Tensor, // [ids, hidden]
    convs: Vec<(SameConv, LayerNorm)>,
    lstm: BiLstm,
}

impl TextEncoder {
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let width = config.hidden_dim;
        let shape = Conv1dShape {
            sizes: [config.text_encoder_kernel_size, width, width],
            dilation: 1,
            precision: Precision::F32,
        };
        let mut convs = Vec::with_capacity(config.n_layer);
        for layer in 0..config.n_layer {
            let conv = SameConv::load(from, &format!("text_encoder.cnn.{layer}.0"), shape, true)?;
            let weight = from.take(&format!("text_encoder.cnn.{layer}.1.gamma"), &[width])?;
            let bias = from.take(&format!("text_encoder.cnn.{layer}.1.beta"), &[width])?;
            convs.push((conv, LayerNorm::new(weight, bias, EPS)));
        }
        Ok(Self {
            embedding: from.take("text_encoder.embedding.weight", &[config.n_token, width])?,
            convs,
            lstm: BiLstm::load(from, "text_encoder.lstm", 0, (width, width / 2), precision)?,
        })
    }

    /// Packed `ids` to `[rows, hidden_dim]`, gaps zero.
    pub(super) fn forward(&self, ids: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let mut x = packed.clear_gaps(&self.embedding.index_select(ids, 0)?)?;
        for (conv, norm) in &self.convs {
            x = packed.clear_gaps(&leaky_relu(&norm.forward(&conv.forward(&x)?)?, SLOPE)?)?;
        }
        self.lstm.forward(&x, packed)
    }
}
