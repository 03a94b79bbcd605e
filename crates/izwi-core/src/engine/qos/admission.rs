//! Admission of live streams: whether all of them stay ahead of their players with one more, when it could start, and
//! what its listener is told.
//!
//! Pure: a [`Situation`] in, a [`Decision`] out. Must not know queues, clocks or what the audio is.

use std::time::Duration;

use izwi_audio::chunk::ChunkLengths;

use super::arbiter::BULK_SHARE;
use super::cost::{CostModel, StepShape, safety};
use crate::engine::types::Prediction;

/// Standard deviations of the accumulated step times that a stream is ahead of its player.
const DEVIATIONS: f64 = 5.0;
/// Chunks from the first one on after which the next one has to be in time.
const CHECKED_CHUNKS: usize = 16;
/// When so many seconds are owed to bulk work beyond its next piece, no stream starts alongside others until they are paid.
const MOST_OWED_S: f64 = 0.5;
/// Share of the device for streams that start.
const START_SHARE: f64 = 0.1;
/// Share of the device up to which an engine's streams start although only the share of prompts is left.
const LITTLE_SHARE: f64 = 0.03;
/// The most seconds that a first chunk is held back for a head start.
const MAX_RESERVE_S: f64 = 1.0;
/// The least idle share of the device that is counted on against the variation of step times.
const LEAST_IDLE: f64 = 0.04;
/// Share by which the silence before a stream slower than real time exceeds the prediction.
const PREBUFFER_MARGIN: f64 = 0.25;

/// What the streams of one model have in common, on average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StreamRate {
    /// Work of one step of one stream.
    pub step: StepShape,
    /// Seconds of audio that it makes.
    pub audio_s: f64,
}

/// A live stream that runs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LiveStream {
    /// Seconds that it is ahead of its player, at the time when its next chunk leaves; `None` before the first audio.
    pub ahead_s: Option<f64>,
    /// Expected seconds of audio that are not generated.
    pub left_s: f64,
    /// The most seconds that are counted on.
    pub most_left_s: f64,
    /// Expected seconds until its generation ends if its reader, not the device, is the limit; 0 otherwise.
    pub paced_s: f64,
    /// Work left before its first audio.
    pub setup: StepShape,
}

/// A live stream that is to start.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Work of its prompt.
    pub prompt: StepShape,
    /// Expected seconds of audio.
    pub length_s: f64,
    /// The most seconds that are counted on.
    pub most_s: f64,
    /// Lengths of its chunks.
    pub chunks: ChunkLengths,
    /// Samples per second of its audio.
    pub sample_rate: u32,
}

impl Candidate {
    /// Seconds of audio in its first chunk.
    pub fn first_chunk_s(&self) -> f64 {
        self.seconds(self.chunks.first())
    }

    /// Seconds of audio in most chunks.
    pub fn chunk_s(&self) -> f64 {
        self.seconds(self.chunks.common())
    }

    fn seconds(&self, samples: usize) -> f64 {
        samples as f64 / f64::from(self.sample_rate.max(1))
    }
}

/// A live stream of another engine on the device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OtherStream {
    /// Seconds of the device for a second of audio.
    pub utilisation: f64,
    /// Expected seconds until it ends.
    pub ends_s: f64,
}

/// A live stream that was accepted and waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeldStream {
    /// What it asks for.
    pub candidate: Candidate,
    /// Seconds that it has waited.
    pub waited_s: f64,
}

/// A live stream of another engine on the device that was accepted and waits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OtherHeld {
    /// Seconds of the device for a second of audio.
    pub utilisation: f64,
    /// Expected seconds of audio.
    pub length_s: f64,
    /// Seconds that it has waited.
    pub waited_s: f64,
}

/// What is known when a live stream asks to start.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// Time of steps.
    pub costs: &'a CostModel,
    /// Work and audio of a step of one stream.
    pub rate: StreamRate,
    /// Streams that run.
    pub streams: &'a [LiveStream],
    /// Streams that were accepted and wait, in their order.
    pub held: &'a [HeldStream],
    /// Streams of other engines.
    pub others: &'a [OtherStream],
    /// Streams of other engines that were accepted and wait.
    pub others_held: &'a [OtherHeld],
    /// Seconds until a step of another engine must start; infinite without one.
    pub others_ahead_s: f64,
    /// Variance of the device time of other engines, in seconds² for a second of audio.
    pub others_variance: f64,
    /// How long steps of other engines may hold up this one beyond their share, in seconds.
    pub others_blocking_s: f64,
    /// How long something else than the device's engines may hold it up, in seconds.
    pub pause_s: f64,
    /// Whether there is bulk work.
    pub has_bulk: bool,
    /// Seconds of the device that are owed to it.
    pub bulk_owed_s: f64,
    /// Seconds of its next piece.
    pub bulk_piece_s: f64,
    /// Expected seconds until the device is free.
    pub in_flight_s: f64,
    /// The most streams in a step; more take turns.
    pub batch: usize,
    /// The most streams at once.
    pub max_streams: usize,
    /// The longest predicted time to the first audio, in seconds.
    pub max_first_audio_s: f64,
}

