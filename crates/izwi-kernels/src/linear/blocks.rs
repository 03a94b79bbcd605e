//! Matrix product with a quantised right side: blocks of 32 inputs with one scale, in panels of 32 columns.
//!
//! The left rows are quantised to 8 bits with one scale per 32 inputs. Sums within a block are exact integers; blocks are
//! added in order, each with a multiplication and an addition. An output element is therefore the same bits at every
//! instruction level and every number of rows and threads.

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::ops::Range;

use half::f16;

use crate::arch::{DEPTH, Int8Isa, Int8Kernel, LINE, dispatch_int8, kept_bytes, scales};
use crate::arch::{FIRST_LEVEL, LANES, load_part, prefetch, store_part};
use crate::linear::panels::{BLOCK_ROWS, Rows, Split};
use crate::linear::quant::{BLOCK, PANEL, QuantType, VECTORS, round};
use crate::linear::source::WeightSource;
use crate::packed::{CACHE_LINE, Line, Memory, Part};
use crate::threads::num_threads;
use crate::threads::{SyncPtr, for_each_task};

/// Bytes of the scales before a block's weights.
const SCALES: usize = PANEL * size_of::<f16>();
/// Blocks that stay in the first-level cache while every tile of rows passes.
const PASS: usize = 8;
/// Bytes fetched ahead where one tile takes all rows, line by line as the lines are used.
const AHEAD: usize = 6144;
/// Rows quantised by one task.
const TASK_ROWS: usize = 16;

/// A matrix `[inputs, outputs]` as records `[outputs / 32][inputs / 32]`: 32 scales, then lines `[inputs / 4][columns /
/// 16]`, at 4 bits two values per byte. Missing inputs are zero; missing columns are undefined.
#[derive(Debug, Clone)]
pub(crate) struct Blocks<G> {
    data: Memory<Line>,
    inputs: usize,
    outputs: usize,
    quant: PhantomData<G>,
}

impl<G: QuantType> Blocks<G> {
    const RECORD: usize = SCALES + VECTORS * G::LINES * LINE;

    /// Quantises a weight `[outputs, inputs]`.
    pub(crate) fn pack(from: WeightSource<'_>, inputs: usize, outputs: usize) -> Self {
        assert_eq!(from.len(), inputs * outputs);
        let (panels, depth) = (outputs.div_ceil(PANEL), inputs.div_ceil(BLOCK));
        let mut data = vec![Line([0; CACHE_LINE]); Self::bytes_of(inputs, outputs) / CACHE_LINE];
        let out = SyncPtr(data.as_mut_ptr().cast::<u8>());
        for_each_task(panels, num_threads(), Vec::new, |row: &mut Vec<f32>, panel| {
            row.resize(inputs, 0.0);
            for column in 0..PANEL.min(outputs - panel * PANEL) {
                from.row(panel * PANEL + column, row);
                // SAFETY: each task has its own panel of `data`.
                let records = unsafe { out.get().add(panel * depth * Self::RECORD) };
                dispatch_int8(Column::<G> { values: row, records, column, quant: PhantomData });
            }
        });
        Self { data: Memory::Own(data), inputs, outputs, quant: PhantomData }
    }

    /// The matrix whose packed bytes are `data`; `None` where their number does not fit.
    pub(crate) fn unpack(data: Part, inputs: usize, outputs: usize) -> Option<Self> {
        let data = (data.len() == Self::bytes_of(inputs, outputs)).then_some(Memory::Part(data))?;
        Some(Self { data, inputs, outputs, quant: PhantomData })
    }

    fn bytes_of(inputs: usize, outputs: usize) -> usize {
        outputs.div_ceil(PANEL) * inputs.div_ceil(BLOCK) * Self::RECORD
    }

