//! What a session sends, in order, and what it has sent lately, so that a new connection can continue at any sample.
//!
//! Counts samples over all audio of the session. Knows no socket, and of the frames only the description of a chunk.

use std::collections::VecDeque;
use std::time::Duration;

use axum::extract::ws::{Message, Utf8Bytes};
use bytes::Bytes;
use serde::Serialize;
use serde_json::Value;
use tokio::time::Instant;

use crate::dto::session::AudioChunk;
use crate::error::ApiError;

/// The most entries that are kept after they were sent.
const MAX_KEPT: usize = 4_096;

/// The queue of a session, and after it the last of what was sent.
#[derive(Debug)]
pub struct Outbox {
    entries: VecDeque<Entry>,
    /// Index of the next entry to send.
    next: usize,
    /// Samples of the next entry that the client has.
    skip: u64,
    /// Entries to send again that were sent before.
    repeated: usize,
    /// Bytes of the entries to send that were not sent before.
    queued_bytes: usize,
    /// Samples before the first entry.
    dropped_samples: u64,
    /// The most samples that were taken to be sent.
    reached: u64,
    /// How long sent entries are kept, in samples and in time.
    kept_samples: u64,
    window: Duration,
    /// Changes frames for a client of another version of the protocol.
    translation: Option<Translation>,
}

/// Gives a frame another shape; `None` if it is not sent.
type Translation = fn(Value) -> Option<Value>;

#[derive(Debug)]
struct Entry {
    content: Content,
    /// Samples of the session up to the end of this entry.
    end: u64,
    /// Whether a new connection needs it.
    is_kept: bool,
    sent_at: Option<Instant>,
}

#[derive(Debug)]
enum Content {
    Text(Utf8Bytes),
    Binary(Bytes),
    Audio { frame: AudioChunk, bytes: Bytes, sample_bytes: Option<usize> },
}

impl Content {
    fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Binary(bytes) | Self::Audio { bytes, .. } => bytes.len(),
        }
    }
}

impl Entry {
    /// Samples of the session before this entry.
    fn start(&self) -> u64 {
        match &self.content {
            Content::Text(_) | Content::Binary(_) => self.end,
            Content::Audio { frame, .. } => self.end - frame.samples,
        }
    }

    /// The messages from sample `skip` on.
    fn messages(&self, skip: u64) -> (Message, Option<Message>) {
        match &self.content {
            Content::Text(text) => (Message::Text(text.clone()), None),
            Content::Binary(bytes) => (Message::Binary(bytes.clone()), None),
            Content::Audio { frame, bytes, sample_bytes } => {
                let rest = frame.after(skip);
                // A header stands before the samples of the first chunk.
                let length = rest.samples as usize * sample_bytes.unwrap_or_default();
                let at = if skip == 0 { 0 } else { bytes.len().saturating_sub(length) };
                (Message::text(json(&rest)), Some(Message::Binary(bytes.slice(at..))))
            }
        }
    }
}

impl Outbox {
    /// An outbox that keeps what was sent for at most `window`.
    pub(crate) fn new(window: Duration) -> Self {
        Self {
            entries: VecDeque::new(),
            next: 0,
            skip: 0,
            repeated: 0,
            queued_bytes: 0,
            dropped_samples: 0,
            reached: 0,
            kept_samples: 0,
            window,
            translation: None,
        }
    }

    /// Changes every frame from now on.
    pub fn translate(&mut self, translation: Translation) {
        self.translation = Some(translation);
    }

    /// Tells the rate of the session's audio: from now on sent audio is kept.
    pub(crate) fn keep_audio_of(&mut self, sample_rate_hz: u32) {
        self.kept_samples = (self.window.as_secs_f64() * f64::from(sample_rate_hz)) as u64;
    }

    /// Whether a new connection could continue the session.
    pub(crate) fn is_resumable(&self) -> bool {
        self.kept_samples > 0
    }

