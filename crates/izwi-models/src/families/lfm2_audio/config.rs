//! Configuration of a checkpoint: `config.json`.
//!
//! Owns sizes, and the token ids that every checkpoint shares and no file names. Knows no tensor.

use std::path::Path;

use serde::Deserialize;

use super::{conformer, mel};
use izwi_nn::Error;
use izwi_nn::decoder_stack::{Mixing, Rotation, StackNames, StackShape, Style};

/// Ends a turn.
pub(super) const IM_END: u32 = 7;
/// Frames follow it.
pub(super) const AUDIO_START: u32 = 128;
/// Ends the text of a turn.
pub(super) const TEXT_END: u32 = 130;
/// The code that ends audio.
pub(super) const END_OF_AUDIO: u32 = 2048;
/// Codes of a codebook, with the end of audio.
pub(super) const CODES: usize = 2049;

/// Sizes of the depth transformer that no file names:
/// <https://github.com/Liquid4All/liquid-audio>.
const DEPTH_HEADS: usize = 32;
const DEPTH_KV_HEADS: usize = 8;
const DEPTH_EPS: f64 = 1e-5;
const DEPTH_THETA: f64 = 1e6;
const DEPTH_MULTIPLE: usize = 256;

/// Names of the backbone's tensors.
pub(super) const BACKBONE_NAMES: StackNames = StackNames {
    mixing_norm: "operator_norm",
    query_key_value: &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    query_norm: "self_attn.q_layernorm",
    key_norm: "self_attn.k_layernorm",
    output: "self_attn.out_proj",
    convolution: "conv",
    feed_forward_norm: "ffn_norm",
    gate_up_down: ["feed_forward.w1", "feed_forward.w3", "feed_forward.w2"],
    last_norm: Some("embedding_norm"),
};

/// Names of the depth transformer's tensors.
pub(super) const DEPTH_NAMES: StackNames = StackNames {
    query_key_value: &["operator.qkv_proj"],
    query_norm: "operator.bounded_attention.q_layernorm",
    key_norm: "operator.bounded_attention.k_layernorm",
    output: "operator.out_proj",
    last_norm: None,
    ..BACKBONE_NAMES
};

/// `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    architectures: Vec<String>,
    /// Codebooks of a frame.
    pub(super) codebooks: usize,
    /// Text tokens and frames in turn.
    pub(super) interleaved_n_text: usize,
    pub(super) interleaved_n_audio: usize,
    pub(super) preprocessor: mel::Config,
    pub(super) encoder: conformer::Config,
    pub(super) lfm: BackboneConfig,
    pub(super) depthformer: DepthConfig,
}

/// The language model.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct BackboneConfig {
    pub(super) hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    pub(super) vocab_size: usize,
    pub(super) max_position_embeddings: usize,
    norm_eps: f64,
    #[serde(rename = "conv_L_cache")]
    taps: usize,
    #[serde(default)]
    conv_bias: bool,
    // Either of the two, by the file's age.
    #[serde(default)]
    full_attn_idxs: Option<Vec<usize>>,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    // Likewise.
    #[serde(default)]
    rope_theta: Option<f64>,
    #[serde(default)]
    theta: Option<f64>,
    // Likewise; the first wins.
    #[serde(default)]
    block_ff_dim: Option<usize>,
    #[serde(default)]
    intermediate_size: Option<usize>,
    #[serde(default = "yes")]
    block_auto_adjust_ff_dim: bool,
    #[serde(default = "whole")]
    block_ffn_dim_multiplier: Option<f64>,
    #[serde(default = "multiple")]
    block_multiple_of: usize,
}

/// The depth transformer.
#[derive(Debug, Clone, Copy, Deserialize)]
pub(super) struct DepthConfig {
    layers: usize,
    pub(super) dim: usize,
    /// Whether the head of each codebook is its embedding.
    pub(super) tie: bool,
}

fn yes() -> bool {
    true
}

fn whole() -> Option<f64> {
    Some(1.0)
}

