//! Configuration of a checkpoint: `model_config.yaml` of NeMo 3.0.0. Refuses settings that are not supported.

use std::path::Path;

use serde::Deserialize;

use super::super::nemo::{self, Encoder, MAX_COUNT, MAX_SIZE, Preprocessor, dim, same};
use super::super::settings::{self, within};
use super::latency::SPEAKERS;
use super::memory::Rules;
use crate::conformer::{MelShape, Shape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;

/// `model_config.yaml`.
#[derive(Debug, Deserialize)]
struct File {
    max_num_of_spks: usize,
    #[serde(default)]
    streaming_mode: bool,
    preprocessor: Preprocessor,
    encoder: Encoder,
    transformer_encoder: Transformer,
    #[serde(default)]
    sortformer_modules: Rules,
}

#[derive(Debug, Deserialize)]
struct Transformer {
    num_layers: usize,
    num_attention_heads: usize,
    hidden_act: String,
    #[serde(default)]
    pre_ln: bool,
}

/// Sizes of what follows the encoder.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeadShape {
    /// Width of the encoder, and of the transformer.
    pub(super) inputs: usize,
    pub(super) width: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    /// Width inside its feed-forward networks.
    pub(super) inner: usize,
}

/// A checkpoint's sizes.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) encoder: Shape,
    pub(super) head: HeadShape,
    /// What is remembered of a recording.
    pub(super) rules: Rules,
    /// Whether it was trained for recordings in pieces.
    pub(super) streams: bool,
    is_normalised: bool,
}

impl Config {
    /// Reads `model_config.yaml` of a checkpoint with the tensors `tensors`, whose sizes count.
    ///
    /// # Errors
    /// The file is unreadable or malformed, or a setting is not supported; the error names it.
    pub(super) fn load(folder: &Path, tensors: &Checkpoint) -> Result<Self, Error> {
        let path = folder.join("model_config.yaml");
        settings::read(&path, |text| Self::new(settings::parse(text, true)?, tensors))
    }

    fn new(file: File, tensors: &Checkpoint) -> Result<Self, String> {
        let is_normalised = file.preprocessor.is_normalised()?;
        let (encoder, chunks) = file.encoder.shape(file.preprocessor.features, tensors)?;
        same("chunks of the encoder", chunks.len(), 0)?;
        nemo::check(&encoder, &chunks)?;
        same("max_num_of_spks", file.max_num_of_spks, SPEAKERS)?;
        let Transformer { num_layers, num_attention_heads, hidden_act, pre_ln } = file.transformer_encoder;
        same("transformer_encoder.hidden_act", hidden_act, "relu")?;
        same("transformer_encoder.pre_ln", pre_ln, false)?;
        let inner = "transformer_encoder.layers.0.second_sub_layer.dense_in.weight";
        let head = HeadShape {
            inputs: encoder.width,
            width: dim(tensors, "sortformer_modules.first_hidden_to_hidden.weight", 0)?,
            layers: num_layers,
            heads: num_attention_heads,
            inner: dim(tensors, inner, 0)?,
        };
        within("transformer_encoder", &[("layers", head.layers), ("heads", head.heads)], MAX_COUNT)?;
        within("transformer_encoder", &[("width", head.width), ("inner width", head.inner)], MAX_SIZE)?;
        same("remainder of transformer_encoder's width by its heads", head.width % head.heads, 0)?;
        if file.streaming_mode && is_normalised {
            return Err("preprocessor.normalize: a recording in pieces cannot be normalised".to_owned());
        }
        let rules = file.sortformer_modules.checked()?;
        Ok(Self { encoder, head, rules, streams: file.streaming_mode, is_normalised })
    }

    /// How recordings become frames.
    pub(super) fn mel(&self) -> MelShape {
        nemo::mel(self.encoder.bins, self.is_normalised)
    }
}
