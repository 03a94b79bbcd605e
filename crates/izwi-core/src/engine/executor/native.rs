//! Runs a model family in this process: weights, physical KV pool, per-sequence state.
//!
//! Translates between the engine's nouns and the model crate's; decides nothing about what runs.

use std::collections::HashMap;
use std::sync::Arc;

use izwi_models::families::{self, LoadOptions};
use izwi_models::model::{BatchEntry, SequenceState, SpeechModel};
use izwi_nn::device;
use izwi_nn::kv_pool::KvPool;
use izwi_types::{
    ConverseInput, Input, InputError, ListenInput, PrepareLimits, Prepared, SamplingParams, SpeakInput,
    StepOutput, Task, Work,
};

use super::{
    Decoded, ExecutorError, ExecutorOutput, ExecutorProfile, ItemResult, ModelExecutor, NewSequenceData,
    PreparedRequest, PreparedWork, RequestPreparer, StepPlan, VoiceInfo, VoiceRecording,
};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};
use crate::engine::request::EngineCoreRequest;
use crate::engine::types::{GenerationParams, SequenceId, TaskType};
use izwi_hub::Store;

struct Running {
    prepared: Prepared,
    state: SequenceState,
}

/// Executes plans with the models of this build.
pub struct NativeExecutor {
    profile: Arc<ExecutorProfile>,
    model: Arc<dyn SpeechModel>,
    limits: PrepareLimits,
    chunk_samples: usize,
    block_size: usize,
    num_blocks: usize,
    pool: KvPool,
    sequences: HashMap<SequenceId, Running>,
}

impl std::fmt::Debug for NativeExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeExecutor").field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl NativeExecutor {
    /// Loads the configured model from the store, and allocates its KV pool.
    ///
    /// # Errors
    /// The model is unknown, not pulled or does not load; the device cannot be opened or has too little memory.
    pub fn load(config: &EngineCoreConfig) -> Result<Self> {
        let load = |error: &dyn std::error::Error| EngineError::Load(chain(error));
        let device = device::open(config.device).map_err(|error| load(&error))?;
        let weight_cache = config.weight_cache;
        let options = LoadOptions { device: device.clone(), precision: config.dtype, weight_cache };
        let model = if config.random_weights {
            families::random(&config.model, &options).map_err(|error| load(&error))?
        } else {
            let store = Store::open(config.home.clone()).map_err(|error| load(&error))?;
            let store = store.with_models_dir(config.models_dir.clone());
            let manifest = store.manifest(&config.model).map_err(|error| load(&error))?;
            let folder = store.installed(&config.model).map_err(|error| load(&error))?;
            families::load(&manifest.family, &folder, &options).map_err(|error| load(&error))?
        };
        let pool = KvPool::new(model.kv_layout(), config.max_blocks, config.block_size, &device).map_err(
            |error| EngineError::Load(format!("the KV pool cannot be allocated: {error}; lower max_blocks")),
        )?;
        let profile = Arc::new(profile(config, &*model, device::name(&device)));
        let limits = PrepareLimits {
            max_tokens_per_step: config.max_tokens_per_step,
            max_positions: config.sequence_capacity(model.kv_layout().is_some()),
        };
        Ok(Self {
            profile,
            model,
            limits,
            chunk_samples: config.streaming_chunk_size,
            block_size: config.block_size,
            num_blocks: config.max_blocks,
            pool,
            sequences: HashMap::new(),
        })
    }

    fn admit(&mut self, new: &NewSequenceData) {
        let prepared = model_form(&new.prepared);
        let state = self.model.start(&prepared);
        self.sequences.insert(new.sequence, Running { prepared, state });
    }
}

impl ModelExecutor for NativeExecutor {
    fn profile(&self) -> Arc<ExecutorProfile> {
        Arc::clone(&self.profile)
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        Arc::new(NativePreparer {
            model: Arc::clone(&self.model),
            limits: self.limits,
            chunk_samples: self.chunk_samples,
        })
    }

