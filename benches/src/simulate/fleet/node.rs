//! A node of the fleet: one engine on its own device, which may be slow, drained or killed.
//!
//! Must not know listeners.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel};
use izwi_core::engine::executor::{ExecutorError, ItemResult, RequestPreparer, SimulatedTime, StepPlan};
use izwi_core::engine::qos::cost::StepShape;
use izwi_core::engine::{
    DeviceArbiter, Engine, EngineCoreConfig, ExecutorProfile, ModelExecutor, SequenceId,
};
use tokio::sync::watch;

use crate::machines::{self, Machine, RATE_HZ};

/// Blocks for each sequence of a step: the prompt and the frames of the longest text.
const BLOCKS: usize = 48;
/// By what steps of a slow node take longer.
const SLOWNESS: f64 = 2.0;

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    /// Its engine.
    pub(crate) engine: Engine,
    /// Streams that the balancer sees: connections that are open.
    streams: AtomicUsize,
    /// Streams as they were read last.
    read: AtomicUsize,
    /// Whether it refused live streams when it was read last.
    refused: AtomicBool,
    /// Whether the balancer sends it new streams.
    takes_streams: AtomicBool,
    is_slow: Arc<AtomicBool>,
    killed: watch::Sender<bool>,
}

impl Node {
    /// Starts a node. Must be called within a tokio runtime whose clock is paused.
    pub(crate) async fn start(machine: &Machine, seed: u64) -> Result<Arc<Self>> {
        let config = EngineCoreConfig {
            model: "speech".to_owned(),
            max_batch_size: machine.max_batch,
            max_running_requests: 2 * machine.max_batch,
            max_blocks: BLOCKS * 2 * machine.max_batch,
            streaming_chunk_size: RATE_HZ as usize / 5,
            ..EngineCoreConfig::default()
        };
        let curve = CostCurve { seed, ..machine.speech.clone() };
        let model = SimulatedModel { state_bytes: 0, ..machines::model(&curve, seed) };
        let is_slow = Arc::new(AtomicBool::new(false));
        let inner = SimulatedExecutor::new(&config, model);
        let executor = Box::new(Slowed { inner, is_slow: Arc::clone(&is_slow) });
        let engine = Engine::with_executor_on(config, executor, &DeviceArbiter::new())?;
        engine.ready().await?;
        Ok(Arc::new(Self {
            engine,
            streams: AtomicUsize::new(0),
            read: AtomicUsize::new(0),
            refused: AtomicBool::new(false),
            takes_streams: AtomicBool::new(true),
            is_slow,
            killed: watch::Sender::new(false),
        }))
    }

    /// Streams that are connected.
    pub(crate) fn streams(&self) -> usize {
        self.streams.load(Ordering::Relaxed)
    }

    /// Whether it would refuse a stream, and its streams, when it was read last.
    pub(crate) fn was(&self) -> (bool, usize) {
        (self.refused.load(Ordering::Relaxed), self.read.load(Ordering::Relaxed))
    }

    /// Reads its state.
    pub(crate) fn read(&self) {
        let status = self.engine.status();
        self.read.store(status.running + status.pending, Ordering::Relaxed);
        self.refused.store(status.outlook.refuses_until.is_some(), Ordering::Relaxed);
    }

    /// Whether the balancer sends it new streams.
    pub(crate) fn takes_streams(&self) -> bool {
        self.takes_streams.load(Ordering::Relaxed)
    }

    /// Takes no further stream.
    pub(crate) fn leave(&self) {
        self.takes_streams.store(false, Ordering::Relaxed);
    }

    /// Takes twice as long for each step from now on.
    pub(crate) fn set_slow(&self) {
        self.is_slow.store(true, Ordering::Relaxed);
    }

    /// Dies with all of its streams.
    pub(crate) fn kill(&self) {
        self.killed.send_replace(true);
        self.engine.stop();
    }

    /// Whether it is dead.
    pub(crate) fn is_killed(&self) -> bool {
        *self.killed.borrow()
    }

    /// Waits until it is dead.
    pub(crate) async fn dies(&self) {
        // The sender lives as long as the node.
        let _ = self.killed.subscribe().wait_for(|killed| *killed).await;
    }

    /// Opens a connection.
    pub(crate) fn connect(self: &Arc<Self>) -> Connection {
        self.streams.fetch_add(1, Ordering::Relaxed);
        Connection(Arc::clone(self))
    }
}

/// A stream that is connected until it is dropped.
#[derive(Debug)]
pub(crate) struct Connection(Arc<Node>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An executor whose steps may take longer.
struct Slowed {
    inner: SimulatedExecutor,
    is_slow: Arc<AtomicBool>,
}

impl ModelExecutor for Slowed {
    fn profile(&self) -> Arc<ExecutorProfile> {
        self.inner.profile()
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        self.inner.preparer()
    }

    fn initialize(&mut self) -> Result<Option<StepShape>, ExecutorError> {
        self.inner.initialize()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<Vec<ItemResult>, ExecutorError> {
        self.inner.execute(plan)
    }

    fn simulated_time(&mut self, plan: &StepPlan) -> Option<SimulatedTime> {
        let slowness = if self.is_slow.load(Ordering::Relaxed) { SLOWNESS } else { 1.0 };
        let SimulatedTime { time, pieces } = self.inner.simulated_time(plan)?;
        Some(SimulatedTime { time: time.mul_f64(slowness), pieces })
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        self.inner.release(sequences);
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
}
