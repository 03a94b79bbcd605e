//! The input part of a sequence whose text arrives while it is spoken, or whose audio while it is transcribed: whether it
//! waits for input, and since when.
//!
//! Must not know what the input is.

use std::time::Duration;

use tokio::time::Instant;

use super::{Sequence, Sequences};
use crate::engine::request::OpenInput;
use crate::engine::types::{SequenceId, audio_duration};

/// An input that has not ended.
pub(super) struct Opened {
    input: OpenInput,
    /// Since when it has waited, without any input.
    silent_since: Option<Instant>,
}

impl Opened {
    pub(super) fn new(input: OpenInput) -> Self {
        Self { input, silent_since: None }
    }
}

impl Sequences {
    /// Positions that can be computed now that input has arrived, `None` for all. Nothing if the sequence takes no more.
    pub(in crate::engine) fn input_grew(&mut self, sequence: SequenceId) -> Option<Option<usize>> {
        let sample_rate = self.sample_rate;
        let Sequence { input: open, session, .. } = self.by_id.get_mut(&sequence)?;
        let opened = open.as_mut()?;
        if let Some(samples) = opened.input.samples() {
            session.request.recorded = audio_duration(samples, sample_rate);
        }
        opened.silent_since = None;
        let (positions, has_ended) = opened.input.reach();
        if has_ended {
            *open = None;
        }
        Some(positions)
    }

    /// Notes which of the sequences whose input has not ended wait for more: `awaits` says it.
    pub(in crate::engine) fn note_waiting(&mut self, awaits: impl Fn(SequenceId) -> bool) {
        for (id, sequence) in self.by_id.iter_mut().filter(|(_, sequence)| sequence.input.is_some()) {
            sequence.set_waiting(awaits(*id));
        }
    }

    /// Number of sequences that wait for input.
    pub(in crate::engine) fn num_waiting(&self) -> usize {
        self.opened().filter(|(_, input)| input.silent_since.is_some()).count()
    }

    /// Sequences that have waited for input for `limit`.
    pub(in crate::engine) fn expired(&self, limit: Duration) -> Vec<SequenceId> {
        let now = Instant::now();
        let expired = |input: &Opened| input.silent_since.is_some_and(|since| now >= since + limit);
        self.opened().filter(|(_, input)| expired(input)).map(|(sequence, _)| sequence).collect()
    }

    /// When the next sequence has waited for input for `limit`.
    pub(in crate::engine) fn next_expiry(&self, limit: Duration) -> Option<Instant> {
        self.opened().filter_map(|(_, input)| input.silent_since).min().map(|since| since + limit)
    }

    /// Sets whether a sequence waits for input.
    pub(in crate::engine) fn set_waiting(&mut self, sequence: SequenceId, waits: bool) {
        if let Some(sequence) = self.by_id.get_mut(&sequence) {
            sequence.set_waiting(waits);
        }
    }

    fn opened(&self) -> impl Iterator<Item = (SequenceId, &Opened)> {
        self.by_id.iter().filter_map(|(id, sequence)| Some((*id, sequence.input.as_ref()?)))
    }
}

impl Sequence {
    /// Sets whether it waits for input: its listener hears a gap that is not the engine's.
    fn set_waiting(&mut self, waits: bool) {
        let Self { input, session, .. } = self;
        let now = Instant::now();
        if let Some(input) = input {
            input.silent_since = waits.then(|| input.silent_since.unwrap_or(now));
        }
        match session.waiting_since {
            None if waits => session.waiting_since = Some(now),
            Some(since) if !waits => {
                session.waiting_since = None;
                session.blocked_total += now - since;
                session.playback.wait(now);
            }
            _ => {}
        }
    }
}
