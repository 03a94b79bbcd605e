//! The network Silero VAD, version 6, at 16 kHz: samples to one score for each 32 ms. MIT, Copyright (c) 2020-present Silero
//! Team.
//!
//! Knows no gain, no threshold and no span. A frame's score is the same bits in any batch. Source of the architecture:
//! <https://github.com/snakers4/silero-vad/blob/master/src/silero_vad/tinygrad_model.py> (`TinySileroVAD`).

use izwi_kernels::linear::{Rows, WeightSource, WeightType, Weights};
use safetensors::tensor::{Dtype, SafeTensors};

/// Samples of a frame.
pub(super) const FRAME: usize = 512;
/// Samples before a frame that its score depends on directly.
const CONTEXT: usize = 64;
/// Samples of a frame with its context, reflected by [`CONTEXT`] at the end.
const INPUT: usize = CONTEXT + FRAME + CONTEXT;
/// Samples of a transform, and from one to the next.
const FFT: usize = 256;
const HOP: usize = 128;
const BINS: usize = FFT / 2 + 1;
/// Spectra of a frame, and its rows after the first strided convolution.
const SPECTRA: usize = (INPUT - FFT) / HOP + 1;
const HALVES: usize = SPECTRA / 2;
const TAPS: usize = 3;
/// Width of the recurrent layer.
const WIDTH: usize = 128;
const NARROW: usize = 64;
/// Frames that are computed together, as far as they are known: the weights are then read once for all of them.
pub(super) const BATCH: usize = 16;

/// The weights are not those of the network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the weights of the voice activity detector cannot be used: {0}")]
pub struct WeightsError(String);

impl WeightsError {
    pub(super) fn unreadable(file: &std::path::Path, error: &std::io::Error) -> Self {
        Self(format!("{}: {error}", file.display()))
    }
}

/// A weight `[inputs, outputs]` with its bias.
struct Product {
    inputs: usize,
    outputs: usize,
    weights: Weights,
    bias: Option<Vec<f32>>,
}

/// The weights.
pub(super) struct Silero {
    spectrum: Product,
    /// The convolutions over rows of taps. The last one has one position: only its middle tap meets it.
    convolutions: [Product; 4],
    input: Product,
    hidden: Product,
    output: Vec<f32>,
    output_bias: f32,
}

/// What the next frame's score depends on.
#[derive(Debug, Clone)]
pub(super) struct State {
    hidden: [f32; WIDTH],
    cell: [f32; WIDTH],
    context: [f32; CONTEXT],
}

impl Default for State {
    fn default() -> Self {
        Self { hidden: [0.0; WIDTH], cell: [0.0; WIDTH], context: [0.0; CONTEXT] }
    }
}

impl std::fmt::Debug for Silero {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Silero").finish_non_exhaustive()
    }
}

impl Product {
    /// `weight` is `[outputs, inputs]`.
    fn new(weight: &[f32], bias: Option<Vec<f32>>, inputs: usize) -> Self {
        let outputs = weight.len() / inputs;
        let weights = Weights::pack(WeightSource::F32(weight), inputs, outputs, WeightType::F32);
        Self { inputs, outputs, weights, bias }
    }

    /// A convolution of `weight` `[outputs, channels, TAPS]` as a product over rows `[taps, channels]`, of the taps `from..`
    /// and `count` of them.
    fn convolution(weight: &[f32], bias: Vec<f32>, channels: usize, taps: std::ops::Range<usize>) -> Self {
        let row = |kernel: &[f32]| -> Vec<f32> {
            taps.clone()
                .flat_map(|tap| (0..channels).map(move |c| c * TAPS + tap))
                .map(|at| kernel[at])
                .collect()
        };
        let rows: Vec<f32> = weight.chunks_exact(channels * TAPS).flat_map(row).collect();
        Self::new(&rows, Some(bias), channels * taps.len())
    }

    /// `y = x · weight + bias` for rows `x`; `y` becomes `[rows, outputs]`.
    fn rows(&self, x: &[f32], y: &mut Vec<f32>) {
        let count = x.len() / self.inputs;
        y.resize(count * self.outputs, 0.0);
        self.weights.product(Rows { data: x, stride: self.inputs, count }, self.bias.as_deref(), y);
    }
}

