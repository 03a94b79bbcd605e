//! `config.json` of a checkpoint, in the publisher's layout. Knows no tensor.

use std::collections::HashMap;
use std::path::Path;

use serde::Deserialize;

use crate::text::json_file::read_json;
use izwi_nn::Error;

/// Channels of each of the two halves of a voice's row.
pub(super) const STYLE: usize = 128;
/// Limits of what a file may ask for.
const MAX_WIDTH: usize = 8_192;
const MAX_LAYERS: usize = 64;
const MAX_SYMBOLS: usize = 65_536;
const MAX_TAPS: usize = 63;
const MAX_SCALE: usize = 4_096;

/// Sizes of the network, and the ids of the phonemes.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Config {
    pub(super) istftnet: GeneratorConfig,
    /// Channels of text features.
    pub(super) hidden_dim: usize,
    pub(super) style_dim: usize,
    /// Layers of the text encoder and of the duration encoder.
    pub(super) n_layer: usize,
    /// Ids.
    pub(super) n_token: usize,
    /// Longest duration at normal speed, in frames.
    pub(super) max_dur: usize,
    pub(super) text_encoder_kernel_size: usize,
    pub(super) plbert: BertConfig,
    pub(super) vocab: HashMap<char, u32>,
    /// Channels of the decoder before the generator; the published layout has no field for it.
    #[serde(default = "decoder_dim")]
    pub(super) decoder_dim: usize,
    /// Channels of the text that the decoder reads again before each block, as [`Self::decoder_dim`].
    #[serde(default = "asr_res_dim")]
    pub(super) asr_res_dim: usize,
}

/// Sizes of the generator of waveforms.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct GeneratorConfig {
    pub(super) upsample_kernel_sizes: Vec<usize>,
    pub(super) upsample_rates: Vec<usize>,
    pub(super) gen_istft_hop_size: usize,
    pub(super) gen_istft_n_fft: usize,
    pub(super) resblock_dilation_sizes: Vec<Vec<usize>>,
    pub(super) resblock_kernel_sizes: Vec<usize>,
    pub(super) upsample_initial_channel: usize,
}

/// Sizes of the encoder of phonemes, an ALBERT.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct BertConfig {
    pub(super) hidden_size: usize,
    #[serde(default = "embedding_size")]
    pub(super) embedding_size: usize,
    pub(super) num_attention_heads: usize,
    pub(super) intermediate_size: usize,
    pub(super) max_position_embeddings: usize,
    pub(super) num_hidden_layers: usize,
}

const fn decoder_dim() -> usize {
    1024
}

const fn asr_res_dim() -> usize {
    64
}

const fn embedding_size() -> usize {
    128
}

impl Config {
    /// Reads `config.json` in `folder`.
    ///
    /// # Errors
    /// It is missing, malformed, or asks for a size that the network cannot have; the error names it.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let path = folder.join("config.json");
        let config: Self = read_json(&path)?;
        match config.check() {
            Ok(()) => Ok(config),
            Err(message) => Err(Error::File { path: path.display().to_string(), message }),
        }
    }

    fn check(&self) -> Result<(), String> {
        let BertConfig { hidden_size, num_attention_heads, .. } = self.plbert;
        check("hidden_dim", self.hidden_dim, 2..=MAX_WIDTH)?;
        check("decoder_dim", self.decoder_dim, 1..=MAX_WIDTH)?;
        check("asr_res_dim", self.asr_res_dim, 1..=MAX_WIDTH)?;
        check("style_dim", self.style_dim, STYLE..=STYLE)?;
        check("n_layer", self.n_layer, 1..=MAX_LAYERS)?;
        check("n_token", self.n_token, 1..=MAX_SYMBOLS)?;
        check("max_dur", self.max_dur, 1..=MAX_WIDTH)?;
        check("text_encoder_kernel_size", self.text_encoder_kernel_size, 1..=MAX_TAPS)?;
        check("plbert.hidden_size", hidden_size, 1..=MAX_WIDTH)?;
        check("plbert.embedding_size", self.plbert.embedding_size, 1..=MAX_WIDTH)?;
        check("plbert.num_attention_heads", num_attention_heads, 1..=MAX_WIDTH)?;
        check("plbert.intermediate_size", self.plbert.intermediate_size, 1..=MAX_WIDTH)?;
        check("plbert.max_position_embeddings", self.plbert.max_position_embeddings, 16..=MAX_SYMBOLS)?;
        check("plbert.num_hidden_layers", self.plbert.num_hidden_layers, 1..=MAX_LAYERS)?;
        let halves = self.hidden_dim.is_multiple_of(2) && self.text_encoder_kernel_size % 2 == 1;
        if !halves || !hidden_size.is_multiple_of(num_attention_heads) {
            return Err("hidden_dim must be even, text_encoder_kernel_size odd, and plbert.hidden_size a \
                        multiple of plbert.num_attention_heads"
                .to_owned());
        }
        self.istftnet.check()
    }
}

