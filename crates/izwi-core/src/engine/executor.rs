//! The seam between scheduling and computation.
//!
//! An executor runs step plans and makes no scheduling decision. In this crate only this module and [`native`] may name
//! tensors or model code.

mod loading;
mod messages;
pub mod native;
pub(super) mod parts;
mod placement;
#[cfg(feature = "simulated")]
pub mod simulated;
pub(crate) mod threads;

use std::sync::Arc;
use std::time::Duration;

use izwi_hub::Store;
pub use izwi_kernels::measure::{isa_level, isa_levels};
pub use izwi_kernels::speeds::{KernelSpeeds, ProductSpeed};
pub(super) use izwi_models::text::lexicon::{self, LexiconIndex, Lexicons};
pub(super) use izwi_models::text::markup::Markup;
pub(super) use izwi_models::text::ssml::{Abilities, Filter, Manner, Places, Script};
pub use izwi_models::text::written::{Said, Writer, WriterOptions, normalised, words_of};
pub use izwi_nn::device::{Gpu, KernelCosts as GpuCosts, metal_gpu};
use izwi_types::{
    AudioProgress, DeviceChoice, GenerationParams, Input, InputError, ModelInfo, PartTimes, Precision,
    Prepared, StepOutput, TextProgress, Voice, VoiceRecording,
};

#[cfg(test)]
pub(super) use izwi_nn::yielding::yield_point;
pub use placement::cpu_memory;
pub(super) use placement::place;

use super::blocks::BlockId;
use super::config::EngineCoreConfig;
use super::error::Result;
use super::qos::cost::StepShape;
use super::scheduler::ScheduleResult;
use super::types::SequenceId;

/// Static facts about an executor and its model.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutorProfile {
    /// Model id.
    pub model: String,
    /// Compute device, e.g. `cpu`, `metal:0`.
    pub device: String,
    /// The model's own facts.
    pub info: ModelInfo,
    /// Codes of the languages that the model, or else its manifest, names; empty if they are not known.
    pub languages: Vec<String>,
    /// Type of the large weights.
    pub precision: Precision,
    /// Bytes of one KV block; 0 for models without KV cache.
    pub kv_block_bytes: usize,
    /// Blocks of the KV pool.
    pub kv_blocks: usize,
    /// Bytes held while loaded: weights, KV pool, and the states of as many sequences as a step takes.
    pub memory_bytes: usize,
    /// Bytes of weights that a step of one token reads.
    pub step_bytes: usize,
    /// Time per part of a step.
    pub part_times: PartTimes,
    /// Whether a text may be spoken in parts with silence between them. Not at other servers.
    pub speaks_parts: bool,
}

impl ExecutorProfile {
    /// Parameters of a request that sets none: the model's own sampling, otherwise the engine's defaults.
    pub fn default_params(&self) -> GenerationParams {
        self.info.sampling.into()
    }
}

/// Turns inputs into schedulable work. Shared between threads; the methods block.
pub trait RequestPreparer: Send + Sync {
    /// Normalises and tokenises an input.
    ///
    /// # Errors
    /// The model rejects the input; the error names the field, the value and the remedy.
    fn prepare(&self, input: &Input) -> std::result::Result<Prepared, InputError>;

    /// Appends text to an input that was prepared with more text, or ends it. Takes no time worth a blocking thread.
    ///
    /// # Errors
    /// The input takes no more text, or not as much; it is unchanged then.
    fn append_text(
        &self,
        prepared: &Prepared,
        text: &str,
        is_last: bool,
    ) -> std::result::Result<TextProgress, InputError>;

    /// Appends audio to an input that was prepared for it, or ends it. Takes no time worth a blocking thread.
    ///
    /// # Errors
    /// The input takes no more audio, or too much of it waits; it is unchanged then.
    fn append_audio(
        &self,
        _prepared: &Prepared,
        _samples: &[f32],
        _is_last: bool,
    ) -> std::result::Result<AudioProgress, InputError> {
        Err(InputError::other_task("takes a recording as a whole", "audio"))
    }

    /// Makes a voice pack of a recording: a safetensors file, for [`izwi_types::VoiceReference::Pack`].
    ///
    /// # Errors
    /// The model does not support voice cloning or rejects the recording; the error names the field.
    fn make_voice(&self, recording: &VoiceRecording) -> std::result::Result<Vec<u8>, InputError>;

    /// Checks that a voice pack fits the model.
    ///
    /// # Errors
    /// The pack is damaged or belongs to another model; the error names the remedy.
    fn check_voice(&self, pack: &[u8]) -> std::result::Result<(), InputError>;

    /// Whether it belongs to an executor of simulated time. Its methods do not block then.
    fn is_simulated(&self) -> bool {
        false
    }

    /// How long the networks that clone a voice take in simulated time, for a recording of `length`.
    fn simulated_cloning(&self, _length: Duration) -> Duration {
        Duration::ZERO
    }
}

/// A sequence that appears in a plan for the first time.
#[derive(Debug, Clone)]
pub struct NewSequenceData {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its prepared input.
    pub prepared: Prepared,
}

