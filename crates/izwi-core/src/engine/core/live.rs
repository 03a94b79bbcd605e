//! Live streams of an engine: what the scheduler, the arbiter and the admission know about them.
//!
//! Must not know samples or channels.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use izwi_audio::chunk::ChunkLengths;
use izwi_types::{StepOutput, Task};
use tokio::time::Instant;

use super::{Added, Admission, EngineCore, EngineState, Refused};
use crate::engine::admission::{
    Candidate, Decision, Forecast, HeldStream, LengthModel, LiveStream, OtherHeld, OtherStream, Situation,
    StreamRate,
};
use crate::engine::arbiter::{Due, EngineLoad, HeldLoad, StreamLoad, TurnRequest};
use crate::engine::cost::{StepShape, safety};
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::NewSequenceData;
use crate::engine::output::{Delivery, DeliveryEvent, SessionStart};
use crate::engine::scheduler::{
    Deadline, NewSequence, Playback, Pressure, ScheduleResult, ScheduledRequest, Workload,
};
use crate::engine::types::{FinishReason, SequenceId, audio_duration};

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
struct Stream {
    text_chars: Option<usize>,
    candidate: Candidate,
    /// When its reader was paused last, and whether it is.
    paused_at: Option<Instant>,
    is_paused: bool,
    /// Whether nothing is expected of its reader.
    is_forgotten: bool,
}

impl Stream {
    /// Whether its reader does not read in real time: it has been paused since before what it has was played.
    fn is_stalled(&self, now: Instant, played: Option<Instant>) -> bool {
        let last = self.paused_at.into_iter().chain(played).max();
        self.is_paused && last.is_some_and(|at| now.saturating_duration_since(at) > FORGOTTEN)
    }
}

