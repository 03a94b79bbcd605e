//! The Mimi codec's decoder: frames of codes to samples, in streams of constant memory.
//!
//! Owns reading the codec's file. Beyond the window of its transformer a stream is the official streaming decoder's, not
//! the offline one's: a frame's positions push the oldest out before any of them looks.
//! <https://github.com/kyutai-labs/moshi/blob/main/moshi/moshi/models/compression.py>.

mod config;

use std::path::Path;

use candle_core::{Device, Result, Tensor};

use self::config::{TRANSFORMER, UPSAMPLE, book, not_needed};
use crate::families::LoadOptions;
use izwi_kernels::precision::Precision;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::conv::CausalDepthwiseTransposedConv;
use izwi_nn::codec::quantiser::{BookNames, BooksShape, ResidualBooks};
use izwi_nn::codec::seanet::{SeanetDecoder, SeanetShape};
use izwi_nn::codec::stream::{Pieces, StreamShape, StreamState, Streams};
use izwi_nn::codec::transformer::{CausalTransformer, Naming, Style, TransformerShape};
use izwi_nn::error::ModelError;
use izwi_nn::window_attention::Window;

pub(crate) use self::config::Config;

/// Frames of one sequence in one pass: what they need at the full rate stays near the caches.
const PIECE_FRAMES: usize = 4;
/// Books whose code says what is said; the others say how.
const SEMANTIC: usize = 1;
/// Frames that a row in front of the transformer is made of.
const UPSAMPLE_FRAMES: usize = 2;

type Loaded<T> = std::result::Result<T, ModelError>;

/// The decoder.
#[derive(Debug)]
pub(crate) struct Mimi {
    config: Config,
    device: Device,
    shape: StreamShape,
    semantic: ResidualBooks,
    acoustic: ResidualBooks,
    upsample: CausalDepthwiseTransposedConv,
    transformer: CausalTransformer,
    seanet: SeanetDecoder,
    weight_bytes: usize,
}

/// What one stream of frames carries along; a fresh one holds nothing, any other the same number of bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct DecoderState(StreamState);

impl DecoderState {
    /// Bytes held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Mimi {
    /// Reads the codec's file, of which the first `codebooks` books are used; layers that mix channels are kept and
    /// multiplied in the options' precision, `F32` or `Bf16`.
    ///
    /// # Errors
    /// The file is absent or its tensors are not those of the codec.
    pub(crate) fn load(file: &Path, codebooks: usize, options: &LoadOptions) -> Loaded<Self> {
        let from = Checkpoint::open(file, &options.device)?;
        let config = Config::of(&from);
        let mut from = options.cached(from, options.precision);
        let codec = Self::from_checkpoint(&mut from, codebooks, &config, options.precision)?;
        from.finish()?;
        Ok(codec)
    }

    /// Takes the decoder and drops the encoder; the caller finishes the checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or the sizes cannot be computed.
    pub(crate) fn from_checkpoint(
        from: &mut Checkpoint,
        codebooks: usize,
        config: &Config,
        precision: Precision,
    ) -> Loaded<Self> {
        config.check().map_err(ModelError::Checkpoint)?;
        let acoustic = codebooks.saturating_sub(SEMANTIC);
        from.skip(|name| not_needed(name, acoustic));
        let before = from.taken();
        let mut shape = StreamShape::default();
        let s = &mut shape;
        let books = |from: &mut Checkpoint, group: &str, books: usize| {
            let names =
                BookNames { sum: "embedding_sum", usage: "cluster_usage", flag: Some("_initialized") };
            let sizes =
                BooksShape { books, entries: config.entries, width: config.book_width, outer: config.width };
            ResidualBooks::load(from, &format!("quantizer.{group}"), sizes, names, |k| book(group, k))
        };
        let (semantic, acoustic) = (books(from, "rvq_first", SEMANTIC)?, books(from, "rvq_rest", acoustic)?);
        let rise = (config.width, UPSAMPLE_FRAMES * config.rows_per_frame, config.rows_per_frame);
        let upsample = CausalDepthwiseTransposedConv::load(from, UPSAMPLE, rise, s)?;
        let window = Window { positions: config.context, step: config.step };
        let layers = transformer_shape(config, precision);
        let transformer = CausalTransformer::load(from, TRANSFORMER, &layers, Some((window, &mut *s)))?;
        let seanet = SeanetDecoder::load(from, "decoder.model", &seanet_shape(config, precision), s)?;
        // Nearly all of it: norms, biases and books stay f32.
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
    pub(crate) fn samples_per_frame(&self) -> usize {
        self.config.samples_per_frame()
    }

    /// Rate of the samples, in Hz.
    pub(crate) fn sample_rate(&self) -> usize {
        self.config.sample_rate
    }

    /// Entries of a codebook: every code is below.
    pub(crate) fn book_size(&self) -> usize {
        self.config.entries
    }

    /// Bytes of the weights.
    pub(crate) fn bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of a state once it has seen a frame.
    pub(crate) fn state_bytes(&self) -> usize {
        self.shape.bytes()
    }

    /// The state of a new stream.
    pub(crate) fn start(&self) -> DecoderState {
        DecoderState::default()
    }

    /// New frames of several streams to their samples, [`Self::samples_per_frame`] for each frame. All streams go
    /// through each layer together; on the CPU what a stream gets is the same to the bit alone, among others and
    /// however its frames are cut.
    ///
    /// # Errors
    /// A frame has another number of codes or a code that is too large. The states are then undefined and must be
    /// dropped.
    pub(crate) fn decode(&self, batch: &mut [(&mut DecoderState, &[Vec<u32>])]) -> Loaded<Vec<Vec<f32>>> {
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

/// For tests: other sizes than the file shows, and intermediate results.
#[cfg(test)]
impl Mimi {
    /// With so many heads and such a window, of which `step` positions enter together.
    pub(super) fn load_with(
        file: &Path,
        (heads, context, step): (usize, usize, usize),
        precision: Precision,
    ) -> Self {
        let mut from = Checkpoint::open(file, &super::golden_set::device()).unwrap();
        let config = Config { heads, context, step, ..Config::of(&from) };
        let codec = Self::from_checkpoint(&mut from, 8, &config, precision).unwrap();
        from.finish().unwrap();
        codec
    }

    /// Decodes a fresh stream in one piece and answers every intermediate result.
    pub(super) fn decode_taps(&self, frames: &[Vec<u32>]) -> Vec<(String, Tensor)> {
        let mut state = self.start();
        let mut streams =
            Streams::new(&self.shape, vec![&mut state.0], vec![frames.len()], &self.device).unwrap();
        streams.record();
        self.forward(&frames.iter().collect::<Vec<_>>(), &mut streams).unwrap();
        streams.take_taps()
    }
}
