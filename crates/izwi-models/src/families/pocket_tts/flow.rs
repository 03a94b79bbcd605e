//! The flow head: a latent from noise, under the condition of the language model's output.
//!
//! A network of residual blocks, modulated by condition and time (<https://arxiv.org/abs/2406.11838>), and the ways to
//! sample with it. Knows no position and no codec.

use candle_core::{DType, Result, Tensor};

use super::config::{Config, FlowKind};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{Epilogue, Fused, LayerNorm, Linear, cat_weights};
use izwi_types::Precision;

/// Cosines, and sines, of a time.
const FREQUENCIES: usize = 128;
/// Addend of the norms of rows, and of the norm of embedded times.
const EPS: f64 = 1e-6;
const TIME_EPS: f32 = 1e-5;
/// Modulations of a block, shift, scale and gate, and of the last layer.
const OF_BLOCK: usize = 3;
const OF_LAST: usize = 2;

/// The flow head of a checkpoint.
#[derive(Debug)]
pub(super) struct FlowHead {
    kind: FlowKind,
    /// The embedded time of each step, `[1, dim]`; none for heads that are told no time.
    times: Vec<Tensor>,
    steps: usize,
    dim: usize,
    condition: Linear,
    input: Linear,
    /// The modulations of all blocks and of the last layer, one after another.
    modulation: Linear,
    blocks: Vec<Block>,
    last_norm: LayerNorm,
    last: Linear,
}

#[derive(Debug)]
struct Block {
    norm: LayerNorm,
    fc1: Linear,
    fc2: Linear,
}

/// Embeds a time.
#[derive(Debug)]
pub(super) struct TimeEmbedder {
    frequencies: Vec<f32>,
    fc1: Linear,
    fc2: Linear,
    alpha: Vec<f32>,
}

impl FlowHead {
    /// Takes `{name}.*`, weights kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(
        from: &mut Checkpoint,
        name: &str,
        config: &Config,
        precision: Precision,
    ) -> std::result::Result<Self, Error> {
        let (flow, steps) = (&config.flow_lm.flow, config.flow_steps());
        let (dim, latent) = (flow.dim, config.mimi.quantizer.dimension);
        let z = config.flow_lm.z_dim.unwrap_or(config.flow_lm.transformer.d_model);
        let linear = |from: &mut Checkpoint, part: &str, sizes: (usize, usize)| {
            Linear::load_with_precision(from, &format!("{name}.{part}"), sizes, true, precision)
        };
        let embedders = (0..flow.kind.num_times()).map(|k| TimeEmbedder::load(from, &embedder(name, k), dim));
        let embedders = embedders.collect::<std::result::Result<Vec<_>, _>>()?;
        let blocks = (0..flow.depth).map(|block| {
            let part = format!("res_blocks.{block}");
            let norm = LayerNorm::load_with_eps(from, &format!("{name}.{part}.in_ln"), dim, EPS)?;
            let mut fc = |layer: usize| linear(from, &format!("{part}.mlp.{layer}"), (dim, dim));
            Ok(Block { norm, fc1: fc(0)?, fc2: fc(2)? })
        });
        let blocks = blocks.collect::<std::result::Result<Vec<_>, Error>>()?;
        let ones = Tensor::ones(dim, DType::F32, from.device())?;
        let last_norm = LayerNorm::new(ones.clone(), ones.zeros_like()?, EPS);
        Ok(Self {
            times: times(flow.kind, steps, &embedders, dim, from)?,
            kind: flow.kind,
            steps,
            dim,
            condition: linear(from, "cond_embed", (z, dim))?,
            input: linear(from, "input_proj", (latent, dim))?,
            modulation: modulation(from, name, (flow.depth, dim), precision)?,
            blocks,
            last_norm,
            last: linear(from, "final_layer.linear", (dim, latent))?,
        })
    }

    /// Bytes of the weights.
    pub(super) fn bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(|block| block.fc1.bytes() + block.fc2.bytes()).sum();
        let linears = [&self.condition, &self.input, &self.modulation, &self.last];
        blocks + linears.map(Linear::bytes).into_iter().sum::<usize>()
    }

    /// Bytes of the weights that one latent reads.
    pub(super) fn frame_bytes(&self) -> usize {
        self.condition.bytes() + (self.bytes() - self.condition.bytes()) * self.steps()
    }

    fn steps(&self) -> usize {
        if self.times.is_empty() { 1 } else { self.steps }
    }

    /// Latents `[rows, latent]` from the model's outputs `z` `[rows, z]` and `noise` `[rows, latent]`. A row depends on its
    /// own rows alone.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn sample(&self, z: &Tensor, noise: &Tensor) -> Result<Tensor> {
        let condition = self.condition.forward(z)?;
        match self.kind {
            FlowKind::Drifting => self.velocity(&condition, None, noise),
            FlowKind::Pointwise => noise + self.velocity(&condition, None, noise)?,
            FlowKind::Lsd | FlowKind::FlowMatching => {
                let mut x = noise.clone();
                for time in &self.times {
                    let velocity = self.velocity(&condition, Some(time), &x)?;
                    x = (x + (velocity / self.steps as f64)?)?;
                }
                Ok(x)
            }
        }
    }

    /// The network: `[rows, latent]` from an embedded condition `[rows, dim]`, an embedded time `[1 or rows, dim]` and `x`
    /// `[rows, latent]`.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub(super) fn velocity(&self, condition: &Tensor, time: Option<&Tensor>, x: &Tensor) -> Result<Tensor> {
        let told = match time {
            Some(time) => condition.broadcast_add(time)?,
            None => condition.clone(),
        };
        let modulations = self.modulation.forward(&told.silu()?)?;
        let part = |index: usize| modulations.narrow(1, index * self.dim, self.dim);
        let modulated = |normed: Tensor, first: usize| {
            let (shift, scale) = (part(first)?, part(first + 1)?);
            ((&normed * (scale + 1.0)?)? + shift)?.contiguous()
        };
        let mut x = self.input.forward(x)?;
        for (index, Block { norm, fc1, fc2 }) in self.blocks.iter().enumerate() {
            let first = OF_BLOCK * index;
            let inner = modulated(norm.forward(&x)?, first)?;
            let inner = fc1.forward_fused(&inner, Fused { epilogue: Epilogue::Silu, ..Fused::default() })?;
            x = (x + (fc2.forward(&inner)? * part(first + OF_BLOCK - 1)?)?)?;
        }
        self.last.forward(&modulated(self.last_norm.forward(&x)?, OF_BLOCK * self.blocks.len())?)
    }

    /// The embedded condition of [`Self::velocity`].
    #[cfg(test)]
    pub(super) fn condition(&self, z: &Tensor) -> Tensor {
        self.condition.forward(z).unwrap()
    }
}

