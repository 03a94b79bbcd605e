//! Receive audio in 200 ms chunks while it is being made. Needs the default model.

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine = Engine::new(EngineCoreConfig::default())?;
    let text = "This is a longer text that will be streamed. Its second sentence is computed while you hear the first.";
    let (_, mut chunks) = engine.generate_streaming(EngineCoreRequest::tts(text)).await?;

    while let Some(chunk) = chunks.recv().await {
        print(&format!(
            "chunk {}: {} samples from {}",
            chunk.sequence,
            chunk.samples.len(),
            chunk.sample_offset
        ));
        if let Some(stats) = chunk.stats {
            let ttfa = stats.time_to_first_audio.unwrap_or_default();
            print(&format!("first audio after {:.1} ms, RTF {:.3}", ttfa.as_secs_f64() * 1e3, stats.rtf()));
        }
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}
