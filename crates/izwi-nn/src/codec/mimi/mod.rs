//! The decoder of the Mimi codec: frames of codes to samples, in streams of constant memory.
//!
//! Knows no model family and opens no file. Beyond the window of its transformer a stream equals the official streaming
//! decoder, not the offline one: the positions of a frame evict the oldest before any of them attends.
//! <https://github.com/kyutai-labs/moshi/blob/main/moshi/moshi/models/compression.py>.

mod config;

use candle_core::{Device, Result, Tensor};

use self::config::{TRANSFORMER, UPSAMPLE, codebook, not_needed};
use crate::Error;
use crate::attention::window::Window;
use crate::checkpoint::Checkpoint;
use crate::codec::conv::CausalDepthwiseTransposedConv;
use crate::codec::quantiser::{CodebookNames, CodebookShape, ResidualQuantiser};
use crate::codec::seanet::{SeanetDecoder, SeanetShape};
use crate::codec::stream::{Pieces, StreamShape, StreamState, Streams};
use crate::codec::transformer::{CausalTransformer, Naming, Style, TransformerShape};
use izwi_types::Precision;

pub use self::config::Config;

/// Frames of one sequence in one pass: their activations at the full rate fit the caches.
const PIECE_FRAMES: usize = 4;
/// Semantic codebooks, distilled from a speech encoder; the others are acoustic.
const SEMANTIC: usize = 1;
/// Frames that one input row of the transformer depends on.
const UPSAMPLE_FRAMES: usize = 2;

type Loaded<T> = std::result::Result<T, Error>;

/// The decoder.
#[derive(Debug)]
pub struct Mimi {
    config: Config,
    device: Device,
    shape: StreamShape,
    semantic: ResidualQuantiser,
    acoustic: ResidualQuantiser,
    upsample: CausalDepthwiseTransposedConv,
    transformer: CausalTransformer,
    seanet: SeanetDecoder,
    weight_bytes: usize,
}

/// State of one stream of frames; a fresh one holds nothing, any other the same number of bytes.
#[derive(Debug, Clone, Default)]
pub struct DecoderState(StreamState);

impl DecoderState {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Mimi {
    /// Takes the decoder with its first `codebooks` codebooks and drops the encoder; the caller finishes the checkpoint.
    /// Layers that mix channels are kept and multiplied in `precision`, `F32` or `Bf16`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the sizes cannot be computed.
    pub fn from_checkpoint(
        from: &mut Checkpoint,
        codebooks: usize,
        config: &Config,
        precision: Precision,
    ) -> Loaded<Self> {
        config.check().map_err(Error::Checkpoint)?;
        let acoustic = codebooks.saturating_sub(SEMANTIC);
        from.skip(|name| not_needed(name, acoustic));
        let before = from.taken();
        let mut shape = StreamShape::default();
        let s = &mut shape;
        let load = |from: &mut Checkpoint, group: &str, codebooks: usize| {
            let names =
                CodebookNames { sum: "embedding_sum", usage: "cluster_usage", flag: Some("_initialized") };
            let sizes = CodebookShape {
                codebooks,
                entries: config.entries,
                width: config.codebook_width,
                outer: config.width,
            };
            ResidualQuantiser::load(from, &format!("quantizer.{group}"), sizes, names, |k| codebook(group, k))
        };
        let (semantic, acoustic) = (load(from, "rvq_first", SEMANTIC)?, load(from, "rvq_rest", acoustic)?);
        let rise = (config.width, UPSAMPLE_FRAMES * config.rows_per_frame, config.rows_per_frame);
        let upsample = CausalDepthwiseTransposedConv::load(from, UPSAMPLE, rise, s)?;
        let window = Window { positions: config.context, step: config.step };
        let layers = transformer_shape(config, precision);
        let transformer = CausalTransformer::load(from, TRANSFORMER, &layers, Some((window, &mut *s)))?;
        let seanet = SeanetDecoder::load(from, "decoder.model", &seanet_shape(config, precision), s)?;
        // Norms, biases and codebooks stay f32; they are a small part.
        let bytes = if precision == Precision::Bf16 { 2 } else { size_of::<f32>() };
        Ok(Self {
            device: from.device().clone(),
            semantic,
            acoustic,
            upsample,
            transformer,
            seanet,
            shape,
            config: config.clone(),
            weight_bytes: (from.taken() - before) * bytes,
        })
    }

