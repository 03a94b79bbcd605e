//! Live streams of an engine: what the scheduler, the arbiter and the admission know about them.
//!
//! Must not know samples or channels.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use izwi_types::{StepOutput, Task};
use tokio::time::Instant;

use super::{Added, EngineCore, EngineState, Refused};
use crate::engine::admission::{Candidate, Decision, Forecast, LengthModel, StreamRate};
use crate::engine::arbiter::{Due, TurnRequest};
use crate::engine::cost::{StepShape, safety};
use crate::engine::error::{EngineError, Result};
use crate::engine::request::{PreparedRequest, RequestInfo};
use crate::engine::scheduler::{
    Deadline, NewSequence, Playback, Pressure, ScheduleResult, ScheduledRequest, Workload,
};
use crate::engine::sequences::{Admission, DeliveryEvent};
use crate::engine::types::{FinishReason, Prediction, SequenceId, audio_duration};

/// Weight of a new observation of the audio of a step.
const WEIGHT: f64 = 0.02;
/// A stream whose reader has been paused for longer, with nothing left to play, is not counted on.
const FORGOTTEN: Duration = Duration::from_secs(2);
/// Seconds of audio that a step is taken to make before one has made some: half a frame of the models.
const LEAST_AUDIO_S: f64 = 0.04;
/// How often an engine looks whether streams of other engines have made room.
pub(super) const RETRY: Duration = Duration::from_millis(50);

/// What is known about one live stream.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) text_chars: Option<usize>,
    pub(super) candidate: Candidate,
    /// When its reader was paused last, and whether it is.
    pub(super) paused_at: Option<Instant>,
    is_paused: bool,
    /// Whether nothing is expected of its reader.
    pub(super) is_forgotten: bool,
}

impl Stream {
    /// Whether its reader does not read in real time: it has been paused since before what it has was played.
    pub(super) fn is_stalled(&self, now: Instant, played: Option<Instant>) -> bool {
        let last = self.paused_at.into_iter().chain(played).max();
        self.is_paused && last.is_some_and(|at| now.saturating_duration_since(at) > FORGOTTEN)
    }
}

/// The live streams of an engine.
#[derive(Debug, Default)]
pub(super) struct LiveStreams {
    pub(super) lengths: LengthModel,
    /// Seconds of audio of a generated token, or of a unit's token.
    token_s: f64,
    /// Seconds of audio of a generated token that has audio; others may be text.
    frame_s: f64,
    /// Tokens of a unit; 0 for models that are autoregressive.
    unit_tokens: f64,
    pub(super) streams: BTreeMap<SequenceId, Stream>,
    /// Accepted streams that wait for others to end.
    pub(super) held: VecDeque<(SequenceId, Instant)>,
    /// What the last stream asked for.
    pub(super) last_candidate: Option<Candidate>,
    /// When the step in flight is expected to end.
    pub(super) step_ends_at: Option<Instant>,
}

impl LiveStreams {
    /// Work and audio of a step of one stream.
    pub(super) fn rate(&self) -> StreamRate {
        if self.unit_tokens > 0.0 {
            let step = StepShape { prefill_tokens: self.unit_tokens.ceil() as usize, ..StepShape::default() };
            return StreamRate { step, audio_s: self.token_s * self.unit_tokens };
        }
        let audio_s = if self.token_s > 0.0 { self.token_s } else { LEAST_AUDIO_S };
        StreamRate { step: StepShape::decode(1), audio_s }
    }

    /// Learns the audio of an item.
    fn observe(&mut self, item: &ScheduledRequest, is_unit: bool, samples: u64, sample_rate: u32) {
        let audio_s = audio_duration(samples, sample_rate).as_secs_f64();
        let average = |average: &mut f64, value: f64| {
            let weight = if *average > 0.0 { WEIGHT } else { 1.0 };
            *average += weight * (value - *average);
        };
        if is_unit {
            average(&mut self.unit_tokens, item.num_tokens as f64);
            average(&mut self.token_s, audio_s / item.num_tokens.max(1) as f64);
        } else {
            average(&mut self.token_s, audio_s);
            self.frame_s = self.frame_s.max(audio_s);
        }
    }

    /// Steps of one stream that make this much audio, in whole frames.
    pub(super) fn steps(&self, audio_s: f64) -> f64 {
        let step_s = self.rate().audio_s;
        if step_s <= 0.0 {
            return 0.0;
        }
        let whole_s = if self.unit_tokens > 0.0 || self.frame_s <= 0.0 {
            audio_s
        } else {
            (audio_s / self.frame_s - 1e-6).ceil() * self.frame_s
        };
        (whole_s / step_s - 1e-6).ceil()
    }

    /// Whether accepted streams wait for others to end.
    pub(super) fn has_held(&self) -> bool {
        !self.held.is_empty()
    }

