//! Runs a model alone on its warm-up input: to touch every kernel once, and to measure its speed and compare its output on
//! two devices.
//!
//! Knows no engine, and of devices only where the pool of a measurement goes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use izwi_nn::device::Device;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::mix;
use izwi_types::{PrepareLimits, Prepared, StepOutput, Work};

use crate::error::WarmUpError;
use crate::model::{BatchEntry, SequenceState, SpeechModel};

/// The most positions of a run.
pub const POSITIONS: usize = 512;
/// The most steps of a run: enough for a prompt and some tokens of each kind of pass.
const STEPS: usize = 12;
/// Runs of a measurement after one that is not measured; the fastest counts.
const MEASURED_RUNS: usize = 2;
/// Positions in a block of the pool of a measurement.
const BLOCK_SIZE: usize = 16;

/// Samples of a window of loudness: 20 ms at 24 kHz.
const WINDOW: usize = 480;
/// The least correlation of the loudness of two renderings of one text.
const LEAST_CORRELATION: f32 = 0.5;
/// Root mean square below which a rendering is silent.
const SILENCE: f32 = 1e-4;

/// What a model did on a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Steps per second: the prompt, its encoder, and the frames, tokens or units after it. One-time costs, such as the
    /// compilation of kernels, do not count.
    pub steps_per_second: f64,
    /// Mono samples that it generated.
    samples: Vec<f32>,
    /// Whether nothing is drawn: every device renders the same.
    is_exact: bool,
}

/// Steps and their time, without the preparation of the input.
struct Run {
    /// Steps; one of them computed the prompt.
    steps: usize,
    /// Time of all steps.
    time: Duration,
    samples: Vec<f32>,
    has_units: bool,
}

/// Runs the warm-up input for some steps, in the blocks of `block_table`, which hold up to [`POSITIONS`] positions.
fn run(
    model: &dyn SpeechModel,
    pool: &mut KvPool,
    block_table: &[u32],
    limits: &PrepareLimits,
) -> Result<Run, WarmUpError> {
    let mut steps = Steps::new(model, limits)?;
    let has_units = matches!(steps.work, Some(Work::Units(_)));
    let begun = Instant::now();
    while steps.next(model, pool, block_table)?.is_some() {}
    Ok(Run { steps: steps.steps, time: begun.elapsed(), samples: steps.samples, has_units })
}

impl Measured {
    /// Why this output is none of the model, compared with the one on a device that can be trusted; `None` if it may be.
    /// Devices round differently, so where tokens are drawn the outputs may be other speech: then only noise that is not
    /// a number and unexpected silence are told.
    pub fn fault(&self, trusted: &Self) -> Option<&'static str> {
        if self.samples.iter().any(|sample| !sample.is_finite()) {
            return Some("its output is not a number");
        }
        if rms(&trusted.samples) > SILENCE && rms(&self.samples) < SILENCE {
            return Some("its output is silent");
        }
        let differs = || {
            let [ours, theirs] = [self, trusted].map(Self::loudness);
            correlation(&ours, &theirs).is_some_and(|correlation| correlation < LEAST_CORRELATION)
        };
        (self.is_exact && trusted.is_exact && differs()).then_some("its output is not that of the CPU")
    }

    /// The loudness of each window.
    fn loudness(&self) -> Vec<f32> {
        self.samples.chunks(WINDOW).map(rms).collect()
    }
}

fn rms(samples: &[f32]) -> f32 {
    let squares: f32 = samples.iter().map(|sample| sample * sample).sum();
    (squares / samples.len().max(1) as f32).sqrt()
}

/// The correlation of the values that both have; `None` where one of them does not change.
fn correlation(a: &[f32], b: &[f32]) -> Option<f32> {
    let both = a.len().min(b.len());
    let centred = |x: &[f32]| {
        let mean = x[..both].iter().sum::<f32>() / both.max(1) as f32;
        x[..both].iter().map(|value| value - mean).collect::<Vec<f32>>()
    };
    let (a, b) = (centred(a), centred(b));
    let product = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let scale = (product(&a, &a) * product(&b, &b)).sqrt();
    (scale > 0.0).then(|| product(&a, &b) / scale)
}

/// The work of one step of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepWork {
    /// Tokens of its entry.
    pub tokens: usize,
    /// Tokens of the encoders before it.
    pub encoder_tokens: usize,
    /// Whether the entry is a prompt or a unit.
    pub is_prompt: bool,
    /// Whether it generates a token.
    pub generates: bool,
}

/// A run, one step at a time.
pub struct Steps {
    prepared: Prepared,
    state: SequenceState,
    /// `None` once the run is over.
    work: Option<Work>,
    start: usize,
    steps: usize,
    samples: Vec<f32>,
}

impl std::fmt::Debug for Steps {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Steps").field("steps", &self.steps).finish_non_exhaustive()
    }
}

