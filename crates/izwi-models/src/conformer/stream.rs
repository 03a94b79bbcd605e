//! What a row of an encoder sees of the others, and what is kept of a recording whose frames come in pieces.

use candle_core::Tensor;
use izwi_nn::Error;
use izwi_nn::attention::relative::RelativeSpan;
use izwi_nn::layers::PackedRows;
use izwi_nn::layers::conv::DepthwiseConv;

use super::{FRAMES_PER_ROW, Mel};

/// Frames before a piece that its rows are made of.
const FRAMES_BEFORE: usize = FRAMES_PER_ROW + 1;
/// Queries of one span where rows attend to those near them: spans share keys, and no more than these many are computed in
/// vain.
const NEAR_ROWS: usize = 64;

/// The rows that a row attends to. Convolutions are centred, or end at their row where it is [`Self::Chunked`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Context {
    /// All.
    Whole,
    /// At most so many before and after it.
    Near([usize; 2]),
    /// Those of its chunk, and so many `before` the chunk, whose longest has `longest` rows. Nothing sees what comes after its
    /// chunk, so that a recording can come in pieces.
    Chunked { before: usize, longest: usize },
}

/// What is kept of a recording for its next frames.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    /// Rows of a chunk.
    chunk: usize,
    /// Frames and rows so far.
    frames: usize,
    rows: usize,
    /// The last frames.
    last: Mel,
    pub(super) layers: Vec<Kept>,
}

/// What a layer keeps.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept {
    /// Keys and values side by side, `[rows, 2 * width]`.
    keys: Option<Tensor>,
    /// The last inputs of the convolution, `[taps - 1, width]`; none before the first.
    inputs: Option<Tensor>,
}

impl Stream {
    /// A recording in chunks of `chunk` rows.
    pub(super) fn new(chunk: usize, layers: usize) -> Self {
        let last = Mel { values: Vec::new(), frames: 0 };
        Self { chunk, frames: 0, rows: 0, last, layers: vec![Kept::default(); layers] }
    }

    /// Frames so far.
    pub(crate) fn frames(&self) -> usize {
        self.frames
    }

    /// Rows so far.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The last frames with the new ones after them, and how many rows of those are known.
    ///
    /// # Errors
    /// The frames before end within a chunk.
    pub(super) fn extend(&mut self, mel: &Mel, rows: impl Fn(usize) -> usize) -> Result<(Mel, usize), Error> {
        if self.frames != 0 && (!self.rows.is_multiple_of(self.chunk) || self.frames % FRAMES_PER_ROW != 1) {
            return Err(Error::Internal("frames follow a chunk that is not whole"));
        }
        let known = rows(self.last.frames);
        let mut joined = std::mem::replace(&mut self.last, Mel { values: Vec::new(), frames: 0 });
        joined.values.extend_from_slice(&mel.values);
        joined.frames += mel.frames;
        let bins = mel.values.len() / mel.frames.max(1);
        let kept = joined.frames.min(FRAMES_BEFORE);
        self.last.values = joined.values[(joined.frames - kept) * bins..].to_vec();
        self.last.frames = kept;
        self.frames += mel.frames;
        Ok((joined, known))
    }

    /// Counts rows that were computed.
    pub(super) fn pass(&mut self, rows: usize) {
        self.rows += rows;
    }
}

/// For tests: what is kept.
#[cfg(test)]
impl Stream {
    /// The last inputs of each layer's convolution.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().filter_map(|kept| kept.inputs.as_ref())
    }
}

impl Kept {
    /// The keys and values of all rows that the new ones see, of which `before` are kept.
    pub(super) fn keys(&mut self, new: &Tensor, before: usize) -> Result<Tensor, Error> {
        let all = match &self.keys {
            Some(known) => Tensor::cat(&[known, new], 0)?,
            None => new.clone(),
        };
        let count = all.dim(0)?.min(before);
        self.keys = match count {
            0 => None,
            count => Some(all.narrow(0, all.dim(0)? - count, count)?.force_contiguous()?),
        };
        Ok(all)
    }
}

impl Context {
    /// The queries and keys of sequences; keys are packed as the queries, or one after another behind those that `streams`
    /// keep.
    pub(super) fn spans(self, packed: &PackedRows, streams: &[&mut Stream]) -> Vec<RelativeSpan> {
        let spans = packed.spans().iter();
        match self {
            Self::Whole => spans.cloned().map(RelativeSpan::whole).collect(),
            Self::Near(reach) => {
                let near = spans.flat_map(|span| {
                    span.clone().step_by(NEAR_ROWS).map(move |start| {
                        let end = span.end.min(start + NEAR_ROWS);
                        let first = start.saturating_sub(reach[0]).max(span.start);
                        let keys = first..span.end.min(end.saturating_add(reach[1]));
                        RelativeSpan { queries: start..end, keys, offset: start - first, reach }
                    })
                });
                near.collect()
            }
            Self::Chunked { before, .. } => {
                let mut end = 0;
                let mut chunks = Vec::new();
                for (span, stream) in spans.zip(streams) {
                    let kept = stream.rows.min(before);
                    for at in (0..span.len()).step_by(stream.chunk) {
                        let count = stream.chunk.min(span.len() - at);
                        let first = (kept + at).saturating_sub(before);
                        chunks.push(RelativeSpan {
                            queries: span.start + at..span.start + at + count,
                            keys: end + first..end + kept + at + count,
                            offset: kept + at - first,
                            reach: [usize::MAX; 2],
                        });
                    }
                    end += kept + span.len();
                }
                chunks
            }
        }
    }
}

/// Each row of `x` convolved with those before it; `conv` is a centred convolution of `taps` taps.
pub(super) fn convolve(
    conv: &DepthwiseConv,
    taps: usize,
    x: &Tensor,
    packed: &PackedRows,
    kept: &mut [&mut Kept],
) -> Result<Tensor, Error> {
    let reach = taps - 1;
    let mut blocks = Vec::with_capacity(2 * kept.len());
    for (span, kept) in packed.spans().iter().zip(kept) {
        let inputs = kept.inputs.take();
        let inputs = inputs.map_or_else(|| Tensor::zeros((reach, x.dim(1)?), x.dtype(), x.device()), Ok)?;
        let block = Tensor::cat(&[&inputs, &x.narrow(0, span.start, span.len())?], 0)?;
        kept.inputs = Some(block.narrow(0, span.len(), reach)?.force_contiguous()?);
        blocks.push(block);
    }
    let mixed = conv.forward(&Tensor::cat(&blocks, 0)?)?;
    // A kernel that ends at a row is centred half its reach before it.
    let mut start = 0;
    let own = packed.spans().iter().map(|span| {
        let own = mixed.narrow(0, start + reach / 2, span.len());
        start += reach + span.len();
        own
    });
    Ok(Tensor::cat(&own.collect::<candle_core::Result<Vec<_>>>()?, 0)?)
}
