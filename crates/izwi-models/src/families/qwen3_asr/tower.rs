//! The audio tower: windows of log-mel frames to rows of the language model, about 13 for a second.
//!
//! Windows are packed into one tensor of rows: linear layers run over all of them, attention within each. Source of the
//! architecture: the Python package `qwen-asr` 0.0.6, with the windows that it uses under FlashAttention-2.

use candle_core::{Device, Tensor};

use super::audio::Window;
use super::config::{CHUNK_ROWS, TowerShape};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::device::is_launch_bound;
use izwi_nn::layers::{
    EncoderConfig, EncoderLayer, EncoderNames, Epilogue, Fused, LayerNorm, Linear, Norm, PackedRows,
};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Taps of a convolution along each side.
const SIDE: usize = 3;
/// Chunks convolved at a time: on the CPU what they are made of stays small.
const CHUNKS: usize = 1;
const CHUNKS_ON_DEVICES: usize = 8;
/// The longest wave length of the table of positions, over 2π.
const WAVE: f64 = 10_000.0;

const NAMES: EncoderNames = EncoderNames {
    attention_norm: "self_attn_layer_norm",
    qkv: [("self_attn.q_proj", true), ("self_attn.k_proj", true), ("self_attn.v_proj", true)],
    output: "self_attn.out_proj",
    feed_forward_norm: "final_layer_norm",
    feed_forward: ["fc1", "fc2"],
};

/// The weights.
#[derive(Debug)]
pub(super) struct Tower {
    /// Each halves both sides of a plane.
    halvings: [Linear; 3], // over the 9 places around one
    joined: Linear,
    positions: Tensor, // [CHUNK_ROWS, width]
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    projections: [Linear; 2],
    bins: usize,
    device: Device,
}

/// What the tower does with windows, for comparison with a reference.
pub(super) type Tap<'a> = dyn FnMut(&str, &Tensor, &PackedRows) -> Result<(), Error> + 'a;

impl Tower {
    /// Takes everything under `thinker.audio_tower`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        shape: TowerShape,
        precision: Precision,
    ) -> Result<Self, Error> {
        let TowerShape { width, channels, bins, .. } = shape;
        let name = |part: &str| format!("thinker.audio_tower.{part}");
        let device = from.device().clone();
        let mut halving = |index: usize, inputs: usize| {
            let name = name(&format!("conv2d{index}"));
            let bias = from.take(&format!("{name}.bias"), &[channels])?;
            let part = [(format!("{name}.weight"), vec![channels, inputs, SIDE, SIDE])];
            let sizes = (SIDE * SIDE * inputs, channels);
            // A place has its channels side by side.
            let by_place = |weights: Vec<Tensor>| {
                Ok(weights[0].permute((0, 2, 3, 1))?.reshape((channels, SIDE * SIDE * inputs))?)
            };
            let weight = Linear::load_transformed(from, (&part, "by place"), sizes, precision, by_place)?;
            Ok::<_, Error>(weight.with_bias(&bias)?)
        };
        let halvings = [halving(1, 1)?, halving(2, channels)?, halving(3, channels)?];
        let columns = columns(bins);
        let part = [(name("conv_out.weight"), vec![width, channels * columns])];
        // The reference flattens channel by channel, these planes place by place.
        let by_place = |weights: Vec<Tensor>| {
            let weight = weights[0].reshape((width, channels, columns))?.transpose(1, 2)?.contiguous()?;
            Ok(weight.reshape((width, columns * channels))?)
        };
        let sizes = (columns * channels, width);
        let joined = Linear::load_transformed(from, (&part, "by place"), sizes, precision, by_place)?;
        let sizes = EncoderConfig { width, heads: shape.heads, hidden: shape.hidden };
        let layers = (0..shape.layers).map(|layer| {
            EncoderLayer::load_named(from, &name(&format!("layers.{layer}")), &NAMES, sizes, precision)
        });
        let layers = layers.collect::<Result<_, _>>()?;
        let mut linear = |part: &str, outputs: usize| {
            Linear::load_with_precision(from, &name(part), (width, outputs), true, precision)
        };
        Ok(Self {
            halvings,
            joined,
            positions: positions(width, &device)?,
            layers,
            projections: [linear("proj1", width)?, linear("proj2", shape.output)?],
            norm: LayerNorm::load(from, &name("ln_post"), width)?,
            bins,
            device,
        })
    }

    /// Where its weights are.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// The rows of each window, `[rows, output]`: the same bits in any batch.
    ///
    /// # Errors
    /// A window has another shape, or the device is out of memory.
    pub(super) fn forward(&self, windows: &[&Window]) -> Result<Vec<Tensor>, Error> {
        self.forward_tapped(windows, &mut |_, _, _| Ok(()))
    }

    /// As [`Self::forward`]; `tap` gets the rows between.
    pub(super) fn forward_tapped(
        &self,
        windows: &[&Window],
        tap: &mut Tap<'_>,
    ) -> Result<Vec<Tensor>, Error> {
        let embedded = windows.iter().map(|window| self.embed(window)).collect::<Result<Vec<_>, _>>()?;
        let lengths: Vec<usize> = windows.iter().map(|window| window.rows.len()).collect();
        let packed = PackedRows::new(&lengths, 0, &self.device)?;
        let mut x = packed.pack(&embedded)?; // [rows, width]
        tap("conv_pos", &x, &packed)?;
        for (index, layer) in self.layers.iter().enumerate() {
            yield_point();
            x = layer.forward(&x, &packed)?;
            tap(&format!("layer{index}"), &x, &packed)?;
        }
        let [inner, outer] = &self.projections;
        let norm = Some(Norm::Layer(&self.norm));
        let x = inner.forward_fused(&x, Fused { norm, epilogue: Epilogue::Gelu, ..Fused::default() })?;
        let x = outer.forward(&x)?;
        tap("out", &x, &packed)?;
        // A view would keep the rows of the whole batch.
        packed
            .spans()
            .iter()
            .map(|span| Ok(x.narrow(0, span.start, span.len())?.force_contiguous()?))
            .collect()
    }

    /// The convolutions and the positions within each chunk: `[rows, width]`.
    fn embed(&self, window: &Window) -> Result<Tensor, Error> {
        let at_once = if is_launch_bound(&self.device) { CHUNKS_ON_DEVICES } else { CHUNKS };
        let chunk = window.length * self.bins;
        let mut parts = Vec::with_capacity(window.chunks.div_ceil(at_once));
        for mel in window.mel.chunks(at_once * chunk) {
            let chunks = mel.len() / chunk;
            let mut x = Tensor::from_slice(mel, (mel.len(), 1), &self.device)?;
            let (mut rows, mut columns) = (window.length, self.bins);
            for halving in &self.halvings {
                let around = around(&x, chunks, rows, columns)?;
                (rows, columns) = (rows.div_ceil(2), columns.div_ceil(2));
                x = halving.forward_fused(&around, Fused { epilogue: Epilogue::Gelu, ..Fused::default() })?;
            }
            let width = columns * x.dim(1)?;
            let x = self.joined.forward(&x.reshape((chunks * rows, width))?)?;
            let x = x.reshape((chunks, rows, x.dim(1)?))?;
            parts.push(x.broadcast_add(&self.positions.narrow(0, 0, rows)?)?.flatten(0, 1)?);
        }
        // Only the last chunk may have rows of padding.
        Ok(Tensor::cat(&parts, 0)?.narrow(0, 0, window.rows.len())?)
    }
}

