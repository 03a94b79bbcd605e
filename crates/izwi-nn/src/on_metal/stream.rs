//! Layers of streams.

use candle_core::{Device, Tensor};

use super::{device, random, worst};
use crate::attention::window::Window;
use crate::codec::conv::{CausalConv, CausalDepthwiseTransposedConv};
use crate::codec::stream::{MixedHeads, StreamShape, StreamState, Streams, attend_whole};
use crate::layers::activation::Activation;
use crate::layers::conv::{Conv1d, DepthwiseConv, Padding};
use crate::layers::{RmsNorm, Rope};

/// Chunks of three sequences; in each pass, the rows of each sequence that takes part.
const PASSES: [[usize; 3]; 5] = [[4, 1, 0], [1, 0, 3], [40, 2, 5], [3, 3, 3], [2, 17, 1]];

/// A layer on one device, over all passes: the results of each.
fn passes(
    shape: &StreamShape,
    device: &Device,
    inputs: &[Tensor],
    forward: &dyn Fn(&Tensor, &mut Streams<'_>) -> Vec<Tensor>,
) -> Vec<Vec<Tensor>> {
    let mut states = [(); 3].map(|()| StreamState::default());
    let mut results = Vec::new();
    for (rows, x) in PASSES.iter().zip(inputs) {
        let taking: Vec<_> = states.iter_mut().zip(rows).filter(|(_, rows)| **rows > 0).collect();
        let (states, rows) = taking.into_iter().map(|(state, &rows)| (state, rows)).unzip();
        let mut streams = Streams::new(shape, states, rows, device).unwrap();
        results.push(forward(&x.to_device(device).unwrap(), &mut streams));
    }
    results
}

/// Builds a layer on the CPU and on Metal and compares their results within `tolerance`.
fn compare<L>(
    what: &str,
    width: usize,
    tolerance: f32,
    build: impl Fn(&Device, &mut StreamShape) -> L,
    forward: impl Fn(&L, &Tensor, &mut Streams<'_>) -> Vec<Tensor>,
) {
    let Some(device) = device() else { return };
    let inputs: Vec<_> = PASSES.iter().map(|rows| random((rows.iter().sum::<usize>(), width))).collect();
    let run = |device: &Device| {
        let mut shape = StreamShape::default();
        let layer = build(device, &mut shape);
        passes(&shape, device, &inputs, &|x, streams| forward(&layer, x, streams))
    };
    let (expected, ours) = (run(&Device::Cpu), run(&device));
    for (pass, (expected, ours)) in expected.iter().zip(&ours).enumerate() {
        for (index, (expected, ours)) in expected.iter().zip(ours).enumerate() {
            assert_eq!(expected.dims(), ours.dims(), "{what}");
            let off = worst(ours, expected);
            assert!(off < tolerance, "{what}, pass {pass}, result {index}: {off}");
        }
    }
}

#[test]
fn causal_convolutions_equal_the_cpu_in_any_chunks() {
    if device().is_none() {
        return;
    }
    for (inputs, outputs, taps, dilation, stride) in [
        (5, 3, 4, 2, 1),
        (16, 40, 7, 9, 1),
        (1, 9, 7, 1, 1),
        (24, 70, 1, 1, 1),
        (8, 12, 8, 1, 4),
        (32, 1, 3, 1, 1),
    ] {
        let (weight, bias) = (random((outputs, inputs, taps)), random(outputs));
        let (frequency, amplitude) = (random(outputs), random(outputs));
        compare(
            &format!("{inputs} {outputs} {taps} {dilation} {stride}"),
            inputs,
            2e-4,
            |device, shape| {
                let to = |x: &Tensor| x.to_device(device).unwrap();
                let conv = Conv1d::new(&to(&weight), Some(to(&bias)), dilation).unwrap();
                (CausalConv::new(conv, stride, shape).unwrap(), to(&frequency), to(&amplitude))
            },
            |(conv, frequency, amplitude), x, streams| {
                let snake = Activation::Snake { frequency, amplitude };
                if stride > 1 {
                    // A partial chunk must be the last one.
                    let x =
                        Tensor::cat(&vec![x.narrow(0, 0, 1).unwrap(); streams.total_rows() * 4], 0).unwrap();
                    streams.multiply(4);
                    return vec![conv.forward(&x, streams).unwrap()];
                }
                let rows = x.dim(0).unwrap();
                let addend = x.narrow(1, 0, 1).unwrap().broadcast_as((rows, outputs)).unwrap().contiguous();
                let (y, activated) = conv.forward_pair(x, Some(&addend.unwrap()), snake, streams).unwrap();
                vec![y, activated]
            },
        );
    }
}

#[test]
fn depthwise_convolutions_equal_the_cpu_in_any_chunks() {
    let weight = random((6, 1, 6));
    compare(
        "transposed",
        6,
        1e-5,
        |device, shape| {
            CausalDepthwiseTransposedConv::new(&weight.to_device(device).unwrap(), 3, shape).unwrap()
        },
        |conv, x, streams| vec![conv.forward(x, streams).unwrap()],
    );
    let Some(device) = device() else { return };
    for (taps, dilation, rows) in [(5, 1, 40), (7, 8, 70), (7, 8, 9)] {
        let (x, weight, bias) = (random((rows, 12)), random((12, 1, taps)), random(12));
        let run = |device: &Device| {
            let to = |x: &Tensor| x.to_device(device).unwrap();
            DepthwiseConv::new(&to(&weight), to(&bias), dilation).unwrap().forward(&to(&x)).unwrap()
        };
        assert!(worst(&run(&device), &run(&Device::Cpu)) < 1e-5);
    }
}

#[test]
fn padded_convolutions_equal_the_cpu() {
    let Some(device) = device() else { return };
    for (padding, pads, stride, rows) in [
        (Padding::Zero, [0, 0], 1, 9),
        (Padding::Zero, [3, 3], 2, 31),
        (Padding::Mirror, [6, 6], 1, 40),
        (Padding::Repeat, [4, 1], 4, 11),
    ] {
        let (x, weight, bias) = (random((rows, 16)), random((33, 16, 7)), random(33));
        let run = |device: &Device| {
            let to = |x: &Tensor| x.to_device(device).unwrap();
            let conv = Conv1d::new(&to(&weight), Some(to(&bias)), 1).unwrap();
            conv.forward_padded(&to(&x), (padding, pads), stride, Some(Activation::Relu)).unwrap()
        };
        let (ours, expected) = (run(&device), run(&Device::Cpu));
        assert_eq!(ours.dims(), expected.dims());
        assert!(worst(&ours, &expected) < 1e-4, "{padding:?}");
    }
}

#[test]
fn windows_equal_the_cpu_in_any_chunks_and_clones_part() {
    for (heads, kv_heads, head_dim, window) in [
        (2, 2, 16, Window::new(9)),
        (4, 2, 64, Window::new(24)),
        (2, 1, 6, Window { positions: 8, step: 2 }),
        (1, 1, 80, Window::new(1)),
    ] {
        let width = (heads + 2 * kv_heads) * head_dim;
        let norms = [random(head_dim), random(head_dim)];
        compare(
            &format!("{heads} {kv_heads} {head_dim} {window:?}"),
            width,
            2e-5,
            |device, shape| {
                let place = shape.window(window.positions, kv_heads * head_dim);
                (place, norms.each_ref().map(|norm| RmsNorm::new(norm.to_device(device).unwrap(), 1e-6)))
            },
            |(place, [query, key]), x, streams| {
                let rope = Rope::new(head_dim, 1e4);
                let positions = rope.rows(streams.positions(*place), x.device()).unwrap();
                let norms = (head_dim != 16).then_some([query, key]);
                let heads = MixedHeads { heads, kv_heads, rope: &rope, positions: &positions, norms };
                vec![streams.attend(*place, x.copy().unwrap(), heads, window).unwrap()]
            },
        );
    }
    let Some(device) = device() else { return };
    let x = random((50, 3 * 2 * 16));
    let run = |device: &Device| {
        let rope = Rope::new(16, 1e4);
        let positions = rope.rows((0..50).collect(), device).unwrap();
        let heads = MixedHeads { heads: 2, kv_heads: 2, rope: &rope, positions: &positions, norms: None };
        attend_whole(x.to_device(device).unwrap().copy().unwrap(), heads).unwrap()
    };
    assert!(worst(&run(&device), &run(&Device::Cpu)) < 2e-5);
}

#[test]
fn clones_of_a_state_go_on_alone_and_slots_are_used_again() {
    let Some(device) = device() else { return };
    let weight = random((8, 8, 5)).to_device(&device).unwrap();
    let mut shape = StreamShape::default();
    let conv = CausalConv::new(Conv1d::new(&weight, None, 1).unwrap(), 1, &mut shape).unwrap();
    let x = random((24, 8)).to_device(&device).unwrap();
    let run = |state: &mut StreamState, start: usize, rows: usize| {
        let mut streams = Streams::new(&shape, vec![state], vec![rows], &device).unwrap();
        let y = conv.forward(&x.narrow(0, start, rows).unwrap(), &mut streams).unwrap();
        y.to_vec2::<f32>().unwrap()
    };
    let mut whole = StreamState::default();
    let expected = run(&mut whole, 0, 24);
    let mut state = StreamState::default();
    run(&mut state, 0, 6);
    let mut copies: Vec<_> = (0..6).map(|_| state.clone()).collect();
    // The first one continues with other rows.
    run(&mut copies[0], 20, 4);
    for copy in &mut copies[1..] {
        let y = run(copy, 6, 18);
        let off = y.iter().flatten().zip(expected[6..].iter().flatten()).map(|(a, b)| (a - b).abs());
        assert!(off.fold(0f32, f32::max) < 1e-4);
    }
    assert_eq!(state.bytes(), shape.bytes());
    let other = StreamShape::default();
    assert!(Streams::new(&other, vec![&mut state], vec![1], &device).is_err());
}
