//! What every family gives its executor: static facts, preparation of inputs, and one batched forward pass.
//!
//! Weights are `&self`; everything that changes while a sequence runs is a [`SequenceState`] the executor holds, so
//! that a reset is a new value. A family must not know which other sequences exist outside the batch it is handed.

use std::any::Any;
use std::sync::Arc;

use crate::nn::kv_pool::{KvLayout, KvPool};
use crate::parts::PartTimes;
use crate::transcript::Segment;

/// What a model can be asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Task {
    /// Text to speech.
    Tts,
    /// Speech to text.
    Asr,
    /// Spoken conversation.
    Chat,
}

/// A voice a user can name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Voice {
    /// The name.
    pub id: String,
    /// BCP 47 tag of the language it speaks, e.g. `en-US`.
    pub language: String,
    /// A few words for a person choosing.
    pub description: String,
}

/// Static facts about a loaded checkpoint.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInfo {
    /// Rate of the audio it makes, or takes where it makes none, and of the voices it is shown, in Hz.
    pub sample_rate_hz: u32,
    /// Rate of the recordings it listens to, in Hz.
    pub heard_rate_hz: u32,
    /// What it can do.
    pub tasks: Vec<Task>,
    /// Its voices; the first is the default. Empty for models that do not speak.
    pub voices: Vec<Voice>,
    /// Shape of one token's keys and values; `None` when the model keeps no KV cache.
    pub kv: Option<KvLayout>,
    /// Range of `speed` it honours; `None` when it cannot change tempo.
    pub speed_range: Option<(f32, f32)>,
    /// Whether it follows a style prompt.
    pub takes_instructions: bool,
    /// Languages it hears, as the codes it knows them by; empty for models that do not listen.
    pub languages: Vec<String>,
    /// Whether it can render what it hears in English.
    pub translates: bool,
    /// Whether it can speak in the voice of a [`Reference`].
    pub clones_voices: bool,
    /// How tokens are drawn for a request that does not say.
    pub sampling: Sampling,
    /// Bytes of its weights, as loaded.
    pub weight_bytes: usize,
    /// Bytes that the state of one running sequence may take beside its KV blocks.
    pub state_bytes: usize,
}

/// How tokens are drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Randomness, 0.0 for the likeliest token always.
    pub temperature: f32,
    /// Nucleus mass, above 0.0 up to 1.0.
    pub top_p: f32,
    /// Candidates kept, 0 for all.
    pub top_k: usize,
    /// Penalty of tokens that were drawn before, 1.0 for none.
    pub repetition_penalty: f32,
}

impl Sampling {
    /// The likeliest token always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_p: 1.0, top_k: 0, repetition_penalty: 1.0 };
}

/// A recording of a voice.
#[derive(Debug, Clone, PartialEq)]
pub struct VoiceRecording {
    /// Mono samples at [`ModelInfo::sample_rate_hz`].
    pub samples: Arc<[f32]>,
    /// What is said in it. Without it only the timbre is taken.
    pub text: Option<String>,
    /// Take the timbre alone, whether or not the text is known.
    pub timbre_only: bool,
}

/// A voice that is not one of the model's own.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// As it is in a recording.
    Recording(VoiceRecording),
    /// As [`SpeechModel::make_voice`] made it of one: a safetensors file.
    Pack(Arc<[u8]>),
}

/// One utterance to speak.
#[derive(Debug, Clone, PartialEq)]
pub struct SpeakInput {
    /// What to say, as the user wrote it.
    pub text: String,
    /// A name out of [`ModelInfo::voices`]; `None` for the default.
    pub voice: Option<String>,
    /// BCP 47 tag, when the caller knows.
    pub language: Option<String>,
    /// Style prompt.
    pub instructions: Option<String>,
    /// A voice to take in place of the model's own.
    pub reference: Option<Reference>,
    /// Whether the text is given to the model as it speaks (`true`) or whole before it does (`false`); `None` for the
    /// model's own way.
    pub streams_text: Option<bool>,
    /// Tempo, 1.0 is the voice's own.
    pub speed: f32,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Seed of everything random in this utterance.
    pub seed: u64,
    /// Tokens after which the engine ends a pass, if [`PrepareLimits::max_positions`] does not before. Only the model
    /// knows what of them is not sound yet.
    pub max_tokens: usize,
    /// Samples that the listener gets at once: a model may make sound in such portions. 1 for as soon as it can.
    pub chunk_samples: usize,
}

