//! Mimi's decoder without codebooks: a projection of latents, upsampling, a windowed transformer, convolutions.
//!
//! <https://github.com/kyutai-labs/moshi/blob/main/moshi/moshi/models/compression.py>. Knows no scale of latents.

use candle_core::{Result, Tensor};

use super::super::config::{MimiConfig, MimiTransformerConfig, SeanetConfig};
use izwi_nn::Error;
use izwi_nn::attention::window::Window;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::conv::CausalDepthwiseTransposedConv;
use izwi_nn::codec::seanet::{SeanetDecoder, SeanetShape};
use izwi_nn::codec::stream::{StreamShape, Streams};
use izwi_nn::codec::transformer::{CausalTransformer, Naming, Style, TransformerShape};
use izwi_nn::layers::{Linear, cat_weights};
use izwi_types::Precision;

type Loaded<T> = std::result::Result<T, Error>;

/// Frames that one row after the upsampling depends on.
const UPSAMPLE_FRAMES: usize = 2;

/// The decoder.
#[derive(Debug)]
pub(super) struct Decoder {
    shape: StreamShape,
    project: Linear,
    upsample: CausalDepthwiseTransposedConv,
    transformer: ProjectedTransformer,
    seanet: SeanetDecoder,
}

/// A windowed transformer with projections where its width is another than that of what is alongside it.
#[derive(Debug)]
pub(super) struct ProjectedTransformer {
    input: Option<Linear>,
    transformer: CausalTransformer,
    output: Option<Linear>,
}

impl ProjectedTransformer {
    /// Takes `{name}.*`.
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        config: &MimiTransformerConfig,
        precision: Precision,
        streams: &mut StreamShape,
    ) -> Loaded<Self> {
        let (width, outer) = (config.d_model, config.input_dimension);
        let project =
            |from: &mut Checkpoint, part: &str, (inputs, outputs): (usize, usize)| match inputs == outputs {
                true => Ok(None),
                false => {
                    let sizes = (inputs, outputs);
                    Linear::load_with_precision(from, &format!("{name}.{part}"), sizes, false, precision)
                        .map(Some)
                }
            };
        let shape = TransformerShape {
            style: Style::PlainTanh,
            naming: Naming::Fused,
            layers: config.num_layers,
            width,
            heads: config.num_heads,
            head_dim: width / config.num_heads,
            feed_forward: config.dim_feedforward,
            eps: 1e-5,
            rope_theta: config.max_period,
            precision,
        };
        let window = Some((Window::new(config.context), streams));
        Ok(Self {
            input: project(from, "input_proj", (outer, width))?,
            transformer: CausalTransformer::load(
                from,
                &format!("{name}.transformer.layers"),
                &shape,
                window,
            )?,
            output: project(from, "output_projs.0", (width, config.output_dimension()))?,
        })
    }

    /// New rows of every stream to the same.
    pub(super) fn forward(&self, x: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let projected = self.input.as_ref().map(|project| project.forward(x)).transpose()?;
        let y = self.transformer.forward(projected.as_ref().unwrap_or(x), streams, "layer")?;
        self.output.as_ref().map_or(Ok(y.clone()), |project| project.forward(&y))
    }
}

/// Sizes of the convolutions on one side, with the strides in the order of that side.
pub(super) fn seanet_shape(config: &SeanetConfig, strides: Vec<usize>, precision: Precision) -> SeanetShape {
    SeanetShape {
        filters: config.n_filters,
        strides,
        kernel: config.kernel_size,
        last_kernel: config.last_kernel_size,
        residual_kernel: config.residual_kernel_size,
        residual_units: config.n_residual_layers,
        dilation_growth: config.dilation_base,
        compress: config.compress,
        width: config.dimension,
        names: ["conv", "convtr"],
        precision,
    }
}

impl Decoder {
    /// Takes the decoder under `mimi`.
    pub(super) fn load(from: &mut Checkpoint, config: &MimiConfig, precision: Precision) -> Loaded<Self> {
        let mut shape = StreamShape::default();
        let (latent, width) = (config.quantizer.dimension, config.quantizer.output_dimension);
        let name = "mimi.quantizer.output_proj.weight".to_owned();
        let parts = [(name, vec![width, latent, 1])];
        let project =
            Linear::load_transformed(from, (&parts, "point, "), (latent, width), precision, |weights| {
                Ok(cat_weights(weights)?.squeeze(2)?)
            })?;
        let rows = config.rows_per_frame();
        let rise = (width, UPSAMPLE_FRAMES * rows, rows);
        let upsample =
            CausalDepthwiseTransposedConv::load(from, "mimi.upsample.convtr.convtr", rise, &mut shape)?;
        let name = "mimi.decoder_transformer";
        let transformer = config.decoder_transformer();
        let transformer = ProjectedTransformer::load(from, name, transformer, precision, &mut shape)?;
        let seanet = config.decoder_seanet();
        let sizes = seanet_shape(seanet, seanet.ratios.clone(), precision);
        let seanet = SeanetDecoder::load(from, "mimi.decoder.model", &sizes, &mut shape)?;
        Ok(Self { shape, project, upsample, transformer, seanet })
    }

    /// Shape of a stream's state.
    pub(super) fn shape(&self) -> &StreamShape {
        &self.shape
    }

    /// New latents `[frames, latent]` of every stream, one after another, to samples `[samples, 1]` in the same order.
    pub(super) fn forward(&self, latents: &Tensor, streams: &mut Streams<'_>) -> Result<Tensor> {
        let x = self.project.forward(latents)?;
        streams.tap(|| "quantizer".to_owned(), &x);
        let x = self.upsample.forward(&x, streams)?;
        streams.tap(|| "upsample".to_owned(), &x);
        let x = self.transformer.forward(&x, streams)?;
        streams.tap(|| "dec.transformer".to_owned(), &x);
        self.seanet.forward(&x, streams)
    }
}
