//! What is known about the live streams of the device: for decisions, for the other engines, and for the status.
//!
//! Must not know samples or channels.

use std::time::Duration;

use izwi_audio::chunk::ChunkLengths;
use tokio::time::Instant;

use super::Outlook;
use super::admission::{
    Candidate, Decision, HeldStream, LiveStream, OtherHeld, OtherStream, Situation, StreamRate,
};
use super::arbiter::{EngineLoad, HeldLoad, StreamLoad};
use super::cost::StepShape;
use super::live::{LiveStreams, Stream};
use super::pausing::excess;
use crate::engine::scheduler::Scheduler;
use crate::engine::sequences::Sequences;
use crate::engine::types::{SequenceId, audio_duration};

impl LiveStreams {
    /// Publishes what live streams need of the device, and whether the engine has nothing to do.
    pub(super) fn publish_load(&mut self, is_idle: bool, scheduler: &Scheduler, sequences: &Sequences) {
        let dues = self.dues(scheduler.playing(), StepShape::decode(scheduler.playing().count()));
        let now = Instant::now();
        for (id, stream) in &mut self.streams {
            stream.is_forgotten |= stream.is_stalled(now, sequences.playback_end(*id));
        }
        let (load, excess) = self.with_situation(sequences, |situation| {
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
            let load = EngineLoad {
                held: situation.held.iter().take(held_places).map(held).collect(),
                streams: situation.streams.iter().map(load).collect(),
                step_s: situation.running_step_s(),
                variance: situation.running_variance(),
                behind: Duration::from_secs_f64(situation.behind_s().clamp(0.0, 1e6)),
                ..EngineLoad::default()
            };
            (load, excess(situation))
        });
        self.ask_to_pause(excess, sequences);
        let (has_bulk, bulk_piece) = (scheduler.has_bulk(), scheduler.bulk_piece());
        self.device.set_load(EngineLoad { dues, has_bulk, bulk_piece, ..load }, is_idle);
    }

    /// Predicts whether another live stream would be refused now, and how soon it would be heard beside `open` sequences.
    pub(super) fn predict_next(&self, open: usize, sequences: &Sequences) -> Outlook {
        self.with_situation(sequences, |situation| {
            let length_s = situation.rate.audio_s;
            let samples = (length_s * f64::from(self.sample_rate)) as usize;
            let least = Candidate {
                prompt: StepShape::default(),
                length_s,
                most_s: length_s,
                chunks: ChunkLengths::new(samples, None),
                sample_rate: self.sample_rate,
            };
            let refuses_until = match situation.decide(&least) {
                Decision::Refuse { retry_after } if self.config.admission => {
                    Some(Instant::now() + retry_after)
                }
                _ => None,
            };
            Outlook {
                refuses_until,
                first_sound: situation.first_sound(&self.last_candidate.unwrap_or(least)),
                step_with_another: situation.round(open + 1),
                prompt_token: situation.prompt_token(),
                held: self.held.len(),
            }
        })
    }

    /// Calls `use_it` with what is known now.
    pub(super) fn with_situation<T>(
        &self,
        sequences: &Sequences,
        use_it: impl FnOnce(&Situation<'_>) -> T,
    ) -> T {
        let (now, rate) = (Instant::now(), self.rate.of_a_step());
        let streams: Vec<LiveStream> = self
            .streams
            .iter()
            .filter(|(id, stream)| !stream.is_forgotten && !self.is_held(**id))
            .map(|(id, stream)| self.live_stream(*id, stream, rate, now, sequences))
            .collect();
        let waiting = |(id, since): &(SequenceId, Instant)| {
            let candidate = self.streams.get(id)?.candidate;
            Some(HeldStream { candidate, waited_s: now.saturating_duration_since(*since).as_secs_f64() })
        };
        let held: Vec<HeldStream> = self.held.iter().filter_map(waiting).collect();
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
        use_it(&Situation {
            costs: &self.costs,
            rate,
            streams: &streams,
            held: &held,
            others: &streams_of_others,
            others_held: &others_held,
            others_ahead_s: others.latest_start().map_or(f64::INFINITY, until_s),
            others_variance: others.variance,
            others_blocking_s: others.blocking_s,
            pause_s: self.device.recent_pause().as_secs_f64(),
            has_bulk: device.has_bulk,
            bulk_owed_s: device.bulk_owed_s,
            bulk_piece_s: device.bulk_piece_s,
            in_flight_s: device.free_at.into_iter().chain(self.step_ends_at).map(until_s).fold(0.0, f64::max),
            batch: self.config.max_batch_size,
            max_streams: self.max_streams,
            max_first_audio_s: self.config.max_first_audio.as_secs_f64(),
        })
    }

    fn live_stream(
        &self,
        id: SequenceId,
        stream: &Stream,
        rate: StreamRate,
        now: Instant,
        sequences: &Sequences,
    ) -> LiveStream {
        let done = audio_duration(sequences.generated_samples(id), self.sample_rate).as_secs_f64();
        let left_s = self.lengths.left_s(stream.text_chars, done).min(stream.candidate.length_s.max(0.1));
        let most_left_s =
            self.lengths.most_left_s(stream.text_chars, done).min(stream.candidate.most_s.max(0.1));
        let Some(end) = sequences.playback_end(id) else {
            let setup = if stream.has_paused { StepShape::default() } else { stream.candidate.prompt };
            return LiveStream { ahead_s: None, left_s, most_left_s, paced_s: 0.0, setup };
        };
        let played_s = end.saturating_duration_since(now).as_secs_f64();
        let playback = self.playback(end, sequences.chunk_progress(id).unwrap_or_default());
        let (step_s, steps) = (self.costs.seconds(rate.step), f64::from(playback.steps()));
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