/// One step for an executor.
#[derive(Debug, Clone, Default)]
pub struct StepPlan {
    /// Sequences that appear for the first time.
    pub new_sequences: Vec<NewSequenceData>,
    /// Blocks whose content comes from outside of the pool, before the step copies or computes.
    pub restored: Vec<(BlockId, Arc<[u8]>)>,
    /// Positions and blocks per sequence.
    pub schedule: Arc<ScheduleResult>,
}

/// Failure of a step, or of one sequence in it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExecutorError(pub String);

/// Result of one item of a schedule.
pub type ItemResult = std::result::Result<StepOutput, ExecutorError>;

/// How long a step takes in simulated time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimulatedTime {
    /// All of it.
    pub time: Duration,
    /// Equal pieces of it, between which the step can let others go first; at least 1.
    pub pieces: u32,
}

/// Runs step plans.
pub trait ModelExecutor: Send {
    /// Static facts.
    fn profile(&self) -> Arc<ExecutorProfile>;

    /// The preparer of this executor's model.
    fn preparer(&self) -> Arc<dyn RequestPreparer>;

    /// Runs the next step of the warm-up, which runs every kernel once. Called before the first step, and after repeated
    /// panics, until it returns `None`; otherwise it returns the work of the step. No sequence has KV blocks then.
    ///
    /// # Errors
    /// The model cannot run.
    fn initialize(&mut self) -> std::result::Result<Option<StepShape>, ExecutorError>;

    /// Executes one step. Returns one result per item of the schedule, in the order of [`ScheduleResult::items`].
    ///
    /// # Errors
    /// The step failed for all of its sequences.
    fn execute(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError>;

    /// What the content of a block depends on beside its hash: the weights, the device, and how it computes. `None` where
    /// blocks cannot be read.
    fn block_identity(&self) -> Option<String> {
        None
    }

    /// The content of a block. Called between steps.
    ///
    /// # Errors
    /// Blocks cannot be read, or the device failed.
    fn read_block(&self, block: BlockId) -> std::result::Result<Vec<u8>, ExecutorError> {
        Err(ExecutorError(format!("block {block} cannot be read")))
    }

    /// Whether the device gave up the work of a step: nothing that is on it can be used any more.
    fn has_lost_device(&self) -> bool {
        false
    }

    /// Whether the device is to be given a beat while the model rests: its memory is lost otherwise, and comes back late.
    fn needs_beats(&self) -> bool {
        false
    }

    /// Gives the device a little work. Called between steps.
    ///
    /// # Errors
    /// The device failed.
    fn beat(&self) -> std::result::Result<(), ExecutorError> {
        Ok(())
    }

    /// How long a step takes in simulated time; `None` if steps take real time. Called before the step, which then runs
    /// within a task of the runtime, whose clock may be paused. The plan of a step of the warm-up has no items, only a shape.
    fn simulated_time(&mut self, _plan: &StepPlan) -> Option<SimulatedTime> {
        None
    }

    /// Drops the state of sequences that will not appear again. Called between steps.
    fn release(&mut self, sequences: &[SequenceId]);

    /// Frees all resources. No method is called afterwards.
    fn shutdown(&mut self);
}

/// Loads the configured model into this process and returns its executor.
///
/// # Errors
/// The model is unknown, not pulled or does not load.
pub fn build_native(config: &EngineCoreConfig) -> Result<Box<dyn ModelExecutor>> {
    build_beside(config, &|| false)
}

/// Like [`build_native`]; `plays` tells whether live streams of other models play: nothing is measured beside them.
///
/// # Errors
/// As [`build_native`].
pub(super) fn build_beside(
    config: &EngineCoreConfig,
    plays: &dyn Fn() -> bool,
) -> Result<Box<dyn ModelExecutor>> {
    Ok(Box::new(native::NativeExecutor::load(config, plays)?))
}

/// Runs a computation that calls `yields` at each of its yield points. One of a GPU has none: what the GPU was given it
/// computes in order.
pub(super) fn with_yields<T>(device: &str, yields: impl FnMut() + 'static, compute: impl FnOnce() -> T) -> T {
    if device == DeviceChoice::Cpu.to_string() {
        izwi_nn::yielding::with_yields(yields, compute)
    } else {
        compute()
    }
}

/// Opens a device as a load does and returns its name, e.g. `metal:0`.
///
/// # Errors
/// The named device cannot be opened or computes something else than the CPU, or this build lacks its backend.
pub fn probe_device(choice: DeviceChoice) -> Result<String> {
    let opened = izwi_nn::device::at_work(|| loading::open(choice));
    opened.map(|device| izwi_nn::device::name(&device))
}

/// The voices that an installed model has of its own, the default first: those of its profile, read without its weights.
///
/// # Errors
/// The model is unknown or not pulled, or the files that name its voices cannot be read.
pub fn installed_voices(store: &Store, model: &str) -> Result<Vec<Voice>> {
    loading::voices(store, model)
}

/// The device that the configured model would use, and why, in words for a user; `None` on a machine without Metal.
///
/// # Errors
/// The model is unknown or not pulled.
pub fn explain_device(config: &EngineCoreConfig) -> Result<Option<String>> {
    loading::explain(config)
}
