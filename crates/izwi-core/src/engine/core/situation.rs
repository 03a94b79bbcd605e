//! What is known about the live streams of the device: for decisions, for the other engines, and for the status.
//!
//! Must not know samples or channels.

use std::time::Duration;

use izwi_audio::chunk::ChunkLengths;
use tokio::time::Instant;

use super::EngineCore;
use super::live::Stream;
use crate::engine::admission::{
    Candidate, Decision, HeldStream, LiveStream, OtherHeld, OtherStream, Situation, StreamRate,
};
use crate::engine::arbiter::{EngineLoad, HeldLoad, StreamLoad};
use crate::engine::cost::StepShape;
use crate::engine::types::{SequenceId, audio_duration};

impl EngineCore {
    /// Publishes what live streams need of the device, and whether the engine has nothing to do.
    pub(super) fn publish_load(&mut self, is_idle: bool) {
        let due = self.scheduler.deadline().map(|deadline| self.due(deadline));
        let now = Instant::now();
        for (id, stream) in &mut self.live.streams {
            stream.is_forgotten |= stream.is_stalled(now, self.sequences.playback_end(*id));
        }
        let load = self.with_situation(|situation| {
            let utilisation = situation.utilisation();
            let load = |stream| StreamLoad {
                utilisation,
                ends_at: now + Duration::from_secs_f64(situation.expected_end_s(stream).clamp(0.0, 1e6)),
            };
            let held = |held: &HeldStream| HeldLoad {
                utilisation,
                length_s: held.candidate.length_s,
                since: now - Duration::from_secs_f64(held.waited_s),
            };
            // Those that the device does not hold up do not hold it up.
            let held_places = situation.max_streams.saturating_sub(situation.streams.len());
            EngineLoad {
                held: situation.held.iter().take(held_places).map(held).collect(),
                streams: situation.streams.iter().map(load).collect(),
                step_s: situation.running_step_s(),
                variance: situation.running_variance(),
                behind: Duration::from_secs_f64(situation.behind_s().clamp(0.0, 1e6)),
                ..EngineLoad::default()
            }
        });
        let (has_bulk, bulk_piece) = (self.scheduler.has_bulk(), self.scheduler.bulk_piece());
        self.device.set_load(EngineLoad { due, has_bulk, bulk_piece, ..load }, is_idle);
    }

    /// Predicts for the status whether another live stream would be refused now, and how soon it would be heard.
    pub(super) fn predict_next(&mut self) {
        let (refusal, first_sound, step_with_another, prompt_token) = self.with_situation(|situation| {
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
            let sequences = self.scheduler.num_waiting() + self.scheduler.num_running();
            (
                refusal,
                situation.first_sound(&self.live.last_candidate.unwrap_or(least)),
                situation.round(sequences + 1),
                situation.prompt_token(),
            )
        });
        let refuses_until = refusal.filter(|_| self.config.admission).map(|after| Instant::now() + after);
        let status = &mut self.status;
        (status.refuses_until, status.first_sound) = (refuses_until, first_sound);
        (status.step_with_another, status.prompt_token) = (step_with_another, prompt_token);
    }

    /// Calls `use_it` with what is known now.
    pub(super) fn with_situation<T>(&self, use_it: impl FnOnce(&Situation<'_>) -> T) -> T {
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
            bulk_piece_s: device.bulk_piece_s,
            in_flight_s: device.free_at.into_iter().chain(live.step_ends_at).map(until_s).fold(0.0, f64::max),
            batch: self.config.max_batch_size,
            max_streams: self.config.max_running_requests.min(states.max(1)),
            max_first_audio_s: self.config.max_first_audio.as_secs_f64(),
        })
    }

    fn live_stream(&self, id: SequenceId, stream: &Stream, rate: StreamRate, now: Instant) -> LiveStream {
        let done = audio_duration(self.sequences.generated_samples(id), self.sample_rate).as_secs_f64();
        let left_s =
            self.live.lengths.left_s(stream.text_chars, done).min(stream.candidate.length_s.max(0.1));
        let most_left_s =
            self.live.lengths.most_left_s(stream.text_chars, done).min(stream.candidate.most_s.max(0.1));
        let Some(end) = self.sequences.playback_end(id) else {
            let setup = stream.candidate.prompt;
            return LiveStream { ahead_s: None, left_s, most_left_s, paced_s: 0.0, setup };
        };
        let played_s = end.saturating_duration_since(now).as_secs_f64();
        let missing = self.sequences.chunk_progress(id).map_or(0, |(_, missing)| missing);
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
