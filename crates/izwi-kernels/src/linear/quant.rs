//! Block quantisation at 8 and 4 bits: 32 weights as integer levels with one scale, and the dot products of levels.

use half::f16;

use crate::arch::{DEPTH, FIRST_LEVEL, Int8Isa, LANES, LINE, prefetch};

/// Inputs that share a scale.
pub(crate) const BLOCK: usize = 32;
/// Columns of a panel: with 6 rows their sums and totals fill the registers.
pub(crate) const PANEL: usize = VECTORS * LANES;
/// Vectors of a panel.
pub(crate) const VECTORS: usize = 2;
/// Bytes from the lines of 4 inputs to those of the next.
const LINES: usize = PANEL / LANES * LINE;
/// Steps of the search for a scale, to both sides.
const STEPS: i32 = 6;

/// A type of quantised weights.
pub(crate) trait QuantType: Send + Sync + 'static {
    /// A stored level less its value.
    const OFFSET: u8;
    /// The bits of a level.
    const MASK: u8;
    /// Lines of 16 columns and 32 inputs.
    const LINES: usize;
    /// Time of a multiply-add of one row relative to others: see [`super::panels::Split`].
    const COST: usize;
    /// Whether fetching ahead makes a single row faster.
    const FETCH_FOR_ONE: bool;
    /// The scale of a block and its levels, `OFFSET` added.
    fn quantise(values: &[f32; BLOCK]) -> (f16, [u8; BLOCK]);
    /// Empty sums of `R` rows: see [`Int8Isa::start`].
    ///
    /// # Safety
    /// As [`Int8Isa`].
    unsafe fn start<D: Int8Isa, const R: usize, const C: usize>(corrections: *const i32) -> [[D::S; C]; R];
    /// Adds the products of the first `C` vectors of a block's lines with `R` rows of [`BLOCK`] kept values; fetches
    /// the lines that are `ahead` bytes later.
    ///
    /// # Safety
    /// As [`Int8Isa`].
    unsafe fn dots<D: Int8Isa, const R: usize, const C: usize>(
        sums: &mut [[D::S; C]; R],
        lines: *const u8,
        x: *const i8,
        ahead: Option<usize>,
    );
}

/// 8 bits: the largest of a block is ±127.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q8;

/// 4 bits: -8 to 7, with the scale of least squared error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Q4;

impl QuantType for Q8 {
    const OFFSET: u8 = 128;
    const MASK: u8 = 255;
    const LINES: usize = 8;
    const COST: usize = 1;
    const FETCH_FOR_ONE: bool = false;

    #[inline(always)]
    fn quantise(values: &[f32; BLOCK]) -> (f16, [u8; BLOCK]) {
        let mut largest = 0f32;
        for value in values {
            largest = value.abs().max(largest);
        }
        let scale = f16::from_f32(largest / 127.0);
        (scale, levels(values, inverse(scale), -127.0, 127.0, Self::OFFSET))
    }

    #[inline(always)]
    unsafe fn start<D: Int8Isa, const R: usize, const C: usize>(corrections: *const i32) -> [[D::S; C]; R] {
        start::<D, 128, R, C>(corrections)
    }

    #[inline(always)]
    unsafe fn dots<D: Int8Isa, const R: usize, const C: usize>(
        sums: &mut [[D::S; C]; R],
        lines: *const u8,
        x: *const i8,
        ahead: Option<usize>,
    ) {
        if D::TWO {
            for two in 0..Self::LINES / 2 {
                let at = lines.add(2 * two * LINES);
                let weights = [load::<D, C>(at, ahead), load::<D, C>(at.add(LINES), ahead)];
                add_two::<D, 128, R, C>(sums, &weights, x.add(2 * two * D::KEPT));
            }
            return;
        }
        for depth in 0..Self::LINES {
            let weights = load::<D, C>(lines.add(depth * LINES), ahead);
            add::<D, 128, R, C>(sums, &weights, x.add(depth * D::KEPT));
        }
    }
}

impl QuantType for Q4 {
    const OFFSET: u8 = 8;
    const MASK: u8 = 15;
    const LINES: usize = 4;
    const COST: usize = 1;
    const FETCH_FOR_ONE: bool = true;

    /// Tries scales around the one that makes the largest value -8, each improved to the best one for its levels.
    #[inline(always)]
    fn quantise(values: &[f32; BLOCK]) -> (f16, [u8; BLOCK]) {
        let mut largest = 0f32;
        for &value in values {
            largest = if value.abs() > largest.abs() { value } else { largest };
        }
        let (mut best, mut gain) = (f16::ZERO, 0.0);
        for step in -STEPS..=STEPS {
            let inverse = (step as f32 * 0.15 - 8.0) / largest;
            let (mut products, mut squares) = ([0f32; LANES], [0f32; LANES]);
            for values in values.as_chunks::<LANES>().0 {
                for lane in 0..LANES {
                    let level = round((values[lane] * inverse).clamp(-8.0, 7.0)) as f32;
                    products[lane] += level * values[lane];
                    squares[lane] += level * level;
                }
            }
            let (mut product, mut square) = (0.0, 0.0);
            for lane in 0..LANES {
                product += products[lane];
                square += squares[lane];
            }
            if product * product > gain * square {
                (best, gain) = (f16::from_f32(product / square), product * product / square);
            }
        }
        (best, levels(values, inverse(best), -8.0, 7.0, Self::OFFSET))
    }

