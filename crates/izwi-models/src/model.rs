//! The interface of a model to its executor: static facts, preparation of inputs, and one batched forward pass.
//!
//! Weights are `&self`; everything that changes while a sequence runs is a [`SequenceState`] the executor holds, so
//! that a reset is a new value. A family must not know which other sequences exist outside the batch it is handed.

use std::any::Any;

use izwi_nn::Error;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    AudioProgress, Input, InputError, ModelInfo, PartTimes, PrepareLimits, Prepared, StepOutput,
    TextProgress, VoiceRecording,
};

/// Everything about one running sequence that changes, opaque to the executor.
pub type SequenceState = Box<dyn Any + Send>;

/// What a pass yields for one entry: its output, or the error that belongs to this entry alone.
pub type EntryResult = Result<StepOutput, Error>;

/// One sequence in a forward pass.
pub struct BatchEntry<'a> {
    /// The result of [`SpeechModel::prepare`].
    pub prepared: &'a Prepared,
    /// The result of [`SpeechModel::start`], as updated by earlier passes.
    pub state: &'a mut SequenceState,
    /// First position to compute. For [`Work::Units`]: the index of the unit.
    pub start: usize,
    /// Whether this is the first entry since admission or preemption. A preempted sequence recomputes its positions; those
    /// before `start` are in its blocks by prefix sharing.
    pub begins: bool,
    /// Positions to compute in this pass.
    pub num_tokens: usize,
    /// Blocks of the pool that hold this sequence's positions, in order. Empty for [`Work::Units`].
    pub block_table: &'a [u32],
    /// Block tables of the further branches of a search (see [`StepOutput::parents`]), each of which computes the same
    /// positions with tokens of its own; empty without one. A search whose blocks were freed begins again after its prompt:
    /// its next entry has `begins` set.
    pub branch_tables: &'a [Vec<u32>],
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

    /// The most positions of a sequence; `None` where only the engine limits them.
    fn max_positions(&self) -> Option<usize> {
        None
    }

    /// Turns an input into schedulable work. Runs on a blocking thread, many at a time. A replica of the model on another
    /// device may compute it: tensors in it are moved to the device where they are used.
    ///
    /// # Errors
    /// The input cannot be taken; the error names the field, the value and the remedy.
    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError>;

    /// Appends `text` to an input that was prepared with [`izwi_types::SpeakInput::has_more_text`]; `is_last` ends the
    /// text. Tokens that are known never change: those of an unfinished word wait for its end. Takes no time worth a
    /// blocking thread.
    ///
    /// # Errors
    /// The input takes no more text, or not as much; it is unchanged then.
    fn append_text(
        &self,
        _prepared: &Prepared,
        _text: &str,
        _is_last: bool,
    ) -> Result<TextProgress, InputError> {
        Err(takes_text_whole())
    }

    /// Appends samples at the rate of its input to an input that was prepared with [`izwi_types::ListenInput::chunk_ms`];
    /// `is_last` ends the audio. Takes no time worth a blocking thread.
    ///
    /// # Errors
    /// The input takes no more audio, or too much of it waits; it is unchanged then.
    fn append_audio(
        &self,
        _prepared: &Prepared,
        _samples: &[f32],
        _is_last: bool,
    ) -> Result<AudioProgress, InputError> {
        Err(InputError::other_task("takes a recording as a whole", "audio"))
    }

    /// A fresh state for one sequence.
    fn start(&self, prepared: &Prepared) -> SequenceState;

    /// Computes every entry in one pass per layer; the answer has one result per entry, in order. An entry's result
    /// depends on that entry alone: where its prompt, state or codec is at fault, it alone fails, and its sequence must be
    /// dropped.
    ///
    /// # Errors
    /// The whole pass failed, by a fault of the device; states of the batch are then undefined and must be dropped.
    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error>;

    /// Encodes a recording as a voice pack for [`VoiceReference::Pack`]: a safetensors file that names its checkpoint. Runs
    /// on a blocking thread.
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

    /// Bytes of weights that a step of one token reads, for chunks of `chunk_samples`.
    fn step_bytes(&self, _chunk_samples: usize) -> usize {
        self.info().weight_bytes
    }

    /// Time spent in the parts of its passes.
    fn part_times(&self) -> PartTimes {
        PartTimes::default()
    }

    /// An input that touches every kernel once, for warm-up.
    fn warm_up_input(&self) -> Input;
}

/// The error of a model that takes no text while it speaks.
pub(crate) fn takes_text_whole() -> InputError {
    InputError::other_task("takes a text as a whole", "input")
}

/// The error of a model that does not clone voices.
pub(crate) fn clones_no_voices(param: &'static str) -> InputError {
    InputError::other_task("does not support voice cloning", param)
}
