//! An executor without weights, for tests and benches, that verifies the content of its block pool.
//!
//! The "key and value" of a token is a hash of all tokens up to it, stored through the block table and checked in every
//! step. Its output is computed from the pool, so a block of the wrong sequence, a missing copy or a skipped recompute
//! changes the output or fails the sequence.

mod chat;
mod cost;
mod fault;
mod open_text;
mod preparer;
mod search;
mod transcript;
mod voice_pack;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use izwi_types::{
    Emission, EncoderWork, GenerationParams, ModelInfo, PartTimes, SpokenWord, StepOutput, Task, Voice, Work,
};

use super::{
    ExecutorError, ExecutorProfile, ItemResult, ModelExecutor, RequestPreparer, SimulatedTime, StepPlan,
};
use crate::engine::blocks::BlockGeometry;
use crate::engine::config::EngineCoreConfig;
use crate::engine::qos::cost::StepShape;
use crate::engine::scheduler::ScheduledRequest;
use crate::engine::types::SequenceId;

pub use cost::{CostCurve, StepWork};
pub use fault::{Fault, Script};
use open_text::OpenText;
use preparer::SimulatedPreparer;
use transcript::{segment, turn};

/// Behaviour of the simulation.
pub struct SimulatedModel {
    /// Whether it is autoregressive with a paged KV cache; otherwise each sentence of the text is a unit.
    pub autoregressive: bool,
    /// Whether it is an ASR model: one pass, one segment and one word for each started second.
    pub transcribes: bool,
    /// Whether it tells speakers in place of words, two in turn, if it transcribes.
    pub diarizes: bool,
    /// It is a turn model, if it transcribes: turns of so many seconds and more are complete.
    pub min_turn_s: Option<usize>,
    /// What an ASR model says of each second in turn, in place of one word; it then writes no figures.
    pub says: &'static [&'static str],
    /// Whether it supports voice cloning and style prompts; its output then depends on all options of a request.
    pub clones_voices: bool,
    /// Whether it tells when the words of its units are spoken: each sounds as long as its bytes take.
    pub times_words: bool,
    /// Whether text can be appended while it is spoken; each byte of a text is then a generated token.
    pub appends_text: bool,
    /// Whether it is also a chat model: one text token, then two audio frames, repeatedly. Its input rate is 16 kHz.
    pub chats: bool,
    /// Generated tokens after which a pass is cut as a runaway.
    pub watchdog: Option<usize>,
    /// Passes of an autoregressive TTS request.
    pub passes: usize,
    /// Branches of the search in each pass, whose audio is that of the first branch and comes at its end; 1 for no search.
    pub branches: usize,
    /// Bytes that the state of a sequence is said to take.
    pub state_bytes: usize,
    /// Rate of its audio, in Hz.
    pub sample_rate: u32,
    /// Samples per generated token, or per character of a unit.
    pub samples_per_token: usize,
    /// Generated tokens of a request for a text with a seed, if it is autoregressive.
    pub length: fn(&str, u64) -> usize,
    /// Seconds of a recording that a pass transcribes.
    pub window_s: usize,
    /// Rows of the encoder before each pass of a transcription.
    pub encoder_rows: usize,
    /// Parts of the encoder, each a step of its own; with one it runs in the first step of the pass.
    pub encoder_parts: usize,
    /// What steps cost in simulated time; `None` for real time.
    pub cost: Option<CostCurve>,
    /// Duration of a step in real time.
    pub step_time: Duration,
    /// Duration of the warm-up.
    pub warm_up_time: Duration,
    /// Failures to inject.
    pub script: Option<Script>,
}

impl std::fmt::Debug for SimulatedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedModel").field("autoregressive", &self.autoregressive).finish_non_exhaustive()
    }
}

impl Default for SimulatedModel {
    fn default() -> Self {
        Self {
            autoregressive: true,
            transcribes: false,
            diarizes: false,
            min_turn_s: None,
            says: &[],
            clones_voices: false,
            times_words: false,
            appends_text: false,
            chats: false,
            watchdog: None,
            passes: 1,
            branches: 1,
            state_bytes: 0,
            sample_rate: 24_000,
            samples_per_token: 1_920,
            length: |text, _| natural_length(text),
            window_s: 1,
            encoder_rows: 0,
            encoder_parts: 1,
            cost: None,
            step_time: Duration::ZERO,
            warm_up_time: Duration::ZERO,
            script: None,
        }
    }
}

