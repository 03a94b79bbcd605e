//! Rows of activations at 8 bits, each with one scale, for integer products. Knows no weight.

use crate::arch::{DEPTH, LANES};
use crate::arch::{Int8Isa, Int8Kernel, dispatch_int8, kept_bytes};
use crate::threads::{SyncPtr, for_each_task, num_threads};

/// What a weight's stored byte is more than its value: see [`Int8Isa`].
pub(crate) const OFFSET: u8 = 128;
/// Elements of one parallel task.
const TASK: usize = 32 * 1024;
/// A row with smaller values counts as zero.
const LEAST: f32 = 1e-30;

/// Rows `[rows, inputs]` at 8 bits: the largest value of a row is ±127. Rows that were not written are zero.
#[derive(Debug, Clone)]
pub struct QuantisedRows {
    values: Vec<i8>, // [rows, stride], as [`Int8Isa::keep`] writes them, zero after the inputs
    scales: Vec<f32>,
    corrections: Vec<i32>, // see [`Int8Isa::start`]
    inputs: usize,
    stride: usize, // bytes
    kept: usize,   // see [`Int8Isa::KEPT`]
}

/// Where the rows of [`QuantisedRows`] from some row on are written.
pub(crate) struct RowWriter {
    values: SyncPtr<i8>,
    scales: SyncPtr,
    corrections: SyncPtr<i32>,
    stride: usize,
    kept: usize,
}

impl QuantisedRows {
    /// `rows` rows of zeros.
    pub fn zeros(rows: usize, inputs: usize) -> Self {
        let kept = kept_bytes();
        let stride = inputs.div_ceil(DEPTH) * kept;
        Self {
            values: vec![0; rows * stride],
            scales: vec![0.0; rows],
            corrections: vec![0; rows],
            inputs,
            stride,
            kept,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.scales.len()
    }

    /// Values of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// Bytes from one row to the next.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes of [`DEPTH`] values: see [`Int8Isa::KEPT`].
    pub(crate) fn kept(&self) -> usize {
        self.kept
    }

    /// Kept values, scales and corrections of all rows.
    pub(crate) fn parts(&self) -> (&[i8], &[f32], &[i32]) {
        (&self.values, &self.scales, &self.corrections)
    }

    /// Replaces the rows from `first` on by `x` `[n, inputs]`.
    ///
    /// # Panics
    /// They are more than there are.
    pub fn write(&mut self, first: usize, x: &[f32]) {
        let width = self.inputs.max(1);
        assert!(x.len().is_multiple_of(width), "no whole rows");
        let rows = x.len() / width;
        let to = self.writer(first, rows);
        let chunk = (TASK / width).max(1);
        for_each_task(
            rows.div_ceil(chunk),
            num_threads(),
            || (),
            |(), task| {
                let own = task * chunk..rows.min((task + 1) * chunk);
                let x = &x[own.start * width..own.end * width];
                dispatch_int8(Write { x, width, first: own.start, to: &to });
            },
        );
    }

    /// The place of `rows` rows from `first` on.
    ///
    /// # Panics
    /// They are more than there are.
    pub(crate) fn writer(&mut self, first: usize, rows: usize) -> RowWriter {
        assert!(first.checked_add(rows).is_some_and(|end| end <= self.rows()), "rows that do not exist");
        RowWriter {
            values: SyncPtr(self.values[first * self.stride..].as_mut_ptr()),
            scales: SyncPtr(self.scales[first..].as_mut_ptr()),
            corrections: SyncPtr(self.corrections[first..].as_mut_ptr()),
            stride: self.stride,
            kept: self.kept,
        }
    }
}

struct Write<'a> {
    x: &'a [f32],
    width: usize,
    first: usize,
    to: &'a RowWriter,
}

// SAFETY: `QuantisedRows::write` gives each task rows of its own.
unsafe impl Int8Kernel for Write<'_> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(self) {
        for (at, row) in self.x.chunks_exact(self.width).enumerate() {
            self.to.put::<D>(self.first + at, row);
        }
    }
}