    /// Queues a frame.
    pub fn frame(&mut self, frame: &impl Serialize) {
        let text = match self.translation {
            None => json(frame),
            // Serializing strings and numbers cannot fail.
            Some(translation) => match translation(serde_json::to_value(frame).unwrap_or_default()) {
                Some(frame) => json(&frame),
                None => return,
            },
        };
        self.push(Content::Text(text.into()), 0, true);
    }

    /// Queues a frame that answers this connection and no other.
    pub(crate) fn reply(&mut self, frame: &impl Serialize) {
        self.push(Content::Text(json(frame).into()), 0, false);
    }

    /// Queues a frame before all others, for this connection and no other.
    pub(crate) fn reply_first(&mut self, frame: &impl Serialize) {
        let content = Content::Text(json(frame).into());
        let end = self.entries.get(self.next).map_or_else(|| self.end(), Entry::start) + self.skip;
        self.queued_bytes += content.bytes();
        self.entries.insert(self.next, Entry { content, end, is_kept: false, sent_at: None });
    }

    /// Queues bytes without a description, for protocols whose sessions cannot be continued.
    pub fn binary(&mut self, bytes: Bytes) {
        self.push(Content::Binary(bytes), 0, false);
    }

    /// Queues a chunk: its description and its bytes, `sample_bytes` a sample.
    pub(crate) fn audio(&mut self, frame: AudioChunk, bytes: Bytes, sample_bytes: Option<usize>) {
        let samples = frame.samples;
        self.push(Content::Audio { frame, bytes, sample_bytes }, samples, true);
    }

    fn push(&mut self, content: Content, samples: u64, is_kept: bool) {
        let end = self.end() + samples;
        self.queued_bytes += content.bytes();
        self.entries.push_back(Entry { content, end, is_kept, sent_at: None });
    }

    /// Samples of all entries.
    fn end(&self) -> u64 {
        self.entries.back().map_or(self.dropped_samples, |entry| entry.end)
    }

    /// Samples that were taken to be sent.
    fn sent(&self) -> u64 {
        let last = self.next.checked_sub(1).and_then(|last| self.entries.get(last));
        last.map_or(self.dropped_samples, |entry| entry.end)
    }

    /// Whether no more samples may be produced while nobody takes them.
    pub(crate) fn is_full(&self) -> bool {
        self.end() - self.sent() >= self.kept_samples
    }

    /// Whether everything was taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.next == self.entries.len()
    }

    /// Entries to send that were not sent before.
    pub(crate) fn queued(&self) -> usize {
        (self.entries.len() - self.next).saturating_sub(self.repeated)
    }

    /// The bytes of these entries.
    pub(crate) fn queued_bytes(&self) -> usize {
        self.queued_bytes
    }

    /// Takes the messages of the next entry.
    pub(crate) fn take(&mut self) -> Option<(Message, Option<Message>)> {
        let entry = self.entries.get_mut(self.next)?;
        let skip =
            if matches!(entry.content, Content::Audio { .. }) { std::mem::take(&mut self.skip) } else { 0 };
        let messages = entry.messages(skip);
        if self.repeated == 0 || !entry.is_kept {
            self.queued_bytes -= entry.content.bytes();
        }
        if entry.is_kept {
            entry.sent_at = Some(Instant::now());
            self.next += 1;
            self.reached = self.reached.max(entry.end);
            self.repeated = self.repeated.saturating_sub(1);
        } else {
            self.entries.remove(self.next);
        }
        self.trim();
        Some(messages)
    }

    /// Drops sent entries that are older than the window.
    pub(crate) fn trim(&mut self) {
        let sent = self.sent();
        let since = Instant::now().checked_sub(self.window);
        while self.next > 0
            && let Some(entry) = self.entries.front()
        {
            let behind = sent - entry.end;
            let is_past = match entry.content {
                Content::Audio { .. } => behind >= self.kept_samples,
                Content::Text(_) | Content::Binary(_) => behind > self.kept_samples || self.kept_samples == 0,
            };
            let is_old = entry.sent_at.zip(since).is_some_and(|(sent_at, since)| sent_at < since);
            if !is_past && !is_old && self.next <= MAX_KEPT {
                return;
            }
            self.dropped_samples = entry.end;
            self.entries.pop_front();
            self.next -= 1;
        }
    }

    /// Continues at sample `next_sample` of the session: with it and the frames after the sample before it.
    ///
    /// # Errors
    /// The sample is not kept any more, or was not sent, or no chunk starts there and chunks cannot be divided.
    pub(crate) fn rewind(&mut self, next_sample: u64) -> Result<(), ApiError> {
        let (from, to) = (self.dropped_samples, self.reached);
        let refuse = || ApiError::ResumeOutOfWindow { next_sample, from, to };
        if !(from..=to).contains(&next_sample) {
            return Err(refuse());
        }
        let has_samples =
            |entry: &Entry| matches!(&entry.content, Content::Audio { frame, .. } if frame.samples > 0);
        let follows =
            |entry: &Entry| entry.end > next_sample || entry.end == next_sample && !has_samples(entry);
        let next = self.entries.iter().position(follows).unwrap_or(self.entries.len());
        let skip = self.entries.get(next).map_or(0, |entry| next_sample - entry.start().min(next_sample));
        let divides = |entry: &Entry| !matches!(entry.content, Content::Audio { sample_bytes: None, .. });
        if skip > 0 && !self.entries.get(next).is_none_or(divides) {
            return Err(refuse());
        }
        self.repeated = self.next.saturating_sub(next);
        (self.next, self.skip) = (next, skip);
        // Answers to the connection before.
        let mut index = 0;
        self.entries.retain(|entry| {
            index += 1;
            entry.is_kept || index <= next
        });
        let unsent = self.entries.iter().skip(self.next + self.repeated);
        self.queued_bytes = unsent.map(|entry| entry.content.bytes()).sum();
        Ok(())
    }
}