/// The payload of a prepared request.
struct Job {
    /// Generated tokens after which a pass ends.
    length: usize,
    passes: usize,
    /// The words of the units, whose times count bytes of their unit.
    words: Vec<Vec<SpokenWord>>,
    /// Whether it is a turn of a conversation.
    is_chat: bool,
    seed: u64,
    /// The prompt after an encoder in parts.
    prompt: Vec<u64>,
    /// Text that arrives while it is spoken, in place of `length`.
    open_text: Option<Arc<OpenText>>,
}

struct Running {
    /// Prompt and generated tokens.
    tokens: Vec<u64>,
    prompt_len: usize,
    /// Generated tokens after which a pass ends.
    length: usize,
    seed: u64,
    units: Arc<[usize]>,
    words: Vec<Vec<SpokenWord>>,
    pass: usize,
    passes: usize,
    is_chat: bool,
    open_text: Option<Arc<OpenText>>,
    /// Rows of the encoder before this pass.
    encoder_rows: usize,
    /// Its parts, if each is a step.
    encoder: Arc<[usize]>,
    /// Whether the pass waits for them.
    is_encoding: bool,
    /// The most branches of a search; 1 without one.
    branches: usize,
    /// Generated tokens of each branch of the search.
    histories: Vec<Vec<u64>>,
}

impl Running {
    /// A token and what the text adds to it at its position.
    fn input(&self, position: usize) -> Result<u64, ExecutorError> {
        let token = self.tokens[position];
        let generated = position.checked_sub(self.prompt_len);
        let Some((text, generated)) = self.open_text.as_ref().zip(generated) else { return Ok(token) };
        let added = text.input_of(generated);
        let added =
            added.ok_or_else(|| ExecutorError(format!("text of position {position} has not arrived")))?;
        Ok(mix(token, added))
    }

    /// Generated tokens after which a pass ends.
    fn length(&self) -> usize {
        self.open_text.as_ref().map_or(self.length, |text| text.length())
    }

    /// Starts the next pass, with a prompt that depends on all tokens so far.
    fn begin_pass(&mut self, state: u64) -> Work {
        self.pass += 1;
        self.tokens = (0..1 + state % 40).map(|i| mix(state, i)).collect();
        self.prompt_len = self.tokens.len();
        if !self.encoder.is_empty() {
            self.is_encoding = true;
            return Work::Encoder(Arc::clone(&self.encoder));
        }
        self.encoder_rows = self.encoder_rows.max(ENCODER_TOKENS);
        let encoders = Arc::new([EncoderWork { end: self.prompt_len, tokens: self.encoder_rows }]);
        Work::Autoregressive { prompt: self.tokens.clone().into(), encoders, branches: self.branches }
    }
}

/// Steps of the warm-up in simulated time.
const WARM_UP_STEPS: u64 = 12;
/// Cost of the first item of a later pass beyond its prompt.
const ENCODER_TOKENS: usize = 20;

/// An executor without weights.
pub struct SimulatedExecutor {
    model: SimulatedModel,
    profile: Arc<ExecutorProfile>,
    geometry: BlockGeometry,
    pool: Vec<u64>,
    sequences: HashMap<SequenceId, Running>,
    /// Steps so far.
    steps: u64,
    /// Whether it has executed a plan.
    has_run: bool,
    lost: bool,
}

impl std::fmt::Debug for SimulatedExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedExecutor").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Generated tokens of a request for `text`.
pub fn natural_length(text: &str) -> usize {
    1 + text.len() % 23
}