    /// Records that the client of a stream is slow, or has caught up. Returns whether it was not counted on any more.
    pub(super) fn set_paused(&mut self, sequence: SequenceId, is_paused: bool) -> bool {
        let is_held = self.is_held(sequence);
        let Some(stream) = self.streams.get_mut(&sequence) else { return false };
        let was_forgotten = std::mem::take(&mut stream.is_forgotten) && !is_held;
        stream.is_paused = is_paused;
        if is_paused {
            stream.paused_at = Some(Instant::now());
        }
        was_forgotten && !is_paused
    }

    /// Lets a stream wait for others to end.
    pub(super) fn hold(&mut self, sequence: SequenceId) {
        self.held.push_back((sequence, Instant::now()));
    }

    pub(super) fn is_held(&self, sequence: SequenceId) -> bool {
        self.held.iter().any(|(held, _)| *held == sequence)
    }

    /// Forgets a stream that has ended.
    pub(super) fn remove(&mut self, sequence: SequenceId) {
        if self.streams.remove(&sequence).is_some() {
            self.held.retain(|(held, _)| *held != sequence);
        }
    }
}

/// The work of a prompt.
fn setup(work: &Workload) -> StepShape {
    match work {
        Workload::Units(units) => {
            StepShape { prefill_tokens: units.first().copied().unwrap_or(0), ..StepShape::default() }
        }
        Workload::Encoder(units) => StepShape { encoder_tokens: units.iter().sum(), ..StepShape::default() },
        Workload::Autoregressive { prompt_tokens, encoders, .. } => StepShape {
            decodes: 0,
            prefill_tokens: *prompt_tokens,
            encoder_tokens: encoders.iter().map(|encoder| encoder.tokens).sum(),
        },
    }
}

impl EngineCore {
    /// Adds a prepared request to the waiting queue, or gives it back.
    pub(super) fn admit(&mut self, admission: Box<Admission>) -> Added {
        match self.may_add(&admission) {
            Ok(accepted) => {
                self.add(*admission, accepted);
                Ok(())
            }
            Err(error) => Err(Refused { error, admission: Some(admission) }),
        }
    }

    /// Whether a request may be added now, and what was decided about a live stream.
    fn may_add(&mut self, admission: &Admission) -> Result<Option<(Candidate, Decision)>> {
        let id = &admission.request.info.id;
        match &self.status.state {
            EngineState::Draining => return Err(EngineError::Draining),
            EngineState::Dead(reason) => return Err(EngineError::Stopped(reason.clone())),
            _ => {}
        }
        if self.sequences.find(id).is_some() {
            return Err(EngineError::DuplicateId(id.to_string()));
        }
        let waiting = self.scheduler.num_waiting();
        if waiting >= self.config.max_waiting_requests {
            // One place comes free when one request has ended.
            let per_second = self.metrics.snapshot().requests_per_sec.max(1.0 / 60.0);
            let retry_after = Duration::from_secs_f64(1.0 / per_second);
            return Err(EngineError::Overloaded { waiting, retry_after });
        }
        self.consider(admission)
    }

    /// Adds a request to the waiting queue.
    fn add(&mut self, admission: Admission, accepted: Option<(Candidate, Decision)>) {
        let RequestInfo { priority, task, live, ref id, .. } = admission.request.info;
        let (request_id, accepted_at) = (id.clone(), admission.client.accepted_at);
        let text_chars = admission.request.info.known_chars();
        // A window of live audio makes no audio, but somebody waits for it: its steps go before bulk work.
        let is_window = live && task == Task::Asr;
        let (sequence, work) = self.sequences.add(admission, accepted.is_some());
        self.scheduler.add_request(NewSequence {
            id: sequence,
            request_id,
            priority,
            live: accepted.is_some() || is_window,
            arrival_us: accepted_at.saturating_duration_since(self.epoch).as_micros() as u64,
            state_bytes: self.state_bytes,
            is_continued: task == Task::Chat,
            work,
        });
        if let Some(accepted) = &accepted {
            self.add_stream(sequence, text_chars, accepted, accepted_at);
        }
        if let Some(positions) = self.sequences.text_grew(sequence) {
            self.scheduler.set_positions(sequence, positions);
        }
    }

    /// Learns from an executed step.
    pub(super) fn observe_step(&mut self, schedule: &ScheduleResult, executed: Duration) {
        if self.scheduler.costs().is_known() {
            let predicted = self.scheduler.costs().predict(schedule.shape);
            self.metrics.step_error(predicted, executed);
        }
        self.scheduler.observe(schedule.shape, executed);
        self.live.step_ends_at = None;
    }

