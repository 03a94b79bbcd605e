//! Layers of encoders.

use candle_core::{Device, Tensor};

use super::{device, random, worst};
use crate::attention::relative::{RelativeSpan, relative_mixed, sinusoids};
use crate::layers::conv::{DenseConv, DepthwiseConv, DepthwiseConv2d, GluConv, StridedConv};
use crate::layers::{
    Epilogue, Fused, InstanceNorm, LayerNorm, Linear, Norm, NormActivation, PackedRows, RmsNorm,
};

/// Runs `work` on the CPU and on Metal and compares the results, relative to the largest value if that is over 1.
fn compare(what: &str, tolerance: f32, work: impl Fn(&dyn Fn(&Tensor) -> Tensor, &Device) -> Tensor) {
    let Some(device) = device() else { return };
    let run = |device: &Device| work(&|x| x.to_device(device).unwrap(), device);
    let (ours, expected) = (run(&device), run(&Device::Cpu));
    assert_eq!(ours.dims(), expected.dims(), "{what}");
    let largest = worst(&expected, &expected.zeros_like().unwrap());
    let off = worst(&ours, &expected) / largest.max(1.0);
    assert!(off < tolerance, "{what}: {off}");
}

#[test]
fn relative_attention_equals_the_cpu() {
    for (heads, head_dim, lengths) in [(2, 12, vec![1, 40]), (3, 64, vec![33, 5, 90]), (1, 100, vec![17])] {
        let width = heads * head_dim;
        let longest = *lengths.iter().max().unwrap() + 2;
        let packed = PackedRows::new(&lengths, 3, &Device::Cpu).unwrap();
        let (mixed, biases) = (random((packed.rows(), 3 * width)), [random(width), random(width)]);
        compare(&format!("{heads} {head_dim} {lengths:?}"), 2e-5, |to, device| {
            let distances = sinusoids(longest, width, device).unwrap();
            let [content, place] = biases.each_ref().map(to);
            let spans: Vec<_> = packed.spans().iter().cloned().map(RelativeSpan::whole).collect();
            relative_mixed(&to(&mixed), &distances, [&content, &place], heads, &spans).unwrap()
        });
    }
}

#[test]
fn convolutions_of_packed_rows_equal_the_cpu_with_any_values_in_gaps() {
    let lengths = [1, 20, 7, 33];
    let spans_of = |y: Tensor, packed: &PackedRows| {
        let rows: Vec<_> =
            packed.spans().iter().map(|span| y.narrow(0, span.start, span.len()).unwrap()).collect();
        Tensor::cat(&rows, 0).unwrap()
    };
    let packed = PackedRows::new(&lengths, 4, &Device::Cpu).unwrap();
    let (x, weight, bias) = (random((packed.rows(), 24)), random((12, 1, 9)), random(12));
    compare("glu", 1e-4, |to, device| {
        let packed = PackedRows::new(&lengths, 4, device).unwrap();
        let conv = GluConv::new(&to(&weight), to(&bias)).unwrap();
        spans_of(conv.forward(&to(&x), &packed).unwrap(), &packed)
    });
    let cleared = packed.clear_gaps(&x.narrow(1, 0, 12).unwrap()).unwrap();
    compare("depthwise", 1e-4, |to, device| {
        let packed = PackedRows::new(&lengths, 4, device).unwrap();
        let conv = DepthwiseConv::new(&to(&weight), to(&bias), 1).unwrap();
        let x = if device.is_cpu() { cleared.clone() } else { to(&x.narrow(1, 0, 12).unwrap()) };
        spans_of(conv.forward_packed(&x.contiguous().unwrap(), &packed).unwrap(), &packed)
    });
}

#[test]
fn dense_and_strided_and_plane_convolutions_equal_the_cpu() {
    for (taps, stride, rows) in [(1, 1, 33), (3, 1, 33), (7, 2, 30), (3, 2, 31), (3, 2, 1), (3, 3, 33)] {
        let (x, weight, bias) = (random((rows, 20)), random((30, 20, taps)), random(30));
        compare(&format!("dense {taps}"), 1e-4, |to, _| {
            DenseConv::new(&to(&weight), to(&bias)).unwrap().forward(&to(&x)).unwrap()
        });
        compare(&format!("strided {taps} {stride} {rows}"), 1e-4, |to, _| {
            StridedConv::new(&to(&weight), to(&bias), stride).unwrap().forward_gelu(&to(&x)).unwrap()
        });
    }
    for (rows, columns) in [(1, 1), (2, 5), (9, 8), (16, 3)] {
        let (x, weight, bias) = (random((rows, columns, 5)), random((5, 1, 3, 3)), random(5));
        compare("plane", 1e-5, |to, _| {
            let conv = DepthwiseConv2d::new(&to(&weight), to(&bias)).unwrap();
            conv.forward(&to(&x), 0, rows.div_ceil(2)).unwrap()
        });
    }
}

#[test]
fn fused_linear_layers_equal_the_cpu() {
    let (weight, bias, scale) = (random((44, 36)), random(44), random(22));
    let norms = [random(36), random(36)];
    for rows in [1, 5, 40] {
        let (x, addend) = (random((rows, 36)), random((rows, 22)));
        for epilogue in [
            Epilogue::GatedSilu,
            Epilogue::Silu,
            Epilogue::Gelu,
            Epilogue::GeluTanh,
            Epilogue::Relu,
            Epilogue::None,
        ] {
            compare(&format!("{epilogue:?} {rows}"), 2e-4, |to, _| {
                let linear = Linear::new(&to(&weight), Some(to(&bias))).unwrap();
                let layer_norm = LayerNorm::new(to(&norms[0]), to(&norms[1]), 1e-5);
                let rms_norm = RmsNorm::new(to(&norms[0]), 1e-6);
                let gated = epilogue == Epilogue::GatedSilu;
                let (scale, addend) = (to(&scale), to(&addend));
                let fused = Fused {
                    norm: Some(if gated { Norm::Rms(&rms_norm) } else { Norm::Layer(&layer_norm) }),
                    epilogue,
                    scale: gated.then_some(&scale),
                    residual: gated.then_some(&addend),
                };
                linear.forward_fused(&to(&x), fused).unwrap()
            });
        }
    }
}

#[test]
fn instance_norms_equal_the_cpu_and_clear_gaps() {
    for (channels, lengths) in [(20, vec![30, 1, 300]), (70, vec![9]), (32, vec![2, 2])] {
        let rows = PackedRows::new(&lengths, 3, &Device::Cpu).unwrap().rows();
        let x = random((rows, channels)).affine(3.0, 50.0).unwrap();
        let styles = random((lengths.len(), 2 * channels));
        let (frequency, amplitude) = (random(channels), random(channels));
        for is_snake in [false, true] {
            compare(&format!("instance norm {lengths:?}"), 1e-4, |to, device| {
                let packed = PackedRows::new(&lengths, 3, device).unwrap();
                let (styles, frequency, amplitude) = (to(&styles), to(&frequency), to(&amplitude));
                let half = |at: usize| styles.narrow(1, at * channels, channels).unwrap();
                let activation = if is_snake {
                    NormActivation::Snake { frequency: &frequency, amplitude: &amplitude }
                } else {
                    NormActivation::LeakyRelu(0.2)
                };
                InstanceNorm::new(half(0), half(1)).forward(&to(&x), &packed, activation).unwrap()
            });
        }
    }
}
