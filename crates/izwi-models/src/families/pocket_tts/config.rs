//! Configuration of a checkpoint: `config.json`, or `config.yaml` as the official package has it.
//!
//! Owns sizes and rules of text, all from the file, and refuses what cannot be computed. Knows no tensor. Schema: the
//! Python package `pocket-tts` 4.0.1 (pip; `utils/config.py`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::super::settings::{self, within};
use izwi_nn::Error;
use izwi_nn::decoder_stack::{Mixing, Rotation, StackShape, Style};
use izwi_types::excerpt;

/// The largest width, vocabulary or window.
const MAX_SIZE: usize = 1 << 20;
/// The most layers, stages or steps of any kind.
const MAX_COUNT: usize = 256;
/// The most taps, strides and residual units of a stage.
const MAX_TAPS: usize = 64;
/// Steps of flow matching, which needs several; other heads take one.
const FLOW_MATCHING_STEPS: usize = 16;

/// `config.json`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    pub(super) flow_lm: FlowLmConfig,
    pub(super) mimi: MimiConfig,
    /// Spaces before a short text, for models that speak few tokens badly.
    #[serde(default)]
    pub(super) pad_with_spaces_for_short_inputs: bool,
    #[serde(default)]
    pub(super) remove_semicolons: bool,
    #[serde(default = "yes")]
    pub(super) append_terminal_punctuation: bool,
    #[serde(default = "yes")]
    pub(super) capitalize_first_letter: bool,
    /// What stands for a character of the text; nothing deletes it.
    #[serde(default)]
    pub(super) replace_characters: BTreeMap<char, String>,
    /// Frames after the one that the end is decided at; by the length of the text where there is none.
    #[serde(default)]
    pub(super) model_recommended_frames_after_eos: Option<usize>,
    #[serde(default = "default_temperature")]
    pub(super) default_temperature: f32,
    #[serde(default = "default_eos_threshold")]
    pub(super) default_eos_threshold: f32,
    /// Whether the weights of the voice encoder are real: some publications leave them out. Not in the package's schema.
    #[serde(default = "yes")]
    pub(super) voice_cloning: bool,
    /// BCP 47 tag of the language that the model speaks. Not in the package's schema.
    #[serde(default)]
    pub(super) language: Option<String>,
    /// Voice of requests that name none. Not in the package's schema.
    #[serde(default)]
    pub(super) default_voice: Option<String>,
    /// Steps of the flow head. Not in the package's schema.
    #[serde(default)]
    pub(super) sampler_decode_steps: Option<usize>,
    #[serde(default, rename = "weights_path")]
    _weights_path: IgnoredAny,
    #[serde(default, rename = "weights_path_without_voice_cloning")]
    _weights_path_without_voice_cloning: IgnoredAny,
}

fn yes() -> bool {
    true
}

fn default_temperature() -> f32 {
    0.3
}

fn default_eos_threshold() -> f32 {
    -4.0
}

/// The language model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowLmConfig {
    pub(super) flow: FlowConfig,
    pub(super) transformer: LmTransformerConfig,
    /// Width of what the heads read; that of the transformer where there is none.
    #[serde(default)]
    pub(super) z_dim: Option<usize>,
    pub(super) lookup_table: LookupTable,
    #[serde(default)]
    pub(super) insert_bos_before_voice: bool,
    #[serde(default, rename = "weights_path")]
    _weights_path: IgnoredAny,
    #[serde(rename = "dtype")]
    _dtype: IgnoredAny,
}

/// The kind of a flow head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FlowKind {
    /// Lagrangian self-distillation: <https://arxiv.org/abs/2505.18825>.
    #[default]
    Lsd,
    /// Flow matching along straight paths: <https://arxiv.org/abs/2210.02747>.
    FlowMatching,
    /// Maps noise to a sample.
    Drifting,
    /// Maps noise to what is added to it.
    Pointwise,
}

impl FlowKind {
    /// Times that the head is told.
    pub(super) fn num_times(self) -> usize {
        match self {
            Self::Lsd => 2,
            Self::FlowMatching => 1,
            Self::Drifting | Self::Pointwise => 0,
        }
    }
}

/// The flow head.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowConfig {
    pub(super) dim: usize,
    pub(super) depth: usize,
    #[serde(default, rename = "type")]
    pub(super) kind: FlowKind,
}

/// The transformer of the language model.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LmTransformerConfig {
    hidden_scale: usize,
    max_period: f64,
    pub(super) d_model: usize,
    num_heads: usize,
    pub(super) num_layers: usize,
    #[serde(default)]
    attn_dim: Option<usize>,
    #[serde(default)]
    num_kv_heads: Option<usize>,
    #[serde(default)]
    dim_feedforward: Option<usize>,
}

