//! Engines with real models, pulled if missing, for end-to-end measurements.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::Precision;
use izwi_core::engine::{
    AudioInput, DeviceArbiter, Engine, EngineCoreConfig, EngineCoreRequest, EngineOutput, FinishReason,
    TranscriptionOptions,
};
use izwi_hub::{Silent, Store};

use crate::clips;

/// `IZWI_HOME`, else the store of the tests.
pub fn home() -> PathBuf {
    std::env::var_os("IZWI_HOME").map_or_else(|| clips::root().join("target/izwi-home"), PathBuf::from)
}

/// A WAV of this text, generated with `seed`.
///
/// # Errors
/// The request fails, or ends early.
pub async fn speak(engine: &Engine, text: &str, seed: u64) -> Result<Vec<u8>> {
    let mut params = engine.profile().default_params();
    params.seed = Some(seed);
    let output = engine.generate(EngineCoreRequest::tts(text).with_params(params)).await?;
    ensure!(output.stats.finish_reason == FinishReason::Stop, "'{text}' was not spoken to its end");
    Ok(izwi_audio::wav::to_bytes(&output.audio.samples, output.audio.sample_rate)?)
}

/// The folder of an installed model; pulls it if missing. Blocks.
///
/// # Errors
/// There is no such model, or it cannot be fetched.
pub fn folder(model: &str) -> Result<PathBuf> {
    let store = Store::open(Some(home()))?;
    store.pull(model, &mut Silent).with_context(|| format!("cannot pull {model}"))
}

/// A warm engine with this model and this number of compute threads.
///
/// # Errors
/// The model is missing and cannot be fetched, or does not load.
pub async fn load(model: &str, threads: usize) -> Result<Engine> {
    load_as(model, threads, Precision::Auto).await
}

/// As [`load`], with weights stored as `dtype`.
///
/// # Errors
/// As [`load`].
pub async fn load_as(model: &str, threads: usize, dtype: Precision) -> Result<Engine> {
    load_on(model, threads, dtype, DeviceArbiter::new()).await
}

/// As [`load_as`], on a device that other engines share.
///
/// # Errors
/// As [`load`].
pub async fn load_on(
    model: &str,
    threads: usize,
    dtype: Precision,
    device: Arc<DeviceArbiter>,
) -> Result<Engine> {
    let config = EngineCoreConfig {
        model: model.to_owned(),
        home: Some(home()),
        num_threads: threads,
        dtype,
        ..EngineCoreConfig::default()
    };
    let engine = tokio::task::spawn_blocking(move || -> Result<Engine> {
        folder(&config.model)?;
        Ok(Engine::sharing(config, &device)?)
    });
    let engine = engine.await??;
    engine.ready().await?;
    Ok(engine)
}

/// A model with random weights of a published size.
#[derive(Debug, Clone, clap::Args)]
pub struct RandomModel {
    /// Published size.
    #[arg(long, default_value = "qwen3-tts-0.6b")]
    pub model: String,
    /// Compute threads.
    #[arg(long, default_value_t = 2)]
    pub threads: usize,
    /// Storage of the weights.
    #[arg(long, default_value = "q8")]
    pub dtype: Precision,
}

impl RandomModel {
    /// A warm engine with it, with or without admission, on a device that other engines may share.
    ///
    /// # Errors
    /// There is no such size, or it does not load.
    pub async fn engine(&self, admission: bool, device: &Arc<DeviceArbiter>) -> Result<Engine> {
        let device = Arc::clone(device);
        let config = EngineCoreConfig {
            model: self.model.clone(),
            random_weights: true,
            num_threads: self.threads,
            dtype: self.dtype,
            admission,
            ..EngineCoreConfig::default()
        };
        let engine = tokio::task::spawn_blocking(move || Engine::sharing(config, &device)).await??;
        engine.ready().await?;
        Ok(engine)
    }
}

/// Transcribes an English recording, by a search over `beam_size` texts or the model's own number.
///
/// # Errors
/// The request is refused or fails.
pub async fn transcribe(
    engine: &Engine,
    file: impl Into<AudioInput>,
    beam_size: Option<u64>,
) -> Result<EngineOutput> {
    let languages = &engine.profile().info.languages;
    let language = (languages.len() > 1).then(|| "en".to_owned());
    let options = TranscriptionOptions { language, beam_size, ..TranscriptionOptions::default() };
    Ok(engine.generate(EngineCoreRequest::asr(file).with_transcription(options)).await?)
}