    /// Samples of one frame.
    pub fn samples_per_frame(&self) -> usize {
        self.config.samples_per_frame()
    }

    /// Rate of the samples, in Hz.
    pub fn sample_rate(&self) -> usize {
        self.config.sample_rate
    }

    /// Entries of a codebook: every code is below.
    pub fn codebook_size(&self) -> usize {
        self.config.entries
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of a state once it has seen a frame.
    pub fn state_bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// The state of a new stream.
    pub fn start(&self) -> DecoderState {
        DecoderState::default()
    }

    /// New frames of several streams to their samples, [`Self::samples_per_frame`] for each frame. All streams go
    /// through each layer together; on the CPU what a stream gets is the same to the bit alone, among others and
    /// however its frames are cut.
    ///
    /// # Errors
    /// A frame has another number of codes or a code that is too large. The states are then undefined and must be
    /// dropped.
    pub fn decode(&self, batch: &mut [(&mut DecoderState, &[Vec<u32>])]) -> Loaded<Vec<Vec<f32>>> {
        let pieces = Pieces { shape: &self.shape, device: &self.device, frames: PIECE_FRAMES };
        let mut batch: Vec<_> = batch.iter_mut().map(|(state, frames)| (&mut state.0, *frames)).collect();
        Ok(pieces.run(&mut batch, |frames, streams| self.forward(frames, streams))?)
    }

    /// New frames of every stream, one after another, to samples `[samples, 1]` in the same order.
    fn forward(&self, frames: &[&Vec<u32>], streams: &mut Streams<'_>) -> Result<Tensor> {
        let semantic = frames.iter().map(|frame| &frame[..frame.len().min(SEMANTIC)]);
        let acoustic = frames.iter().map(|frame| &frame[frame.len().min(SEMANTIC)..]);
        let x = self.semantic.decode(semantic, &self.device)?;
        let x = (x + self.acoustic.decode(acoustic, &self.device)?)?; // [frames, width]
        streams.tap(|| "latent".to_owned(), &x);
        let x = self.upsample.forward(&x, streams)?;
        streams.tap(|| "upsample".to_owned(), &x);
        let x = self.transformer.forward(&x, streams, "layer")?;
        streams.tap(|| "transformer".to_owned(), &x);
        self.seanet.forward(&x, streams)
    }

    /// Decodes a fresh stream in one piece and returns every intermediate result by name, for comparison with a
    /// reference.
    ///
    /// # Errors
    /// As [`Self::decode`].
    pub fn decode_taps(&self, frames: &[Vec<u32>]) -> Loaded<Vec<(String, Tensor)>> {
        let mut state = self.start();
        let mut streams = Streams::new(&self.shape, vec![&mut state.0], vec![frames.len()], &self.device)?;
        streams.record();
        self.forward(&frames.iter().collect::<Vec<_>>(), &mut streams)?;
        Ok(streams.take_taps())
    }
}

fn transformer_shape(config: &Config, precision: Precision) -> TransformerShape {
    TransformerShape {
        style: Style::Plain,
        naming: Naming::Fused,
        layers: config.layers,
        width: config.width,
        heads: config.heads,
        head_dim: config.width / config.heads,
        feed_forward: config.feed_forward,
        eps: 1e-5,
        rope_theta: 1e4,
        precision,
    }
}

fn seanet_shape(config: &Config, precision: Precision) -> SeanetShape {
    SeanetShape {
        filters: config.filters,
        strides: config.ratios.clone(),
        kernel: 7,
        last_kernel: 3,
        residual_kernel: 3,
        residual_units: 1,
        dilation_growth: 2,
        compress: 2,
        width: config.width,
        names: ["conv.conv", "convtr.convtr"],
        precision,
    }
}