    fn initialize(&mut self) -> std::result::Result<(), ExecutorError> {
        let failed = |error: &dyn std::error::Error| ExecutorError(chain(error));
        let input = self.model.warm_up_input();
        let prepared = self.model.prepare(&input, &self.limits).map_err(|error| failed(&error))?;
        let mut state = self.model.start(&prepared);
        // Nothing runs yet: the sequence may take the pool's first blocks.
        let blocks = WARM_UP_POSITIONS.div_ceil(self.block_size).min(self.num_blocks);
        let block_table: Vec<u32> = (0..blocks as u32).collect();
        let mut work = prepared.work.clone();
        let (mut start, mut step) = (0, 0);
        while let Some(num_tokens) = entry_size(&work, start).filter(|_| step < WARM_UP_STEPS) {
            let entry = BatchEntry {
                prepared: &prepared,
                state: &mut state,
                start,
                begins: start == 0,
                num_tokens,
                block_table: &block_table,
            };
            let outputs = self.model.forward(&mut self.pool, &mut [entry]).map_err(|error| failed(&error))?;
            match outputs.into_iter().next() {
                Some(StepOutput { finished: false, next_pass: Some(next), .. }) => (work, start) = (next, 0),
                Some(StepOutput { finished: false, .. }) => start = next_start(&work, start, num_tokens),
                Some(_) | None => break,
            }
            step += 1;
        }
        Ok(())
    }

