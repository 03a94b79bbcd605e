//! The simulated machines: engines on one device, with cost curves taken from `benches/baselines`.
//!
//! Must not know load or clients.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use izwi_core::engine::executor::simulated::{CostCurve, SimulatedExecutor, SimulatedModel, StepWork};
use izwi_core::engine::executor::{ExecutorError, ItemResult, RequestPreparer, SimulatedTime, StepPlan};
use izwi_core::engine::qos::cost::StepShape;
use izwi_core::engine::{
    DeviceArbiter, Engine, EngineCoreConfig, ExecutorProfile, ModelExecutor, SequenceId,
};

use crate::disturbance::{Disturbances, Disturbed};

/// Samples a second of all simulated audio: few, since nobody hears them.
pub(crate) const RATE_HZ: u32 = 1_250;
/// Seconds of audio in a frame.
pub(crate) const FRAME_S: f64 = 0.08;
/// Characters spoken in a second.
pub(crate) const CHARS_PER_S: f64 = 15.0;
/// Prefix of the ids of bulk requests, by which the device's time is attributed.
pub(crate) const BULK: &str = "bulk-";
/// Bytes of the state of a sequence of a large model.
const STATE_BYTES: usize = 8 << 20;

/// A machine.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Machine {
    /// Name in the report.
    pub(crate) name: &'static str,
    /// Curve of the autoregressive TTS model whose capacity defines the load.
    pub(crate) speech: CostCurve,
    /// The most sequences in a step of it.
    pub(crate) max_batch: usize,
    /// Curve of the chat model; `None` without one.
    pub(crate) chat: Option<CostCurve>,
    /// Curve of the ASR model.
    pub(crate) listens: CostCurve,
    /// Curve of the small TTS model.
    pub(crate) small: CostCurve,
    /// Share of the simulated minutes.
    pub(crate) weight: f64,
}

fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

/// A curve whose table is interpolated between measured batch sizes.
fn curve(measured: &[(usize, f64)], prompt_token_ms: f64, noise: f64) -> CostCurve {
    let largest = measured.last().map_or(0, |(batch, _)| *batch);
    let generating = (1..=largest).map(|batch| {
        let above = measured.iter().position(|(size, _)| *size >= batch).unwrap_or_default();
        let (size, time) = measured[above];
        let (before, from) = above.checked_sub(1).map_or((size, time), |index| measured[index]);
        let share = if size == before { 1.0 } else { (batch - before) as f64 / (size - before) as f64 };
        ms(from + share * (time - from))
    });
    CostCurve {
        fixed: ms(0.3),
        generating: generating.collect(),
        prompt_token: ms(prompt_token_ms),
        noise,
        ..CostCurve::default()
    }
}

/// All times of a curve, multiplied.
fn scaled(curve: &CostCurve, factor: f64) -> CostCurve {
    CostCurve {
        fixed: curve.fixed.mul_f64(factor),
        generating: curve.generating.iter().map(|time| time.mul_f64(factor)).collect(),
        prompt_token: curve.prompt_token.mul_f64(factor),
        encoder_row: curve.encoder_row.mul_f64(factor),
        ..curve.clone()
    }
}

impl Machine {
    /// The machines: a desktop processor of two cores, one of eight, a fast GPU, and a model slower than real time.
    pub(crate) fn all(noise: f64) -> Vec<Self> {
        // qwen3-tts.json, 0.6 B at Q8 on two Zen 5 cores: milliseconds of a step of 1, 2, 4 and 8 voices. Prompts are a
        // byte to a position here, a quarter of a token.
        let speech = curve(&[(1, 63.0), (2, 85.2), (4, 103.3), (8, 146.1)], 0.6, noise);
        // lfm2-audio.json, Q8; two of three steps make a frame.
        let chat = curve(&[(1, 52.0), (2, 62.0), (4, 63.5), (8, 84.0)], 1.5, noise);
        // On processors steps yield between layers: 28, 16, and 6 of the encoder.
        let (speech, chat) = (CostCurve { pieces: 28, ..speech }, CostCurve { pieces: 16, ..chat });
        // asr.json: whisper-base transcribes 30 s in 1.57 s, a third of it the encoder's 1,500 positions.
        let encoder_row = ms(0.35);
        let listens = CostCurve { encoder_row, pieces: 6, ..curve(&[(1, 12.0), (8, 30.0)], 0.2, noise) };
        // hibari.json: a real-time factor of 0.0046.
        let small = CostCurve { fixed: ms(3.0), prompt_token: ms(0.31), noise, ..CostCurve::default() };
        // qwen3-tts.json, 1.7 B in bf16.
        let large = CostCurve { pieces: 28, ..curve(&[(1, 137.0), (8, 325.0)], 1.4, noise) };
        let gpu = curve(&[(1, 9.0), (8, 14.0), (32, 45.0)], 0.02, noise);
        let gpu_listens = CostCurve { encoder_row: ms(0.01), ..curve(&[(1, 3.0), (8, 5.0)], 0.01, noise) };
        let two = Self {
            name: "2 cores",
            speech: speech.clone(),
            max_batch: 8,
            chat: None,
            listens: listens.clone(),
            small: small.clone(),
            weight: 0.4,
        };
        let eight = Self {
            name: "8 cores",
            max_batch: 24,
            speech: scaled(&speech, 1.0 / 3.0),
            chat: Some(scaled(&chat, 1.0 / 3.0)),
            listens: scaled(&listens, 1.0 / 3.0),
            weight: 0.2,
            ..two.clone()
        };
        let large = Self { name: "2 cores, 1.7 B", speech: large, weight: 0.35, ..two.clone() };
        let fast = Self {
            name: "GPU",
            speech: gpu,
            max_batch: 64,
            chat: Some(curve(&[(1, 7.0), (8, 10.0), (32, 18.0)], 0.02, noise)),
            listens: gpu_listens,
            small,
            weight: 0.05,
        };
        vec![two, eight, large, fast]
    }

