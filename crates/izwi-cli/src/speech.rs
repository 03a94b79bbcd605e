//! Speaking in this process: the compute threads, an engine of its own, and one request through it.
//!
//! Knows where audio comes from and not where it goes.

use std::time::Duration;

use anyhow::{Context as _, Result};
use izwi_core::engine::Precision;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, FinishReason, RequestStats};
use tokio::runtime::Runtime;

use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::output;
use crate::settings::Resolved;

/// What a request gave.
#[derive(Debug)]
pub(crate) struct Spoken {
    /// All of it, mono; empty if the listener asked not to keep it.
    pub(crate) samples: Vec<f32>,
    /// Samples per second.
    pub(crate) sample_rate_hz: u32,
    /// The engine's numbers.
    pub(crate) stats: RequestStats,
}

/// The engine's settings, with the store that the settings name. Warns of what harms.
pub(crate) fn engine_config(resolved: &Resolved) -> EngineCoreConfig {
    let mut config = resolved.settings.engine.clone();
    if config.dtype == Precision::Q4 {
        output::say("warning: 4-bit weights harm the intelligibility of small models; q8 does not");
    }
    config.home = Some(resolved.settings.home.clone());
    config
}

/// Starts the compute threads, once for the process, as many as the settings say.
pub(crate) fn start_threads(count: usize) {
    let name = |index| format!("izwi-compute-{index}");
    // A pool that is there already stays: the process has one.
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(name).build_global() {
        tracing::warn!(%error, "the compute threads were set up before");
    }
}

/// A runtime for a command.
///
/// # Errors
/// The system gives no threads.
pub(crate) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Loads the model and runs it warm.
///
/// # Errors
/// It does not load, or the process was interrupted.
pub(crate) async fn load(config: EngineCoreConfig, interrupt: &mut Interrupt) -> Result<Engine> {
    let model = config.model.clone();
    tracing::debug!(model, "loading");
    let loading = async {
        let engine = tokio::task::spawn_blocking(move || Engine::new(config))
            .await
            .with_context(|| format!("loading model '{model}' failed"))??;
        engine.ready().await?;
        Ok(engine)
    };
    tokio::select! {
        loaded = loading => loaded,
        () = interrupt.requested() => Err(Failure::Interrupted.into()),
    }
}

/// Speaks one request. `hear` gets every piece as it comes and says whether it is kept for the end; it may block.
///
/// # Errors
/// The request is refused or fails, `hear` fails, or the process was interrupted.
pub(crate) async fn speak(
    engine: &Engine,
    request: EngineCoreRequest,
    interrupt: &mut Interrupt,
    keep: bool,
    mut hear: impl FnMut(&[f32]) -> Result<()>,
) -> Result<Spoken> {
    // A long text takes a while to prepare.
    let (_, mut chunks) = tokio::select! {
        accepted = engine.generate_streaming(request) => accepted?,
        () = interrupt.requested() => return Err(Failure::Interrupted.into()),
    };
    let mut samples = Vec::new();
    loop {
        let chunk = tokio::select! {
            chunk = chunks.recv() => chunk,
            () = interrupt.requested() => return Err(Failure::Interrupted.into()),
        };
        let Some(chunk) = chunk else {
            anyhow::bail!("the engine ended before the speech did");
        };
        tokio::task::block_in_place(|| hear(&chunk.samples))?;
        if keep {
            samples.extend_from_slice(&chunk.samples);
        }
        if let Some(stats) = chunk.stats {
            if let Some(error) = &stats.error {
                anyhow::bail!("the model failed: {error}");
            }
            return Ok(Spoken { samples, sample_rate_hz: chunk.sample_rate, stats });
        }
    }
}

/// What to tell a person about an end that was not the text's own; `None` for a good one.
pub(crate) fn cut_short(reason: FinishReason) -> Option<&'static str> {
    match reason {
        FinishReason::Stop => None,
        FinishReason::Length => Some("the speech was cut at the length limit"),
        FinishReason::RunawayTrimmed => Some("the model did not come to an end by itself and was cut"),
        FinishReason::Cancelled | FinishReason::Interrupted => Some("the speech was cancelled"),
        FinishReason::Error => Some("the model failed"),
    }
}

/// A time in milliseconds, for reports.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