impl Silero {
    /// Reads the published safetensors file.
    ///
    /// # Errors
    /// It is no such file, or a tensor is missing or has another type or shape.
    pub(super) fn from_safetensors(bytes: &[u8]) -> Result<Self, WeightsError> {
        let file = SafeTensors::deserialize(bytes).map_err(|error| WeightsError(error.to_string()))?;
        let take = |name: &str, shape: &[usize]| -> Result<Vec<f32>, WeightsError> {
            let tensor = file.tensor(name).map_err(|error| WeightsError(format!("{name}: {error}")))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape() != shape {
                let (dtype, found) = (tensor.dtype(), tensor.shape());
                return Err(WeightsError(format!("{name} is {dtype:?} {found:?}, not F32 {shape:?}")));
            }
            Ok(tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect())
        };
        let convolution = |name: &str, outputs: usize, channels: usize, taps| {
            let weight = take(&format!("{name}.weight"), &[outputs, channels, TAPS])?;
            let bias = take(&format!("{name}.bias"), &[outputs])?;
            Ok(Product::convolution(&weight, bias, channels, taps))
        };
        let gates = |of: &str| {
            let weight = take(&format!("lstm_cell.weight_{of}"), &[4 * WIDTH, WIDTH])?;
            Ok(Product::new(&weight, Some(take(&format!("lstm_cell.bias_{of}"), &[4 * WIDTH])?), WIDTH))
        };
        Ok(Self {
            spectrum: Product::new(&take("stft_conv.weight", &[2 * BINS, 1, FFT])?, None, FFT),
            convolutions: [
                convolution("conv1", WIDTH, BINS, 0..TAPS)?,
                convolution("conv2", NARROW, WIDTH, 0..TAPS)?,
                convolution("conv3", NARROW, NARROW, 0..TAPS)?,
                convolution("conv4", WIDTH, NARROW, 1..2)?,
            ],
            input: gates("ih")?,
            hidden: gates("hh")?,
            output: take("final_conv.weight", &[1, WIDTH, 1])?,
            output_bias: take("final_conv.bias", &[1])?[0],
        })
    }

    /// Appends the scores of whole frames, 0..=1 each.
    pub(super) fn push(&self, state: &mut State, frames: &[f32], scores: &mut Vec<f32>) {
        for batch in frames.chunks(BATCH * FRAME) {
            let gates = self.gates(state, batch);
            let mut recurrent = Vec::new();
            for gates in gates.chunks_exact(4 * WIDTH) {
                self.hidden.rows(&state.hidden, &mut recurrent);
                state.advance(gates, &recurrent);
                let sum: f32 = state.hidden.iter().zip(&self.output).map(|(h, w)| h.max(0.0) * w).sum();
                scores.push(sigmoid(sum + self.output_bias));
            }
        }
    }

    /// All that comes before the recurrent layer: the input's part of its gates, `[frames, 4 * WIDTH]`.
    fn gates(&self, state: &mut State, frames: &[f32]) -> Vec<f32> {
        let (mut rows, mut y) = (Vec::new(), Vec::new());
        for frame in frames.as_chunks::<FRAME>().0 {
            let mut input = [0f32; INPUT];
            input[..CONTEXT].copy_from_slice(&state.context);
            input[CONTEXT..][..FRAME].copy_from_slice(frame);
            let end = CONTEXT + FRAME;
            (0..CONTEXT).for_each(|n| input[end + n] = input[end - 2 - n]);
            (0..SPECTRA).for_each(|n| rows.extend_from_slice(&input[n * HOP..][..FFT]));
            state.context.copy_from_slice(&frame[FRAME - CONTEXT..]);
        }
        self.spectrum.rows(&rows, &mut y);
        let mut x: Vec<f32> = Vec::with_capacity(y.len());
        for spectrum in y.chunks_exact(self.spectrum.outputs) {
            let (real, imaginary) = spectrum.split_at(BINS);
            x.extend(real.iter().zip(imaginary).map(|(re, im)| (re * re + im * im).sqrt()));
        }
        let shapes = [(SPECTRA, BINS, 1), (SPECTRA, WIDTH, 2), (HALVES, NARROW, 2)];
        for (convolution, (length, channels, stride)) in self.convolutions.iter().zip(shapes) {
            taps(&x, length, channels, stride, &mut rows);
            convolution.rows(&rows, &mut y);
            y.iter_mut().for_each(|value| *value = value.max(0.0));
            std::mem::swap(&mut x, &mut y);
        }
        let [.., last] = &self.convolutions;
        last.rows(&x, &mut y);
        y.iter_mut().for_each(|value| *value = value.max(0.0));
        self.input.rows(&y, &mut x);
        x
    }
}

impl State {
    /// The recurrent layer over one frame, whose gates are the sum of both parts.
    fn advance(&mut self, input: &[f32], recurrent: &[f32]) {
        let gate = |gate: usize, n: usize| input[gate * WIDTH + n] + recurrent[gate * WIDTH + n];
        for (n, (hidden, cell)) in self.hidden.iter_mut().zip(&mut self.cell).enumerate() {
            let kept = sigmoid(gate(1, n)) * *cell;
            *cell = kept + sigmoid(gate(0, n)) * gate(2, n).tanh();
            *hidden = sigmoid(gate(3, n)) * cell.tanh();
        }
    }
}

