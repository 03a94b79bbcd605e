//! What checkpoints of NeMo 3.0.0 have in common: the front end and the conformer of their `model_config.yaml`. Archives lack
//! many of its fields, so sizes are those of the tensors. Knows no family.

use serde::Deserialize;

use super::settings::within;
use crate::conformer::{Context, FRAMES_PER_ROW, MelShape, Shape};
use izwi_nn::checkpoint::Checkpoint;

/// Samples per second of recordings.
pub(super) const SAMPLE_RATE_HZ: usize = 16_000;
/// Samples from one mel frame to the next.
pub(super) const HOP: usize = 160;
/// Seconds of a row of the encoder.
pub(super) const ROW_S: f64 = (FRAMES_PER_ROW * HOP) as f64 / SAMPLE_RATE_HZ as f64;
/// Samples of a transform, and of the window within it.
const TRANSFORM: usize = 512;
const WINDOW: usize = 400;
/// The largest width or vocabulary.
pub(super) const MAX_SIZE: usize = 1 << 20;
/// The most layers, heads, bins or the like.
pub(super) const MAX_COUNT: usize = 1 << 10;

/// How recordings become frames.
pub(super) fn mel(bins: usize, is_normalised: bool) -> MelShape {
    MelShape {
        rate_hz: SAMPLE_RATE_HZ,
        bins,
        transform: TRANSFORM,
        window: WINDOW,
        hop: HOP,
        is_normalised,
        has_silent_frame: false,
        min_samples: HOP,
    }
}

/// Refuses an encoder that cannot be computed.
pub(super) fn check(encoder: &Shape, chunks: &[usize]) -> Result<(), String> {
    let Shape { bins, layers, width, channels, inner, heads, taps, context, .. } = *encoder;
    let counts =
        [("bins", bins), ("layers", layers), ("channels", channels), ("heads", heads), ("taps", taps)];
    within("encoder", &counts, MAX_COUNT)?;
    within("encoder", &[("width", width), ("inner width", inner)], MAX_SIZE)?;
    if !width.is_multiple_of(2 * heads) {
        return Err(format!("encoder: width {width} is not {heads} heads of an even width"));
    }
    if taps.is_multiple_of(2) {
        return Err(format!("encoder: a convolution of {taps} taps has no middle"));
    }
    let Context::Chunked { before, .. } = context else { return Ok(()) };
    within("encoder", &[("chunk sizes", chunks.len())], MAX_COUNT)?;
    for &chunk in chunks {
        within("encoder", &[("rows of a chunk", chunk)], MAX_COUNT)?;
        if before > MAX_COUNT || !before.is_multiple_of(chunk) {
            return Err(format!("encoder: {before} rows of context are not whole chunks of {chunk}"));
        }
    }
    Ok(())
}

/// The context of an encoder whose rows see `before` rows before their chunk, for `chunks` that can be chosen.
pub(super) fn chunked(before: usize, chunks: &[usize]) -> Context {
    Context::Chunked { before, longest: chunks.iter().copied().max().unwrap_or(1) }
}

/// Refuses a value that is not `only`.
pub(super) fn same(
    what: &str,
    value: impl std::fmt::Display,
    only: impl std::fmt::Display,
) -> Result<(), String> {
    match (value.to_string(), only.to_string()) {
        (value, only) if value == only => Ok(()),
        (value, only) => Err(format!("{what} {} is not supported, only {only}", izwi_types::excerpt(&value))),
    }
}

/// A size of a tensor.
pub(super) fn dim(tensors: &Checkpoint, name: &str, dim: usize) -> Result<usize, String> {
    let size = tensors.shape_of(name).and_then(|dims| dims.get(dim).copied());
    size.ok_or_else(|| format!("the checkpoint has no {name}, which the settings need"))
}

/// `preprocessor`.
#[derive(Debug, Deserialize)]
pub(super) struct Preprocessor {
    sample_rate: usize,
    normalize: Option<String>,
    pub(super) features: usize,
    n_fft: usize,
    window_size: f64,
    window_stride: f64,
    #[serde(default = "hann")]
    window: String,
}

fn hann() -> String {
    "hann".to_owned()
}

/// `encoder`.
#[derive(Debug, Deserialize)]
pub(super) struct Encoder {
    n_layers: usize,
    subsampling: String,
    subsampling_factor: usize,
    #[serde(default)]
    causal_downsampling: bool,
    #[serde(default = "rel_pos")]
    self_attention_model: String,
    att_context_size: Option<OneOrMore>,
    att_context_style: Option<String>,
    #[serde(default = "yes")]
    xscaling: bool,
    #[serde(default = "yes")]
    untie_biases: bool,
    conv_norm_type: Option<String>,
    conv_context_size: Option<ConvContext>,
}

fn rel_pos() -> String {
    "rel_pos".to_owned()
}

fn yes() -> bool {
    true
}