    /// Live streams of the TTS model that play at once without a gap: the largest batch whose step is shorter than a frame;
    /// beyond the largest batch, sequences take turns.
    pub(crate) fn capacity(&self) -> f64 {
        let step_s = |batch: usize| {
            self.speech.mean(StepWork { generating: batch, ..StepWork::default() }).as_secs_f64()
        };
        let fits = (1..=self.max_batch).rev().find(|batch| step_s(*batch) <= FRAME_S);
        match fits {
            Some(batch) if batch == self.max_batch => batch as f64 * FRAME_S / step_s(batch),
            Some(batch) => batch as f64,
            None => FRAME_S / step_s(1),
        }
    }

    /// Whether one stream alone is generated faster than it plays.
    pub(crate) fn is_real_time(&self) -> bool {
        self.capacity() >= 1.0
    }
}

/// What the device did.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    steps: AtomicU64,
    busy_us: AtomicU64,
    bulk_us: AtomicU64,
}

impl Meter {
    /// Steps so far.
    pub(crate) fn steps(&self) -> u64 {
        self.steps.load(Ordering::Relaxed)
    }

    /// Time in steps, and the part of it for bulk requests, in seconds.
    pub(crate) fn busy_s(&self) -> (f64, f64) {
        let seconds = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as f64 / 1e6;
        (seconds(&self.busy_us), seconds(&self.bulk_us))
    }
}

/// Counts steps and their time, by class: a step's time is divided as its classes would cost alone.
struct Metered {
    inner: SimulatedExecutor,
    curve: CostCurve,
    encoder_rows: usize,
    is_autoregressive: bool,
    meter: Arc<Meter>,
    disturbed: Arc<Disturbed>,
}

impl Metered {
    fn cost_s(&self, plan: &StepPlan, is_bulk: bool) -> f64 {
        let mut work = StepWork::default();
        let items =
            plan.schedule.items().filter(|item| item.request_id.as_str().starts_with(BULK) == is_bulk);
        for item in items {
            let is_prompt = item.is_prefill || !self.is_autoregressive;
            work.prompt_tokens += if is_prompt { item.num_tokens } else { 0 };
            work.generating += usize::from(!is_prompt);
            work.encoder_rows += if item.begins { self.encoder_rows } else { 0 };
        }
        if work == StepWork::default() { 0.0 } else { self.curve.mean(work).as_secs_f64() }
    }
}

impl ModelExecutor for Metered {
    fn profile(&self) -> Arc<ExecutorProfile> {
        self.inner.profile()
    }

    fn preparer(&self) -> Arc<dyn RequestPreparer> {
        self.inner.preparer()
    }

    fn initialize(&mut self) -> Result<Option<StepShape>, ExecutorError> {
        self.inner.initialize()
    }

    fn execute(&mut self, plan: &StepPlan) -> Result<Vec<ItemResult>, ExecutorError> {
        self.inner.execute(plan)
    }

    fn simulated_time(&mut self, plan: &StepPlan) -> Option<SimulatedTime> {
        let SimulatedTime { time, pieces } = self.inner.simulated_time(plan)?;
        let time = self.disturbed.step(time);
        let (bulk, live) = (self.cost_s(plan, true), self.cost_s(plan, false));
        let bulk = time.mul_f64(bulk / (bulk + live).max(f64::MIN_POSITIVE));
        self.meter.steps.fetch_add(1, Ordering::Relaxed);
        self.meter.busy_us.fetch_add(time.as_micros() as u64, Ordering::Relaxed);
        self.meter.bulk_us.fetch_add(bulk.as_micros() as u64, Ordering::Relaxed);
        Some(SimulatedTime { time, pieces })
    }

