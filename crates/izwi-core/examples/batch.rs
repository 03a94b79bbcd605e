//! Generate several requests in one batch. Needs the model LFM2-Audio: `izwi pull lfm2-audio-1.5b` fetches it.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example prints its result and ends at a failure"
)]

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use futures::future::join_all;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> Result<()> {
    let config = EngineCoreConfig { max_batch_size: 16, ..EngineCoreConfig::for_lfm2() };
    let engine = Arc::new(Engine::new(config)?);

    // Start engine
    let engine_clone = engine.clone();
    tokio::spawn(async move {
        engine_clone.run().await.unwrap();
    });

    // Submit multiple requests
    let texts = vec!["First sentence.", "Second sentence.", "Third sentence."];

    let mut handles = vec![];
    for text in texts {
        let engine = engine.clone();
        let handle = tokio::spawn(async move {
            let request = EngineCoreRequest::tts(text);
            engine.add_request(request).await
        });
        handles.push(handle);
    }

    // Wait for all
    for added in join_all(handles).await {
        println!("Added {}", added??);
    }

    // Wait for processing
    while engine.pending_requests().await > 0 || engine.running_requests().await > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }

    let metrics = engine.metrics().await;
    println!("{} requests, {:.2} s of audio", metrics.total_requests, metrics.total_audio.as_secs_f32());
    engine.stop();
    Ok(())
}
