//! The engine of a command: its configuration, compute threads, runtime and loading, and the output of one request.
//!
//! Knows no task: what a request contains and where its output goes is the caller's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use izwi_core::engine::Precision;
use izwi_core::engine::leases::Engines;
use izwi_core::engine::{
    DeviceArbiters, Engine, EngineCoreConfig, EngineCoreRequest, FinishReason, StreamingOutput,
};
use izwi_remote::{ConfigError, Pipeline, PipelineError, RemoteClient};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use crate::interrupt::Interrupt;
use crate::settings::{PipelineModel, RemoteModel, Resolved};
use crate::{failure, output};

/// Default of `slow_client_timeout_s` in commands: their only reader is a pipe, a player or a pager, which a user may
/// pause, and no other client waits.
const READER_TIMEOUT: Duration = Duration::from_secs(86_400);

/// An engine that is loaded for one command.
#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    pub(crate) interrupt: Interrupt,
    pub(crate) load_time: Duration,
}

/// The engine's settings with the model store. Warns about weights of 4 bits.
pub(crate) fn config(resolved: &Resolved) -> EngineCoreConfig {
    let mut config = resolved.settings.engine.clone();
    if config.dtype == Precision::Q4 {
        output::status("warning: 4-bit weights harm the intelligibility of small models; q8 does not");
    }
    config.home = Some(resolved.settings.home.clone());
    config
}

/// The engine's settings for a command whose only client is this process.
pub(crate) fn local_config(resolved: &Resolved) -> EngineCoreConfig {
    let mut config = config(resolved);
    // Several devices are for several clients.
    if let Some(first) = std::mem::take(&mut config.devices).first() {
        config.device = *first;
    }
    if !resolved.is_set("slow_client_timeout_s") {
        config.slow_client_timeout = READER_TIMEOUT;
    }
    config
}

/// Starts the compute threads of the process.
pub(crate) fn start_threads(count: usize) {
    let name = |index| format!("izwi-compute-{index}");
    // A process has one global pool; an existing one is kept.
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(count).thread_name(name).build_global() {
        tracing::warn!(%error, "the compute threads were started before");
    }
}

/// Creates the runtime of a command.
///
/// # Errors
/// The system gives no threads.
pub(crate) fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the runtime")
}

/// Loads the model and runs `work` with it.
///
/// # Errors
/// The model does not load, `work` fails, or the process is interrupted.
pub(crate) fn run<T>(config: EngineCoreConfig, work: impl AsyncFnOnce(Loaded) -> Result<T>) -> Result<T> {
    run_model(config, None, work)
}

/// As [`run`], with the model of `remote` if there is one.
///
/// # Errors
/// As [`run`], or the remote model is configured wrongly.
pub(crate) fn run_model<T>(
    config: EngineCoreConfig,
    remote: Option<&RemoteModel>,
    work: impl AsyncFnOnce(Loaded) -> Result<T>,
) -> Result<T> {
    let threads = config.num_threads;
    let load = async |interrupt: &mut Interrupt| match remote {
        Some(remote) => interrupt.guard(connect(remote, config)).await,
        None => load(config, interrupt).await,
    };
    run_loaded(threads, load, work)
}

/// As [`run`], with the engine that `load` gives.
///
/// # Errors
/// As [`run`].
pub(crate) fn run_loaded<T>(
    threads: usize,
    load: impl AsyncFnOnce(&mut Interrupt) -> Result<Engine>,
    work: impl AsyncFnOnce(Loaded) -> Result<T>,
) -> Result<T> {
    start_threads(threads);
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let mut interrupt = Interrupt::listen()?;
        let begun = Instant::now();
        let engine = load(&mut interrupt).await?;
        work(Loaded { engine, interrupt, load_time: begun.elapsed() }).await
    });
    // After an interrupt a model may still load, or a read of standard input block: neither is waited for.
    runtime.shutdown_background();
    result
}