/// What becomes of a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Decision {
    /// It starts now.
    Admit(Forecast),
    /// It starts when others have ended, in time for its first audio.
    Wait(Forecast),
    /// It is refused.
    Refuse {
        /// Predicted time until it would be accepted.
        retry_after: Duration,
    },
}

impl Decision {
    /// How an accepted stream is predicted to go.
    pub fn forecast(&self) -> Option<Forecast> {
        match self {
            Self::Admit(forecast) | Self::Wait(forecast) => Some(*forecast),
            Self::Refuse { .. } => None,
        }
    }
}

/// A stream that runs, of this engine or with the utilisation of another one's.
#[derive(Debug, Clone, Copy)]
struct Running {
    ends_s: f64,
    utilisation: Option<f64>,
}

/// A stream that is next to start.
#[derive(Debug, Clone, Copy)]
enum Next<'a> {
    Own(&'a Candidate),
    Other(&'a OtherHeld),
}

/// How a stream is predicted to go.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Forecast {
    /// What its listener is told; `None` before anything is known about the model.
    pub prediction: Option<Prediction>,
    /// Seconds of audio beyond the first chunk that are generated before the first chunk leaves.
    pub head_start_s: f64,
}

impl Situation<'_> {
    /// Decides about a stream that arrives now.
    pub fn decide(&self, candidate: &Candidate) -> Decision {
        if !self.costs.is_known() || self.rate.audio_s <= 0.0 {
            let unknown = Forecast { prediction: None, head_start_s: 0.0 };
            return if self.streams.is_empty() && self.held.is_empty() {
                Decision::Admit(unknown)
            } else {
                Decision::Wait(unknown)
            };
        }
        let capacity = self.capacity();
        let start_s = self.start_s(candidate);
        let beside = self.streams.len().min(capacity.saturating_sub(1));
        let (forecast, first_audio_s) = self.forecast(candidate, start_s, beside);
        let is_alone = self.streams.is_empty() && self.held.is_empty() && self.others.is_empty();
        if first_audio_s > self.max_first_audio_s && !is_alone {
            return Decision::Refuse { retry_after: seconds(first_audio_s - self.max_first_audio_s) };
        }
        if start_s > 0.0 || !self.held.is_empty() {
            Decision::Wait(forecast)
        } else {
            Decision::Admit(forecast)
        }
    }

    /// From the arrival of a stream until its listener hears it; zero before anything is known.
    pub fn first_sound(&self, candidate: &Candidate) -> Duration {
        if !self.costs.is_known() || self.rate.audio_s <= 0.0 {
            return Duration::ZERO;
        }
        let beside = self.streams.len().min(self.capacity().saturating_sub(1));
        let (forecast, first_audio_s) = self.forecast(candidate, self.start_s(candidate), beside);
        seconds(first_audio_s) + forecast.prediction.map_or(Duration::ZERO, |told| told.prebuffer)
    }

    /// Time in which each of `sequences` sequences has a step; zero before anything is known.
    pub fn round(&self, sequences: usize) -> Duration {
        if self.costs.is_known() { seconds(self.step_s(sequences)) } else { Duration::ZERO }
    }

    /// Time of one more position of a prompt; zero before anything is known.
    pub fn prompt_token(&self) -> Duration {
        let tokens = |prefill_tokens| StepShape { prefill_tokens, ..StepShape::default() };
        seconds((self.costs.seconds(tokens(1_000)) - self.costs.seconds(tokens(0))).max(0.0) / 1_000.0)
    }

    /// Whether the first stream that waits can start now. Streams of other engines that have waited longer come first.
    pub fn can_start(&self) -> bool {
        let waited_s = self.held.first().map_or(0.0, |held| held.waited_s);
        if self.others_held.iter().any(|other| other.waited_s > waited_s) {
            return false;
        }
        if !self.costs.is_known() || self.rate.audio_s <= 0.0 {
            return self.streams.is_empty();
        }
        self.streams.len() < self.capacity() && !self.owes_bulk()
    }

    /// Whether bulk work comes before another stream.
    fn owes_bulk(&self) -> bool {
        let is_alone = self.streams.is_empty() && self.others.is_empty();
        !is_alone && self.has_bulk && self.bulk_owed_s >= self.bulk_piece_s + MOST_OWED_S
    }

    /// Seconds in which each of `streams` streams has a step.
    pub(in crate::engine) fn step_s(&self, streams: usize) -> f64 {
        let (rounds, rest) = (streams / self.batch.max(1), streams % self.batch.max(1));
        let rest_s = if rest > 0 { self.batch_s(rest) } else { 0.0 };
        if rounds > 0 { rounds as f64 * self.batch_s(self.batch) + rest_s } else { rest_s }
    }

    /// Seconds of a step of `streams` streams. Of steps much larger than those observed no gain is expected.
    fn batch_s(&self, streams: usize) -> f64 {
        let StepShape { decodes, prefill_tokens, encoder_tokens, .. } = self.rate.step;
        let seconds = |streams: usize| {
            self.costs.seconds(StepShape {
                decodes: decodes * streams,
                prefill_tokens: prefill_tokens * streams,
                encoder_tokens: encoder_tokens * streams,
                ..StepShape::default()
            })
        };
        let known = self.costs.most_decodes();
        if decodes == 0 || streams <= known {
            return seconds(streams);
        }
        seconds(streams).max(seconds(known) * streams as f64 / known as f64)
    }

    /// Share of the device that bulk work uses.
    fn bulk_share(&self) -> f64 {
        if self.has_bulk { BULK_SHARE } else { 0.0 }
    }

    /// Share of the device that streams of other engines use.
    pub(super) fn others_share(&self) -> f64 {
        self.others.iter().map(|other| other.utilisation).sum()
    }

    /// The most streams of this engine at once: a step of all of them takes no longer than its audio plays, with the shares
    /// of bulk work and of other engines left. One stream is always kept, if it is the only one of the device.
    pub fn capacity(&self) -> usize {
        let others = self.others_share();
        let fits = |streams: usize| keeps(self.step_s(streams) / self.rate.audio_s, others);
        let (mut low, mut high) = (0, self.max_streams.max(1));
        while low < high {
            let middle = (low + high).div_ceil(2);
            if fits(middle) { low = middle } else { high = middle - 1 }
        }
        if self.others.is_empty() { low.max(1) } else { low }
    }

    /// Seconds until the candidate may start: all that wait on the device start in their order, each when enough have ended.
    pub(super) fn start_s(&self, candidate: &Candidate) -> f64 {
        let own =
            self.streams.iter().map(|stream| Running { ends_s: self.ends_s(stream), utilisation: None });
        let other =
            |other: &OtherStream| Running { ends_s: other.ends_s, utilisation: Some(other.utilisation) };
        let mut running: Vec<Running> = own.chain(self.others.iter().map(other)).collect();
        let own = self.held.iter().map(|held| (held.waited_s, Next::Own(&held.candidate)));
        let other = self.others_held.iter().map(|other| (other.waited_s, Next::Other(other)));
        let mut queue: Vec<(f64, Next<'_>)> = own.chain(other).collect();
        queue.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        queue.push((0.0, Next::Own(candidate)));
        let mut start_s = if self.owes_bulk() { self.bulk_owed_s } else { 0.0 };
        for (_, next) in queue {
            running.sort_by(|a, b| b.ends_s.total_cmp(&a.ends_s));
            while running.last().is_some_and(|last| last.ends_s <= start_s) {
                running.pop();
            }
            while !self.fits(&running, next)
                && let Some(ended) = running.pop()
            {
                start_s = start_s.max(ended.ends_s);
            }
            let own = running.iter().filter(|running| running.utilisation.is_none()).count();
            running.push(match next {
                Next::Own(next) => Running {
                    ends_s: start_s + self.generation_s(next.prompt, next.length_s, own + 1),
                    utilisation: None,
                },
                Next::Other(other) => {
                    Running { ends_s: start_s + other.length_s, utilisation: Some(other.utilisation) }
                }
            });
        }
        start_s
    }

    /// Whether the device keeps another stream alongside those that run.
    fn fits(&self, running: &[Running], next: Next<'_>) -> bool {
        let own = running.iter().filter(|stream| stream.utilisation.is_none()).count();
        let others: f64 = running.iter().filter_map(|stream| stream.utilisation).sum();
        let share = |own: usize| if own > 0 { self.step_s(own) / self.rate.audio_s } else { 0.0 };
        let keeps = match next {
            Next::Own(_) => own < self.max_streams && keeps(share(own + 1), others),
            Next::Other(other) => keeps(other.utilisation, share(own) + others),
        };
        running.is_empty() || keeps
    }

    fn ends_s(&self, stream: &LiveStream) -> f64 {
        let device_s = self.generation_s(stream.setup, stream.left_s, self.streams.len());
        device_s.max(stream.paced_s)
    }

    /// Seconds to generate audio alongside other streams, bulk work and prompts.
    fn generation_s(&self, setup: StepShape, audio_s: f64, streams: usize) -> f64 {
        let share = (1.0 - self.others_share() - self.bulk_share() - START_SHARE).max(0.1);
        (self.setup_s(setup) + audio_s / self.rate.audio_s * self.step_s(streams.max(1))) / share
    }

    /// Seconds of the work before the first audio.
    fn setup_s(&self, setup: StepShape) -> f64 {
        (self.costs.seconds(setup) - self.costs.seconds(StepShape::default())).max(0.0)
    }

    /// The forecast of the candidate, and the predicted seconds to its first audio.
    fn forecast(&self, candidate: &Candidate, start_s: f64, beside: usize) -> (Forecast, f64) {
        let step_s = self.step_s(beside + 1) / (1.0 - self.others_share() - self.bulk_share()).max(0.1);
        let (rtf, prebuffer, head_start_s) = self.pace(candidate, beside + 1);
        let first_s = (candidate.first_chunk_s() + head_start_s).min(candidate.length_s);
        // Where each step is a unit, the first unit is the prompt.
        let is_unit = self.rate.step.decodes == 0;
        let steps = if is_unit { 0.0 } else { (first_s / self.rate.audio_s).ceil().max(1.0) };
        let first_audio_s =
            start_s.max(self.in_flight_s) + self.startup_s(candidate, beside) + steps * step_s;
        let prediction = Prediction { first_audio: seconds(first_audio_s), rtf, prebuffer };
        (Forecast { prediction: Some(prediction), head_start_s }, first_audio_s)
    }

    /// How a stream that begins to play continues alongside those that run: its real-time factor, the silence before it, and its
    /// head start in seconds. `None` before anything is known about the model.
    pub fn playing(&self, candidate: &Candidate) -> Option<(f32, Duration, f64)> {
        let is_known = self.costs.is_known() && self.rate.audio_s > 0.0;
        is_known.then(|| self.pace(candidate, self.streams.len().max(1)))
    }

    fn pace(&self, candidate: &Candidate, streams: usize) -> (f32, Duration, f64) {
        let step_s = self.step_s(streams) / (1.0 - self.others_share()).max(0.1);
        let rtf = step_s / self.rate.audio_s;
        let steps = candidate.most_s / self.rate.audio_s;
        let head_start_s = if rtf < 1.0 { self.head_start_s(candidate, streams, step_s) } else { 0.0 };
        let rtf_beside_bulk = rtf / (1.0 - BULK_SHARE);
        let late_s = candidate.most_s * (rtf_beside_bulk - 1.0)
            + DEVIATIONS * self.costs.deviation() * step_s * steps.sqrt();
        let prebuffer_s = if rtf_beside_bulk > 1.0 { (1.0 + PREBUFFER_MARGIN) * late_s } else { 0.0 };
        (rtf as f32, seconds(prebuffer_s), head_start_s)
    }

    /// Seconds for the prompt. Streams that play continue meanwhile: what they are ahead is spent on it, and what is missing is
    /// earned first, by the share of the device that is idle.
    fn startup_s(&self, candidate: &Candidate, beside: usize) -> f64 {
        let starting = self.streams.iter().filter(|stream| stream.ahead_s.is_none());
        let queued_s: f64 = starting.map(|stream| self.setup_s(stream.setup)).sum();
        let work_s = queued_s + self.setup_s(candidate.prompt);
        let ahead =
            self.streams.iter().filter_map(|stream| stream.ahead_s).fold(self.others_ahead_s, f64::min);
        let missing_s = (work_s - ahead.max(0.0)).max(0.0);
        let own_share = if beside > 0 { self.step_s(beside) / self.rate.audio_s } else { 0.0 };
        let idle = (1.0 - own_share - self.others_share() - self.bulk_share()).max(START_SHARE);
        work_s + missing_s * (1.0 / idle - 1.0)
    }

    /// Seconds of audio beyond the first chunk that are generated before it leaves: the steps of each chunk after it end
    /// before the chunks before it are played, even if one of these steps is long.
    fn head_start_s(&self, candidate: &Candidate, streams: usize, step_s: f64) -> f64 {
        let Candidate { chunks, length_s, .. } = *candidate;
        let longest_s = safety(self.costs) * step_s;
        let held = usize::from(chunks.waits_for_next());
        let steps = |end: usize| (candidate.seconds(end + held) / self.rate.audio_s - 1e-6).ceil().max(1.0);
        let first = chunks.first();
        let ends = std::iter::successors(Some(first), |at| Some(chunks.end(*at)));
        let late_s = |at: usize| {
            let behind = steps(chunks.end(at)) - steps(first);
            behind * step_s + longest_s - step_s - candidate.seconds(at)
        };
        let latest_s = ends.take(CHECKED_CHUNKS).map(late_s).fold(0.0, f64::max);
        let missing = (latest_s / longest_s).ceil();
        // Just less than whole steps make.
        let whole_s = (steps(first) + missing) * self.rate.audio_s - candidate.first_chunk_s() - 1e-3;
        let ahead_s = if missing > 0.0 { whole_s } else { 0.0 };
        (self.reserve_s(streams, length_s) + self.pause_s).max(ahead_s).min(MAX_RESERVE_S)
    }

    /// Seconds that a stream of `length_s` must be ahead beside `streams` in all, so that neither the variation of step times
    /// nor steps of other engines overtake it: the largest value of `DEVIATIONS` √(variance · t) − idle · t over its time.
    fn reserve_s(&self, streams: usize, length_s: f64) -> f64 {
        let load = self.step_s(streams) / self.rate.audio_s + self.others_share() + BULK_SHARE;
        let idle = (1.0 - load).max(LEAST_IDLE);
        let spread = DEVIATIONS * (self.others_variance + self.variance(streams)).sqrt();
        let worst_s = (spread / (2.0 * idle)).powi(2).min(length_s);
        (spread * worst_s.sqrt() - worst_s * idle + self.others_blocking_s).clamp(0.0, MAX_RESERVE_S)
    }

    /// Variance of the time of steps of `streams` streams, in seconds² for a second of audio.
    fn variance(&self, streams: usize) -> f64 {
        (self.costs.deviation() * self.step_s(streams)).powi(2) / self.rate.audio_s
    }

    /// Variance of the time of steps of the streams that run, in seconds² for a second of audio.
    pub fn running_variance(&self) -> f64 {
        if self.streams.is_empty() || self.rate.audio_s <= 0.0 {
            0.0
        } else {
            self.variance(self.streams.len())
        }
    }

    /// The longest time of a step of the streams that run.
    pub fn running_step_s(&self) -> f64 {
        if self.streams.is_empty() {
            0.0
        } else {
            safety(self.costs) * self.step_s(self.streams.len().min(self.batch))
        }
    }

    /// Seconds that the streams that run must stay ahead of their players.
    pub fn running_reserve_s(&self) -> f64 {
        if self.rate.audio_s <= 0.0 {
            return 0.0;
        }
        self.reserve_s(self.streams.len().max(1), f64::INFINITY) + self.behind_s()
    }

    /// Seconds that the streams that play will fall behind their players until they end, where audio is generated slower than
    /// it plays: what they are ahead is for that.
    pub fn behind_s(&self) -> f64 {
        let step_s = self.step_s(self.streams.len().max(1)) / (1.0 - self.others_share()).max(0.1);
        let loss = if self.rate.audio_s > 0.0 { (step_s / self.rate.audio_s - 1.0).max(0.0) } else { 0.0 };
        let playing = self.streams.iter().filter(|stream| stream.ahead_s.is_some());
        playing.map(|stream| (1.0 + PREBUFFER_MARGIN) * loss * stream.most_left_s).fold(0.0, f64::max)
    }

    /// Seconds of the device for a second of audio, shared equally by the streams that run.
    pub fn utilisation(&self) -> f64 {
        let streams = self.streams.len().max(1);
        if self.rate.audio_s > 0.0 { self.step_s(streams) / self.rate.audio_s / streams as f64 } else { 0.0 }
    }

    /// Expected seconds until a stream that runs ends.
    pub fn expected_end_s(&self, stream: &LiveStream) -> f64 {
        if self.rate.audio_s > 0.0 { self.ends_s(stream) } else { 0.0 }
    }
}