    fn execute(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError> {
        for new in &plan.new_sequences {
            self.admit(new);
        }
        let copies: Vec<(u32, u32)> =
            plan.schedule.block_copies.iter().map(|copy| (copy.from, copy.to)).collect();
        self.pool.copy_blocks(&copies).map_err(|error| ExecutorError(chain(&error)))?;

        // Taken out for the pass: every entry borrows its own state.
        let mut batch: Vec<(SequenceId, Running)> = Vec::with_capacity(plan.schedule.batch_size());
        for item in plan.schedule.items() {
            let running = self.sequences.remove(&item.sequence);
            let running =
                running.ok_or_else(|| ExecutorError(format!("sequence {} is unknown", item.sequence.0)))?;
            batch.push((item.sequence, running));
        }
        let mut entries: Vec<BatchEntry<'_>> = batch
            .iter_mut()
            .zip(plan.schedule.items())
            .map(|((_, running), item)| BatchEntry {
                prepared: &running.prepared,
                state: &mut running.state,
                start: item.start,
                begins: item.begins,
                num_tokens: item.num_tokens,
                block_table: &item.block_table,
            })
            .collect();
        let outputs =
            self.model.forward(&mut self.pool, &mut entries).map_err(|error| ExecutorError(chain(&error)))?;
        self.sequences.extend(batch);
        Ok(outputs
            .into_iter()
            .map(|output| {
                Ok(ExecutorOutput {
                    samples: output.samples,
                    text: output.text,
                    segments: output.segments,
                    language: output.language,
                    emission: output.emission,
                    content_key: output.content_key,
                    generated_tokens: output.generated_tokens,
                    finished: output.finished,
                    runaway: output.runaway,
                    next_pass: output.next_pass.map(engine_form),
                })
            })
            .collect())
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        for sequence in sequences {
            self.sequences.remove(sequence);
        }
    }

    fn is_ready(&self) -> bool {
        true
    }

    fn shutdown(&mut self) {
        self.sequences.clear();
    }
}

struct NativePreparer {
    model: Arc<dyn SpeechModel>,
    limits: PrepareLimits,
    /// Of a request that does not say.
    chunk_samples: usize,
}

impl NativePreparer {
    fn input(&self, request: &EngineCoreRequest, decoded: Decoded, params: &GenerationParams) -> Input {
        let sampling = SamplingParams {
            temperature: params.temperature,
            top_p: params.top_p,
            top_k: params.top_k,
            repetition_penalty: params.repetition_penalty,
        };
        let seed = params.seed.unwrap_or_default();
        let chunk_samples = request.chunk_samples.unwrap_or(self.chunk_samples);
        match request.task_type {
            TaskType::Tts => Input::Speak(SpeakInput {
                text: request.text.clone().unwrap_or_default(),
                voice: request.voice.clone(),
                language: request.language.clone(),
                instructions: request.instructions.clone(),
                reference: decoded.reference,
                streams_text: request.streams_text,
                speed: params.speed,
                sampling,
                seed,
                max_tokens: params.max_tokens,
                chunk_samples,
            }),
            TaskType::Asr => Input::Listen(ListenInput {
                samples: decoded.audio.unwrap_or_default(),
                language: request.language.clone(),
                prompt: request.transcription.prompt.clone(),
                translate: request.transcription.translate,
                word_timestamps: request.transcription.word_timestamps,
                temperature: params.temperature,
                seed,
            }),
            TaskType::AudioChat => {
                let text = request.chat.text_temperature;
                Input::Converse(ConverseInput {
                    instructions: request.instructions.clone(),
                    turns: decoded.turns,
                    sampling: (request.params.is_some() && !request.chat.own_sampling).then_some(sampling),
                    text_sampling: text
                        .map(|temperature| SamplingParams { temperature, ..SamplingParams::GREEDY }),
                    seed,
                    max_tokens: params.max_tokens,
                    chunk_samples,
                })
            }
        }
    }
}

impl RequestPreparer for NativePreparer {
    fn prepare(
        &self,
        request: &EngineCoreRequest,
        decoded: Decoded,
        params: &GenerationParams,
    ) -> Result<PreparedRequest> {
        let input = self.input(request, decoded, params);
        let prepared = self.model.prepare(&input, &self.limits).map_err(refusal)?;
        Ok(PreparedRequest { work: engine_form(prepared.work), payload: prepared.payload })
    }

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>> {
        self.model.make_voice(recording).map_err(refusal)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<()> {
        self.model.check_voice(pack).map_err(refusal)
    }
}

fn refusal(error: InputError) -> EngineError {
    EngineError::invalid(error.param, error.message)
}

/// Steps a warm-up takes at most: enough for a prompt and some tokens of each kind of pass.
const WARM_UP_STEPS: usize = 12;
/// Positions a warm-up may fill.
const WARM_UP_POSITIONS: usize = 512;

/// Tokens of the entry at `start`: a unit, the prompt, or one token more.
fn entry_size(work: &Work, start: usize) -> Option<usize> {
    match work {
        Work::Units(units) => units.get(start).copied(),
        Work::Autoregressive { prompt, .. } if start == 0 => Some(prompt.len()),
        Work::Autoregressive { .. } => Some(1).filter(|_| start < WARM_UP_POSITIONS),
    }
}

fn next_start(work: &Work, start: usize, num_tokens: usize) -> usize {
    match work {
        Work::Units(_) => start + 1,
        Work::Autoregressive { .. } => start + num_tokens,
    }
}

fn engine_form(work: Work) -> PreparedWork {
    match work {
        Work::Autoregressive { prompt, encoder_tokens } => {
            PreparedWork::Autoregressive { prompt, encoder_tokens }
        }
        Work::Units(units) => PreparedWork::Units(units),
    }
}

fn model_form(prepared: &PreparedRequest) -> Prepared {
    let work = match &prepared.work {
        PreparedWork::Autoregressive { prompt, encoder_tokens } => {
            Work::Autoregressive { prompt: Arc::clone(prompt), encoder_tokens: *encoder_tokens }
        }
        PreparedWork::Units(units) => Work::Units(Arc::clone(units)),
    };
    Prepared { work, payload: Arc::clone(&prepared.payload) }
}

fn profile(config: &EngineCoreConfig, model: &dyn SpeechModel, device: String) -> ExecutorProfile {
    let info = model.info();
    let task = |task: &Task| match task {
        Task::Tts => TaskType::Tts,
        Task::Asr => TaskType::Asr,
        Task::Chat => TaskType::AudioChat,
    };
    let voices = info.voices.iter().map(|voice| VoiceInfo {
        id: voice.id.clone(),
        language: voice.language.clone(),
        description: voice.description.clone(),
    });
    let kv_block_bytes = model.kv_layout().map_or(0, |layout| layout.block_bytes(config.block_size));
    let states = info.state_bytes * config.running_limit(info.state_bytes);
    ExecutorProfile {
        model: config.model.clone(),
        device,
        sample_rate: info.sample_rate_hz,
        heard_rate: info.input_sample_rate_hz,
        tasks: info.tasks.iter().map(task).collect(),
        voices: voices.collect(),
        kv_block_bytes,
        speed_range: info.speed_range,
        takes_instructions: info.takes_instructions,
        languages: info.languages.clone(),
        translates: info.translates,
        clones_voices: info.clones_voices,
        memory_bytes: info.weight_bytes + kv_block_bytes * config.max_blocks + states,
        state_bytes: info.state_bytes,
        step_bytes: model.step_bytes(config.streaming_chunk_size),
        part_times: model.part_times(),
        default_params: GenerationParams {
            temperature: info.sampling.temperature,
            top_p: info.sampling.top_p,
            top_k: info.sampling.top_k,
            repetition_penalty: info.sampling.repetition_penalty,
            ..GenerationParams::default()
        },
    }
}

/// An error with its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}