impl Steps {
    /// A run that has not begun.
    ///
    /// # Errors
    /// The model rejects its own input.
    pub fn new(model: &dyn SpeechModel, limits: &PrepareLimits) -> Result<Self, WarmUpError> {
        let prepared = model.prepare(&model.warm_up_input(), limits)?;
        let (state, work) = (model.start(&prepared), Some(prepared.work.clone()));
        Ok(Self { prepared, state, work, start: 0, steps: 0, samples: Vec::new() })
    }

    /// Runs the next step, in the blocks of `block_table`. Returns its work; `None` if the run is over.
    ///
    /// # Errors
    /// The step failed.
    pub fn next(
        &mut self,
        model: &dyn SpeechModel,
        pool: &mut KvPool,
        block_table: &[u32],
    ) -> Result<Option<StepWork>, izwi_nn::Error> {
        let Some(work) = self.work.clone().filter(|_| self.steps < STEPS) else { return Ok(None) };
        let Some(num_tokens) = entry_size(&work, self.start) else { return Ok(None) };
        let begins = self.start == 0;
        let entry = BatchEntry {
            prepared: &self.prepared,
            state: &mut self.state,
            start: self.start,
            begins,
            num_tokens,
            block_table,
            branch_tables: &[],
        };
        let outputs = model.forward(pool, &mut [entry])?;
        // An encoder has a part for each of its layers.
        self.steps += usize::from(!matches!(work, Work::Encoder(_)));
        let mut output = outputs.into_iter().next().transpose()?;
        if let Some(output) = &mut output {
            self.samples.append(&mut output.samples);
        }
        match output {
            Some(StepOutput { finished: false, next_pass: Some(next), .. }) => {
                (self.work, self.start) = (Some(next), 0);
            }
            Some(StepOutput { finished: false, .. }) => {
                self.start = next_start(&work, self.start, num_tokens);
            }
            Some(_) | None => self.work = None,
        }
        Ok(Some(step_work(&work, num_tokens, begins)))
    }
}

fn step_work(work: &Work, tokens: usize, begins: bool) -> StepWork {
    match work {
        Work::Units(_) | Work::Chunks { .. } => {
            StepWork { tokens, encoder_tokens: 0, is_prompt: true, generates: false }
        }
        Work::Encoder(_) => {
            StepWork { tokens: 0, encoder_tokens: tokens, is_prompt: false, generates: false }
        }
        Work::Autoregressive { encoders, .. } => {
            let encoder_tokens = if begins { encoders.iter().map(|encoder| encoder.tokens).sum() } else { 0 };
            StepWork { tokens, encoder_tokens, is_prompt: begins, generates: true }
        }
    }
}

/// Tokens of the entry at `start`: a unit, the prompt, or one decoded token.
fn entry_size(work: &Work, start: usize) -> Option<usize> {
    match work {
        Work::Units(units) | Work::Encoder(units) => units.get(start).copied(),
        Work::Chunks { chunk, .. } => Some(*chunk),
        Work::Autoregressive { prompt, .. } if start == 0 => Some(prompt.len()),
        Work::Autoregressive { .. } => Some(1).filter(|_| start < POSITIONS),
    }
}

fn next_start(work: &Work, start: usize, num_tokens: usize) -> usize {
    match work {
        Work::Units(_) | Work::Encoder(_) => start + 1,
        Work::Autoregressive { .. } | Work::Chunks { .. } => start + num_tokens,
    }
}

/// Measures models, each with the device that it was loaded on.
pub fn measure(
    models: [(&dyn SpeechModel, &Device); 2],
    limits: &PrepareLimits,
) -> [Result<Measured, WarmUpError>; 2] {
    models.map(|(model, device)| measured(model, device, limits))
}

fn measured(
    model: &dyn SpeechModel,
    device: &Device,
    limits: &PrepareLimits,
) -> Result<Measured, WarmUpError> {
    let blocks = POSITIONS.div_ceil(BLOCK_SIZE);
    let block_table: Vec<u32> = (0..blocks as u32).collect();
    let pool = KvPool::new(model.kv_layout(), blocks, BLOCK_SIZE, device).map_err(izwi_nn::Error::from);
    let mut pool = pool?;
    let Run { samples, has_units, .. } = run(model, &mut pool, &block_table, limits)?;
    let mut fastest = 0.0;
    for _ in 0..MEASURED_RUNS {
        let Run { steps, time, .. } = run(model, &mut pool, &block_table, limits)?;
        fastest = f64::max(fastest, steps as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE));
    }
    Ok(Measured { steps_per_second: fastest, samples, is_exact: has_units })
}

/// Soft white noise, the same each time.
pub(crate) fn noise(num_samples: usize) -> Arc<[f32]> {
    let uniform = |n: usize| (mix(n as u64) >> 40) as f32 / (1u64 << 24) as f32;
    (0..num_samples).map(|n| 0.1 * (uniform(n) - 0.5)).collect()
}

#[cfg(test)]
mod tests {
    use std::f32::consts::TAU;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread::sleep;

    use izwi_nn::Error;
    use izwi_nn::kv_pool::KvLayout;
    use izwi_types::{Input, InputError, ModelInfo, SpeakInput};

