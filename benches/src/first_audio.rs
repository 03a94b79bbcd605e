//! Time to the first chunk of a model, with random weights of a published size: text as it arrives, and as a whole.
//!
//! The engine runs in this process, so that no socket is measured. The voice's prefix is warm. Reports a table, or JSON.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use izwi_benches::engines::RandomModel;
use izwi_core::engine::{DeviceArbiter, Engine, EngineCoreRequest, GenerationParams, TextInput};
use serde::Serialize;

/// Measures the time to first audio.
#[derive(Debug, Parser)]
struct Args {
    #[command(flatten)]
    weights: RandomModel,
    /// Measured requests of each row.
    #[arg(long, default_value_t = 9)]
    rounds: usize,
    /// Fail if the median of a row of arriving text is above this many milliseconds, for chunks of 200 ms and of 80 ms.
    #[arg(long, value_delimiter = ',', num_args = 2)]
    at_most: Option<Vec<f64>>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    text: &'static str,
    first_chunk_ms: usize,
    prompt_tokens: usize,
    median_ms: f64,
    min_ms: f64,
    max_ms: f64,
}

/// Words as a language model writes them. The tokenizer of random weights has a token a byte.
const WORDS: &str =
    "wind and the sun disputed which was the stronger when a traveller came along in a warm cloak.";
/// Generated tokens of a request: two seconds of audio, so that most of the time is for frames, as in speech.
const TOKENS: usize = 24;

/// The number that begins a text, so that no two are equal.
const START: usize = 1_000;

/// Runs one request. Returns the time to its first chunk and the tokens of its prompt.
async fn once(
    engine: &Engine,
    number: usize,
    first_samples: usize,
    arrives: bool,
) -> Result<(Duration, usize)> {
    let params = GenerationParams {
        max_tokens: TOKENS,
        seed: Some(number as u64),
        ..engine.profile().default_params()
    };
    let start = START + number;
    let input = TextInput::new();
    let request = if arrives {
        EngineCoreRequest::tts(format!("{start} ")).with_text_input(input.clone())
    } else {
        EngineCoreRequest::tts(format!("{start} {WORDS}")).with_streams_text(false)
    };
    let request = request.with_params(params).with_first_chunk_samples(Some(first_samples));
    let begun = Instant::now();
    let (_, mut chunks) = engine.generate_streaming(request).await?;
    if arrives {
        WORDS.split_inclusive(' ').try_for_each(|word| input.append(word))?;
        input.finish()?;
    }
    let first = chunks.recv().await.context("the stream has no chunk")?;
    let time = begun.elapsed();
    ensure!(first.samples.len() == first_samples, "the first chunk has {} samples", first.samples.len());
    let mut stats = None;
    while let Some(chunk) = chunks.recv().await {
        stats = chunk.stats;
    }
    Ok((time, stats.context("the stream was cut off")?.prompt_tokens))
}

async fn measure(engine: &Engine, args: &Args) -> Result<Vec<Row>> {
    let rate = engine.profile().info.sample_rate_hz as usize;
    let (mut rows, mut number) = (Vec::new(), 0);
    for (text, arrives) in [("as it arrives", true), ("as a whole", false)] {
        for first_chunk_ms in [200, 80] {
            let (mut times, mut prompt_tokens) = (Vec::new(), 0);
            // The first request warms the prefix of the voice.
            for round in 0..=args.rounds {
                number += 1;
                let (time, tokens) = once(engine, number, rate * first_chunk_ms / 1_000, arrives).await?;
                times.extend(Some(time.as_secs_f64() * 1e3).filter(|_| round > 0));
                prompt_tokens = tokens;
            }
            times.sort_by(f64::total_cmp);
            let (min_ms, max_ms) = (times[0], times[times.len() - 1]);
            rows.push(Row {
                text,
                first_chunk_ms,
                prompt_tokens,
                median_ms: times[times.len() / 2],
                min_ms,
                max_ms,
            });
        }
    }
    Ok(rows)
}

#[tokio::main]
#[allow(clippy::print_stdout, reason = "the report is this program's output")]
async fn main() -> Result<()> {
    let args = Args::parse();
    ensure!(args.rounds > 0, "--rounds is 0; use at least 1");
    let engine = args.weights.engine(true, &DeviceArbiter::new()).await?;
    let rows = measure(&engine, &args).await?;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
    } else {
        println!("| text | first chunk, ms | prompt tokens | time to it, ms: median | min | max |");
        println!("|---|---|---|---|---|---|");
        for row in &rows {
            let Row { text, first_chunk_ms, prompt_tokens, median_ms, min_ms, max_ms } = row;
            println!(
                "| {text} | {first_chunk_ms} | {prompt_tokens} | {median_ms:.0} | {min_ms:.0} | {max_ms:.0} |"
            );
        }
    }
    for (row, most) in rows.iter().zip(args.at_most.iter().flatten()) {
        ensure!(
            row.median_ms <= *most,
            "{} ms chunks take {:.0} ms, at most {most}",
            row.first_chunk_ms,
            row.median_ms
        );
    }
    Ok(())
}
