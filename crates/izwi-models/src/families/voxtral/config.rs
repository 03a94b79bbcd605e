//! Configuration of a checkpoint folder: `config.json` in the layout of transformers, as the network wants it.
//!
//! Rejects sizes that do not fit each other, on which the network would panic. Knows no tensor.

use std::path::Path;

use candle_transformers::models::voxtral::{VoxtralConfig, VoxtralEncoderConfig, VoxtralLlamaConfig};
use serde::Deserialize;

use izwi_nn::Error;

/// No size may be larger.
const MAX_SIZE: usize = 1 << 24;
/// Mel frames of the encoder's input in one of its positions: the stride of the second convolution.
pub(super) const FRAMES_PER_POSITION: usize = 2;

#[derive(Debug, Deserialize)]
struct File {
    audio_config: Audio,
    text_config: Text,
    audio_token_id: usize,
    #[serde(default = "gelu")]
    projector_hidden_act: String,
}

#[derive(Debug, Deserialize)]
struct Audio {
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_mel_bins: usize,
    max_source_positions: usize,
    #[serde(default = "gelu")]
    activation_function: String,
    #[serde(default)]
    scale_embedding: bool,
}

#[derive(Debug, Deserialize)]
struct Text {
    hidden_size: usize,
    intermediate_size: usize,
    vocab_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: Option<usize>,
    rms_norm_eps: f64,
    rope_theta: f32,
    max_position_embeddings: usize,
    #[serde(default)]
    tie_word_embeddings: bool,
}

fn gelu() -> String {
    "gelu".to_owned()
}

/// Reads the folder's `config.json`.
///
/// # Errors
/// The file is unreadable, has an unsupported setting, or sizes that do not fit each other.
pub(super) fn load(folder: &Path) -> Result<VoxtralConfig, Error> {
    let path = folder.join("config.json");
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
    let file: File = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
    check(&file).map_err(fault)?;
    let File { audio_config: audio, text_config: text, audio_token_id, projector_hidden_act } = file;
    Ok(VoxtralConfig {
        audio_config: VoxtralEncoderConfig {
            hidden_size: audio.hidden_size,
            intermediate_size: audio.intermediate_size,
            num_hidden_layers: audio.num_hidden_layers,
            num_attention_heads: audio.num_attention_heads,
            num_key_value_heads: audio.num_attention_heads,
            head_dim: audio.hidden_size / audio.num_attention_heads,
            num_mel_bins: audio.num_mel_bins,
            max_source_positions: audio.max_source_positions,
            activation_function: audio.activation_function,
            ..VoxtralEncoderConfig::default()
        },
        text_config: VoxtralLlamaConfig {
            hidden_size: text.hidden_size,
            intermediate_size: text.intermediate_size,
            vocab_size: text.vocab_size,
            num_hidden_layers: text.num_hidden_layers,
            num_attention_heads: text.num_attention_heads,
            num_key_value_heads: text.num_key_value_heads,
            head_dim: text.head_dim,
            use_flash_attn: false,
            rms_norm_eps: text.rms_norm_eps,
            rope_theta: text.rope_theta,
            max_position_embeddings: text.max_position_embeddings,
            tie_word_embeddings: text.tie_word_embeddings,
        },
        audio_token_id,
        projector_hidden_act,
    })
}

/// Why the network cannot have these sizes, if so.
fn check(file: &File) -> Result<(), String> {
    let (audio, text) = (&file.audio_config, &file.text_config);
    let sizes = [
        ("audio_config.hidden_size", audio.hidden_size),
        ("audio_config.intermediate_size", audio.intermediate_size),
        ("audio_config.num_hidden_layers", audio.num_hidden_layers),
        ("audio_config.num_attention_heads", audio.num_attention_heads),
        ("audio_config.num_mel_bins", audio.num_mel_bins),
        ("audio_config.max_source_positions", audio.max_source_positions),
        ("text_config.hidden_size", text.hidden_size),
        ("text_config.intermediate_size", text.intermediate_size),
        ("text_config.vocab_size", text.vocab_size),
        ("text_config.num_hidden_layers", text.num_hidden_layers),
        ("text_config.num_attention_heads", text.num_attention_heads),
        ("text_config.num_key_value_heads", text.num_key_value_heads),
        ("text_config.head_dim", text.head_dim.unwrap_or(text.hidden_size)),
        ("text_config.max_position_embeddings", text.max_position_embeddings),
    ];
    if let Some((name, size)) = sizes.iter().find(|(_, size)| !(1..=MAX_SIZE).contains(size)) {
        return Err(format!("{name} is {size}; it must be 1 to {MAX_SIZE}"));
    }
    if audio.scale_embedding {
        return Err("audio_config.scale_embedding is true, which is not supported".to_owned());
    }
    let divides = [
        ("audio_config.hidden_size", audio.hidden_size, "its heads", audio.num_attention_heads),
        (
            "text_config.num_attention_heads",
            text.num_attention_heads,
            "num_key_value_heads",
            text.num_key_value_heads,
        ),
        (
            "the encoder's output",
            audio.max_source_positions * audio.hidden_size,
            "audio_config.intermediate_size",
            audio.intermediate_size,
        ),
    ];
    if let Some((name, size, by, divisor)) = divides.iter().find(|(_, size, _, by)| !size.is_multiple_of(*by))
    {
        return Err(format!("{name} ({size}) is not a multiple of {by} ({divisor})"));
    }
    if text.head_dim.is_none() && !text.hidden_size.is_multiple_of(text.num_attention_heads) {
        return Err("text_config.hidden_size is not a multiple of num_attention_heads".to_owned());
    }
    if text.head_dim.is_some_and(|dim| dim % 2 == 1) {
        return Err("text_config.head_dim is odd".to_owned());
    }
    if file.audio_token_id >= text.vocab_size {
        return Err(format!("audio_token_id {} is not below text_config.vocab_size", file.audio_token_id));
    }
    Ok(())
}

/// Names and shapes of the tensors of the text layers: candle-transformers panics where one is missing.
pub(super) fn text_tensors(config: &VoxtralLlamaConfig) -> impl Iterator<Item = (String, Vec<usize>)> {
    let width = config.hidden_size;
    let head = config.head_dim.unwrap_or(width / config.num_attention_heads);
    let (queries, keys) = (config.num_attention_heads * head, config.num_key_value_heads * head);
    let inner = config.intermediate_size;
    let tensors = [
        ("self_attn.q_proj", vec![queries, width]),
        ("self_attn.k_proj", vec![keys, width]),
        ("self_attn.v_proj", vec![keys, width]),
        ("self_attn.o_proj", vec![width, queries]),
        ("mlp.gate_proj", vec![inner, width]),
        ("mlp.up_proj", vec![inner, width]),
        ("mlp.down_proj", vec![width, inner]),
        ("input_layernorm", vec![width]),
        ("post_attention_layernorm", vec![width]),
    ];
    (0..config.num_hidden_layers).flat_map(move |layer| {
        let name = move |name| format!("language_model.model.layers.{layer}.{name}.weight");
        tensors.clone().into_iter().map(move |(part, shape)| (name(part), shape))
    })
}
