//! Sequences of different lengths packed into one tensor of rows, so that a layer runs once for all of them.
//!
//! Each sequence starts at a multiple of [`ROW_ALIGN`] and is followed by gap rows, at least as many as the widest
//! convolution reaches, unless they are dense. Knows positions only, no layer and no model.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::slices::with_slices;

/// Every sequence starts at a multiple of this many rows.
pub const ROW_ALIGN: usize = 16;

/// Layout of sequences in a packed tensor `[rows, channels]`.
#[derive(Debug, Clone)]
pub struct PackedRows {
    spans: Vec<Range<usize>>,
    rows: usize,
    mask: Tensor,
}

impl PackedRows {
    /// Lays out sequences of `lengths` rows with at least `gap` rows after each.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(lengths: &[usize], gap: usize, device: &Device) -> Result<Self> {
        Self::lay_out(lengths, |end| (end + gap).next_multiple_of(ROW_ALIGN), device)
    }

    /// Lays out sequences one right after another, for layers that take what comes before them from states.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn dense(lengths: &[usize], device: &Device) -> Result<Self> {
        Self::lay_out(lengths, |end| end, device)
    }

    fn lay_out(lengths: &[usize], next: impl Fn(usize) -> usize, device: &Device) -> Result<Self> {
        let mut spans = Vec::with_capacity(lengths.len());
        let mut rows = 0;
        for &length in lengths {
            spans.push(rows..rows + length);
            rows = next(rows + length);
        }
        let mut mask = vec![0f32; rows];
        spans.iter().for_each(|span| mask[span.clone()].fill(1.0));
        let mask = Tensor::from_vec(mask, (rows, 1), device)?;
        Ok(Self { spans, rows, mask })
    }

    /// Rows of the packed tensor, gaps included.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The rows of each sequence, in order.
    pub fn spans(&self) -> &[Range<usize>] {
        &self.spans
    }

    /// Sequences `[length, channels]`, in order, as one packed tensor with zeros in the gaps.
    ///
    /// # Errors
    /// There is none, or their lengths are others.
    pub fn pack(&self, sequences: &[Tensor]) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(2 * sequences.len());
        let ends = self.spans.iter().skip(1).map(|next| next.start).chain([self.rows]);
        for ((sequence, span), end) in sequences.iter().zip(&self.spans).zip(ends) {
            let (length, channels) = sequence.dims2()?;
            if length != span.len() {
                bail!("packed rows: a sequence of {length} rows, {} expected", span.len())
            }
            rows.push(sequence.clone());
            if end > span.end {
                rows.push(Tensor::zeros((end - span.end, channels), sequence.dtype(), sequence.device())?);
            }
        }
        Tensor::cat(&rows, 0)
    }

    /// Spans and gaps as sequences of their own, so that no row of a gap reaches a span.
    pub(crate) fn on_metal(&self) -> izwi_metal::SequenceTable {
        let mut table = izwi_metal::SequenceTable::default();
        let mut end = 0;
        let gap = self.rows..self.rows;
        for span in self.spans.iter().chain([&gap]) {
            for rows in [span.start - end, span.len()] {
                if rows > 0 {
                    table.push([rows, rows], [izwi_metal::NO_STATE; 2]);
                }
            }
            end = span.end;
        }
        table
    }

    /// One value per packed row: `value(sequence, position)` inside a sequence, the default in gaps.
    pub fn fill<T: Default + Clone>(&self, mut value: impl FnMut(usize, usize) -> T) -> Vec<T> {
        let mut filled = vec![T::default(); self.rows];
        for (sequence, span) in self.spans.iter().enumerate() {
            for (position, row) in span.clone().enumerate() {
                filled[row] = value(sequence, position);
            }
        }
        filled
    }

    /// `x` `[rows, channels]` with every row between sequences set to zero.
    ///
    /// # Errors
    /// `x` has another number of rows.
    pub fn clear_gaps(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, channels) = x.dims2()?;
        if !x.device().is_cpu() || x.dtype() != DType::F32 || rows != self.rows {
            return x.broadcast_mul(&self.mask);
        }
        let y = with_slices([x], |[x]| {
            let mut y = vec![0f32; x.len()];
            for span in &self.spans {
                let part = span.start * channels..span.end * channels;
                y[part.clone()].copy_from_slice(&x[part]);
            }
            y
        })?;
        Tensor::from_vec(y, (rows, channels), x.device())
    }

    /// Rows `rows[i]` of `source` `[n, channels]`, gaps zero: changes the packing.
    ///
    /// # Errors
    /// An index lies outside `source`.
    pub fn gather(&self, source: &Tensor, rows: Vec<u32>) -> Result<Tensor> {
        if source.device().is_cpu() && source.dtype() == DType::F32 && rows.len() == self.rows {
            let (count, channels) = source.dims2()?;
            let mut inner = self.spans.iter().flat_map(|span| &rows[span.clone()]);
            if let Some(row) = inner.find(|&&row| row as usize >= count) {
                bail!("packed rows: row {row} of {count}")
            }
            let y = with_slices([source], |[source]| {
                let mut y = vec![0f32; self.rows * channels];
                for row in self.spans.iter().flat_map(Range::clone) {
                    let from = &source[rows[row] as usize * channels..][..channels];
                    y[row * channels..][..channels].copy_from_slice(from);
                }
                y
            })?;
            return Tensor::from_vec(y, (self.rows, channels), source.device());
        }
        let index = Tensor::from_vec(rows, self.rows, source.device())?;
        self.clear_gaps(&source.contiguous()?.index_select(&index, 0)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_start_aligned_and_gaps_are_wide_enough() {
        let packed = PackedRows::new(&[1, 16, 30, 5], 3, &Device::Cpu).unwrap();
        assert_eq!(packed.spans(), [0..1, 16..32, 48..78, 96..101]);
        assert_eq!(packed.rows(), 112);
    }

    #[test]
    fn gathering_repacks_and_zeroes_gaps() {
        let packed = PackedRows::new(&[2, 1], 1, &Device::Cpu).unwrap();
        let source = Tensor::new(&[[1f32], [2.0], [3.0]], &Device::Cpu).unwrap();
        let rows = packed.fill(|sequence, position| [[2, 1], [1, 0]][sequence][position]);
        let gathered = packed.gather(&source, rows).unwrap();
        let values: Vec<f32> = gathered.flatten_all().unwrap().to_vec1().unwrap();
        assert_eq!(values[..3], [3.0, 2.0, 0.0]);
        assert_eq!(values[16], 2.0);
        assert_eq!(values.iter().sum::<f32>(), 7.0);
        assert!(packed.gather(&source, packed.fill(|_, _| 3)).is_err());
        let (cleared, masked) = (packed.clear_gaps(&gathered).unwrap(), gathered.broadcast_mul(&packed.mask));
        assert_eq!(cleared.to_vec2::<f32>().unwrap(), masked.unwrap().to_vec2::<f32>().unwrap());
    }
}