/// Rows of [`TAPS`] neighbours, each `stride` after the one before, of sequences of `length` rows `[length, channels]` padded
/// with a row of zeros at both ends.
fn taps(x: &[f32], length: usize, channels: usize, stride: usize, rows: &mut Vec<f32>) {
    rows.clear();
    for sequence in x.chunks_exact(length * channels) {
        for centre in (0..length).step_by(stride) {
            for at in centre..centre + TAPS {
                match at.checked_sub(1).filter(|at| *at < length) {
                    Some(at) => rows.extend_from_slice(&sequence[at * channels..][..channels]),
                    None => rows.resize(rows.len() + channels, 0.0),
                }
            }
        }
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The numbers of `scripts/golden/silero_vad.py`.
    struct Numbers(u64);

    impl Numbers {
        fn next(&mut self) -> f32 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        }
    }

    const SHAPES: [(&str, &[usize], f32); 15] = [
        ("stft_conv.weight", &[258, 1, 256], 0.2),
        ("conv1.weight", &[128, 129, 3], 0.2),
        ("conv1.bias", &[128], 0.2),
        ("conv2.weight", &[64, 128, 3], 0.1),
        ("conv2.bias", &[64], 0.2),
        ("conv3.weight", &[64, 64, 3], 0.15),
        ("conv3.bias", &[64], 0.2),
        ("conv4.weight", &[128, 64, 3], 0.3),
        ("conv4.bias", &[128], 0.2),
        ("lstm_cell.weight_ih", &[512, 128], 0.2),
        ("lstm_cell.weight_hh", &[512, 128], 0.2),
        ("lstm_cell.bias_ih", &[512], 0.2),
        ("lstm_cell.bias_hh", &[512], 0.2),
        ("final_conv.weight", &[1, 128, 1], 0.5),
        ("final_conv.bias", &[1], 0.2),
    ];

    /// The network with random weights.
    pub(crate) fn random_model() -> super::super::VadModel {
        static MODEL: std::sync::LazyLock<super::super::VadModel> =
            std::sync::LazyLock::new(|| super::super::VadModel::from_safetensors(&random_file()).unwrap());
        MODEL.clone()
    }

    /// Random weights as a safetensors file.
    fn random_file() -> Vec<u8> {
        let mut numbers = Numbers(7);
        let tensors: Vec<(&str, Vec<u8>, &[usize])> = SHAPES
            .iter()
            .map(|(name, shape, scale)| {
                let count: usize = shape.iter().product();
                let bytes = (0..count).flat_map(|_| (numbers.next() * scale).to_le_bytes()).collect();
                (*name, bytes, *shape)
            })
            .collect();
        let views = tensors.iter().map(|(name, bytes, shape)| {
            (*name, safetensors::tensor::TensorView::new(Dtype::F32, shape.to_vec(), bytes).unwrap())
        });
        safetensors::serialize(views, None).unwrap()
    }

    fn scores(silero: &Silero, samples: &[f32], frames: usize) -> Vec<f32> {
        let (mut state, mut scores) = (State::default(), Vec::new());
        samples.chunks(frames * FRAME).for_each(|part| silero.push(&mut state, part, &mut scores));
        scores
    }

    #[test]
    fn silero_vad_golden_scores_of_random_weights() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/silero_vad/random.txt");
        let golden = std::fs::read_to_string(path).unwrap();
        let golden: Vec<f32> = golden.lines().map(|line| line.parse().unwrap()).collect();
        let silero = Silero::from_safetensors(&random_file()).unwrap();
        let mut numbers = Numbers(8);
        let samples: Vec<f32> = (0..golden.len() * FRAME)
            .map(|n| numbers.next() * 0.3 * ((n / (2 * FRAME)) % 3) as f32)
            .collect();
        let ours = scores(&silero, &samples, 4);
        let worst = ours.iter().zip(&golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 2e-4, "{worst}");
        let spread = golden.iter().copied().fold(0.0, f32::max) - golden.iter().copied().fold(1.0, f32::min);
        assert!(spread > 0.05, "the golden scores tell nothing: {spread}");
        for frames in [1, 3, golden.len()] {
            assert_eq!(scores(&silero, &samples, frames), ours, "{frames} frames at a time");
        }
    }

    #[test]
    fn other_files_are_refused_by_name() {
        let refused = |bytes: &[u8]| Silero::from_safetensors(bytes).unwrap_err().to_string();
        assert!(refused(b"").contains("cannot be used"));
        let file = random_file();
        assert!(refused(&file[..file.len() - 4]).contains("cannot be used"));
        let wrong = [1u8, 2, 3, 4];
        let view = safetensors::tensor::TensorView::new(Dtype::F32, vec![1], &wrong).unwrap();
        let one = safetensors::serialize([("stft_conv.weight", view)], None).unwrap();
        assert!(
            refused(&one).contains("stft_conv.weight is F32 [1], not F32 [258, 1, 256]"),
            "{}",
            refused(&one)
        );
    }
}
