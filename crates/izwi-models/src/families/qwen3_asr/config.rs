//! Configuration of a checkpoint folder: `config.json` in the publisher's layout.
//!
//! Rejects what the network does not compute and sizes that do not fit each other. A size that is missing is an error: the
//! reference implementation's own defaults are those of no published checkpoint. Knows no tensor.

use std::path::Path;

use serde::Deserialize;

use crate::families::settings::within;
use crate::text::json_file::read_json;
use izwi_nn::Error;
use izwi_nn::decoder_stack::{Mixing, Rotation, StackShape, Style};

/// The largest size, and the largest number of layers, heads, bins and the like.
const MAX_SIZE: usize = 1 << 22;
const MAX_COUNT: usize = 1 << 10;
/// Mel frames that the convolutions see at a time: 1 s.
pub(super) const CHUNK_FRAMES: usize = 100;
/// Rows of the tower that they become.
pub(super) const CHUNK_ROWS: usize = rows(CHUNK_FRAMES);

/// Rows of the tower for `frames` frames of a recording.
pub(super) const fn rows(frames: usize) -> usize {
    let whole = frames / 100 * 13;
    whole + (frames % 100).div_ceil(2).div_ceil(2).div_ceil(2)
}

#[derive(Debug, Deserialize)]
struct File {
    thinker_config: Option<Thinker>,
    #[serde(default)]
    timestamp_token_id: Option<u32>,
    #[serde(default)]
    timestamp_segment_time: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Thinker {
    model_type: String,
    audio_token_id: usize,
    #[serde(default)]
    classify_num: Option<usize>,
    audio_config: Audio,
    text_config: Text,
}

#[derive(Debug, Deserialize)]
struct Audio {
    d_model: usize,
    encoder_layers: usize,
    encoder_attention_heads: usize,
    encoder_ffn_dim: usize,
    output_dim: usize,
    downsample_hidden_size: usize,
    num_mel_bins: usize,
    n_window: usize,
    n_window_infer: usize,
    activation_function: String,
}

#[derive(Debug, Deserialize)]
struct Text {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    max_position_embeddings: usize,
    rms_norm_eps: f64,
    rope_theta: f64,
    hidden_act: String,
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    rope_scaling: Option<RopeScaling>,
}

#[derive(Debug, Deserialize)]
struct RopeScaling {
    // Under the newer name, the older one, or both.
    #[serde(default)]
    rope_type: Option<String>,
    #[serde(default, rename = "type")]
    older_type: Option<String>,
}

/// Sizes of the audio tower.
#[derive(Debug, Clone, Copy)]
pub(super) struct TowerShape {
    pub(super) width: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) hidden: usize,
    /// Width of its result.
    pub(super) output: usize,
    /// Channels of the convolutions.
    pub(super) channels: usize,
    pub(super) bins: usize,
    /// Chunks of a window, within which rows attend to each other.
    pub(super) window_chunks: usize,
}

/// What a checkpoint was trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Transcribe,
    /// Classes of time, of `step_ms` each, where the token `mark` is.
    Align {
        mark: u32,
        step_ms: u64,
    },
}

/// Sizes of a checkpoint.
#[derive(Debug, Clone)]
pub(super) struct Config {
    pub(super) purpose: Purpose,
    /// Outputs of the head.
    pub(super) outputs: usize,
    pub(super) tower: TowerShape,
    pub(super) text: StackShape,
    /// Tokens of the text.
    pub(super) tokens: usize,
    pub(super) max_positions: usize,
    /// Whether the head is the embedding.
    pub(super) is_tied: bool,
    /// The token in whose place a row of the tower goes.
    pub(super) audio_token: u32,
}

impl Config {
    /// Reads the folder's `config.json`.
    ///
    /// # Errors
    /// The file is unreadable, has an unsupported setting, or sizes that do not fit each other.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let file: File = read_json(&path)?;
        file.checked().map_err(|message| Error::File { path: path.display().to_string(), message })
    }
}

impl File {
    fn checked(self) -> Result<Config, String> {
        let Some(thinker) = self.thinker_config else {
            return Err(
                "has no thinker_config: the layout of transformers is not read; take the repository \
                        whose name does not end in -hf"
                    .to_owned(),
            );
        };
        let times = (self.timestamp_token_id, self.timestamp_segment_time);
        let (purpose, outputs) = thinker.purpose(times)?;
        let Thinker { audio_token_id, audio_config: audio, text_config: text, .. } = thinker;
        audio.check()?;
        text.check()?;
        if audio.output_dim != text.hidden_size {
            return Err(format!(
                "audio_config.output_dim is {}, text_config.hidden_size {}; they must be equal",
                audio.output_dim, text.hidden_size
            ));
        }
        if audio_token_id >= text.vocab_size {
            return Err(format!(
                "audio_token_id is {audio_token_id}; it must be below text_config.vocab_size, {}",
                text.vocab_size
            ));
        }
        Ok(Config {
            purpose,
            outputs,
            tower: TowerShape {
                width: audio.d_model,
                layers: audio.encoder_layers,
                heads: audio.encoder_attention_heads,
                hidden: audio.encoder_ffn_dim,
                output: audio.output_dim,
                channels: audio.downsample_hidden_size,
                bins: audio.num_mel_bins,
                window_chunks: audio.n_window_infer / CHUNK_FRAMES,
            },
            tokens: text.vocab_size,
            max_positions: text.max_position_embeddings,
            is_tied: text.tie_word_embeddings,
            audio_token: audio_token_id as u32,
            text: text.shape(),
        })
    }
}

