//! Configuration of the detokenizer: `audio_detokenizer/config.json`. Refuses settings that are not supported.

use std::path::Path;

use serde::Deserialize;

use izwi_nn::Error;

/// The window of attention where the file says none, in positions: the package's own.
const DEFAULT_WINDOW: usize = 30;
/// Widths of feed-forward layers are multiples of this where the file does not say:
/// <https://github.com/huggingface/transformers> (`Lfm2Config`).
const DEFAULT_MULTIPLE: usize = 256;

/// The sizes. A field the file needs and lacks is an error that names it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Config {
    pub(super) hidden_size: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) norm_eps: f64,
    #[serde(alias = "theta")]
    pub(super) rope_theta: f64,
    #[serde(rename = "conv_L_cache")]
    pub(super) taps: usize,
    #[serde(default)]
    pub(super) sliding_window: Option<usize>,
    num_hidden_layers: usize,
    #[serde(default)]
    conv_bias: bool,
    #[serde(default)]
    layer_types: Option<Vec<String>>,
    #[serde(default)]
    full_attn_idxs: Option<Vec<usize>>,
    #[serde(default)]
    block_ff_dim: Option<usize>,
    #[serde(default)]
    intermediate_size: Option<usize>,
    #[serde(default)]
    block_auto_adjust_ff_dim: Option<bool>,
    #[serde(default)]
    block_ffn_dim_multiplier: Option<f64>,
    #[serde(default)]
    block_multiple_of: Option<usize>,
}

/// How a layer mixes its rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mixing {
    Convolution,
    Attention,
}

impl Config {
    /// Reads `config.json` in `folder`.
    ///
    /// # Errors
    /// The file is unreadable, lacks a field or asks for what is not computed; the message names it.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        Self::parse(&text).map_err(fault)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    fn check(&self) -> Result<(), String> {
        let (width, heads, kv_heads) = (self.hidden_size, self.num_attention_heads, self.num_key_value_heads);
        if heads == 0 || width == 0 || !width.is_multiple_of(2 * heads) {
            return Err(format!("hidden_size {width} is not num_attention_heads {heads} of an even width"));
        }
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(format!(
                "num_key_value_heads {kv_heads} does not divide num_attention_heads {heads}"
            ));
        }
        if self.conv_bias {
            return Err("conv_bias true is not supported".to_owned());
        }
        if self.taps == 0 || self.window() == 0 {
            return Err("conv_L_cache and sliding_window must be above 0".to_owned());
        }
        self.mixings()?;
        self.feed_forward().map(|_| ())
    }

    /// Positions that attention sees, the newest included.
    pub(super) fn window(&self) -> usize {
        self.sliding_window.unwrap_or(DEFAULT_WINDOW)
    }

    /// How each layer mixes its rows.
    pub(super) fn mixings(&self) -> Result<Vec<Mixing>, String> {
        let count = self.num_hidden_layers;
        let mixings: Vec<Mixing> = match (&self.layer_types, &self.full_attn_idxs) {
            (Some(types), _) => {
                let mixing = |kind: &String| match kind.as_str() {
                    "conv" => Ok(Mixing::Convolution),
                    "sliding_attention" | "full_attention" => Ok(Mixing::Attention),
                    other => Err(format!("layer_types '{other}' is not supported")),
                };
                types.iter().map(mixing).collect::<Result<_, _>>()?
            }
            (None, Some(attention)) => {
                let mixing = |layer| {
                    if attention.contains(&layer) { Mixing::Attention } else { Mixing::Convolution }
                };
                (0..count).map(mixing).collect()
            }
            (None, None) => return Err("neither layer_types nor full_attn_idxs is there".to_owned()),
        };
        if mixings.len() != count {
            return Err(format!("layer_types has {} layers, num_hidden_layers {count}", mixings.len()));
        }
        Ok(mixings)
    }

    /// Channels inside the feed-forward layers.
    pub(super) fn feed_forward(&self) -> Result<usize, String> {
        let base = self.block_ff_dim.or(self.intermediate_size);
        let base = base.ok_or("neither block_ff_dim nor intermediate_size is there")?;
        if !self.block_auto_adjust_ff_dim.unwrap_or(true) {
            return Ok(base);
        }
        let multiple = self.block_multiple_of.unwrap_or(DEFAULT_MULTIPLE);
        if multiple == 0 {
            return Err("block_multiple_of must be above 0".to_owned());
        }
        let scaled = (2 * base / 3) as f64 * self.block_ffn_dim_multiplier.unwrap_or(1.0);
        Ok((scaled as usize).next_multiple_of(multiple))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published() -> serde_json::Value {
        serde_json::json!({
            "hidden_size": 512, "num_attention_heads": 16, "num_key_value_heads": 8, "norm_eps": 1e-5,
            "rope_theta": 1e6, "conv_L_cache": 3, "sliding_window": 30, "num_hidden_layers": 3,
            "intermediate_size": 3328, "layer_types": ["conv", "sliding_attention", "conv"],
        })
    }

    fn parse(change: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>)) -> Result<Config, String> {
        let mut config = published();
        change(config.as_object_mut().unwrap());
        Config::parse(&config.to_string())
    }

    #[test]
    fn widths_and_layers_match_the_package() {
        let config = parse(|_| ()).unwrap();
        assert_eq!((config.feed_forward(), config.window()), (Ok(2304), 30));
        let adjusted = parse(|config| drop(config.insert("block_ff_dim".into(), 12288.into()))).unwrap();
        assert_eq!(adjusted.feed_forward(), Ok(8192));
        let kept =
            parse(|config| drop(config.insert("block_auto_adjust_ff_dim".into(), false.into()))).unwrap();
        assert_eq!(kept.feed_forward(), Ok(3328));
        let listed = parse(|config| {
            config.remove("layer_types");
            config.remove("sliding_window");
            config.insert("full_attn_idxs".into(), serde_json::json!([1]));
            let theta = config.remove("rope_theta").unwrap();
            config.insert("theta".into(), theta);
        });
        let listed = listed.unwrap();
        assert_eq!((listed.mixings(), listed.window()), (config.mixings(), 30));
    }

    #[test]
    fn unsupported_settings_are_named() {
        for (field, value) in [
            ("layer_types", serde_json::json!(["conv", "mamba", "conv"])),
            ("layer_types", serde_json::json!(["conv"])),
            ("conv_bias", serde_json::json!(true)),
            ("num_attention_heads", serde_json::json!(5)),
            ("num_key_value_heads", serde_json::json!(3)),
            ("sliding_window", serde_json::json!(0)),
            ("block_multiple_of", serde_json::json!(0)),
        ] {
            let error = parse(|config| drop(config.insert(field.into(), value))).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        for field in ["hidden_size", "conv_L_cache", "intermediate_size", "layer_types"] {
            let error = parse(|config| drop(config.remove(field))).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }
}