impl SpeakInput {
    /// `text` in the model's first voice, with nothing else asked for.
    pub fn plain(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            voice: None,
            language: None,
            instructions: None,
            reference: None,
            streams_text: None,
            speed: 1.0,
            sampling: Sampling::GREEDY,
            seed: 0,
            max_tokens: usize::MAX,
            chunk_samples: 1,
        }
    }
}

/// One recording to transcribe.
#[derive(Debug, Clone, PartialEq)]
pub struct ListenInput {
    /// Mono samples at [`ModelInfo::heard_rate_hz`].
    pub samples: Arc<[f32]>,
    /// A code out of [`ModelInfo::languages`], a BCP 47 tag or an English name; `None` to detect it.
    pub language: Option<String>,
    /// Text that might have come before: names, spellings, style.
    pub prompt: Option<String>,
    /// Render in English instead of transcribing.
    pub translate: bool,
    /// Tell when each word was said.
    pub word_timestamps: bool,
    /// 0.0 decodes greedily and raises the temperature where the result looks wrong; above 0.0 it is kept.
    pub temperature: f32,
    /// Seed of everything random in this transcription.
    pub seed: u64,
}

/// What a model that converses says at once: text and sound take turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Emission {
    /// A token of text.
    Token(u32),
    /// A frame of sound: a code for each book.
    Frame(Arc<[u32]>),
}

/// A piece of what a user says.
#[derive(Debug, Clone, PartialEq)]
pub enum Message {
    /// Written.
    Text(String),
    /// Spoken: mono samples at [`ModelInfo::heard_rate_hz`].
    Recording(Arc<[f32]>),
}

/// A turn of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub enum Turn {
    /// What the user said, in order.
    User(Vec<Message>),
    /// What the model said: every [`EntryOutput::emission`] of its turn, in order.
    Model(Arc<[Emission]>),
}

/// A conversation in which the model speaks next.
///
/// Its prompt begins with all that earlier turns consisted of, so that the content keys of [`Work::Autoregressive`] are
/// those of the earlier turn's prompt and of its [`EntryOutput::content_key`]s: whose blocks are kept by these keys need
/// not be computed again.
#[derive(Debug, Clone, PartialEq)]
pub struct ConverseInput {
    /// What the model is told before the conversation; `None` for its own way.
    pub instructions: Option<String>,
    /// All turns so far, the user's first and last.
    pub turns: Vec<Turn>,
    /// How codes are drawn; `None` for the model's own way.
    pub sampling: Option<Sampling>,
    /// How text is drawn; `None` for the model's own way.
    pub text_sampling: Option<Sampling>,
    /// Seed of everything random in this turn.
    pub seed: u64,
    /// Tokens and frames together after which the engine ends the turn.
    pub max_tokens: usize,
    /// Samples that the listener gets at once.
    pub chunk_samples: usize,
}

/// What a request becomes before it is scheduled.
#[derive(Debug, Clone)]
pub enum Input {
    /// Speak.
    Speak(SpeakInput),
    /// Transcribe.
    Listen(ListenInput),
    /// Answer in a conversation.
    Converse(ConverseInput),
}

/// Bounds a family keeps while it cuts work to size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PrepareLimits {
    /// The most tokens one step can take: no unit may be larger.
    pub max_tokens_per_step: usize,
    /// The most positions a pass can have, prompt and generated together.
    pub max_positions: usize,
}