/// Columns of a plane of `bins` after the convolutions.
fn columns(bins: usize) -> usize {
    bins.div_ceil(2).div_ceil(2).div_ceil(2)
}

/// For every second row and column of `planes` planes `[rows, columns, channels]` the 9 places around it, zeros outside:
/// `[places, 9 * channels]`, a place's column before its row.
fn around(x: &Tensor, planes: usize, rows: usize, columns: usize) -> Result<Tensor, Error> {
    let (places, channels) = x.dims2()?;
    let outside = places as u32;
    let mut ids = Vec::with_capacity(planes * rows.div_ceil(2) * columns.div_ceil(2) * SIDE * SIDE);
    for plane in 0..planes {
        for (row, column) in
            (0..rows).step_by(2).flat_map(|row| (0..columns).step_by(2).map(move |c| (row, c)))
        {
            for tap in 0..SIDE * SIDE {
                let column = (column + tap / SIDE).checked_sub(1).filter(|&column| column < columns);
                let row = (row + tap % SIDE).checked_sub(1).filter(|&row| row < rows);
                let place = row.zip(column).map(|(row, column)| (plane * rows + row) * columns + column);
                ids.push(place.map_or(outside, |place| place as u32));
            }
        }
    }
    let count = ids.len();
    let x = Tensor::cat(&[x, &Tensor::zeros((1, channels), x.dtype(), x.device())?], 0)?;
    let around = x.index_select(&Tensor::from_vec(ids, count, x.device())?, 0)?;
    Ok(around.reshape((count / (SIDE * SIDE), SIDE * SIDE * channels))?)
}

/// Sines, then cosines, of each position of a chunk.
fn positions(width: usize, device: &Device) -> Result<Tensor, Error> {
    let half = width / 2;
    let step = WAVE.ln() / (half - 1) as f64;
    let value = |position: usize, at: usize| {
        let angle = position as f32 * (-(step as f32) * (at % half) as f32).exp();
        if at < half { angle.sin() } else { angle.cos() }
    };
    let table = (0..CHUNK_ROWS).flat_map(|position| (0..width).map(move |at| value(position, at)));
    Ok(Tensor::from_vec(table.collect::<Vec<f32>>(), (CHUNK_ROWS, width), device)?)
}