    /// Inputs and outputs.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.inputs, self.outputs)
    }

    /// The packed bytes.
    pub(crate) fn data(&self) -> &[u8] {
        self.data.bytes()
    }

    /// Number of the packed bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.data().len()
    }

    /// Column `output`, all inputs.
    pub(crate) fn column(&self, output: usize) -> impl Iterator<Item = f32> + '_ {
        let (panel, column) = (output / PANEL, output % PANEL);
        let depth = self.inputs.div_ceil(BLOCK);
        let byte = |at: usize| self.data[at / CACHE_LINE].0[at % CACHE_LINE];
        (0..self.inputs).map(move |input| {
            let record = (panel * depth + input / BLOCK) * Self::RECORD;
            let scale = [0, 1].map(|at| byte(record + column * size_of::<f16>() + at));
            let (at, shift) = place::<G>(column, input % BLOCK);
            let level = (byte(record + at) >> shift) & G::MASK;
            f16::from_ne_bytes(scale).to_f32() * (f32::from(level) - f32::from(G::OFFSET))
        })
    }
}

/// Place of the weight of a column and an input in its record: byte and shift.
#[inline(always)]
fn place<G: QuantType>(column: usize, input: usize) -> (usize, usize) {
    let depth = input / DEPTH;
    let line = depth % G::LINES * VECTORS + column / LANES;
    (SCALES + line * LINE + column % LANES * DEPTH + input % DEPTH, depth / G::LINES * 4)
}

/// Quantises one column into its records.
struct Column<'a, G> {
    values: &'a [f32],
    records: *mut u8,
    column: usize,
    quant: PhantomData<G>,
}

// SAFETY: `pack` gives each task the records of its own panel.
unsafe impl<G: QuantType> Int8Kernel for Column<'_, G> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(self) {
        for (block, values) in self.values.chunks(BLOCK).enumerate() {
            let mut padded = [0f32; BLOCK];
            padded[..values.len()].copy_from_slice(values);
            let (scale, levels) = G::quantise(&padded);
            let record = self.records.add(block * Blocks::<G>::RECORD);
            record.cast::<f16>().add(self.column).write_unaligned(scale);
            for (input, level) in levels.into_iter().enumerate() {
                let (at, shift) = place::<G>(self.column, input);
                *record.add(at) |= level << shift;
            }
        }
    }
}

/// Left rows at 8 bits. The [`BLOCK_ROWS`] rows of a task, or what is left of them, lie together, and in them those of
/// a block: rows at the distance of their length would share few sets of the first-level cache.
struct Quantised {
    /// `[rows / 48, blocks, 48, 32]`, as [`Int8Isa::keep`] writes them.
    values: Vec<i8>,
    /// Bytes of a block of a row.
    block_bytes: usize,
    /// `[rows / 48, blocks, 48]`.
    scales: Vec<f32>,
    /// `[rows / 48, blocks, 48]`: see [`Int8Isa::start`].
    corrections: Vec<i32>,
    blocks: usize,
}

impl Quantised {
    fn new(x: Rows<'_>, inputs: usize, offset: u8, threads: usize) -> Self {
        let (rows, blocks) = (x.count, inputs.div_ceil(BLOCK));
        let block_bytes = BLOCK / DEPTH * kept_bytes();
        let mut values = vec![0i8; rows * blocks * block_bytes];
        let (mut scales, mut corrections) = (vec![0f32; rows * blocks], vec![0i32; rows * blocks]);
        let all =
            (SyncPtr(values.as_mut_ptr()), SyncPtr(scales.as_mut_ptr()), SyncPtr(corrections.as_mut_ptr()));
        for_each_task(
            rows.div_ceil(TASK_ROWS),
            threads,
            || (),
            |(), task| {
                for row in task * TASK_ROWS..rows.min((task + 1) * TASK_ROWS) {
                    let start = row / BLOCK_ROWS * BLOCK_ROWS;
                    let at = start * blocks + row - start;
                    // SAFETY: each task has its own rows of the three.
                    let (values, scales, corrections) = unsafe {
                        (all.0.get().add(at * block_bytes), all.1.get().add(at), all.2.get().add(at))
                    };
                    let (offset, stride) = (i32::from(offset), BLOCK_ROWS.min(rows - start));
                    let x = &x.data[row * x.stride..][..inputs];
                    dispatch_int8(Quantise { x, offset, stride, values, block_bytes, scales, corrections });
                }
            },
        );
        Self { values, block_bytes, scales, corrections, blocks }
    }
}

