//! The requests whose text arrives while it is spoken: which wait for text, and since when.
//!
//! Must not know what a text says, or the executor.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::EngineCore;
use crate::engine::request::TextInput;
use crate::engine::types::{FinishReason, RequestId, SequenceId};

/// How long a request waits for its client while its state takes memory that another request waits for.
const CROWDED_TIMEOUT: Duration = Duration::from_secs(5);

/// Sequences whose text has not ended.
#[derive(Debug, Default)]
pub(super) struct OpenTexts(BTreeMap<SequenceId, OpenText>);

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

impl EngineCore {
    /// Ends requests whose text has not gone on for too long, and notes which wait for text now.
    pub(super) fn check_texts(&mut self) {
        let (limit, now) = (self.crowded(self.config.text_timeout), Instant::now());
        for sequence in self.open_texts.sequences() {
            let waits = self.scheduler.awaits_input(sequence);
            self.open_texts.set_waiting(sequence, waits, now);
            self.output.set_waiting(sequence, waits);
        }
        for sequence in self.open_texts.expired(limit, now) {
            let message = format!(
                "no more text came for {} s; end the text, or raise text_timeout",
                limit.as_secs_f64()
            );
            self.finish(sequence, FinishReason::TextTimeout, Some(message));
        }
    }

    /// More text of a request has arrived, or its end.
    pub(super) fn text_grew(&mut self, id: &RequestId) {
        let sequence = self.requests.get(id).copied();
        let grown = sequence.and_then(|sequence| Some((sequence, self.open_texts.grown(sequence)?)));
        if let Some((sequence, positions)) = grown {
            self.scheduler.set_positions(sequence, positions);
            self.output.set_waiting(sequence, self.scheduler.awaits_input(sequence));
        }
    }

    /// A limit on waiting for a client, while others wait for the memory that its request holds.
    pub(super) fn crowded(&self, limit: Duration) -> Duration {
        if self.scheduler.waits_for_state() { limit.min(CROWDED_TIMEOUT) } else { limit }
    }
}
