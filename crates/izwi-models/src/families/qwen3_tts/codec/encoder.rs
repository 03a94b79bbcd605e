//! Samples to codes: Mimi's encoder, with the first of its codebooks.

use candle_core::{Device, Result, Tensor};

use super::config::Config;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::quantiser::{CodebookNames, CodebookShape, ResidualQuantiser};
use izwi_nn::codec::seanet::{SeanetEncoder, SeanetShape};
use izwi_nn::codec::stream::{StreamShape, StreamState, Streams};
use izwi_nn::codec::transformer::{CausalTransformer, Naming, Style, TransformerShape};
use izwi_nn::layers::conv::{Conv1d, Padding};
use izwi_types::Precision;

/// Frames whose samples go through the convolutions at once.
const PIECE_FRAMES: usize = 8;

/// The encoder.
#[derive(Debug)]
pub(super) struct Encoder {
    shape: StreamShape,
    seanet: SeanetEncoder,
    transformer: CausalTransformer,
    downsample: Conv1d,
    stride: usize,
    samples_per_frame: usize,
    semantic: ResidualQuantiser,
    acoustic: ResidualQuantiser,
}

impl Encoder {
    /// Takes `{name}.*`.
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        config: &Config,
    ) -> std::result::Result<Self, Error> {
        let sizes = &config.encoder_config;
        let mut shape = StreamShape::default();
        let seanet_shape = SeanetShape {
            filters: sizes.num_filters,
            strides: sizes.upsampling_ratios.iter().rev().copied().collect(),
            kernel: sizes.kernel_size,
            last_kernel: sizes.last_kernel_size,
            residual_kernel: sizes.residual_kernel_size,
            residual_units: sizes.num_residual_layers,
            dilation_growth: sizes.dilation_growth_rate,
            compress: sizes.compress,
            width: sizes.hidden_size,
            names: ["conv", "conv"],
            precision: Precision::F32,
        };
        let seanet = SeanetEncoder::load(from, &format!("{name}.encoder.layers"), &seanet_shape, &mut shape)?;
        let transformer_shape = TransformerShape {
            style: Style::Plain,
            naming: Naming::Split,
            layers: sizes.num_hidden_layers,
            width: sizes.hidden_size,
            heads: sizes.num_attention_heads,
            head_dim: sizes.head_dim,
            feed_forward: sizes.intermediate_size,
            eps: sizes.norm_eps,
            rope_theta: sizes.rope_theta,
            precision: Precision::F32,
        };
        // The configuration's sliding window has no effect in the reference.
        let layers = format!("{name}.encoder_transformer.layers");
        let transformer = CausalTransformer::load(from, &layers, &transformer_shape, None)?;
        let stride = config.encode_downsample_rate / sizes.upsampling_ratios.iter().product::<usize>();
        let downsample = [sizes.hidden_size, sizes.hidden_size, 2 * stride];
        let downsample = from.take(&format!("{name}.downsample.conv.weight"), &downsample)?;
        let mut codebooks = |group: &str, count: usize, kept: usize| {
            let prefix = format!("{name}.quantizer.{group}_residual_vector_quantizer");
            let names = CodebookNames { sum: "embed_sum", usage: "cluster_usage", flag: Some("initialized") };
            let shape = CodebookShape {
                codebooks: count,
                entries: sizes.codebook_size,
                width: sizes.codebook_dim,
                outer: sizes.hidden_size,
            };
            let codebook = |k: usize| format!("{prefix}.layers.{k}.codebook");
            let mut codebooks = ResidualQuantiser::load(from, &prefix, shape, names, codebook)?;
            codebooks.truncate(kept);
            Ok::<_, Error>(codebooks)
        };
        let semantic = sizes.num_semantic_quantizers;
        Ok(Self {
            seanet,
            transformer,
            downsample: Conv1d::new(&downsample, None, 1)?,
            stride,
            samples_per_frame: config.encode_downsample_rate,
            semantic: codebooks("semantic", semantic, semantic)?,
            acoustic: codebooks(
                "acoustic",
                sizes.num_quantizers - semantic,
                config.encoder_valid_num_quantizers - semantic,
            )?,
            shape,
        })
    }

    /// Samples, at least one, to frames of codes.
    pub(super) fn forward(
        &self,
        samples: &[f32],
        device: &Device,
        mut tap: impl FnMut(String, &Tensor),
    ) -> Result<Vec<Vec<u32>>> {
        let mut state = StreamState::default();
        let mut pieces = Vec::new();
        for piece in samples.chunks(PIECE_FRAMES * self.samples_per_frame) {
            let mut streams = Streams::new(&self.shape, vec![&mut state], vec![piece.len()], device)?;
            let x = Tensor::from_slice(piece, (piece.len(), 1), device)?;
            pieces.push(self.seanet.forward(&x, &mut streams)?);
        }
        let x = Tensor::cat(&pieces, 0)?; // [rows, hidden]
        tap("enc.seanet".to_owned(), &x);
        let x = self.transformer.forward_whole(&x, |layer, x| tap(format!("enc.layer{layer}"), x))?;
        let x = self.downsample(&x)?; // [frames, hidden]
        tap("enc.downsample".to_owned(), &x);
        let (mut codes, acoustic) = (self.semantic.encode(&x)?, self.acoustic.encode(&x)?);
        codes.iter_mut().zip(acoustic).for_each(|(codes, rest)| codes.extend(rest));
        codes.truncate(samples.len().div_ceil(self.samples_per_frame));
        Ok(codes)
    }

    /// Every `stride` rows to one that also sees as many before; the outermost rows repeat beyond the ends.
    fn downsample(&self, x: &Tensor) -> Result<Tensor> {
        let frames = x.dim(0)?.div_ceil(self.stride);
        let pads = [self.stride, frames * self.stride - x.dim(0)?];
        self.downsample.forward_padded(x, (Padding::Repeat, pads), self.stride, None)
    }
}