fn voices() -> Vec<Voice> {
    let voice = |id: &str| Voice {
        id: id.into(),
        language: "en-US".into(),
        gender: None,
        description: "a tone".into(),
    };
    ["one", "two"].map(voice).to_vec()
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// A sample value in −1.0..1.0, a function of `token`, `seed` and `index`.
fn sample(token: u64, seed: u64, index: usize) -> f32 {
    (mix(mix(token, seed), index as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

/// Rows that the encoders of a prompt compute.
fn rows(encoders: &[EncoderWork]) -> usize {
    encoders.iter().map(|encoder| encoder.tokens).sum()
}

/// Fails if the fault is of a whole step.
fn fail(fault: Option<Fault>) -> Result<(), ExecutorError> {
    match fault {
        Some(Fault::Step | Fault::Device) => Err(ExecutorError("the step was made to fail".to_owned())),
        #[allow(clippy::panic, reason = "tests of the engine need an executor that panics")]
        Some(Fault::Panic) => panic!("the executor was made to panic"),
        Some(Fault::Sequence(_) | Fault::NonFinite(_)) | None => Ok(()),
    }
}

impl SimulatedExecutor {
    /// An executor for the given engine settings.
    pub fn new(config: &EngineCoreConfig, model: SimulatedModel) -> Self {
        let tasks = match (model.transcribes, model.chats) {
            (true, _) if model.min_turn_s.is_some() => vec![Task::Turn],
            (true, _) => vec![if model.diarizes { Task::Diarize } else { Task::Asr }],
            (false, true) => vec![Task::Tts, Task::Chat],
            (false, false) => vec![Task::Tts],
        };
        let languages: &[&str] = if model.transcribes { &["en", "de"] } else { &[] };
        let info = ModelInfo {
            sample_rate_hz: model.sample_rate,
            input_sample_rate_hz: if model.chats { 16_000 } else { model.sample_rate },
            tasks,
            voices: if model.transcribes { Vec::new() } else { voices() },
            speed_range: Some((0.25, 4.0)),
            takes_instructions: model.clones_voices,
            takes_keywords: model.transcribes,
            writes_figures: model.says.is_empty(),
            detects_language: model.transcribes,
            takes_prompt: model.transcribes,
            languages: languages.iter().map(|&code| code.to_owned()).collect(),
            translates: model.transcribes,
            clones_voices: model.clones_voices,
            appends_text: model.appends_text,
            chunks_ms: Vec::new(),
            live_windows: model.transcribes,
            times_words: model.times_words && !model.autoregressive,
            takes_phonemes: false,
            aligns_text: model.transcribes,
            calls_tools: false,
            transcriber: None,
            sampling: GenerationParams::default().sampling(),
            weight_bytes: 0,
            state_bytes: model.state_bytes,
        };
        let geometry = config.geometry();
        let profile = Arc::new(ExecutorProfile {
            model: config.model.clone(),
            device: "simulated".to_owned(),
            languages: if model.transcribes { info.languages.clone() } else { vec!["en".to_owned()] },
            info,
            precision: config.dtype,
            kv_block_bytes: 16 * geometry.block_size,
            kv_blocks: geometry.num_blocks,
            memory_bytes: 0,
            step_bytes: 0,
            part_times: PartTimes::default(),
            speaks_parts: true,
        });
        let (pool, sequences) = (vec![0; geometry.capacity()], HashMap::new());
        Self { model, profile, geometry, pool, sequences, steps: 0, has_run: false, lost: false }
    }

    /// The work of a plan. Sequences that the plan begins are not in the executor yet.
    fn work(&self, plan: &StepPlan) -> StepWork {
        let shape = plan.schedule.shape;
        let mut work = StepWork::default();
        if plan.schedule.batch_size() == 0 {
            // A step of the warm-up.
            let (generating, prompt_tokens) = (shape.decodes, shape.prefill_tokens);
            return StepWork { generating, prompt_tokens, encoder_rows: shape.encoder_tokens };
        }
        for item in plan.schedule.items() {
            let running = self.sequences.get(&item.sequence);
            let new = plan.new_sequences.iter().find(|new| new.sequence == item.sequence);
            let is_encoding = match new {
                Some(new) => matches!(new.prepared.work, Work::Encoder(_)),
                None => running.is_some_and(|running| running.is_encoding),
            };
            if is_encoding {
                work.encoder_rows += item.num_tokens;
                continue;
            }
            let (length, encoder_rows) = match (new.map(|new| &new.prepared.work), running) {
                (Some(Work::Autoregressive { prompt, encoders, .. }), _) => (prompt.len(), rows(encoders)),
                (None, Some(running)) => (running.tokens.len(), running.encoder_rows),
                (Some(Work::Units(_) | Work::Encoder(_) | Work::Chunks { .. }), _) | (None, None) => (0, 0),
            };
            work.prompt_tokens +=
                if item.is_prefill || !self.model.autoregressive { item.num_tokens } else { 0 };
            let generates = self.model.autoregressive && item.start + item.num_tokens >= length;
            work.generating += usize::from(generates);
            work.encoder_rows += if item.begins { encoder_rows } else { 0 };
        }
        work
    }

    fn run_item(&mut self, item: &ScheduledRequest) -> ItemResult {
        let missing = || ExecutorError(format!("sequence {} is unknown", item.sequence.0));
        let mut running = self.sequences.remove(&item.sequence).ok_or_else(missing)?;
        let result = if running.is_encoding {
            Self::run_encoder(&mut running, item)
        } else if self.model.autoregressive {
            self.run_tokens(&mut running, item)
        } else {
            self.run_unit(&running, item)
        };
        self.sequences.insert(item.sequence, running);
        result
    }

    fn run_encoder(running: &mut Running, item: &ScheduledRequest) -> ItemResult {
        if running.encoder.get(item.start) != Some(&item.num_tokens) {
            return Err(ExecutorError(format!("part {} has not {} rows", item.start, item.num_tokens)));
        }
        running.is_encoding = item.start + 1 < running.encoder.len();
        let prompt = || running.tokens.clone().into();
        let branches = running.branches;
        let work = || Work::Autoregressive { prompt: prompt(), encoders: Arc::new([]), branches };
        let next_pass = (!running.is_encoding).then(work);
        Ok(StepOutput { next_pass, ..StepOutput::default() })
    }

    fn run_unit(&self, running: &Running, item: &ScheduledRequest) -> ItemResult {
        let size = running.units.get(item.start).copied();
        if size != Some(item.num_tokens) {
            return Err(ExecutorError(format!("unit {} has not {} tokens", item.start, item.num_tokens)));
        }
        let count = item.num_tokens * self.model.samples_per_token;
        let words = running.words.get(item.start).filter(|_| self.model.times_words);
        let scale = self.model.samples_per_token as u64;
        let words = words.into_iter().flatten().map(|word| SpokenWord {
            sample_start: word.sample_start * scale,
            sample_end: word.sample_end * scale,
            ..*word
        });
        Ok(StepOutput {
            words: words.collect(),
            samples: (0..count).map(|i| sample(item.start as u64, running.seed, i)).collect(),
            generated_tokens: item.num_tokens,
            finished: item.start + 1 == running.units.len(),
            ..StepOutput::default()
        })
    }

    /// Generates one token after those with hash `state`.
    fn generate(&self, running: &mut Running, state: u64) -> StepOutput {
        let mut output = StepOutput { generated_tokens: 1, ..StepOutput::default() };
        let mut count = if self.model.transcribes { 0 } else { self.model.samples_per_token };
        let mut token = state;
        if running.is_chat {
            let emission = chat::emission(state, running.tokens.len() - running.prompt_len);
            if let Emission::Token(id) = emission {
                output.text = chat::word(id);
                count = 0;
            }
            token = chat::key(&emission);
            output.emission = Some(emission);
        }
        output.content_key = Some(token);
        running.tokens.push(token);
        output.samples = (0..count).map(|i| sample(state, running.seed, i)).collect();
        output
    }

    fn run_tokens(&mut self, running: &mut Running, item: &ScheduledRequest) -> ItemResult {
        if running.branches > 1 {
            return self.run_search(running, item);
        }
        let end = item.start + item.num_tokens;
        if end > running.tokens.len() || self.geometry.blocks_for(end) > item.block_table.len() {
            return Err(ExecutorError(format!("positions up to {end} have no tokens or no blocks")));
        }
        let mut state = 0;
        for position in 0..end {
            state = mix(state, running.input(position)?);
            let (index, offset) = self.geometry.locate(position);
            let slot = &mut self.pool[self.geometry.slot(item.block_table[index], offset)];
            if position >= item.start {
                *slot = state;
            } else if *slot != state {
                return Err(ExecutorError(format!("kv of position {position} is corrupt")));
            }
        }
        if end < running.tokens.len() {
            return Ok(StepOutput::default());
        }
        let mut output = self.generate(running, state);
        let generated = running.tokens.len() - running.prompt_len;
        if self.model.watchdog.is_some_and(|limit| generated >= limit && generated < running.length()) {
            (output.finished, output.runaway) = (true, true);
        } else if generated >= running.length() {
            self.end_pass(running, state, &mut output);
        }
        Ok(output)
    }

    /// Ends a pass after tokens with hash `state`.
    fn end_pass(&self, running: &mut Running, state: u64, output: &mut StepOutput) {
        if self.model.transcribes {
            let pass = running.pass;
            let mut segment = if self.model.diarizes { turn(pass) } else { segment(pass, self.model.says) };
            segment.end_of_turn = self.model.min_turn_s.map(|seconds| f32::from(running.passes >= seconds));
            output.text.clone_from(&segment.text);
            output.segments.push(segment);
            (output.language, output.language_probability) = (Some("en".to_owned()), Some(0.75));
        }
        output.finished = running.pass + 1 >= running.passes;
        output.next_pass = (!output.finished).then(|| running.begin_pass(state));
    }
}

impl ModelExecutor for SimulatedExecutor {
    fn profile(&self) -> Arc<ExecutorProfile> {
        Arc::clone(&self.profile)
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        let SimulatedModel { autoregressive, clones_voices, appends_text, passes, length, .. } = self.model;
        let SimulatedModel { window_s, encoder_rows, .. } = self.model;
        Arc::new(SimulatedPreparer {
            model: self.profile.model.clone(),
            autoregressive,
            clones_voices,
            appends_text,
            passes,
            length,
            window_samples: window_s * self.profile.info.input_sample_rate_hz as usize,
            encoder_rows,
            encoder_parts: self.model.encoder_parts,
            branches: self.model.branches,
            is_simulated: self.model.cost.is_some(),
            cloned_second: self.model.cost.as_ref().map_or(Duration::ZERO, |cost| cost.cloned_second),
        })
    }

    fn initialize(&mut self) -> Result<Option<StepShape>, ExecutorError> {
        std::thread::sleep(self.model.warm_up_time);
        let again = self.model.script.as_mut().filter(|_| self.has_run);
        fail(again.and_then(|script| script(&StepPlan::default())))?;
        let warm_up = self.model.cost.as_ref().filter(|_| self.steps < WARM_UP_STEPS);
        Ok(warm_up.map(|_| match (self.steps, self.model.autoregressive) {
            // The engine does not learn from the first step.
            (0 | 1, true) => {
                let encoder_tokens = self.model.encoder_rows;
                StepShape { prefill_tokens: 100, encoder_tokens, ..StepShape::decode(1) }
            }
            (_, true) => StepShape::decode(1),
            (_, false) => StepShape { prefill_tokens: 40, ..StepShape::default() },
        }))
    }

    fn has_lost_device(&self) -> bool {
        self.lost
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<Vec<ItemResult>, ExecutorError> {
        for new in &plan.new_sequences {
            let Some(Job { length, passes, words, is_chat, seed, prompt, open_text }) =
                new.prepared.payload.downcast_ref::<Job>()
            else {
                return Err(ExecutorError("the payload belongs to another executor".to_owned()));
            };
            let (tokens, units, encoder_rows) = match &new.prepared.work {
                Work::Units(units) => (Vec::new(), Arc::clone(units), 0),
                Work::Encoder(_) | Work::Chunks { .. } => (prompt.clone(), Arc::new([]) as Arc<[usize]>, 0),
                Work::Autoregressive { prompt, encoders, .. } => {
                    (prompt.to_vec(), Arc::new([]) as Arc<[usize]>, rows(encoders))
                }
            };
            let encoder = match &new.prepared.work {
                Work::Encoder(parts) => Arc::clone(parts),
                Work::Units(_) | Work::Autoregressive { .. } | Work::Chunks { .. } => Arc::new([]),
            };
            let running = Running {
                prompt_len: tokens.len(),
                tokens,
                length: *length,
                seed: *seed,
                units,
                words: words.clone(),
                pass: 0,
                passes: *passes,
                is_chat: *is_chat,
                open_text: open_text.clone(),
                encoder_rows,
                branches: match &new.prepared.work {
                    Work::Autoregressive { branches, .. } => *branches,
                    Work::Encoder(_) => self.model.branches,
                    Work::Units(_) | Work::Chunks { .. } => 1,
                },
                histories: Vec::new(),
                is_encoding: !encoder.is_empty(),
                encoder,
            };
            self.sequences.insert(new.sequence, running);
        }
        let fault = self.model.script.as_mut().and_then(|script| script(plan));
        if !self.model.step_time.is_zero() {
            std::thread::sleep(self.model.step_time);
        }
        self.has_run = true;
        self.lost |= fault == Some(Fault::Device);
        fail(fault)?;
        for copy in &plan.schedule.block_copies {
            let (from, to) = (self.geometry.slot(copy.from, 0), self.geometry.slot(copy.to, 0));
            self.pool.copy_within(from..from + self.geometry.block_size, to);
        }
        Ok(plan
            .schedule
            .items()
            .map(|item| match fault {
                Some(Fault::Sequence(id)) if id == item.sequence => {
                    Err(ExecutorError("the sequence was made to fail".to_owned()))
                }
                Some(Fault::NonFinite(id)) if id == item.sequence => self.run_item(item).map(|output| {
                    let samples = output.samples.iter().map(|_| f32::NAN).collect();
                    StepOutput { samples, ..output }
                }),
                _ => self.run_item(item),
            })
            .collect())
    }

    fn simulated_time(&mut self, plan: &StepPlan) -> Option<SimulatedTime> {
        let cost = self.model.cost.as_ref()?;
        self.steps += 1;
        Some(cost.time(self.work(plan), self.steps))
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