    #[inline(always)]
    unsafe fn start<D: Int8Isa, const R: usize, const C: usize>(corrections: *const i32) -> [[D::S; C]; R] {
        start::<D, 8, R, C>(corrections)
    }

    #[inline(always)]
    unsafe fn dots<D: Int8Isa, const R: usize, const C: usize>(
        sums: &mut [[D::S; C]; R],
        lines: *const u8,
        x: *const i8,
        ahead: Option<usize>,
    ) {
        if D::TWO {
            for two in 0..Self::LINES / 2 {
                let at = lines.add(2 * two * LINES);
                let ([low, high], [next_low, next_high]) =
                    (nibbles::<D, C>(at, ahead), nibbles::<D, C>(at.add(LINES), ahead));
                let x = x.add(2 * two * D::KEPT);
                add_two::<D, 8, R, C>(sums, &[low, next_low], x);
                add_two::<D, 8, R, C>(sums, &[high, next_high], x.add(Self::LINES * D::KEPT));
            }
            return;
        }
        for depth in 0..Self::LINES {
            let [low, high] = nibbles::<D, C>(lines.add(depth * LINES), ahead);
            add::<D, 8, R, C>(sums, &low, x.add(depth * D::KEPT));
            add::<D, 8, R, C>(sums, &high, x.add((Self::LINES + depth) * D::KEPT));
        }
    }
}

/// A line of `C` vectors; fetches that of all vectors which is `ahead` bytes later.
///
/// # Safety
/// As [`Int8Isa`].
#[inline(always)]
unsafe fn load<D: Int8Isa, const C: usize>(line: *const u8, ahead: Option<usize>) -> [D::B; C] {
    if let Some(ahead) = ahead {
        for vector in 0..VECTORS {
            prefetch::<FIRST_LEVEL>(line.wrapping_add(vector * LINE + ahead));
        }
    }
    let mut weights = [D::bytes(line); C];
    for (vector, weights) in weights.iter_mut().enumerate() {
        *weights = D::bytes(line.add(vector * LINE));
    }
    weights
}

/// The low and the high halves of a line of `C` vectors: see [`load`].
///
/// # Safety
/// As [`Int8Isa`].
#[inline(always)]
unsafe fn nibbles<D: Int8Isa, const C: usize>(line: *const u8, ahead: Option<usize>) -> [[D::B; C]; 2] {
    let both = load::<D, C>(line, ahead);
    let (mut low, mut high) = (both, both);
    for vector in 0..C {
        (low[vector], high[vector]) = (D::low(both[vector]), D::high(both[vector]));
    }
    [low, high]
}

/// Empty sums: see [`QuantType::start`].
///
/// # Safety
/// As [`Int8Isa`].
#[inline(always)]
unsafe fn start<D: Int8Isa, const OFFSET: u8, const R: usize, const C: usize>(
    corrections: *const i32,
) -> [[D::S; C]; R] {
    let mut sums = [[D::start::<OFFSET>(0); C]; R];
    for (row, sums) in sums.iter_mut().enumerate() {
        *sums = [D::start::<OFFSET>(*corrections.add(row)); C];
    }
    if D::TWO {
        for (pair, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let corrections = corrections.add(2 * pair);
            let [first, second] = D::start_two::<OFFSET>([*corrections, *corrections.add(1)]);
            *sums = [[first; C], [second; C]];
        }
    }
    sums
}

/// Adds the products of two lines: see [`Int8Isa::dot_rows`].
///
/// # Safety
/// As [`Int8Isa`].
#[inline(always)]
unsafe fn add_two<D: Int8Isa, const OFFSET: u8, const R: usize, const C: usize>(
    sums: &mut [[D::S; C]; R],
    weights: &[[D::B; C]; 2],
    x: *const i8,
) {
    for vector in 0..C {
        let mut column = [sums[0][vector]; R];
        for row in 1..R {
            column[row] = sums[row][vector];
        }
        D::dot_rows::<OFFSET, R>(
            &mut column,
            [weights[0][vector], weights[1][vector]],
            (x, BLOCK / DEPTH * D::KEPT),
        );
        for row in 0..R {
            sums[row][vector] = column[row];
        }
    }
}

/// Adds the products of [`DEPTH`] inputs.
///
/// # Safety
/// As [`Int8Isa`].
#[inline(always)]
unsafe fn add<D: Int8Isa, const OFFSET: u8, const R: usize, const C: usize>(
    sums: &mut [[D::S; C]; R],
    weights: &[D::B; C],
    x: *const i8,
) {
    for (row, sums) in sums.iter_mut().enumerate() {
        for vector in 0..C {
            sums[vector] =
                D::dot::<OFFSET>(sums[vector], weights[vector], x.add(row * BLOCK / DEPTH * D::KEPT));
        }
    }
}

#[inline(always)]
fn inverse(scale: f16) -> f32 {
    if scale == f16::ZERO { 0.0 } else { 1.0 / scale.to_f32() }
}

#[inline(always)]
fn levels(values: &[f32; BLOCK], inverse: f32, least: f32, most: f32, offset: u8) -> [u8; BLOCK] {
    let mut levels = [0; BLOCK];
    for at in 0..BLOCK {
        levels[at] = (round((values[at] * inverse).clamp(least, most)) + i32::from(offset)) as u8;
    }
    levels
}

/// The nearest integer, the even one of two, of a value within 2²²; its low bits where the value is not.
#[inline(always)]
pub(crate) fn round(value: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to an integer
    (value + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}
