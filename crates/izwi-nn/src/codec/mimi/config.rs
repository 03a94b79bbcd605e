//! Sizes of the codec, which its file does not state, and the names of tensors that decoding does not need.

use crate::checkpoint::Checkpoint;

/// The sizes. Numbers: <https://github.com/kyutai-labs/moshi/blob/main/moshi/moshi/models/loaders.py>.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Rate of the samples, in Hz.
    pub sample_rate: usize,
    /// Channels between the codebooks and the convolutions.
    pub width: usize,
    /// Channels of a codebook entry.
    pub codebook_width: usize,
    /// Entries of a codebook.
    pub entries: usize,
    /// Transformer positions of one frame.
    pub rows_per_frame: usize,
    /// Layers of the transformer.
    pub layers: usize,
    /// Its heads.
    pub heads: usize,
    /// Channels inside its feed-forward layers.
    pub feed_forward: usize,
    /// Positions in the attention window.
    pub context: usize,
    /// Positions that enter the window together: those of a frame.
    pub step: usize,
    /// Channels at the sample rate.
    pub filters: usize,
    /// Upsampling ratio of each stage.
    pub ratios: Vec<usize>,
}

impl Config {
    /// The published sizes.
    pub fn published() -> Self {
        Self {
            sample_rate: 24_000,
            width: 512,
            codebook_width: 256,
            entries: 2048,
            rows_per_frame: 2,
            layers: 8,
            heads: 8,
            feed_forward: 2048,
            context: 250,
            step: 2,
            filters: 64,
            ratios: vec![8, 6, 5, 4],
        }
    }

    /// The published sizes, with the widths and counts of the tensors that are there.
    pub fn of(from: &Checkpoint) -> Self {
        let published = Self::published();
        let size = |name: &str, axis: usize, otherwise: usize| {
            from.shape_of(name).and_then(|shape| shape.get(axis)).copied().unwrap_or(otherwise)
        };
        let layer = |index: usize| format!("{TRANSFORMER}.{index}");
        let layers = (0..).take_while(|&i| from.shape_of(&format!("{}.norm1.weight", layer(i))).is_some());
        let layers = match layers.count() {
            0 => published.layers,
            found => found,
        };
        let last = format!("decoder.model.{}.conv.conv.weight", 3 * published.ratios.len() + 2);
        let codebook = "quantizer.rvq_first.vq.layers.0._codebook.embedding_sum";
        Self {
            width: size(&format!("{UPSAMPLE}.weight"), 0, published.width),
            codebook_width: size(codebook, 1, published.codebook_width),
            entries: size(codebook, 0, published.entries),
            layers,
            feed_forward: size(&format!("{}.linear1.weight", layer(0)), 0, published.feed_forward),
            filters: size(&last, 1, published.filters),
            ..published
        }
    }

    /// Refuses sizes that cannot be computed.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self { width, heads, context, step, .. } = self;
        if *heads == 0 || !width.is_multiple_of(2 * heads) {
            return Err(format!("a width of {width} is not {heads} heads of an even width"));
        }
        if *step == 0 || context < step {
            return Err(format!("a window of {context} positions is shorter than the {step} of a frame"));
        }
        Ok(())
    }

    /// Samples of a frame.
    pub(super) fn samples_per_frame(&self) -> usize {
        self.rows_per_frame * self.ratios.iter().product::<usize>()
    }
}

/// Prefix of the transformer layers.
pub(super) const TRANSFORMER: &str = "decoder_transformer.transformer.layers";
/// Prefix of the upsampling convolution.
pub(super) const UPSAMPLE: &str = "upsample.convtr.convtr.convtr";
/// Tensors of one codebook.
const CODEBOOK: [&str; 3] = ["embedding_sum", "cluster_usage", "_initialized"];

/// Name of a codebook of a group.
pub(super) fn codebook(group: &str, index: usize) -> String {
    format!("quantizer.{group}.vq.layers.{index}._codebook")
}

/// Whether a tensor belongs to the encoder, or to an acoustic codebook from the `kept`-th on.
pub(super) fn not_needed(name: &str, kept: usize) -> bool {
    const LAYER: [&str; 12] = [
        "layer_scale_1.scale",
        "layer_scale_2.scale",
        "linear1.weight",
        "linear2.weight",
        "norm1.bias",
        "norm1.weight",
        "norm2.bias",
        "norm2.weight",
        "self_attn.in_proj_weight",
        "self_attn.in_projs.0.weight",
        "self_attn.out_proj.weight",
        "self_attn.out_projs.0.weight",
    ];
    const CONVOLUTION: [&str; 6] = [
        "conv.conv.bias",
        "conv.conv.weight",
        "block.1.conv.conv.bias",
        "block.1.conv.conv.weight",
        "block.3.conv.conv.bias",
        "block.3.conv.conv.weight",
    ];
    let numbered = |prefix: &str| {
        let (number, rest) = name.strip_prefix(prefix)?.split_once('.')?;
        Some((number.parse::<usize>().ok()?, rest))
    };
    numbered("encoder.model.").is_some_and(|(_, rest)| CONVOLUTION.contains(&rest))
        || numbered("encoder_transformer.transformer.layers.").is_some_and(|(_, rest)| LAYER.contains(&rest))
        || name == "downsample.conv.conv.conv.weight"
        || numbered("quantizer.rvq_rest.vq.layers.").is_some_and(|(index, rest)| {
            index >= kept && rest.strip_prefix("_codebook.").is_some_and(|part| CODEBOOK.contains(&part))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_encoder_and_unused_codebooks_are_skipped() {
        for name in [
            "encoder.model.0.conv.conv.bias",
            "encoder.model.10.block.3.conv.conv.weight",
            "encoder_transformer.transformer.layers.7.self_attn.in_proj_weight",
            "downsample.conv.conv.conv.weight",
            "quantizer.rvq_rest.vq.layers.7._codebook.embedding_sum",
        ] {
            assert!(not_needed(name, 7), "{name}");
        }
        for name in [
            "encoder.model.0.conv.conv.scale",
            "encoder.other.0.conv.conv.bias",
            "encoder_transformer.transformer.layers.7.self_attn.rope",
            "quantizer.rvq_rest.vq.layers.6._codebook.embedding_sum",
            "quantizer.rvq_rest.vq.layers.8._codebook.other",
            "quantizer.rvq_first.vq.layers.8._codebook.embedding_sum",
            "decoder.model.0.conv.conv.bias",
        ] {
            assert!(!not_needed(name, 7), "{name}");
        }
    }

    #[test]
    fn a_frame_is_80_ms_and_invalid_sizes_are_named() {
        let published = Config::published();
        assert_eq!(published.samples_per_frame(), 1920);
        published.check().unwrap();
        assert!(Config { heads: 3, ..published.clone() }.check().unwrap_err().contains("3 heads"));
        assert!(Config { context: 1, ..published }.check().unwrap_err().contains("window of 1"));
    }
}