/// How a prepared input is worked off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A prompt, then one token a step until the model or a limit ends it. Keys and values live in the paged pool.
    Autoregressive {
        /// Content key of each prompt position: equal prefixes of keys may share blocks.
        prompt: Arc<[u64]>,
        /// What the first entry costs beyond its prompt tokens, in tokens: an encoder that runs before them.
        setup_tokens: usize,
    },
    /// Units computed whole, one a step, in order, without KV. Each entry is the unit's size in tokens.
    Units(Arc<[usize]>),
}

/// An input that is ready to be scheduled.
#[derive(Clone)]
pub struct Prepared {
    /// The amount and shape of work.
    pub work: Work,
    /// The family's own data (token ids, phonemes, reference codes …).
    pub payload: Arc<dyn Any + Send + Sync>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("work", &self.work).finish_non_exhaustive()
    }
}

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

/// What one sequence got out of a forward pass.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EntryOutput {
    /// New mono samples at [`ModelInfo::sample_rate_hz`].
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
    /// Tokens generated: 0 while the prompt is being computed.
    pub generated_tokens: usize,
    /// Whether the model ended the sequence.
    pub finished: bool,
    /// Whether it was ended because it would not have ended by itself.
    pub runaway: bool,
    /// The pass is over and the sequence goes on with another one: its KV is given away, its state stays. The next
    /// entry has `begins` and starts at 0, or behind a shared prefix.
    pub next_pass: Option<Work>,
}

/// An input the model cannot take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InputError {
    /// The request field at fault, by its public name (`voice`, `input`, `language` …).
    pub param: &'static str,
    /// What is wrong, with the value and the remedy.
    pub message: String,
}

impl InputError {
    /// The input is for a task that the model does not do.
    pub fn other_task(does: &str, param: &'static str) -> Self {
        Self { param, message: format!("this model {does}; choose another for {param}") }
    }
}

/// A forward pass or a load that failed.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A tensor operation failed.
    #[error("tensor operation failed: {0}")]
    Tensor(#[from] candle_core::Error),
    /// A file of the checkpoint is absent or unreadable.
    #[error("cannot read {path}: {message}")]
    File {
        /// The file.
        path: String,
        /// Why.
        message: String,
    },
    /// The checkpoint does not fit the architecture: each line names a tensor.
    #[error("checkpoint does not fit: {0}")]
    Checkpoint(String),
    /// No family of this name.
    #[error("unknown family '{family}', this build knows: {known}")]
    UnknownFamily {
        /// What the manifest asked for.
        family: String,
        /// What exists.
        known: String,
    },
    /// No family makes up a model of this size.
    #[error("there are no made-up weights for '{size}', only for {known}")]
    UnknownSize {
        /// What was asked for.
        size: String,
        /// What can be made up.
        known: String,
    },
    /// The executor handed over something this family did not make.
    #[error("internal: {0}")]
    Internal(&'static str),
    /// The device is not there or not in this build.
    #[error("device '{device}' cannot be used: {message}")]
    Device {
        /// What was asked for.
        device: String,
        /// Why, and what to do.
        message: String,
    },
}

/// A loaded checkpoint.
pub trait SpeechModel: Send + Sync {
    /// Static facts.
    fn info(&self) -> &ModelInfo;

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
    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryOutput>, ModelError>;

    /// Makes a voice pack of a recording, to be given as [`Reference::Pack`]: a safetensors file that says which
    /// checkpoint it fits. Runs on a blocking thread.
    ///
    /// # Errors
    /// The model does not clone voices, or the recording cannot be taken; the error names the field.
    fn make_voice(&self, _recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        Err(InputError::other_task("has voices of its own and clones none", "model"))
    }

    /// Checks that a voice pack fits this checkpoint.
    ///
    /// # Errors
    /// It is damaged or was made for another checkpoint; the error names the remedy.
    fn check_voice(&self, _pack: &[u8]) -> Result<(), InputError> {
        Err(InputError::other_task("has voices of its own and clones none", "voice"))
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