    /// Learns from the result of an item.
    pub(super) fn observe_item(&mut self, item: &ScheduledRequest, output: &StepOutput) {
        let is_unit = self.scheduler.is_unit(item.sequence);
        let generates = output.generated_tokens > 0 && self.makes_audio;
        if generates && (is_unit || !item.is_prefill) {
            let samples = output.samples.len() as u64;
            self.live.observe(item, is_unit, samples, self.sample_rate);
        }
    }

    /// Learns the length of audio that was generated whole.
    pub(super) fn observe_length(&mut self, sequence: SequenceId, reason: FinishReason, last_samples: u64) {
        if let Some(stream) = self.live.streams.get(&sequence)
            && reason == FinishReason::Stop
        {
            let text_chars = stream.text_chars;
            let samples = self.sequences.generated_samples(sequence) + last_samples;
            let audio = audio_duration(samples, self.sample_rate);
            self.live.lengths.observe(text_chars, audio.as_secs_f64());
        }
    }

    /// What a step asks of the device.
    pub(super) fn turn_request(&mut self, schedule: &ScheduleResult) -> TurnRequest {
        let costs = self.scheduler.costs();
        let predicted = costs.predict(schedule.shape);
        let bulk = predicted.saturating_sub(costs.predict(schedule.live_shape));
        let with_margin = predicted.mul_f64(safety(costs));
        let due = schedule.deadline.map(|deadline| self.due(deadline));
        let promised = schedule.promised_us.map(|at_us| self.epoch + Duration::from_micros(at_us));
        self.live.step_ends_at = Some(Instant::now() + predicted);
        let is_live = schedule.live_shape != StepShape::default();
        let bulk = if schedule.pays_all { Duration::MAX } else { bulk };
        TurnRequest {
            due,
            is_live,
            predicted: with_margin,
            expected: predicted,
            bulk: if is_live { bulk } else { Duration::ZERO },
            promised,
            is_checked: true,
        }
    }

    /// Tells the scheduler the time and what limits the next step.
    pub(super) fn update_clock(&mut self) {
        self.scheduler.set_now(self.epoch.elapsed().as_micros() as u64);
        let reserve_s = if self.live.streams.is_empty() {
            0.0
        } else {
            self.with_situation(|situation| situation.running_reserve_s())
        };
        let others = self.device.others();
        let since_epoch = |at: Instant| at.saturating_duration_since(self.epoch).as_micros() as u64;
        let others_us = others.latest_start.map(since_epoch);
        let others_share = others.streams.iter().map(|stream| stream.utilisation).sum();
        let bulk_credit_s = self.device.own_credit_s();
        let pressure = Pressure { reserve_s, bulk_credit_s, others_us, others_share };
        self.scheduler.set_pressure(pressure);
    }

    /// Forecasts a stream again whose first chunk is about to leave: more is known now than when it came.
    pub(super) fn forecast_again(&mut self, sequence: SequenceId) {
        let Some(stream) = self.live.streams.get(&sequence) else { return };
        if !self.sequences.is_beginning(sequence) {
            return;
        }
        let candidate = stream.candidate;
        if let Some((rtf, prebuffer, head_start_s)) =
            self.with_situation(|situation| situation.playing(&candidate))
        {
            let samples = candidate.first_chunk_s() + head_start_s;
            let head_start =
                if head_start_s > 0.0 { (samples * f64::from(self.sample_rate)) as u64 } else { 0 };
            let first_audio = self.sequences.predicted_first_audio(sequence);
            let prediction = Prediction { first_audio, rtf, prebuffer };
            self.sequences.set_forecast(sequence, Some(prediction), head_start);
        }
    }

    /// Tells the scheduler the playback of a live stream.
    pub(super) fn set_playback(&mut self, sequence: SequenceId) {
        if let Some(end) = self.sequences.playback_end(sequence) {
            self.set_playback_end(sequence, end);
        }
    }

    /// Tells the scheduler the playback of a live stream whose reader has caught up. One that had stopped plays what waited
    /// for it.
    pub(super) fn resume_playback(&mut self, sequence: SequenceId) {
        let Some((end, (chunk, _))) =
            self.sequences.playback_end(sequence).zip(self.sequences.chunk_progress(sequence))
        else {
            return;
        };
        self.set_playback_end(sequence, end.max(Instant::now() + audio_duration(chunk, self.sample_rate)));
    }

    fn set_playback_end(&mut self, sequence: SequenceId, end: Instant) {
        let Some(progress) = self.sequences.chunk_progress(sequence) else { return };
        let playback = self.playback(end, progress);
        self.scheduler.set_playback(sequence, playback);
    }