fn multiple() -> usize {
    256
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, Error> {
    std::fs::read_to_string(path).map_err(|error| file_error(path, error.to_string()))
}

pub(super) fn file_error(path: &Path, message: String) -> Error {
    Error::File { path: path.display().to_string(), message }
}

impl Config {
    /// Reads `config.json` of a folder.
    ///
    /// # Errors
    /// The file is unreadable, lacks a field, or asks for something this family does not compute.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        Self::parse(&read(&path)?).map_err(|message| file_error(&path, message))
    }

    /// As [`Self::load`], from the file's text.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        if !self.architectures.iter().any(|name| name == "Lfm2AudioForConditionalGeneration") {
            return Err(format!("architectures {:?} is not this family's", self.architectures));
        }
        let lfm = &self.lfm;
        if lfm.conv_bias {
            return Err("lfm: conv_bias true is not supported".to_owned());
        }
        let sizes = [
            ("codebooks", self.codebooks),
            ("interleaved_n_text", self.interleaved_n_text),
            ("interleaved_n_audio", self.interleaved_n_audio),
            ("lfm.hidden_size", lfm.hidden_size),
            ("lfm.num_hidden_layers", lfm.num_hidden_layers),
            ("lfm.num_attention_heads", lfm.num_attention_heads),
            ("lfm.num_key_value_heads", lfm.num_key_value_heads),
            ("lfm.conv_L_cache", lfm.taps),
            ("lfm.block_multiple_of", lfm.block_multiple_of),
            ("depthformer.layers", self.depthformer.layers),
            ("depthformer.dim", self.depthformer.dim),
        ];
        if let Some((field, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(format!("{field} 0 is not supported"));
        }
        if lfm.vocab_size <= TEXT_END as usize {
            return Err(format!("lfm.vocab_size {} leaves no room for special tokens", lfm.vocab_size));
        }
        let stacks = [
            ("lfm", lfm.hidden_size, lfm.num_attention_heads, lfm.num_key_value_heads),
            ("depthformer", self.depthformer.dim, DEPTH_HEADS, DEPTH_KV_HEADS),
        ];
        for (of, width, heads, kv_heads) in stacks {
            if !heads.is_multiple_of(kv_heads) || !width.is_multiple_of(2 * heads) {
                return Err(format!(
                    "{of}: a width of {width} does not divide into {heads} heads over {kv_heads} of keys and values"
                ));
            }
        }
        self.preprocessor.check()?;
        self.encoder.check(self.preprocessor.features)?;
        lfm.layers()?;
        lfm.rotation()?;
        lfm.feed_forward()?;
        Ok(())
    }

    /// Sizes of the language model.
    ///
    /// # Errors
    /// Never after [`Self::parse`].
    pub(super) fn backbone(&self) -> Result<StackShape, String> {
        let lfm = &self.lfm;
        Ok(StackShape {
            style: Style::Gated,
            width: lfm.hidden_size,
            hidden: lfm.feed_forward()?,
            layers: lfm.layers()?,
            heads: lfm.num_attention_heads,
            kv_heads: lfm.num_key_value_heads,
            head_dim: lfm.hidden_size / lfm.num_attention_heads,
            eps: lfm.norm_eps,
            theta: lfm.rotation()?,
            rotation: Rotation::Halves,
        })
    }

    /// Sizes of the depth transformer.
    pub(super) fn depth(&self) -> StackShape {
        let DepthConfig { layers, dim, .. } = self.depthformer;
        StackShape {
            style: Style::Gated,
            width: dim,
            hidden: (2 * 4 * dim / 3).next_multiple_of(DEPTH_MULTIPLE),
            layers: vec![Mixing::Attention; layers],
            heads: DEPTH_HEADS,
            kv_heads: DEPTH_KV_HEADS,
            head_dim: dim / DEPTH_HEADS,
            eps: DEPTH_EPS,
            theta: DEPTH_THETA,
            rotation: Rotation::Pairs,
        }
    }
}

impl BackboneConfig {
    fn layers(&self) -> Result<Vec<Mixing>, String> {
        let convolution = Mixing::Convolution { taps: self.taps };
        if let Some(types) = &self.layer_types {
            if types.len() != self.num_hidden_layers {
                return Err(format!("lfm: {} layer_types of {} layers", types.len(), self.num_hidden_layers));
            }
            let mixing = types.iter().map(|name| match name.as_str() {
                "full_attention" => Ok(Mixing::Attention),
                "conv" => Ok(convolution),
                other => Err(format!("lfm: layer_types {other} is not supported")),
            });
            return mixing.collect();
        }
        let Some(attention) = &self.full_attn_idxs else {
            return Err("lfm: missing field `full_attn_idxs`, and `layer_types` too".to_owned());
        };
        if let Some(layer) = attention.iter().find(|&&layer| layer >= self.num_hidden_layers) {
            return Err(format!("lfm: full_attn_idxs {layer} of {} layers", self.num_hidden_layers));
        }
        let mixing = |layer| if attention.contains(&layer) { Mixing::Attention } else { convolution };
        Ok((0..self.num_hidden_layers).map(mixing).collect())
    }

