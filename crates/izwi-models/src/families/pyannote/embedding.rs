//! The voice of a speaker in a window as a vector: a residual network over spectra, and the mean and deviation of what it finds
//! in the frames of that speaker.
//!
//! Source of the architecture: `ResNet34` of <https://github.com/wenet-e2e/wespeaker>, with the normalisations folded into the
//! convolutions, and `StatsPool` of the Python package `pyannote.audio` 4.0.

use candle_core::{Device, Result, Tensor, bail};

use super::config::Sizes;
use super::fbank::Fbank;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::Linear;
use izwi_nn::layers::conv::{Conv2d, Conv2dShape, Epilogue, Plane};
use izwi_nn::yielding::yield_point;

/// Added to sums of weights.
const GUARD: f32 = 1e-8;

/// The weights, on the CPU.
#[derive(Debug)]
pub(super) struct Embedding {
    fbank: Fbank,
    first: Conv2d,
    blocks: Vec<Block>,
    last: Linear,
}

#[derive(Debug)]
struct Block {
    convs: [Conv2d; 2],
    shortcut: Option<Conv2d>,
}

impl Embedding {
    /// Takes all of a checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, sizes: &Sizes) -> std::result::Result<Self, Error> {
        let mut shape = Conv2dShape { inputs: 1, outputs: sizes.channels, side: 3, stride: 1 };
        let first = Conv2d::load(from, "conv1", shape)?;
        let mut blocks = Vec::new();
        for (stage, &count) in sizes.blocks.iter().enumerate() {
            shape.inputs = shape.outputs;
            shape.outputs = sizes.channels << stage;
            shape.stride = if stage > 0 { 2 } else { 1 };
            for block in 0..count {
                let name = |part: &str| format!("layer{}.{block}.{part}", stage + 1);
                let second = Conv2dShape { inputs: shape.outputs, stride: 1, ..shape };
                let is_same = shape == second;
                let shortcut = (!is_same)
                    .then(|| Conv2d::load(from, &name("shortcut.0"), Conv2dShape { side: 1, ..shape }));
                let convs =
                    [Conv2d::load(from, &name("conv1"), shape)?, Conv2d::load(from, &name("conv2"), second)?];
                blocks.push(Block { convs, shortcut: shortcut.transpose()? });
                shape = second;
            }
        }
        let (columns, channels) = (sizes.columns(), shape.outputs);
        let weight = from.take("seg_1.weight", &[sizes.width, 2 * channels * columns])?;
        // By columns before channels, as planes have them.
        let weight = weight.reshape((sizes.width, 2, channels, columns))?.transpose(2, 3)?;
        let weight = weight.contiguous()?.reshape((sizes.width, 2 * channels * columns))?;
        let bias = from.take("seg_1.bias", &[sizes.width])?;
        Ok(Self { fbank: Fbank::new(sizes.bins), first, blocks, last: Linear::new(&weight, Some(bias))? })
    }

    /// What the network finds in a recording, a row for each 80 ms; `None` for one without a frame.
    ///
    /// # Errors
    /// The network failed.
    pub(super) fn plane(&self, samples: &[f32], bins: usize) -> Result<Option<Plane>> {
        let frames = self.fbank.frames(samples);
        if frames.is_empty() { Ok(None) } else { self.plane_of(&frames, bins).map(Some) }
    }

    /// Spectra of which no mean is taken off.
    pub(super) fn energies(&self, samples: &[f32]) -> Vec<f32> {
        self.fbank.energies(samples)
    }

    /// What the network finds in spectra `[frames, bins]`, a row for each eight.
    ///
    /// # Errors
    /// There is no frame, or the network failed.
    pub(super) fn plane_of(&self, frames: &[f32], bins: usize) -> Result<Plane> {
        let (mut x, mut y, mut spare) = (Plane::default(), Plane::default(), Plane::default());
        self.first.forward_into(
            &Plane::of_rows(frames, bins)?,
            &mut x,
            Epilogue { accumulates: false, has_relu: true },
        )?;
        for Block { convs: [first, second], shortcut } in &self.blocks {
            yield_point();
            first.forward_into(&x, &mut y, Epilogue { accumulates: false, has_relu: true })?;
            if let Some(shortcut) = shortcut {
                shortcut.forward_into(&x, &mut spare, Epilogue { accumulates: false, has_relu: false })?;
                std::mem::swap(&mut x, &mut spare);
            }
            second.forward_into(&y, &mut x, Epilogue { accumulates: true, has_relu: true })?;
        }
        Ok(x)
    }

    /// The vector of each speaker: `pools` has the rows of a plane and whether the speaker speaks in each.
    ///
    /// # Errors
    /// A row is missing.
    pub(super) fn vectors(&self, pools: &[Pool<'_>]) -> Result<Vec<Vec<f32>>> {
        if pools.is_empty() {
            return Ok(Vec::new());
        }
        let mut rows = Vec::new();
        for pool in pools {
            rows.extend(pool.statistics()?);
        }
        let width = rows.len() / pools.len();
        self.last.forward(&Tensor::from_vec(rows, (pools.len(), width), &Device::Cpu)?)?.to_vec2()
    }
}

/// Rows of a plane in which a speaker speaks.
#[derive(Debug)]
pub(super) struct Pool<'a> {
    pub(super) plane: &'a Plane,
    /// The first row.
    pub(super) start: usize,
    /// Whether the speaker speaks in each row from there on.
    pub(super) speaks: Vec<bool>,
}

impl Pool<'_> {
    /// Mean and standard deviation of each value, `[2, columns, channels]`.
    fn statistics(&self) -> Result<Vec<f32>> {
        let Self { plane, start, speaks } = self;
        if start + speaks.len() > plane.rows() {
            bail!("pool: rows {start} to {} of {}", start + speaks.len(), plane.rows())
        }
        let own = || (*start..).zip(speaks).filter(|(_, speaks)| **speaks).map(|(row, _)| plane.row(row));
        let count = own().count() as f32;
        let weight = count + GUARD;
        let mut mean = vec![0f32; if plane.rows() > 0 { plane.row(0).len() } else { 0 }];
        for row in own() {
            mean.iter_mut().zip(row).for_each(|(mean, x)| *mean += x);
        }
        mean.iter_mut().for_each(|mean| *mean /= weight);
        let mut deviation = vec![0f32; mean.len()];
        for row in own() {
            let values = deviation.iter_mut().zip(row).zip(&mean);
            values.for_each(|((sum, x), mean)| *sum += (x - mean) * (x - mean));
        }
        let degrees = weight - count / weight + GUARD;
        deviation.iter_mut().for_each(|sum| *sum = (*sum / degrees).sqrt());
        mean.append(&mut deviation);
        Ok(mean)
    }
}

impl Sizes {
    /// Columns of the network's last plane.
    pub(super) fn columns(&self) -> usize {
        (1..self.blocks.len()).fold(self.bins, |columns, _| columns.div_ceil(2))
    }
}
