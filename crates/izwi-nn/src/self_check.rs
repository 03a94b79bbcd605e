//! Whether a device computes what the CPU does: small layers of each kind, with fixed weights and inputs, on both.
//!
//! A GPU that answers with zeros or noise is the fastest of all: nothing else would refuse it. Knows no model.

use candle_core::{DType, Device, Result, Tensor};
use izwi_types::{Precision, SamplingParams};

use crate::Error;
use crate::attention::relative::{RelativeSpan, relative_mixed, sinusoids};
use crate::attention::window::Window;
use crate::attention::{self, CrossKv, PagedSpan, bidirectional};
use crate::checkpoint::Checkpoint;
use crate::codec::conv::CausalConv;
use crate::codec::stream::{MixedHeads, StreamShape, StreamState, Streams};
use crate::decoder_stack::{DecoderStack, Mixing, Rotation, StackNames, StackRows, StackShape, Style};
use crate::kv_pool::KvPool;
use crate::layers::conv::{Conv1d, GluConv};
use crate::layers::{
    BiLstm, Embedding, InstanceNorm, Linear, NormActivation, PackedRows, Rope, sum_embeddings,
};
use crate::sampling::{Draw, Draws, FrameDraws, mix};
/// A layer on a device.
type Work = fn(&Device) -> std::result::Result<Tensor, Error>;

/// Work, and how far its results may be apart, relative to the largest one. Half precision and fast math stay far below;
/// the quantised products differ more, since the CPU rounds their inputs to 8 bits, too.
const CHECKS: [(&str, f32, Work); 15] = [
    ("products", 2e-3, |device| products(Precision::F32, device)),
    ("8-bit products", 5e-2, |device| products(Precision::Q8, device)),
    ("4-bit products", 5e-2, |device| products(Precision::Q4, device)),
    ("products of f16", 5e-3, |device| products(Precision::F16, device)),
    ("products of bf16", 2e-2, |device| products(Precision::Bf16, device)),
    ("a decoder stack", 5e-3, decoder_stack),
    ("attention of an encoder", 5e-3, encoder_attention),
    ("relative attention", 5e-3, relative_attention),
    ("convolutions of a codec", 5e-3, convolution),
    ("the convolution of a conformer", 5e-3, glu_convolution),
    ("an LSTM", 5e-3, lstm),
    ("instance norms", 5e-3, instance_norm),
    ("attention of a codec", 5e-3, window_attention),
    ("embeddings", 1e-4, embeddings),
    ("draws", 0.0, draws),
];

/// Compares a device with the CPU.
///
/// # Errors
/// The device computes something else, or fails: the error names the layer and the remedy.
pub fn check(device: &Device) -> std::result::Result<(), Error> {
    if device.is_cpu() {
        return Ok(());
    }
    for (what, tolerance, work) in CHECKS {
        // A kernel that does nothing must not find what another layer left.
        crate::device::free_unused(device)?;
        let expected = values(&work(&Device::Cpu)?)?;
        let difference = relative_difference(&expected, &values(&work(device)?)?);
        // Not a number is a difference, too.
        if difference.is_none_or(|difference| difference > tolerance) {
            let message = format!(
                "it computes wrong results ({what} differ from the CPU's); update the system, or use `cpu`"
            );
            return Err(Error::Device { device: crate::device::name(device), message });
        }
    }
    Ok(())
}

