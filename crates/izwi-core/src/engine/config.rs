//! Settings of an engine, their defaults and presets, and their validation.

use std::path::PathBuf;
use std::time::Duration;

use izwi_types::{DeviceChoice, Precision, TranscriptionOptions, excerpt};

use super::blocks::BlockGeometry;
use super::conversation::ConversationLimits;
use super::error::EngineError;
use super::memory::MemoryBudget;
use super::scheduler::{SchedulerConfig, SchedulingPolicy};

/// Id of the default TTS model.
pub const DEFAULT_MODEL: &str = "hibari";

/// Id of the default ASR model.
pub const DEFAULT_ASR_MODEL: &str = "whisper-base";

/// Settings of an engine.
///
/// ```
/// use izwi_core::engine::{EngineCoreConfig, SchedulingPolicy};
///
/// // For LFM2-Audio
/// let config = EngineCoreConfig::for_lfm2();
/// # config.validate()?;
///
/// // For Qwen3-TTS
/// let config = EngineCoreConfig::for_qwen3_tts();
/// # config.validate()?;
///
/// // Custom
/// let config = EngineCoreConfig {
///     max_batch_size: 16,
///     scheduling_policy: SchedulingPolicy::Priority,
///     ..Default::default()
/// };
/// # config.validate()?;
///
/// // Where requests wait because the KV cache is full
/// let config = EngineCoreConfig {
///     max_blocks: 2048,  // Double the default
///     enable_preemption: true,
///     ..Default::default()
/// };
/// # config.validate()?;
///
/// // Where speech is generated slower than it plays
/// let config = EngineCoreConfig {
///     max_batch_size: 4,
///     max_tokens_per_step: 256,
///     ..Default::default()
/// };
/// # config.validate()?;
/// # Ok::<(), izwi_core::engine::EngineError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct EngineCoreConfig {
    /// Model id, as `izwi list` shows it.
    pub model: String,
    /// Root of the model store; `None` for `IZWI_HOME` or the platform's data folder.
    pub home: Option<PathBuf>,
    /// Folder with one subfolder per model. Models in it are used without verification; all others come from the store.
    pub models_dir: Option<PathBuf>,

    /// The most sequences in one step.
    pub max_batch_size: usize,
    /// The most tokens a sequence may have, prompt and generated together.
    pub max_seq_len: usize,
    /// The most tokens computed in one step.
    pub max_tokens_per_step: usize,
    /// Order in which sequences are scheduled.
    pub scheduling_policy: SchedulingPolicy,
    /// The most sequences that run at once; they take turns if a step holds fewer. Those whose client is slow do not count.
    pub max_running_requests: usize,
    /// MiB of the states of started requests: codec states, encoder outputs. Requests that would exceed it wait.
    pub max_state_mib: usize,
    /// The most requests that may wait; further ones are rejected as overload.
    pub max_waiting_requests: usize,

    /// Whether a live stream is accepted only if all live streams are predicted to play without a gap.
    pub admission: bool,
    /// The longest predicted time to the first audio of a live stream; a stream that would wait longer is refused.
    pub max_first_audio: Duration,

    /// Words that are likely in every recording, for models that take keywords.
    pub keywords: Vec<String>,
    /// The longest recording to transcribe.
    pub max_audio_duration: Duration,
    /// The longest reference recording for voice cloning.
    pub max_reference_duration: Duration,
    /// The longest recording in one turn of a conversation.
    pub max_turn_duration: Duration,
    /// The most answered turns of a conversation in a prompt.
    pub max_conversation_turns: usize,
    /// The largest audio file, in bytes.
    pub max_audio_bytes: usize,
    /// What the recordings of requests and conversations may take; more are rejected as overload.
    pub memory: MemoryBudget,

    /// Positions in a KV block.
    pub block_size: usize,
    /// Blocks in the KV pool.
    pub max_blocks: usize,
    /// Whether equal prompt prefixes share blocks.
    pub enable_prefix_caching: bool,
    /// MiB of blocks in files that outlive their place in the pool and the unloading of the model: those of conversations,
    /// and of prompts that came again. 0 for none.
    pub kv_swap_mib: usize,
    /// Whether the key of these files is in memory alone, so that nothing can be read after the process has ended.
    pub kv_swap_private: bool,

    /// Whether long prompts are computed over several steps.
    pub enable_chunked_prefill: bool,
    /// Chunk size in tokens: longer prompts are computed in chunks of this size.
    pub chunked_prefill_threshold: usize,

    /// Samples in a streamed chunk, 4,800 = 200 ms at 24 kHz.
    pub streaming_chunk_size: usize,
    /// Undelivered chunks of a stream before its sequence is paused.
    pub stream_buffer_chunks: usize,
    /// How far a client's reading may fall behind real time, while chunks wait for it, before its request is aborted.
    pub slow_client_timeout: Duration,
    /// How long a request whose text arrives while it is spoken waits for more text before it ends.
    pub text_timeout: Duration,

    /// Positions for which an admission leaves KV blocks, for itself and for each running sequence, so that no sequence is
    /// preempted soon after.
    pub admission_lookahead: usize,

    /// Compute device.
    pub device: DeviceChoice,
    /// Devices that have a replica of the model each, in place of `device`; empty for one device.
    pub devices: Vec<DeviceChoice>,
    /// Precision of the weights of large models.
    pub dtype: Precision,
    /// Whether the packed weights of large models are cached in files next to the checkpoint, for faster loading.
    pub weight_cache: bool,
    /// Whether to use random weights instead of a checkpoint, for benchmarks. `model` then names a published size.
    pub random_weights: bool,
    /// Compute threads.
    pub num_threads: usize,

    /// Whether running sequences may be preempted: their blocks are freed, and they are recomputed later.
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
            max_state_mib: 1_024,
            max_waiting_requests: 256,
            admission: true,
            max_first_audio: Duration::from_secs(5),
            keywords: Vec::new(),
            max_audio_duration: Duration::from_secs(7_200),
            max_reference_duration: Duration::from_secs(60),
            max_turn_duration: Duration::from_secs(60),
            max_conversation_turns: 64,
            max_audio_bytes: 100 << 20,
            memory: MemoryBudget::default(),
            block_size: 16,
            max_blocks: 1024,
            enable_prefix_caching: true,
            kv_swap_mib: 1_024,
            kv_swap_private: true,
            enable_chunked_prefill: true,
            chunked_prefill_threshold: 256,
            streaming_chunk_size: 4_800,
            stream_buffer_chunks: 8,
            slow_client_timeout: Duration::from_secs(30),
            text_timeout: Duration::from_secs(30),
            admission_lookahead: 128,
            device: DeviceChoice::Auto,
            devices: Vec::new(),
            dtype: Precision::Auto,
            weight_cache: true,
            random_weights: false,
            num_threads: super::executor::threads::default_threads(),
            enable_preemption: true,
            enable_optimistic_scheduling: true,
        }
    }
}

