//! The engine's settings, their documented defaults and presets, and the check that they make sense together.

use std::path::PathBuf;
use std::time::Duration;

use super::conversation::ConversationLimits;
use super::error::EngineError;
use super::executor::{DeviceChoice, Precision};

/// Model id of the default voice.
pub const DEFAULT_MODEL: &str = "hibari";

/// Model id of the default ear.
pub const DEFAULT_ASR_MODEL: &str = "whisper-base";

/// From this many bytes on, sequences that merely wait for their turn are too dear.
const LARGE_STATE: usize = 1 << 20;

/// In which order sequences get a share of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SchedulingPolicy {
    /// First come, first served; running sequences take turns.
    #[default]
    Fcfs,
    /// Higher priority first, then first come.
    Priority,
    /// The stream whose audio runs out soonest first.
    Deadline,
}

impl std::str::FromStr for SchedulingPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fcfs" => Ok(Self::Fcfs),
            "priority" => Ok(Self::Priority),
            "deadline" => Ok(Self::Deadline),
            other => Err(format!("scheduling policy '{other}' is unknown; use fcfs, priority or deadline")),
        }
    }
}

impl SchedulingPolicy {
    /// The name that parses back.
    pub fn label(self) -> &'static str {
        match self {
            Self::Fcfs => "fcfs",
            Self::Priority => "priority",
            Self::Deadline => "deadline",
        }
    }
}

/// Everything an engine is told once.
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCoreConfig {
    /// Model id, as `izwi list` shows it.
    pub model: String,
    /// Root of the model store; `None` for `IZWI_HOME` or the platform's data folder.
    pub home: Option<PathBuf>,
    /// Folder with one subfolder per model. Models that are there are taken as they are, not verified; others come from
    /// the store.
    pub models_dir: Option<PathBuf>,

    /// The most sequences in one step.
    pub max_batch_size: usize,
    /// The most tokens a sequence may have, prompt and generated together.
    pub max_seq_len: usize,
    /// The most tokens computed in one step.
    pub max_tokens_per_step: usize,
    /// Who goes first.
    pub scheduling_policy: SchedulingPolicy,
    /// The most sequences admitted at once; they share the steps in turn.
    pub max_running_requests: usize,
    /// The most requests that may wait; more are turned away as overload.
    pub max_waiting_requests: usize,

    /// The longest recording taken, in time.
    pub max_audio_duration: Duration,
    /// The longest that all recordings being worked on or waiting may be together; more are turned away as overload.
    pub max_open_audio_duration: Duration,
    /// The longest recording of a voice to speak in, in time.
    pub max_reference_duration: Duration,
    /// The longest recording of what a user says in one turn of a conversation, in time.
    pub max_turn_duration: Duration,
    /// The most answered turns of a conversation that a model is shown.
    pub max_conversation_turns: usize,
    /// The largest recording taken, in bytes of its file.
    pub max_audio_bytes: usize,

    /// Tokens in a KV block.
    pub block_size: usize,
    /// Blocks in the KV pool.
    pub max_blocks: usize,
    /// Whether equal prompt prefixes share blocks.
    pub enable_prefix_caching: bool,

    /// Whether long prompts are computed over several steps.
    pub enable_chunked_prefill: bool,
    /// Prompts above this many tokens are computed in chunks of at most this size.
    pub chunked_prefill_threshold: usize,

    /// Rate of the audio a model without its own rate would make, in Hz; models state theirs.
    pub sample_rate: u32,
    /// Codebooks of the codec; models state theirs.
    pub num_codebooks: usize,
    /// Samples in a streamed chunk, 4,800 = 200 ms at 24 kHz.
    pub streaming_chunk_size: usize,
    /// Chunks that may wait for a slow reader before its sequence is paused.
    pub stream_buffer_chunks: usize,
    /// How long a paused reader may stay away before its request is dropped.
    pub slow_client_timeout: Duration,

    /// Where to compute.
    pub device: DeviceChoice,
    /// How the weights of large models are kept.
    pub dtype: Precision,
    /// Whether what the weights of a large model become is kept in files beside them, so that it loads faster.
    pub weight_cache: bool,
    /// Whether to make the weights up instead of loading them: for measuring. `model` is then a published size.
    pub random_weights: bool,
    /// Compute threads.
    pub num_threads: usize,

    /// Whether running sequences may give up their blocks to more urgent ones, to be recomputed later.
    pub enable_preemption: bool,
    /// Whether the next step is scheduled while the current one runs.
    pub enable_optimistic_scheduling: bool,
}

