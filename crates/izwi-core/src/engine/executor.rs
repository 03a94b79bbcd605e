//! The seam between deciding and computing.
//!
//! An executor runs plans and decides nothing. Beside [`native`] this is the only place in the crate that may name
//! tensors or model code.

pub mod native;
#[cfg(feature = "simulated")]
pub mod simulated;

use std::any::Any;
use std::sync::Arc;

pub use izwi_types::Precision;
pub use izwi_types::{
    DeviceChoice, Emission, Message, PartTimes, Segment, Turn, VoiceRecording, VoiceReference as Reference,
    Word,
};

use super::config::EngineCoreConfig;
use super::error::Result;
use super::request::EngineCoreRequest;
use super::scheduler::ScheduleResult;
use super::types::{GenerationParams, SequenceId, TaskType};

/// A voice a user can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoiceInfo {
    /// The name.
    pub id: String,
    /// BCP 47 tag of the language it speaks.
    pub language: String,
    /// A few words for a person choosing.
    pub description: String,
}

/// Static facts about what an executor runs.
#[derive(Debug, Clone, PartialEq)]
pub struct ExecutorProfile {
    /// Model id.
    pub model: String,
    /// Device it runs on, e.g. `cpu`, `metal:0`.
    pub device: String,
    /// Rate of its audio, in Hz.
    pub sample_rate: u32,
    /// Rate of the recordings it listens to, in Hz.
    pub heard_rate: u32,
    /// What it can do.
    pub tasks: Vec<TaskType>,
    /// Its voices, the default first.
    pub voices: Vec<VoiceInfo>,
    /// Bytes of one KV block; 0 when it keeps no KV.
    pub kv_block_bytes: usize,
    /// Range of `speed` it honours; `None` when it cannot change tempo.
    pub speed_range: Option<(f32, f32)>,
    /// Whether it follows a style prompt.
    pub takes_instructions: bool,
    /// Languages it hears, as the codes it knows them by.
    pub languages: Vec<String>,
    /// Whether it can render what it hears in English.
    pub translates: bool,
    /// Whether it can speak in a voice that is handed to it.
    pub clones_voices: bool,
    /// Bytes it holds while it is loaded: weights, KV pool and the states of as many sequences as run at once.
    pub memory_bytes: usize,
    /// Bytes that the state of one running sequence may take beside its KV blocks.
    pub state_bytes: usize,
    /// Bytes of weights that a step of one token reads.
    pub step_bytes: usize,
    /// Where the time of its steps goes.
    pub part_times: PartTimes,
    /// The model's own generation parameters.
    pub default_params: GenerationParams,
}

/// Shape and amount of a prepared request's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PreparedWork {
    /// A prompt with a content key for each position, then one token a step.
    Autoregressive {
        /// Equal prefixes of keys may share blocks.
        prompt: Arc<[u64]>,
        /// What the first entry costs beyond its prompt tokens, in tokens.
        encoder_tokens: usize,
    },
    /// Units computed whole, with their sizes in tokens.
    Units(Arc<[usize]>),
}

/// A request that is ready to be scheduled.
#[derive(Clone)]
pub struct PreparedRequest {
    /// What there is to do.
    pub work: PreparedWork,
    /// The executor's own data.
    pub payload: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for PreparedRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PreparedRequest").field("work", &self.work).finish_non_exhaustive()
    }
}

/// The recordings of a request, mono at the model's rate, and what else stands for a voice.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoded {
    /// What is to be heard.
    pub audio: Option<Arc<[f32]>>,
    /// The voice to speak in.
    pub reference: Option<Reference>,
    /// All turns of a conversation, the user's first and last.
    pub turns: Vec<Turn>,
}

/// The part of an executor that turns requests into work. Shared, and called on blocking threads.
pub trait RequestPreparer: Send + Sync {
    /// Normalises, tokenises. What was recorded has been taken out of the request and decoded; `params` are complete
    /// and clamped, `seed` included.
    ///
    /// # Errors
    /// The request cannot be taken; the error names the field, the value and the remedy.
    fn prepare(
        &self,
        request: &EngineCoreRequest,
        decoded: Decoded,
        params: &GenerationParams,
    ) -> Result<PreparedRequest>;