/// The kind of a tokenizer's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TokenizerKind {
    /// `tokenizer.json`.
    #[serde(alias = "json")]
    Tokenizers,
    /// `tokenizer.model`.
    Sentencepiece,
}

/// The table of text tokens.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LookupTable {
    pub(super) dim: usize,
    /// Tokens; the table has one row more, for padding.
    pub(super) n_bins: usize,
    pub(super) tokenizer: TokenizerKind,
    /// Width of the table where a projection follows.
    #[serde(default)]
    pub(super) rank: Option<usize>,
    #[serde(rename = "tokenizer_path")]
    _tokenizer_path: IgnoredAny,
}

/// The codec.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MimiConfig {
    pub(super) sample_rate: usize,
    channels: usize,
    pub(super) frame_rate: f64,
    pub(super) seanet: SeanetConfig,
    pub(super) transformer: MimiTransformerConfig,
    pub(super) quantizer: QuantizerConfig,
    #[serde(default)]
    inner_dim: Option<usize>,
    #[serde(default)]
    outer_dim: Option<usize>,
    #[serde(default)]
    decoder_seanet: Option<SeanetConfig>,
    #[serde(default)]
    decoder_transformer: Option<MimiTransformerConfig>,
    #[serde(default, rename = "weights_path")]
    _weights_path: IgnoredAny,
    #[serde(rename = "dtype")]
    _dtype: IgnoredAny,
}

/// The convolutions on one side of the codec.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SeanetConfig {
    pub(super) dimension: usize,
    channels: usize,
    pub(super) n_filters: usize,
    pub(super) n_residual_layers: usize,
    /// Strides in the order of the decoder.
    pub(super) ratios: Vec<usize>,
    pub(super) kernel_size: usize,
    pub(super) residual_kernel_size: usize,
    pub(super) last_kernel_size: usize,
    pub(super) dilation_base: usize,
    pad_mode: String,
    pub(super) compress: usize,
}

/// The transformer on one side of the codec.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MimiTransformerConfig {
    pub(super) d_model: usize,
    pub(super) input_dimension: usize,
    output_dimensions: Vec<usize>,
    pub(super) num_heads: usize,
    pub(super) num_layers: usize,
    pub(super) context: usize,
    #[serde(default = "default_period")]
    pub(super) max_period: f64,
    pub(super) dim_feedforward: usize,
    #[serde(rename = "layer_scale")]
    _layer_scale: IgnoredAny,
}

fn default_period() -> f64 {
    1e4
}

/// The projection between latents and the decoder.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct QuantizerConfig {
    /// Width of a latent.
    pub(super) dimension: usize,
    pub(super) output_dimension: usize,
}

impl Config {
    /// Reads the folder's `config.json`, or else its `config.yaml`.
    ///
    /// # Errors
    /// The file is absent or malformed, lacks or adds a field, or asks for what is not computed.
    pub(super) fn load(folder: &Path) -> Result<Self, Error> {
        let (json, yaml) = (folder.join("config.json"), folder.join("config.yaml"));
        let path = if json.exists() || !yaml.exists() { json } else { yaml };
        let is_yaml = path.extension().is_some_and(|suffix| suffix == "yaml");
        settings::read(&path, |text| Self::parse(text, is_yaml))
    }

    /// A configuration as JSON or YAML.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(super) fn parse(text: &str, is_yaml: bool) -> Result<Self, String> {
        let config: Self = settings::parse(text, is_yaml)?;
        config.check()?;
        Ok(config)
    }

    /// Steps of the flow head.
    pub(super) fn flow_steps(&self) -> usize {
        let several = self.flow_lm.flow.kind == FlowKind::FlowMatching;
        self.sampler_decode_steps.unwrap_or(if several { FLOW_MATCHING_STEPS } else { 1 })
    }

    fn check(&self) -> Result<(), String> {
        let FlowLmConfig { flow, z_dim, lookup_table: table, .. } = &self.flow_lm;
        within("flow_lm.flow", &[("dim", flow.dim)], MAX_SIZE)?;
        within("flow_lm.flow", &[("depth", flow.depth)], MAX_COUNT)?;
        within("", &[("sampler_decode_steps", self.flow_steps())], MAX_COUNT)?;
        within("flow_lm", &[("z_dim", z_dim.unwrap_or(1))], MAX_SIZE)?;
        let sizes = [("dim", table.dim), ("n_bins", table.n_bins), ("rank", table.rank.unwrap_or(1))];
        within("flow_lm.lookup_table", &sizes, MAX_SIZE)?;
        self.flow_lm.transformer.check()?;
        if table.dim != self.flow_lm.transformer.d_model {
            return Err(format!("flow_lm.lookup_table.dim is {}, not that of the transformer", table.dim));
        }
        let numbers = [
            ("default_temperature", self.default_temperature),
            ("default_eos_threshold", self.default_eos_threshold),
        ];
        if let Some((field, value)) = numbers.iter().find(|(_, value)| !value.is_finite()) {
            return Err(format!("{field} is {value}"));
        }
        within("", &[("frames after the end", self.model_recommended_frames_after_eos.unwrap_or(1))], 1000)?;
        self.mimi.check()
    }
}

