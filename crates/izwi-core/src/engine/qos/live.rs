//! The live streams of an engine: which start, which wait, and what the scheduler and the device must know of them.
//!
//! Must not know samples or channels.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::admission::{Candidate, Decision, Forecast, LengthModel, StreamRate};
use super::arbiter::{Due, EngineLoad, Member, TurnRequest};
use super::audio_rate::AudioRate;
use super::budget::StepLimits;
use super::cost::{CostModel, StepShape, safety};
use super::demand;
use super::pieces::Pieces;
use super::playback::{Deadline, Playback};
use super::{Event, Outlook, Qos, Start};
use crate::engine::config::EngineCoreConfig;
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::ExecutorProfile;
use crate::engine::metrics::MetricsCollector;
use crate::engine::request::PreparedRequest;
use crate::engine::scheduler::{ScheduleResult, Scheduler, Workload};
use crate::engine::sequences::Sequences;
use crate::engine::types::{Prediction, SequenceId, audio_duration};

/// A stream whose reader has been paused for longer, with nothing left to play, is not counted on.
const FORGOTTEN: Duration = Duration::from_secs(2);

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
    /// Since when it is to pause at the end of a phrase, and whether it has paused.
    pub(super) to_pause: Option<Instant>,
    pub(super) has_paused: bool,
}

impl Stream {
    /// Whether its reader does not read in real time: it has been paused since before what it has was played.
    pub(super) fn is_stalled(&self, now: Instant, played: Option<Instant>) -> bool {
        let last = self.paused_at.into_iter().chain(played).max();
        self.is_paused && last.is_some_and(|at| now.saturating_duration_since(at) > FORGOTTEN)
    }
}

/// The live streams of an engine.
pub(in crate::engine) struct LiveStreams {
    pub(super) config: Arc<EngineCoreConfig>,
    pub(super) device: Arc<Member>,
    pub(super) metrics: MetricsCollector,
    /// Begin of the engine's clock.
    epoch: Instant,
    /// Samples of its audio per second.
    pub(super) sample_rate: u32,
    /// Whether it generates audio.
    makes_audio: bool,
    /// The most streams at once.
    pub(super) max_streams: usize,
    pub(super) costs: Arc<CostModel>,
    pub(super) rate: AudioRate,
    pub(super) lengths: LengthModel,
    pub(super) streams: BTreeMap<SequenceId, Stream>,
    /// Accepted streams that wait for others to end, and since when.
    pub(super) held: VecDeque<(SequenceId, Instant)>,
    /// How long its steps keep the device.
    pieces: Pieces,
    /// What the last stream asked for.
    pub(super) last_candidate: Option<Candidate>,
    /// When the step in flight is expected to end.
    pub(super) step_ends_at: Option<Instant>,
}

impl LiveStreams {
    /// Those of an engine on `device` whose clock begins at `epoch`.
    pub(in crate::engine) fn new(
        config: Arc<EngineCoreConfig>,
        profile: &ExecutorProfile,
        device: Arc<Member>,
        metrics: MetricsCollector,
        epoch: Instant,
    ) -> Self {
        let states = config.max_state_bytes() / profile.info.state_bytes.max(1);
        Self {
            max_streams: config.max_running_requests.min(states.max(1)),
            config,
            device,
            metrics,
            epoch,
            sample_rate: profile.info.sample_rate_hz,
            makes_audio: profile.info.tasks.iter().any(|task| !task.listens()),
            costs: Arc::default(),
            rate: AudioRate::default(),
            lengths: LengthModel::default(),
            streams: BTreeMap::new(),
            held: VecDeque::new(),
            pieces: Pieces::default(),
            last_candidate: None,
            step_ends_at: None,
        }
    }

    /// Adds a live stream that may start.
    fn add(
        &mut self,
        sequence: SequenceId,
        start: Start,
        scheduler: &mut Scheduler,
        sequences: &mut Sequences,
    ) {
        let Start { candidate, text_chars, forecast, waits, accepted_at } = start;
        let Forecast { prediction, head_start_s } = forecast;
        let head_start = (head_start_s * f64::from(self.sample_rate)) as u64;
        let held_back = if head_start_s > 0.0 { candidate.chunks.first() as u64 + head_start } else { 0 };
        sequences.set_forecast(sequence, prediction, held_back);
        let stream = Stream {
            text_chars,
            candidate,
            paused_at: None,
            is_paused: false,
            is_forgotten: false,
            to_pause: None,
            has_paused: false,
        };
        self.streams.insert(sequence, stream);
        if waits {
            self.hold(sequence, scheduler);
        }
        let due = accepted_at + prediction.map(|told| told.first_audio).unwrap_or_default();
        let expected = self.playback(due, sequences.chunk_progress(sequence).unwrap_or_default());
        scheduler.set_first_audio(sequence, expected);
        // The other engines of the device decide with it from now on.
        self.publish_load(false, scheduler, sequences);
    }

