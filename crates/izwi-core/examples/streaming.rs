//! Receive audio in 200 ms chunks while it is being made. Needs the default model.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use anyhow::Result;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> Result<()> {
    let engine = Engine::new(EngineCoreConfig::default())?;
    let request = EngineCoreRequest::tts("This is a longer text that will be streamed.").with_streaming(true);

    let (request_id, mut rx) = engine.generate_streaming(request).await?;
    println!("Streaming {request_id}");

    while let Some(chunk) = rx.recv().await {
        println!("Received chunk {}: {} samples", chunk.sequence, chunk.samples.len());

        if let Some(stats) = chunk.stats {
            let first_audio = stats.time_to_first_audio.unwrap_or_default();
            println!("First audio after {:.1} ms, RTF {:.3}", first_audio.as_secs_f64() * 1e3, stats.rtf());
        }
        if chunk.is_final {
            println!("Final chunk received");
            break;
        }
    }
    Ok(())
}