/// Whether the device keeps the streams of an engine, which need a share of it, alongside those of others, with the shares of bulk
/// work and of prompts left. Streams that need very little may have it of the share of prompts.
fn keeps(share: f64, others: f64) -> bool {
    let prompts = if share > LITTLE_SHARE { START_SHARE } else { 0.0 };
    share + others <= 1.0 - BULK_SHARE - prompts
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

/// Learned length of audio: per character of its text, and per request without one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LengthModel {
    per_char_s: f64,
    per_request_s: f64,
    /// Mean square of measured over expected length, less one.
    spread: f64,
}

impl Default for LengthModel {
    /// Fifteen characters a second, and an answer of eight seconds.
    fn default() -> Self {
        Self { per_char_s: 1.0 / 15.0, per_request_s: 8.0, spread: 0.01 }
    }
}

impl LengthModel {
    /// Weight of a new observation.
    const WEIGHT: f64 = 0.05;
    /// Standard deviations of a length that are counted on.
    const DEVIATIONS: f64 = 2.5;
    /// Characters that the start and the end of an utterance count as.
    const EDGE_CHARS: f64 = 4.0;

    /// Learns the length of audio that was generated whole.
    pub fn observe(&mut self, text_chars: Option<usize>, audio_s: f64) {
        let ratio = (audio_s / self.expected_s(text_chars).max(0.1)).min(2.0);
        self.spread += Self::WEIGHT * ((ratio - 1.0).powi(2) - self.spread);
        match text_chars {
            Some(chars) => {
                let measured = audio_s / (chars as f64 + Self::EDGE_CHARS);
                self.per_char_s += Self::WEIGHT * (measured - self.per_char_s);
            }
            None => self.per_request_s += Self::WEIGHT * (audio_s - self.per_request_s),
        }
    }