    pub(super) fn is_held(&self, sequence: SequenceId) -> bool {
        self.held.iter().any(|(held, _)| *held == sequence)
    }

    /// Lets a stream wait for others to end.
    fn hold(&mut self, sequence: SequenceId, scheduler: &mut Scheduler) {
        self.held.push_back((sequence, Instant::now()));
        scheduler.set_deferred(sequence, true);
    }

    /// Starts accepted streams for which others have made room, in their order.
    fn start_held(&mut self, scheduler: &mut Scheduler, sequences: &mut Sequences) {
        while let Some((sequence, _)) = self.held.front().copied() {
            let is_known = self.streams.contains_key(&sequence);
            if is_known && !self.with_situation(sequences, |situation| situation.can_start()) {
                return;
            }
            self.held.pop_front();
            scheduler.set_deferred(sequence, false);
            scheduler.starts_from(sequence, self.engine_us(Instant::now()));
            self.go_on(sequence, scheduler, sequences);
            self.resume_playback(sequence, scheduler, sequences);
            self.publish_load(false, scheduler, sequences);
        }
    }

    /// The client of a stream is slow, or has caught up.
    fn set_paused(&mut self, sequence: SequenceId, is_paused: bool, scheduler: &mut Scheduler) {
        let is_held = self.is_held(sequence);
        let Some(stream) = self.streams.get_mut(&sequence) else { return };
        let was_forgotten = std::mem::take(&mut stream.is_forgotten) && !is_held;
        stream.is_paused = is_paused;
        if is_paused {
            stream.paused_at = Some(Instant::now());
        } else if was_forgotten && self.config.admission {
            // Others may have its place: it waits for one, as a stream that starts does.
            self.hold(sequence, scheduler);
        }
    }

    /// Learns from the time of a step.
    fn observe_time(&mut self, shape: StepShape, time: Duration, scheduler: &mut Scheduler) {
        // Without the share of the scheduler nothing is copied. It gets the next limits before it decides again.
        scheduler.set_limits(None);
        Arc::make_mut(&mut self.costs).observe(shape, time);
    }

    /// Forecasts a stream again whose first chunk is about to leave: more is known now than when it came.
    fn forecast_again(&self, sequence: SequenceId, sequences: &mut Sequences) {
        let Some(stream) = self.streams.get(&sequence) else { return };
        if !sequences.is_beginning(sequence) {
            return;
        }
        let candidate = stream.candidate;
        if let Some((rtf, prebuffer, head_start_s)) =
            self.with_situation(sequences, |situation| situation.playing(&candidate))
        {
            let samples = candidate.first_chunk_s() + head_start_s;
            let head_start =
                if head_start_s > 0.0 { (samples * f64::from(self.sample_rate)) as u64 } else { 0 };
            let first_audio = sequences.predicted_first_audio(sequence);
            let prediction = Prediction { first_audio, rtf, prebuffer };
            sequences.set_forecast(sequence, Some(prediction), head_start);
        }
    }

    /// Tells the scheduler the playback of a live stream.
    fn set_playback(&self, sequence: SequenceId, scheduler: &mut Scheduler, sequences: &Sequences) {
        if let Some(end) = sequences.playback_end(sequence)
            && let Some(progress) = sequences.chunk_progress(sequence)
        {
            scheduler.set_playback(sequence, self.playback(end, progress));
        }
    }

    /// A live stream whose reader has caught up continues. One that had stopped plays what waited for it.
    fn resume_playback(&self, sequence: SequenceId, scheduler: &mut Scheduler, sequences: &mut Sequences) {
        sequences.resume_playback(sequence, &self.metrics);
        self.set_playback(sequence, scheduler, sequences);
    }

    /// Tells the device of a stream whose reader has caught up during a step: the step may still wait for its turn.
    fn bring_forward(&self, sequence: SequenceId, scheduler: &Scheduler, sequences: &Sequences) {
        let end = sequences.playback_end(sequence);
        if let Some((end, progress)) = end.zip(sequences.chunk_progress(sequence)) {
            let playing = scheduler.playing().chain([self.playback(end, progress)]);
            self.device.bring_forward(self.dues(playing, StepShape::decode(1 + scheduler.playing().count())));
        }
    }

