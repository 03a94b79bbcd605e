//! Configuration of a checkpoint, in the layout of transformers or of NeMo. Refuses settings that are not supported.

mod nemo;
mod transformers;

use std::path::Path;

use super::super::nemo::{self as shared, MAX_COUNT, MAX_SIZE};
use super::super::settings::within;
use crate::conformer::{MelShape, Shape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;

pub(super) use super::super::nemo::{HOP, ROW_S, SAMPLE_RATE_HZ};
pub(super) use transformers::nemo_name;

/// Tokens of one row, where a configuration does not tell.
const MAX_SYMBOLS: usize = 10;

/// What follows the encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeadShape {
    /// The likeliest token of each row.
    Ctc,
    /// A network that predicts from the tokens so far, joined with each row.
    Transducer {
        /// Width of the prediction network and of the joint one.
        width: usize,
        joint: usize,
        layers: usize,
        /// Rows that a token may take, by its class; empty where every token takes none and a blank one.
        durations: Vec<usize>,
        /// Tokens of one row after which the next one follows.
        max_symbols: usize,
    },
}

/// A checkpoint's sizes.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) encoder: Shape,
    /// Whether each bin of a recording is brought to mean 0 and standard deviation 1.
    pub(super) is_normalised: bool,
    /// Rows of a chunk that can be chosen where the context is chunked; the first is the default.
    pub(super) chunks: Vec<usize>,
    pub(super) head: HeadShape,
    /// Tokens without the blank, whose id this is.
    pub(super) tokens: usize,
}

impl Config {
    /// Reads `config.json` of a checkpoint, or else `model_config.yaml`; of the latter the sizes are those of the tensors.
    ///
    /// # Errors
    /// The file is unreadable or malformed, or a setting is not supported; the error names it.
    pub(super) fn load(folder: &Path, tensors: &Checkpoint) -> Result<Self, Error> {
        let (json, yaml) = (folder.join("config.json"), folder.join("model_config.yaml"));
        if json.exists() || !yaml.exists() { transformers::load(&json) } else { nemo::load(&yaml, tensors) }
    }

    /// Refuses sizes that cannot be computed.
    fn checked(self) -> Result<Self, String> {
        shared::check(&self.encoder, &self.chunks)?;
        within("", &[("tokens", self.tokens)], MAX_SIZE)?;
        if let HeadShape::Transducer { width, joint, layers, ref durations, max_symbols } = self.head {
            within("transducer", &[("width", width), ("joint width", joint)], MAX_SIZE)?;
            let counts =
                [("layers", layers), ("tokens of a row", max_symbols), ("durations", durations.len() + 1)];
            within("transducer", &counts, MAX_COUNT)?;
            let longest = durations.iter().copied().max().unwrap_or(0);
            within("transducer", &[("longest duration", longest.saturating_add(1))], MAX_COUNT)?;
        }
        Ok(self)
    }

    /// How recordings become frames.
    pub(super) fn mel(&self) -> MelShape {
        shared::mel(self.encoder.bins, self.is_normalised)
    }
}
