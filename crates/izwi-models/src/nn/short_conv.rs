//! Gated short convolution: the layer that stands where others have attention. A position sees itself and the few
//! before it, so what a sequence carries on is a few columns.
//!
//! Architecture: <https://arxiv.org/abs/2511.23404> (LFM2). Knows no pool and no sequence: it is handed columns.

use candle_core::{Result, Tensor, bail};

use super::checkpoint::Checkpoint;
use super::precision::Precision;
use super::row_linear::RowLinear;
use super::slices::with_slices;
use crate::model::ModelError;

/// `output(C * conv(B * X))` with `B`, `C`, `X` the thirds of `input(x)` and a causal convolution of each channel by
/// itself. On the CPU a row's result is the same bits whatever other rows there are.
#[derive(Debug, Clone)]
pub struct ShortConv {
    input: RowLinear,
    kernel: Tensor, // [taps, width]
    output: RowLinear,
}

/// The columns `B * X` of some sequences, each behind those it carried on: `[Σ (reach + rows), width]`.
#[derive(Debug)]
pub struct Columns {
    values: Tensor,
    /// Rows of each sequence.
    counts: Vec<usize>,
    reach: usize,
}

impl ShortConv {
    /// Takes `{name}.in_proj.weight` `[3 * width, width]`, `{name}.conv.weight` `[width, 1, taps]` and
    /// `{name}.out_proj.weight` `[width, width]`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        width: usize,
        taps: usize,
        precision: Precision,
    ) -> std::result::Result<Self, ModelError> {
        let (input, output) = (format!("{name}.in_proj"), format!("{name}.out_proj"));
        let kernel = from.take(&format!("{name}.conv.weight"), &[width, 1, taps])?;
        Ok(Self {
            input: RowLinear::load_stacked(from, &[(&input, 3 * width)], width, precision)?,
            kernel: kernel.squeeze(1)?.t()?.contiguous()?,
            output: RowLinear::load_stacked(from, &[(&output, width)], width, precision)?,
        })
    }

    /// Bytes of the weights.
    pub fn bytes(&self) -> usize {
        self.input.bytes() + self.output.bytes() + self.kernel.elem_count() * size_of::<f32>()
    }

    /// Columns before a row that it sees.
    pub fn reach(&self) -> usize {
        self.kernel.dims()[0].saturating_sub(1)
    }

    /// `x` `[rows, width]` of sequences of `counts` rows, of which each `carried` `[reach, width]`: the answer, of the
    /// same shape, and the columns.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, counts: &[usize], carried: &[&Tensor]) -> Result<(Tensor, Columns)> {
        let (rows, width) = x.dims2()?;
        let (reach, expected) = (self.reach(), [self.reach(), self.kernel.dim(1)?]);
        if counts.len() != carried.len()
            || counts.iter().sum::<usize>() != rows
            || carried.iter().any(|columns| columns.dims() != expected)
        {
            bail!("short convolution: {rows} rows do not fit {counts:?} with {} carried", carried.len())
        }
        let mixed = self.input.forward(x)?; // [rows, 3 * width]
        let values = if x.device().is_cpu() {
            let carried = Tensor::cat(carried, 0)?;
            let values = with_slices([&mixed, &carried], |[mixed, carried]| {
                columns(mixed, carried, counts, (reach, width))
            })?;
            Tensor::from_vec(values, (rows + counts.len() * reach, width), x.device())?
        } else {
            let gated = (mixed.narrow(1, 0, width)? * mixed.narrow(1, 2 * width, width)?)?;
            let mut parts = Vec::with_capacity(2 * counts.len());
            let mut row = 0;
            for (&count, &carried) in counts.iter().zip(carried) {
                parts.extend([carried.clone(), gated.narrow(0, row, count)?]);
                row += count;
            }
            Tensor::cat(&parts, 0)?
        };
        let columns = Columns { values, counts: counts.to_vec(), reach };
        let y = if x.device().is_cpu() {
            let y = with_slices([&mixed, &columns.values, &self.kernel], |[mixed, columns, kernel]| {
                convolve(mixed, columns, kernel, counts, (reach, width))
            })?;
            Tensor::from_vec(y, (rows, width), x.device())?
        } else {
            self.composite(&mixed, &columns)?
        };
        Ok((self.output.forward(&y)?, columns))
    }

    fn composite(&self, mixed: &Tensor, columns: &Columns) -> Result<Tensor> {
        let width = self.kernel.dim(1)?;
        let mut sum = Tensor::zeros((mixed.dim(0)?, width), mixed.dtype(), mixed.device())?;
        for tap in 0..=columns.reach {
            let rows: Vec<u32> = columns.firsts().map(|first| (first + tap) as u32).collect();
            let seen = columns.values.index_select(&Tensor::new(rows, mixed.device())?, 0)?;
            sum = (sum + seen.broadcast_mul(&self.kernel.get(tap)?)?)?;
        }
        mixed.narrow(1, width, width)? * sum
    }
}

impl Columns {
    /// The first column that each row sees.
    fn firsts(&self) -> impl Iterator<Item = usize> {
        let starts = self.counts.iter().scan(0, |start, &count| {
            let first = *start;
            *start += count + self.reach;
            Some(first..first + count)
        });
        starts.flatten()
    }

    /// What sequence `sequence` carries on behind its last row: `[reach, width]`.
    ///
    /// # Errors
    /// There is no such sequence.
    pub fn behind(&self, sequence: usize) -> Result<Tensor> {
        let end: usize = self.counts.iter().take(sequence + 1).map(|count| count + self.reach).sum();
        self.values.narrow(0, end - self.reach, self.reach)?.copy()
    }

