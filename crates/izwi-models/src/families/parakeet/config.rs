//! Configuration of a checkpoint: `config.json` of transformers. Refuses settings that are not supported.

use std::path::Path;

use serde::Deserialize;

use crate::conformer::{FRAMES_PER_ROW, MelShape, Shape};
use izwi_nn::Error;

/// Samples per second of recordings.
pub(super) const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples from one mel frame to the next.
pub(super) const HOP: usize = 160;
/// Tokens of one frame, where a configuration does not tell.
const MAX_SYMBOLS: usize = 10;

/// `config.json`. A field the file lacks is an error that names it.
#[derive(Debug, Clone, Deserialize)]
struct File {
    model_type: String,
    encoder_config: EncoderFile,
    vocab_size: usize,
    decoder_hidden_size: Option<usize>,
    num_decoder_layers: Option<usize>,
    #[serde(default)]
    durations: Vec<usize>,
    max_symbols_per_step: Option<usize>,
}

#[derive(Debug, Clone, Deserialize)]
struct EncoderFile {
    num_mel_bins: usize,
    num_hidden_layers: usize,
    hidden_size: usize,
    intermediate_size: usize,
    num_attention_heads: usize,
    conv_kernel_size: usize,
    subsampling_conv_channels: usize,
    subsampling_factor: usize,
    subsampling_conv_kernel_size: usize,
    subsampling_conv_stride: usize,
    attention_bias: bool,
    convolution_bias: bool,
    scale_input: bool,
    hidden_act: String,
}

/// What follows the encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeadShape {
    /// The likeliest token of each row.
    Ctc,
    /// A network that predicts from the tokens so far, joined with each row.
    Transducer {
        /// Width of the prediction network and of the joint one.
        width: usize,
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
    pub(super) head: HeadShape,
    /// Tokens without the blank, whose id this is.
    pub(super) tokens: usize,
}

impl Config {
    /// Reads `config.json` of a checkpoint.
    ///
    /// # Errors
    /// The file is unreadable or malformed, or a setting is not supported; the error names it.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        let file: File = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        Self::new(file).map_err(fault)
    }

    fn new(file: File) -> Result<Self, String> {
        let encoder = &file.encoder_config;
        let same = |what: &str, value: &dyn std::fmt::Display, only: &dyn std::fmt::Display| match value
            .to_string()
            == only.to_string()
        {
            true => Ok(()),
            false => Err(format!("encoder_config.{what} {value} is not supported, only {only}")),
        };
        same("subsampling_factor", &encoder.subsampling_factor, &FRAMES_PER_ROW)?;
        same("subsampling_conv_kernel_size", &encoder.subsampling_conv_kernel_size, &3)?;
        same("subsampling_conv_stride", &encoder.subsampling_conv_stride, &2)?;
        same("convolution_bias", &encoder.convolution_bias, &encoder.attention_bias)?;
        same("hidden_act", &encoder.hidden_act, &"silu")?;
        let (width, heads) = (encoder.hidden_size, encoder.num_attention_heads);
        if heads == 0 || width == 0 || !width.is_multiple_of(2 * heads) {
            return Err(format!("hidden_size {width} is not num_attention_heads {heads} of an even width"));
        }
        if encoder.conv_kernel_size.is_multiple_of(2) {
            return Err(format!("conv_kernel_size {} has no middle", encoder.conv_kernel_size));
        }
        let tokens = file.vocab_size.checked_sub(1).filter(|&tokens| tokens > 0);
        let tokens = tokens.ok_or_else(|| format!("vocab_size {} has no tokens", file.vocab_size))?;
        let missing = |what: &str| format!("{what} is missing");
        let head = match file.model_type.as_str() {
            "parakeet_ctc" => HeadShape::Ctc,
            "parakeet_tdt" | "parakeet_rnnt" => HeadShape::Transducer {
                width: file.decoder_hidden_size.ok_or_else(|| missing("decoder_hidden_size"))?,
                layers: file.num_decoder_layers.ok_or_else(|| missing("num_decoder_layers"))?,
                durations: file.durations,
                max_symbols: file.max_symbols_per_step.unwrap_or(MAX_SYMBOLS).max(1),
            },
            other => {
                return Err(format!(
                    "model_type '{other}' is not supported; use parakeet_tdt, parakeet_rnnt or parakeet_ctc"
                ));
            }
        };
        Ok(Self {
            encoder: Shape {
                bins: encoder.num_mel_bins,
                layers: encoder.num_hidden_layers,
                width,
                channels: encoder.subsampling_conv_channels,
                inner: encoder.intermediate_size,
                heads,
                taps: encoder.conv_kernel_size,
                has_biases: encoder.attention_bias,
                scales_input: encoder.scale_input,
            },
            head,
            tokens,
        })
    }

    /// How recordings become frames.
    pub(super) fn mel(&self) -> MelShape {
        MelShape {
            rate_hz: SAMPLE_RATE_HZ,
            bins: self.encoder.bins,
            transform: 512,
            window: 400,
            hop: HOP,
            is_normalised: true,
            has_silent_frame: false,
            min_samples: HOP,
        }
    }
}

/// The name that NeMo gives a tensor of transformers.
pub(super) fn nemo_name(name: &str) -> String {
    const PARTS: [(&str, &str); 16] = [
        ("encoder.subsampling.layers.", "encoder.pre_encode.conv."),
        ("encoder.subsampling.linear.", "encoder.pre_encode.out."),
        (".conv.norm.", ".conv.batch_norm."),
        (".self_attn.q_proj.", ".self_attn.linear_q."),
        (".self_attn.k_proj.", ".self_attn.linear_k."),
        (".self_attn.v_proj.", ".self_attn.linear_v."),
        (".self_attn.o_proj.", ".self_attn.linear_out."),
        (".self_attn.relative_k_proj.", ".self_attn.linear_pos."),
        (".self_attn.bias_u", ".self_attn.pos_bias_u"),
        (".self_attn.bias_v", ".self_attn.pos_bias_v"),
        ("ctc_head.", "decoder.decoder_layers.0."),
        ("decoder.embedding.", "decoder.prediction.embed."),
        ("decoder.lstm.", "decoder.prediction.dec_rnn.lstm."),
        ("encoder_projector.", "joint.enc."),
        ("decoder.decoder_projector.", "joint.pred."),
        ("joint.head.", "joint.joint_net.2."),
    ];
    PARTS.iter().fold(name.to_owned(), |name, (theirs, nemo)| name.replace(theirs, nemo))
}
