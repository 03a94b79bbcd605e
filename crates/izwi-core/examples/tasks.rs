//! Speech, transcription and conversation with one model. Needs LFM2-Audio: `izwi pull lfm2-audio-1.5b` fetches it.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "an example prints its result and ends at a failure"
)]

use anyhow::Result;
use base64::prelude::{BASE64_STANDARD, Engine as _};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, GenerationParams};

#[tokio::main]
async fn main() -> Result<()> {
    let config = EngineCoreConfig::for_lfm2();
    let engine = Engine::new(config)?;

    // Text to speech
    let request = EngineCoreRequest::tts("Hello, world!")
        .with_voice("us_female")
        .with_params(GenerationParams { temperature: 0.7, max_tokens: 2048, ..Default::default() });

    let output = engine.generate(request).await?;

    println!("Generated {} samples", output.audio.samples.len());
    println!("RTF: {:.3}", output.rtf());

    // Base64 encoded WAV
    let wav = izwi_audio::wav::to_bytes(&output.audio.samples, output.audio.sample_rate)?;
    let audio_base64 = BASE64_STANDARD.encode(wav);

    // Speech to text
    let request = EngineCoreRequest::asr(audio_base64.as_str())
        .with_params(GenerationParams { max_tokens: 1024, ..Default::default() });

    let output = engine.generate(request).await?;
    println!("Transcription: {}", output.text.unwrap());

    // A turn of a conversation
    let request = EngineCoreRequest::audio_chat(
        Some(audio_base64),                      // Optional audio input
        Some("What's the weather?".to_string()), // Optional text input
    )
    .with_voice("us_female");

    let output = engine.generate(request).await?;
    println!("Response text: {}", output.text.unwrap());
    // output.audio contains the audio response
    println!("Response audio: {:.2} s", output.audio.duration().as_secs_f32());
    Ok(())
}
