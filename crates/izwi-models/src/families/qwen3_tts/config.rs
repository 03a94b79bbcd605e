//! Configuration of a checkpoint: `config.json` and `generation_config.json`.
//!
//! Owns sizes, ids and names, all from the files: the reference implementation's own defaults differ from what the
//! published checkpoints say, so a field that is missing is an error. Knows no tensor.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;

use izwi_nn::Error;
use izwi_nn::decoder_stack::{Mixing, Rotation, StackShape, Style};
use izwi_types::SamplingParams;

/// What a checkpoint was trained for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Kind {
    /// Speaks in the voice of a recording.
    Base,
    /// Has built-in voices.
    CustomVoice,
    /// Designs a voice from a description.
    VoiceDesign,
}

/// `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    #[serde(rename = "tts_model_type")]
    pub(super) kind: Kind,
    #[serde(rename = "tts_model_size")]
    pub(super) size: String,
    tokenizer_type: String,
    pub(super) im_start_token_id: u32,
    pub(super) im_end_token_id: u32,
    pub(super) tts_pad_token_id: u32,
    pub(super) tts_bos_token_id: u32,
    pub(super) tts_eos_token_id: u32,
    pub(super) talker_config: TalkerConfig,
    /// Of the speaker encoder; only models that clone have one.
    #[serde(default)]
    pub(super) speaker_encoder_config: Option<serde_json::Value>,
}

/// Sizes of a stack of decoder layers.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct StackConfig {
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    pub(super) vocab_size: usize,
    pub(super) num_code_groups: usize,
    hidden_act: String,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    use_sliding_window: bool,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    rope_scaling: Option<RopeScaling>,
}

#[derive(Debug, Clone, Deserialize)]
struct RopeScaling {
    // Files have the kind under the newer name, the older one, or both.
    #[serde(default)]
    rope_type: Option<String>,
    #[serde(default, rename = "type")]
    older_type: Option<String>,
}

/// The model that decides the first code of every frame.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct TalkerConfig {
    #[serde(flatten)]
    pub(super) stack: StackConfig,
    pub(super) max_position_embeddings: usize,
    pub(super) text_hidden_size: usize,
    pub(super) text_vocab_size: usize,
    pub(super) codec_pad_id: u32,
    pub(super) codec_bos_id: u32,
    pub(super) codec_eos_token_id: u32,
    pub(super) codec_think_id: u32,
    pub(super) codec_nothink_id: u32,
    pub(super) codec_think_bos_id: u32,
    pub(super) codec_think_eos_id: u32,
    /// Ids of languages and dialects by name.
    pub(super) codec_language_id: BTreeMap<String, u32>,
    /// Ids of voices by name.
    #[serde(default)]
    pub(super) spk_id: BTreeMap<String, u32>,
    /// The dialect a voice speaks, by name; `false` for none.
    #[serde(default)]
    spk_is_dialect: BTreeMap<String, Dialect>,
    pub(super) code_predictor_config: StackConfig,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum Dialect {
    Name(String),
    #[allow(dead_code, reason = "`false` says that there is none")]
    Is(bool),
}

/// `generation_config.json`.
#[derive(Debug, Clone, Deserialize)]
struct GenerationConfig {
    do_sample: bool,
    temperature: f32,
    top_k: usize,
    top_p: f32,
    repetition_penalty: f32,
    subtalker_dosample: bool,
    subtalker_temperature: f32,
    subtalker_top_k: usize,
    subtalker_top_p: f32,
}

/// Everything the folder's configuration files settle, the codec's aside.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) config: Config,
    /// Sampling of the first code of a frame.
    pub(super) sampling: SamplingParams,
    /// Sampling of the other codes.
    pub(super) residual_sampling: SamplingParams,
}