    /// A playback that ends at `end`, of a stream with the given samples of a chunk and until the next one.
    pub(super) fn playback(&self, end: Instant, (chunk, missing): (u64, u64)) -> Playback {
        let (step_s, frame_s) = self.rate.of_a_frame();
        let us = |seconds: f64| (seconds * 1e6).round() as u64;
        let audio_us = |samples: u64| audio_duration(samples, self.sample_rate).as_micros() as u64;
        Playback {
            end_us: self.engine_us(end),
            missing_us: audio_us(missing),
            chunk_us: audio_us(chunk),
            step_us: us(step_s),
            frame_us: us(frame_s),
        }
    }

    /// The deadlines of these playbacks, with such steps.
    pub(super) fn dues(&self, playing: impl Iterator<Item = Playback>, step: StepShape) -> Vec<Due> {
        let deadlines = demand::of_playbacks(playing, self.costs.step_time(step));
        deadlines.into_iter().map(|deadline| self.due(deadline)).collect()
    }

    fn due(&self, Deadline { at_us, work_us }: Deadline) -> Due {
        Due { at: self.instant(at_us), work: Duration::from_micros(work_us) }
    }

    fn deadline(&self, due: &Due) -> Deadline {
        Deadline { at_us: self.engine_us(due.at), work_us: due.work.as_micros() as u64 }
    }

    /// The engine's clock at a time, in microseconds.
    fn engine_us(&self, at: Instant) -> u64 {
        at.saturating_duration_since(self.epoch).as_micros() as u64
    }

    /// A time on the engine's clock.
    fn instant(&self, at_us: u64) -> Instant {
        self.epoch + Duration::from_micros(at_us)
    }
}

impl Qos for LiveStreams {
    fn device(&self) -> Arc<Member> {
        Arc::clone(&self.device)
    }

    fn may_start(
        &mut self,
        request: &PreparedRequest,
        accepted_at: Instant,
        sequences: &Sequences,
    ) -> Result<Option<Start>> {
        let PreparedRequest { info, work, .. } = request;
        let text_chars = info.known_chars();
        let most_s = info.max_tokens as f64 * self.rate.token_s;
        let expected_s = self.lengths.expected_s(text_chars);
        let limited = |seconds: f64| if most_s > 0.0 { seconds.min(most_s) } else { seconds };
        let candidate = Candidate {
            prompt: setup(work),
            length_s: limited(expected_s),
            most_s: limited(self.lengths.margin() * expected_s),
            chunks: info.chunk_lengths,
            sample_rate: self.sample_rate,
        };
        self.last_candidate = Some(candidate);
        let decision = self.with_situation(sequences, |situation| situation.decide(&candidate));
        let (mut forecast, waits) = match decision {
            Decision::Refuse { retry_after } if self.config.admission => {
                return Err(EngineError::Saturated { retry_after });
            }
            Decision::Refuse { .. } => (Forecast { prediction: None, head_start_s: 0.0 }, false),
            Decision::Admit(forecast) => (forecast, false),
            Decision::Wait(forecast) => (forecast, self.config.admission),
        };
        if let Some(prediction) = &mut forecast.prediction {
            // It counts from the arrival, before the input was prepared.
            prediction.first_audio += accepted_at.elapsed();
        }
        Ok(Some(Start { candidate, text_chars, forecast, waits, accepted_at }))
    }

    fn budget(&mut self, scheduler: &mut Scheduler, sequences: &Sequences) {
        let reserve_s = if self.streams.is_empty() {
            0.0
        } else {
            let reserve_s = self.with_situation(sequences, |situation| situation.running_reserve_s());
            reserve_s + self.device.longest_pause().as_secs_f64()
        };
        let others = self.device.others();
        let limits = StepLimits {
            costs: Arc::clone(&self.costs),
            reserve_s,
            bulk_credit_s: self.device.own_credit_s(),
            others: others.dues.iter().map(|due| self.deadline(due)).collect(),
            others_share: others.streams.iter().map(|stream| stream.utilisation).sum(),
            longest_piece: self.pieces.longest_of_prompts(),
            others_piece_s: others.piece.as_secs_f64(),
        };
        scheduler.set_limits(self.costs.is_known().then_some(limits));
    }

