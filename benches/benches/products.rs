//! Products, convolutions and attention at every instruction level, as shares of the fastest that the processor multiplies
//! and adds at that level, in one run.
//!
//! `cargo bench -p izwi-benches --bench products -- --json`. Knows only the kernels.

use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use half::bf16;
use izwi_kernels::attention::{PagedCache, PagedQuery, Span, attention, pack_heads, paged_attention};
use izwi_kernels::conv::winograd::{Epilogue, PaddedPlane, pack_winograd_2d, winograd_conv2d};
use izwi_kernels::conv::{ConvPanels, ConvPanelsQ8, ConvRows, ConvRowsQ8, conv1d, conv1d_q8};
use izwi_kernels::linear::{Rows, WeightSource, WeightType, Weights};
use izwi_kernels::measure::{f32_peak, int8_peak, isa_levels, select_isa_level};
use izwi_kernels::quantised_rows::QuantisedRows;
use izwi_kernels::threads::default_threads;
use serde_json::{Value, json};

/// Inputs and outputs of the products of a layer of Qwen3-TTS 0.6B, of the talker and of the code predictor alike.
const LAYER: [(usize, usize); 4] = [(1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024)];
/// The most inputs and outputs of a product.
const MOST: (usize, usize) = (3072, 6144);
/// Bytes of weights to cycle through: more than the last-level cache holds.
const COLD_BYTES: usize = 128 << 20;
/// Channels, taps and dilation of a convolution of a vocoder.
const CONV: (usize, usize, usize) = (384, 7, 3);
/// Channels and columns of a plane: the third stage of a ResNet over 80 bands.
const PLANE: (usize, usize) = (128, 20);
/// Heads and their size, and positions that each row attends to: the encoder of Whisper base.
const ATTENTION: (usize, usize, usize) = (8, 64, 1500);
/// Positions of a block of the paged cache.
const BLOCK_SIZE: usize = 16;
/// Rounds of the peaks: about a millisecond each.
const PEAK_ROUNDS: usize = 100_000;
/// Rows of all calls of one measurement, but at least 3 calls.
const CACHED_ROWS: usize = 64;

/// Measures kernels at every instruction level.
#[derive(Debug, Parser)]
struct Args {
    /// Instruction levels; all that the processor has if none are given.
    #[arg(long, value_delimiter = ',')]
    levels: Vec<String>,
    /// Numbers of rows; the first is what others are compared with.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,64,256")]
    rows: Vec<usize>,
    /// Kernels: types of weights of products, `conv-f32`, `conv-bf16`, `conv-q8`, `conv-planes`, `attention`,
    /// `paged`.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "f32,f16,bf16,q8,q4,conv-f32,conv-bf16,conv-q8,conv-planes,attention,paged"
    )]
    kernels: Vec<String>,
    /// Rounds, of which the medians are shown.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Threads; those of a server if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print JSON instead of lines.
    #[arg(long)]
    json: bool,
    /// Ignored: `cargo bench` gives it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What is measured: `rows` rows, with operands of copy `turn`.
type Run = Box<dyn FnMut(usize, usize)>;

/// A kernel and its operands.
struct Measured {
    /// Multiply-adds of a row.
    work: usize,
    /// Whether the peak is that of bytes.
    is_int8: bool,
    /// Copies of the weights; one where they stay in the caches anyway.
    copies: usize,
    run: Run,
}

/// Median seconds of a call with weights from the caches, and from memory.
fn seconds(kernel: &mut Measured, rows: usize) -> [f64; 2] {
    let mut time = |turn: usize| {
        let start = Instant::now();
        (kernel.run)(rows, turn);
        start.elapsed().as_secs_f64()
    };
    time(0);
    let cached: Vec<f64> = (0..(CACHED_ROWS / rows).clamp(3, 16)).map(|_| time(0)).collect();
    let cold: Vec<f64> = (0..kernel.copies).map(|turn| time((turn + 1) % kernel.copies)).collect();
    [median(&cached), median(&cold)]
}