/// Rows before and after one, or several such that can be chosen.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(Vec<i64>),
    More(Vec<Vec<i64>>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ConvContext {
    Rows([usize; 2]),
    Name(String),
}

impl Preprocessor {
    /// Whether recordings are normalised.
    pub(super) fn is_normalised(&self) -> Result<bool, String> {
        let samples = |seconds: f64| (seconds * SAMPLE_RATE_HZ as f64).round();
        same("preprocessor.sample_rate", self.sample_rate, SAMPLE_RATE_HZ)?;
        same("preprocessor.n_fft", self.n_fft, TRANSFORM)?;
        same("samples of preprocessor.window_size", samples(self.window_size), WINDOW)?;
        same("samples of preprocessor.window_stride", samples(self.window_stride), HOP)?;
        same("preprocessor.window", &self.window, "hann")?;
        match self.normalize.as_deref() {
            Some("per_feature") => Ok(true),
            None | Some("NA" | "None") => Ok(false),
            Some(other) => same("preprocessor.normalize", other, "per_feature or NA").map(|()| false),
        }
    }
}

impl Encoder {
    /// The encoder of the tensors `encoder.*`, for mel frames of `bins` bins, and the chunks that can be chosen.
    pub(super) fn shape(&self, bins: usize, tensors: &Checkpoint) -> Result<(Shape, Vec<usize>), String> {
        same("encoder.subsampling", &self.subsampling, "dw_striding")?;
        same("encoder.subsampling_factor", self.subsampling_factor, FRAMES_PER_ROW)?;
        same("encoder.untie_biases", self.untie_biases, true)?;
        let layer = |part: &str| format!("encoder.layers.0.{part}");
        let taps = dim(tensors, &layer("conv.depthwise_conv.weight"), 2)?;
        let (context, chunks) = context(self, taps)?;
        let shape = Shape {
            bins,
            layers: self.n_layers,
            width: dim(tensors, "encoder.pre_encode.out.weight", 0)?,
            channels: dim(tensors, "encoder.pre_encode.conv.0.weight", 0)?,
            inner: dim(tensors, &layer("feed_forward1.linear1.weight"), 0)?,
            heads: dim(tensors, &layer("self_attn.pos_bias_u"), 0)?,
            taps,
            has_biases: tensors.has(&layer("feed_forward1.linear1.bias")),
            scales_input: self.xscaling,
            context,
        };
        Ok((shape, chunks))
    }
}

/// What a row sees, and the chunks that can be chosen.
fn context(encoder: &Encoder, taps: usize) -> Result<(Context, Vec<usize>), String> {
    let sizes = match &encoder.att_context_size {
        None => vec![vec![-1, -1]],
        Some(OneOrMore::One(size)) => vec![size.clone()],
        Some(OneOrMore::More(sizes)) => sizes.clone(),
    };
    let sizes: Option<Vec<[i64; 2]>> = sizes.iter().map(|size| size.as_slice().try_into().ok()).collect();
    let sizes = sizes.filter(|sizes| !sizes.is_empty());
    let sizes = sizes.ok_or("encoder.att_context_size is not the rows before and after one")?;
    let style = encoder.att_context_style.as_deref().unwrap_or("regular");
    let is_chunked = style == "chunked_limited";
    let conv_norm = encoder.conv_norm_type.as_deref().unwrap_or("batch_norm");
    let is_causal = match &encoder.conv_context_size {
        None => false,
        Some(ConvContext::Name(name)) => same("encoder.conv_context_size", name, "causal").map(|()| true)?,
        Some(ConvContext::Rows(rows)) if *rows == [taps / 2; 2] => false,
        Some(ConvContext::Rows([before, after])) => {
            same(
                "encoder.conv_context_size",
                format!("[{before}, {after}]"),
                format!("[{}, 0]", taps.saturating_sub(1)),
            )?;
            true
        }
    };
    if !["regular", "chunked_limited"].contains(&style) {
        same("encoder.att_context_style", style, "regular and chunked_limited")?;
    }
    // Chunks need convolutions that see nothing after their row.
    same("encoder.conv_context_size: causal", is_causal, is_chunked)?;
    same("encoder.causal_downsampling", encoder.causal_downsampling, is_chunked)?;
    same("encoder.conv_norm_type", conv_norm, if is_chunked { "layer_norm" } else { "batch_norm" })?;
    let rows = |rows: i64| usize::try_from(rows).unwrap_or(usize::MAX);
    if is_chunked {
        same("encoder.self_attention_model", &encoder.self_attention_model, "rel_pos")?;
        let before = rows(sizes[0][0]);
        let chunks: Vec<usize> = sizes.iter().map(|&[_, after]| rows(after).saturating_add(1)).collect();
        if sizes.iter().any(|&[other, _]| rows(other) != before) {
            return Err("encoder.att_context_size has several sizes of what is before a chunk".to_owned());
        }
        return Ok((chunked(before, &chunks), chunks));
    }
    if encoder.self_attention_model != "rel_pos_local_attn" {
        same("encoder.self_attention_model", &encoder.self_attention_model, "rel_pos")?;
    }
    let reach = sizes[0].map(rows);
    Ok((if reach == [usize::MAX; 2] { Context::Whole } else { Context::Near(reach) }, Vec::new()))
}
