//! CPU kernels of the models beside candle's own operations, in one run: read the ratios, not the times.

use std::hint::black_box;

use candle_core::{DType, Device, Result, Tensor};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use izwi_models::nn::activation::bias_gelu;
use izwi_models::nn::attention::{CrossKv, bidirectional, cross};
use izwi_models::nn::row_linear::RowLinear;

const HEADS: usize = 8;
const WIDTH: usize = 512;
/// Bytes of weights to cycle through, so that none is found in a cache.
const COLD_BYTES: usize = 128 << 20;

fn random(rows: usize, width: usize) -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu)
}

/// Cold weights at few rows, and the encoder's shapes.
fn linear(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("linear");
    for (inputs, outputs) in [(WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] {
        let weight = random(outputs, inputs)?.to_dtype(DType::F16)?;
        let wide = weight.to_dtype(DType::F32)?.t()?.contiguous()?; // [inputs, outputs]
        let copies = COLD_BYTES / (2 * inputs * outputs);
        let own: Vec<_> = (0..copies).map(|_| RowLinear::new(&weight, None)).collect::<Result<_>>()?;
        let candle: Vec<_> = (0..copies / 2).map(|_| wide.copy()).collect::<Result<_>>()?;
        for rows in [1, 2, 4, 8, 16, 230, 1500] {
            let x = random(rows, inputs)?;
            let name = format!("{inputs}x{outputs}");
            let mut turn = 0;
            group.bench_function(BenchmarkId::new(format!("{name}/own"), rows), |bencher| {
                bencher.iter(|| {
                    turn = (turn + 1) % own.len();
                    black_box(own[turn].forward(&x))
                });
            });
            group.bench_function(BenchmarkId::new(format!("{name}/candle"), rows), |bencher| {
                bencher.iter(|| {
                    turn = (turn + 1) % candle.len();
                    black_box(x.matmul(&candle[turn]))
                });
            });
        }
    }
    group.finish();
    Ok(())
}

fn candle_attention(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<Tensor> {
    let by_head = |x: &Tensor| x.reshape((x.dim(0)?, HEADS, WIDTH / HEADS))?.transpose(0, 1)?.contiguous();
    let scores = (by_head(q)?.matmul(&by_head(k)?.t()?)? * ((WIDTH / HEADS) as f64).sqrt().recip())?;
    let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&by_head(v)?)?;
    mixed.transpose(0, 1)?.reshape((q.dim(0)?, WIDTH))
}

/// An encoder window on itself, and decoding rows on an encoder window.
fn attention(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("attention");
    group.sample_size(10);
    let (q, k, v) = (random(1500, WIDTH)?, random(1500, WIDTH)?, random(1500, WIDTH)?);
    group.bench_function("bidirectional/own", |bencher| {
        bencher.iter(|| black_box(bidirectional(&q, &k, &v, HEADS, &[1500])));
    });
    group.bench_function("bidirectional/candle", |bencher| {
        bencher.iter(|| black_box(candle_attention(&q, &k, &v)));
    });
    for (name, dtype) in [("f16", DType::F16), ("f32", DType::F32)] {
        let kept = CrossKv::new(&k, &v, HEADS, dtype)?;
        for rows in [1, 4, 16] {
            let q = q.narrow(0, 0, rows)?;
            group.bench_function(BenchmarkId::new(format!("cross/{name}"), rows), |bencher| {
                bencher.iter(|| black_box(cross(&q, &[(rows, &kept)], HEADS, None)));
            });
        }
    }
    group.finish();
    Ok(())
}

/// The hidden layer of an encoder window.
fn elementwise(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("gelu");
    let (x, bias) = (random(1500, 4 * WIDTH)?, Tensor::zeros(4 * WIDTH, DType::F32, &Device::Cpu)?);
    group.bench_function("own", |bencher| {
        bencher.iter_batched(|| x.clone(), |x| black_box(bias_gelu(&x, &bias)), BatchSize::SmallInput);
    });
    group.bench_function("candle", |bencher| {
        bencher.iter(|| black_box(x.broadcast_add(&bias).and_then(|x| x.gelu_erf())));
    });
    group.finish();
    Ok(())
}

fn bench(criterion: &mut Criterion) {
    for part in [linear, attention, elementwise] {
        assert!(part(criterion).is_ok(), "the shapes of this bench fit");
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
