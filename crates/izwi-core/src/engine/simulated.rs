//! An executor without weights, for tests and benches: it keeps a real block pool and proves that it is intact.
//!
//! Every token's "key and value" is a hash of all tokens before it, stored through the block table and checked on
//! every step. What it generates is read out of the pool, so that a block given to the wrong sequence, a missing copy
//! or a skipped recompute changes the output or fails the sequence.

mod cloning;
mod conversing;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::{
    Decoded, Emission, ExecutorError, ExecutorOutput, ExecutorProfile, ItemResult, ModelExecutor, PartTimes,
    PreparedRequest, PreparedWork, RequestPreparer, Segment, StepPlan, VoiceInfo, VoiceRecording, Word,
};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::Result;
use crate::engine::request::EngineCoreRequest;
use crate::engine::scheduler::ScheduledRequest;
use crate::engine::types::{GenerationParams, SequenceId, TaskType};

/// What is to go wrong in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The whole step fails.
    Step,
    /// This sequence fails.
    Sequence(SequenceId),
    /// The executor panics.
    Panic,
}

/// Looks at a step and says what goes wrong in it. May block, to hold a step open.
pub type Script = Box<dyn FnMut(&StepPlan) -> Option<Fault> + Send>;

/// How the simulation behaves.
pub struct SimulatedModel {
    /// Whether it is autoregressive with paged KV; otherwise each sentence of the text is one unit.
    pub autoregressive: bool,
    /// Whether it transcribes instead of speaking: one pass, one segment and one word for each second begun.
    pub listens: bool,
    /// Whether it speaks in voices handed to it and takes a style prompt; what it says then depends on everything
    /// that is asked of it.
    pub clones: bool,
    /// Whether it also converses: a token of text and two frames in turn. It hears at 16 kHz.
    pub converses: bool,
    /// Generated tokens after which a pass that has not ended by itself is cut as a runaway.
    pub watchdog: Option<usize>,
    /// Passes of a request that speaks token by token.
    pub passes: usize,
    /// Rate of its audio, in Hz.
    pub sample_rate: u32,
    /// Samples per generated token, or per character of a unit.
    pub samples_per_token: usize,
    /// Time one step takes.
    pub step_time: Duration,
    /// Time the warm-up takes.
    pub warm_up_time: Duration,
    /// Faults.
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
            listens: false,
            clones: false,
            converses: false,
            watchdog: None,
            passes: 1,
            sample_rate: 24_000,
            samples_per_token: 1_920,
            step_time: Duration::ZERO,
            warm_up_time: Duration::ZERO,
            script: None,
        }
    }
}

/// What a request became.
struct Job {
    /// Generated tokens after which a pass ends.
    length: usize,
    passes: usize,
    /// Whether it is a turn of a conversation.
    converses: bool,
    /// Mixed into the seed.
    trace: u64,
}

struct Running {
    /// Prompt and generated tokens.
    tokens: Vec<u64>,
    prompt_len: usize,
    /// Generated tokens after which a pass ends.
    length: usize,
    seed: u64,
    units: Arc<[usize]>,
    pass: usize,
    passes: usize,
    converses: bool,
}

impl Running {
    /// The prompt of the next pass, which all that came before decides.
    fn begin_pass(&mut self, state: u64) -> PreparedWork {
        self.pass += 1;
        self.tokens = (0..1 + state % 40).map(|i| mix(state, i)).collect();
        self.prompt_len = self.tokens.len();
        PreparedWork::Autoregressive { prompt: self.tokens.clone().into(), encoder_tokens: PASS_SETUP_TOKENS }
    }
}

/// What the first item of a later pass costs beyond its prompt.
const PASS_SETUP_TOKENS: usize = 20;

/// The executor.
pub struct SimulatedExecutor {
    model: SimulatedModel,
    profile: Arc<ExecutorProfile>,
    block_size: usize,
    pool: Vec<u64>,
    sequences: HashMap<SequenceId, Running>,
}

impl std::fmt::Debug for SimulatedExecutor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimulatedExecutor").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Generated tokens after which a request for `text` ends by itself.
pub fn natural_length(text: &str) -> usize {
    1 + text.len() % 23
}

fn voices() -> Vec<VoiceInfo> {
    let voice =
        |id: &str| VoiceInfo { id: id.into(), language: "en-US".into(), description: "a tone".into() };
    ["one", "two"].map(voice).to_vec()
}

/// The segment that pass `pass` hears: the second it belongs to.
fn segment(pass: usize) -> Segment {
    let (start_s, text) = (pass as f64, format!(" word{pass}"));
    let word = Word { text: text.clone(), start_s, end_s: start_s + 0.5, probability: 0.9 };
    let tokens = vec![pass as u32];
    Segment {
        window_start_s: start_s,
        start_s,
        end_s: start_s + 1.0,
        text,
        tokens,
        words: vec![word],
        ..Segment::default()
    }
}