    /// All that some rows see, `[rows, (reach + 1) * width]`: of each the sequence and its row in it.
    ///
    /// # Errors
    /// There is no such row.
    pub fn seen(&self, rows: &[(usize, usize)]) -> Result<Tensor> {
        let first = |&(sequence, row): &(usize, usize)| {
            let before: usize = self.counts.iter().take(sequence).map(|count| count + self.reach).sum();
            before + row
        };
        let firsts = rows.iter().map(first);
        let all: Vec<u32> =
            firsts.flat_map(|first| (first..=first + self.reach).map(|row| row as u32)).collect();
        let seen = self.values.index_select(&Tensor::new(all, self.values.device())?, 0)?;
        seen.reshape((rows.len(), (self.reach + 1) * self.values.dim(1)?))
    }
}

/// `B * X` of every row, each sequence's behind what it carried.
fn columns(mixed: &[f32], carried: &[f32], counts: &[usize], (reach, width): (usize, usize)) -> Vec<f32> {
    let mut columns = Vec::with_capacity(mixed.len() / 3 + carried.len());
    let mut rows = mixed.chunks_exact(3 * width);
    for (sequence, &count) in counts.iter().enumerate() {
        columns.extend_from_slice(&carried[sequence * reach * width..][..reach * width]);
        for row in rows.by_ref().take(count) {
            let (b, x) = (&row[..width], &row[2 * width..]);
            columns.extend(b.iter().zip(x).map(|(b, x)| b * x));
        }
    }
    columns
}

/// `C * Σ_t kernel[t] * columns[row + t]` of every row.
fn convolve(
    mixed: &[f32],
    columns: &[f32],
    kernel: &[f32],
    counts: &[usize],
    (reach, width): (usize, usize),
) -> Vec<f32> {
    let mut y = Vec::with_capacity(mixed.len() / 3);
    let mut rows = mixed.chunks_exact(3 * width);
    let mut first = 0;
    for &count in counts {
        for row in rows.by_ref().take(count) {
            let start = y.len();
            y.resize(start + width, 0.0);
            let y: &mut [f32] = &mut y[start..];
            for (tap, kernel) in kernel.chunks_exact(width).enumerate() {
                let seen = &columns[(first + tap) * width..][..width];
                y.iter_mut().zip(seen.iter().zip(kernel)).for_each(|(y, (seen, weight))| *y += seen * weight);
            }
            y.iter_mut().zip(&row[width..2 * width]).for_each(|(y, c)| *y *= c);
            first += 1;
        }
        first += reach;
    }
    y
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    const WIDTH: usize = 20;

    fn layer() -> ShortConv {
        let random = |rows, columns| Tensor::randn(0f32, 0.3, (rows, columns), &Device::Cpu).unwrap();
        let linear = |outputs| RowLinear::new(&random(outputs, WIDTH), None).unwrap();
        ShortConv { input: linear(3 * WIDTH), kernel: random(3, WIDTH), output: linear(WIDTH) }
    }

    fn rows(x: &Tensor) -> Vec<Vec<f32>> {
        x.to_vec2().unwrap()
    }

    #[test]
    fn pieces_among_others_are_the_whole_alone_to_the_bit() {
        let layer = layer();
        let zeros = Tensor::zeros((2, WIDTH), DType::F32, &Device::Cpu).unwrap();
        let x = Tensor::randn(0f32, 1.0, (23, WIDTH), &Device::Cpu).unwrap();
        let other = Tensor::randn(0f32, 1.0, (4, WIDTH), &Device::Cpu).unwrap();
        let (whole, columns) = layer.forward(&x, &[23], &[&zeros]).unwrap();
        let mut carried = zeros.clone();
        let (mut start, mut pieces) = (0, Vec::new());
        for count in [1, 2, 5, 1, 14] {
            let part = Tensor::cat(&[&other, &x.narrow(0, start, count).unwrap()], 0).unwrap();
            let (y, columns) = layer.forward(&part, &[4, count], &[&other_carried(), &carried]).unwrap();
            carried = columns.behind(1).unwrap();
            let seen = columns.seen(&[(1, count - 1)]).unwrap();
            assert_eq!(rows(&seen)[0][WIDTH..], rows(&carried).concat());
            pieces.extend(rows(&y.narrow(0, 4, count).unwrap()));
            start += count;
        }
        assert_eq!(pieces, rows(&whole));
        assert_eq!(rows(&carried), rows(&columns.behind(0).unwrap()));
        assert!(layer.forward(&x, &[22], &[&zeros]).is_err());
    }

    fn other_carried() -> Tensor {
        Tensor::full(3f32, (2, WIDTH), &Device::Cpu).unwrap()
    }

    #[test]
    fn the_cpus_form_equals_the_composite() {
        let layer = layer();
        let x = Tensor::randn(0f32, 1.0, (9, WIDTH), &Device::Cpu).unwrap();
        let zeros = Tensor::zeros((2, WIDTH), DType::F32, &Device::Cpu).unwrap();
        let (y, columns) = layer.forward(&x, &[3, 6], &[&other_carried(), &zeros]).unwrap();
        let mixed = layer.input.forward(&x).unwrap();
        let composite = layer.output.forward(&layer.composite(&mixed, &columns).unwrap()).unwrap();
        let off = (y - composite).unwrap().abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
        assert!(off < 1e-5, "{off}");
    }
}