struct Quantise<'a> {
    x: &'a [f32],
    offset: i32,
    /// Rows that lie together.
    stride: usize,
    values: *mut i8,
    block_bytes: usize,
    scales: *mut f32,
    corrections: *mut i32,
}

// SAFETY: `Quantised::new` gives each task its own rows of the three outputs.
unsafe impl Int8Kernel for Quantise<'_> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(self) {
        assert!(self.block_bytes == BLOCK / DEPTH * D::KEPT, "another level allocated the values");
        let (whole, rest) = self.x.as_chunks::<BLOCK>();
        for (block, x) in whole.iter().enumerate() {
            self.block::<D>(block, x);
        }
        if !rest.is_empty() {
            let mut padded = [0f32; BLOCK];
            padded[..rest.len()].copy_from_slice(rest);
            self.block::<D>(whole.len(), &padded);
        }
    }
}

impl Quantise<'_> {
    #[inline(always)]
    unsafe fn block<D: Int8Isa>(&self, block: usize, x: &[f32; BLOCK]) {
        let (scale, values, sum) = to_eight(x);
        let at = block * self.stride;
        let to = self.values.add(at * self.block_bytes);
        for (group, values) in values.as_chunks::<DEPTH>().0.iter().enumerate() {
            D::keep(to.add(group * D::KEPT), *values);
        }
        *self.scales.add(at) = scale;
        *self.corrections.add(at) = -self.offset * sum;
    }
}

/// A block within ±127, its scale and the sum of its values. The scale of a block with an
/// infinity or a NaN is one too, so that it propagates to the output.
#[inline(always)]
fn to_eight(x: &[f32; BLOCK]) -> (f32, [i8; BLOCK], i32) {
    // Compared as integers, where a NaN is the largest.
    let mut lanes = [0u32; LANES];
    for x in x.as_chunks::<LANES>().0 {
        for lane in 0..LANES {
            lanes[lane] = (x[lane].to_bits() & 0x7fff_ffff).max(lanes[lane]);
        }
    }
    let mut largest = 0;
    for lane in lanes {
        largest = lane.max(largest);
    }
    let largest = f32::from_bits(largest);
    let inverse = if largest > 0.0 { 127.0 / largest } else { 0.0 };
    let (mut values, mut sums) = ([0i8; BLOCK], [0i32; LANES]);
    for half in 0..BLOCK / LANES {
        for lane in 0..LANES {
            let value = round(x[half * LANES + lane] * inverse) as i8;
            values[half * LANES + lane] = value;
            sums[lane] += i32::from(value);
        }
    }
    let mut sum = 0;
    for lane in sums {
        sum += lane;
    }
    (largest / 127.0, values, sum)
}

/// `y = x W (+ bias)`: `x` `[rows, inputs]`, `bias` `[outputs]`, `y` `[rows, outputs]`, all of which is written.
///
/// # Panics
/// Lengths do not fit.
pub(crate) fn product<G: QuantType>(
    x: Rows<'_>,
    weights: &Blocks<G>,
    bias: Option<&[f32]>,
    y: &mut [MaybeUninit<f32>],
) {
    let (inputs, outputs) = (weights.inputs, weights.outputs);
    assert!(x.fits(inputs), "rows shorter than the weight");
    assert!(y.len() == x.count * outputs && bias.is_none_or(|bias| bias.len() == outputs));
    let split = Split::new(x.count, outputs.div_ceil(PANEL), weights.bytes(), G::COST * inputs * outputs);
    let x = Quantised::new(x, inputs, G::OFFSET, if split.threads > 1 { split.threads } else { 1 });
    let out = SyncPtr(y.as_mut_ptr().cast::<f32>());
    for_each_task(split.tasks(), split.threads, Vec::new, |totals: &mut Vec<f32>, task| {
        let (rows, panels) = split.task(task);
        // SAFETY: inside `y`, whose length was checked; each task has its own rows and columns.
        let y = unsafe { out.get().add(rows.start * outputs) };
        dispatch_int8(Share { x: &x, rows, weights, panels, bias, totals, y });
    });
}