fn values(x: &Tensor) -> Result<Vec<f32>> {
    x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

/// The largest difference over the largest expected value; `None` if the results do not compare.
fn relative_difference(expected: &[f32], found: &[f32]) -> Option<f32> {
    let largest = expected.iter().fold(0f32, |largest, value| largest.max(value.abs()));
    let comparable = expected.len() == found.len() && found.iter().all(|value| value.is_finite());
    let differences = expected.iter().zip(found).map(|(a, b)| (a - b).abs());
    (comparable && largest > 0.0).then(|| differences.fold(0f32, f32::max) / largest)
}

/// Values in `[-1, 1)`, the same each time.
fn input(rows: usize, width: usize, seed: u64, device: &Device) -> Result<Tensor> {
    let value = |at: usize| (mix((seed << 32) | at as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
    Tensor::from_vec((0..rows * width).map(value).collect(), (rows, width), device)
}

/// A row, as of a decode; a few, as of a batch; and tiles, as of a prompt.
fn products(precision: Precision, device: &Device) -> std::result::Result<Tensor, Error> {
    const INPUTS: usize = 96;
    let weight = input(40, INPUTS, 1, &Device::Cpu)?;
    let linear = Linear::on_device(&weight, precision, device)?;
    let rows = [1usize, 4, 35].map(|rows| linear.forward(&input(rows, INPUTS, rows as u64, device)?));
    Ok(Tensor::cat(&rows.into_iter().collect::<Result<Vec<_>>>()?, 0)?)
}

/// A prompt of two sequences, then a token of each: norms, rotations, the paged pool, attention and the short convolution.
fn decoder_stack(device: &Device) -> std::result::Result<Tensor, Error> {
    const WIDTH: usize = 32;
    let shape = StackShape {
        style: Style::Gated,
        width: WIDTH,
        hidden: 48,
        layers: vec![Mixing::Attention, Mixing::Convolution { taps: 3 }],
        heads: 4,
        kv_heads: 2,
        head_dim: 8,
        eps: 1e-5,
        theta: 1e4,
        rotation: Rotation::Halves,
    };
    let mut from = Checkpoint::random(device, DType::F32);
    let stack = DecoderStack::load(&mut from, "check", shape, &StackNames::TRANSFORMERS, Precision::F32)?;
    let mut kv = KvPool::new(Some(stack.kv_layout(DType::F32)), 4, 8, device)?;
    let (mut one, mut other) = (stack.begin(device)?, stack.begin(device)?);
    let mut results = Vec::new();
    for (start, counts) in [([0, 0], [9, 4]), ([9, 4], [1, 1])] {
        let [first, second] = [0, 1].map(|at| PagedSpan {
            start: start[at],
            num_tokens: counts[at],
            block_table: [&[3, 1][..], &[2]][at],
        });
        let mut rows = StackRows::with_states(&kv, vec![first, second], vec![&mut one, &mut other]);
        let x = input(counts.iter().sum(), WIDTH, start[0] as u64, device)?;
        results.push(stack.forward(x, &mut kv, &mut rows, |_| ())?);
    }
    Ok(Tensor::cat(&results, 0)?)
}

/// Within packed sequences, and to an encoder's output.
fn encoder_attention(device: &Device) -> std::result::Result<Tensor, Error> {
    const HEADS: usize = 2;
    let of = |seed| input(40, 32, seed, device);
    let (q, k, v) = (of(1)?, of(2)?, of(3)?);
    let within = bidirectional(&q, &k, &v, HEADS, &[33, 7])?;
    let window = CrossKv::new(&k, &v, HEADS, DType::F32)?;
    let (across, _) = attention::cross(&q.narrow(0, 0, 3)?.contiguous()?, &[(3, &window)], HEADS, None)?;
    Ok(Tensor::cat(&[within, across], 0)?)
}

fn relative_attention(device: &Device) -> std::result::Result<Tensor, Error> {
    const HEADS: usize = 2;
    const WIDTH: usize = 24;
    const ROWS: usize = 34;
    let [content, place] = [1, 2].map(|seed| input(1, WIDTH, seed, device).and_then(|x| x.reshape(WIDTH)));
    let distances = sinusoids(ROWS, WIDTH, device)?;
    let mixed = input(ROWS, 3 * WIDTH, 3, device)?;
    Ok(relative_mixed(&mixed, &distances, [&content?, &place?], HEADS, &[RelativeSpan::whole(0..ROWS)])?)
}

/// Two chunks of a stream over its window.
fn window_attention(device: &Device) -> std::result::Result<Tensor, Error> {
    const HEADS: usize = 2;
    const HEAD_DIM: usize = 16;
    let window = Window::new(9);
    let rope = Rope::new(HEAD_DIM, 1e4);
    let mut shape = StreamShape::default();
    let place = shape.window(window.positions, HEADS * HEAD_DIM);
    let mut state = StreamState::default();
    let mut results = Vec::new();
    for rows in [5, 12] {
        let mut streams = Streams::new(&shape, vec![&mut state], vec![rows], device)?;
        let positions = rope.rows(streams.positions(place), device)?;
        let heads =
            MixedHeads { heads: HEADS, kv_heads: HEADS, rope: &rope, positions: &positions, norms: None };
        let mixed = input(rows, 3 * HEADS * HEAD_DIM, rows as u64, device)?;
        results.push(streams.attend(place, mixed, heads, window)?);
    }
    Ok(Tensor::cat(&results, 0)?)
}

/// Two chunks of a stream, one of them in tiles.
fn convolution(device: &Device) -> std::result::Result<Tensor, Error> {
    const INPUTS: usize = 12;
    const OUTPUTS: usize = 10;
    const TAPS: usize = 5;
    let weight = input(OUTPUTS, INPUTS * TAPS, 1, device)?.reshape((OUTPUTS, INPUTS, TAPS))?;
    let bias = input(1, OUTPUTS, 2, device)?.reshape(OUTPUTS)?;
    let mut shape = StreamShape::default();
    let conv = CausalConv::new(Conv1d::new(&weight, Some(bias), 2)?, 1, &mut shape)?;
    let mut state = StreamState::default();
    let mut results = Vec::new();
    for rows in [2, 37] {
        let mut streams = Streams::new(&shape, vec![&mut state], vec![rows], device)?;
        results.push(conv.forward(&input(rows, INPUTS, rows as u64, device)?, &mut streams)?);
    }
    Ok(Tensor::cat(&results, 0)?)
}

/// Over the gates of packed sequences.
fn glu_convolution(device: &Device) -> std::result::Result<Tensor, Error> {
    const WIDTH: usize = 24;
    const TAPS: usize = 5;
    let packed = PackedRows::new(&[19, 4], TAPS / 2, device)?;
    let weight = input(WIDTH, TAPS, 1, device)?.reshape((WIDTH, 1, TAPS))?;
    let conv = GluConv::new(&weight, input(1, WIDTH, 2, device)?.reshape(WIDTH)?)?;
    let y = conv.forward(&input(packed.rows(), 2 * WIDTH, 3, device)?, &packed)?;
    Ok(packed.clear_gaps(&y)?)
}

/// Two sequences, both ways.
fn lstm(device: &Device) -> std::result::Result<Tensor, Error> {
    const INPUTS: usize = 16;
    let mut from = Checkpoint::random(device, DType::F32);
    let lstm = BiLstm::load(&mut from, "check", 0, (INPUTS, 40), Precision::F32)?;
    let packed = PackedRows::new(&[17, 5], 1, device)?;
    Ok(lstm.forward(&input(packed.rows(), INPUTS, 1, device)?, &packed)?)
}

/// Of two sequences, with both activations.
fn instance_norm(device: &Device) -> std::result::Result<Tensor, Error> {
    const WIDTH: usize = 40;
    let packed = PackedRows::new(&[21, 6], 1, device)?;
    let norm = InstanceNorm::new(input(2, WIDTH, 1, device)?, input(2, WIDTH, 2, device)?);
    let [frequency, amplitude] =
        [3, 4].map(|seed| input(1, WIDTH, seed, device).and_then(|x| x.reshape(WIDTH)));
    let (frequency, amplitude) = (frequency?, amplitude?);
    let snake = NormActivation::Snake { frequency: &frequency, amplitude: &amplitude };
    let x = input(packed.rows(), WIDTH, 5, device)?;
    let results = [snake, NormActivation::LeakyRelu(0.1)].map(|after| norm.forward(&x, &packed, after));
    Ok(Tensor::cat(&results.into_iter().collect::<Result<Vec<_>>>()?, 0)?)
}

fn embeddings(device: &Device) -> std::result::Result<Tensor, Error> {
    let tables = [1, 2].map(|seed| Embedding::new(input(20, 24, seed, device)?));
    let tables = tables.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(sum_embeddings(&tables.iter().collect::<Vec<_>>(), &[3, 19, 7, 0])?)
}

/// Four codes of two sequences, from logits whose probabilities are far apart.
fn draws(device: &Device) -> std::result::Result<Tensor, Error> {
    const CODES: usize = 64;
    let sampling = SamplingParams { temperature: 0.5, top_k: 12, top_p: 1.0, repetition_penalty: 1.0 };
    let sources = [1, 2].map(Draws::new);
    let draws = sources.each_ref().map(|draws| Draw { draws, counter: 0, sampling: &sampling });
    let mut frame = FrameDraws::new(&draws, (0, 4), None, device)?;
    for codebook in 0..4 {
        frame.choose(&(input(2, CODES, 10 + codebook, device)? * 8.0)?)?;
    }
    let codes = frame.finish()?;
    Ok(Tensor::new(codes, &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_of_the_tests_passes() {
        let device = crate::device::of_tests();
        if let Err(error) = check(&device) {
            panic!("{error}");
        }
        for (what, _, work) in CHECKS {
            let expected = values(&work(&Device::Cpu).unwrap()).unwrap();
            assert!(expected.iter().any(|value| *value != expected[0]), "{what} says nothing");
        }
    }

    #[test]
    fn other_results_are_differences() {
        let difference = |found: &[f32]| relative_difference(&[2.0, -4.0], found);
        assert_eq!(difference(&[2.0, -4.0]), Some(0.0));
        assert_eq!(difference(&[0.0, 0.0]), Some(1.0));
        assert_eq!(difference(&[2.0, f32::NAN]), None);
        assert_eq!(difference(&[2.0]), None);
    }

    /// A GPU whose kernels do nothing, one after another, under emulation; elsewhere the variable says nothing.
    #[test]
    fn a_kernel_that_does_nothing_is_found() {
        if std::env::var_os("EMU_OUT").is_none() || !crate::device::of_tests().is_metal() {
            return;
        }
        let kernels = [
            "linear_rows_f32",
            "linear_rows_q8",
            "linear_rows_q4",
            "linear_rows_f16",
            "linear_rows_bf16",
            "linear_tiles",
            "step_f32",
            "tile_f32",
            "write_f32",
            "short_conv",
            "encoder_attention",
            "pack_window",
            "cross_attention",
            "relative",
            "conv_rows",
            "conv_tiles",
            "depthwise_glu",
            "lstm_f32",
            "instance_norm",
            "windowed",
            "embedding_sum",
            "draw",
        ];
        let told = |variable: &str, value: &str| {
            let mut test_binary = std::process::Command::new(std::env::current_exe().unwrap());
            test_binary.args(["--exact", "self_check::tests::the_device_of_the_tests_passes", "--nocapture"]);
            let output = test_binary.env(variable, value).output().unwrap();
            String::from_utf8_lossy(&output.stderr).into_owned()
        };
        let is_missed = |kernel: &&str| !told("EMU_SKIP", kernel).contains("computes wrong results");
        let missed: Vec<_> = kernels.into_iter().filter(is_missed).collect();
        assert!(missed.is_empty(), "{missed:?}");
        let refused = told("EMU_MAX_THREADS", "64");
        assert!(refused.contains("threads, and this GPU runs it with 64"), "{refused}");
    }
}
