//! Attention of few rows to an encoder's output, all sequences in one dispatch. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use crate::encoder_attention::HeadShape;
use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// Windows of a dispatch: each has an argument of its own.
const MAX_WINDOWS: usize = 16;
/// Longest window and widest head of the kernel.
const MAX_POSITIONS: usize = 2048;
const MAX_HEAD_DIM: usize = 128;
/// Rows of a sequence from which tiles of rows pay.
const MANY_ROWS: usize = 8;
/// A head that is not recorded.
const NOT_RECORDED: u32 = u32::MAX;

/// Whether the kernels take windows of such heads.
pub fn takes_window(positions: usize, shape: HeadShape) -> bool {
    positions <= MAX_POSITIONS && shape.head_dim <= MAX_HEAD_DIM && shape.head_dim.is_multiple_of(4)
}

impl Pass<'_> {
    /// Keys and values `[positions, heads * head_dim]`, each row contiguous, as a window `[2 * heads, positions, head_dim]` of `dtype`, f32 or
    /// f16.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn pack_window(
        &self,
        [keys, values]: [&Tensor; 2],
        shape: HeadShape,
        dtype: DType,
    ) -> Result<Tensor> {
        let HeadShape { heads, head_dim } = shape;
        let kernel = match dtype {
            DType::F32 => "pack_window_f32",
            DType::F16 => "pack_window_f16",
            other => bail!("cross attention: keys and values are kept at f32 or f16, not {other:?}"),
        };
        if keys.dims() != values.dims() {
            bail!("cross attention: keys {:?}, values {:?}", keys.dims(), values.dims())
        }
        let positions = keys.dim(0)?;
        let strides = [shape.stride(keys)?, shape.stride(values)?];
        let window = self.empty((2 * heads, positions, head_dim), dtype)?;
        let params = [positions as u32, heads as u32, head_dim as u32, strides[0], strides[1]];
        let args = [Arg::Rows(keys), Arg::Rows(values), Arg::Out(&window), Arg::Params(&params)];
        let grid = Grid { groups: [window.elem_count().div_ceil(256), 1, 1], threads: 256 };
        self.run(Kernel(Source::CrossAttention, kernel), &args, grid)?;
        Ok(window)
    }

    /// Attention of each span's rows to its window `[2 * heads, positions, head_dim]`: `q` and the result are
    /// `[rows, heads * head_dim]`, span after span. Windows are of one type.
    ///
    /// With `record`, also the softmax weights of those heads, `[record, rows, positions]` of one span after another.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn cross_attention(
        &self,
        q: &Tensor,
        spans: &[(usize, &Tensor)],
        shape: HeadShape,
        record: &[usize],
    ) -> Result<(Tensor, Option<Tensor>)> {
        let HeadShape { heads, head_dim } = shape;
        let (rows, width) = q.dims2()?;
        let dtype = spans.first().map_or(DType::F32, |(_, window)| window.dtype());
        let (mut total, mut weights) = (0, 0);
        let y = self.empty((rows, width), DType::F32)?;
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for &(rows, window) in spans {
            let (both, positions, of_head) = window.dims3()?;
            let fits = both == 2 * heads && of_head == head_dim && window.dtype() == dtype;
            if !fits || !takes_window(positions, shape) {
                bail!("cross attention: a window {:?} does not fit {shape:?}", window.dims())
            }
            if rows < MANY_ROWS || !record.is_empty() {
                few.push(([total, rows, positions, weights].map(|word| word as u32), window));
            } else {
                many.push(((total, rows), window));
            }
            total += rows;
            weights += record.len() * rows * positions;
        }
        if total != rows || width != heads * head_dim || record.iter().any(|&head| head >= heads) {
            bail!(
                "cross attention: {:?} does not fit {total} rows of {shape:?}, recorded {record:?}",
                q.dims()
            )
        }
        many.into_iter().try_for_each(|(rows, window)| self.cross_tiles(q, rows, window, shape, &y))?;
        let recorded = if record.is_empty() { None } else { Some(self.empty(weights, DType::F32)?) };
        let mut places = vec![NOT_RECORDED; heads];
        record.iter().enumerate().for_each(|(place, &head)| places[head] = place as u32);
        for spans in few.chunks(MAX_WINDOWS) {
            self.attend_windows(q, spans, shape, &places, [&y, recorded.as_ref().unwrap_or(&y)])?;
        }
        Ok((y, recorded))
    }

    /// `spans` are first row, rows, positions and where recorded weights begin; `to` the result and recorded weights.
    fn attend_windows(
        &self,
        q: &Tensor,
        spans: &[([u32; 4], &Tensor)],
        shape: HeadShape,
        places: &[u32],
        to: [&Tensor; 2],
    ) -> Result<()> {
        let Some((_, first)) = spans.first() else { return Ok(()) };
        let kernel = match first.dtype() {
            DType::F32 => "cross_attention_f32",
            DType::F16 => "cross_attention_f16",
            other => bail!("cross attention: keys and values are kept at f32 or f16, not {other:?}"),
        };
        let params = [shape.heads as u32, shape.head_dim as u32];
        let words: Vec<u32> = spans.iter().flat_map(|(words, _)| *words).collect();
        let mut args = vec![
            Arg::In(q),
            Arg::Out(to[0]),
            Arg::Out(to[1]),
            Arg::Params(&params),
            Arg::Params(&words),
            Arg::Params(places),
        ];
        let windows = spans.iter().map(|(_, window)| *window).chain(std::iter::repeat(*first));
        args.extend(windows.take(MAX_WINDOWS).map(Arg::In));
        let longest = spans.iter().map(|(words, _)| words[1] as usize).max().unwrap_or(0);
        let grid = Grid { groups: [shape.heads, longest, spans.len()], threads: 256 };
        let scores: usize = spans.iter().map(|(words, _)| words[1] as usize * words[2] as usize).sum();
        self.expect(4 * scores * shape.width(), 0)?;
        self.run(Kernel(Source::CrossAttention, kernel), &args, grid)
    }
}
