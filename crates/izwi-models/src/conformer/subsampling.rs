//! Frames to rows an eighth as many: three strided convolutions over the plane of time and frequency, and a linear
//! layer.

use std::ops::Range;

use candle_core::{Device, Tensor};

use super::{Mel, Shape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::device::is_launch_bound;
use izwi_nn::layers::conv::DepthwiseConv2d;
use izwi_nn::layers::{Epilogue, Fused, Linear};
use izwi_types::Precision;

/// Taps of the first convolution along each side.
const SIDE: usize = 3;
/// Rows of one recording at a time: on the CPU the planes they are made of stay near the caches.
const PIECE_ROWS: usize = 16;
const PIECE_ROWS_ON_DEVICES: usize = 64;

/// The weights.
#[derive(Debug)]
pub(super) struct Subsampling {
    first: Linear, // over the 9 values around a place
    halvings: [(DepthwiseConv2d, Linear); 2],
    output: Linear,
    bins: usize,
    channels: usize,
    halving: Halving,
    device: Device,
}

/// How a convolution halves both sides of a plane.
#[derive(Debug, Clone, Copy)]
pub(super) struct Halving {
    /// Zeros before the middle of the first kernel: 1 where rows see nothing that comes after them.
    pub(super) lead: usize,
}

impl Halving {
    /// Places along a side of `count`.
    pub(super) fn places(self, count: usize) -> usize {
        (count + self.lead).div_ceil(2)
    }

    /// The rows of a plane of `count` that `rows` of the next one are made of.
    fn below(self, rows: &Range<usize>, count: usize) -> Range<usize> {
        (2 * rows.start).saturating_sub(1 + self.lead)..(2 * rows.end - self.lead).min(count)
    }

    /// Some `rows` of the next plane, made of the rows `from` on of this one.
    fn halve(
        self,
        conv: &DepthwiseConv2d,
        x: &Tensor,
        from: usize,
        rows: &Range<usize>,
    ) -> Result<Tensor, Error> {
        let before = if rows.start == 0 { self.lead } else { 0 };
        let x = match self.lead {
            0 => x.clone(),
            lead => x.pad_with_zeros(0, before, 0)?.pad_with_zeros(1, lead, 0)?,
        };
        Ok(conv.forward(&x, 2 * rows.start + before - self.lead - from, rows.len())?)
    }
}

impl Subsampling {
    /// Takes `{name}.conv.{0,2,3,5,6}` and `{name}.out`.
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        shape: &Shape,
        precision: Precision,
    ) -> Result<Self, Error> {
        let (channels, width, halving) = (shape.channels, shape.width, shape.halving());
        let mut take = |part: &str, dims: &[usize]| from.take(&format!("{name}.{part}"), dims);
        let weight = take("conv.0.weight", &[channels, 1, SIDE, SIDE])?;
        let weight = weight.reshape((channels, SIDE * SIDE))?;
        let first = Linear::new(&weight, Some(take("conv.0.bias", &[channels])?))?;
        let bins = halving.places(halving.places(halving.places(shape.bins)));
        // The reference flattens channel by channel, these planes place by place.
        let weight = take("out.weight", &[width, channels * bins])?;
        let weight = weight.reshape((width, channels, bins))?.transpose(1, 2)?.contiguous()?;
        let weight = weight.reshape((width, bins * channels))?;
        let output = Linear::with_precision(&weight, Some(take("out.bias", &[width])?), precision)?;
        let mut load = |depthwise: usize| {
            let mixing = format!("{name}.conv.{}", depthwise + 1);
            let weight = from.take(&format!("{mixing}.weight"), &[channels, channels, 1, 1])?;
            let bias = from.take(&format!("{mixing}.bias"), &[channels])?;
            let mixing =
                Linear::with_precision(&weight.reshape((channels, channels))?, Some(bias), precision)?;
            let depthwise = DepthwiseConv2d::load(from, &format!("{name}.conv.{depthwise}"), channels)?;
            Ok::<_, Error>((depthwise, mixing))
        };
        let halvings = [load(2)?, load(5)?];
        let (bins, device) = (shape.bins, from.device().clone());
        Ok(Self { first, halvings, output, bins, channels, halving, device })
    }

    /// The frames of a recording, at least one, to its rows but the first `known`: `[rows, width]`.
    pub(super) fn forward(&self, mel: &Mel, known: usize) -> Result<Tensor, Error> {
        let halving = self.halving;
        let levels = [halving.places(mel.frames), halving.places(halving.places(mel.frames))];
        let rows = halving.places(levels[1]);
        let relu = Fused { epilogue: Epilogue::Relu, ..Fused::default() };
        let mut pieces = Vec::with_capacity(rows.div_ceil(PIECE_ROWS));
        let piece = if is_launch_bound(&self.device) { PIECE_ROWS_ON_DEVICES } else { PIECE_ROWS };
        for start in (known..rows).step_by(piece) {
            let third = start..rows.min(start + piece);
            let second = halving.below(&third, levels[1]);
            let first = halving.below(&second, levels[0]);
            let mut x = self.first(mel, &first)?;
            for ((depthwise, mixing), (rows, input)) in
                self.halvings.iter().zip([(&second, &first), (&third, &second)])
            {
                let y = halving.halve(depthwise, &x, input.start, rows)?;
                let columns = y.dim(1)?;
                let y = y.reshape((rows.len() * columns, self.channels))?;
                let y = mixing.forward_fused(&y, relu)?;
                x = y.reshape((rows.len(), columns, self.channels))?;
            }
            let columns = x.dim(1)?;
            pieces.push(self.output.forward(&x.reshape((third.len(), columns * self.channels))?)?);
        }
        Ok(Tensor::cat(&pieces, 0)?)
    }

    /// Some rows of the first plane, `[rows, columns, channels]`.
    fn first(&self, mel: &Mel, rows: &Range<usize>) -> Result<Tensor, Error> {
        let (columns, before) = (self.halving.places(self.bins), 1 + self.halving.lead);
        let mut around = vec![0f32; rows.len() * columns * SIDE * SIDE];
        let places = rows.clone().flat_map(|row| (0..columns).map(move |column| (row, column)));
        for ((row, column), around) in places.zip(around.chunks_exact_mut(SIDE * SIDE)) {
            for (tap, value) in around.iter_mut().enumerate() {
                let frame = (2 * row + tap / SIDE).checked_sub(before).filter(|&frame| frame < mel.frames);
                let bin = (2 * column + tap % SIDE).checked_sub(before).filter(|&bin| bin < self.bins);
                if let (Some(frame), Some(bin)) = (frame, bin) {
                    *value = mel.values[frame * self.bins + bin];
                }
            }
        }
        let around = Tensor::from_vec(around, (rows.len() * columns, SIDE * SIDE), &self.device)?;
        let y = self.first.forward_fused(&around, Fused { epilogue: Epilogue::Relu, ..Fused::default() })?;
        Ok(y.reshape((rows.len(), columns, self.channels))?)
    }
}