/// Pieces of `text` that become units: sentences ending in a full stop.
fn sentences(text: &str) -> Vec<usize> {
    text.split_inclusive('.').map(|part| part.trim().len()).filter(|&len| len > 0).collect()
}

fn mix(a: u64, b: u64) -> u64 {
    let mut x = a.rotate_left(25) ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 31)
}

/// A sample value in −1.0..1.0 that only `token`, `seed` and `index` decide.
fn sample(token: u64, seed: u64, index: usize) -> f32 {
    (mix(mix(token, seed), index as u64) >> 40) as f32 / (1u64 << 23) as f32 - 1.0
}

impl SimulatedExecutor {
    /// An executor for the given engine settings.
    pub fn new(config: &EngineCoreConfig, model: SimulatedModel) -> Self {
        let speaks =
            if model.converses { vec![TaskType::Tts, TaskType::AudioChat] } else { vec![TaskType::Tts] };
        let profile = Arc::new(ExecutorProfile {
            model: config.model.clone(),
            device: "simulated".to_owned(),
            sample_rate: model.sample_rate,
            heard_rate: if model.converses { 16_000 } else { model.sample_rate },
            tasks: if model.listens { vec![TaskType::Asr] } else { speaks },
            voices: if model.listens { Vec::new() } else { voices() },
            kv_block_bytes: 16 * config.block_size,
            speed_range: Some((0.25, 4.0)),
            takes_instructions: model.clones,
            languages: if model.listens { vec!["en".to_owned(), "de".to_owned()] } else { Vec::new() },
            translates: model.listens,
            clones_voices: model.clones,
            memory_bytes: 0,
            step_bytes: 0,
            part_times: PartTimes::default(),
            state_bytes: 0,
            default_params: GenerationParams::default(),
        });
        let pool = vec![0; config.max_blocks * config.block_size];
        Self { model, profile, block_size: config.block_size, pool, sequences: HashMap::new() }
    }

    fn run_item(&mut self, item: &ScheduledRequest) -> ItemResult {
        let missing = || ExecutorError(format!("sequence {} is unknown", item.sequence.0));
        let mut running = self.sequences.remove(&item.sequence).ok_or_else(missing)?;
        let result = if self.model.autoregressive {
            self.run_tokens(&mut running, item)
        } else {
            self.run_unit(&running, item)
        };
        self.sequences.insert(item.sequence, running);
        result
    }

    fn run_unit(&self, running: &Running, item: &ScheduledRequest) -> ItemResult {
        let size = running.units.get(item.start).copied();
        if size != Some(item.num_tokens) {
            return Err(ExecutorError(format!("unit {} has not {} tokens", item.start, item.num_tokens)));
        }
        let count = item.num_tokens * self.model.samples_per_token;
        Ok(ExecutorOutput {
            samples: (0..count).map(|i| sample(item.start as u64, running.seed, i)).collect(),
            generated_tokens: item.num_tokens,
            finished: item.start + 1 == running.units.len(),
            ..ExecutorOutput::default()
        })
    }

    /// One token more, behind those that `state` stands for.
    fn generate(&self, running: &mut Running, state: u64) -> ExecutorOutput {
        let mut output = ExecutorOutput { generated_tokens: 1, ..ExecutorOutput::default() };
        let mut count = if self.model.listens { 0 } else { self.model.samples_per_token };
        let mut token = state;
        if running.converses {
            let said = conversing::emission(state, running.tokens.len() - running.prompt_len);
            if let Emission::Token(id) = said {
                output.text = conversing::word(id);
                count = 0;
            }
            token = conversing::key(&said);
            (output.content_key, output.emission) = (Some(token), Some(said));
        }
        running.tokens.push(token);
        output.samples = (0..count).map(|i| sample(state, running.seed, i)).collect();
        output
    }

    fn run_tokens(&mut self, running: &mut Running, item: &ScheduledRequest) -> ItemResult {
        let end = item.start + item.num_tokens;
        if end > running.tokens.len() || end > item.block_table.len() * self.block_size {
            return Err(ExecutorError(format!("positions up to {end} are not there")));
        }
        let mut state = 0;
        for (position, &token) in running.tokens[..end].iter().enumerate() {
            state = mix(state, token);
            let block = item.block_table[position / self.block_size] as usize;
            let slot = &mut self.pool[block * self.block_size + position % self.block_size];
            if position >= item.start {
                *slot = state;
            } else if *slot != state {
                return Err(ExecutorError(format!("kv of position {position} is corrupt")));
            }
        }
        if end < running.tokens.len() {
            return Ok(ExecutorOutput::default());
        }
        let mut output = self.generate(running, state);
        let generated = running.tokens.len() - running.prompt_len;
        if self.model.watchdog.is_some_and(|limit| generated >= limit && generated < running.length) {
            (output.finished, output.runaway) = (true, true);
        } else if generated >= running.length {
            if self.model.listens {
                let heard = segment(running.pass);
                output.text.clone_from(&heard.text);
                output.segments.push(heard);
                output.language = Some("en".to_owned());
            }
            output.finished = running.pass + 1 >= running.passes;
            output.next_pass = (!output.finished).then(|| running.begin_pass(state));
        }
        Ok(output)
    }
}