/// Some rows through some panels.
struct Share<'a, G> {
    x: &'a Quantised,
    rows: Range<usize>,
    weights: &'a Blocks<G>,
    panels: Range<usize>,
    bias: Option<&'a [f32]>,
    totals: &'a mut Vec<f32>,
    /// The first of the rows.
    y: *mut f32,
}

// SAFETY: `product` checks all lengths; each task has its own rows and columns of `y`.
unsafe impl<G: QuantType> Int8Kernel for Share<'_, G> {
    #[inline(always)]
    unsafe fn run<D: Int8Isa>(self) {
        let Self { x, rows, weights, panels, bias, totals, y } = self;
        assert!(x.block_bytes == BLOCK / DEPTH * D::KEPT, "another level kept the values");
        let (blocks, outputs) = (x.blocks, weights.outputs);
        let tiles = rows.len().div_ceil(D::ROWS);
        // Vectors that are taken one after the other share the lines of a pass as tiles do.
        let pass = if tiles == 1 && D::WIDE { blocks.max(1) } else { PASS };
        totals.resize(rows.len() * PANEL, 0.0);
        for panel in panels {
            let w = weights.data.as_ptr().cast::<u8>().add(panel * blocks * Blocks::<G>::RECORD);
            totals.fill(0.0);
            for start in (0..blocks).step_by(pass) {
                for tile in 0..tiles {
                    let from = tile * rows.len() / tiles;
                    let count = (tile + 1) * rows.len() / tiles - from;
                    let totals = totals.as_mut_ptr().add(from * PANEL);
                    let (at, blocks) = (rows.start * blocks + from, start..blocks.min(start + pass));
                    let fetch = Fetch::of(tile, tiles);
                    Tile { x, at, rows: rows.len(), blocks, w, fetch, totals }.rows::<D, G>(count);
                }
            }
            let first = panel * PANEL;
            for at in (first..outputs.min(first + PANEL)).step_by(LANES) {
                let part = outputs - at;
                for (row, totals) in totals.chunks_exact(PANEL).enumerate() {
                    let total = D::load(totals.as_ptr().add(at - first));
                    let total = match bias {
                        Some(bias) => D::add(total, load_part::<D>(bias.as_ptr().add(at), part, 0.0)),
                        None => total,
                    };
                    store_part::<D>(y.add(row * outputs + at), total, part);
                }
            }
        }
    }
}

/// What a tile fetches ahead: a single one what it needs next; of several that share a panel each a part of the next pass.
enum Fetch {
    Next,
    /// A bit for each block of the pass for which the tile fetches.
    Part(u32),
}

impl Fetch {
    #[inline(always)]
    fn of(tile: usize, tiles: usize) -> Self {
        if tiles == 1 {
            return Self::Next;
        }
        let (mut part, mut index) = (0, tile);
        while index < PASS {
            part |= 1 << index;
            index += tiles;
        }
        Self::Part(part)
    }

    /// Bytes from the lines of a block, the `index`th of its pass, to those that are fetched meanwhile; 0 for those that
    /// another tile fetches.
    #[inline(always)]
    fn ahead<G: QuantType>(&self, index: usize) -> usize {
        match self {
            Self::Next => AHEAD,
            Self::Part(part) if part >> index & 1 == 1 => PASS * Blocks::<G>::RECORD,
            Self::Part(_) => 0,
        }
    }
}

/// `total` and `sums` by the scales of their columns and their row.
#[inline(always)]
unsafe fn scaled<D: Int8Isa>(sums: D::V, columns: D::V, row: f32, total: D::V) -> D::V {
    D::add(total, D::mul(sums, D::mul(columns, D::splat(row))))
}

/// A few rows through some blocks of one panel.
struct Tile<'a> {
    x: &'a Quantised,
    /// The place of the first row in a block, and the rows that lie together.
    at: usize,
    rows: usize,
    blocks: Range<usize>,
    /// The panel.
    w: *const u8,
    fetch: Fetch,
    /// `[rows, 32]`.
    totals: *mut f32,
}