/// Name of a time embedder of the head `name`.
pub(super) fn embedder(name: &str, index: usize) -> String {
    format!("{name}.time_embed.{index}")
}

/// The embedded time of each step: the mean over what the head is told.
fn times(
    kind: FlowKind,
    steps: usize,
    embedders: &[TimeEmbedder],
    dim: usize,
    from: &Checkpoint,
) -> Result<Vec<Tensor>> {
    let device = from.device();
    let told = |step: usize| match kind {
        FlowKind::Lsd => vec![step as f32 / steps as f32, (step + 1) as f32 / steps as f32],
        FlowKind::FlowMatching => vec![step as f32 / steps as f32],
        FlowKind::Drifting | FlowKind::Pointwise => Vec::new(),
    };
    let embed = |step: usize| {
        let mut mean = vec![0f32; dim];
        for (embedder, time) in embedders.iter().zip(told(step)) {
            mean.iter_mut().zip(embedder.embed(time, from)?).for_each(|(mean, value)| *mean += value);
        }
        mean.iter_mut().for_each(|mean| *mean /= embedders.len() as f32);
        Tensor::from_vec(mean, (1, dim), device)
    };
    if embedders.is_empty() { Ok(Vec::new()) } else { (0..steps).map(embed).collect() }
}

/// All modulations as one layer.
fn modulation(
    from: &mut Checkpoint,
    name: &str,
    (depth, dim): (usize, usize),
    precision: Precision,
) -> std::result::Result<Linear, Error> {
    let layer = |of: &str| format!("{name}.{of}.adaLN_modulation.1");
    let blocks = (0..depth).map(|block| (layer(&format!("res_blocks.{block}")), OF_BLOCK * dim));
    let layers: Vec<_> = blocks.chain([(layer("final_layer"), OF_LAST * dim)]).collect();
    let weights = layers.iter().map(|(layer, outputs)| (format!("{layer}.weight"), vec![*outputs, dim]));
    let sizes = (dim, (OF_BLOCK * depth + OF_LAST) * dim);
    let weights = weights.collect::<Vec<_>>();
    let linear = Linear::load_transformed(from, (&weights, ""), sizes, precision, cat_weights)?;
    let biases = layers.iter().map(|(layer, outputs)| from.take(&format!("{layer}.bias"), &[*outputs]));
    let biases = biases.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(linear.with_bias(&Tensor::cat(&biases, 0)?)?)
}

