//! How engines start: they load a model on its devices, or take an executor, and spawn the loop behind a handle.

use std::sync::Arc;

use izwi_types::DeviceChoice;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use super::config::EngineCoreConfig;
use super::core::{Command, EngineCore, EngineStatus};
use super::error::{EngineError, Result};
use super::executor::{self, ExecutorProfile, ModelExecutor};
use super::kv_swap::KvSwap;
use super::load_turn::in_turn;
use super::metrics::MetricsCollector;
use super::qos::LiveStreams;
use super::qos::arbiter::{DeviceArbiter, DeviceArbiters, Member};
use super::remote::{RemoteCore, RemoteModel, RemotePreparer};
use super::replicas::{Replica, ReplicaRouter, merged_profile};
use super::request::RequestProcessor;
use super::{Engine, Place};

/// What runs behind a handle: its commands, and where it publishes its status.
type LoopEnds = (mpsc::UnboundedReceiver<Command>, watch::Sender<EngineStatus>);

impl Engine {
    /// Loads the configured model and starts its step loop.
    ///
    /// Must be called within a tokio runtime. Loading blocks, and waits for live streams of other engines on the CPU: call it
    /// from a blocking thread.
    ///
    /// ```no_run
    /// use izwi_core::engine::{Engine, EngineCoreConfig};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> izwi_core::engine::Result<()> {
    /// let config = EngineCoreConfig::for_lfm2();
    /// let engine = Engine::new(config)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The configuration is invalid, or the model is unknown, not pulled or does not load.
    pub fn new(config: EngineCoreConfig) -> Result<Self> {
        Self::on_devices(config, &DeviceArbiters::default())
    }

    /// Like [`Engine::new`], on devices that other engines share: a replica on each of [`EngineCoreConfig::devices`] that
    /// has room for the model, or one on [`EngineCoreConfig::device`].
    ///
    /// # Errors
    /// As [`Engine::new`]; with several devices only where the model loads on none of them.
    pub fn on_devices(config: EngineCoreConfig, arbiters: &DeviceArbiters) -> Result<Self> {
        config.validate()?;
        let arbitrated = |executor: Box<dyn ModelExecutor>| {
            let arbiter = arbiters.of(&executor.profile().device);
            (executor, arbiter)
        };
        let (cpu, plays) = (arbiters.of(&DeviceChoice::Cpu.to_string()), || arbiters.have_streams());
        if config.devices.is_empty() {
            let executor = in_turn(&cpu, || executor::build_beside(&config, &plays))?;
            let (executor, arbiter) = arbitrated(executor);
            return Self::with_executor_on(config, executor, &arbiter);
        }
        let replicas = in_turn(&cpu, || executor::place(&config, &plays))?;
        let replicas = replicas.into_iter().map(arbitrated).collect();
        Self::with_replicas(config, replicas)
    }