impl GeneratorConfig {
    fn check(&self) -> Result<(), String> {
        check("istftnet.upsample_rates", self.upsample_rates.len(), 1..=4)?;
        for (rate, taps) in self.upsample_rates.iter().zip(&self.upsample_kernel_sizes) {
            check("istftnet.upsample_rates", *rate, 2..=MAX_TAPS)?;
            if !rate.is_multiple_of(2) || *taps != 2 * rate {
                return Err(format!(
                    "istftnet.upsample_kernel_sizes {taps} must be twice the rate {rate}, which is even"
                ));
            }
        }
        check("istftnet.gen_istft_hop_size", self.gen_istft_hop_size, 1..=MAX_SCALE)?;
        check("istftnet.gen_istft_n_fft", self.gen_istft_n_fft, 4..=MAX_SCALE)?;
        if !self.gen_istft_n_fft.is_multiple_of(2) || self.gen_istft_n_fft < 2 * self.gen_istft_hop_size {
            return Err(format!(
                "istftnet.gen_istft_n_fft {} must be even and at least twice the hop",
                self.gen_istft_n_fft
            ));
        }
        let taps = self.resblock_kernel_sizes.iter().chain(self.resblock_dilation_sizes.iter().flatten());
        for taps in taps {
            check("istftnet.resblock_kernel_sizes and resblock_dilation_sizes", *taps, 1..=MAX_TAPS)?;
        }
        let odd = self.resblock_kernel_sizes.iter().all(|taps| taps % 2 == 1);
        let blocks = self.resblock_kernel_sizes.len();
        let dilations = self.resblock_dilation_sizes.iter();
        let dilated = dilations.clone().all(|sizes| (1..=8).contains(&sizes.len()));
        if !odd || !dilated || !(1..=8).contains(&blocks) || dilations.len() != blocks {
            return Err("istftnet.resblock_kernel_sizes must be odd, each with 1 to 8 dilations".to_owned());
        }
        if self.upsample_rates.len() != self.upsample_kernel_sizes.len() {
            return Err("istftnet.upsample_kernel_sizes must list a kernel for each rate".to_owned());
        }
        let halved = self.upsample_initial_channel >> self.upsample_rates.len();
        check("istftnet.upsample_initial_channel", self.upsample_initial_channel, 2..=MAX_WIDTH)?;
        check("the last stage of istftnet.upsample_initial_channel", halved, 1..=MAX_WIDTH)?;
        check("the samples of a frame", self.samples_per_contour_frame(), 2..=MAX_SCALE)
    }

    /// Samples of a frame of pitch and energy, half a frame of a duration.
    pub(super) fn samples_per_contour_frame(&self) -> usize {
        self.rows_per_contour_frame() * self.gen_istft_hop_size
    }

    /// Spectra of a frame of pitch and energy.
    pub(super) fn rows_per_contour_frame(&self) -> usize {
        self.upsample_rates.iter().product()
    }

    /// Channels of stage `stage`; stage 0 is the input.
    pub(super) fn channels(&self, stage: usize) -> usize {
        self.upsample_initial_channel >> stage
    }
}

fn check(field: &str, value: usize, range: std::ops::RangeInclusive<usize>) -> Result<(), String> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(format!("{field} {value} must be {} to {}", range.start(), range.end()))
}

#[cfg(test)]
mod tests {
    use super::super::golden_set;
    use super::*;

    #[test]
    fn sizes_that_no_network_has_are_refused() {
        let text = std::fs::read_to_string(golden_set().root().join("config.json")).unwrap();
        for (from, to, expected) in [
            ("\"hidden_dim\": 32", "\"hidden_dim\": 0", "hidden_dim 0 must be 2 to"),
            ("\"hidden_dim\": 32", "\"hidden_dim\": 33", "hidden_dim must be even"),
            ("\"style_dim\": 128", "\"style_dim\": 64", "style_dim 64 must be 128"),
            ("\"n_token\": 30", "\"n_token\": 99999999", "n_token 99999999"),
            ("\"num_attention_heads\": 3", "\"num_attention_heads\": 5", "a multiple of"),
            ("\"gen_istft_hop_size\": 5", "\"gen_istft_hop_size\": 0", "gen_istft_hop_size 0"),
            ("\"gen_istft_n_fft\": 20", "\"gen_istft_n_fft\": 21", "gen_istft_n_fft 21"),
            ("\"upsample_initial_channel\": 32", "\"upsample_initial_channel\": 3", "last stage"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            assert!(text.contains(from), "{from}");
            std::fs::write(folder.path().join("config.json"), text.replace(from, to)).unwrap();
            let error = Config::load(folder.path()).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
