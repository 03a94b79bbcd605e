//! Generate several requests in one batch. Needs the default model.

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let config = EngineCoreConfig { max_batch_size: 16, ..EngineCoreConfig::default() };
    let engine = Engine::new(config)?;

    let texts = ["First sentence.", "Second sentence.", "Third sentence."];
    let requests = texts.map(|text| engine.generate(EngineCoreRequest::tts(text)));
    for output in futures::future::try_join_all(requests).await? {
        print(&format!(
            "{}: {:.2} s of audio, RTF {:.3}",
            output.request_id,
            output.audio.duration().as_secs_f32(),
            output.rtf()
        ));
    }
    engine.stop();
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}
