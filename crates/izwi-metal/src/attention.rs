//! Causal attention over the paged pool and the short convolution alongside it, and the table of a step that they share. Knows
//! no layer.

use candle_core::{DType, Device, MetalDevice, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// Widest head of the kernels.
const MAX_HEAD_DIM: usize = 128;
/// Most taps of the short convolution.
pub const MAX_TAPS: usize = 8;
/// Rows of a tile of queries.
const TILE_ROWS: usize = 8;
/// Positions that a simdgroup attends to before another one helps.
const POSITIONS_PER_SIMDGROUP: usize = 16;
const MAX_SIMDGROUPS: usize = 8;

/// One span of a step: consecutive rows of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct TableSpan<'a> {
    /// Position of the first row.
    pub start: usize,
    /// Rows.
    pub count: usize,
    /// Blocks that hold the positions `0..start + count`, in order.
    pub block_table: &'a [u32],
    /// Columns to skip in the convolution state that its block keeps.
    pub skip: u32,
}

/// Positions, slots, rotations, tiles and block tables of the rows of a step, uploaded once.
#[derive(Debug, Clone)]
pub struct StepTable {
    words: Tensor, // [words] u32
    layout: TableLayout,
}

/// Where the words of a step begin in their table, and how many rows, tiles and spans there are.
#[derive(Debug, Clone, Copy)]
struct TableLayout {
    rows: usize,
    rows_at: u32,
    turns_at: u32,
    tiles: usize,
    tiles_at: u32,
    spans: usize,
    spans_at: u32,
    /// Whether every span has one row.
    is_decode: bool,
    /// Positions of the longest sequence.
    longest: usize,
    block_size: usize,
}

impl StepTable {
    /// Tables of several steps in one upload. `turns` gives the cosines and sines of a position, `head_dim` values.
    ///
    /// # Errors
    /// A block table does not cover a span, or the device is out of memory.
    pub fn upload(
        device: &MetalDevice,
        steps: &[Vec<TableSpan<'_>>],
        block_size: usize,
        turns: &dyn Fn(u32) -> Vec<f32>,
    ) -> Result<Vec<Self>> {
        let mut words = Vec::new();
        let layouts = steps.iter().map(|spans| Self::add(&mut words, spans, block_size, turns));
        let layouts = layouts.collect::<Result<Vec<_>>>()?;
        let count = words.len();
        let words = Tensor::from_vec(words, count, &Device::Metal(device.clone()))?;
        Ok(layouts.into_iter().map(|layout| Self { words: words.clone(), layout }).collect())
    }

    fn add(
        words: &mut Vec<u32>,
        spans: &[TableSpan<'_>],
        block_size: usize,
        turns: &dyn Fn(u32) -> Vec<f32>,
    ) -> Result<TableLayout> {
        let rows: usize = spans.iter().map(|span| span.count).sum();
        let mut tables_at = Vec::with_capacity(spans.len());
        for span in spans {
            let blocks = (span.start + span.count).div_ceil(block_size);
            let Some(table) = span.block_table.get(..blocks) else {
                bail!("a block table of {} blocks does not cover {blocks}", span.block_table.len())
            };
            tables_at.push(words.len() as u32);
            words.extend_from_slice(table);
        }
        let (rows_at, mut tiles, mut of_spans) = (words.len() as u32, Vec::new(), Vec::new());
        let mut first = 0;
        for (span, &table_at) in spans.iter().zip(&tables_at) {
            for at in span.start..span.start + span.count {
                let slot = span.block_table[at / block_size] * block_size as u32 + (at % block_size) as u32;
                words.extend_from_slice(&[at as u32, slot, table_at, 0]);
            }
            for start in (0..span.count).step_by(TILE_ROWS) {
                let count = TILE_ROWS.min(span.count - start);
                tiles.extend_from_slice(&[(first + start) as u32, count as u32]);
            }
            of_spans.extend_from_slice(&[first as u32, span.count as u32, span.skip]);
            first += span.count;
        }
        let turns_at = words.len() as u32;
        let positions = spans.iter().flat_map(|span| (span.start..).take(span.count));
        for position in positions {
            words.extend(turns(position as u32).into_iter().map(f32::to_bits));
        }
        let tiles_at = words.len() as u32;
        words.extend_from_slice(&tiles);
        let spans_at = words.len() as u32;
        words.extend_from_slice(&of_spans);
        Ok(TableLayout {
            rows,
            rows_at,
            turns_at,
            tiles: tiles.len() / 2,
            tiles_at,
            spans: spans.len(),
            spans_at,
            is_decode: spans.iter().all(|span| span.count == 1),
            longest: spans.iter().map(|span| span.start + span.count).max().unwrap_or(0),
            block_size,
        })
    }
}

/// Heads of an attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    /// Of queries.
    pub heads: usize,
    /// Of keys and values.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Weights of the norms of query and key heads `[head_dim]`, and their ε.
    pub norms: Option<(&'a Tensor, &'a Tensor, f32)>,
    /// Whether heads are rotated by their position.
    pub rotates: bool,
}

impl Heads<'_> {
    /// Whether the kernels take such heads and a pool of this type.
    pub fn are_supported(&self, pool: DType) -> bool {
        let odd = self.rotates && !self.head_dim.is_multiple_of(2);
        self.head_dim <= MAX_HEAD_DIM && !odd && matches!(pool, DType::F32 | DType::F16)
    }
}

