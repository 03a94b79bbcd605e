//! What every family gives its executor: static facts, preparation of inputs, and one batched forward pass.
//!
//! Weights are `&self`; everything that changes while a sequence runs is a [`SequenceState`] the executor holds, so
//! that a reset is a new value. A family must not know which other sequences exist outside the batch it is handed.

use std::any::Any;

use izwi_nn::Error;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ModelInfo, PartTimes, PrepareLimits, Prepared, StepOutput, VoiceRecording,
};

/// Everything about one running sequence that changes; only its family looks inside.
pub type SequenceState = Box<dyn Any + Send>;

/// One sequence's share of a forward pass.
pub struct BatchEntry<'a> {
    /// What [`SpeechModel::prepare`] made.
    pub prepared: &'a Prepared,
    /// What [`SpeechModel::start`] made, as the last pass left it.
    pub state: &'a mut SequenceState,
    /// First position to compute. For [`Work::Units`]: the index of the unit.
    pub start: usize,
    /// Whether this is the first entry since the sequence was admitted. On one that already ran, what it had computed
    /// was given away and is computed again; positions before `start` are in its blocks by prefix sharing.
    pub begins: bool,
    /// Positions to compute in this pass.
    pub num_tokens: usize,
    /// Blocks of the pool that hold this sequence's positions, in order. Empty for [`Work::Units`].
    pub block_table: &'a [u32],
}

impl std::fmt::Debug for BatchEntry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BatchEntry")
            .field("start", &self.start)
            .field("num_tokens", &self.num_tokens)
            .field("block_table", &self.block_table)
            .finish_non_exhaustive()
    }
}

/// A loaded checkpoint.
pub trait SpeechModel: Send + Sync {
    /// Static facts.
    fn info(&self) -> &ModelInfo;

    /// Shape of one token's keys and values; `None` when the model keeps no KV cache.
    fn kv_layout(&self) -> Option<KvLayout>;

    /// Turns an input into schedulable work. Runs on a blocking thread, many at a time.
    ///
    /// # Errors
    /// The input cannot be taken; the error names the field, the value and the remedy.
    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError>;

    /// A fresh state for one sequence.
    fn start(&self, prepared: &Prepared) -> SequenceState;

    /// Computes every entry in one pass per layer; the answer has one output per entry, in order. An entry's result
    /// depends on that entry alone.
    ///
    /// # Errors
    /// The whole pass failed; states of the batch are then undefined and must be dropped.
    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<StepOutput>, Error>;

    /// Makes a voice pack of a recording, to be given as [`VoiceReference::Pack`]: a safetensors file that says which
    /// checkpoint it fits. Runs on a blocking thread.
    ///
    /// # Errors
    /// The model does not clone voices, or the recording cannot be taken; the error names the field.
    fn make_voice(&self, _recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        Err(clones_no_voices("model"))
    }

    /// Checks that a voice pack fits this checkpoint.
    ///
    /// # Errors
    /// It is damaged or was made for another checkpoint; the error names the remedy.
    fn check_voice(&self, _pack: &[u8]) -> Result<(), InputError> {
        Err(clones_no_voices("voice"))
    }

    /// Bytes of weights that a step of one token reads, where the listener gets `chunk_samples` at once.
    fn step_bytes(&self, _chunk_samples: usize) -> usize {
        self.info().weight_bytes
    }

    /// Where the time of its passes went.
    fn part_times(&self) -> PartTimes {
        PartTimes::default()
    }

    /// An input that touches every kernel once, for warm-up.
    fn warm_up_input(&self) -> Input;
}

/// The error of a model that does not clone voices.
pub(crate) fn clones_no_voices(param: &'static str) -> InputError {
    InputError::other_task("has voices of its own and clones none", param)
}
