//! Adaptive instance norm over packed sequences. Knows no layer.

use std::ops::Range;

use candle_core::{DType, Result, Tensor, bail};

use crate::kernel::{Grid, Kernel, Source};
use crate::pass::{Arg, Pass};

/// As in instance_norm.metal.
const SIMDGROUPS: usize = 16;
/// Sequences whose places go into one command.
const MAX_SPANS: usize = 256;

/// What follows the norm.
#[derive(Debug, Clone, Copy)]
pub enum NormActivation<'a> {
    /// `x` above 0, the slope times `x` below; slope from 0 to 1.
    LeakyRelu(f32),
    /// `x + sin²(frequency x) amplitude`, `[channels]` each.
    Snake {
        /// Of each channel.
        frequency: &'a Tensor,
        /// Of each channel.
        amplitude: &'a Tensor,
    },
}

/// `activation((1 + scale) normalised(x) + shift)` of `x` `[rows, channels]`: each channel is normalised over the rows of a
/// sequence, scales and shifts are `[sequences, channels]`. Rows between sequences become zero; the first sequence begins at
/// row 0. A sequence gives the same bits beside any others.
///
/// # Errors
/// Shapes do not fit.
pub fn instance_norm(
    x: &Tensor,
    [scale, shift]: [&Tensor; 2],
    eps: f32,
    activation: NormActivation<'_>,
    spans: &[Range<usize>],
) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (rows, channels) = x.dims2()?;
    let fits = |styles: &Tensor| styles.dims() == [spans.len(), channels] && styles.stride()[1] == 1;
    if !fits(scale) || !fits(shift) || spans.first().map_or(rows, |span| span.start) != 0 {
        bail!("instance norm: {:?} does not fit {:?} or {spans:?}", x.dims(), scale.dims())
    }
    let ends = spans.iter().skip(1).map(|next| next.start).chain([rows]);
    let places = spans.iter().zip(ends).enumerate();
    let places = places.map(|(at, (span, end))| [at, span.start, span.len(), end - span.end]);
    let places: Vec<[u32; 4]> = places.map(|place| place.map(|word| word as u32)).collect();
    let (is_snake, slope, [frequency, amplitude]) = match activation {
        NormActivation::LeakyRelu(slope) => (0, slope, [Arg::Unused; 2]),
        NormActivation::Snake { frequency, amplitude } => (1, 0.0, [Arg::In(frequency), Arg::In(amplitude)]),
    };
    let [scale_stride, shift_stride] = [scale, shift].map(|styles| styles.stride()[0] as u32);
    let params = [channels as u32, scale_stride, shift_stride, eps.to_bits(), is_snake, slope.to_bits()];
    let pass = Pass::of(&x)?;
    let y = pass.empty((rows, channels), DType::F32)?;
    for places in places.chunks(MAX_SPANS) {
        let args = [
            Arg::In(&x),
            Arg::Rows(scale),
            Arg::Rows(shift),
            frequency,
            amplitude,
            Arg::Out(&y),
            Arg::Params(&params),
            Arg::Params(places.as_flattened()),
        ];
        let grid = Grid { groups: [channels.div_ceil(32), places.len(), 1], threads: 32 * SIMDGROUPS };
        pass.run(Kernel(Source::InstanceNorm, "instance_norm"), &args, grid)?;
    }
    drop(pass);
    Ok(y)
}