    /// Makes a voice pack of a recording: a safetensors file, to be given as [`Reference::Pack`].
    ///
    /// # Errors
    /// The model clones no voices, or the recording cannot be taken; the error names the field.
    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>>;

    /// Checks that a voice pack fits the model.
    ///
    /// # Errors
    /// It is damaged or was made by another model; the error names the remedy.
    fn check_voice(&self, pack: &[u8]) -> Result<()>;
}

/// A sequence that the executor has not seen before.
#[derive(Debug, Clone)]
pub struct NewSequenceData {
    /// Its id.
    pub sequence: SequenceId,
    /// What it is to do.
    pub prepared: PreparedRequest,
    /// How.
    pub params: Arc<GenerationParams>,
}

/// A step, as an executor sees it.
#[derive(Debug, Clone, Default)]
pub struct StepPlan {
    /// Sequences that appear for the first time.
    pub new_sequences: Vec<NewSequenceData>,
    /// Who computes what.
    pub schedule: Arc<ScheduleResult>,
}

/// What one sequence got out of a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExecutorOutput {
    /// New mono samples.
    pub samples: Vec<f32>,
    /// New text.
    pub text: String,
    /// New segments of a transcript; their texts make up `text`.
    pub segments: Vec<Segment>,
    /// Code of the language heard, once it is known.
    pub language: Option<String>,
    /// What was said, in a conversation.
    pub emission: Option<Emission>,
    /// Content key of the position that was generated, where a later prompt may go on from it.
    pub content_key: Option<u64>,
    /// Tokens generated: 0 until the last prompt token was computed.
    pub generated_tokens: usize,
    /// Whether the model ended the sequence.
    pub finished: bool,
    /// Whether it was ended because it would not have ended by itself.
    pub runaway: bool,
    /// The pass is over: the sequence gives its KV away and goes on with this.
    pub next_pass: Option<PreparedWork>,
}

/// A step that failed, or one sequence of it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExecutorError(pub String);

/// What became of one item of a schedule.
pub type ItemResult = std::result::Result<ExecutorOutput, ExecutorError>;

/// Runs plans.
pub trait ModelExecutor: Send {
    /// Static facts.
    fn profile(&self) -> Arc<ExecutorProfile>;

    /// The part that prepares requests.
    fn preparer(&self) -> Arc<dyn RequestPreparer>;

    /// Runs every kernel once, so that the first request does not pay for it. Called before the first step.
    ///
    /// # Errors
    /// The model cannot run.
    fn initialize(&mut self) -> std::result::Result<(), ExecutorError>;

    /// Executes one step: one result per item of the schedule, prompts first, in its order.
    ///
    /// # Errors
    /// The step failed for all of its sequences.
    fn execute(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError>;

    /// Drops the state of sequences that will not appear again. Called between steps.
    fn release(&mut self, sequences: &[SequenceId]);

    /// Whether it can still run steps; asked after a panic.
    fn is_ready(&self) -> bool;

    /// Lets go of everything. Nothing is called after it.
    fn shutdown(&mut self);
}

/// Builds the executor that runs the configured model in this process.
///
/// # Errors
/// The model is unknown, not pulled or does not load.
pub fn build_native(config: &EngineCoreConfig) -> Result<Box<dyn ModelExecutor>> {
    Ok(Box::new(native::NativeExecutor::load(config)?))
}

/// Opens the device and says which one it is, e.g. `metal:0`.
///
/// # Errors
/// The device was named and cannot be opened, or this build lacks its backend.
pub fn probe_device(choice: DeviceChoice) -> Result<String> {
    let opened = izwi_nn::device::open(choice);
    opened
        .map(|device| izwi_nn::device::name(&device))
        .map_err(|error| super::EngineError::Load(error.to_string()))
}
