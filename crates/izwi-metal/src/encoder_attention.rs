//! Attention of packed sequences in one dispatch. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// Widest head of the kernels.
pub const MAX_HEAD_DIM: usize = 128;
/// Rows of a tile.
const TILE: usize = 32;
/// Spans of a dispatch: their words fit the bytes of an argument.
const MAX_SPANS: usize = 256;

/// Heads of attention.
#[derive(Debug, Clone, Copy)]
pub struct HeadShape {
    /// Number of heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

impl HeadShape {
    pub(crate) fn width(self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements from a row of `x` `[rows, heads * head_dim]` f32 to the next; each row is contiguous.
    ///
    /// # Errors
    /// It is not such a tensor.
    pub(super) fn stride(self, x: &Tensor) -> Result<u32> {
        let (_, width) = x.dims2()?;
        let is_contiguous = x.stride()[1] == 1 || width == 1;
        if width != self.width() || x.dtype() != DType::F32 || !is_contiguous {
            bail!("attention: {:?} of {:?} are not rows of {self:?}", x.dims(), x.dtype())
        }
        Ok(x.stride()[0] as u32)
    }
}

/// Keys or values as the kernel reads them.
#[derive(Clone, Copy)]
struct Heads<'a> {
    tensor: Arg<'a>,
    /// Elements from a position to the next, and from a head to the next.
    strides: [u32; 2],
}

impl Pass<'_> {
    /// Attention within each of the packed sequences of `spans` rows: `q`, `k` and `v` `[rows, heads * head_dim]`, each row
    /// contiguous, to `[rows, heads * head_dim]`. A sequence's result does not depend on the others.
    ///
    /// # Errors
    /// Shapes do not fit, or a head is wider than [`MAX_HEAD_DIM`].
    pub fn encoder_attention(
        &self,
        [q, k, v]: [&Tensor; 3],
        shape: HeadShape,
        spans: &[usize],
    ) -> Result<Tensor> {
        let rows = q.dim(0)?;
        if [k, v].iter().any(|x| x.dims() != q.dims()) || spans.iter().sum::<usize>() != rows {
            bail!("attention: {:?} {:?} {:?} do not fit {spans:?}", q.dims(), k.dims(), v.dims())
        }
        let starts = spans.iter().scan(0, |start, &rows| {
            *start += rows;
            Some(*start - rows)
        });
        let spans: Vec<[usize; 4]> =
            starts.zip(spans).map(|(start, &rows)| [start, rows, start, rows]).collect();
        let heads = |x| -> Result<Heads<'_>> {
            Ok(Heads { tensor: Arg::Rows(x), strides: [shape.stride(x)?, shape.head_dim as u32] })
        };
        let y = self.empty((rows, shape.width()), DType::F32)?;
        self.attend_tiles(q, [heads(k)?, heads(v)?], (shape, k.dtype()), &spans, &y)?;
        Ok(y)
    }

    /// Attention of `rows` rows of `q` from `first` on to a window `[2 * heads, positions, head_dim]` f32 or f16, keys
    /// before values: into the same rows of `y`, of the shape of `q`.
    ///
    /// # Errors
    /// As [`Self::encoder_attention`].
    pub(crate) fn cross_tiles(
        &self,
        q: &Tensor,
        (first, rows): (usize, usize),
        window: &Tensor,
        shape: HeadShape,
        y: &Tensor,
    ) -> Result<()> {
        let (both, positions, head_dim) = window.dims3()?;
        if both != 2 * shape.heads || head_dim != shape.head_dim {
            bail!("cross attention: a window {:?} does not fit {shape:?}", window.dims())
        }
        let (keys, values) = (window.narrow(0, 0, shape.heads)?, window.narrow(0, shape.heads, shape.heads)?);
        let strides = [head_dim as u32, (positions * head_dim) as u32];
        let heads = [&keys, &values].map(|tensor| Heads { tensor: Arg::In(tensor), strides });
        self.attend_tiles(q, heads, (shape, window.dtype()), &[[first, rows, 0, positions]], y)
    }

    /// `spans` are first row, rows, first position and positions.
    fn attend_tiles(
        &self,
        q: &Tensor,
        [k, v]: [Heads<'_>; 2],
        (shape, dtype): (HeadShape, DType),
        spans: &[[usize; 4]],
        y: &Tensor,
    ) -> Result<()> {
        let HeadShape { heads, head_dim } = shape;
        let kernel = match (dtype, head_dim) {
            (DType::F32, ..=32) => "encoder_attention_f32_32",
            (DType::F32, ..=64) => "encoder_attention_f32_64",
            (DType::F32, ..=MAX_HEAD_DIM) => "encoder_attention_f32_128",
            (DType::F16, ..=32) => "encoder_attention_f16_32",
            (DType::F16, ..=64) => "encoder_attention_f16_64",
            (DType::F16, ..=MAX_HEAD_DIM) => "encoder_attention_f16_128",
            (dtype, _) => bail!("attention: heads of {head_dim} of {dtype:?} have no kernel"),
        };
        let mut params = vec![heads as u32, head_dim as u32, shape.stride(q)?];
        params.extend(k.strides.into_iter().chain(v.strides));
        for spans in spans.chunks(MAX_SPANS) {
            let words: Vec<u32> = spans.iter().flatten().map(|&word| word as u32).collect();
            let longest = spans.iter().map(|span| span[1]).max().unwrap_or(0);
            let args =
                [Arg::Rows(q), k.tensor, v.tensor, Arg::Out(y), Arg::Params(&params), Arg::Params(&words)];
            let grid = Grid { groups: [longest.div_ceil(TILE), heads, spans.len()], threads: 128 };
            let scores: usize = spans.iter().map(|span| span[1] * span[3]).sum();
            self.expect(4 * scores * shape.width(), 0)?;
            self.run(Kernel(Source::EncoderAttention, kernel), &args, grid)?;
        }
        Ok(())
    }
}