/// The live streams of an engine.
#[derive(Debug, Default)]
pub(super) struct LiveStreams {
    lengths: LengthModel,
    /// Seconds of audio of a generated token, or of a unit's token.
    token_s: f64,
    /// Seconds of audio of a generated token that has audio; others may be text.
    frame_s: f64,
    /// Tokens of a unit; 0 for models that are autoregressive.
    unit_tokens: f64,
    streams: BTreeMap<SequenceId, Stream>,
    /// Accepted streams that wait for others to end.
    held: VecDeque<(SequenceId, Instant)>,
    /// What the last stream asked for.
    last_candidate: Option<Candidate>,
    /// When the step in flight is expected to end.
    step_ends_at: Option<Instant>,
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
    fn steps(&self, audio_s: f64) -> f64 {
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

    fn is_held(&self, sequence: SequenceId) -> bool {
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
        let id = &admission.admissible.id;
        match &self.status.state {
            EngineState::Draining => return Err(EngineError::Draining),
            EngineState::Dead(reason) => return Err(EngineError::Stopped(reason.clone())),
            _ => {}
        }
        if self.requests.contains_key(id) {
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
        let forecast = accepted.as_ref().and_then(|(_, decision)| decision.forecast());
        let Admission { admissible, delivery, accepted_at, audio_share } = admission;
        let id = admissible.id.clone();
        let text_chars = admissible.known_chars();
        let live = accepted.is_some();
        // A window of live audio makes no audio, but somebody waits for it: its steps go before bulk work.
        let is_window = admissible.live && admissible.task == Task::Asr;
        self.next_sequence += 1;
        let sequence = SequenceId(self.next_sequence);
        self.output.open(SessionStart {
            sequence,
            request_id: id.clone(),
            task: admissible.task,
            delivery,
            live,
            prediction: forecast.and_then(|forecast| forecast.prediction),
            head_start_samples: forecast.map_or(0, |forecast| {
                let head_start = forecast.head_start_s * f64::from(self.sample_rate);
                if forecast.head_start_s > 0.0 {
                    admissible.chunk_lengths.first() as u64 + head_start as u64
                } else {
                    0
                }
            }),
            chunk_lengths: admissible.chunk_lengths,
            prompt_tokens: admissible.prompt_tokens,
            seed: admissible.seed,
            notes: admissible.notes,
            recording: admissible.recording,
            _audio_share: audio_share,
            accepted_at,
        });
        self.scheduler.add_request(NewSequence {
            id: sequence,
            request_id: id.clone(),
            priority: admissible.priority,
            live: live || is_window,
            arrival_us: accepted_at.saturating_duration_since(self.epoch).as_micros() as u64,
            state_bytes: self.state_bytes,
            is_continued: admissible.task == Task::Chat,
            work: admissible.work,
        });
        if let Some(accepted) = &accepted {
            self.add_stream(sequence, text_chars, accepted, accepted_at);
        }
        self.max_tokens.insert(sequence, admissible.max_tokens);
        if let Some(input) = admissible.text_input {
            self.scheduler.set_positions(sequence, input.positions());
            self.open_texts.open(sequence, input);
        }
        let data = NewSequenceData { sequence, prepared: admissible.prepared };
        self.unseen.insert(sequence, data);
        self.requests.insert(id.clone(), sequence);
        self.request_of.insert(sequence, id);
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
            let samples = self.output.generated_samples(sequence) + last_samples;
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
        self.live.step_ends_at = Some(Instant::now() + predicted);
        let is_live = schedule.live_shape != StepShape::default();
        TurnRequest {
            due,
            is_live,
            predicted: with_margin,
            expected: predicted,
            bulk: if is_live { bulk } else { Duration::ZERO },
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
        if !self.output.is_beginning(sequence) {
            return;
        }
        let candidate = stream.candidate;
        if let Some((rtf, prebuffer, head_start_s)) =
            self.with_situation(|situation| situation.playing(&candidate))
        {
            let samples = candidate.first_chunk_s() + head_start_s;
            let head_start =
                if head_start_s > 0.0 { (samples * f64::from(self.sample_rate)) as u64 } else { 0 };
            self.output.set_forecast(sequence, rtf, prebuffer, head_start);
        }
    }

    /// Tells the scheduler the playback of a live stream.
    pub(super) fn set_playback(&mut self, sequence: SequenceId) {
        if let Some(end) = self.output.playback_end(sequence) {
            self.set_playback_end(sequence, end);
        }
    }

    /// Tells the scheduler the playback of a live stream whose reader has caught up. One that had stopped plays what waited
    /// for it.
    pub(super) fn resume_playback(&mut self, sequence: SequenceId) {
        let Some((end, (chunk, _))) =
            self.output.playback_end(sequence).zip(self.output.chunk_progress(sequence))
        else {
            return;
        };
        self.set_playback_end(sequence, end.max(Instant::now() + audio_duration(chunk, self.sample_rate)));
    }

    fn set_playback_end(&mut self, sequence: SequenceId, end: Instant) {
        let Some(progress) = self.output.chunk_progress(sequence) else { return };
        let playback = self.playback(end, progress);
        self.scheduler.set_playback(sequence, playback);
    }

    /// Tells the device of a stream whose reader has caught up during a step: the step may still wait for its turn.
    pub(super) fn bring_forward(&self, event: DeliveryEvent) {
        let DeliveryEvent::CaughtUp(sequence) = event else { return };
        let end = self.output.playback_end(sequence);
        if let Some((end, progress)) = end.zip(self.output.chunk_progress(sequence)) {
            let deadline = self.scheduler.deadline_of(self.playback(end, progress));
            self.device.bring_forward(self.due(deadline));
        }
    }

    fn due(&self, Deadline { at_us, work_us }: Deadline) -> Due {
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

    /// Publishes what live streams need of the device, whether another one would be refused, and whether the engine has
    /// nothing to do.
    pub(super) fn publish_load(&mut self, is_idle: bool) {
        let due = self.scheduler.deadline().map(|deadline| self.due(deadline));
        let now = Instant::now();
        for (id, stream) in &mut self.live.streams {
            stream.is_forgotten |= stream.is_stalled(now, self.output.playback_end(*id));
        }
        let sequences = self.status.pending + self.status.running;
        let (load, refusal, outlook) = self.with_situation(|situation| {
            let utilisation = situation.utilisation();
            let load = |stream| StreamLoad {
                utilisation,
                ends_at: now + Duration::from_secs_f64(situation.expected_end_s(stream).clamp(0.0, 1e6)),
            };
            let length_s = situation.rate.audio_s;
            let samples = (length_s * f64::from(self.sample_rate)) as usize;
            let least = Candidate {
                prompt: StepShape::default(),
                length_s,
                most_s: length_s,
                chunks: ChunkLengths::new(samples, None),
                sample_rate: self.sample_rate,
            };
            let refusal = match situation.decide(&least) {
                Decision::Refuse { retry_after } => Some(retry_after),
                Decision::Admit(_) | Decision::Wait(_) => None,
            };
            let outlook = (
                situation.first_sound(&self.live.last_candidate.unwrap_or(least)),
                situation.round(sequences + 1),
                situation.prompt_token(),
            );
            let held = |held: &HeldStream| HeldLoad {
                utilisation,
                length_s: held.candidate.length_s,
                since: now - Duration::from_secs_f64(held.waited_s),
            };
            // Those that the device does not hold up do not hold it up.
            let held_places = situation.max_streams.saturating_sub(situation.streams.len());
            let load = EngineLoad {
                held: situation.held.iter().take(held_places).map(held).collect(),
                streams: situation.streams.iter().map(load).collect(),
                step_s: situation.running_step_s(),
                variance: situation.running_variance(),
                behind: Duration::from_secs_f64(situation.behind_s().clamp(0.0, 1e6)),
                ..EngineLoad::default()
            };
            (load, refusal, outlook)
        });
        (self.status.first_sound, self.status.step_with_another, self.status.prompt_token) = outlook;
        self.status.refuses_until = refusal.filter(|_| self.config.admission).map(|after| now + after);
        let has_bulk = self.scheduler.has_bulk();
        self.device.set_load(EngineLoad { due, has_bulk, ..load }, is_idle);
    }

    /// Decides about a request. `None` for bulk work, and without admission.
    ///
    /// # Errors
    /// It is a live stream that would interrupt others.
    pub(super) fn consider(&mut self, admission: &Admission) -> Result<Option<(Candidate, Decision)>> {
        let Admission { admissible, delivery, accepted_at, .. } = admission;
        if !(admissible.live
            && admissible.task != Task::Asr
            && self.makes_audio
            && matches!(delivery, Delivery::Stream(_)))
        {
            return Ok(None);
        }
        let most_s = admissible.max_tokens as f64 * self.live.token_s;
        let expected_s = self.live.lengths.expected_s(admissible.known_chars());
        let limited = |seconds: f64| if most_s > 0.0 { seconds.min(most_s) } else { seconds };
        let candidate = Candidate {
            prompt: setup(&admissible.work),
            length_s: limited(expected_s),
            most_s: limited(self.live.lengths.margin() * expected_s),
            chunks: admissible.chunk_lengths,
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
        let prepared = accepted_at.elapsed();
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
        let prediction = decision.forecast().and_then(|forecast| forecast.prediction);
        let first_audio = prediction.map(|told| told.first_audio);
        let due = accepted_at + first_audio.unwrap_or_default();
        let expected = self.playback(due, self.output.chunk_progress(sequence).unwrap_or_default());
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

    /// Calls `use_it` with what is known now.
    fn with_situation<T>(&self, use_it: impl FnOnce(&Situation<'_>) -> T) -> T {
        let live = &self.live;
        let (now, rate) = (Instant::now(), live.rate());
        let streams: Vec<LiveStream> = live
            .streams
            .iter()
            .filter(|(id, stream)| !stream.is_forgotten && !live.is_held(**id))
            .map(|(id, stream)| self.live_stream(*id, stream, rate, now))
            .collect();
        let waiting = |(id, since): &(SequenceId, Instant)| {
            let candidate = live.streams.get(id)?.candidate;
            Some(HeldStream { candidate, waited_s: now.saturating_duration_since(*since).as_secs_f64() })
        };
        let held: Vec<HeldStream> = live.held.iter().filter_map(waiting).collect();
        let (others, device) = (self.device.others(), self.device.device());
        let until_s = |at: Instant| at.saturating_duration_since(now).as_secs_f64();
        let other =
            |load: &StreamLoad| OtherStream { utilisation: load.utilisation, ends_s: until_s(load.ends_at) };
        let streams_of_others: Vec<OtherStream> = others.streams.iter().map(other).collect();
        let other_held = |load: &HeldLoad| OtherHeld {
            utilisation: load.utilisation,
            length_s: load.length_s,
            waited_s: now.saturating_duration_since(load.since).as_secs_f64(),
        };
        let others_held: Vec<OtherHeld> = others.held.iter().map(other_held).collect();
        let states = self.config.max_state_bytes() / self.state_bytes.max(1);
        use_it(&Situation {
            costs: self.scheduler.costs(),
            rate,
            streams: &streams,
            held: &held,
            others: &streams_of_others,
            others_held: &others_held,
            others_ahead_s: others.latest_start.map_or(f64::INFINITY, until_s),
            others_variance: others.variance,
            others_step_s: others.step_s,
            has_bulk: device.has_bulk,
            bulk_owed_s: device.bulk_owed_s,
            in_flight_s: device.free_at.into_iter().chain(live.step_ends_at).map(until_s).fold(0.0, f64::max),
            batch: self.config.max_batch_size,
            max_streams: self.config.max_running_requests.min(states.max(1)),
            max_first_audio_s: self.config.max_first_audio.as_secs_f64(),
        })
    }

    fn live_stream(&self, id: SequenceId, stream: &Stream, rate: StreamRate, now: Instant) -> LiveStream {
        let done = audio_duration(self.output.generated_samples(id), self.sample_rate).as_secs_f64();
        let left_s =
            self.live.lengths.left_s(stream.text_chars, done).min(stream.candidate.length_s.max(0.1));
        let most_left_s =
            self.live.lengths.most_left_s(stream.text_chars, done).min(stream.candidate.most_s.max(0.1));
        let Some(end) = self.output.playback_end(id) else {
            let setup = stream.candidate.prompt;
            return LiveStream { ahead_s: None, left_s, most_left_s, paced_s: 0.0, setup };
        };
        let played_s = end.saturating_duration_since(now).as_secs_f64();
        let missing = self.output.chunk_progress(id).map_or(0, |(_, missing)| missing);
        let missing_s = audio_duration(missing, self.sample_rate).as_secs_f64();
        let step_s = self.scheduler.costs().seconds(rate.step);
        let steps = self.live.steps(missing_s);
        let buffer_s = self.config.stream_buffer_chunks as f64 * stream.candidate.chunk_s();
        let is_paced = stream.paused_at.is_some();
        LiveStream {
            ahead_s: Some(played_s - steps * step_s),
            left_s,
            most_left_s,
            paced_s: if is_paced { (played_s + left_s - buffer_s).max(0.0) } else { 0.0 },
            setup: StepShape::default(),
        }
    }
}
