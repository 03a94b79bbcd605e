//! The text part of a sequence whose text arrives while it is spoken: whether it waits for text, and since when.
//!
//! Must not know what a text says.

use std::time::Duration;

use tokio::time::Instant;

use super::{Sequence, Sequences};
use crate::engine::request::TextInput;
use crate::engine::types::SequenceId;

/// A text that has not ended.
pub(super) struct OpenText {
    input: TextInput,
    /// Since when it has waited, without any text.
    silent_since: Option<Instant>,
}

impl OpenText {
    pub(super) fn new(input: TextInput) -> Self {
        Self { input, silent_since: None }
    }
}

impl Sequences {
    /// Positions that can be computed now that text has arrived, `None` for all. Nothing if the sequence takes no text.
    pub(in crate::engine) fn text_grew(&mut self, sequence: SequenceId) -> Option<Option<usize>> {
        let open = &mut self.by_id.get_mut(&sequence)?.text;
        let text = open.as_mut()?;
        text.silent_since = None;
        let positions = text.input.positions();
        if positions.is_none() {
            *open = None;
        }
        Some(positions)
    }

    /// Notes which of the sequences whose text has not ended wait for text: `awaits` says it.
    pub(in crate::engine) fn note_waiting(&mut self, awaits: impl Fn(SequenceId) -> bool) {
        for (id, sequence) in self.by_id.iter_mut().filter(|(_, sequence)| sequence.text.is_some()) {
            sequence.set_waiting(awaits(*id));
        }
    }

    /// Number of sequences that wait for text.
    pub(in crate::engine) fn num_waiting_for_text(&self) -> usize {
        self.open_texts().filter(|(_, text)| text.silent_since.is_some()).count()
    }

    /// Sequences that have waited for text for `limit`.
    pub(in crate::engine) fn expired(&self, limit: Duration) -> Vec<SequenceId> {
        let now = Instant::now();
        let expired = |text: &OpenText| text.silent_since.is_some_and(|since| now >= since + limit);
        self.open_texts().filter(|(_, text)| expired(text)).map(|(sequence, _)| sequence).collect()
    }

    /// When the next sequence has waited for text for `limit`.
    pub(in crate::engine) fn next_expiry(&self, limit: Duration) -> Option<Instant> {
        self.open_texts().filter_map(|(_, text)| text.silent_since).min().map(|since| since + limit)
    }

    /// Sets whether a sequence waits for text.
    pub(in crate::engine) fn set_waiting(&mut self, sequence: SequenceId, waits: bool) {
        if let Some(sequence) = self.by_id.get_mut(&sequence) {
            sequence.set_waiting(waits);
        }
    }

    fn open_texts(&self) -> impl Iterator<Item = (SequenceId, &OpenText)> {
        self.by_id.iter().filter_map(|(id, sequence)| Some((*id, sequence.text.as_ref()?)))
    }
}

impl Sequence {
    /// Sets whether it waits for text: its listener hears a gap that is not the engine's.
    fn set_waiting(&mut self, waits: bool) {
        let Self { text, session, .. } = self;
        let now = Instant::now();
        if let Some(text) = text {
            text.silent_since = waits.then(|| text.silent_since.unwrap_or(now));
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