    /// Tells the device of a stream whose reader has caught up during a step: the step may still wait for its turn.
    pub(super) fn bring_forward(&self, event: DeliveryEvent) {
        let DeliveryEvent::CaughtUp(sequence) = event else { return };
        let end = self.sequences.playback_end(sequence);
        if let Some((end, progress)) = end.zip(self.sequences.chunk_progress(sequence)) {
            let deadline = self.scheduler.deadline_of(self.playback(end, progress));
            self.device.bring_forward(self.due(deadline));
        }
    }

    pub(super) fn due(&self, Deadline { at_us, work_us }: Deadline) -> Due {
        Due { at: self.epoch + Duration::from_micros(at_us), work: Duration::from_micros(work_us) }
    }

    /// A playback that ends at `end`, of a stream with the given samples of a chunk and until the next one.
    fn playback(&self, end: Instant, (chunk, missing): (u64, u64)) -> Playback {
        let steps = |samples: u64| {
            let seconds = audio_duration(samples, self.sample_rate).as_secs_f64();
            self.live.steps(seconds).max(1.0) as u32
        };
        let chunk_us = audio_duration(chunk, self.sample_rate).as_micros() as u64;
        let end_us = end.saturating_duration_since(self.epoch).as_micros() as u64;
        Playback { end_us, steps: steps(missing), chunk_us, chunk_steps: steps(chunk) }
    }

    /// Decides about a request. `None` for bulk work, and without admission.
    ///
    /// # Errors
    /// It is a live stream that would interrupt others.
    pub(super) fn consider(&mut self, admission: &Admission) -> Result<Option<(Candidate, Decision)>> {
        if !admission.is_live_stream() {
            return Ok(None);
        }
        let PreparedRequest { info, work, .. } = &admission.request;
        let most_s = info.max_tokens as f64 * self.live.token_s;
        let expected_s = self.live.lengths.expected_s(info.known_chars());
        let limited = |seconds: f64| if most_s > 0.0 { seconds.min(most_s) } else { seconds };
        let candidate = Candidate {
            prompt: setup(work),
            length_s: limited(expected_s),
            most_s: limited(self.live.lengths.margin() * expected_s),
            chunks: info.chunk_lengths,
            sample_rate: self.sample_rate,
        };
        self.live.last_candidate = Some(candidate);
        let mut decision = self.with_situation(|situation| situation.decide(&candidate));
        if let Decision::Refuse { retry_after } = decision {
            if self.config.admission {
                return Err(EngineError::Saturated { retry_after });
            }
            decision = Decision::Admit(Forecast { prediction: None, head_start_s: 0.0 });
        }
        if let Decision::Wait(forecast) = decision
            && !self.config.admission
        {
            decision = Decision::Admit(forecast);
        }
        // The prediction counts from the arrival, before the input was prepared.
        let prepared = admission.client.accepted_at.elapsed();
        if let Decision::Admit(forecast) | Decision::Wait(forecast) = &mut decision
            && let Some(prediction) = &mut forecast.prediction
        {
            prediction.first_audio += prepared;
        }
        Ok(Some((candidate, decision)))
    }

    /// Adds an accepted live stream.
    pub(super) fn add_stream(
        &mut self,
        sequence: SequenceId,
        text_chars: Option<usize>,
        accepted: &(Candidate, Decision),
        accepted_at: Instant,
    ) {
        let (candidate, decision) = *accepted;
        let stream = Stream { text_chars, candidate, paused_at: None, is_paused: false, is_forgotten: false };
        self.live.streams.insert(sequence, stream);
        if matches!(decision, Decision::Wait(_)) {
            self.live.hold(sequence);
            self.scheduler.set_deferred(sequence, true);
        }
        let forecast = decision.forecast();
        let prediction = forecast.and_then(|forecast| forecast.prediction);
        let head_start_s = forecast.map_or(0.0, |forecast| forecast.head_start_s);
        let head_start = if head_start_s > 0.0 {
            candidate.chunks.first() as u64 + (head_start_s * f64::from(self.sample_rate)) as u64
        } else {
            0
        };
        self.sequences.set_forecast(sequence, prediction, head_start);
        let first_audio = prediction.map(|told| told.first_audio);
        let due = accepted_at + first_audio.unwrap_or_default();
        let expected = self.playback(due, self.sequences.chunk_progress(sequence).unwrap_or_default());
        self.scheduler.set_first_audio(sequence, expected);
        // The other engines of the device decide with it from now on.
        self.publish_load(false);
    }

    /// Starts accepted streams for which others have made room, in their order.
    pub(super) fn start_held(&mut self) {
        while let Some((sequence, _)) = self.live.held.front().copied() {
            let is_known = self.live.streams.contains_key(&sequence);
            if is_known && !self.with_situation(|situation| situation.can_start()) {
                return;
            }
            self.live.held.pop_front();
            self.scheduler.set_deferred(sequence, false);
            self.publish_load(false);
        }
    }
}