impl Settings {
    /// Reads the folder's files.
    ///
    /// # Errors
    /// A file is unreadable, lacks a field, or asks for something this family does not compute.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let (config, generation) = (folder.join("config.json"), folder.join("generation_config.json"));
        let path = config.display().to_string();
        Self::new(parse(&read(&config)?, &config)?, parse(&read(&generation)?, &generation)?)
            .map_err(|message| Error::File { path, message })
    }

    /// As [`Self::load`], from the files' texts.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn from_texts(config: &str, generation: &str) -> Result<Self, Error> {
        let (name, generation_name) = (Path::new("config.json"), Path::new("generation_config.json"));
        Self::new(parse(config, name)?, parse(generation, generation_name)?)
            .map_err(|message| Error::File { path: name.display().to_string(), message })
    }

    fn new(config: Config, generation: GenerationConfig) -> Result<Self, String> {
        config.check()?;
        let residual_sampling = SamplingParams {
            temperature: if generation.subtalker_dosample { generation.subtalker_temperature } else { 0.0 },
            top_p: generation.subtalker_top_p,
            top_k: generation.subtalker_top_k,
            ..SamplingParams::GREEDY
        };
        let sampling = SamplingParams {
            temperature: if generation.do_sample { generation.temperature } else { 0.0 },
            top_p: generation.top_p,
            top_k: generation.top_k,
            ..SamplingParams::repeating(generation.repetition_penalty)
        };
        Ok(Self { config, sampling, residual_sampling })
    }
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    let fault = |error: std::io::Error| file_error(path, error.to_string());
    std::fs::read_to_string(path).map_err(fault)
}

fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| file_error(path, error.to_string()))
}

pub(super) fn file_error(path: &Path, message: String) -> Error {
    Error::File { path: path.display().to_string(), message }
}

impl Config {
    fn check(&self) -> Result<(), String> {
        if self.tokenizer_type != "qwen3_tts_tokenizer_12hz" {
            return Err(format!(
                "tokenizer_type '{}' is not supported, only the 12 Hz one",
                self.tokenizer_type
            ));
        }
        let talker = &self.talker_config;
        let predictor = &talker.code_predictor_config;
        talker.stack.check("talker_config")?;
        predictor.check("code_predictor_config")?;
        if talker.stack.num_code_groups != predictor.num_code_groups || predictor.num_code_groups < 2 {
            return Err(format!(
                "num_code_groups is {} and {} in code_predictor_config; they must be equal and at least 2",
                talker.stack.num_code_groups, predictor.num_code_groups
            ));
        }
        if self.kind == Kind::Base && self.speaker_encoder_config.is_none() {
            return Err(
                "missing field `speaker_encoder_config`, which models that clone voices have".to_owned()
            );
        }
        self.check_ids()
    }

    fn check_ids(&self) -> Result<(), String> {
        let talker = &self.talker_config;
        let ids = [
            talker.codec_pad_id,
            talker.codec_bos_id,
            talker.codec_eos_token_id,
            talker.codec_think_id,
            talker.codec_nothink_id,
            talker.codec_think_bos_id,
            talker.codec_think_eos_id,
        ];
        let mut ids = ids.iter().chain(talker.codec_language_id.values()).chain(talker.spk_id.values());
        if let Some(id) = ids.find(|&&id| id as usize >= talker.stack.vocab_size) {
            return Err(format!("id {id} lies outside the vocabulary of {}", talker.stack.vocab_size));
        }
        if (talker.codec_eos_token_id as usize) + CONTROL_TOKENS < talker.stack.vocab_size {
            return Err(format!(
                "codec_eos_token_id {} is not one of the last {CONTROL_TOKENS} ids",
                talker.codec_eos_token_id
            ));
        }
        let ids = [
            self.im_start_token_id,
            self.im_end_token_id,
            self.tts_pad_token_id,
            self.tts_bos_token_id,
            self.tts_eos_token_id,
        ];
        match ids.iter().find(|&&id| id as usize >= talker.text_vocab_size) {
            Some(id) => {
                Err(format!("id {id} lies outside the text vocabulary of {}", talker.text_vocab_size))
            }
            None => Ok(()),
        }
    }

