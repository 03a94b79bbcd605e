//! Queue several requests, run the engine, and collect what it made. Needs the default model.

use std::time::Duration;

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = EngineCoreConfig { max_batch_size: 16, ..EngineCoreConfig::default() };
    let engine = Engine::new(config)?;

    let mut ids = Vec::new();
    for text in ["First sentence.", "Second sentence.", "Third sentence."] {
        ids.push(engine.add_request(EngineCoreRequest::tts(text)).await?);
    }
    let running = tokio::spawn({
        let engine = engine.clone();
        async move { engine.run().await }
    });
    while engine.pending_requests().await > 0 || engine.running_requests().await > 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for id in &ids {
        if let Some(output) = engine.take_output(id).await? {
            print(&format!(
                "{id}: {:.2} s of audio, RTF {:.3}",
                output.audio.duration().as_secs_f32(),
                output.rtf()
            ));
        }
    }
    engine.stop();
    running.await??;
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}