impl TimeEmbedder {
    /// Takes `{name}.*`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, name: &str, dim: usize) -> std::result::Result<Self, Error> {
        let fc = |from: &mut Checkpoint, layer: usize, inputs: usize| {
            Linear::load(from, &format!("{name}.mlp.{layer}"), inputs, dim)
        };
        Ok(Self {
            frequencies: from.take(&format!("{name}.freqs"), &[FREQUENCIES])?.to_vec1()?,
            fc1: fc(from, 0, 2 * FREQUENCIES)?,
            fc2: fc(from, 2, dim)?,
            alpha: from.take(&format!("{name}.mlp.3.alpha"), &[dim])?.to_vec1()?,
        })
    }

    /// A time, `[dim]`, on the device of `like`.
    ///
    /// # Errors
    /// Out of device memory.
    pub(super) fn embed(&self, time: f32, like: &Checkpoint) -> Result<Vec<f32>> {
        let angles = || self.frequencies.iter().map(|frequency| time * frequency);
        let waves: Vec<f32> = angles().map(f32::cos).chain(angles().map(f32::sin)).collect();
        let waves = Tensor::from_vec(waves, (1, 2 * FREQUENCIES), like.device())?;
        let inner = self.fc1.forward_fused(&waves, Fused { epilogue: Epilogue::Silu, ..Fused::default() })?;
        let y: Vec<f32> = self.fc2.forward(&inner)?.flatten_all()?.to_vec1()?;
        // Divided by the deviation from the mean, which is not subtracted.
        let count = y.len() as f32;
        let mean = y.iter().sum::<f32>() / count;
        let variance = y.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / (count - 1.0).max(1.0);
        let scale = 1.0 / (TIME_EPS + variance).sqrt();
        Ok(y.iter().zip(&self.alpha).map(|(value, alpha)| value * alpha * scale).collect())
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::super::SHAPES;
    use super::*;

    fn head(kind: &str, steps: usize) -> FlowHead {
        let (_, text) = SHAPES[3];
        let text = text.replace("\"pointwise\"", &format!("\"{kind}\""));
        let mut config = Config::parse(&text, false).unwrap();
        config.sampler_decode_steps = Some(steps);
        let mut from = Checkpoint::random(&Device::Cpu, DType::F32);
        FlowHead::load(&mut from, "flow", &config, Precision::F32).unwrap()
    }

    fn rows(count: usize, width: usize) -> Tensor {
        let values = (0..count * width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
        Tensor::from_vec(values, (count, width), &Device::Cpu).unwrap()
    }

    fn values(x: &Tensor) -> Vec<f32> {
        x.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn each_kind_samples_by_its_rule() {
        let (z, noise) = (rows(3, 64), rows(3, 32));
        let drifting = head("drifting", 1).sample(&z, &noise).unwrap();
        let pointwise = head("pointwise", 1).sample(&z, &noise).unwrap();
        assert_eq!(values(&pointwise), values(&(&noise + &drifting).unwrap()));
        let matching = head("flow_matching", 4);
        let mut x = noise.clone();
        for step in 0..4 {
            let velocity =
                matching.velocity(&matching.condition(&z), Some(&matching.times[step]), &x).unwrap();
            x = (x + (velocity * 0.25).unwrap()).unwrap();
        }
        assert_eq!(values(&matching.sample(&z, &noise).unwrap()), values(&x));
        assert_ne!(values(&matching.times[0]), values(&matching.times[3]));
        assert_eq!(head("lsd", 1).times.len(), 1);
    }

    #[test]
    fn a_row_is_the_same_bits_among_others() {
        for kind in ["lsd", "drifting"] {
            let head = head(kind, 2);
            let (z, noise) = (rows(5, 64), rows(5, 32));
            let all = values(&head.sample(&z, &noise).unwrap());
            let row = |x: &Tensor| x.narrow(0, 3, 1).unwrap();
            assert_eq!(values(&head.sample(&row(&z), &row(&noise)).unwrap()), all[3 * 32..4 * 32], "{kind}");
        }
    }
}
