//! Speak one sentence into a WAV file. Needs the model LFM2-Audio: `izwi pull lfm2-audio-1.5b` fetches it.
#![allow(clippy::print_stdout, reason = "an example prints its result")]

use anyhow::Result;
use izwi_audio::wav::write_file as save_wav;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};

#[tokio::main]
async fn main() -> Result<()> {
    // Initialize engine
    let config = EngineCoreConfig::for_lfm2();
    let engine = Engine::new(config)?;

    // Create request
    let request = EngineCoreRequest::tts("Hello from Izwi!").with_voice("us_female");

    // Generate
    let output = engine.generate(request).await?;

    // Save to file
    save_wav("output.wav", &output.audio.samples, output.audio.sample_rate)?;

    println!("Generated audio in {:.2}s (RTF: {:.3})", output.generation_time.as_secs_f32(), output.rtf());

    Ok(())
}
