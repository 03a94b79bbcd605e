//! Watch the engine's numbers while it works. Needs the default model.

use std::time::{Duration, Instant};

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

const REQUESTS: usize = 12;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine = Engine::new(EngineCoreConfig::default())?;
    let monitor = tokio::spawn({
        let engine = engine.clone();
        async move {
            loop {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let metrics = engine.metrics().await;
                print(&format!(
                    "requests {}, RTF {:.3}, p99 {:.1} ms, {:.1} tokens/s",
                    metrics.total_requests,
                    metrics.avg_rtf,
                    metrics.p99_latency_ms,
                    metrics.avg_tokens_per_sec
                ));
            }
        }
    });

    let start = Instant::now();
    for number in 1..=REQUESTS {
        engine.generate(EngineCoreRequest::tts(format!("This is request number {number}."))).await?;
    }
    monitor.abort();
    let (seconds, metrics) = (start.elapsed().as_secs_f64(), engine.metrics().await);
    print(&format!(
        "{REQUESTS} requests in {seconds:.2} s: p50 {:.1} ms, p90 {:.1} ms, {:.1} s of audio",
        metrics.p50_latency_ms,
        metrics.p90_latency_ms,
        metrics.total_audio.as_secs_f64()
    ));
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}