    use super::*;
    use crate::model::{EntryResult, SequenceState};

    const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 512 };

    /// A step takes `pause`; the first one, with the compilation of its kernels, a hundred times as long.
    struct Paused {
        pause: Duration,
        work: Work,
        steps: AtomicUsize,
        fails_at: usize,
    }

    impl Paused {
        fn new(pause_ms: u64, work: Work) -> Self {
            let pause = Duration::from_millis(pause_ms);
            Self { pause, work, steps: AtomicUsize::new(0), fails_at: usize::MAX }
        }
    }

    impl SpeechModel for Paused {
        fn info(&self) -> &ModelInfo {
            unreachable!("a run asks for no facts")
        }

        fn kv_layout(&self) -> Option<KvLayout> {
            None
        }

        fn prepare(&self, _: &Input, _: &PrepareLimits) -> Result<Prepared, InputError> {
            sleep(10 * self.pause);
            Ok(Prepared::new(self.work.clone(), Arc::new(())))
        }

        fn start(&self, _: &Prepared) -> SequenceState {
            Box::new(())
        }

        fn forward(&self, _: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
            let step = self.steps.fetch_add(1, Ordering::Relaxed);
            if step == self.fails_at {
                return Err(Error::Internal("the device is gone"));
            }
            sleep(if step == 0 { 100 * self.pause } else { self.pause });
            let output = || Ok(StepOutput { generated_tokens: 1, ..StepOutput::default() });
            Ok(batch.iter().map(|_| output()).collect())
        }

        fn warm_up_input(&self) -> Input {
            Input::Speak(SpeakInput::plain("Warm."))
        }
    }

    fn frames() -> Work {
        Work::Autoregressive { prompt: vec![0; 20].into(), encoders: Arc::new([]), branches: 1 }
    }

    fn units() -> Work {
        Work::Units(vec![4, 4, 4].into())
    }

    #[test]
    fn the_faster_model_is_told_by_its_steps_without_one_time_costs() {
        for work in [frames(), units()] {
            let (fast, slow) = (Paused::new(1, work.clone()), Paused::new(8, work.clone()));
            let device = Device::Cpu;
            let measured = measure([(&fast, &device), (&slow, &device)], &LIMITS);
            let [fast_speed, slow_speed] = measured.map(|measured| measured.unwrap().steps_per_second);
            assert!(fast_speed > 2.0 * slow_speed, "{fast_speed} and {slow_speed} steps/s");
            assert!(slow_speed <= 125.0, "{slow_speed} steps/s with 8 ms a step");
            let runs = 1 + MEASURED_RUNS;
            let of_a_run = if matches!(work, Work::Units(_)) { 3 } else { STEPS };
            assert_eq!(fast.steps.into_inner(), runs * of_a_run);
        }
    }

    #[test]
    fn a_failed_step_is_the_error_of_its_model_only() {
        let failing = Paused { fails_at: 5, ..Paused::new(0, frames()) };
        let good = Paused::new(1, frames());
        let device = Device::Cpu;
        let [failed, measured] = measure([(&failing, &device), (&good, &device)], &LIMITS);
        assert!(failed.unwrap_err().to_string().contains("the device is gone"));
        assert!(measured.unwrap().steps_per_second > 0.0);
    }

    /// A second of something like speech: a tone whose loudness comes and goes `per_second` times.
    fn speech(per_second: f32) -> Measured {
        let sample = |n: usize| {
            let at = n as f32 / 24_000.0;
            0.3 * (TAU * 200.0 * at).sin() * (0.5 - 0.5 * (TAU * per_second * at).cos())
        };
        let samples = (0..24_000).map(sample).collect();
        Measured { steps_per_second: 1.0, samples, is_exact: true }
    }

    #[test]
    fn silence_and_noise_are_faults_and_rounding_is_none() {
        let trusted = speech(4.0);
        let with = |samples: Vec<f32>| Measured { samples, ..trusted.clone() };
        let is_fault = |measured: &Measured| measured.fault(&trusted).is_some();
        let mut rounded = trusted.samples.clone();
        rounded.iter_mut().zip(noise(24_000).iter()).for_each(|(sample, noise)| *sample += 0.2 * noise);
        rounded.truncate(23_700);
        assert_eq!(with(rounded).fault(&trusted), None);
        assert!(is_fault(&with(vec![0.0; 24_000])) && is_fault(&with(Vec::new())));
        assert!(is_fault(&with(vec![f32::NAN; 24_000])));
        assert!(is_fault(&with(noise(24_000).to_vec())), "noise");
        assert!(is_fault(&speech(7.0)), "another text");
        let drawn = |measured: Measured| Measured { is_exact: false, ..measured };
        assert_eq!(drawn(speech(7.0)).fault(&drawn(speech(4.0))), None, "what is drawn may differ");
        assert!(is_fault(&drawn(with(vec![0.0; 24_000]))));
        let silent = with(Vec::new());
        assert_eq!(silent.fault(&silent), None, "a model that transcribes has no samples");
    }
}