    fn turn(&mut self, schedule: &ScheduleResult, scheduler: &Scheduler) -> TurnRequest {
        let expected = self.costs.predict(schedule.shape);
        let bulk = expected.saturating_sub(self.costs.predict(schedule.live_shape));
        self.step_ends_at = Some(Instant::now() + expected);
        let sequences = || schedule.items().map(|item| item.sequence);
        let playing = sequences().filter_map(|sequence| scheduler.playback(sequence));
        let promised_us = sequences().filter_map(|sequence| scheduler.promised_us(sequence)).min();
        let is_live = schedule.live_shape != StepShape::default();
        let predicted = expected.mul_f64(safety(&self.costs));
        // Streams of its own that play were promised that it ends in time.
        let yields = scheduler.playing().next().is_none();
        TurnRequest {
            due: self.dues(playing, schedule.live_shape).first().copied(),
            is_live,
            predicted,
            expected,
            piece: yields.then(|| predicted.mul_f64(self.pieces.longest(schedule.shape))),
            bulk: match is_live {
                true if schedule.pays_all => Duration::MAX,
                true => bulk,
                false => Duration::ZERO,
            },
            promised: promised_us.map(|at_us| self.instant(at_us)),
            is_checked: true,
        }
    }

    fn observe(&mut self, event: Event<'_>, scheduler: &mut Scheduler, sequences: &mut Sequences) {
        let rate_hz = self.sample_rate;
        let seconds = |samples: u64| audio_duration(samples, rate_hz).as_secs_f64();
        match event {
            Event::Added(sequence, start) => self.add(sequence, start, scheduler, sequences),
            Event::WarmedUp(shape, time) => self.observe_time(shape, time, scheduler),
            Event::Step(schedule, time, longest_piece) => {
                if self.costs.is_known() {
                    self.metrics.step_error(self.costs.predict(schedule.shape), time);
                    let longest = Duration::from_micros(self.costs.longest_us(schedule.shape));
                    self.device.note_pause(time.saturating_sub(longest));
                }
                self.observe_time(schedule.shape, time, scheduler);
                self.pieces.observe(schedule.shape, time, longest_piece);
                self.step_ends_at = None;
            }
            Event::Item(item, output) => {
                let is_unit = scheduler.is_unit(item.sequence);
                let generates = output.generated_tokens > 0 && self.makes_audio;
                if generates && (is_unit || !item.is_prefill) {
                    let audio_s = seconds(output.samples.len() as u64);
                    self.rate.observe(item.num_tokens, is_unit, audio_s);
                }
            }
            Event::Complete(sequence, last_samples) => {
                if let Some(stream) = self.streams.get(&sequence) {
                    let samples = sequences.generated_samples(sequence) + last_samples;
                    self.lengths.observe(stream.text_chars, seconds(samples));
                }
            }
            Event::Left(sequence) => {
                if self.streams.remove(&sequence).is_some() {
                    self.held.retain(|(held, _)| *held != sequence);
                }
            }
            Event::Output(sequence) => self.forecast_again(sequence, sequences),
            Event::Played(sequence) => {
                self.set_playback(sequence, scheduler, sequences);
                self.pause_if_asked(sequence, scheduler, sequences);
            }
            Event::Paused(sequence) => self.set_paused(sequence, true, scheduler),
            Event::CatchesUp(sequence) => self.bring_forward(sequence, scheduler, sequences),
            Event::CaughtUp(sequence) => {
                self.set_paused(sequence, false, scheduler);
                self.resume_playback(sequence, scheduler, sequences);
            }
            Event::PauseDue => self.pause_silent(scheduler, sequences),
            Event::Freed => self.start_held(scheduler, sequences),
            Event::Settled { is_idle } => self.publish_load(is_idle, scheduler, sequences),
            Event::Ended => self.device.set_load(EngineLoad::default(), true),
        }
    }

    fn next_pause(&self, sequences: &Sequences) -> Option<Instant> {
        self.pauses_at(sequences).map(|(_, at)| at).min()
    }

    fn outlook(&self, scheduler: &Scheduler, sequences: &Sequences) -> Outlook {
        self.predict_next(scheduler.num_waiting() + scheduler.num_running(), sequences)
    }

    fn learned(&self) -> (CostModel, StreamRate) {
        ((*self.costs).clone(), self.rate.of_a_step())
    }
}

/// The work of a prompt.
fn setup(work: &Workload) -> StepShape {
    match work {
        Workload::Units(units) => {
            StepShape { prefill_tokens: units.first().copied().unwrap_or(0), ..StepShape::default() }
        }
        Workload::Chunks { chunk, .. } => StepShape { prefill_tokens: *chunk, ..StepShape::default() },
        Workload::Encoder(units) => StepShape { encoder_tokens: units.iter().sum(), ..StepShape::default() },
        Workload::Autoregressive { prompt_tokens, encoders, .. } => StepShape {
            prefill_tokens: *prompt_tokens,
            encoder_tokens: encoders.iter().map(|encoder| encoder.tokens).sum(),
            ..StepShape::default()
        },
    }
}
