//! Bidirectional attention with relative positions within spans of packed rows. Knows no layer.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// Rows of a threadgroup, and its simdgroups.
const TILE_ROWS: usize = 16;
const SIMDGROUPS: usize = 4;
/// Widest head of the kernel.
const MAX_HEAD_DIM: usize = 128;
/// Words that go into a command.
const MAX_WORDS: usize = 1024;

/// Attention of the queries, keys and values side by side in `mixed` `[rows, 3 * heads * head_dim]`, whose arguments are
/// checked; rows outside spans become zero.
///
/// # Errors
/// Heads are too wide.
pub fn relative(
    mixed: &Tensor,
    distances: &Tensor,
    [content, place]: [&Tensor; 2],
    heads: usize,
    spans: &[Range<usize>],
) -> Result<Tensor> {
    let (rows, width) = mixed.dims2()?;
    let (width, mixed) = (width / 3, mixed.contiguous()?);
    let head_dim = width / heads;
    if head_dim > MAX_HEAD_DIM {
        bail!("relative attention: heads of {head_dim}, the kernel for Metal has up to {MAX_HEAD_DIM}")
    }
    let mut words = Vec::new();
    let mut add = |range: Range<usize>, is_span: bool| {
        for start in range.clone().step_by(TILE_ROWS) {
            let of_span = if is_span { [range.start, range.len()] } else { [0, 0] };
            let tile = [start, TILE_ROWS.min(range.end - start), of_span[0], of_span[1]];
            words.extend(tile.map(|word| word as u32));
        }
    };
    let mut end = 0;
    for span in spans {
        add(end..span.start, false);
        add(span.clone(), true);
        end = span.end;
    }
    add(end..rows, false);
    let params = [heads as u32, head_dim as u32, (distances.dim(0)? / 2 + 1) as u32];
    let name = match head_dim.div_ceil(32) {
        0 | 1 => "relative_1",
        2 => "relative_2",
        _ => "relative_4",
    };
    let long = (words.len() > MAX_WORDS).then(|| Tensor::new(&words[..], mixed.device())).transpose()?;
    let grid = Grid { groups: [heads, words.len() / 4, 1], threads: 32 * SIMDGROUPS };
    let pass = Pass::of(&mixed)?;
    let y = pass.empty((rows, width), DType::F32)?;
    let args = [
        Arg::In(&mixed),
        Arg::In(distances),
        Arg::In(content),
        Arg::In(place),
        Arg::Out(&y),
        long.as_ref().map_or(Arg::Params(&words), Arg::In),
        Arg::Params(&params),
    ];
    let scores: usize = spans.iter().map(|span| span.len() * span.len()).sum();
    pass.expect(6 * scores * width, 0)?;
    pass.run(Kernel(Source::Relative, name), &args, grid)?;
    Ok(y)
}
