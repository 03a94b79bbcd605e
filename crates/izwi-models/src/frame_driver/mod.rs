//! The driver of models that generate speech frame by frame: one language-model step for all sequences, and the codec
//! decode of their frames in chunks.
//!
//! Owns the passes of a request, chunking, the overlap of codec and language model, the watchdog, and the erasure of
//! states. Knows no architecture and not what a frame is.

mod decode_buffer;
mod frame_model;
mod overlap;
#[cfg(test)]
mod tests;
mod watchdog;

use std::sync::Arc;

use candle_core::Device;
use izwi_kernels::threads::num_threads;
use izwi_nn::Error;
use izwi_nn::device::decodes_in_parallel;
use izwi_nn::kv_pool::{KvLayout, KvPool};
use izwi_types::{
    Input, InputError, ModelInfo, PartTimes, PrepareLimits, Prepared, StepOutput, TextProgress,
    VoiceRecording, Work,
};

use self::decode_buffer::{DecodeBuffer, MAX_FRAMES_PER_CHUNK, MAX_FRAMES_PER_TOKEN};
use crate::model::{BatchEntry, EntryResult, SequenceState, SpeechModel, takes_text_whole};

pub(crate) use self::decode_buffer::max_frames;
pub(crate) use self::frame_model::{
    ChunkPolicy, CodecInfo, FrameCodec, FrameModel, FrameOf, Outcome, PassLimits, PassPlan, Plan, StepEntry,
    StepResult, StreamInput, check_positions, pass_seed,
};

/// A frame model as a [`SpeechModel`].
#[derive(Debug)]
pub(crate) struct FrameDriver<F> {
    pub(crate) model: F,
    /// Whether frames may be decoded alongside the next step.
    pub(crate) overlaps: bool,
}

/// Everything about a running request that changes.
pub(crate) struct RequestState<F: FrameModel> {
    /// Index of the running pass.
    pass: usize,
    /// The family's state of that pass.
    pub(crate) state: F::State,
    /// Positions generated in that pass.
    generated: usize,
    pub(crate) buffer: DecodeBuffer<F::Codec>,
}

/// One sequence of a batch.
struct Sequence<'a, F: FrameModel> {
    /// Its place in the batch.
    place: usize,
    plan: &'a Plan<F>,
    pass: &'a PassPlan<F::Pass>,
    request: &'a mut RequestState<F>,
    start: usize,
    end: usize,
    begins: bool,
    block_table: &'a [u32],
}

/// What a step leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing is decoded.
    Continue,
    /// The pending frames complete a chunk.
    Decode,
    /// The engine ends the pass after this position: all pending frames are decoded and the codec's stream finishes.
    Flush,
    /// The pass is over: as [`Self::Flush`], then the next pass starts.
    End,
}

impl<F: FrameModel> FrameDriver<F> {
    /// Drives `model`, whose weights are on `device`.
    pub(crate) fn new(model: F, device: &Device) -> Self {
        Self { model, overlaps: decodes_in_parallel(device) }
    }

    /// A plan as schedulable work. A plan without passes is one unit of work that finishes at once.
    pub(crate) fn prepared(plan: Plan<F>) -> Prepared {
        let work = plan.passes.first().map_or_else(|| Work::Units(Arc::new([1])), PassPlan::work);
        Prepared::new(work, Arc::new(plan))
    }

    /// The language-model step of all sequences, and the samples of the deferred frames of those that have any.
    #[expect(clippy::type_complexity, reason = "two lists, of which one use is made")]
    fn generate(
        &self,
        kv: &mut KvPool,
        sequences: &mut [Sequence<'_, F>],
    ) -> Result<(Vec<StepResult<FrameOf<F>>>, Vec<Vec<f32>>), Error> {
        let (mut entries, mut deferred) = (Vec::with_capacity(sequences.len()), Vec::new());
        for sequence in sequences {
            let RequestState { state, buffer, .. } = &mut *sequence.request;
            deferred.extend(buffer.deferred());
            entries.push(StepEntry {
                request: &sequence.plan.request,
                pass: &sequence.pass.pass,
                state,
                start: sequence.start,
                end: sequence.end,
                begins: sequence.begins,
                block_table: sequence.block_table,
            });
        }
        let step = || self.model.step(kv, &mut entries);
        let decode = (!deferred.is_empty()).then_some(|| self.model.codec().decode(&mut deferred));
        overlap::run(self.model.part_times(), F::CODEC_PART, step, decode)
    }

    /// Accounts for the results of a step. Returns the sequences whose pending frames are decoded now.
    fn accept<'a>(
        &self,
        sequences: Vec<Sequence<'a, F>>,
        results: Vec<StepResult<FrameOf<F>>>,
        deferred: Vec<Vec<f32>>,
        outputs: &mut [EntryResult],
    ) -> Vec<(Sequence<'a, F>, Next)> {
        let can_overlap = self.overlaps && num_threads() > 1;
        let (mut due, mut deferred) = (Vec::new(), deferred.into_iter());
        for (mut sequence, result) in sequences.into_iter().zip(results) {
            let Ok(output) = &mut outputs[sequence.place] else { continue };
            if sequence.request.buffer.has_deferred() {
                output.samples = deferred.next().unwrap_or_default();
                if self.take_samples(&mut sequence, &mut output.samples) {
                    output.generated_tokens = 1;
                    self.end_pass(&mut sequence, output);
                    continue;
                }
            }
            let policy = &sequence.plan.chunk_policy;
            match sequence.take(result, &self.model.codec().info(), output) {
                Next::Continue => {}
                Next::Decode
                    if can_overlap
                        && sequence.request.buffer.may_defer(policy)
                        && self.model.has_text(&sequence.pass.pass, &sequence.request.state) =>
                {
                    sequence.request.buffer.defer();
                }
                next => due.push((sequence, next)),
            }
        }
        due
    }