impl ModelExecutor for SimulatedExecutor {
    fn profile(&self) -> Arc<ExecutorProfile> {
        Arc::clone(&self.profile)
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        let SimulatedModel { autoregressive, clones, passes, .. } = self.model;
        let (model, heard_rate) = (self.profile.model.clone(), self.profile.heard_rate);
        Arc::new(SimulatedPreparer { model, autoregressive, clones, passes, heard_rate })
    }

    fn initialize(&mut self) -> std::result::Result<(), ExecutorError> {
        std::thread::sleep(self.model.warm_up_time);
        Ok(())
    }

    fn execute(&mut self, plan: &StepPlan) -> std::result::Result<Vec<ItemResult>, ExecutorError> {
        for new in &plan.new_sequences {
            let Some(Job { length, passes, converses, trace }) = new.prepared.payload.downcast_ref::<Job>()
            else {
                return Err(ExecutorError("payload of another executor".to_owned()));
            };
            let (tokens, units) = match &new.prepared.work {
                PreparedWork::Units(units) => (Vec::new(), Arc::clone(units)),
                PreparedWork::Autoregressive { prompt, .. } => {
                    (prompt.to_vec(), Arc::new([]) as Arc<[usize]>)
                }
            };
            let running = Running {
                prompt_len: tokens.len(),
                tokens,
                length: *length,
                seed: new.params.seed.unwrap_or_default() ^ trace,
                units,
                pass: 0,
                passes: *passes,
                converses: *converses,
            };
            self.sequences.insert(new.sequence, running);
        }
        let fault = self.model.script.as_mut().and_then(|script| script(plan));
        if !self.model.step_time.is_zero() {
            std::thread::sleep(self.model.step_time);
        }
        match fault {
            Some(Fault::Step) => return Err(ExecutorError("the step was made to fail".to_owned())),
            #[allow(clippy::panic, reason = "tests of the engine need an executor that panics")]
            Some(Fault::Panic) => panic!("the executor was made to panic"),
            Some(Fault::Sequence(_)) | None => {}
        }
        for copy in &plan.schedule.block_copies {
            let (from, to) = (copy.from as usize * self.block_size, copy.to as usize * self.block_size);
            self.pool.copy_within(from..from + self.block_size, to);
        }
        Ok(plan
            .schedule
            .items()
            .map(|item| match fault {
                Some(Fault::Sequence(id)) if id == item.sequence => {
                    Err(ExecutorError("the sequence was made to fail".to_owned()))
                }
                _ => self.run_item(item),
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

struct SimulatedPreparer {
    model: String,
    autoregressive: bool,
    clones: bool,
    passes: usize,
    heard_rate: u32,
}

impl RequestPreparer for SimulatedPreparer {
    fn prepare(
        &self,
        request: &EngineCoreRequest,
        decoded: Decoded,
        params: &GenerationParams,
    ) -> Result<PreparedRequest> {
        let Decoded { audio, reference, turns } = decoded;
        if request.task_type == TaskType::AudioChat {
            let (prompt, said) = conversing::prompt(&turns);
            let work = PreparedWork::Autoregressive { prompt: prompt.into(), encoder_tokens: 0 };
            let job = Job { length: 6 + said, passes: 1, converses: true, trace: 0 };
            return Ok(PreparedRequest { work, payload: Arc::new(job) });
        }
        let trace = match self.clones {
            true => cloning::trace(&self.model, request, reference.as_ref(), params)?,
            false => 0,
        };
        let seconds = audio.map(|samples| samples.len().div_ceil(self.heard_rate as usize));
        let text = match seconds {
            Some(seconds) => format!("{seconds} seconds"),
            None => request.text.clone().unwrap_or_default(),
        };
        let work = if self.autoregressive {
            PreparedWork::Autoregressive { prompt: text.bytes().map(u64::from).collect(), encoder_tokens: 0 }
        } else {
            PreparedWork::Units(sentences(&text).into())
        };
        let passes = seconds.unwrap_or(self.passes);
        let job = Job { length: natural_length(&text), passes, converses: false, trace };
        Ok(PreparedRequest { work, payload: Arc::new(job) })
    }

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>> {
        cloning::pack(&self.model, recording)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<()> {
        cloning::unpack(&self.model, pack).map(drop)
    }
}