    /// Whether a style prompt is followed. The small model with voices of its own was not trained for any.
    pub(super) fn takes_instructions(&self) -> bool {
        match self.kind {
            Kind::Base => false,
            Kind::CustomVoice => self.size != "0b6",
            Kind::VoiceDesign => true,
        }
    }
}

/// Ids at the end of the talker's vocabulary that are no codes: never sampled, except for the end of speech.
pub(super) const CONTROL_TOKENS: usize = 1024;

impl StackConfig {
    fn check(&self, of: &str) -> Result<(), String> {
        let unsupported = |field: &str, value: &str| Err(format!("{of}: {field} {value} is not supported"));
        if self.hidden_act != "silu" {
            return unsupported("hidden_act", &self.hidden_act);
        }
        if self.attention_bias {
            return unsupported("attention_bias", "true");
        }
        if self.use_sliding_window {
            return unsupported("use_sliding_window", "true");
        }
        if let Some(kind) = self.layer_types.iter().flatten().find(|kind| *kind != "full_attention") {
            return unsupported("layer_types", kind);
        }
        let scaling = self.rope_scaling.iter().flat_map(|scaling| [&scaling.rope_type, &scaling.older_type]);
        if let Some(kind) = scaling.flatten().find(|kind| *kind != "default") {
            return unsupported("rope_scaling.rope_type", kind);
        }
        let sizes = [
            ("hidden_size", self.hidden_size),
            ("intermediate_size", self.intermediate_size),
            ("num_hidden_layers", self.num_hidden_layers),
            ("num_attention_heads", self.num_attention_heads),
            ("num_key_value_heads", self.num_key_value_heads),
            ("head_dim", self.head_dim),
            ("vocab_size", self.vocab_size),
        ];
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return unsupported(field, "0");
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) || self.head_dim % 2 == 1 {
            return Err(format!(
                "{of}: {} heads over {} key/value heads of width {} do not divide",
                self.num_attention_heads, self.num_key_value_heads, self.head_dim
            ));
        }
        Ok(())
    }
}

impl From<&StackConfig> for StackShape {
    fn from(config: &StackConfig) -> Self {
        Self {
            style: Style::Gated,
            width: config.hidden_size,
            hidden: config.intermediate_size,
            layers: vec![Mixing::Attention; config.num_hidden_layers],
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
            eps: config.rms_norm_eps,
            theta: config.rope_theta,
            rotation: Rotation::Halves,
        }
    }
}

impl TalkerConfig {
    /// Name of the dialect that `voice` speaks.
    pub(super) fn dialect_of(&self, voice: &str) -> Option<&str> {
        match self.spk_is_dialect.get(voice) {
            Some(Dialect::Name(name)) => Some(name),
            Some(Dialect::Is(_)) | None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden_set::root;
    use super::*;

    fn texts() -> (String, String) {
        let folder = root().join("cv06");
        (read(&folder.join("config.json")).unwrap(), read(&folder.join("generation_config.json")).unwrap())
    }

    #[test]
    fn missing_and_unsupported_fields_are_named() {
        let (config, generation) = texts();
        Settings::from_texts(&config, &generation).unwrap();
        let cases = [
            ("\"codec_bos_id\"", "\"codec_bos\"", "codec_bos_id"),
            ("\"tts_pad_token_id\"", "\"pad\"", "tts_pad_token_id"),
            ("\"hidden_act\": \"silu\"", "\"hidden_act\": \"gelu\"", "hidden_act gelu is not supported"),
            ("\"rope_type\": \"default\"", "\"rope_type\": \"yarn\"", "yarn"),
            ("qwen3_tts_tokenizer_12hz", "qwen3_tts_tokenizer_25hz", "25hz"),
            ("\"attention_bias\": false", "\"attention_bias\": true", "attention_bias true"),
        ];
        for (from, to, expected) in cases {
            assert!(config.contains(from), "{from}");
            let error = Settings::from_texts(&config.replace(from, to), &generation).unwrap_err().to_string();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let error = Settings::from_texts(&config, &generation.replace("\"top_k\"", "\"k\"")).unwrap_err();
        assert!(error.to_string().contains("top_k"), "{error}");
    }
}
