//! Runs a model in this process: weights, physical KV pool, state per sequence.
//!
//! Makes no scheduling decision.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use izwi_models::error::WarmUpError;
use izwi_models::model::{BatchEntry, SequenceState, SpeechModel};
use izwi_models::warm_up;
use izwi_nn::Error;
use izwi_nn::device::{self, Device, at_work};
use izwi_nn::kv_pool::KvPool;
use izwi_nn::precision::weight_precision;
use izwi_types::{AudioProgress, Input, InputError, PrepareLimits, Prepared, TextProgress, VoiceRecording};

use super::loading::{self, Loaded};
use super::messages::{chain, load_error, note_fault, with_remedy};
use super::{
    ExecutorError, ExecutorProfile, ItemResult, ModelExecutor, NewSequenceData, RequestPreparer, StepPlan,
};
use crate::engine::blocks::{BlockGeometry, BlockId};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};
use crate::engine::qos::cost::StepShape;
use crate::engine::scheduler::ScheduledRequest;
use crate::engine::types::SequenceId;

struct Running {
    prepared: Prepared,
    state: SequenceState,
}

/// Executes plans with the models of this build.
pub struct NativeExecutor {
    profile: Arc<ExecutorProfile>,
    model: Arc<dyn SpeechModel>,
    limits: PrepareLimits,
    geometry: BlockGeometry,
    block_identity: Option<String>,
    pool: KvPool,
    sequences: HashMap<SequenceId, Running>,
    /// The warm-up, until it is over.
    warming: Option<warm_up::Steps>,
    /// Set once the device has given up work.
    lost_device: OnceLock<()>,
    /// Dropped last, after what it frees.
    device: UnusedMemory,
}

/// Frees what the device's allocator still keeps of an executor that was dropped.
struct UnusedMemory(Device);

impl Drop for UnusedMemory {
    fn drop(&mut self) {
        if let Err(error) = at_work(|| device::free_unused(&self.0)) {
            tracing::warn!(%error, "the device did not free the memory of a model");
        }
    }
}

impl std::fmt::Debug for NativeExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NativeExecutor").field("profile", &self.profile).finish_non_exhaustive()
    }
}

impl NativeExecutor {
    /// Loads the configured model from the store and allocates its KV pool. `plays`: whether live streams of other models play.
    ///
    /// # Errors
    /// The model is unknown, not pulled or does not load; the device cannot be opened or is out of memory.
    pub fn load(config: &EngineCoreConfig, plays: &dyn Fn() -> bool) -> Result<Self> {
        at_work(|| Self::load_on_device(config, plays))
    }

    fn load_on_device(config: &EngineCoreConfig, plays: &dyn Fn() -> bool) -> Result<Self> {
        let Loaded { model, device, languages, held_before } = loading::load(config, plays)?;
        let geometry = config.pool_geometry(model.max_positions());
        let pool = KvPool::new(model.kv_layout(), geometry.num_blocks, geometry.block_size, &device)
            .map_err(|error| {
                EngineError::Load(format!("the KV pool cannot be allocated: {error}; lower max_blocks"))
            })?;
        let freed = device::free_unused(&device);
        freed.map_err(|error| load_error(&error, &device))?;
        let mut profile = profile(config, &*model, &device);
        if profile.languages.is_empty() {
            profile.languages = languages;
        }
        if let Some((before, now)) = held_before.zip(device::allocated_bytes(&device)) {
            profile.memory_bytes = profile.memory_bytes.max(now.saturating_sub(before));
        }
        let block_identity = loading::block_identity(config, &profile, model.kv_layout());
        let profile = Arc::new(profile);
        let limits = loading::limits(config, &*model);
        let device = UnusedMemory(device);
        Ok(Self {
            profile,
            model,
            limits,
            geometry,
            block_identity,
            pool,
            sequences: HashMap::new(),
            warming: None,
            lost_device: OnceLock::new(),
            device,
        })
    }

    fn failed(&self, error: impl Into<Error>) -> ExecutorError {
        let error = error.into();
        let told = with_remedy(&error, &self.device.0);
        if !self.has_lost_device() && note_fault(&error, &self.device.0) {
            // Only this thread sets it.
            let _ = self.lost_device.set(());
        }
        ExecutorError(told)
    }

    /// Whether the device did all that a step gave it; what came of it is worth nothing otherwise.
    fn check_device(&self) -> std::result::Result<(), ExecutorError> {
        device::check(&self.device.0).map_err(|error| self.failed(error))
    }

    fn admit(&mut self, new: &NewSequenceData) {
        let prepared = new.prepared.clone();
        let state = self.model.start(&prepared);
        self.sequences.insert(new.sequence, Running { prepared, state });
    }

    /// Runs the next step of the warm-up. No sequence has blocks: it uses the pool's first.
    fn warm_up(&mut self) -> std::result::Result<Option<StepShape>, ExecutorError> {
        let blocks = self.geometry.blocks_for(warm_up::POSITIONS).min(self.geometry.num_blocks);
        let block_table: Vec<u32> = (0..blocks as u32).collect();
        let mut steps = match self.warming.take() {
            Some(steps) => steps,
            None => warm_up::Steps::new(&*self.model, &self.limits).map_err(|error| match error {
                WarmUpError::Model(error) => self.failed(error),
                WarmUpError::Input(error) => ExecutorError(chain(&error)),
            })?,
        };
        let ran = steps.next(&*self.model, &mut self.pool, &block_table);
        let Some(work) = ran.map_err(|error| self.failed(error))? else { return Ok(None) };
        self.warming = Some(steps);
        Ok(Some(StepShape {
            decodes: usize::from(work.generates),
            prefill_tokens: if work.is_prompt { work.tokens } else { 0 },
            encoder_tokens: work.encoder_tokens,
            ..StepShape::default()
        }))
    }