fn products(weight_type: WeightType, most: usize) -> Measured {
    let values = noise(LAYER.iter().map(|(inputs, outputs)| inputs * outputs).max().unwrap_or(0));
    let pack = |&(inputs, outputs): &(usize, usize)| {
        let weights = WeightSource::F32(&values[..inputs * outputs]);
        Weights::pack(weights, inputs, outputs, weight_type)
    };
    let layer: Vec<_> = LAYER.iter().map(pack).collect();
    let bytes: usize = layer.iter().map(Weights::bytes).sum();
    let layers = vec![layer; COLD_BYTES.div_ceil(bytes)];
    let (x, mut y) = (noise(most * MOST.0), vec![0.0; most * MOST.1]);
    Measured {
        work: LAYER.iter().map(|(inputs, outputs)| inputs * outputs).sum(),
        is_int8: matches!(weight_type, WeightType::Q8 | WeightType::Q4),
        copies: layers.len(),
        run: Box::new(move |rows, turn| {
            for (weights, (inputs, outputs)) in layers[turn].iter().zip(LAYER) {
                let x = Rows { data: &x, stride: inputs, count: rows };
                weights.product(x, None, &mut y[..rows * outputs]);
                black_box(&y);
            }
        }),
    }
}

fn convolution(pairs: bool, most: usize) -> Measured {
    let (channels, taps, dilation) = CONV;
    let weight = noise(channels * taps * channels);
    let pack = if pairs { ConvPanels::pack_pairs } else { ConvPanels::pack };
    let weights = pack(&weight, channels, taps, channels);
    let (x, mut y) = (noise((most + taps * dilation) * channels), vec![0.0; most * channels]);
    let starts: Vec<u32> = (0..most as u32).collect();
    Measured {
        work: channels * taps * channels,
        is_int8: false,
        copies: 1,
        run: Box::new(move |rows, _| {
            let data = &x[..(rows + taps * dilation) * channels];
            let x = ConvRows { data, starts: &starts[..rows], dilation };
            conv1d(x, &weights, None, &mut y[..rows * channels]);
            black_box(&y);
        }),
    }
}

fn convolution_q8(most: usize) -> Measured {
    let (channels, taps, dilation) = CONV;
    let weights = ConvPanelsQ8::pack(&noise(channels * taps * channels), channels, taps, channels);
    let rows = most + taps * dilation;
    let (x, mut y) = (noise(rows * channels), vec![0.0; most * channels]);
    let starts: Vec<u32> = (0..most as u32).collect();
    Measured {
        work: channels * taps * channels,
        is_int8: true,
        copies: 1,
        run: Box::new(move |rows, _| {
            let inputs = rows + taps * dilation;
            let mut data = QuantisedRows::zeros(inputs, channels);
            data.write(0, &x[..inputs * channels]);
            let x = ConvRowsQ8 { data: &data, starts: &starts[..rows], dilation };
            conv1d_q8(x, &weights, None, None, &mut y[..rows * channels]);
            black_box(&y);
        }),
    }
}

/// 3 x 3 taps by the Winograd algorithm; counts the multiply-adds of the plain sum, so that a share can be above 1.
fn plane_convolution(most: usize) -> Measured {
    let (channels, columns) = PLANE;
    let weights = pack_winograd_2d(&noise(channels * 9 * channels), channels, channels);
    let (width, bias) = (columns + 2, noise(channels));
    let data = noise((most + 2) * width * channels);
    let mut y = vec![0.0; data.len()];
    Measured {
        work: columns * channels * 9 * channels,
        is_int8: false,
        copies: 1,
        run: Box::new(move |rows, _| {
            let elements = (rows + 2) * width * channels;
            let x = PaddedPlane { data: &data[..elements], rows, columns, width };
            let epilogue = Epilogue { accumulates: false, has_relu: true };
            winograd_conv2d(x, &weights, &bias, &mut y[..elements], epilogue);
            black_box(&y);
        }),
    }
}

fn dense_attention(most: usize) -> Measured {
    let (heads, head_dim, positions) = ATTENTION;
    let width = heads * head_dim;
    let (keys, values) = (noise(positions * width), noise(positions * width));
    let kept = pack_heads::<f32>(&keys, &values, heads, head_dim, &[positions]);
    let (q, mut y) = (noise(most * width), vec![0.0; most * width]);
    Measured {
        work: 2 * positions * width,
        is_int8: false,
        copies: 1,
        run: Box::new(move |rows, _| {
            let spans = [Span { rows, heads: &kept[0] }];
            attention(&q[..rows * width], &spans, head_dim, &[], &mut y[..rows * width], &mut [vec![]]);
            black_box(&y);
        }),
    }
}

