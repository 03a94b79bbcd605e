//! CPU kernels compared with candle's operations in one run: compare ratios, not times.

use std::hint::black_box;

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use izwi_nn::attention::{CrossKv, PagedRows, PagedSpan, bidirectional, cross, paged};
use izwi_nn::kv_pool::{ConvStateLayout, KvLayout, KvPool};
use izwi_nn::layers::activation::{bias_gelu, silu_gate};
use izwi_nn::layers::conv::{Conv1d, WinogradConv1d};
use izwi_nn::layers::{Linear, RmsNorm, Rope};
use izwi_types::Precision;

const HEADS: usize = 8;
const WIDTH: usize = 512;
/// Bytes of weights to cycle through: more than any cache holds.
const COLD_BYTES: usize = 128 << 20;

fn random(rows: usize, width: usize) -> Result<Tensor> {
    Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu)
}

/// Cold weights with few rows, and encoder shapes.
fn linear(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("linear");
    for (inputs, outputs) in [(WIDTH, WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH, WIDTH)] {
        let weight = random(outputs, inputs)?.to_dtype(DType::F16)?;
        let wide = weight.to_dtype(DType::F32)?.t()?.contiguous()?; // [inputs, outputs]
        let copies = COLD_BYTES / (2 * inputs * outputs);
        let own: Vec<_> = (0..copies).map(|_| Linear::new(&weight, None)).collect::<Result<_>>()?;
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

/// One decoding step's products at every precision, weights cold, compared with candle's 8 bits. `RAYON_NUM_THREADS` sets the
/// threads of both.
fn precisions(criterion: &mut Criterion) -> Result<()> {
    const SIDE: usize = 1024;
    let mut group = criterion.benchmark_group("precision");
    group.sample_size(40);
    let weight = random(SIDE, SIDE)?;
    let sets = ["f32", "bf16", "f16", "q8", "q4"].map(|name| {
        let precision = name.parse().unwrap_or(Precision::Auto);
        let first = Linear::with_precision(&weight, None, precision)?;
        let copies = COLD_BYTES / first.bytes();
        let rest = (1..copies).map(|_| Linear::with_precision(&weight, None, precision));
        Ok((name, std::iter::once(Ok(first)).chain(rest).collect::<Result<Vec<_>>>()?))
    });
    let sets = sets.into_iter().collect::<Result<Vec<_>>>()?;
    let candle = || QMatMul::from_qtensor(QTensor::quantize(&weight, GgmlDType::Q8_0)?);
    let candle = (0..COLD_BYTES / (SIDE * SIDE)).map(|_| candle()).collect::<Result<Vec<_>>>()?;
    let mut turn = 0;
    for rows in [1, 2, 4, 8, 16, 64, 512] {
        let x = random(rows, SIDE)?;
        for (name, own) in &sets {
            group.bench_function(BenchmarkId::new(*name, rows), |bencher| {
                bencher.iter(|| {
                    turn += 1;
                    black_box(own[turn % own.len()].forward(&x))
                });
            });
        }
        group.bench_function(BenchmarkId::new("candle-q8_0", rows), |bencher| {
            bencher.iter(|| {
                turn += 1;
                black_box(candle[turn % candle.len()].forward(&x))
            });
        });
    }
    group.finish();
    Ok(())
}

/// The operations between the products of a decoder layer: 16 query and 8 key/value heads of 128, width 1024.
fn decoder(criterion: &mut Criterion) -> Result<()> {
    let mut group = criterion.benchmark_group("decoder");
    let (norm, head_norm) = (RmsNorm::new(random(1, 1024)?.squeeze(0)?, 1e-6), random(1, 128)?.squeeze(0)?);
    let (head_norm, rope) = (RmsNorm::new(head_norm, 1e-6), Rope::new(128, 1e6));
    let layout = KvLayout {
        layers: 1,
        kv_heads: 8,
        head_dim: 128,
        dtype: DType::BF16,
        conv_state: ConvStateLayout::NONE,
    };
    let pool = KvPool::new(Some(layout), 64, 16, &Device::Cpu)?;
    let table: Vec<u32> = (0..64).rev().collect();
    for rows in [1, 8] {
        let (x, qkv, gates) = (random(rows, 1024)?, random(rows, 4096)?, random(rows, 6144)?);
        let q = qkv.narrow(1, 0, 2048)?;
        let positions = rope.rows(vec![500; rows], &Device::Cpu)?;
        group.bench_function(BenchmarkId::new("norm", rows), |bencher| {
            bencher.iter(|| black_box(norm.forward(&x)));
        });
        group.bench_function(BenchmarkId::new("norm-rope", rows), |bencher| {
            bencher.iter(|| black_box(rope.forward_normed(&q, &positions, &head_norm)));
        });
        group.bench_function(BenchmarkId::new("silu-gate", rows), |bencher| {
            bencher.iter(|| black_box(silu_gate(&gates)));
        });
        for start in [15, 511] {
            let q = q.contiguous()?;
            let spans = vec![PagedSpan { start, num_tokens: 1, block_table: &table }; rows];
            let spans = PagedRows::new(&pool, &spans)?;
            group.bench_function(BenchmarkId::new(format!("paged-{start}"), rows), |bencher| {
                bencher.iter(|| black_box(paged(&pool, 0, &q, &spans, 16)));
            });
        }
    }
    group.finish();
    Ok(())
}

/// Wide vocoder convolutions, three frames of 80 ms: direct in f32, direct in bf16 pairs, and Winograd.
fn vocoder(criterion: &mut Criterion) -> Result<()> {
    const FRAMES: usize = 3;
    let mut group = criterion.benchmark_group("vocoder");
    group.sample_size(20);
    for (channels, rows) in [(768, 32), (384, 160), (192, 640), (96, 1920)] {
        let taps = WinogradConv1d::TAPS;
        let weight = Tensor::randn(0f32, 1.0, (channels, channels, taps), &Device::Cpu)?;
        let bias = random(1, channels)?.squeeze(0)?;
        for dilation in [1, 9] {
            let x = random(FRAMES * rows + (taps - 1) * dilation, channels)?;
            let each: Vec<u32> = (0..(FRAMES * rows) as u32).collect();
            let frames: Vec<u32> = (0..FRAMES).map(|frame| (frame * rows) as u32).collect();
            for precision in [Precision::F32, Precision::Bf16] {
                let conv = Conv1d::with_precision(&weight, Some(bias.clone()), dilation, precision)?;
                let name = format!("{channels}/{dilation}/{precision}");
                group.bench_function(name, |bencher| bencher.iter(|| black_box(conv.forward(&x, &each))));
            }
            let conv = WinogradConv1d::new(&weight, bias.clone(), rows, dilation)?;
            let name = format!("{channels}/{dilation}/groups");
            group.bench_function(name, |bencher| bencher.iter(|| black_box(conv.forward(&x, &frames))));
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

/// Encoder self-attention, and cross-attention of decoder rows.
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

/// The MLP of an encoder window.
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
    for part in [precisions, decoder, linear, vocoder, attention, elementwise] {
        assert!(part(criterion).is_ok(), "the shapes of this bench fit");
    }
}

criterion_group!(benches, bench);
criterion_main!(benches);
