//! Runs networks of candle-transformers, which keep a cache of their own, as [`SpeechModel`]s.
//!
//! One token of one sequence at a time: the sequences of a step are computed one after another, their caches are whole
//! tensors in their states, and prompts are computed in one step. Knows no network.

use std::sync::Arc;

use candle_core::{DType, Device};
use izwi_nn::Error;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{Input, InputError, ModelInfo, Precision, PrepareLimits, Prepared, StepOutput, Work};

use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel};

/// A network with a cache of its own.
pub(crate) trait SequentialModel: Send + Sync {
    /// A prepared input.
    type Request: Send + Sync + 'static;
    /// One running pass: the cache, and what was generated.
    type Pass: Send + 'static;

    /// Static facts.
    fn info(&self) -> &ModelInfo;

    /// Checks an input. Runs on a blocking thread.
    ///
    /// # Errors
    /// The input cannot be taken; the error names the field, the value and the remedy.
    fn prepare(&self, input: &Input) -> Result<Self::Request, InputError>;

    /// Passes of a request, each with a prompt of its own; 0 if there is nothing to compute.
    fn passes(&self, request: &Self::Request) -> usize;

    /// The most steps of a pass, and the tokens of its prompt, which the first step computes.
    fn pass_size(&self, request: &Self::Request, pass: usize) -> (usize, usize);

    /// Begins a pass.
    ///
    /// # Errors
    /// The device is out of memory.
    fn begin(&self, request: &Self::Request, pass: usize) -> Result<Self::Pass, Error>;

    /// Computes the next step: of the first one, the prompt. [`StepOutput::finished`] ends the pass.
    ///
    /// # Errors
    /// An operation failed.
    fn step(&self, request: &Self::Request, pass: &mut Self::Pass) -> Result<StepOutput, Error>;

    /// An input that touches every kernel once.
    fn warm_up_input(&self) -> Input;
}

/// The type of the weights: candle-transformers has no packed ones for these networks. On the CPU candle multiplies bf16
/// slower than f32.
pub(crate) fn weight_dtype(precision: Precision, device: &Device) -> DType {
    match precision {
        Precision::F32 => DType::F32,
        Precision::F16 => DType::F16,
        Precision::Auto | Precision::Bf16 | Precision::Q8 | Precision::Q4 if device.is_cpu() => DType::F32,
        Precision::Auto | Precision::Bf16 | Precision::Q8 | Precision::Q4 => DType::BF16,
    }
}

/// A [`SequentialModel`] as a [`SpeechModel`].
pub(crate) struct Sequential<M>(pub(crate) M);

/// The state of a sequence.
struct Running<P> {
    /// Index of the pass.
    pass: usize,
    /// Next step of the pass.
    next: usize,
    /// The pass, once it has begun.
    running: Option<P>,
}

/// What the scheduler is told.
struct Request<R> {
    request: R,
    max_tokens_per_step: usize,
}

impl<M: SequentialModel> Sequential<M> {
    fn work(&self, request: &Request<M::Request>, pass: usize) -> Work {
        if pass >= self.0.passes(&request.request) {
            return Work::Units([1].into());
        }
        let (steps, prompt) = self.0.pass_size(&request.request, pass);
        let mut units = vec![1; steps.max(1)];
        units[0] = prompt.clamp(1, request.max_tokens_per_step.max(1));
        Work::Units(units.into())
    }

    fn step(
        &self,
        request: &Request<M::Request>,
        state: &mut Running<M::Pass>,
        start: usize,
    ) -> Result<StepOutput, Error> {
        if state.pass >= self.0.passes(&request.request) {
            return Ok(StepOutput { finished: true, ..StepOutput::default() });
        }
        if state.next != start {
            return Err(Error::Internal("an entry asks for a step that is not the next"));
        }
        let running = match &mut state.running {
            Some(running) => running,
            empty => empty.insert(self.0.begin(&request.request, state.pass)?),
        };
        let mut output = self.0.step(&request.request, running)?;
        state.next += 1;
        let is_last = state.next >= self.0.pass_size(&request.request, state.pass).0;
        if output.finished || is_last {
            *state = Running { pass: state.pass + 1, next: 0, running: None };
            let more = state.pass < self.0.passes(&request.request);
            output.next_pass = more.then(|| self.work(request, state.pass));
            output.finished = !more;
        }
        Ok(output)
    }
}

impl<M: SequentialModel> SpeechModel for Sequential<M> {
    fn info(&self) -> &ModelInfo {
        self.0.info()
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        None
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        let request =
            Request { request: self.0.prepare(input)?, max_tokens_per_step: limits.max_tokens_per_step };
        Ok(Prepared::new(self.work(&request, 0), Arc::new(request)))
    }

    fn start(&self, _prepared: &Prepared) -> SequenceState {
        Box::new(Running::<M::Pass> { pass: 0, next: 0, running: None })
    }

    fn forward(&self, _kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let outputs = batch.iter_mut().map(|entry| {
            let foreign = Error::Internal("an entry was prepared by another family");
            let Some(request) = entry.prepared.payload.downcast_ref::<Request<M::Request>>() else {
                return Err(foreign);
            };
            let Some(state) = entry.state.downcast_mut::<Running<M::Pass>>() else { return Err(foreign) };
            self.step(request, state, entry.start)
        });
        Ok(outputs.collect())
    }

    fn warm_up_input(&self) -> Input {
        self.0.warm_up_input()
    }
}