fn paged(most: usize) -> Measured {
    let (heads, head_dim, positions) = ATTENTION;
    let width = heads * head_dim;
    let blocks = positions.div_ceil(BLOCK_SIZE);
    let cache = |_| noise(blocks * BLOCK_SIZE * width).into_iter().map(bf16::from_f32).collect::<Vec<_>>();
    let [keys, values] = [0, 1].map(cache);
    let table: Vec<u32> = (0..blocks as u32).rev().collect();
    let (q, mut y) = (noise(most * width), vec![0.0; most * width]);
    Measured {
        work: 2 * positions * width,
        is_int8: false,
        copies: 1,
        run: Box::new(move |rows, _| {
            let (keys, values) = (&keys[..], &values[..]);
            let cache = PagedCache { keys, values, block_size: BLOCK_SIZE, heads, kv_heads: heads, head_dim };
            let queries: Vec<_> = (0..rows).map(|_| PagedQuery { positions, table: &table }).collect();
            paged_attention(&q[..rows * width], &queries, &cache, &mut y[..rows * width]);
            black_box(&y);
        }),
    }
}

fn kernel(name: &str, most: usize) -> Option<Measured> {
    Some(match name {
        "f32" => products(WeightType::F32, most),
        "f16" => products(WeightType::F16, most),
        "bf16" => products(WeightType::Bf16, most),
        "q8" => products(WeightType::Q8, most),
        "q4" => products(WeightType::Q4, most),
        "conv-f32" => convolution(false, most),
        "conv-bf16" => convolution(true, most),
        "conv-q8" => convolution_q8(most),
        "conv-planes" => plane_convolution(most),
        "attention" => dense_attention(most),
        "paged" => paged(most),
        _ => return None,
    })
}

/// A level and a number of rows, and what each round measured.
struct Case {
    level: String,
    rows: usize,
    /// Multiply-adds in a second: of the peak, with weights from the caches, and from memory.
    rates: [Vec<f64>; 3],
    /// Shares of the peak of the same round.
    shares: [Vec<f64>; 2],
}

impl Case {
    fn measure(&mut self, kernel: &mut Measured, threads: usize) {
        let peak = if kernel.is_int8 { int8_peak } else { f32_peak };
        let peak = peak(threads, PEAK_ROUNDS).max(peak(threads, PEAK_ROUNDS));
        let rates = seconds(kernel, self.rows).map(|seconds| (self.rows * kernel.work) as f64 / seconds);
        for (kept, rate) in self.rates.iter_mut().zip([peak, rates[0], rates[1]]) {
            kept.push(rate);
        }
        for (kept, rate) in self.shares.iter_mut().zip(rates) {
            kept.push(rate / peak);
        }
    }

    /// A line of the table.
    fn result(&self, kernel: &str) -> Value {
        let [peak, cached, cold] = [0, 1, 2].map(|at| rounded(median(&self.rates[at]) / 1e9));
        let [cached_share, cold_share] = [0, 1].map(|at| rounded(median(&self.shares[at])));
        json!({
            "kernel": kernel,
            "level": self.level,
            "rows": self.rows,
            "peak_g_per_s": peak,
            "cached_g_per_s": cached,
            "cached_share_of_peak": cached_share,
            "g_per_s": cold,
            "share_of_peak": cold_share,
        })
    }
}

/// Values between -1 and 1, the same in every run.
fn noise(count: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}

/// The results of one kernel: levels in turn, round after round.
fn results(name: &str, args: &Args, levels: &[String], threads: usize) -> Vec<Value> {
    let most = args.rows.iter().copied().max().unwrap_or(1);
    let Some(mut kernel) = kernel(name, most) else {
        return vec![json!({ "kernel": name, "error": "no kernel of this name: see --help" })];
    };
    let case = |level: &String, rows: usize| Case {
        level: level.clone(),
        rows,
        rates: Default::default(),
        shares: Default::default(),
    };
    let mut cases: Vec<Case> =
        levels.iter().flat_map(|level| args.rows.iter().map(move |&rows| case(level, rows))).collect();
    for _ in 0..args.rounds {
        for case in &mut cases {
            assert!(select_isa_level(&case.level), "level {} is not one of {:?}", case.level, isa_levels());
            case.measure(&mut kernel, threads);
        }
    }
    cases.iter().map(|case| case.result(name)).collect()
}

#[allow(clippy::print_stdout, reason = "the report of a bench")]
fn main() {
    let args = Args::parse();
    let threads = args.threads.unwrap_or_else(default_threads);
    // The kernels use as many threads as rayon has.
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().ok();
    let all = || isa_levels().into_iter().map(str::to_owned).collect();
    let levels: Vec<String> = if args.levels.is_empty() { all() } else { args.levels.clone() };
    let results: Vec<Value> =
        args.kernels.iter().flat_map(|name| results(name, &args, &levels, threads)).collect();
    if args.json {
        println!("{:#}", json!({ "threads": threads, "results": results }));
    } else {
        results.iter().for_each(|result| println!("{result}"));
    }
}