impl Pass<'_> {
    /// Writes the keys and values of `mixed` `[rows, (heads + 2 kv_heads) * head_dim]` into a layer's pool
    /// `[slots, kv_heads, head_dim]`, and attends: `[rows, heads * head_dim]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn attend(
        &self,
        mixed: &Tensor,
        (keys, values): (&Tensor, &Tensor),
        table: &StepTable,
        heads: Heads<'_>,
    ) -> Result<Tensor> {
        let Heads { heads: count, kv_heads, head_dim, .. } = heads;
        let fits = mixed.dims() == [table.layout.rows, (count + 2 * kv_heads) * head_dim]
            && keys.dims()[1..] == [kv_heads, head_dim]
            && count.is_multiple_of(kv_heads);
        if !fits || !heads.are_supported(keys.dtype()) {
            bail!("paged attention: {:?} do not fit {:?}", mixed.dims(), keys.dims())
        }
        let eps = heads.norms.map_or(0.0, |(_, _, eps)| eps);
        let params = [
            count as u32,
            kv_heads as u32,
            head_dim as u32,
            table.layout.block_size as u32,
            table.layout.rows_at,
            table.layout.turns_at,
            table.layout.tiles_at,
            eps.to_bits(),
            heads.norms.is_some().into(),
            heads.rotates.into(),
        ];
        let is_f16 = keys.dtype() == DType::F16;
        let is_wide = head_dim > 64;
        let [query_norm, key_norm] =
            heads.norms.map_or([Arg::Unused; 2], |(query, key, _)| [Arg::In(query), Arg::In(key)]);
        let y = self.empty((table.layout.rows, count * head_dim), DType::F32)?;
        // At most: not every row attends to the longest history.
        self.expect(4 * table.layout.rows * table.layout.longest * count * head_dim, 0)?;
        let pool = [Arg::Out(keys), Arg::Out(values)];
        let rest = [query_norm, key_norm, Arg::In(&table.words), Arg::Params(&params)];
        if table.layout.is_decode {
            let name = match (is_f16, is_wide) {
                (false, false) => "step_f32_2",
                (false, true) => "step_f32_4",
                (true, false) => "step_f16_2",
                (true, true) => "step_f16_4",
            };
            let simdgroups = table.layout.longest.div_ceil(POSITIONS_PER_SIMDGROUP).clamp(1, MAX_SIMDGROUPS);
            let grid = Grid { groups: [count, table.layout.rows, 1], threads: 32 * simdgroups };
            let args = [&[Arg::In(mixed), Arg::Out(&y)][..], &pool, &rest].concat();
            self.run(Kernel(Source::Attention, name), &args, grid)?;
            return Ok(y);
        }
        let queries = self.empty((table.layout.rows, count * head_dim), DType::F32)?;
        let args = [&[Arg::In(mixed), Arg::Out(&queries)][..], &pool, &rest].concat();
        let name = if is_f16 { "write_f16" } else { "write_f32" };
        let grid = Grid { groups: [count + 2 * kv_heads, table.layout.rows, 1], threads: 32 };
        self.run(Kernel(Source::Attention, name), &args, grid)?;
        let name = match (is_f16, is_wide) {
            (false, false) => "tile_f32_2",
            (false, true) => "tile_f32_4",
            (true, false) => "tile_f16_2",
            (true, true) => "tile_f16_4",
        };
        let args = [
            Arg::In(&queries),
            Arg::Out(&y),
            Arg::In(keys),
            Arg::In(values),
            Arg::In(&table.words),
            Arg::Params(&params),
        ];
        let grid = Grid { groups: [count, table.layout.tiles, 1], threads: 32 * TILE_ROWS };
        self.run(Kernel(Source::Attention, name), &args, grid)?;
        Ok(y)
    }

    /// The gated short convolution of `mixed` `[rows, 3 * width]` with `weight` `[taps, width]`: `[rows, width]`. Reads and
    /// writes the states `[blocks, taps * width]` of the blocks.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn short_conv(
        &self,
        mixed: &Tensor,
        weight: &Tensor,
        states: &Tensor,
        table: &StepTable,
    ) -> Result<Tensor> {
        let (taps, width) = weight.dims2()?;
        if mixed.dims() != [table.layout.rows, 3 * width] || states.dim(1)? != taps * width || taps > MAX_TAPS
        {
            bail!("short convolution: {:?} or {:?} do not fit {width} channels", mixed.dims(), states.dims())
        }
        let y = self.empty((table.layout.rows, width), DType::F32)?;
        let params = [
            width as u32,
            taps as u32,
            table.layout.block_size as u32,
            table.layout.rows_at,
            table.layout.spans_at,
        ];
        let args = [
            Arg::In(mixed),
            Arg::Out(&y),
            Arg::Out(states),
            Arg::In(weight),
            Arg::In(&table.words),
            Arg::Params(&params),
        ];
        let grid = Grid { groups: [width.div_ceil(256), table.layout.spans, 1], threads: 256 };
        self.run(Kernel(Source::Attention, "short_conv"), &args, grid)?;
        Ok(y)
    }
}
