//! The recurrence of a bidirectional LSTM over packed sequences. Knows no layer.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};
use crate::weights::MetalWeights;

/// Input, forget, cell and output gate.
const GATES: usize = 4;
/// States of a direction, at most, as in linear.metal.
const MAX_HIDDEN: usize = 1024;
const SIMDGROUPS: usize = 16;
/// Sequences whose places go into one command.
const MAX_SPANS: usize = 256;

/// Runs the recurrence over `gates` `[rows, 2 * 4 * hidden]`, what the inputs of each row give the gates forward and backward,
/// with recurrent weights `[4 * hidden, hidden]` of each direction: `[rows, 2 * hidden]`, zero outside of `spans`, of which the
/// first begins at row 0. A sequence gives the same bits beside any others. `None` where the states are too many for the
/// kernel, or the weights are stored in two ways.
///
/// # Errors
/// Shapes do not fit.
pub fn bidirectional(
    gates: &Tensor,
    [forward, backward]: [&MetalWeights; 2],
    spans: &[Range<usize>],
) -> Result<Option<Tensor>> {
    let (rows, hidden) = (gates.dim(0)?, forward.inputs());
    if hidden > MAX_HIDDEN || forward.stored() != backward.stored() {
        return Ok(None);
    }
    let fits = |weights: &MetalWeights| (weights.inputs(), weights.outputs()) == (hidden, GATES * hidden);
    let begins = spans.first().map_or(rows, |span| span.start) == 0;
    if gates.dim(1)? != 2 * GATES * hidden || !fits(forward) || !fits(backward) || !begins {
        bail!("lstm: {:?} does not fit {hidden} states of {spans:?}", gates.dims())
    }
    let ends = spans.iter().skip(1).map(|next| next.start).chain([rows]);
    let places = spans.iter().zip(ends).map(|(span, end)| [span.start, span.len(), end - span.end]);
    let places: Vec<[u32; 3]> = places.map(|place| place.map(|word| word as u32)).collect();
    let params = [hidden, forward.row_bytes(), forward.scales(), forward.blocks()].map(|word| word as u32);
    let gates = gates.contiguous()?;
    let pass = Pass::of(&gates)?;
    let y = pass.empty((rows, 2 * hidden), DType::F32)?;
    for places in places.chunks(MAX_SPANS) {
        let steps: usize = places.iter().map(|place| place[1] as usize).sum();
        let args = [
            Arg::In(&gates),
            Arg::In(forward.data()),
            Arg::In(backward.data()),
            Arg::Out(&y),
            Arg::Params(&params),
            Arg::Params(places.as_flattened()),
        ];
        pass.expect(2 * steps * 2 * GATES * hidden * hidden, forward.bytes() + backward.bytes())?;
        let grid = Grid { groups: [places.len(), 2, 1], threads: 32 * SIMDGROUPS };
        pass.run(Kernel(Source::Linear, forward.lstm_kernel()), &args, grid)?;
    }
    drop(pass);
    Ok(Some(y))
}
