//! The layout of transformers 5.24.0: `config.json`, and `processor_config.json` of streaming models.

use std::path::Path;

use serde::Deserialize;

use super::super::super::nemo::{chunked, same};
use super::super::super::settings;
use super::{Config, HeadShape, MAX_SYMBOLS};
use crate::conformer::{Context, FRAMES_PER_ROW, Shape};
use izwi_nn::Error;

/// `config.json`. A field the file lacks is an error that names it.
#[derive(Debug, Deserialize)]
struct File {
    model_type: String,
    encoder_config: Encoder,
    vocab_size: usize,
    decoder_hidden_size: Option<usize>,
    num_decoder_layers: Option<usize>,
    #[serde(default)]
    durations: Vec<usize>,
    max_symbols_per_step: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct Encoder {
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
    /// Of streaming models: rows that one sees before it, itself counted.
    sliding_window: Option<usize>,
    default_num_lookahead_tokens: Option<usize>,
}

/// `processor_config.json`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Processor {
    supported_num_lookahead_tokens: Vec<usize>,
}

/// Reads `config.json`, and `processor_config.json` beside it where there is one.
pub(super) fn load(path: &Path) -> Result<Config, Error> {
    let beside = path.with_file_name("processor_config.json");
    let processor = match beside.exists() {
        true => settings::read(&beside, |text| settings::parse::<Processor>(text, false))?,
        false => Processor::default(),
    };
    settings::read(path, |text| new(settings::parse(text, false)?, &processor)?.checked())
}

fn new(file: File, processor: &Processor) -> Result<Config, String> {
    let encoder = &file.encoder_config;
    same("subsampling_factor", encoder.subsampling_factor, FRAMES_PER_ROW)?;
    same("subsampling_conv_kernel_size", encoder.subsampling_conv_kernel_size, 3)?;
    same("subsampling_conv_stride", encoder.subsampling_conv_stride, 2)?;
    same("convolution_bias", encoder.convolution_bias, encoder.attention_bias)?;
    same("hidden_act", &encoder.hidden_act, "silu")?;
    let missing = |what: &str| format!("{what} is missing");
    let is_streaming = file.model_type == "nemotron_asr_streaming";
    let head = match file.model_type.as_str() {
        "parakeet_ctc" => HeadShape::Ctc,
        "parakeet_tdt" | "parakeet_rnnt" | "nemotron_asr_streaming" => {
            let width = file.decoder_hidden_size.ok_or_else(|| missing("decoder_hidden_size"))?;
            HeadShape::Transducer {
                width,
                joint: width,
                layers: file.num_decoder_layers.ok_or_else(|| missing("num_decoder_layers"))?,
                durations: file.durations,
                max_symbols: file.max_symbols_per_step.unwrap_or(MAX_SYMBOLS),
            }
        }
        other => {
            return Err(format!(
                "model_type '{}' is not supported; use parakeet_tdt, parakeet_rnnt, parakeet_ctc or \
                 nemotron_asr_streaming",
                izwi_types::excerpt(other)
            ));
        }
    };
    let (mut context, mut chunks) = (Context::Whole, Vec::new());
    if is_streaming {
        let before = encoder.sliding_window.and_then(|window| window.checked_sub(1));
        let first = encoder.default_num_lookahead_tokens;
        let first = first.ok_or_else(|| missing("encoder_config.default_num_lookahead_tokens"))?;
        let others = processor.supported_num_lookahead_tokens.iter().copied().filter(|&rows| rows != first);
        chunks = std::iter::once(first).chain(others).map(|rows| rows.saturating_add(1)).collect();
        context = chunked(before.ok_or_else(|| missing("encoder_config.sliding_window"))?, &chunks);
    }
    Ok(Config {
        encoder: Shape {
            bins: encoder.num_mel_bins,
            layers: encoder.num_hidden_layers,
            width: encoder.hidden_size,
            channels: encoder.subsampling_conv_channels,
            inner: encoder.intermediate_size,
            heads: encoder.num_attention_heads,
            taps: encoder.conv_kernel_size,
            has_biases: encoder.attention_bias,
            scales_input: encoder.scale_input,
            context,
        },
        is_normalised: !is_streaming,
        chunks,
        head,
        tokens: file.vocab_size.saturating_sub(1),
    })
}

/// The name that NeMo gives a tensor of transformers.
pub(in super::super) fn nemo_name(name: &str) -> String {
    const PARTS: [(&str, &str); 21] = [
        ("encoder.subsampling.conv_in.", "encoder.pre_encode.conv.0."),
        ("encoder.subsampling.layers.0.depthwise_conv.", "encoder.pre_encode.conv.2."),
        ("encoder.subsampling.layers.0.pointwise_conv.", "encoder.pre_encode.conv.3."),
        ("encoder.subsampling.layers.1.depthwise_conv.", "encoder.pre_encode.conv.5."),
        ("encoder.subsampling.layers.1.pointwise_conv.", "encoder.pre_encode.conv.6."),
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
