//! Configuration of the codec: `speech_tokenizer/config.json`. Refuses settings that are not supported.

use std::path::Path;

use serde::Deserialize;

use izwi_nn::Error;

/// The codec's sizes. A field the file lacks is an error that names it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Config {
    pub(super) decoder_config: DecoderConfig,
    pub(super) encoder_config: EncoderConfig,
    pub(super) encoder_valid_num_quantizers: usize,
    pub(super) input_sample_rate: usize,
    pub(super) output_sample_rate: usize,
    pub(super) decode_upsample_rate: usize,
    pub(super) encode_downsample_rate: usize,
}

/// Codes to samples.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct DecoderConfig {
    pub(super) codebook_dim: usize,
    pub(super) codebook_size: usize,
    pub(super) num_quantizers: usize,
    pub(super) num_semantic_quantizers: usize,
    pub(super) latent_dim: usize,
    pub(super) hidden_size: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) sliding_window: usize,
    pub(super) rms_norm_eps: f64,
    pub(super) rope_theta: f64,
    pub(super) upsampling_ratios: Vec<usize>,
    pub(super) upsample_rates: Vec<usize>,
    pub(super) decoder_dim: usize,
    hidden_act: String,
    attention_bias: bool,
}

/// Samples to codes: Hugging Face's `MimiConfig`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct EncoderConfig {
    pub(super) codebook_dim: usize,
    pub(super) codebook_size: usize,
    pub(super) num_quantizers: usize,
    pub(super) num_semantic_quantizers: usize,
    pub(super) hidden_size: usize,
    pub(super) num_filters: usize,
    pub(super) upsampling_ratios: Vec<usize>,
    pub(super) kernel_size: usize,
    pub(super) last_kernel_size: usize,
    pub(super) residual_kernel_size: usize,
    pub(super) num_residual_layers: usize,
    pub(super) dilation_growth_rate: usize,
    pub(super) compress: usize,
    pub(super) intermediate_size: usize,
    pub(super) num_hidden_layers: usize,
    pub(super) num_attention_heads: usize,
    pub(super) num_key_value_heads: usize,
    pub(super) head_dim: usize,
    pub(super) norm_eps: f64,
    pub(super) rope_theta: f64,
    sampling_rate: usize,
    audio_channels: usize,
    hidden_act: String,
    pad_mode: String,
    attention_bias: bool,
    use_causal_conv: bool,
    use_conv_shortcut: bool,
}