impl Default for EngineCoreConfig {
    fn default() -> Self {
        Self {
            model: DEFAULT_MODEL.to_owned(),
            home: None,
            models_dir: None,
            max_batch_size: 8,
            max_seq_len: 4096,
            max_tokens_per_step: 512,
            scheduling_policy: SchedulingPolicy::Fcfs,
            max_running_requests: 64,
            max_waiting_requests: 256,
            max_audio_duration: Duration::from_secs(7_200),
            max_open_audio_duration: Duration::from_secs(14_400),
            max_reference_duration: Duration::from_secs(60),
            max_turn_duration: Duration::from_secs(60),
            max_conversation_turns: 64,
            max_audio_bytes: 100 << 20,
            block_size: 16,
            max_blocks: 1024,
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            chunked_prefill_threshold: 256,
            sample_rate: 24_000,
            num_codebooks: 8,
            streaming_chunk_size: 4_800,
            stream_buffer_chunks: 8,
            slow_client_timeout: Duration::from_secs(30),
            device: DeviceChoice::Auto,
            dtype: Precision::Auto,
            weight_cache: true,
            random_weights: false,
            num_threads: num_cpus::get_physical().clamp(1, 8),
            enable_preemption: true,
            enable_optimistic_scheduling: true,
        }
    }
}

impl EngineCoreConfig {
    /// Settings for LFM2-Audio 1.5B: 8 codebooks at 24 kHz, chat turns that fit its context.
    pub fn for_lfm2() -> Self {
        Self { model: "lfm2-audio-1.5b".to_owned(), num_codebooks: 8, ..Self::default() }
    }

    /// Settings for Qwen3-TTS 0.6B: 16 codebooks at 24 kHz.
    pub fn for_qwen3_tts() -> Self {
        Self { model: "qwen3-tts-0.6b-customvoice".to_owned(), num_codebooks: 16, ..Self::default() }
    }

    /// Checks that every value is usable and that they fit together.
    ///
    /// # Errors
    /// Names the field, its value and the bound.
    pub fn validate(&self) -> Result<(), EngineError> {
        let positive = [
            ("max_batch_size", self.max_batch_size),
            ("max_seq_len", self.max_seq_len),
            ("max_tokens_per_step", self.max_tokens_per_step),
            ("max_running_requests", self.max_running_requests),
            ("max_audio_bytes", self.max_audio_bytes),
            ("max_conversation_turns", self.max_conversation_turns),
            ("max_waiting_requests", self.max_waiting_requests),
            ("block_size", self.block_size),
            ("max_blocks", self.max_blocks),
            ("chunked_prefill_threshold", self.chunked_prefill_threshold),
            ("streaming_chunk_size", self.streaming_chunk_size),
            ("stream_buffer_chunks", self.stream_buffer_chunks),
            ("num_threads", self.num_threads),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, value)| *value == 0) {
            return Err(EngineError::config(field, "0", "must be at least 1"));
        }
        if self.max_open_audio_duration < self.max_audio_duration {
            let remedy =
                format!("must be at least max_audio_duration, {} s", self.max_audio_duration.as_secs());
            let value = format!("{} s", self.max_open_audio_duration.as_secs());
            return Err(EngineError::config("max_open_audio_duration", &value, &remedy));
        }
        let index_limit = u32::MAX as usize / self.block_size;
        if self.max_blocks > index_limit {
            let remedy = format!("must be at most {index_limit} with block_size {}", self.block_size);
            return Err(EngineError::config("max_blocks", &self.max_blocks.to_string(), &remedy));
        }
        Ok(())
    }

    /// What a conversation may take of the context of a model with a KV cache.
    pub fn conversation_limits(&self) -> ConversationLimits {
        let (turns, positions) = (self.max_conversation_turns, self.sequence_capacity(true));
        ConversationLimits { turns, positions }
    }

    /// The most sequences admitted at once of a model whose running sequences hold `state_bytes` each beside their KV:
    /// where a state is not small, only as many as one step takes.
    pub fn running_limit(&self, state_bytes: usize) -> usize {
        if state_bytes < LARGE_STATE {
            self.max_running_requests
        } else {
            self.max_running_requests.min(self.max_batch_size)
        }
    }

    /// The most tokens one sequence can hold: the smaller of `max_seq_len` and the whole pool.
    pub fn sequence_capacity(&self, uses_kv: bool) -> usize {
        if uses_kv { self.max_seq_len.min(self.max_blocks * self.block_size) } else { self.max_seq_len }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_the_documented_ones() {
        let config = EngineCoreConfig::default();
        assert_eq!((config.max_batch_size, config.max_seq_len, config.max_tokens_per_step), (8, 4096, 512));
        assert_eq!((config.block_size, config.max_blocks), (16, 1024));
        assert!(config.enable_chunked_prefill && config.enable_preemption);
        assert_eq!(config.chunked_prefill_threshold, 256);
        assert_eq!(
            (config.sample_rate, config.num_codebooks, config.streaming_chunk_size),
            (24_000, 8, 4_800)
        );
        for preset in [config, EngineCoreConfig::for_lfm2(), EngineCoreConfig::for_qwen3_tts()] {
            preset.validate().unwrap();
        }
    }

    #[test]
    fn a_zero_is_refused_by_name() {
        let config = EngineCoreConfig { block_size: 0, ..Default::default() };
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("block_size") && message.contains("at least 1"), "{message}");
    }
}