    /// Loads the model on [`EngineCoreConfig::device`], which other engines share, in turns of it, and starts its step loop.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn sharing(config: EngineCoreConfig, arbiter: &Arc<DeviceArbiter>) -> Result<Self> {
        config.validate()?;
        let executor = in_turn(arbiter, || executor::build_beside(&config, &|| arbiter.has_streams()))?;
        Self::with_executor_on(config, executor, arbiter)
    }

    /// Starts a step loop with any executor. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The configuration is invalid, or there is no runtime.
    pub fn with_executor(config: EngineCoreConfig, executor: Box<dyn ModelExecutor>) -> Result<Self> {
        Self::with_executor_on(config, executor, &DeviceArbiter::new())
    }

    /// Like [`Engine::with_executor`], on a device that other engines share.
    ///
    /// # Errors
    /// As [`Engine::with_executor`].
    pub fn with_executor_on(
        config: EngineCoreConfig,
        executor: Box<dyn ModelExecutor>,
        arbiter: &Arc<DeviceArbiter>,
    ) -> Result<Self> {
        config.validate()?;
        let runtime = runtime()?;
        let config = Arc::new(config);
        let profile = executor.profile();
        let metrics = MetricsCollector::new(&profile.model).on(&profile.device);
        let swap = KvSwap::open(&config, &*executor, metrics.on(&profile.device));
        let processor = RequestProcessor::new(Arc::clone(&config), Arc::clone(&profile), executor.preparer());
        let processor = processor.with_swap(swap.clone());
        let device = arbiter.join();
        let (handle, (receiver, publish)) = Self::handle(config, profile, processor, device, Place::Device);
        let (config, device) = (Arc::clone(&handle.config), Arc::clone(&handle.device));
        runtime.spawn(with_streams(config, executor, device, metrics, publish).with_swap(swap).run(receiver));
        Ok(handle)
    }

    /// Starts a step loop for each of several executors of one model, each on its device. A request goes to the replica on
    /// which it is predicted to be heard first. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`Engine::with_executor`], or there is no executor.
    pub fn with_replicas(
        config: EngineCoreConfig,
        executors: Vec<(Box<dyn ModelExecutor>, Arc<DeviceArbiter>)>,
    ) -> Result<Self> {
        config.validate()?;
        let runtime = runtime()?;
        let config = Arc::new(config);
        let profiles: Vec<_> = executors.iter().map(|(executor, _)| executor.profile()).collect();
        let empty = || EngineError::config("devices", "[]", "must name at least one device");
        let profile = Arc::new(merged_profile(&profiles).ok_or_else(empty)?);
        let metrics = MetricsCollector::new(&profile.model);
        let (mut replicas, mut first) = (Vec::new(), None);
        for ((executor, arbiter), profile) in executors.into_iter().zip(profiles) {
            let device = arbiter.join();
            first.get_or_insert_with(|| (executor.preparer(), Arc::clone(&device)));
            let (commands, receiver) = mpsc::unbounded_channel();
            let (publish, status) = watch::channel(EngineStatus::default());
            let metrics = metrics.on(&profile.device);
            let core = with_streams(Arc::clone(&config), executor, device, metrics, publish);
            runtime.spawn(core.run(receiver));
            let (device, memory_bytes) = (profile.device.clone(), profile.memory_bytes);
            replicas.push((Replica { device, memory_bytes, status }, commands));
        }
        let (preparer, device) = first.ok_or_else(empty)?;
        let processor = RequestProcessor::new(Arc::clone(&config), Arc::clone(&profile), preparer);
        let known = replicas.iter().map(|(replica, _)| replica.clone()).collect();
        let router_config = Arc::clone(&config);
        let router = |publish| ReplicaRouter::new(&profile.model, &router_config, replicas, metrics, publish);
        let place = Place::Devices(known);
        let (handle, (receiver, publish)) =
            Self::handle(config, Arc::clone(&profile), processor, device, place);
        runtime.spawn(router(publish).run(receiver));
        Ok(handle)
    }

    /// An engine whose model other servers run. `max_running_requests` limits its open requests; further ones are refused.
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// As [`Engine::with_executor`].
    pub fn with_remote(config: EngineCoreConfig, model: Arc<dyn RemoteModel>) -> Result<Self> {
        config.validate()?;
        let runtime = runtime()?;
        let config = Arc::new(config);
        let preparer = Arc::new(RemotePreparer(Arc::clone(&model)));
        let processor = RequestProcessor::new(Arc::clone(&config), model.profile(), preparer);
        // It computes nothing on a device of this machine.
        let device = DeviceArbiter::new().join();
        let place = Place::Servers(Arc::clone(&model));
        let (handle, (receiver, publish)) = Self::handle(config, model.profile(), processor, device, place);
        let core = RemoteCore::new(Arc::clone(&handle.config), model, publish);
        runtime.spawn(core.run(receiver));
        Ok(handle)
    }

    /// A handle, and what its loop receives and publishes with.
    pub(super) fn handle(
        config: Arc<EngineCoreConfig>,
        profile: Arc<ExecutorProfile>,
        processor: RequestProcessor,
        device: Arc<Member>,
        place: Place,
    ) -> (Self, LoopEnds) {
        let (commands, receiver) = mpsc::unbounded_channel();
        let (publish, status) = watch::channel(EngineStatus::default());
        let preparing = Arc::new(Semaphore::new(config.num_threads));
        let handle = Self {
            commands,
            status,
            processor,
            profile,
            config,
            preparing,
            device,
            cloning: Arc::default(),
            place,
        };
        (handle, (receiver, publish))
    }
}

/// A loop that keeps its live streams without a gap.
fn with_streams(
    config: Arc<EngineCoreConfig>,
    executor: Box<dyn ModelExecutor>,
    device: Arc<Member>,
    metrics: MetricsCollector,
    publish: watch::Sender<EngineStatus>,
) -> EngineCore {
    let (profile, epoch) = (executor.profile(), Instant::now());
    let observed = metrics.on(&profile.device);
    let streams = LiveStreams::new(Arc::clone(&config), &profile, device, observed, epoch);
    EngineCore::new(config, executor, Box::new(streams), epoch, metrics, publish)
}

fn runtime() -> Result<tokio::runtime::Handle> {
    tokio::runtime::Handle::try_current()
        .map_err(|_| EngineError::Load("an engine needs a tokio runtime; create it within one".to_owned()))
}