    /// Expected seconds of audio.
    pub fn expected_s(&self, text_chars: Option<usize>) -> f64 {
        text_chars.map_or(self.per_request_s, |chars| self.per_char_s * (chars as f64 + Self::EDGE_CHARS))
    }

    /// The longest length that is counted on, over the expected one.
    pub fn margin(&self) -> f64 {
        1.0 + Self::DEVIATIONS * self.spread.sqrt()
    }

    /// The most seconds left after `done_s` that are counted on.
    pub fn most_left_s(&self, text_chars: Option<usize>, done_s: f64) -> f64 {
        let expected = self.expected_s(text_chars);
        (self.margin() * expected - done_s).max(0.1 * expected)
    }

    /// Expected seconds that are left after `done_s`.
    pub fn left_s(&self, text_chars: Option<usize>, done_s: f64) -> f64 {
        let expected = self.expected_s(text_chars);
        (expected - done_s).max(0.1 * expected)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME_S: f64 = 0.08;
    const RATE: StreamRate = StreamRate { step: StepShape::decode(1), audio_s: FRAME_S };

    /// `fixed` plus `each` seconds for each stream, a millisecond for each token, without noise.
    fn costs(fixed: f64, each: f64) -> CostModel {
        let mut costs = CostModel::default();
        for step in 0..400usize {
            let shape = StepShape {
                decodes: 1 + step % 8,
                prefill_tokens: if step % 3 == 0 { step % 90 } else { 0 },
                ..StepShape::default()
            };
            let time = fixed + each * shape.decodes as f64 + 0.001 * shape.prefill_tokens as f64;
            costs.observe(shape, Duration::from_secs_f64(time));
        }
        costs
    }

    fn situation<'a>(costs: &'a CostModel, streams: &'a [LiveStream]) -> Situation<'a> {
        Situation {
            costs,
            rate: RATE,
            streams,
            held: &[],
            others: &[],
            others_held: &[],
            others_ahead_s: f64::INFINITY,
            others_variance: 0.0,
            others_blocking_s: 0.0,
            pause_s: 0.0,
            has_bulk: false,
            bulk_owed_s: 0.0,
            bulk_piece_s: 0.0,
            in_flight_s: 0.0,
            batch: 64,
            max_streams: 64,
            max_first_audio_s: 2.0,
        }
    }

    fn stream(left_s: f64) -> LiveStream {
        LiveStream {
            ahead_s: Some(0.5),
            left_s,
            most_left_s: left_s,
            paced_s: 0.0,
            setup: StepShape::default(),
        }
    }

    fn candidate() -> Candidate {
        let prompt = StepShape { prefill_tokens: 100, ..StepShape::default() };
        let chunks = ChunkLengths::new(4_800, None);
        Candidate { prompt, length_s: 8.0, most_s: 8.0, chunks, sample_rate: 24_000 }
    }

    fn prediction(decision: Decision) -> Prediction {
        match decision {
            Decision::Admit(forecast) | Decision::Wait(forecast) => forecast.prediction.unwrap(),
            Decision::Refuse { .. } => panic!("{decision:?}"),
        }
    }

    #[test]
    fn streams_are_admitted_up_to_what_the_device_keeps_with_a_share_for_bulk_work() {
        // 64 ms of 80 are for streams: (64 - 20) / 5.5 = 8.
        let costs = costs(0.02, 0.0055);
        for playing in 0..12 {
            let streams = vec![stream(8.0); playing];
            let decision = situation(&costs, &streams).decide(&candidate());
            assert_eq!(matches!(decision, Decision::Admit(_)), playing < 8, "{playing}: {decision:?}");
        }
    }

    #[test]
    fn the_first_audio_is_predicted_from_the_prompt_and_the_steps_of_a_chunk() {
        let costs = costs(0.02, 0.0065);
        let alone = prediction(situation(&costs, &[]).decide(&candidate()));
        // The prompt's tokens, and three steps of 26.5 ms.
        assert!((alone.first_audio.as_secs_f64() - 0.1795).abs() < 0.01, "{alone:?}");
        assert!((f64::from(alone.rtf) - 0.33).abs() < 0.02 && alone.prebuffer.is_zero(), "{alone:?}");
    }

    #[test]
    fn a_machine_slower_than_real_time_serves_one_and_tells_the_silence_before_it() {
        let costs = costs(0.09, 0.03);
        let decision = situation(&costs, &[]).decide(&candidate());
        assert!(matches!(decision, Decision::Admit(_)));
        let told = prediction(decision);
        assert!((f64::from(told.rtf) - 1.5).abs() < 0.05, "{told:?}");
        // Two thirds of eight seconds, since bulk work has its share, and a quarter more.
        assert!((6.4..7.3).contains(&told.prebuffer.as_secs_f64()), "{told:?}");
        let streams = [stream(8.0)];
        assert!(matches!(situation(&costs, &streams).decide(&candidate()), Decision::Refuse { .. }));
    }

    #[test]
    fn a_stream_waits_for_an_end_that_is_near_and_is_told_the_time_of_one_that_is_not() {
        let costs = costs(0.02, 0.0055);
        let mut streams = vec![stream(8.0); 8];
        let Decision::Refuse { retry_after } = situation(&costs, &streams).decide(&candidate()) else {
            panic!("eight more seconds are too long");
        };
        // Eight seconds at 64 ms for 80 are 6.4, with the share of prompts 7.1, and the stream may wait for two.
        assert!((5.1..5.9).contains(&retry_after.as_secs_f64()), "{retry_after:?}");
        streams[3].left_s = 1.0;
        let decision = situation(&costs, &streams).decide(&candidate());
        assert!(matches!(decision, Decision::Wait(_)), "{decision:?}");
        let waits = prediction(decision).first_audio.as_secs_f64();
        assert!((1.0..1.6).contains(&waits), "{waits}");
        // The next one waits after it, for the other seven.
        let held = [HeldStream { candidate: candidate(), waited_s: 1.0 }];
        let behind = Situation { held: &held, ..situation(&costs, &streams) }.decide(&candidate());
        assert!(matches!(behind, Decision::Refuse { .. }), "{behind:?}");
    }

    #[test]
    fn streams_of_other_engines_share_the_device() {
        let costs = costs(0.02, 0.0065);
        let others = [OtherStream { utilisation: 0.45, ends_s: 3.0 }];
        let shared = Situation { others: &others, ..situation(&costs, &[]) };
        // 28 ms of 80.
        assert_eq!(shared.capacity(), 1);
        let others = [OtherStream { utilisation: 0.8, ends_s: 3.0 }];
        let full = Situation { others: &others, ..situation(&costs, &[]) };
        assert_eq!(full.capacity(), 0);
        let Decision::Refuse { retry_after } = full.decide(&candidate()) else {
            panic!("the device is full")
        };
        assert!((1.0..4.0).contains(&retry_after.as_secs_f64()), "{retry_after:?}");
    }

    #[test]
    fn streams_of_all_engines_start_in_the_order_in_which_they_came() {
        let costs = costs(0.02, 0.0065);
        let held = [HeldStream { candidate: candidate(), waited_s: 1.0 }];
        let other = |waited_s| [OtherHeld { utilisation: 0.5, length_s: 8.0, waited_s }];
        let (younger, older) = (other(0.5), other(2.0));
        let own = Situation { held: &held, ..situation(&costs, &[]) };
        assert!(Situation { others_held: &younger, ..own }.can_start());
        assert!(!Situation { others_held: &older, ..own }.can_start());
        // Those that wait take turns, and a stream that comes now waits for the first one's end.
        let behind = [older, younger].concat();
        let two = Situation { others_held: &behind, max_first_audio_s: 60.0, ..situation(&costs, &[]) };
        let told = prediction(two.decide(&candidate()));
        assert!(told.first_audio.as_secs_f64() > 8.0, "{told:?}");
    }

    #[test]
    fn noise_is_met_by_a_head_start_and_only_where_it_is_needed() {
        let noisy = |each: f64| {
            let mut costs = CostModel::default();
            for step in 0..800usize {
                let factor = 0.7 + 0.6 * ((step * 7919) % 101) as f64 / 100.0;
                let decodes = 1 + step % 4;
                let time = (0.01 + each * decodes as f64) * factor;
                costs.observe(StepShape::decode(decodes), Duration::from_secs_f64(time));
            }
            costs
        };
        let head_start = |costs: &CostModel| match situation(costs, &[]).decide(&candidate()) {
            Decision::Admit(forecast) => forecast.head_start_s,
            other => panic!("{other:?}"),
        };
        assert!(head_start(&noisy(0.01)) < 0.02);
        assert!((0.05..0.4).contains(&head_start(&noisy(0.062))), "{}", head_start(&noisy(0.062)));
        assert!(head_start(&costs(0.01, 0.05)) < 0.02);
        // Without noise too: three frames of 72 ms are the second chunk, and the first one plays for 200.
        assert!((0.1..0.12).contains(&head_start(&costs(0.01, 0.062))));
    }

    #[test]
    fn after_a_pause_streams_begin_ahead_of_another_one() {
        let costs = costs(0.01, 0.01);
        let told = |pause_s| {
            let now = Situation { pause_s, ..situation(&costs, &[]) };
            let forecast = now.decide(&candidate()).forecast().unwrap();
            (forecast.head_start_s, forecast.prediction.unwrap().first_audio.as_secs_f64())
        };
        let ((none_s, soon_s), (ahead_s, later_s)) = (told(0.0), told(0.4));
        assert!((0.4..0.401).contains(&(ahead_s - none_s)), "{none_s} and {ahead_s}");
        // Five steps more of 20 ms.
        assert!((0.09..0.13).contains(&(later_s - soon_s)), "{soon_s} and {later_s}");
        assert!(told(60.0).0 <= MAX_RESERVE_S);
    }

    #[test]
    fn short_chunks_at_the_start_need_no_head_start_where_audio_is_generated_as_it_plays() {
        let head_start = |costs: &CostModel, first: Option<usize>| {
            let chunks = ChunkLengths::new(4_800, first);
            match situation(costs, &[]).decide(&Candidate { chunks, ..candidate() }) {
                Decision::Admit(forecast) => forecast.head_start_s,
                other => panic!("{other:?}"),
            }
        };
        // A frame of 80 ms takes 62, and at most 68: each is there when the one before it is played.
        let short = head_start(&costs(0.01, 0.052), Some(1_920));
        assert!(short < 0.02, "{short}");
        // Alongside bulk work one that takes 76 takes longer than it plays.
        let short = head_start(&costs(0.01, 0.066), Some(1_920));
        assert!((0.07..0.2).contains(&short), "{short}");
    }

    #[test]
    fn bulk_work_that_is_owed_more_than_its_next_piece_comes_before_another_stream() {
        let costs = costs(0.02, 0.0055);
        let streams = [stream(20.0)];
        let owed = |has_bulk, bulk_owed_s, bulk_piece_s| Situation {
            has_bulk,
            bulk_owed_s,
            bulk_piece_s,
            ..situation(&costs, &streams)
        };
        let held = [HeldStream { candidate: candidate(), waited_s: 1.0 }];
        let can_start = |situation: Situation<'_>| Situation { held: &held, ..situation }.can_start();
        assert!(!can_start(owed(true, 0.7, 0.1)));
        assert!(can_start(owed(true, 1.9, 1.7)), "a piece waits until all of it is owed");
        assert!(!can_start(owed(true, 2.3, 1.7)));
        assert!(can_start(owed(false, 2.3, 0.0)), "nothing waits for what is owed");
    }

    #[test]
    fn nothing_known_admits_one_stream() {
        let costs = CostModel::default();
        assert!(matches!(situation(&costs, &[]).decide(&candidate()), Decision::Admit(_)));
        let streams = [stream(1.0)];
        assert!(matches!(situation(&costs, &streams).decide(&candidate()), Decision::Wait(_)));
        assert!(!situation(&costs, &streams).can_start());
    }

    #[test]
    fn lengths_are_learned_from_characters() {
        let mut lengths = LengthModel::default();
        for _ in 0..200 {
            lengths.observe(Some(96), 10.0);
            lengths.observe(None, 3.0);
        }
        assert!((lengths.expected_s(Some(196)) - 20.0).abs() < 0.1);
        assert!((lengths.expected_s(None) - 3.0).abs() < 0.1);
        assert!((lengths.left_s(Some(96), 4.0) - 6.0).abs() < 0.1);
        assert!((lengths.left_s(Some(96), 40.0) - 1.0).abs() < 0.1);
    }
}
