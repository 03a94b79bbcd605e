//! Configuration of a checkpoint folder: `config.json` and, if present, `generation_config.json`.
//!
//! Owns the sizes and rejects unsupported settings. Knows no tensor.

use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use izwi_nn::Error;

/// Longest window in seconds.
pub(super) const WINDOW_S: usize = 30;

/// Sizes of the network.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    pub(super) num_mel_bins: usize,
    pub(super) max_source_positions: usize,
    pub(super) max_target_positions: usize,
    pub(super) d_model: usize,
    pub(super) encoder_layers: usize,
    pub(super) encoder_attention_heads: usize,
    pub(super) encoder_ffn_dim: usize,
    pub(super) decoder_layers: usize,
    pub(super) decoder_attention_heads: usize,
    pub(super) decoder_ffn_dim: usize,
    pub(super) vocab_size: usize,
    #[serde(default)]
    suppress_tokens: Option<Vec<u32>>,
    #[serde(default)]
    begin_suppress_tokens: Option<Vec<u32>>,
    #[serde(default)]
    activation_function: Option<String>,
    #[serde(default)]
    scale_embedding: bool,
}

/// Decoding settings of a checkpoint.
#[derive(Debug, Clone, Default, Deserialize)]
struct GenerationConfig {
    #[serde(default)]
    suppress_tokens: Option<Vec<u32>>,
    #[serde(default)]
    begin_suppress_tokens: Option<Vec<u32>>,
    #[serde(default)]
    alignment_heads: Option<Vec<[usize; 2]>>,
    #[serde(default)]
    is_multilingual: Option<bool>,
}

/// The resolved configuration of a folder.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// Tokens never chosen.
    pub(super) suppress: Vec<u32>,
    /// Tokens not chosen first.
    pub(super) begin_suppress: Vec<u32>,
    /// `(layer, head)` of the decoder's cross-attention used for alignment.
    pub(super) alignment_heads: Vec<(usize, usize)>,
    pub(super) multilingual: bool,
}

/// Models with at least this many tokens are multilingual:
/// <https://github.com/openai/whisper/blob/main/whisper/model.py> (`is_multilingual`).
const MULTILINGUAL_VOCABULARY: usize = 51_865;

impl Settings {
    /// Reads the folder's `config.json` and `generation_config.json`.
    ///
    /// # Errors
    /// A file is unreadable or has an unsupported setting.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let config: Config = read_json(&path)?;
        let fault = |message| Error::File { path: path.display().to_string(), message };
        config.check().map_err(fault)?;
        let generation_path = folder.join("generation_config.json");
        let generation: GenerationConfig =
            if generation_path.exists() { read_json(&generation_path)? } else { GenerationConfig::default() };
        Ok(Self::resolve(config, generation))
    }

    fn resolve(config: Config, generation: GenerationConfig) -> Self {
        let first = |a: Option<Vec<u32>>, b: &Option<Vec<u32>>| a.or_else(|| b.clone()).unwrap_or_default();
        // A distilled checkpoint may list those of its teacher, which has more layers.
        let exists = |&[layer, head]: &[usize; 2]| {
            layer < config.decoder_layers && head < config.decoder_attention_heads
        };
        let listed = generation.alignment_heads.filter(|heads| !heads.is_empty() && heads.iter().all(exists));
        let alignment_heads = match listed {
            Some(heads) => heads.into_iter().map(|[layer, head]| (layer, head)).collect(),
            None => config.upper_heads(),
        };
        Self {
            suppress: first(generation.suppress_tokens, &config.suppress_tokens),
            begin_suppress: first(generation.begin_suppress_tokens, &config.begin_suppress_tokens),
            alignment_heads,
            multilingual: generation.is_multilingual.unwrap_or(config.vocab_size >= MULTILINGUAL_VOCABULARY),
            config,
        }
    }
}

impl Config {
    /// All heads of the upper half of the decoder's layers, openai-whisper's default:
    /// <https://github.com/openai/whisper/blob/main/whisper/model.py> (`alignment_heads`).
    fn upper_heads(&self) -> Vec<(usize, usize)> {
        let layers = self.decoder_layers / 2..self.decoder_layers;
        layers.flat_map(|layer| (0..self.decoder_attention_heads).map(move |head| (layer, head))).collect()
    }

    fn check(&self) -> Result<(), String> {
        let activation = self.activation_function.as_deref().unwrap_or("gelu");
        if activation != "gelu" {
            return Err(format!("activation_function '{activation}' is not supported, only gelu"));
        }
        if self.scale_embedding {
            return Err("scale_embedding is not supported".to_owned());
        }
        let positions = self.max_source_positions;
        if positions != WINDOW_S * 50 {
            return Err(format!("max_source_positions {positions} is not supported, only {}", WINDOW_S * 50));
        }
        for (side, heads) in
            [("encoder", self.encoder_attention_heads), ("decoder", self.decoder_attention_heads)]
        {
            if heads == 0 || !self.d_model.is_multiple_of(heads) {
                return Err(format!("{heads} {side} heads do not divide d_model {}", self.d_model));
            }
        }
        Ok(())
    }
}

/// Parses a JSON file.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, Error> {
    let fault = |message: String| Error::File { path: path.display().to_string(), message };
    let bytes = std::fs::read(path).map_err(|error| fault(error.to_string()))?;
    serde_json::from_slice(&bytes).map_err(|error| fault(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(config: &str, generation: Option<&str>) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        if let Some(generation) = generation {
            std::fs::write(folder.path().join("generation_config.json"), generation).unwrap();
        }
        folder
    }

    fn config(extra: &str) -> String {
        format!(
            r#"{{"num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448, "d_model": 8,
            "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_layers": 4,
            "decoder_attention_heads": 2, "decoder_ffn_dim": 32, "vocab_size": 51865{extra}}}"#
        )
    }

    #[test]
    fn the_generation_config_overrides_the_config() {
        let config = config(r#", "suppress_tokens": [1], "begin_suppress_tokens": [2]"#);
        let alone = Settings::load(folder(&config, None).path()).unwrap();
        assert_eq!((alone.suppress, alone.begin_suppress), (vec![1], vec![2]));
        assert_eq!(alone.alignment_heads, [(2, 0), (2, 1), (3, 0), (3, 1)]);
        assert!(alone.multilingual);
        let generation = r#"{"suppress_tokens": [7], "alignment_heads": [[1, 1]], "is_multilingual": false}"#;
        let both = Settings::load(folder(&config, Some(generation)).path()).unwrap();
        assert_eq!((both.suppress, both.begin_suppress), (vec![7], vec![2]));
        assert_eq!(both.alignment_heads, [(1, 1)]);
        assert!(!both.multilingual);
    }

    #[test]
    fn unsupported_settings_are_refused_by_value() {
        for (extra, named) in [
            (r#", "activation_function": "relu""#, "relu"),
            (r#", "scale_embedding": true"#, "scale_embedding"),
        ] {
            let error = Settings::load(folder(&config(extra), None).path()).unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("config.json"), "{error}");
        }
    }

    #[test]
    fn alignment_heads_of_a_larger_teacher_are_not_used() {
        let heads = Some(r#"{"alignment_heads": [[1, 1], [4, 0]]}"#);
        let settings = Settings::load(folder(&config(""), heads).path()).unwrap();
        assert_eq!(settings.alignment_heads, [(2, 0), (2, 1), (3, 0), (3, 1)]);
    }
}
