//! Products, with what is fused.

use candle_core::{DType, Tensor};
use izwi_metal::{Epilogue, Fused, MetalWeights, Norm, Pass, metal_device};
use izwi_types::Precision;

use super::{device, random, worst};

const PRECISIONS: [Precision; 5] =
    [Precision::F32, Precision::F16, Precision::Bf16, Precision::Q8, Precision::Q4];

/// The weight as it is stored, from the packed one of the CPU.
fn stored(weight: &Tensor, precision: Precision) -> Tensor {
    let linear = crate::layers::Linear::with_precision(weight, None, precision).unwrap();
    linear.select_rows(&(0..weight.dims()[0] as u32).collect::<Vec<_>>()).unwrap()
}

#[test]
fn products_equal_the_cpu_for_any_rows_and_precision() {
    let Some(device) = device() else { return };
    let on = metal_device(&device).unwrap();
    for (inputs, outputs) in [(70, 37), (256, 64), (300, 5)] {
        let weight = random((outputs, inputs));
        let bias = random((1, outputs)).squeeze(0).unwrap();
        for precision in PRECISIONS {
            let kept = stored(&weight, precision);
            let weights = MetalWeights::new(&weight, precision, on).unwrap();
            for rows in [1, 2, 3, 4, 7, 13, 16, 17, 40] {
                let x = random((rows, inputs));
                let expected = x.matmul(&kept.t().unwrap()).unwrap().broadcast_add(&bias).unwrap();
                let (x, bias) = (x.to_device(&device).unwrap(), bias.to_device(&device).unwrap());
                let pass = Pass::open(on).unwrap();
                let y = pass.linear(&x, &weights, Fused { bias: Some(&bias), ..Fused::default() });
                drop(pass);
                let off = worst(&y.unwrap(), &expected);
                assert!(off < 1e-4, "{inputs} {outputs} {precision} {rows}: {off}");
            }
        }
    }
}

#[test]
fn norms_activations_and_residuals_fuse() {
    let Some(device) = device() else { return };
    let on = metal_device(&device).unwrap();
    let (inputs, outputs) = (96, 44);
    let weight = random((outputs, inputs));
    let kept = stored(&weight, Precision::Q8).t().unwrap();
    let weights = MetalWeights::new(&weight, Precision::Q8, on).unwrap();
    let column = |n| random((1, n)).squeeze(0).unwrap();
    let (scale, shift) = (column(inputs), column(inputs));
    let to = |x: &Tensor| x.to_device(&device).unwrap();
    for rows in [1, 6, 35] {
        let x = (random((rows, inputs)) + 0.5).unwrap();
        let rms = candle_nn::ops::rms_norm(&x, &scale, 1e-5).unwrap();
        let layer = candle_nn::ops::layer_norm(&x, &scale, &shift, 1e-5).unwrap();
        let gated = |y: Tensor| {
            let (gate, up) =
                (y.narrow(1, 0, outputs / 2).unwrap(), y.narrow(1, outputs / 2, outputs / 2).unwrap());
            (gate.silu().unwrap() * up).unwrap()
        };
        let (on_scale, on_shift, on_x) = (to(&scale), to(&shift), to(&x));
        let rms_norm = Norm::Rms { weight: &on_scale, eps: 1e-5 };
        let layer_norm = Norm::Layer { weight: &on_scale, bias: &on_shift, eps: 1e-5 };
        let residual = random((rows, outputs));
        let on_residual = to(&residual);
        let product = |x: &Tensor| x.matmul(&kept).unwrap();
        let cases = [
            (Fused { norm: rms_norm, ..Fused::default() }, product(&rms)),
            (Fused { norm: layer_norm, ..Fused::default() }, product(&layer)),
            (
                Fused { norm: layer_norm, epilogue: Epilogue::Gelu, ..Fused::default() },
                product(&layer).gelu_erf().unwrap(),
            ),
            (
                Fused { norm: rms_norm, epilogue: Epilogue::GatedSilu, ..Fused::default() },
                gated(product(&rms)),
            ),
            (Fused { epilogue: Epilogue::Silu, ..Fused::default() }, product(&x).silu().unwrap()),
            (Fused { epilogue: Epilogue::Relu, ..Fused::default() }, product(&x).relu().unwrap()),
            (Fused { residual: Some(&on_residual), ..Fused::default() }, (product(&x) + &residual).unwrap()),
        ];
        for (index, (fused, expected)) in cases.into_iter().enumerate() {
            let pass = Pass::open(on).unwrap();
            let y = pass.linear(&on_x, &weights, fused);
            drop(pass);
            let off = worst(&y.unwrap(), &expected);
            let largest = expected.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap();
            assert!(off < 1e-5 * (10.0 + largest), "case {index}, {rows} rows: {off} of {largest}");
        }
    }
}

#[test]
fn a_layer_norm_of_rows_far_from_zero_keeps_its_digits() {
    let Some(device) = device() else { return };
    let on = metal_device(&device).unwrap();
    let (inputs, outputs) = (300, 40);
    let weight = random((outputs, inputs));
    let weights = MetalWeights::new(&weight, Precision::F32, on).unwrap();
    let [scale, shift] = [(); 2].map(|()| random((1, inputs)).squeeze(0).unwrap());
    for rows in [1, 5, 40] {
        let x = (random((rows, inputs)) + 300.0).unwrap();
        // In f64: candle's own has the same weakness.
        let wide = |x: &Tensor| x.to_dtype(DType::F64).unwrap();
        let centred = wide(&x).broadcast_sub(&wide(&x).mean_keepdim(1).unwrap()).unwrap();
        let deviation = (centred.sqr().unwrap().mean_keepdim(1).unwrap() + 1e-5).unwrap().sqrt().unwrap();
        let normed = centred.broadcast_div(&deviation).unwrap().broadcast_mul(&wide(&scale)).unwrap();
        let normed = normed.broadcast_add(&wide(&shift)).unwrap();
        let expected = normed.matmul(&wide(&weight).t().unwrap()).unwrap().to_dtype(DType::F32).unwrap();
        let [x, scale, shift] = [&x, &scale, &shift].map(|x| x.to_device(&device).unwrap());
        let pass = Pass::open(on).unwrap();
        let norm = Norm::Layer { weight: &scale, bias: &shift, eps: 1e-5 };
        let y = pass.linear(&x, &weights, Fused { norm, ..Fused::default() });
        drop(pass);
        let off = worst(&y.unwrap(), &expected);
        assert!(off < 0.01, "{rows} rows: {off}");
    }
}

#[test]
fn a_row_is_the_same_bits_in_any_batch_of_few_rows() {
    let Some(device) = device() else { return };
    let on = metal_device(&device).unwrap();
    let weights = MetalWeights::new(&random((33, 288)), Precision::Q8, on).unwrap();
    let x = random((16, 288)).to_device(&device).unwrap();
    let product = |x: &Tensor| {
        let pass = Pass::open(on).unwrap();
        let y = pass.linear(x, &weights, Fused::default());
        drop(pass);
        y.unwrap().to_vec2::<f32>().unwrap()
    };
    let whole = product(&x);
    for (start, rows) in [(0, 1), (3, 2), (5, 4), (7, 8), (1, 15)] {
        assert_eq!(product(&x.narrow(0, start, rows).unwrap()), whole[start..start + rows], "{start} {rows}");
    }
}
