//! The requests whose text arrives while it is spoken: which wait for text, and since when.
//!
//! Must not know sessions or the scheduler.

use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::request::TextInput;
use crate::engine::types::SequenceId;

/// Sequences whose text has not ended.
#[derive(Debug, Default)]
pub(super) struct OpenTexts(HashMap<SequenceId, OpenText>);

#[derive(Debug)]
struct OpenText {
    input: TextInput,
    /// Since when it has waited, without any text.
    waiting_since: Option<Instant>,
}

impl OpenTexts {
    pub(super) fn open(&mut self, sequence: SequenceId, input: TextInput) {
        self.0.insert(sequence, OpenText { input, waiting_since: None });
    }

    pub(super) fn remove(&mut self, sequence: SequenceId) {
        self.0.remove(&sequence);
    }

    /// Positions that can be computed now that text has arrived, `None` for all. Nothing if the sequence takes no text.
    pub(super) fn grown(&mut self, sequence: SequenceId) -> Option<Option<usize>> {
        let text = self.0.get_mut(&sequence)?;
        text.waiting_since = None;
        let positions = text.input.positions();
        if positions.is_none() {
            self.remove(sequence);
        }
        Some(positions)
    }

    pub(super) fn sequences(&self) -> Vec<SequenceId> {
        self.0.keys().copied().collect()
    }

    /// Records whether a sequence waits for text.
    pub(super) fn set_waiting(&mut self, sequence: SequenceId, waits: bool, now: Instant) {
        if let Some(text) = self.0.get_mut(&sequence) {
            text.waiting_since = waits.then(|| text.waiting_since.unwrap_or(now));
        }
    }

    /// Number of sequences that wait.
    pub(super) fn num_waiting(&self) -> usize {
        self.0.values().filter(|text| text.waiting_since.is_some()).count()
    }

    /// Sequences that have waited for `limit`.
    pub(super) fn expired(&self, limit: Duration, now: Instant) -> Vec<SequenceId> {
        let expired = |text: &OpenText| text.waiting_since.is_some_and(|since| now >= since + limit);
        self.0.iter().filter(|(_, text)| expired(text)).map(|(id, _)| *id).collect()
    }

    /// When the next sequence has waited for `limit`.
    pub(super) fn next_expiry(&self, limit: Duration) -> Option<Instant> {
        self.0.values().filter_map(|text| text.waiting_since).min().map(|since| since + limit)
    }
}
