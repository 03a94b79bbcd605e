//! Configuration of the encoder: the part `encoder` of `config.json`. Refuses settings that are not supported.

use serde::Deserialize;

use crate::conformer::{Context, FRAMES_PER_ROW, Shape};

/// The encoder's sizes. A field the file lacks is an error that names it.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Config {
    feat_in: usize,
    n_layers: usize,
    d_model: usize,
    subsampling_conv_channels: usize,
    ff_expansion_factor: usize,
    n_heads: usize,
    conv_kernel_size: usize,
    subsampling: String,
    subsampling_factor: usize,
    causal_downsampling: bool,
    self_attention_model: String,
    att_context_size: Vec<i64>,
    xscaling: bool,
    untie_biases: bool,
    conv_norm_type: String,
    #[serde(default)]
    reduction: Option<String>,
}

impl Config {
    /// The encoder of a checked configuration.
    pub(super) fn shape(&self) -> Shape {
        Shape {
            bins: self.feat_in,
            layers: self.n_layers,
            width: self.d_model,
            channels: self.subsampling_conv_channels,
            inner: self.d_model * self.ff_expansion_factor,
            heads: self.n_heads,
            taps: self.conv_kernel_size,
            has_biases: true,
            scales_input: false,
            context: Context::Whole,
        }
    }

    /// Refuses settings that are not supported, for spectra of `features` bins.
    pub(crate) fn check(&self, features: usize) -> Result<(), String> {
        let same = |what: &str, value: &dyn std::fmt::Display, only: &dyn std::fmt::Display| {
            if value.to_string() == only.to_string() {
                Ok(())
            } else {
                Err(format!("encoder.{what} {value} is not supported, only {only}"))
            }
        };
        same("feat_in", &self.feat_in, &features)?;
        same("subsampling", &self.subsampling, &"dw_striding")?;
        same("subsampling_factor", &self.subsampling_factor, &FRAMES_PER_ROW)?;
        same("causal_downsampling", &self.causal_downsampling, &false)?;
        same("self_attention_model", &self.self_attention_model, &"rel_pos")?;
        same("xscaling", &self.xscaling, &false)?;
        same("untie_biases", &self.untie_biases, &true)?;
        same("conv_norm_type", &self.conv_norm_type, &"batch_norm")?;
        same("reduction", &self.reduction.as_deref().unwrap_or("null"), &"null")?;
        if self.att_context_size != [-1, -1] {
            let size = &self.att_context_size;
            return Err(format!("encoder.att_context_size {size:?} is not supported, only [-1, -1]"));
        }
        let (width, heads) = (self.d_model, self.n_heads);
        if heads == 0 || width == 0 || !width.is_multiple_of(2 * heads) {
            return Err(format!("encoder: d_model {width} is not n_heads {heads} of an even width"));
        }
        if self.conv_kernel_size.is_multiple_of(2) {
            return Err(format!("encoder.conv_kernel_size {} has no middle", self.conv_kernel_size));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_settings_are_named() {
        let good = serde_json::json!({
            "feat_in": 128, "n_layers": 17, "d_model": 512, "subsampling_conv_channels": 256,
            "ff_expansion_factor": 4, "n_heads": 8, "conv_kernel_size": 9, "subsampling": "dw_striding",
            "subsampling_factor": 8, "causal_downsampling": false, "self_attention_model": "rel_pos",
            "att_context_size": [-1, -1], "xscaling": false, "untie_biases": true,
            "conv_norm_type": "batch_norm", "reduction": null,
        });
        let check = |config: serde_json::Value| {
            let config: Config = serde_json::from_value(config).map_err(|error| error.to_string())?;
            config.check(128)
        };
        check(good.clone()).unwrap();
        for (field, value) in [
            ("feat_in", serde_json::json!(80)),
            ("subsampling", serde_json::json!("striding")),
            ("subsampling_factor", serde_json::json!(4)),
            ("causal_downsampling", serde_json::json!(true)),
            ("self_attention_model", serde_json::json!("abs_pos")),
            ("att_context_size", serde_json::json!([64, 64])),
            ("xscaling", serde_json::json!(true)),
            ("untie_biases", serde_json::json!(false)),
            ("conv_norm_type", serde_json::json!("layer_norm")),
            ("reduction", serde_json::json!("striding")),
            ("n_heads", serde_json::json!(7)),
            ("conv_kernel_size", serde_json::json!(8)),
        ] {
            let mut config = good.clone();
            config[field] = value;
            let error = check(config).unwrap_err();
            assert!(error.contains(field), "{error}");
        }
        let mut config = good;
        config.as_object_mut().unwrap().remove("d_model");
        assert!(check(config).unwrap_err().contains("d_model"));
    }
}