/// The engine of a remote model, with the limits of `config`.
///
/// # Errors
/// It is configured wrongly, or its key is missing.
pub(crate) async fn connect(remote: &RemoteModel, config: EngineCoreConfig) -> Result<Engine> {
    let wrong = |error: ConfigError| {
        failure::with_help(format!("{}: remote_models: {error}", remote.origin), "docs/remote.md tells more")
    };
    let client = RemoteClient::new(remote.with_key()?).map_err(wrong)?;
    Ok(client.with_listed_voices().await.into_engine(config)?)
}

/// The engine of a pipeline, with the limits of `config`; `engines` has those of its models.
///
/// # Errors
/// It is configured wrongly, its key is missing, or one of its models does not load.
pub(crate) async fn compose(
    pipeline: &PipelineModel,
    engines: Arc<dyn Engines>,
    config: EngineCoreConfig,
) -> Result<Engine> {
    let wrong = |error| match error {
        PipelineError::Config(error) => failure::with_help(
            format!("{}: pipelines: {error}", pipeline.origin),
            "docs/conversations.md tells more",
        ),
        PipelineError::Model(error) => {
            anyhow::Error::new(error).context(format!("pipeline '{}'", pipeline.name()))
        }
    };
    let composed = Pipeline::connect(pipeline.with_key()?, engines).await.map_err(wrong)?;
    Ok(composed.into_engine(config)?)
}

/// Loads the model and warms it up.
///
/// # Errors
/// The model does not load, or the process is interrupted.
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
    interrupt.guard(loading).await
}

/// Loads a model beside others of this process.
///
/// # Errors
/// It does not load.
pub(crate) async fn load_beside(config: EngineCoreConfig, arbiters: Arc<DeviceArbiters>) -> Result<Engine> {
    let name = config.model.clone();
    let loaded = tokio::task::spawn_blocking(move || Engine::on_devices(config, &arbiters)).await;
    let engine = loaded.with_context(|| format!("loading model '{name}' failed"))??;
    engine.ready().await?;
    Ok(engine)
}

/// The output of one request. Dropping it aborts the request.
#[derive(Debug)]
pub(crate) struct OutputStream(mpsc::Receiver<StreamingOutput>);

impl OutputStream {
    /// Submits a request.
    ///
    /// # Errors
    /// The engine refuses the request.
    pub(crate) async fn start(engine: &Engine, request: EngineCoreRequest) -> Result<Self> {
        Ok(Self(engine.generate_streaming(request).await?.1))
    }

    /// The next chunk; the last one has statistics.
    ///
    /// # Errors
    /// The model failed, or the engine stopped before the last chunk.
    pub(crate) async fn next(&mut self) -> Result<StreamingOutput> {
        let chunk = self.0.recv().await.context("the engine stopped before the request was complete")?;
        match chunk.stats.as_ref().and_then(|stats| stats.error.as_ref()) {
            Some(error) => anyhow::bail!("the model failed: {error}"),
            None => Ok(chunk),
        }
    }
}

/// The warning for output that did not end by itself; `None` for complete output. `what` names the output.
pub(crate) fn incomplete(reason: FinishReason, what: &str) -> Option<String> {
    match reason {
        FinishReason::Stop => None,
        FinishReason::Length => Some(format!("the {what} was cut at the length limit")),
        FinishReason::RunawayTrimmed => Some(format!("the model did not end the {what}, and it was cut")),
        FinishReason::Cancelled | FinishReason::Interrupted => Some(format!("the {what} was cancelled")),
        FinishReason::TextTimeout => Some(format!("the text of the {what} did not go on")),
        FinishReason::Error => Some("the model failed".to_owned()),
    }
}

/// A duration in milliseconds with one decimal, for reports.
pub(crate) fn millis(time: Duration) -> f64 {
    (time.as_secs_f64() * 10_000.0).round() / 10.0
}
