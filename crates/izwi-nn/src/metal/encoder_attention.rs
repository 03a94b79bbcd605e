//! Attention of packed sequences in one dispatch. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use super::library::{Kernel, Source};
use super::pass::{Arg, Grid, Pass};

/// Widest head of the kernels.
pub(crate) const MAX_HEAD_DIM: usize = 128;
/// Rows of a tile.
const TILE: usize = 32;
/// Spans of a dispatch: their words fit the bytes of an argument.
const MAX_SPANS: usize = 256;

/// Heads side by side in the columns of a tensor `[rows, columns]` f32, from column `start` on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Columns<'a> {
    pub(crate) tensor: &'a Tensor,
    pub(crate) start: usize,
}

/// Keys or values as the kernel reads them.
#[derive(Debug, Clone, Copy)]
struct Heads<'a> {
    tensor: &'a Tensor,
    /// Elements from a position to the next, before the first, and from a head to the next.
    layout: [u32; 3],
}

/// Heads of attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadShape {
    pub(crate) heads: usize,
    pub(crate) head_dim: usize,
}

impl HeadShape {
    fn width(self) -> usize {
        self.heads * self.head_dim
    }
}

impl<'a> From<&'a Tensor> for Columns<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Self { tensor, start: 0 }
    }
}

impl<'a> Columns<'a> {
    /// Queries, keys and values side by side.
    pub(crate) fn of_qkv(tensor: &'a Tensor, shape: HeadShape) -> [Self; 3] {
        [0, 1, 2].map(|part| Self { tensor, start: part * shape.width() })
    }

    fn stride(&self, shape: HeadShape) -> Result<usize> {
        let (_, columns) = self.tensor.dims2()?;
        if self.start + shape.width() > columns || self.tensor.dtype() != DType::F32 {
            bail!(
                "attention: {:?} of {:?} has no {shape:?} from column {}",
                self.tensor.dims(),
                self.tensor.dtype(),
                self.start
            )
        }
        Ok(columns)
    }

    fn heads(self, shape: HeadShape) -> Result<Heads<'a>> {
        let layout = [self.stride(shape)? as u32, self.start as u32, shape.head_dim as u32];
        Ok(Heads { tensor: self.tensor, layout })
    }
}

