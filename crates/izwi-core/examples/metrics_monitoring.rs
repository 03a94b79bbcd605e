//! Watch the engine's numbers while it works, and sum them up. Needs the model LFM2-Audio: `izwi pull lfm2-audio-1.5b`
//! fetches it.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use std::time::{Duration, Instant};

use anyhow::Result;
use izwi_core::engine::metrics::BenchmarkResult;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> Result<()> {
    let engine = Engine::new(EngineCoreConfig::for_lfm2())?;

    // Start monitoring task
    let engine_clone = engine.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(5)).await;

            let metrics = engine_clone.metrics().await;
            println!("=== Metrics ===");
            println!("Requests: {}", metrics.total_requests);
            println!("Avg RTF: {:.3}", metrics.avg_rtf);
            println!("p99 Latency: {:.1}ms", metrics.p99_latency_ms);
            println!("Throughput: {:.1} tokens/sec", metrics.avg_tokens_per_sec);
        }
    });

    // Process requests
    let num_requests = 3;
    let start = Instant::now();
    for number in 1..=num_requests {
        engine.generate(EngineCoreRequest::tts(format!("This is request number {number}."))).await?;
    }
    let duration = start.elapsed();
    let snapshot = engine.metrics().await;

    let result = BenchmarkResult::new("TTS Benchmark", num_requests, duration, snapshot);

    println!("{}", result.summary());
    Ok(())
}