impl RowWriter {
    /// Writes one row. The scale of a row with an infinity or a NaN is one too, so that it propagates.
    ///
    /// # Safety
    /// As [`Int8Isa`]; the row is one of those that the writer was made for and as long as they are, and no other thread
    /// accesses it.
    #[inline(always)]
    pub(crate) unsafe fn put<D: Int8Isa>(&self, row: usize, x: &[f32]) {
        assert!(self.kept == D::KEPT, "another level allocated the rows");
        // Compared as integers, where a NaN is the largest.
        let (whole, rest) = x.as_chunks::<LANES>();
        let mut lanes = [0u32; LANES];
        for x in whole {
            for lane in 0..LANES {
                lanes[lane] = (x[lane].to_bits() & 0x7fff_ffff).max(lanes[lane]);
            }
        }
        for lane in 0..rest.len() {
            lanes[lane] = (rest[lane].to_bits() & 0x7fff_ffff).max(lanes[lane]);
        }
        let mut largest = 0;
        for lane in lanes {
            largest = lane.max(largest);
        }
        let largest = f32::from_bits(largest);
        let inverse = if largest > LEAST { 127.0 / largest } else { 0.0 };
        let mut to = self.values.get().add(row * self.stride);
        let mut sums = [0i32; LANES];
        for x in whole {
            let mut values = [0i8; LANES];
            for lane in 0..LANES {
                values[lane] = round(x[lane] * inverse);
                sums[lane] += i32::from(values[lane]);
            }
            for values in values.as_chunks::<DEPTH>().0 {
                D::keep(to, *values);
                to = to.add(D::KEPT);
            }
        }
        let mut sum = 0i32;
        for lane in sums {
            sum += lane;
        }
        for x in rest.chunks(DEPTH) {
            let mut values = [0i8; DEPTH];
            for at in 0..x.len() {
                values[at] = round(x[at] * inverse);
                sum = sum.wrapping_add(i32::from(values[at]));
            }
            D::keep(to, values);
            to = to.add(D::KEPT);
        }
        *self.scales.get().add(row) = largest / 127.0;
        *self.corrections.get().add(row) = sum.wrapping_mul(-i32::from(OFFSET));
    }
}

/// The nearest integer, the even one of two, of a value within ±127; some byte of any other.
#[inline(always)]
fn round(value: f32) -> i8 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    (value + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::values;

    impl QuantisedRows {
        /// Value `at` of a row.
        pub(crate) fn value(&self, row: usize, at: usize) -> i8 {
            let kept = &self.values[row * self.stride + at / DEPTH * self.kept..][..self.kept];
            match self.kept {
                DEPTH => kept[at % DEPTH],
                _ => kept[[0, 4, 2, 6][at % DEPTH]], // little-endian, even ones first
            }
        }
    }

    #[test]
    fn rows_are_within_half_a_level_and_others_stay_zero() {
        for inputs in [1, 5, 32, 130] {
            let x: Vec<f32> = values(7 * inputs, 3).iter().map(|x| 40.0 * x).collect();
            let mut rows = QuantisedRows::zeros(10, inputs);
            rows.write(2, &x);
            let (_, scales, corrections) = rows.parts();
            for row in 0..10 {
                let levels: Vec<i8> = (0..inputs).map(|at| rows.value(row, at)).collect();
                let sum: i32 = levels.iter().map(|&level| i32::from(level)).sum();
                assert_eq!(corrections[row], -128 * sum);
                for (at, level) in levels.into_iter().enumerate() {
                    let x = if (2..9).contains(&row) { x[(row - 2) * inputs + at] } else { 0.0 };
                    let off = (f32::from(level) * scales[row] - x).abs();
                    assert!(off <= 0.501 * scales[row], "{row} {at}: {off}");
                }
            }
        }
    }

    #[test]
    fn zeros_and_what_is_no_number_stay_in_their_row() {
        let mut rows = QuantisedRows::zeros(4, 3);
        rows.write(0, &[0.0, 0.0, 0.0, 1e-40, 0.0, 0.0, f32::NAN, 1.0, 2.0, 1.0, f32::INFINITY, 0.0]);
        let (_, scales, _) = rows.parts();
        assert!(scales[0] == 0.0 && (0..6).all(|at| rows.value(at / 3, at % 3) == 0));
        assert!(scales[1] < 1e-40 && scales[2].is_nan() && scales[3] == f32::INFINITY);
    }

    #[test]
    #[should_panic(expected = "rows that do not exist")]
    fn more_rows_than_there_are_panic() {
        QuantisedRows::zeros(2, 3).write(1, &[0.0; 6]);
    }
}