impl Pass<'_> {
    /// Attention within each of the packed sequences of `spans` rows: queries, keys and values of as many rows to
    /// `[rows, heads * head_dim]`. A sequence's result does not depend on the others.
    ///
    /// # Errors
    /// Shapes do not fit, or a head is wider than [`MAX_HEAD_DIM`].
    pub(crate) fn encoder_attention(
        &self,
        [q, k, v]: [Columns<'_>; 3],
        shape: HeadShape,
        spans: &[usize],
    ) -> Result<Tensor> {
        let rows = q.tensor.dim(0)?;
        if [k, v].iter().any(|x| x.tensor.dim(0).ok() != Some(rows)) || spans.iter().sum::<usize>() != rows {
            bail!("attention: {rows} queries and {:?} keys do not fit {spans:?}", k.tensor.dims())
        }
        let starts = spans.iter().scan(0, |start, &rows| {
            *start += rows;
            Some(*start - rows)
        });
        let spans: Vec<[usize; 4]> =
            starts.zip(spans).map(|(start, &rows)| [start, rows, start, rows]).collect();
        let y = self.empty((rows, shape.width()), DType::F32)?;
        self.attend_tiles(q, [k.heads(shape)?, v.heads(shape)?], shape, &spans, &y)?;
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
        let head = positions * head_dim;
        let part = |start: usize| {
            let layout = [head_dim as u32, start as u32, head as u32];
            Heads { tensor: window, layout }
        };
        let spans = [[first, rows, 0, positions]];
        self.attend_tiles(q.into(), [part(0), part(shape.heads * head)], shape, &spans, y)
    }

    /// `spans` are first row, rows, first position and positions.
    fn attend_tiles(
        &self,
        q: Columns<'_>,
        [k, v]: [Heads<'_>; 2],
        shape: HeadShape,
        spans: &[[usize; 4]],
        y: &Tensor,
    ) -> Result<()> {
        let HeadShape { heads, head_dim } = shape;
        let kernel = match (k.tensor.dtype(), head_dim) {
            (DType::F32, ..=32) => "encoder_attention_f32_32",
            (DType::F32, ..=64) => "encoder_attention_f32_64",
            (DType::F32, ..=MAX_HEAD_DIM) => "encoder_attention_f32_128",
            (DType::F16, ..=32) => "encoder_attention_f16_32",
            (DType::F16, ..=64) => "encoder_attention_f16_64",
            (DType::F16, ..=MAX_HEAD_DIM) => "encoder_attention_f16_128",
            (dtype, _) => bail!("attention: heads of {head_dim} of {dtype:?} have no kernel"),
        };
        let mut params = vec![heads as u32, head_dim as u32, q.stride(shape)? as u32, q.start as u32];
        params.extend(k.layout.into_iter().chain(v.layout));
        for spans in spans.chunks(MAX_SPANS) {
            let words: Vec<u32> = spans.iter().flatten().map(|&word| word as u32).collect();
            let longest = spans.iter().map(|span| span[1]).max().unwrap_or(0);
            let args = [
                Arg::In(q.tensor),
                Arg::In(k.tensor),
                Arg::In(v.tensor),
                Arg::Out(y),
                Arg::Params(&params),
                Arg::Params(&words),
            ];
            let grid = Grid { groups: [longest.div_ceil(TILE), heads, spans.len()], threads: 128 };
            self.run(Kernel(Source::EncoderAttention, kernel), &args, grid)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use crate::attention::bidirectional;
    use crate::metal::tests::{device, worst};

    use super::*;

    #[test]
    fn packed_sequences_equal_the_cpu_and_each_sequence_alone() {
        let Some(device) = device() else { return };
        let shapes = [(1, 3), (2, 16), (3, 40), (2, 64), (1, 96), (1, 128), (1, 130)];
        for (heads, head_dim) in shapes {
            let spans = [33, 1, 70, 32, 4];
            let random = || Tensor::randn(0f32, 1.0, (140, heads * head_dim), &Device::Cpu).unwrap();
            let [q, k, v] = [random(), random(), random()];
            let expected = bidirectional(&q, &k, &v, heads, &spans).unwrap();
            let [q, k, v] = [q, k, v].map(|x| x.to_device(&device).unwrap());
            let y = bidirectional(&q, &k, &v, heads, &spans).unwrap();
            assert!(worst(&y, &expected) < 1e-5, "{heads} heads of {head_dim}");
            let part = |x: &Tensor| x.narrow(0, 34, 70).unwrap();
            let alone = bidirectional(&part(&q), &part(&k), &part(&v), heads, &[70]).unwrap();
            let bits = |x: &Tensor| x.to_vec2::<f32>().unwrap();
            assert!(
                head_dim > MAX_HEAD_DIM || bits(&alone) == bits(&part(&y)),
                "{heads} heads of {head_dim}"
            );
        }
    }

    #[test]
    fn columns_of_one_tensor_and_hundreds_of_sequences_are_read_in_place() {
        let Some(device) = device() else { return };
        let shape = HeadShape { heads: 2, head_dim: 24 };
        let qkv = Tensor::randn(0f32, 1.0, (600, 144), &device).unwrap();
        let spans = [2; 300];
        let pass = Pass::of(&qkv).unwrap();
        let y = pass.encoder_attention(Columns::of_qkv(&qkv, shape), shape, &spans);
        drop(pass);
        let part = |at: usize| qkv.narrow(1, 48 * at, 48).unwrap().to_device(&Device::Cpu).unwrap();
        let part = |at| part(at).contiguous().unwrap();
        let expected = bidirectional(&part(0), &part(1), &part(2), 2, &spans).unwrap();
        assert!(worst(&y.unwrap(), &expected) < 1e-5);
    }
}