impl EngineCoreConfig {
    /// Settings for LFM2-Audio 1.5B.
    pub fn for_lfm2() -> Self {
        Self { model: "lfm2-audio-1.5b".to_owned(), ..Self::default() }
    }

    /// Settings for Qwen3-TTS 0.6B.
    pub fn for_qwen3_tts() -> Self {
        Self { model: "qwen3-tts-0.6b-customvoice".to_owned(), ..Self::default() }
    }

    /// Checks the range of each value and their consistency.
    ///
    /// # Errors
    /// Names the field, its value and the bound.
    pub fn validate(&self) -> Result<(), EngineError> {
        let positive = [
            ("max_batch_size", self.max_batch_size),
            ("max_seq_len", self.max_seq_len),
            ("max_tokens_per_step", self.max_tokens_per_step),
            ("max_running_requests", self.max_running_requests),
            ("max_state_mib", self.max_state_mib),
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
        let saved = TranscriptionOptions { keywords: self.keywords.clone(), ..Default::default() };
        if let Err(error) = saved.checked() {
            let value = excerpt(&self.keywords.join(",")).to_string();
            return Err(EngineError::config("keywords", &value, &error.message));
        }
        for (index, device) in self.devices.iter().enumerate() {
            if *device == DeviceChoice::Auto {
                return Err(EngineError::config("devices", "auto", "name each device, like metal:0,cpu"));
            }
            if self.devices[..index].contains(device) {
                let remedy = "is named twice; a device has one replica";
                return Err(EngineError::config("devices", &device.to_string(), remedy));
            }
        }
        let index_limit = u32::MAX as usize / self.block_size;
        if self.max_blocks > index_limit {
            let remedy = format!("must be at most {index_limit} with block_size {}", self.block_size);
            return Err(EngineError::config("max_blocks", &self.max_blocks.to_string(), &remedy));
        }
        Ok(())
    }

    /// Limits of a conversation with a model that has a KV cache.
    pub fn conversation_limits(&self) -> ConversationLimits {
        let (turns, positions) = (self.max_conversation_turns, self.sequence_capacity(true));
        ConversationLimits { turns, positions }
    }

    /// Size of the KV pool.
    pub fn geometry(&self) -> BlockGeometry {
        BlockGeometry { num_blocks: self.max_blocks, block_size: self.block_size }
    }

    /// Size of the KV pool of a model whose sequences have at most `max_positions` positions: no larger than a step of the
    /// longest sequences.
    pub fn pool_geometry(&self, max_positions: Option<usize>) -> BlockGeometry {
        let geometry = self.geometry();
        let needed = max_positions.map(|most| self.max_batch_size * geometry.blocks_for(most));
        BlockGeometry { num_blocks: needed.unwrap_or(usize::MAX).min(geometry.num_blocks), ..geometry }
    }

    /// The scheduler's part.
    pub fn scheduler_config(&self) -> SchedulerConfig {
        SchedulerConfig {
            policy: self.scheduling_policy,
            max_batch_size: self.max_batch_size,
            max_tokens_per_step: self.max_tokens_per_step,
            max_running: self.max_running_requests,
            max_state_bytes: self.max_state_bytes(),
            chunked_prefill: self.enable_chunked_prefill,
            prefill_chunk: self.chunked_prefill_threshold,
            preemption: self.enable_preemption,
            lookahead: self.admission_lookahead,
        }
    }

    /// The most bytes of the states of started requests.
    pub fn max_state_bytes(&self) -> usize {
        self.max_state_mib.saturating_mul(1 << 20)
    }

    /// The most tokens of one sequence: `max_seq_len`, or the whole pool if that is smaller.
    pub fn sequence_capacity(&self, uses_kv: bool) -> usize {
        if uses_kv { self.max_seq_len.min(self.geometry().capacity()) } else { self.max_seq_len }
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
        assert_eq!(config.streaming_chunk_size, 4_800);
        for preset in [config, EngineCoreConfig::for_lfm2(), EngineCoreConfig::for_qwen3_tts()] {
            preset.validate().unwrap();
        }
    }

    #[test]
    fn a_pool_is_no_larger_than_a_step_of_the_longest_sequences() {
        let config = EngineCoreConfig::default();
        assert_eq!(config.pool_geometry(None).num_blocks, 1_024);
        assert_eq!(config.pool_geometry(Some(448)).num_blocks, 8 * 28);
        assert_eq!(config.pool_geometry(Some(1 << 20)).num_blocks, 1_024);
    }

    #[test]
    fn keywords_are_bounded() {
        let config = |keywords| EngineCoreConfig { keywords, ..EngineCoreConfig::default() };
        config(vec!["é".repeat(128); 128]).validate().unwrap();
        for keywords in [vec!["é".repeat(129)], vec!["a".to_owned(); 129]] {
            let error = config(keywords).validate().unwrap_err().to_string();
            assert!(error.contains("keywords") && error.contains("send less"), "{error}");
        }
    }

    #[test]
    fn devices_are_named_and_differ() {
        let validate = |devices: &[DeviceChoice]| {
            EngineCoreConfig { devices: devices.to_vec(), ..Default::default() }.validate()
        };
        validate(&[DeviceChoice::Cpu, DeviceChoice::Metal(0), DeviceChoice::Metal(1)]).unwrap();
        let twice = validate(&[DeviceChoice::Cpu, DeviceChoice::Cpu]).unwrap_err().to_string();
        assert!(twice.contains("devices = cpu") && twice.contains("twice"), "{twice}");
        let auto = validate(&[DeviceChoice::Auto]).unwrap_err().to_string();
        assert!(auto.contains("devices = auto") && auto.contains("metal:0,cpu"), "{auto}");
    }

    #[test]
    fn a_zero_is_rejected_by_name() {
        let config = EngineCoreConfig { block_size: 0, ..Default::default() };
        let message = config.validate().unwrap_err().to_string();
        assert!(message.contains("block_size") && message.contains("at least 1"), "{message}");
    }
}