impl LmTransformerConfig {
    fn attention_width(&self) -> usize {
        self.attn_dim.unwrap_or(self.d_model)
    }

    fn hidden(&self) -> usize {
        self.dim_feedforward.unwrap_or(self.d_model.saturating_mul(self.hidden_scale))
    }

    fn check(&self) -> Result<(), String> {
        let (of, kv_heads) = ("flow_lm.transformer", self.num_kv_heads.unwrap_or(self.num_heads));
        let sizes = [
            ("d_model", self.d_model),
            ("attn_dim", self.attention_width()),
            ("dim_feedforward", self.hidden()),
        ];
        within(of, &sizes, MAX_SIZE)?;
        let counts =
            [("num_layers", self.num_layers), ("num_heads", self.num_heads), ("num_kv_heads", kv_heads)];
        within(of, &counts, MAX_COUNT)?;
        let (width, heads) = (self.attention_width(), self.num_heads);
        if !width.is_multiple_of(2 * heads) || !heads.is_multiple_of(kv_heads) {
            return Err(format!("{of}: {heads} heads over {kv_heads} of a width of {width} do not divide"));
        }
        check_period(of, self.max_period)
    }

    /// Sizes of the decoder stack.
    pub(super) fn shape(&self) -> StackShape {
        StackShape {
            style: Style::Plain,
            width: self.d_model,
            hidden: self.hidden(),
            layers: vec![Mixing::Attention; self.num_layers],
            heads: self.num_heads,
            kv_heads: self.num_kv_heads.unwrap_or(self.num_heads),
            head_dim: self.attention_width() / self.num_heads.max(1),
            eps: 1e-5,
            theta: self.max_period,
            rotation: Rotation::Pairs,
        }
    }
}

fn check_period(of: &str, period: f64) -> Result<(), String> {
    if period.is_finite() && period > 1.0 { Ok(()) } else { Err(format!("{of}: max_period is {period}")) }
}

impl MimiConfig {
    /// The convolutions of the decoder.
    pub(super) fn decoder_seanet(&self) -> &SeanetConfig {
        self.decoder_seanet.as_ref().unwrap_or(&self.seanet)
    }

    /// The transformer of the decoder.
    pub(super) fn decoder_transformer(&self) -> &MimiTransformerConfig {
        self.decoder_transformer.as_ref().unwrap_or(&self.transformer)
    }

    /// Width of an encoded frame of a recording.
    pub(super) fn inner_dim(&self) -> usize {
        self.inner_dim.unwrap_or(self.seanet.dimension)
    }

    /// Samples of a frame.
    pub(super) fn samples_per_frame(&self) -> usize {
        (self.sample_rate as f64 / self.frame_rate) as usize
    }

    /// Transformer positions of a frame.
    pub(super) fn rows_per_frame(&self) -> usize {
        self.samples_per_frame() / self.seanet.hop().max(1)
    }

    fn check(&self) -> Result<(), String> {
        let sizes = [
            ("sample_rate", self.sample_rate),
            ("inner_dim", self.inner_dim()),
            ("quantizer.dimension", self.quantizer.dimension),
            ("quantizer.output_dimension", self.quantizer.output_dimension),
        ];
        within("mimi", &sizes, MAX_SIZE)?;
        for (of, seanet) in [("mimi.seanet", &self.seanet), ("mimi.decoder_seanet", self.decoder_seanet())] {
            seanet.check(of)?;
        }
        let (encoder, decoder) = (&self.transformer, self.decoder_transformer());
        encoder.check("mimi.transformer", self.seanet.dimension)?;
        decoder.check("mimi.decoder_transformer", self.decoder_seanet().dimension)?;
        if self.channels != 1 {
            return Err(format!("mimi: channels is {}; 1 is supported", self.channels));
        }
        let (hop, rate) = (self.seanet.hop(), self.frame_rate);
        let samples = self.sample_rate as f64 / rate;
        let whole = rate > 0.0 && samples.fract() == 0.0 && (1.0..=MAX_SIZE as f64).contains(&samples);
        if !whole || !(samples as usize).is_multiple_of(hop) || samples as usize <= hop {
            return Err(format!("mimi: {rate} frames a second are not whole multiples of {hop} samples"));
        }
        if self.decoder_seanet().hop() != hop {
            return Err(format!(
                "mimi: the decoder has {} samples a row, not {hop}",
                self.decoder_seanet().hop()
            ));
        }
        let outer = self.outer_dim.unwrap_or(self.decoder_seanet().dimension);
        let widths = [outer, self.quantizer.output_dimension];
        match widths.iter().find(|&&width| width != self.decoder_seanet().dimension) {
            Some(width) => {
                Err(format!("mimi: a width of {width} before a decoder of another is not supported"))
            }
            None => Ok(()),
        }
    }
}