    /// Starts the streams of the sequences that have none and need one. Those whose stream does not start fail.
    fn start_streams(&self, due: &mut Vec<(Sequence<'_, F>, Next)>, outputs: &mut [EntryResult]) {
        due.retain_mut(|(sequence, _)| {
            let DecodeBuffer { stream, pending, .. } = &mut sequence.request.buffer;
            if stream.is_some() || pending.is_empty() {
                return true;
            }
            match self.model.start_stream(&sequence.plan.request) {
                Ok(started) => *stream = Some(started),
                Err(error) => outputs[sequence.place] = Err(error),
            }
            stream.is_some()
        });
    }

    /// Decodes the pending frames of all sequences in one pass; streams that end yield their last samples.
    fn decode(&self, due: &mut [(Sequence<'_, F>, Next)]) -> Result<Vec<Vec<f32>>, Error> {
        let codec = self.model.codec();
        let mut samples = vec![Vec::new(); due.len()];
        let (mut batch, mut places) = (Vec::new(), Vec::new());
        for (place, (sequence, _)) in due.iter_mut().enumerate() {
            let DecodeBuffer { stream, pending, .. } = &mut sequence.request.buffer;
            if let Some(stream) = stream.as_mut().filter(|_| !pending.is_empty()) {
                batch.push((stream, pending.as_slice()));
                places.push(place);
            }
        }
        if !batch.is_empty() {
            let decoded = self.model.part_times().time(F::CODEC_PART, || codec.decode(&mut batch))?;
            places.into_iter().zip(decoded).for_each(|(place, decoded)| samples[place] = decoded);
        }
        for ((sequence, next), samples) in due.iter_mut().zip(&mut samples) {
            if *next != Next::Decode
                && let Some(stream) = &mut sequence.request.buffer.stream
            {
                samples.extend(codec.finish(stream));
            }
        }
        Ok(samples)
    }

    /// Whether the watchdog ends the pass with these samples, which it may cut.
    fn take_samples(&self, sequence: &mut Sequence<'_, F>, samples: &mut Vec<f32>) -> bool {
        let spoken = self.model.spoken_tokens(&sequence.pass.pass, &sequence.request.state);
        let max_frames = sequence.pass.max_frames.map(|planned| planned + MAX_FRAMES_PER_TOKEN * spoken);
        sequence.request.buffer.take_samples(self.model.codec(), max_frames, samples)
    }

    /// Ends the pass: starts the next one, or finishes the request.
    fn end_pass(&self, sequence: &mut Sequence<'_, F>, output: &mut StepOutput) {
        let Sequence { plan, pass, request, .. } = sequence;
        self.model.finish_pass(&plan.request, &pass.pass, &mut request.state, output);
        let next = request.pass + 1;
        if let Some(pass) = plan.passes.get(next) {
            output.next_pass = Some(pass.work());
            request.state = self.model.start(&plan.request, &pass.pass);
            (request.pass, request.generated) = (next, 0);
            request.buffer.next_pass();
        } else {
            output.finished = true;
            output.runaway = request.buffer.ran_away;
        }
    }
}

impl<'a, F: FrameModel> Sequence<'a, F> {
    /// The typed form of a batch entry; `None` for a plan without passes. The only downcasts of frame models.
    fn of(place: usize, entry: &'a mut BatchEntry<'_>) -> Result<Option<Self>, Error> {
        const FOREIGN: Error = Error::Internal("an entry was prepared by another family");
        let plan = entry.prepared.payload.downcast_ref::<Plan<F>>().ok_or(FOREIGN)?;
        if plan.passes.is_empty() {
            return Ok(None);
        }
        let request = entry.state.downcast_mut::<RequestState<F>>().ok_or(FOREIGN)?;
        let unknown = Error::Internal("an entry is in a pass that does not exist");
        let pass = plan.passes.get(request.pass).ok_or(unknown)?;
        let (start, end) = (entry.start, entry.start + entry.num_tokens);
        let (begins, block_table) = (entry.begins, entry.block_table);
        Ok(Some(Self { place, plan, pass, request, start, end, begins, block_table }))
    }

    /// Accounts for the result of a step.
    fn take(&mut self, result: StepResult<FrameOf<F>>, info: &CodecInfo, output: &mut StepOutput) -> Next {
        let StepResult { outcome, text, emission, content_key } = result;
        let ended = match outcome {
            Outcome::Pending => return Next::Continue,
            Outcome::End => true,
            Outcome::Runaway => {
                self.request.buffer.ran_away = true;
                true
            }
            Outcome::Token => false,
            Outcome::Frame(frame) => {
                self.request.buffer.pending.push(frame);
                false
            }
        };
        output.generated_tokens = 1;
        output.text.push_str(&text);
        (output.emission, output.content_key) = (emission, content_key);
        self.request.generated += 1;
        let generated = self.request.generated;
        let limits = &self.plan.limits;
        if ended {
            Next::End
        } else if self.pass.max_positions.is_some_and(|most| generated >= most) {
            self.request.buffer.ran_away = true;
            Next::End
        } else if generated >= limits.max_generated(self.pass.prompt_keys.len()) {
            if limits.starts_next_pass { Next::End } else { Next::Flush }
        } else if self.request.buffer.is_due(&self.plan.chunk_policy, info) {
            Next::Decode
        } else {
            Next::Continue
        }
    }
}

impl<F: FrameModel> SpeechModel for FrameDriver<F> {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }

    fn kv_layout(&self) -> Option<KvLayout> {
        self.model.kv_layout()
    }

    fn prepare(&self, input: &Input, limits: &PrepareLimits) -> Result<Prepared, InputError> {
        self.model.plan(input, limits).map(Self::prepared)
    }

    fn append_text(
        &self,
        prepared: &Prepared,
        text: &str,
        is_last: bool,
    ) -> Result<TextProgress, InputError> {
        let plan = prepared.payload.downcast_ref::<Plan<F>>();
        let pass = plan.and_then(|plan| plan.passes.first()).ok_or_else(takes_text_whole)?;
        self.model.append_text(&pass.pass, text, is_last)
    }

    fn start(&self, prepared: &Prepared) -> SequenceState {
        let plan = prepared.payload.downcast_ref::<Plan<F>>();
        let Some((plan, pass)) = plan.and_then(|plan| Some((plan, plan.passes.first()?))) else {
            return Box::new(());
        };
        let state = self.model.start(&plan.request, &pass.pass);
        Box::new(RequestState::<F> { pass: 0, state, generated: 0, buffer: DecodeBuffer::default() })
    }

    fn forward(&self, kv: &mut KvPool, batch: &mut [BatchEntry<'_>]) -> Result<Vec<EntryResult>, Error> {
        let mut outputs: Vec<EntryResult> = Vec::with_capacity(batch.len());
        let mut sequences = Vec::with_capacity(batch.len());
        for (place, entry) in batch.iter_mut().enumerate() {
            let sequence = Sequence::<F>::of(place, entry).and_then(|sequence| match &sequence {
                Some(s) => self.model.check(&s.pass.pass, &s.request.state, s.end).map(|()| sequence),
                None => Ok(sequence),
            });
            let finished = matches!(sequence, Ok(None));
            outputs.push(match sequence {
                Ok(sequence) => {
                    sequences.extend(sequence);
                    Ok(StepOutput { finished, ..StepOutput::default() })
                }
                Err(error) => Err(error),
            });
        }
        if sequences.is_empty() {
            return Ok(outputs);
        }
        let (results, deferred) = self.generate(kv, &mut sequences)?;
        let mut due = self.accept(sequences, results, deferred, &mut outputs);
        self.start_streams(&mut due, &mut outputs);
        let samples = self.decode(&mut due)?;
        for ((mut sequence, next), mut samples) in due.into_iter().zip(samples) {
            let ran_away = self.take_samples(&mut sequence, &mut samples);
            let Ok(output) = &mut outputs[sequence.place] else { continue };
            output.samples.append(&mut samples);
            if ran_away || next == Next::End {
                self.end_pass(&mut sequence, output);
            }
        }
        Ok(outputs)
    }

    fn make_voice(&self, recording: &VoiceRecording) -> Result<Vec<u8>, InputError> {
        self.model.make_voice(recording)
    }

    fn check_voice(&self, pack: &[u8]) -> Result<(), InputError> {
        self.model.check_voice(pack)
    }

    fn step_bytes(&self, chunk_samples: usize) -> usize {
        let CodecInfo { samples_per_frame, decoder_bytes, .. } = self.model.codec().info();
        let frames = chunk_samples as f64 / samples_per_frame as f64;
        let frames_per_chunk = frames.clamp(1.0, MAX_FRAMES_PER_CHUNK as f64);
        self.model.step_bytes() + (decoder_bytes as f64 / frames_per_chunk) as usize
    }

    fn part_times(&self) -> PartTimes {
        self.model.part_times().clone()
    }

    fn warm_up_input(&self) -> Input {
        self.model.warm_up_input()
    }
}