    /// Computes a plan.
    fn step(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError> {
        for new in &plan.new_sequences {
            self.admit(new);
        }
        let restored: Vec<(u32, &[u8])> =
            plan.restored.iter().map(|(block, content)| (*block, &**content)).collect();
        self.pool.write_blocks(&restored).map_err(|error| self.failed(error))?;
        let copies: Vec<(u32, u32)> =
            plan.schedule.block_copies.iter().map(|copy| (copy.from, copy.to)).collect();
        self.pool.copy_blocks(&copies).map_err(|error| self.failed(error))?;

        // Moved out of the map for the pass: every entry borrows its own state mutably.
        let items = plan.schedule.items();
        let mut batch: Vec<(&ScheduledRequest, Running)> =
            items.filter_map(|item| Some((item, self.sequences.remove(&item.sequence)?))).collect();
        let mut entries: Vec<BatchEntry<'_>> = batch
            .iter_mut()
            .map(|(item, running)| BatchEntry {
                prepared: &running.prepared,
                state: &mut running.state,
                start: item.start,
                begins: item.begins,
                num_tokens: item.num_tokens,
                block_table: &item.block_table,
                branch_tables: &item.branch_tables,
            })
            .collect();
        let outputs = self.model.forward(&mut self.pool, &mut entries).map_err(|error| self.failed(error))?;
        let mut results = HashMap::with_capacity(batch.len());
        for ((item, running), output) in batch.into_iter().zip(outputs) {
            results.insert(item.sequence, output.map_err(|error| self.failed(error)));
            self.sequences.insert(item.sequence, running);
        }
        let unknown = |item: &ScheduledRequest| {
            Err(ExecutorError(format!("sequence {} has no state; send the request again", item.sequence.0)))
        };
        let items = plan.schedule.items();
        Ok(items.map(|item| results.remove(&item.sequence).unwrap_or_else(|| unknown(item))).collect())
    }
}

impl ModelExecutor for NativeExecutor {
    fn profile(&self) -> Arc<ExecutorProfile> {
        Arc::clone(&self.profile)
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        Arc::new(NativePreparer { model: Arc::clone(&self.model), limits: self.limits })
    }

    fn initialize(&mut self) -> std::result::Result<Option<StepShape>, ExecutorError> {
        let shape = at_work(|| self.warm_up());
        self.check_device()?;
        shape
    }

    fn execute(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError> {
        let results = at_work(|| self.step(plan));
        self.check_device()?;
        results
    }

    fn block_identity(&self) -> Option<String> {
        self.block_identity.clone()
    }

    fn read_block(&self, block: BlockId) -> std::result::Result<Vec<u8>, ExecutorError> {
        at_work(|| self.pool.read_block(block)).map_err(|error| self.failed(error))
    }

    fn has_lost_device(&self) -> bool {
        self.lost_device.get().is_some()
    }

    fn needs_beats(&self) -> bool {
        device::needs_beats(&self.device.0)
    }

    fn beat(&self) -> std::result::Result<(), ExecutorError> {
        at_work(|| device::beat(&self.device.0)).map_err(|error| self.failed(error))
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        for sequence in sequences {
            self.sequences.remove(sequence);
        }
    }

    fn shutdown(&mut self) {
        self.sequences.clear();
    }
}

struct NativePreparer {
    model: Arc<dyn SpeechModel>,
    limits: PrepareLimits,
}

impl RequestPreparer for NativePreparer {
    fn prepare(&self, input: &Input) -> std::result::Result<Prepared, InputError> {
        at_work(|| self.model.prepare(input, &self.limits))
    }

    fn append_text(
        &self,
        prepared: &Prepared,
        text: &str,
        is_last: bool,
    ) -> std::result::Result<TextProgress, InputError> {
        self.model.append_text(prepared, text, is_last)
    }

    fn append_audio(
        &self,
        prepared: &Prepared,
        samples: &[f32],
        is_last: bool,
    ) -> std::result::Result<AudioProgress, InputError> {
        self.model.append_audio(prepared, samples, is_last)
    }

    fn make_voice(&self, recording: &VoiceRecording) -> std::result::Result<Vec<u8>, InputError> {
        at_work(|| self.model.make_voice(recording))
    }

    fn check_voice(&self, pack: &[u8]) -> std::result::Result<(), InputError> {
        at_work(|| self.model.check_voice(pack))
    }
}

fn profile(config: &EngineCoreConfig, model: &dyn SpeechModel, device: &Device) -> ExecutorProfile {
    let info = model.info().clone();
    let geometry = config.pool_geometry(model.max_positions());
    let kv_block_bytes = model.kv_layout().map_or(0, |layout| layout.block_bytes(geometry.block_size));
    // Of as many sequences as a step takes: more run only while their readers are slow.
    let states =
        (info.state_bytes * config.max_batch_size).min(config.max_state_bytes()).max(info.state_bytes);
    ExecutorProfile {
        model: config.model.clone(),
        device: device::name(device),
        precision: weight_precision(config.dtype, device),
        kv_block_bytes,
        kv_blocks: geometry.num_blocks,
        memory_bytes: info.weight_bytes + kv_block_bytes * geometry.num_blocks + states,
        step_bytes: model.step_bytes(config.streaming_chunk_size),
        part_times: model.part_times(),
        speaks_parts: true,
        languages: info.languages.clone(),
        info,
    }
}
