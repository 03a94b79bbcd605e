//! Pauses of live streams on a machine that became too slow for all that it had accepted, once for each: the newest pause where
//! they are silent, so that the others go on, and one that runs out of audio gets ahead before it goes on, in place of many
//! gaps. Their clients are told for how long.
//!
//! Must not know samples or channels.

use std::time::Duration;

use tokio::time::Instant;

use super::admission::{Candidate, Situation};
use super::cost::StepShape;
use super::live::{LiveStreams, Stream};
use crate::engine::scheduler::Scheduler;
use crate::engine::sequences::Sequences;
use crate::engine::types::{SequenceId, audio_duration};

/// How long a stream may speak on until it is silent.
const PATIENCE: Duration = Duration::from_millis(1_500);
/// Silence in gaps after which a stream pauses.
const TOLERATED: Duration = Duration::from_millis(100);

/// How many of the streams that run would have to pause, so that what the others are ahead lasts until they end; 0 while it
/// does for all.
pub(super) fn excess(situation: &Situation<'_>) -> usize {
    let Situation { rate, streams, .. } = *situation;
    let keeps = |count: usize| {
        let step_s = situation.step_s(count) / (1.0 - situation.others_share()).max(0.1);
        let loss = step_s / rate.audio_s - 1.0;
        let mut playing = streams.iter().filter_map(|stream| Some((stream.ahead_s?, stream.left_s)));
        loss <= 0.0 || playing.all(|(ahead_s, left_s)| ahead_s >= loss * left_s)
    };
    if rate.audio_s <= 0.0 || streams.is_empty() {
        return 0;
    }
    let (mut low, mut high) = (1, streams.len());
    while low < high {
        let middle = (low + high).div_ceil(2);
        if keeps(middle) { low = middle } else { high = middle - 1 }
    }
    streams.len() - low
}

impl LiveStreams {
    /// Asks the newest streams that play to pause, `excess` in all, or takes that back.
    pub(super) fn ask_to_pause(&mut self, excess: usize, sequences: &Sequences) {
        if excess == 0 {
            self.streams.values_mut().for_each(|stream| stream.to_pause = None);
            return;
        }
        let can = |(id, stream): &(&SequenceId, &mut Stream)| {
            !stream.has_paused && !stream.is_forgotten && sequences.playback_end(**id).is_some()
        };
        let now = Instant::now();
        for (index, (_, stream)) in self.streams.iter_mut().rev().filter(can).enumerate() {
            stream.to_pause = (index < excess).then(|| stream.to_pause.unwrap_or(now));
        }
    }

    /// A stream whose chunk has left pauses if it is to, once it is silent.
    pub(super) fn pause_if_asked(
        &mut self,
        sequence: SequenceId,
        scheduler: &mut Scheduler,
        sequences: &mut Sequences,
    ) {
        let Some(stream) = self.streams.get(&sequence) else { return };
        let Some(since) = stream.to_pause.filter(|_| !sequences.is_waited_for(sequence)) else { return };
        if !sequences.ends_quietly(sequence) && since.elapsed() < PATIENCE {
            return;
        }
        // It was accepted before all that wait.
        let since = self.held.front().map_or(Instant::now(), |(_, since)| *since);
        self.held.push_front((sequence, since));
        scheduler.set_deferred(sequence, true);
        let Some(candidate) = self.pause(sequence, scheduler, sequences) else { return };
        let goes_on_s = self.with_situation(sequences, |situation| situation.start_s(&candidate));
        let length = Duration::try_from_secs_f64(goes_on_s.max(0.0)).unwrap_or(Duration::MAX);
        sequences.pause(sequence, length, &self.metrics);
        self.publish_load(false, scheduler, sequences);
    }

    /// The streams that have not paused, and when each has so many gaps that it does.
    pub(super) fn pauses_at(&self, sequences: &Sequences) -> impl Iterator<Item = (SequenceId, Instant)> {
        let may = |id: &SequenceId| self.streams.get(id).is_some_and(|stream| !stream.has_paused);
        sequences.silent_for(TOLERATED).filter(move |(id, _)| may(id) && !self.is_held(*id))
    }

    /// Streams that have run out of audio pause until they are ahead as one that begins.
    pub(super) fn pause_silent(&mut self, scheduler: &mut Scheduler, sequences: &mut Sequences) {
        let now = Instant::now();
        let silent: Vec<SequenceId> =
            self.pauses_at(sequences).filter(|(_, at)| *at <= now).map(|(id, _)| id).collect();
        for sequence in silent {
            let Some(candidate) = self.pause(sequence, scheduler, sequences) else { continue };
            let round = self.with_situation(sequences, |situation| {
                let head_start_s = situation.playing(&candidate).map_or(0.0, |(_, _, seconds)| seconds);
                let steps = (candidate.chunk_s() + head_start_s) / situation.rate.audio_s.max(1e-3);
                situation.round(situation.streams.len()).mul_f64(steps.clamp(1.0, 1e4))
            });
            sequences.pause(sequence, round, &self.metrics);
            self.go_on(sequence, scheduler, sequences);
        }
    }

    /// Notes that a stream pauses. Returns what it asks for when it goes on.
    fn pause(
        &mut self,
        sequence: SequenceId,
        scheduler: &mut Scheduler,
        sequences: &Sequences,
    ) -> Option<Candidate> {
        let done_s = audio_duration(sequences.generated_samples(sequence), self.sample_rate).as_secs_f64();
        let stream = self.streams.get_mut(&sequence)?;
        let length_s = self.lengths.left_s(stream.text_chars, done_s);
        let most_s = self.lengths.most_left_s(stream.text_chars, done_s);
        stream.candidate = Candidate { prompt: StepShape::default(), length_s, most_s, ..stream.candidate };
        (stream.to_pause, stream.has_paused) = (None, true);
        scheduler.end_playback(sequence);
        Some(stream.candidate)
    }

    /// A stream that paused goes on, once it has a head start as one that begins.
    pub(super) fn go_on(&self, sequence: SequenceId, scheduler: &mut Scheduler, sequences: &mut Sequences) {
        let paused = self.streams.get(&sequence).filter(|stream| stream.has_paused);
        let Some(candidate) = paused.map(|stream| stream.candidate) else { return };
        let pace = self.with_situation(sequences, |situation| situation.playing(&candidate));
        let head_start_s = candidate.chunk_s() + pace.map_or(0.0, |(_, _, head_start_s)| head_start_s);
        let samples = (head_start_s * f64::from(self.sample_rate)) as u64;
        if sequences.go_on(sequence, samples) {
            let due = Instant::now() + Duration::from_secs_f64(head_start_s.clamp(0.0, 60.0));
            let expected = self.playback(due, sequences.chunk_progress(sequence).unwrap_or_default());
            scheduler.set_first_audio(sequence, expected);
        }
    }
}
