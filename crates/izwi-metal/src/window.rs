//! Attention of packed sequences over a window in streams, or of one sequence over itself, with the norms and rotations of
//! its heads. Knows no layer.

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// Simdgroups of a threadgroup.
const SIMDGROUPS: usize = 4;
/// Rows of a threadgroup where there is no ring.
const BLOCK: usize = 16;
/// Sequences whose words go into a command.
const MAX_SEQUENCES: usize = 340;

/// Positions that a position attends to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Length of the window.
    pub positions: usize,
    /// Positions that enter the window together, counted from the start of the sequence: all positions of a step attend
    /// from the same first position. 1 is the plain sliding window.
    pub step: usize,
}

impl Window {
    /// A plain window: each position attends to itself and the `positions - 1` before.
    pub fn new(positions: usize) -> Self {
        Self { positions, step: 1 }
    }
}

/// The states of an attention layer: the buffer, and for each sequence its rows, where its ring of keys begins (the ring of
/// values follows), and the position of its first row.
#[derive(Debug)]
pub struct WindowTable {
    /// The buffer.
    pub state: Tensor,
    /// Of each sequence.
    pub sequences: Vec<[u32; 3]>,
    /// Positions of a ring.
    pub slots: usize,
    /// Elements of a position's keys.
    pub width: usize,
}

/// Heads of a projection `[rows, (heads + 2 * kv_heads) * head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    /// Of queries.
    pub heads: usize,
    /// Of keys and values.
    pub kv_heads: usize,
    /// Weights of the norms of queries and keys, `[head_dim]`, and their addend.
    pub norms: Option<([&'a Tensor; 2], f32)>,
    /// Cosines and sines of the rows, `[2, rows, head_dim / 2]`.
    pub turns: &'a Tensor,
}

/// New rows of several sequences, each over its window; overwrites `mixed` by its rotated heads and updates the states.
///
/// # Errors
/// Shapes do not fit.
pub fn windowed(mixed: &Tensor, heads: Heads<'_>, window: Window, table: &WindowTable) -> Result<Tensor> {
    let words: Vec<u32> = table.sequences.iter().flatten().copied().collect();
    let rows: usize = table.sequences.iter().map(|words| words[0] as usize).sum();
    let head_dim = head_dim(mixed, heads)?;
    if rows != mixed.dim(0)?
        || table.width != heads.kv_heads * head_dim
        || table.slots + 1 != window.positions
        || window.step == 0
    {
        bail!("window attention: {:?} does not fit {rows} rows or {window:?}", mixed.dims())
    }
    let sequences = table.sequences.len();
    let call = Call { heads, head_dim, window, slots: table.slots, block: rows, state: Some(&table.state) };
    let long = (sequences > MAX_SEQUENCES).then(|| Tensor::new(&words[..], mixed.device())).transpose()?;
    let words = long.as_ref().map_or(Arg::Params(&words), Arg::In);
    let pass = Pass::of(mixed)?;
    let y = pass.empty((rows, heads.heads * head_dim), DType::F32)?;
    call.run(&pass, [mixed, &y], words, [7, sequences, 1])?;
    Ok(y)
}

/// Causal attention of one sequence from its first position on; overwrites `mixed` by its rotated heads.
///
/// # Errors
/// Shapes do not fit.
pub fn causal(mixed: &Tensor, heads: Heads<'_>) -> Result<Tensor> {
    let (rows, head_dim) = (mixed.dim(0)?, head_dim(mixed, heads)?);
    let words = [rows as u32, 0, 0];
    let window = Window::new(rows.max(1));
    let call = Call { heads, head_dim, window, slots: 0, block: BLOCK, state: None };
    let pass = Pass::of(mixed)?;
    let y = pass.empty((rows, heads.heads * head_dim), DType::F32)?;
    for phase in [1, 2] {
        call.run(&pass, [mixed, &y], Arg::Params(&words), [phase, 1, rows.div_ceil(BLOCK)])?;
    }
    Ok(y)
}

fn head_dim(mixed: &Tensor, of: Heads<'_>) -> Result<usize> {
    let (rows, width) = mixed.dims2()?;
    let all = of.heads + 2 * of.kv_heads;
    let head_dim = width.checked_div(all).unwrap_or(0);
    let fits = of.kv_heads > 0 && of.heads.is_multiple_of(of.kv_heads) && head_dim * all == width;
    let norms = of.norms.is_none_or(|(norms, _)| norms.iter().all(|norm| norm.dims() == [head_dim]));
    if !fits || !norms || head_dim > 256 || of.turns.dims() != [2, rows, head_dim / 2] {
        bail!(
            "window attention: {:?} is not {} and {} heads of one even width up to 256",
            mixed.dims(),
            of.heads,
            of.kv_heads
        )
    }
    Ok(head_dim)
}

struct Call<'a> {
    heads: Heads<'a>,
    head_dim: usize,
    window: Window,
    slots: usize,
    block: usize,
    state: Option<&'a Tensor>,
}

impl Call<'_> {
    fn run(
        &self,
        pass: &Pass<'_>,
        [mixed, y]: [&Tensor; 2],
        words: Arg<'_>,
        [phases, sequences, blocks]: [usize; 3],
    ) -> Result<()> {
        let Heads { heads, kv_heads, norms, turns } = self.heads;
        let [query_norm, key_norm] = norms.map_or([Arg::Unused; 2], |(norms, _)| norms.map(Arg::In));
        let params = [
            heads as u32,
            kv_heads as u32,
            self.head_dim as u32,
            self.window.positions as u32,
            self.window.step as u32,
            self.slots as u32,
            mixed.dim(0)? as u32,
            norms.map_or(0, |(_, eps)| eps.to_bits()),
            norms.is_some().into(),
            phases as u32,
            self.block as u32,
        ];
        let name = match self.head_dim.div_ceil(32) {
            1 => "windowed_1",
            2 => "windowed_2",
            3 | 4 => "windowed_4",
            _ => "windowed_8",
        };
        let args = [
            Arg::Out(mixed),
            Arg::Out(y),
            self.state.map_or(Arg::Out(y), Arg::Out),
            Arg::In(turns),
            query_norm,
            key_norm,
            words,
            Arg::Params(&params),
        ];
        let grid = Grid { groups: [kv_heads, sequences, blocks], threads: 32 * SIMDGROUPS };
        let rows = mixed.dim(0)?;
        pass.expect(4 * rows * rows.max(self.window.positions) * heads * self.head_dim, 0)?;
        pass.run(Kernel(Source::Window, name), &args, grid)
    }
}