    fn rotation(&self) -> Result<f64, String> {
        self.rope_theta.or(self.theta).ok_or_else(|| "lfm: missing field `rope_theta`".to_owned())
    }

    /// Width of the feed-forward, as
    /// <https://github.com/huggingface/transformers/blob/main/src/transformers/models/lfm2/modeling_lfm2.py> has it.
    fn feed_forward(&self) -> Result<usize, String> {
        let base = self.block_ff_dim.or(self.intermediate_size);
        let base = base.ok_or("lfm: missing field `block_ff_dim`, and `intermediate_size` too")?;
        if !self.block_auto_adjust_ff_dim {
            return Ok(base);
        }
        let narrowed = 2 * base / 3;
        Ok(match self.block_ffn_dim_multiplier {
            Some(factor) => ((factor * narrowed as f64) as usize).next_multiple_of(self.block_multiple_of),
            None => narrowed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::golden_set::root;
    use super::*;

    fn text() -> serde_json::Value {
        serde_json::from_str(&read(&root().join("config.json")).unwrap()).unwrap()
    }

    fn with(change: impl FnOnce(&mut serde_json::Value)) -> Result<Config, String> {
        let mut value = text();
        change(&mut value);
        Config::parse(&value.to_string())
    }

    #[test]
    fn both_spellings_are_equivalent() {
        let older = with(|_| ()).unwrap();
        let newer = with(|value| {
            let lfm = value["lfm"].as_object_mut().unwrap();
            let layers = lfm["num_hidden_layers"].as_u64().unwrap();
            if let Some(indices) = lfm.remove("full_attn_idxs") {
                let attention: Vec<u64> = serde_json::from_value(indices).unwrap();
                let name = |at| if attention.contains(&at) { "full_attention" } else { "conv" };
                lfm.insert("layer_types".to_owned(), (0..layers).map(name).collect());
            }
            let base = lfm.remove("block_ff_dim").unwrap();
            lfm.insert("intermediate_size".to_owned(), base);
            let theta = lfm.remove("rope_theta").unwrap();
            lfm.insert("theta".to_owned(), theta);
        });
        assert_eq!(newer.unwrap().backbone(), older.backbone());
        assert!(older.backbone().unwrap().layers.contains(&Mixing::Attention));
    }

    #[test]
    fn the_feed_forward_width_follows_its_rule() {
        let width = |base: usize, adjust: bool, multiplier: Option<f64>| {
            let config = with(|value| {
                value["lfm"]["block_ff_dim"] = base.into();
                value["lfm"]["intermediate_size"] = 1.into();
                value["lfm"]["block_auto_adjust_ff_dim"] = adjust.into();
                value["lfm"]["block_ffn_dim_multiplier"] = multiplier.into();
                value["lfm"]["block_multiple_of"] = 256.into();
            });
            config.unwrap().backbone().unwrap().hidden
        };
        assert_eq!(width(12288, true, Some(1.0)), 8192);
        assert_eq!(width(12288, true, Some(1.3)), 10752);
        assert_eq!(width(12288, false, Some(1.0)), 12288);
        assert_eq!(width(1000, true, None), 666);
        assert_eq!(with(|value| value["depthformer"]["dim"] = 1024.into()).unwrap().depth().hidden, 2816);
    }

    #[test]
    fn missing_and_unsupported_fields_are_named() {
        let refused = |path: [&str; 2], value: serde_json::Value| {
            with(|config| config[path[0]][path[1]] = value).unwrap_err()
        };
        assert!(refused(["lfm", "conv_bias"], true.into()).contains("conv_bias"));
        assert!(refused(["lfm", "full_attn_idxs"], vec![99].into()).contains("99"));
        assert!(refused(["lfm", "layer_types"], vec!["conv"; 99].into()).contains("99"));
        assert!(refused(["lfm", "num_attention_heads"], 5.into()).contains("does not divide"));
        assert!(refused(["depthformer", "layers"], 0.into()).contains("depthformer.layers"));
        for field in ["hidden_size", "norm_eps", "conv_L_cache", "block_ff_dim", "rope_theta"] {
            let message = with(|config| drop(config["lfm"].as_object_mut().unwrap().remove(field)));
            assert!(message.unwrap_err().contains(field), "{field}");
        }
        assert!(with(|config| config["architectures"] = vec!["Other"].into()).is_err());
    }
}