impl Thinker {
    /// What the checkpoint is for, and the outputs of its head, with the token of times and what a class of them is.
    fn purpose(&self, times: (Option<u32>, Option<u64>)) -> Result<(Purpose, usize), String> {
        let kind = self.model_type.as_str();
        match (kind, times, self.classify_num) {
            ("qwen3_asr", ..) => Ok((Purpose::Transcribe, self.text_config.vocab_size)),
            ("qwen3_forced_aligner", (Some(mark), Some(step_ms)), Some(classes)) => {
                let step = usize::try_from(step_ms).unwrap_or(usize::MAX);
                within("", &[("classify_num", classes), ("timestamp_segment_time", step)], MAX_SIZE)?;
                if self.text_config.tie_word_embeddings {
                    let message =
                        "text_config.tie_word_embeddings is true; the head of an aligner is its own";
                    return Err(message.to_owned());
                }
                Ok((Purpose::Align { mark, step_ms }, classes))
            }
            ("qwen3_forced_aligner", ..) => {
                Err("lacks timestamp_token_id, timestamp_segment_time or thinker_config.classify_num"
                    .to_owned())
            }
            _ => Err(format!(
                "thinker_config.model_type is '{kind}'; only 'qwen3_asr' and 'qwen3_forced_aligner' are supported"
            )),
        }
    }
}

impl Audio {
    fn check(&self) -> Result<(), String> {
        let sizes = [
            ("d_model", self.d_model),
            ("encoder_ffn_dim", self.encoder_ffn_dim),
            ("output_dim", self.output_dim),
            ("downsample_hidden_size", self.downsample_hidden_size),
            ("n_window_infer", self.n_window_infer),
        ];
        within("audio_config", &sizes, MAX_SIZE)?;
        let counts = [
            ("encoder_layers", self.encoder_layers),
            ("encoder_attention_heads", self.encoder_attention_heads),
            ("num_mel_bins", self.num_mel_bins),
        ];
        within("audio_config", &counts, MAX_COUNT)?;
        let (width, heads) = (self.d_model, self.encoder_attention_heads);
        if width < 4 || !width.is_multiple_of(2) || !width.is_multiple_of(heads) {
            return Err(format!(
                "audio_config.d_model is {width}; it must be even, at least 4, and a multiple of \
                 encoder_attention_heads, {heads}"
            ));
        }
        if 2 * self.n_window != CHUNK_FRAMES {
            return Err(format!("audio_config.n_window is {}; only 50 is supported", self.n_window));
        }
        if !self.n_window_infer.is_multiple_of(CHUNK_FRAMES) {
            return Err(format!(
                "audio_config.n_window_infer is {}; it must be a multiple of {CHUNK_FRAMES}",
                self.n_window_infer
            ));
        }
        if self.activation_function != "gelu" {
            return Err(format!(
                "audio_config.activation_function is '{}'; only 'gelu' is supported",
                self.activation_function
            ));
        }
        Ok(())
    }
}

impl Text {
    fn check(&self) -> Result<(), String> {
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("vocab_size", self.vocab_size),
            ("max_position_embeddings", self.max_position_embeddings),
        ];
        within("text_config", &sizes, MAX_SIZE)?;
        let counts = [
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
        ];
        within("text_config", &counts, MAX_COUNT)?;
        let (heads, kv_heads) = (self.num_attention_heads, self.num_key_value_heads);
        if !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "text_config.num_attention_heads is {heads}; it must be a multiple of num_key_value_heads, {kv_heads}"
            ));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(format!("text_config.head_dim is {}; it must be even", self.head_dim));
        }
        for (name, value, least) in
            [("rms_norm_eps", self.rms_norm_eps, 0.0), ("rope_theta", self.rope_theta, 1.0)]
        {
            if !value.is_finite() || value < least {
                return Err(format!("text_config.{name} is {value}; it must be at least {least}"));
            }
        }
        if self.hidden_act != "silu" || self.attention_bias {
            return Err(format!(
                "text_config has hidden_act '{}' and attention_bias {}; only 'silu' and false are supported",
                self.hidden_act, self.attention_bias
            ));
        }
        // The three positions of its sections are equal for text and sound: plain positions.
        let kinds = self.rope_scaling.iter().flat_map(|scaling| [&scaling.rope_type, &scaling.older_type]);
        match kinds.flatten().find(|kind| *kind != "default") {
            Some(kind) => {
                Err(format!("text_config.rope_scaling has rope_type '{kind}'; only 'default' is supported"))
            }
            None => Ok(()),
        }
    }

    fn shape(&self) -> StackShape {
        StackShape {
            style: Style::Gated,
            width: self.hidden_size,
            hidden: self.intermediate_size,
            layers: vec![Mixing::Attention; self.num_hidden_layers],
            heads: self.num_attention_heads,
            kv_heads: self.num_key_value_heads,
            head_dim: self.head_dim,
            eps: self.rms_norm_eps,
            theta: self.rope_theta,
            rotation: Rotation::Halves,
        }
    }
}
