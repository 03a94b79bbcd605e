//! Quantised products of the layers of Qwen3-TTS 0.6B, against the fastest that the processor multiplies bytes, in one run.
//!
//! `cargo bench -p izwi-benches --bench products -- --json`. Knows only the kernels.

use std::hint::black_box;
use std::time::Instant;

use clap::Parser;
use izwi_kernels::linear::{Rows, WeightSource, WeightType, Weights};
use izwi_kernels::measure::{int8_peak, isa_levels, select_isa_level};
use izwi_kernels::threads::default_threads;
use serde_json::{Map, Value, json};

/// A product: its name, inputs and outputs.
type Shape = (&'static str, usize, usize);

/// The products of a layer, of the talker and of the code predictor alike.
const LAYER: [Shape; 4] =
    [("qkv", 1024, 4096), ("out", 2048, 1024), ("gate_up", 1024, 6144), ("down", 3072, 1024)];
/// The most inputs and outputs of a product.
const MOST: (usize, usize) = (3072, 6144);
/// Layers of the talker.
const TALKER_LAYERS: f64 = 28.0;
/// Rounds of [`int8_peak`]: about a millisecond.
const PEAK_ROUNDS: usize = 200_000;
/// Rows of all calls of one measurement with weights from the caches, but at least 3 calls.
const CACHED_ROWS: usize = 64;

/// Measures products of 8-bit weights.
#[derive(Debug, Parser)]
struct Args {
    /// Instruction levels; the best, and others that multiply bytes in their own way, if none are given.
    #[arg(long, value_delimiter = ',')]
    levels: Vec<String>,
    /// Numbers of rows; the first is what others are compared with.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,64,256")]
    rows: Vec<usize>,
    /// Layers to cycle through: more than the last-level cache holds.
    #[arg(long, default_value_t = 8)]
    layers: usize,
    /// Rounds, of which the medians are shown.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Bits of a weight: 8 or 4.
    #[arg(long, default_value_t = 8)]
    bits: u8,
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

/// A level and a number of rows, and what each round measured.
struct Case {
    level: String,
    rows: usize,
    /// Peak in products a second.
    peak: Vec<f64>,
    /// Seconds of a layer with weights from memory.
    cold: Vec<f64>,
    /// Seconds of each product with weights from the caches.
    cached: [Vec<f64>; LAYER.len()],
    /// Shares of the peak of the same round: of `cold`, and of `cached` together.
    shares: [Vec<f64>; 2],
}

/// The operands.
struct Bench {
    layers: Vec<Vec<Weights>>,
    x: Vec<f32>,
    y: Vec<f32>,
    threads: usize,
}

impl Bench {
    fn new(args: &Args, threads: usize) -> Self {
        let most = args.rows.iter().copied().max().unwrap_or(1);
        let weight_type = if args.bits == 4 { WeightType::Q4 } else { WeightType::Q8 };
        let values = noise(LAYER.iter().map(|shape| shape.1 * shape.2).max().unwrap_or(0));
        let pack = |&(_, inputs, outputs): &Shape| {
            Weights::pack(WeightSource::F32(&values[..inputs * outputs]), inputs, outputs, weight_type)
        };
        let layer: Vec<_> = LAYER.iter().map(pack).collect();
        let layers = vec![layer; args.layers.max(1)];
        Self { layers, x: noise(most * MOST.0), y: vec![0.0; most * MOST.1], threads }
    }

    fn product(&mut self, layer: usize, at: usize, rows: usize) {
        let (_, inputs, outputs) = LAYER[at];
        let x = Rows { data: &self.x, stride: inputs, count: rows };
        self.layers[layer][at].product(x, None, &mut self.y[..rows * outputs]);
        black_box(&self.y);
    }

    /// Median seconds of the products of a layer, each layer once.
    fn cold(&mut self, rows: usize) -> f64 {
        let seconds = (0..self.layers.len()).map(|layer| {
            let start = Instant::now();
            (0..LAYER.len()).for_each(|at| self.product(layer, at, rows));
            start.elapsed().as_secs_f64()
        });
        median(&seconds.collect::<Vec<_>>())
    }

    /// Median seconds of one product, again and again.
    fn cached(&mut self, at: usize, rows: usize) -> f64 {
        self.product(0, at, rows);
        let seconds = (0..(CACHED_ROWS / rows).max(3)).map(|_| {
            let start = Instant::now();
            self.product(0, at, rows);
            start.elapsed().as_secs_f64()
        });
        median(&seconds.collect::<Vec<_>>())
    }

    fn measure(&mut self, case: &mut Case) {
        let peak = int8_peak(self.threads, PEAK_ROUNDS).max(int8_peak(self.threads, PEAK_ROUNDS));
        let work = work(case.rows);
        let mut cached = 0.0;
        for (at, seconds) in case.cached.iter_mut().enumerate() {
            let second = self.cached(at, case.rows);
            cached += second;
            seconds.push(second);
        }
        let cold = self.cold(case.rows);
        case.shares[0].push(work / cold / peak);
        case.shares[1].push(work / cached / peak);
        case.cold.push(cold);
        case.peak.push(peak);
    }
}

/// Products of a layer.
fn work(rows: usize) -> f64 {
    LAYER.iter().map(|&(_, inputs, outputs)| (rows * inputs * outputs) as f64).sum()
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

fn cases(args: &Args) -> Vec<Case> {
    let supported = isa_levels();
    let others =
        supported.iter().skip(1).filter(|name| ["AvxVnni", "Avx2", "Neon", "NeonDotprod"].contains(name));
    let usual = supported.iter().take(1).chain(others).map(|&name| name.to_owned());
    let levels = if args.levels.is_empty() { usual.collect() } else { args.levels.clone() };
    let of = |level: &String| {
        let case = |&rows: &usize| Case {
            level: level.clone(),
            rows,
            peak: Vec::new(),
            cold: Vec::new(),
            cached: Default::default(),
            shares: Default::default(),
        };
        args.rows.iter().map(case).collect::<Vec<_>>()
    };
    levels.iter().flat_map(of).collect()
}

/// A line of the table; `first` is the case of the same level with the fewest rows.
fn result(case: &Case, first: &Case) -> Value {
    let rate = |case: &Case| work(case.rows) / median(&case.cold);
    let shapes = LAYER.iter().zip(&case.cached).map(|(&(name, inputs, outputs), seconds)| {
        let rate = (case.rows * inputs * outputs) as f64 / median(seconds);
        (name.to_owned(), rounded(rate / 1e9))
    });
    let cached: f64 = case.cached.iter().map(|seconds| median(seconds)).sum();
    json!({
        "level": case.level,
        "rows": case.rows,
        "peak_g_per_s": rounded(median(&case.peak) / 1e9),
        "g_per_s": rounded(rate(case) / 1e9),
        "share_of_peak": rounded(median(&case.shares[0])),
        "cached_g_per_s": rounded(work(case.rows) / cached / 1e9),
        "cached_share_of_peak": rounded(median(&case.shares[1])),
        "times_one_row": rounded(rate(case) / rate(first)),
        "talker_ms_per_row": rounded(1e3 * TALKER_LAYERS * median(&case.cold) / case.rows as f64),
        "cached_g_per_s_of": shapes.collect::<Map<_, _>>(),
    })
}

fn rounded(value: f64) -> Value {
    json!((value * 1000.0).round() / 1000.0)
}

#[allow(clippy::print_stdout, reason = "the report of a bench")]
fn main() {
    let args = Args::parse();
    let threads = args.threads.unwrap_or_else(default_threads);
    // The kernels use as many threads as rayon has.
    rayon::ThreadPoolBuilder::new().num_threads(threads).build_global().ok();
    let (mut bench, mut cases) = (Bench::new(&args, threads), cases(&args));
    for _ in 0..args.rounds {
        for case in &mut cases {
            assert!(select_isa_level(&case.level), "level {} is not one of {:?}", case.level, isa_levels());
            bench.measure(case);
        }
    }
    let first = |case: &Case| cases.iter().find(|other| other.level == case.level);
    let results: Vec<Value> = cases.iter().filter_map(|case| Some(result(case, first(case)?))).collect();
    if args.json {
        println!("{:#}", json!({ "threads": threads, "results": results }));
    } else {
        results.iter().for_each(|result| println!("{result}"));
    }
}
