//! The layout of NeMo 3.0.0: `model_config.yaml`. Archives lack many of its fields, so sizes are those of the tensors.

use std::path::Path;

use serde::Deserialize;

use super::super::super::nemo::{Encoder, Preprocessor, dim, same};
use super::super::super::settings;
use super::{Config, HeadShape, MAX_SYMBOLS};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;

/// `model_config.yaml`.
#[derive(Debug, Deserialize)]
struct File {
    preprocessor: Preprocessor,
    encoder: Encoder,
    #[serde(default)]
    model_defaults: Defaults,
    #[serde(default)]
    decoding: Decoding,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Defaults {
    tdt_durations: Vec<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Decoding {
    durations: Vec<usize>,
    greedy: Greedy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Greedy {
    max_symbols: Option<usize>,
}

/// Reads `model_config.yaml` of a checkpoint with the tensors `tensors`.
pub(super) fn load(path: &Path, tensors: &Checkpoint) -> Result<Config, Error> {
    settings::read(path, |text| new(&settings::parse(text, true)?, tensors)?.checked())
}

fn new(file: &File, tensors: &Checkpoint) -> Result<Config, String> {
    let is_normalised = file.preprocessor.is_normalised()?;
    let (shape, chunks) = file.encoder.shape(file.preprocessor.features, tensors)?;
    let dim = |name: &str, index: usize| dim(tensors, name, index);
    let ctc = "decoder.decoder_layers.0.weight";
    if tensors.has(ctc) {
        let tokens = dim(ctc, 0)?.saturating_sub(1);
        return Ok(Config { encoder: shape, is_normalised, chunks, head: HeadShape::Ctc, tokens });
    }
    let embedding = "decoder.prediction.embed.weight";
    let classes = dim(embedding, 0)?;
    let Decoding { durations, greedy } = &file.decoding;
    let durations =
        [durations, &file.model_defaults.tdt_durations].into_iter().find(|found| !found.is_empty());
    let durations = durations.cloned().unwrap_or_default();
    let outputs = dim("joint.joint_net.2.weight", 0)?;
    same("a joint network's number of durations", outputs.saturating_sub(classes), durations.len())?;
    let cells =
        (0..).take_while(|layer| tensors.has(&format!("decoder.prediction.dec_rnn.lstm.weight_ih_l{layer}")));
    let head = HeadShape::Transducer {
        width: dim(embedding, 1)?,
        joint: dim("joint.enc.weight", 0)?,
        layers: cells.count(),
        durations,
        max_symbols: greedy.max_symbols.unwrap_or(MAX_SYMBOLS),
    };
    Ok(Config { encoder: shape, is_normalised, chunks, head, tokens: classes.saturating_sub(1) })
}