    fn release(&mut self, sequences: &[SequenceId]) {
        self.inner.release(sequences);
    }

    fn shutdown(&mut self) {
        self.inner.shutdown();
    }
}

/// The engines of a machine.
#[derive(Debug, Clone)]
pub(crate) struct Engines {
    /// The autoregressive TTS model.
    pub(crate) speech: Engine,
    /// The chat model.
    pub(crate) chat: Option<Engine>,
    /// The ASR model.
    pub(crate) listens: Engine,
    /// The small TTS model.
    pub(crate) small: Engine,
    /// Counts of all of them.
    pub(crate) meter: Arc<Meter>,
}

/// Frames of a text: its characters, and ± 20 % by the seed.
fn frames(text: &str, seed: u64) -> usize {
    let spread = 0.8 + 0.4 * (seed % 1_000) as f64 / 1_000.0;
    ((text.len() as f64 / CHARS_PER_S / FRAME_S * spread) as usize).max(1)
}

/// A TTS model with this curve.
pub(crate) fn model(curve: &CostCurve, seed: u64) -> SimulatedModel {
    SimulatedModel {
        sample_rate: RATE_HZ,
        samples_per_token: (f64::from(RATE_HZ) * FRAME_S) as usize,
        length: frames,
        window_s: 30,
        state_bytes: STATE_BYTES,
        cost: Some(CostCurve { seed, ..curve.clone() }),
        ..SimulatedModel::default()
    }
}

/// How the engines of a run are set up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Setup {
    /// Seed of the noise.
    pub(crate) seed: u64,
    /// The most sequences in a step of the TTS model; `None` for the machine's.
    pub(crate) max_batch: Option<usize>,
    /// Whether the engine decides which live streams it accepts.
    pub(crate) admission: bool,
    /// What happens to the machine.
    pub(crate) disturbances: Disturbances,
}

/// Starts the engines of a machine on one device. Must be called within a tokio runtime whose clock is paused.
pub(crate) async fn start(machine: &Machine, setup: Setup) -> Result<Engines> {
    let (arbiter, meter) = (DeviceArbiter::new(), Arc::new(Meter::default()));
    let disturbed = Arc::new(Disturbed::new(setup.disturbances, setup.seed));
    let base = EngineCoreConfig {
        max_batch_size: setup.max_batch.unwrap_or(machine.max_batch),
        max_blocks: 8_192,
        streaming_chunk_size: RATE_HZ as usize / 5,
        admission: setup.admission,
        ..EngineCoreConfig::default()
    };
    let engine = |name: &str, model: SimulatedModel, curve: &CostCurve| -> Result<Engine> {
        let config = EngineCoreConfig { model: name.to_owned(), ..base.clone() };
        let (encoder_rows, is_autoregressive) = (model.encoder_rows, model.autoregressive);
        let inner = SimulatedExecutor::new(&config, model);
        let executor = Metered {
            inner,
            curve: curve.clone(),
            encoder_rows,
            is_autoregressive,
            meter: Arc::clone(&meter),
            disturbed: Arc::clone(&disturbed),
        };
        Ok(Engine::with_executor_on(config, Box::new(executor), &arbiter)?)
    };
    let speech = engine("speech", model(&machine.speech, setup.seed), &machine.speech)?;
    let chats = |curve: &CostCurve| {
        engine("chat", SimulatedModel { chats: true, ..model(curve, setup.seed + 1) }, curve)
    };
    let listening = SimulatedModel {
        transcribes: true,
        encoder_rows: 1_500,
        encoder_parts: 6,
        length: |_, seed| 60 + (seed % 60) as usize,
        ..model(&machine.listens, setup.seed + 2)
    };
    let small = SimulatedModel {
        autoregressive: false,
        samples_per_token: (f64::from(RATE_HZ) / CHARS_PER_S) as usize,
        state_bytes: 0,
        ..model(&machine.small, setup.seed + 3)
    };
    let engines = Engines {
        speech,
        chat: machine.chat.as_ref().map(chats).transpose()?,
        listens: engine("listens", listening, &machine.listens)?,
        small: engine("small", small, &machine.small)?,
        meter,
    };
    engines.speech.ready().await?;
    engines.listens.ready().await?;
    engines.small.ready().await?;
    if let Some(chat) = &engines.chat {
        chat.ready().await?;
    }
    Ok(engines)
}