impl SeanetConfig {
    /// Samples of a row.
    pub(super) fn hop(&self) -> usize {
        self.ratios.iter().product()
    }

    fn check(&self, of: &str) -> Result<(), String> {
        within(of, &[("dimension", self.dimension), ("n_filters", self.n_filters)], MAX_SIZE >> 8)?;
        let taps = [
            ("kernel_size", self.kernel_size),
            ("residual_kernel_size", self.residual_kernel_size),
            ("last_kernel_size", self.last_kernel_size),
            ("compress", self.compress),
        ];
        within(of, &taps, MAX_TAPS)?;
        // The dilation is the base to the power of the unit.
        within(
            of,
            &[("n_residual_layers", self.n_residual_layers), ("dilation_base", self.dilation_base)],
            6,
        )?;
        within(of, &[("ratios", self.ratios.len())], 6)?;
        self.ratios.iter().try_for_each(|&ratio| within(of, &[("ratios", ratio)], 16))?;
        if self.n_filters < self.compress {
            return Err(format!(
                "{of}: {} filters are not compressed {} times",
                self.n_filters, self.compress
            ));
        }
        if self.channels != 1 {
            return Err(format!("{of}: channels is {}; 1 is supported", self.channels));
        }
        if self.pad_mode != "constant" {
            return Err(format!("{of}: pad_mode {} is not supported", excerpt(&self.pad_mode)));
        }
        Ok(())
    }
}

impl MimiTransformerConfig {
    /// Width of the result.
    pub(super) fn output_dimension(&self) -> usize {
        self.output_dimensions.first().copied().unwrap_or(self.d_model)
    }

    /// `width` is that of the convolutions alongside it.
    fn check(&self, of: &str, width: usize) -> Result<(), String> {
        let sizes = [("d_model", self.d_model), ("dim_feedforward", self.dim_feedforward)];
        within(of, &sizes, MAX_SIZE)?;
        within(of, &[("context", self.context)], MAX_SIZE >> 4)?;
        within(of, &[("num_layers", self.num_layers), ("num_heads", self.num_heads)], MAX_COUNT)?;
        if !self.d_model.is_multiple_of(2 * self.num_heads) {
            return Err(format!("{of}: a width of {} is not {} heads", self.d_model, self.num_heads));
        }
        if self.input_dimension != width || self.output_dimensions != [width] {
            return Err(format!("{of}: input and output do not fit convolutions of {width}"));
        }
        check_period(of, self.max_period)
    }
}

#[cfg(test)]
mod tests {
    use super::super::SHAPES;
    use super::*;

    #[test]
    fn published_layouts_are_taken() {
        let facts = SHAPES.map(|(_, text)| {
            let config = Config::parse(text, false).unwrap();
            let StackShape { width, heads, kv_heads, head_dim, hidden, ref layers, .. } =
                config.flow_lm.transformer.shape();
            assert_eq!((config.mimi.samples_per_frame(), config.mimi.rows_per_frame()), (1920, 16));
            (width, heads, kv_heads, head_dim, hidden, layers.len(), config.flow_lm.flow.kind)
        });
        let expected = [
            (1024, 16, 16, 64, 4096, 6, FlowKind::Lsd),
            (512, 8, 8, 64, 512, 8, FlowKind::Drifting),
            (224, 8, 2, 64, 224, 8, FlowKind::Drifting),
            (112, 3, 1, 64, 96, 8, FlowKind::Pointwise),
        ];
        assert_eq!(facts, expected);
    }

    #[test]
    fn what_is_not_computed_is_refused_by_name() {
        let (_, text) = SHAPES[0];
        for (from, to, named) in [
            ("\"n_bins\"", "\"bins\"", "bins"),
            ("\"num_heads\": 16", "\"num_heads\": 0", "num_heads"),
            ("\"num_heads\": 16", "\"num_heads\": 24", "24 heads"),
            ("\"constant\"", "\"reflect\"", "reflect"),
            ("12.5", "13.0", "13 frames"),
            ("12.5", "0.0", "0 frames"),
            ("\"outer_dim\": 512", "\"outer_dim\": 256", "256"),
            ("\"dilation_base\": 2", "\"dilation_base\": 200", "dilation_base"),
            ("\"depth\": 6", "\"depth\": 6, \"type\": \"other\"", "other"),
            ("{", "{\"new_setting\": 1,", "new_setting"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Config::parse(&text.replacen(from, to, 1), false).unwrap_err();
            assert!(error.contains(named), "{from} as {to}: {error}");
        }
        assert!(Config::parse("a: [", true).is_err());
    }
}