impl Tile<'_> {
    #[inline(always)]
    unsafe fn rows<D: Int8Isa, G: QuantType>(&self, count: usize) {
        match count {
            8.. if D::ROWS >= 8 => self.panel::<D, G, 8>(),
            7 if D::ROWS >= 7 => self.panel::<D, G, 7>(),
            6 if D::ROWS >= 6 => self.panel::<D, G, 6>(),
            5 if D::ROWS >= 5 => self.panel::<D, G, 5>(),
            4 if D::ROWS >= 4 => self.panel::<D, G, 4>(),
            3 if D::ROWS >= 3 => self.panel::<D, G, 3>(),
            2 => self.panel::<D, G, 2>(),
            _ => self.panel::<D, G, 1>(),
        }
    }

    #[inline(always)]
    unsafe fn panel<D: Int8Isa, G: QuantType, const R: usize>(&self) {
        if D::WIDE {
            self.vectors::<D, G, R, VECTORS>(0);
        } else {
            for vector in 0..VECTORS {
                self.vectors::<D, G, R, 1>(vector);
            }
        }
    }

    /// `R` rows, `C` vectors of columns from vector `first` on.
    #[inline(always)]
    unsafe fn vectors<D: Int8Isa, G: QuantType, const R: usize, const C: usize>(&self, first: usize) {
        let in_memory = D::FEW_REGISTERS && R > 2;
        let kept = self.totals.add(first * LANES);
        let mut totals = [[D::splat(0.0); C]; R];
        if !in_memory {
            for (row, totals) in totals.iter_mut().enumerate() {
                for (vector, total) in totals.iter_mut().enumerate() {
                    *total = D::load(kept.add(row * PANEL + vector * LANES));
                }
            }
        }
        for (index, block) in self.blocks.clone().enumerate() {
            let w = self.w.add(block * Blocks::<G>::RECORD);
            let at = self.at + block * self.rows;
            let mut sums = G::start::<D, R, C>(self.x.corrections.as_ptr().add(at));
            let x = self.x.values.as_ptr().add(at * (BLOCK / DEPTH * D::KEPT));
            // One row runs at the speed of the memory, and the hardware may fetch ahead well enough.
            let ahead = match R > 1 || G::FETCH_FOR_ONE {
                true if first == 0 => Some(self.fetch.ahead::<G>(index)),
                true => Some(0),
                false => None,
            };
            if let Some(ahead) = ahead {
                prefetch::<FIRST_LEVEL>(w.wrapping_add(ahead));
            }
            G::dots::<D, R, C>(&mut sums, w.add(SCALES + first * LINE), x, ahead);
            let others = self.x.scales.as_ptr().add(at);
            let scales = w.add(first * LANES * size_of::<f16>());
            for vector in 0..C {
                let scale = self::scales::<D>(scales.add(vector * LANES * size_of::<f16>()));
                if in_memory {
                    for row in 0..R {
                        let total = kept.add(row * PANEL + vector * LANES);
                        let sums = D::floats(sums[row][vector]);
                        D::store(total, scaled::<D>(sums, scale, *others.add(row), D::load(total)));
                    }
                    continue;
                }
                let two = if D::TWO { R / 2 } else { 0 };
                for pair in 0..two {
                    let row = 2 * pair;
                    let [first, second] = D::floats_two([sums[row][vector], sums[row + 1][vector]]);
                    let total = &mut totals[row][vector];
                    *total = scaled::<D>(first, scale, *others.add(row), *total);
                    let total = &mut totals[row + 1][vector];
                    *total = scaled::<D>(second, scale, *others.add(row + 1), *total);
                }
                for row in 2 * two..R {
                    let total = &mut totals[row][vector];
                    *total = scaled::<D>(D::floats(sums[row][vector]), scale, *others.add(row), *total);
                }
            }
        }
        if !in_memory {
            for (row, totals) in totals.iter().enumerate() {
                for (vector, &total) in totals.iter().enumerate() {
                    D::store(kept.add(row * PANEL + vector * LANES), total);
                }
            }
        }
    }
}
