//! Speak one sentence into a WAV file. Needs the default model: `izwi list` names it, `izwi pull` fetches it.

use std::path::Path;

use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let engine = Engine::new(EngineCoreConfig::default())?;
    let output = engine.generate(EngineCoreRequest::tts("Hello from Izwi!")).await?;

    let path = Path::new("output.wav");
    izwi_audio::wav::write_file(path, &output.audio.samples, output.audio.sample_rate)?;
    print(&format!(
        "{} samples in {:.2} s (RTF {:.3}) -> {}",
        output.audio.samples.len(),
        output.generation_time.as_secs_f32(),
        output.rtf(),
        path.display()
    ));
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints its result")]
fn print(line: &str) {
    println!("{line}");
}
