//! The network: a transformer encoder over spectra of some seconds, its rows pooled by attention, and a classifier. Sizes are
//! those of the tensors. Knows no sample.

use candle_core::{Device, Tensor};

use crate::log_mel::HOP;
use crate::mel_encoder::{FRAMES_PER_POSITION, InputLayers, LAYER_NAMES};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{EncoderConfig, EncoderLayer, LayerNorm, Linear, PackedRows};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Width of an attention head, the same in all sizes of that encoder.
const HEAD: usize = 64;
/// Positions of the longest window that a checkpoint may have: 30 s.
const MAX_POSITIONS: usize = 1_500;
/// Matrix products of a layer, the second of which is that of the keys. A pull names a weight after its bias, and after the number
/// of the product where there is none, as of the keys.
const PRODUCTS: usize = 6;

#[derive(Debug)]
pub(super) struct Network {
    input: InputLayers,
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    pool: [Linear; 2],
    classifier: [Linear; 3],
    class_norm: LayerNorm,
    sizes: Sizes,
    device: Device,
}

#[derive(Debug, Clone, Copy)]
struct Sizes {
    bins: usize,
    width: usize,
    positions: usize,
    layers: usize,
    hidden: usize,
    pool: usize,
    classes: [usize; 2],
}

impl Sizes {
    fn of(from: &Checkpoint) -> Result<Self, String> {
        let shape = |name: &str, at: usize| {
            let full = format!("inner.{name}");
            let size = from.shape_of(&full).and_then(|shape| shape.get(at)).copied();
            size.filter(|&size| size > 0)
                .ok_or_else(|| format!("tensor {full} is missing or has another rank"))
        };
        let sizes = Self {
            bins: shape("encoder.conv1.weight", 1)?,
            width: shape("encoder.conv1.weight", 0)?,
            positions: shape("encoder.embed_positions.weight", 0)?,
            layers: (0..)
                .take_while(|layer| from.has(&format!("inner.encoder.layers.{layer}.fc1.bias")))
                .count(),
            hidden: shape("encoder.layers.0.fc1.bias", 0)?,
            pool: shape("pool_attention.0.bias", 0)?,
            classes: [shape("classifier.0.bias", 0)?, shape("classifier.4.bias", 0)?],
        };
        if !sizes.width.is_multiple_of(HEAD) {
            return Err(format!("rows of {} values; heads have {HEAD}", sizes.width));
        }
        if sizes.positions > MAX_POSITIONS {
            return Err(format!("{} positions; at most {MAX_POSITIONS} are supported", sizes.positions));
        }
        Ok(sizes)
    }
}

impl Network {
    /// Takes all tensors, the weights of the layers kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`], or a size is not supported.
    pub(super) fn load(from: &mut Checkpoint, precision: Precision) -> Result<Self, Error> {
        from.rename(|name| {
            let product = name.strip_prefix("linear_").and_then(|rest| rest.strip_suffix(".weight"));
            match product.and_then(|product| product.parse::<usize>().ok()) {
                Some(product) if product % PRODUCTS == 1 => {
                    format!("inner.encoder.layers.{}.self_attn.k_proj.weight", product / PRODUCTS)
                }
                _ => name.to_owned(),
            }
        });
        let fault = |message: String| Error::File { path: "model.safetensors".to_owned(), message };
        let sizes = Sizes::of(from).map_err(fault)?;
        let (name, width, device) = ("inner.encoder", sizes.width, from.device().clone());
        let config = EncoderConfig { width, heads: width / HEAD, hidden: sizes.hidden };
        let layers = (0..sizes.layers).map(|layer| {
            EncoderLayer::load_named(from, &format!("{name}.layers.{layer}"), &LAYER_NAMES, config, precision)
        });
        let layers = layers.collect::<Result<_, _>>()?;
        let [first, second] = sizes.classes;
        let mut linear =
            |name: &str, inputs, outputs| Linear::load(from, &format!("inner.{name}"), inputs, outputs);
        let pool =
            [linear("pool_attention.0", width, sizes.pool)?, linear("pool_attention.2", sizes.pool, 1)?];
        let classifier = [
            linear("classifier.0", width, first)?,
            linear("classifier.4", first, second)?,
            linear("classifier.6", second, 1)?,
        ];
        Ok(Self {
            layers,
            pool,
            classifier,
            input: InputLayers::load(from, name, sizes.bins, (sizes.positions, width))?,
            norm: LayerNorm::load(from, &format!("{name}.layer_norm"), width)?,
            class_norm: LayerNorm::load(from, "inner.classifier.1", first)?,
            sizes,
            device,
        })
    }

    /// Number of mel bins.
    pub(super) fn bins(&self) -> usize {
        self.input.bins()
    }

    /// Positions of a window.
    pub(super) fn positions(&self) -> usize {
        self.sizes.positions
    }

    /// Samples of a window.
    pub(super) fn window(&self) -> usize {
        self.sizes.positions * FRAMES_PER_POSITION * HOP
    }

    /// The probability that the turn is complete, for each of some windows, `[frames, bins]` each. A window's result is the same
    /// bits in any batch.
    ///
    /// # Errors
    /// A window has another size, or the device is out of memory.
    pub(super) fn probabilities(&self, windows: &[Vec<f32>]) -> Result<Vec<f32>, Error> {
        if windows.is_empty() {
            return Ok(Vec::new());
        }
        self.rows(windows)?.iter().map(|rows| self.probability(rows)).collect()
    }

    /// The rows of each window, `[positions, width]`.
    pub(super) fn rows(&self, windows: &[Vec<f32>]) -> Result<Vec<Tensor>, Error> {
        let input = |window: &Vec<f32>| {
            yield_point();
            self.input.forward(window, self.sizes.positions)
        };
        let inputs = windows.iter().map(input).collect::<Result<Vec<_>, _>>()?;
        let packed = PackedRows::new(&vec![self.sizes.positions; windows.len()], 0, &self.device)?;
        let mut x = packed.pack(&inputs)?; // [rows, width]
        for layer in &self.layers {
            yield_point();
            x = layer.forward(&x, &packed)?;
        }
        let x = self.norm.forward(&x)?;
        packed.spans().iter().map(|span| Ok(x.narrow(0, span.start, span.len())?)).collect()
    }

    /// Rows weighted by what the pooling attends to, and the classifier of their sum.
    fn probability(&self, rows: &Tensor) -> Result<f32, Error> {
        let rows = rows.contiguous()?;
        let [hidden, score] = &self.pool;
        let scores = score.forward(&hidden.forward(&rows)?.tanh()?)?.flatten_all()?.to_vec1::<f32>()?;
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let shares: Vec<f32> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f32 = shares.iter().sum();
        let shares: Vec<f32> = shares.iter().map(|share| share / sum).collect();
        let shares = Tensor::from_vec(shares, (1, self.sizes.positions), &self.device)?;
        let [first, second, last] = &self.classifier;
        let x = first.forward(&shares.matmul(&rows)?)?; // [1, classes]
        let x = self.class_norm.forward(&x)?.gelu_erf()?;
        let x = second.forward(&x)?.gelu_erf()?;
        let logit = last.forward(&x)?.flatten_all()?.to_vec1::<f32>()?;
        Ok(1.0 / (1.0 + (-logit.first().copied().unwrap_or_default()).exp()))
    }
}
