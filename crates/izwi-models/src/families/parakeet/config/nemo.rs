//! The layout of NeMo 3.0.0: `model_config.yaml`. Archives lack many of its fields, so sizes are those of the tensors.

use std::path::Path;

use serde::Deserialize;

use super::super::super::settings;
use super::{Config, HOP, HeadShape, MAX_SYMBOLS, SAMPLE_RATE_HZ, TRANSFORM, WINDOW, chunked, same};
use crate::conformer::{Context, FRAMES_PER_ROW, Shape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;

/// `model_config.yaml`.
#[derive(Debug, Deserialize)]
struct File {
    preprocessor: Preprocessor,
    encoder: Encoder,
    #[serde(default)]
    model_defaults: Defaults,
    #[serde(default)]
    decoding: Decoding,
}

#[derive(Debug, Deserialize)]
struct Preprocessor {
    sample_rate: usize,
    normalize: Option<String>,
    features: usize,
    n_fft: usize,
    window_size: f64,
    window_stride: f64,
    #[serde(default = "hann")]
    window: String,
}

fn hann() -> String {
    "hann".to_owned()
}

#[derive(Debug, Deserialize)]
struct Encoder {
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

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Defaults {
    tdt_durations: Vec<usize>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Decoding {
    durations: Vec<usize>,
    greedy: Greedy,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Greedy {
    max_symbols: Option<usize>,
}

/// Reads `model_config.yaml` of a checkpoint with the tensors `tensors`.
pub(super) fn load(path: &Path, tensors: &Checkpoint) -> Result<Config, Error> {
    settings::read(path, |text| new(&settings::parse(text, true)?, tensors)?.checked())
}

fn new(file: &File, tensors: &Checkpoint) -> Result<Config, String> {
    let is_normalised = preprocess(&file.preprocessor)?;
    let dim = |name: &str, dim: usize| {
        let size = tensors.shape_of(name).and_then(|dims| dims.get(dim).copied());
        size.ok_or_else(|| format!("the checkpoint has no {name}, which the settings need"))
    };
    let encoder = &file.encoder;
    same("encoder.subsampling", &encoder.subsampling, "dw_striding")?;
    same("encoder.subsampling_factor", encoder.subsampling_factor, FRAMES_PER_ROW)?;
    same("encoder.untie_biases", encoder.untie_biases, true)?;
    let layer = |part: &str| format!("encoder.layers.0.{part}");
    let taps = dim(&layer("conv.depthwise_conv.weight"), 2)?;
    let (context, chunks) = context(encoder, taps)?;
    let shape = Shape {
        bins: file.preprocessor.features,
        layers: encoder.n_layers,
        width: dim("encoder.pre_encode.out.weight", 0)?,
        channels: dim("encoder.pre_encode.conv.0.weight", 0)?,
        inner: dim(&layer("feed_forward1.linear1.weight"), 0)?,
        heads: dim(&layer("self_attn.pos_bias_u"), 0)?,
        taps,
        has_biases: tensors.has(&layer("feed_forward1.linear1.bias")),
        scales_input: encoder.xscaling,
        context,
    };
    let ctc = "decoder.decoder_layers.0.weight";
    if tensors.has(ctc) {
        let tokens = dim(ctc, 0)?.saturating_sub(1);
        return Ok(Config { encoder: shape, is_normalised, chunks, head: HeadShape::Ctc, tokens });
    }
    let embedding = "decoder.prediction.embed.weight";
    let classes = dim(embedding, 0)?;
    let Decoding { durations, greedy } = &file.decoding;
    let durations =
        [durations, &file.model_defaults.tdt_durations].into_iter().find(|found| !found.is_empty());
    let durations = durations.cloned().unwrap_or_default();
    let outputs = dim("joint.joint_net.2.weight", 0)?;
    same("a joint network's number of durations", outputs.saturating_sub(classes), durations.len())?;
    let cells =
        (0..).take_while(|layer| tensors.has(&format!("decoder.prediction.dec_rnn.lstm.weight_ih_l{layer}")));
    let head = HeadShape::Transducer {
        width: dim(embedding, 1)?,
        joint: dim("joint.enc.weight", 0)?,
        layers: cells.count(),
        durations,
        max_symbols: greedy.max_symbols.unwrap_or(MAX_SYMBOLS),
    };
    Ok(Config { encoder: shape, is_normalised, chunks, head, tokens: classes.saturating_sub(1) })
}

/// Whether recordings are normalised.
fn preprocess(settings: &Preprocessor) -> Result<bool, String> {
    let samples = |seconds: f64| (seconds * SAMPLE_RATE_HZ as f64).round();
    same("preprocessor.sample_rate", settings.sample_rate, SAMPLE_RATE_HZ)?;
    same("preprocessor.n_fft", settings.n_fft, TRANSFORM)?;
    same("samples of preprocessor.window_size", samples(settings.window_size), WINDOW)?;
    same("samples of preprocessor.window_stride", samples(settings.window_stride), HOP)?;
    same("preprocessor.window", &settings.window, "hann")?;
    match settings.normalize.as_deref() {
        Some("per_feature") => Ok(true),
        None | Some("NA" | "None") => Ok(false),
        Some(other) => same("preprocessor.normalize", other, "per_feature or NA").map(|()| false),
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