fn json(frame: &impl Serialize) -> String {
    // Serializing strings and numbers cannot fail.
    serde_json::to_string(frame).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dto::session::ChunkOf;
    use crate::encoding::EncodedChunk;

    const RATE: u32 = 100;

    fn chunk(seq: u64, sample_offset: u64, samples: u64) -> AudioChunk {
        let bytes = Bytes::new();
        let chunk = EncodedChunk { seq, sample_offset, samples, is_final: false, bytes };
        AudioChunk::new(ChunkOf::Utterance(0), &chunk)
    }

    /// Appends a chunk whose bytes are the numbers of its samples, with a header before the first.
    fn append(outbox: &mut Outbox, seq: u64, samples: u64) {
        let start = outbox.end();
        let numbers = (start..start + samples).flat_map(|sample| (sample as u16).to_le_bytes());
        let header = [255; 3].into_iter().filter(|_| seq == 0);
        let bytes: Vec<u8> = header.chain(numbers).collect();
        outbox.audio(chunk(seq, start, samples), bytes.into(), Some(2));
    }

    /// Takes everything; returns frames and the bytes of audio.
    fn drain(outbox: &mut Outbox) -> (Vec<serde_json::Value>, Vec<u8>) {
        let (mut frames, mut audio) = (Vec::new(), Vec::new());
        while let Some((first, second)) = outbox.take() {
            frames.push(serde_json::from_str(first.to_text().unwrap()).unwrap());
            if let Some(second) = second {
                audio.extend_from_slice(&second.into_data());
            }
        }
        (frames, audio)
    }

    proptest! {
        #[test]
        fn a_stream_that_is_continued_anywhere_neither_repeats_nor_skips(
            lengths in prop::collection::vec(1u64..20, 1..12),
            taken in 0usize..12,
            at in 0u64..200,
        ) {
            let mut outbox = Outbox::new(Duration::from_secs(3_600));
            outbox.keep_audio_of(RATE);
            for (seq, samples) in lengths.iter().enumerate() {
                append(&mut outbox, seq as u64, *samples);
                outbox.frame(&serde_json::json!({"after": seq}));
            }
            let whole: Vec<u8> = (0..lengths.iter().sum::<u64>()).flat_map(|n| (n as u16).to_le_bytes()).collect();
            (0..2 * taken.min(lengths.len())).for_each(|_| drop(outbox.take()));
            outbox.reply(&serde_json::json!({"type": "pong"}));
            let sent = outbox.sent();
            let result = outbox.rewind(at);
            prop_assert_eq!(result.is_ok(), at <= sent);
            if result.is_err() {
                return Ok(());
            }
            outbox.reply_first(&serde_json::json!({"type": "resumed"}));
            let (frames, audio) = drain(&mut outbox);
            let header = if at == 0 { 3 } else { 0 };
            prop_assert_eq!(&audio[header..], &whole[2 * at as usize..]);
            prop_assert_eq!(&frames[0]["type"], "resumed");
            prop_assert!(frames[1..].iter().all(|frame| frame["type"] != "pong"));
            let mut offset = at;
            for frame in frames.iter().filter(|frame| frame["type"] == "audio.chunk") {
                prop_assert_eq!(frame["sample_offset"].as_u64(), Some(offset));
                offset += frame["samples"].as_u64().unwrap();
            }
            // Everything after the last sample that the client has comes again.
            let ends = lengths.iter().scan(0, |end, length| { *end += length; Some(*end) });
            let expected = ends.filter(|end| *end >= at).count();
            prop_assert_eq!(frames.iter().filter(|frame| frame["after"].is_number()).count(), expected);
        }
    }

    #[test]
    fn the_window_bounds_what_is_kept_and_what_is_produced_ahead() {
        let mut outbox = Outbox::new(Duration::from_secs(1));
        assert!(!outbox.is_resumable());
        outbox.keep_audio_of(RATE);
        for seq in 0..30 {
            append(&mut outbox, seq, 20);
            drop(outbox.take());
        }
        assert_eq!((outbox.dropped_samples, outbox.entries.len()), (500, 5));
        let error = outbox.rewind(499).unwrap_err();
        assert_eq!(error.param(), Some("next_sample"));
        assert!(error.to_string().contains("500") && error.to_string().contains("600"), "{error}");
        assert!(outbox.rewind(601).is_err() && outbox.rewind(600).is_ok());
        for seq in 30..34 {
            assert!(!outbox.is_full());
            append(&mut outbox, seq, 20);
        }
        append(&mut outbox, 34, 20);
        assert!(outbox.is_full());
        assert_eq!(drain(&mut outbox).1.len(), 2 * 100);
        let mut nothing = Outbox::new(Duration::ZERO);
        nothing.keep_audio_of(RATE);
        append(&mut nothing, 0, 20);
        nothing.frame(&serde_json::json!({}));
        drain(&mut nothing);
        assert!(nothing.entries.is_empty() && !nothing.is_resumable());
    }

    #[test]
    fn bytes_to_send_are_counted() {
        let mut outbox = Outbox::new(Duration::from_secs(10));
        outbox.keep_audio_of(RATE);
        outbox.binary(Bytes::from_static(b"binary"));
        append(&mut outbox, 1, 20);
        outbox.frame(&7);
        outbox.reply_first(&12);
        assert_eq!(outbox.queued_bytes(), 6 + 40 + 1 + 2);
        drop(outbox.take());
        drop(outbox.take());
        assert_eq!(outbox.queued_bytes(), 40 + 1);
        drop(outbox.take());
        outbox.reply(&"gone");
        outbox.rewind(0).unwrap();
        assert_eq!(outbox.queued_bytes(), 1, "what is sent again does not count");
        outbox.reply_first(&123);
        assert_eq!(outbox.queued_bytes(), 4);
        drain(&mut outbox);
        assert_eq!(outbox.queued_bytes(), 0);
    }

    #[test]
    fn chunks_of_a_compressed_format_are_not_divided() {
        let mut outbox = Outbox::new(Duration::from_secs(10));
        outbox.keep_audio_of(RATE);
        outbox.audio(chunk(0, 0, 20), Bytes::from_static(b"opus"), None);
        drain(&mut outbox);
        assert!(outbox.rewind(5).is_err() && outbox.rewind(0).is_ok());
        assert_eq!(drain(&mut outbox).1, b"opus");
    }
}