impl Config {
    /// Parses the text of a `config.json`.
    ///
    /// # Errors
    /// A field is missing, or asks for something this family does not compute; the message names it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let config: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        config.check()?;
        Ok(config)
    }

    /// Reads `config.json` in `folder`.
    ///
    /// # Errors
    /// The file is unreadable, or as [`Self::parse`].
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        Self::parse(&text).map_err(fault)
    }

    fn check(&self) -> Result<(), String> {
        let (decoder, encoder) = (&self.decoder_config, &self.encoder_config);
        let same = |what: &str, value: usize, expected: usize| {
            if value == expected {
                Ok(())
            } else {
                Err(format!("{what} {value} is not supported, only {expected}"))
            }
        };
        let named = |what: &str, value: &str, expected: &str| {
            if value == expected {
                Ok(())
            } else {
                Err(format!("{what} '{value}' is not supported, only {expected}"))
            }
        };
        let up: usize = decoder.upsampling_ratios.iter().chain(&decoder.upsample_rates).product();
        same("decode_upsample_rate", self.decode_upsample_rate, up)?;
        let down: usize = encoder.upsampling_ratios.iter().product();
        let rate = self.encode_downsample_rate;
        if down == 0 || rate == 0 || !rate.is_multiple_of(down) {
            return Err(format!(
                "encode_downsample_rate {rate} is no multiple of the encoder's ratios {down}"
            ));
        }
        same("input_sample_rate", self.input_sample_rate, encoder.sampling_rate)?;
        named("decoder_config.hidden_act", &decoder.hidden_act, "silu")?;
        named("encoder_config.hidden_act", &encoder.hidden_act, "gelu")?;
        named("encoder_config.pad_mode", &encoder.pad_mode, "constant")?;
        same("encoder_config.audio_channels", encoder.audio_channels, 1)?;
        if decoder.attention_bias || encoder.attention_bias {
            return Err("attention_bias true is not supported".to_owned());
        }
        if !encoder.use_causal_conv || encoder.use_conv_shortcut {
            return Err("only use_causal_conv true and use_conv_shortcut false are supported".to_owned());
        }
        let heads = [
            ("decoder_config", decoder.num_key_value_heads, decoder.num_attention_heads, decoder.head_dim),
            ("encoder_config", encoder.num_key_value_heads, encoder.num_attention_heads, encoder.head_dim),
        ];
        for (side, kv_heads, heads, head_dim) in heads {
            same(&format!("{side}.num_key_value_heads"), kv_heads, heads)?;
            if heads == 0 || head_dim == 0 || head_dim % 2 == 1 {
                return Err(format!("{side}: {heads} heads of head_dim {head_dim} are not supported"));
            }
        }
        self.check_books()?;
        let halvings = decoder.upsample_rates.len() as u32;
        if !decoder.decoder_dim.is_multiple_of(2usize.pow(halvings)) || decoder.decoder_dim == 0 {
            return Err(format!("decoder_dim {} cannot be halved {halvings} times", decoder.decoder_dim));
        }
        let sizes = decoder.upsampling_ratios.iter().chain(&decoder.upsample_rates);
        if sizes.chain(&encoder.upsampling_ratios).any(|&ratio| ratio == 0) || decoder.sliding_window == 0 {
            return Err("ratios and sliding_window must be above 0".to_owned());
        }
        Ok(())
    }

    fn check_books(&self) -> Result<(), String> {
        let (decoder, encoder) = (&self.decoder_config, &self.encoder_config);
        for (side, semantic) in [
            ("decoder_config", decoder.num_semantic_quantizers),
            ("encoder_config", encoder.num_semantic_quantizers),
        ] {
            if semantic != 1 {
                return Err(format!("{side}.num_semantic_quantizers {semantic} is not supported, only 1"));
            }
        }
        let valid = self.encoder_valid_num_quantizers;
        if valid != decoder.num_quantizers || valid > encoder.num_quantizers || valid < 2 {
            return Err(format!(
                "encoder_valid_num_quantizers {valid} does not fit num_quantizers {} of the decoder and {} of the \
                 encoder",
                decoder.num_quantizers, encoder.num_quantizers
            ));
        }
        if decoder.codebook_size != encoder.codebook_size || decoder.codebook_size == 0 {
            return Err(format!(
                "codebook_size {} of the decoder is not the encoder's {}",
                decoder.codebook_size, encoder.codebook_size
            ));
        }
        if decoder.codebook_dim % 2 == 1 || decoder.codebook_dim == 0 {
            return Err(format!("decoder_config.codebook_dim {} cannot be halved", decoder.codebook_dim));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::golden_set;
    use super::*;

    #[test]
    fn missing_and_unsupported_fields_are_named() {
        let text =
            std::fs::read_to_string(golden_set::root().join("base17/speech_tokenizer/config.json")).unwrap();
        let config: serde_json::Value = serde_json::from_str(&text).unwrap();
        Config::parse(&text).unwrap();
        for field in ["sliding_window", "latent_dim", "rms_norm_eps", "upsample_rates"] {
            let mut config = config.clone();
            config["decoder_config"].as_object_mut().unwrap().remove(field);
            let error = Config::parse(&config.to_string()).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        for (side, field, value) in [
            ("decoder_config", "hidden_act", serde_json::json!("relu")),
            ("decoder_config", "num_key_value_heads", serde_json::json!(1)),
            ("encoder_config", "use_causal_conv", serde_json::json!(false)),
            ("encoder_config", "pad_mode", serde_json::json!("reflect")),
            ("encoder_config", "num_semantic_quantizers", serde_json::json!(2)),
        ] {
            let mut config = config.clone();
            config[side][field] = value;
            let error = Config::parse(&config.to_string()).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
    }
}
