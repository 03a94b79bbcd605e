//! Configuration of a checkpoint, in the layout of transformers or of NeMo. Refuses settings that are not supported.

mod nemo;
mod transformers;

use std::path::Path;

use super::super::settings::within;
use crate::conformer::{Context, MelShape, Shape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;

pub(super) use transformers::nemo_name;

/// Samples per second of recordings.
pub(super) const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples from one mel frame to the next.
pub(super) const HOP: usize = 160;
/// Samples of a transform, and of the window within it.
const TRANSFORM: usize = 512;
const WINDOW: usize = 400;
/// Tokens of one row, where a configuration does not tell.
const MAX_SYMBOLS: usize = 10;
/// The largest width or vocabulary.
const MAX_SIZE: usize = 1 << 20;
/// The most layers, heads, bins or the like.
const MAX_COUNT: usize = 1 << 10;

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
    /// Rows of a chunk that can be chosen where the context is [`Context::Chunked`]; the first is the default.
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
        let Shape { bins, layers, width, channels, inner, heads, taps, context, .. } = self.encoder;
        let counts =
            [("bins", bins), ("layers", layers), ("channels", channels), ("heads", heads), ("taps", taps)];
        within("encoder", &counts, MAX_COUNT)?;
        within("encoder", &[("width", width), ("inner width", inner)], MAX_SIZE)?;
        if !width.is_multiple_of(2 * heads) {
            return Err(format!("encoder: width {width} is not {heads} heads of an even width"));
        }
        if taps.is_multiple_of(2) {
            return Err(format!("encoder: a convolution of {taps} taps has no middle"));
        }
        within("", &[("tokens", self.tokens)], MAX_SIZE)?;
        if let Context::Chunked { before, .. } = context {
            within("encoder", &[("chunk sizes", self.chunks.len())], MAX_COUNT)?;
            for &chunk in &self.chunks {
                within("encoder", &[("rows of a chunk", chunk)], MAX_COUNT)?;
                if before > MAX_COUNT || !before.is_multiple_of(chunk) {
                    return Err(format!("encoder: {before} rows of context are not whole chunks of {chunk}"));
                }
            }
        }
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
        MelShape {
            rate_hz: SAMPLE_RATE_HZ,
            bins: self.encoder.bins,
            transform: TRANSFORM,
            window: WINDOW,
            hop: HOP,
            is_normalised: self.is_normalised,
            has_silent_frame: false,
            min_samples: HOP,
        }
    }
}

/// The context of an encoder whose rows see `before` rows before their chunk, for `chunks` that can be chosen.
fn chunked(before: usize, chunks: &[usize]) -> Context {
    Context::Chunked { before, longest: chunks.iter().copied().max().unwrap_or(1) }
}

/// Refuses a value that is not `only`.
fn same(what: &str, value: impl std::fmt::Display, only: impl std::fmt::Display) -> Result<(), String> {
    match (value.to_string(), only.to_string()) {
        (value, only) if value == only => Ok(()),
        (value, only) => Err(format!("{what} {} is not supported, only {only}", izwi_types::excerpt(&value))),
    }
}
