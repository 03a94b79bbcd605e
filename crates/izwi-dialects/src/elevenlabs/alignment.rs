//! Times of characters from times of words, and messages of audio with the characters that start in them.
//!
//! The characters of a word share its time evenly, and white space has the time between two words. A character lasts until
//! the next one. Each message's characters cover it to its end, so that clients that add up durations stay right: audio in
//! which no character starts waits for the next one, and the last character of the text comes with the end of the audio.

use std::collections::VecDeque;

use izwi_audio::encode::EncodeError;
use izwi_core::engine::{SpokenWord, StreamingOutput};
use izwi_server::encoding::EncodedUtterance;

use super::api::{CharacterMs, CharacterSeconds};

/// A character and the sample at which it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Start {
    character: char,
    sample: u64,
}

/// The text of an utterance, and the characters whose time is known.
#[derive(Debug)]
struct Aligner {
    text: String,
    /// Bytes at its start that the model was not given.
    lead: usize,
    /// Bytes of the text whose characters have a time.
    placed: usize,
    /// End of the last word.
    end: u64,
    /// Characters that are in no message yet.
    starts: VecDeque<Start>,
    /// Whether the model tells when words are spoken.
    is_timed: bool,
}

impl Aligner {
    fn new(text: String, is_timed: bool) -> Self {
        Self { text, lead: 0, placed: 0, end: 0, starts: VecDeque::new(), is_timed }
    }

    fn push(&mut self, words: &[SpokenWord]) {
        for word in words {
            let text_end = self.lead + word.text_end;
            let Some(span) = self.text.get(self.placed..text_end) else { continue };
            let gap = span.len() - span.trim_start().len();
            let (gap, sounds) = span.split_at(gap);
            let begin = word.sample_start.max(self.end);
            let end = word.sample_end.max(begin);
            self.starts.extend(spread(gap, self.end, begin));
            self.starts.extend(spread(sounds, begin, end));
            (self.placed, self.end) = (text_end, end);
        }
    }

    /// Whether a character is ready that starts before `end`.
    fn starts_before(&self, end: u64) -> bool {
        let ready = self.starts.len() - self.held().min(self.starts.len());
        ready > 0 && self.starts.front().is_some_and(|start| start.sample < end)
    }

    /// Characters that wait for the end of the audio: the last of the text.
    fn held(&self) -> usize {
        usize::from(self.text[self.placed..].trim().is_empty())
    }

    /// The characters that start before `end`; all of them at the end of the audio.
    fn take(&mut self, end: u64, is_final: bool) -> Vec<Start> {
        if is_final && self.is_timed {
            // White space after the last word.
            let rest = self.text.get(self.placed..).filter(|rest| rest.trim().is_empty());
            self.starts.extend(spread(rest.unwrap_or_default(), self.end, end));
            self.placed = self.text.len();
        }
        let held = if is_final { 0 } else { self.held() };
        let ready = self.starts.iter().take(self.starts.len().saturating_sub(held));
        let count = ready.take_while(|start| is_final || start.sample < end).count();
        self.starts.drain(..count).collect()
    }
}

/// The characters of `text` at even distances.
fn spread(text: &str, from: u64, to: u64) -> impl Iterator<Item = Start> {
    let count = text.chars().count().max(1) as u64;
    let length = to.saturating_sub(from);
    (0..)
        .zip(text.chars())
        .map(move |(at, character)| Start { character, sample: from + length * at / count })
}

/// One message: encoded audio, and the characters that start in it.
#[derive(Debug)]
pub(super) struct TimedMessage {
    pub(super) audio: Vec<u8>,
    starts: Vec<Start>,
    /// Samples before it and up to its end.
    from: u64,
    to: u64,
    sample_rate_hz: u32,
}

impl TimedMessage {
    /// Each character with its start and end in samples.
    fn spans(&self) -> impl Iterator<Item = (char, u64, u64)> {
        let nexts = self.starts.iter().skip(1).map(|next| next.sample).chain([self.to]);
        let clamped = |sample: u64| sample.clamp(self.from, self.to);
        self.starts
            .iter()
            .zip(nexts)
            .map(move |(start, next)| (start.character, clamped(start.sample), clamped(next)))
    }

    /// Times from the start of this message; `None` where the model does not know them.
    pub(super) fn ms(&self) -> Option<CharacterMs> {
        let ms = |sample: u64| (sample - self.from) * 1_000 / u64::from(self.sample_rate_hz.max(1));
        let mut times = CharacterMs::default();
        for (character, start, end) in self.spans() {
            times.chars.push(character.to_string());
            times.char_start_times_ms.push(ms(start));
            times.char_durations_ms.push(ms(end) - ms(start));
        }
        Some(times).filter(|times| !times.chars.is_empty())
    }

    /// Times from the start of the utterance; `None` where the model does not know them.
    pub(super) fn seconds(&self) -> Option<CharacterSeconds> {
        let seconds = |sample: u64| {
            // Three places are more than the times are exact to.
            let ms = (sample * 1_000 / u64::from(self.sample_rate_hz.max(1))) as f64;
            ms / 1_000.0
        };
        let mut times = CharacterSeconds::default();
        for (character, start, end) in self.spans() {
            times.characters.push(character.to_string());
            times.character_start_times_seconds.push(seconds(start));
            times.character_end_times_seconds.push(seconds(end));
        }
        Some(times).filter(|times| !times.characters.is_empty())
    }
}

/// An utterance as messages.
#[derive(Debug)]
pub(super) struct TimedUtterance {
    encoded: EncodedUtterance,
    aligner: Aligner,
    /// Audio in which no character starts.
    held: Vec<u8>,
    /// Samples of the messages so far.
    from: u64,
}

impl TimedUtterance {
    /// `is_timed` tells whether the model tells when words are spoken.
    pub(super) fn new(encoded: EncodedUtterance, text: String, is_timed: bool) -> Self {
        Self { encoded, aligner: Aligner::new(text, is_timed), held: Vec::new(), from: 0 }
    }

    /// The same, where the model was not given the white space around `text`.
    pub(super) fn trimmed(encoded: EncodedUtterance, text: String, is_timed: bool) -> Self {
        let lead = text.len() - text.trim_start().len();
        let mut utterance = Self::new(encoded, text, is_timed);
        utterance.aligner.lead = lead;
        utterance
    }

    /// The next message, if one is complete.
    pub(super) fn push(&mut self, chunk: &StreamingOutput) -> Result<Option<TimedMessage>, EncodeError> {
        let audio = self.encoded.encode(chunk)?;
        self.held.extend_from_slice(&audio);
        let to = chunk.sample_offset + chunk.samples.len() as u64;
        self.aligner.push(&chunk.words);
        let is_timed = self.aligner.is_timed;
        if !chunk.is_final && (self.held.is_empty() || is_timed && !self.aligner.starts_before(to)) {
            return Ok(None);
        }
        let starts = self.aligner.take(to, chunk.is_final);
        let from = std::mem::replace(&mut self.from, to);
        let audio = std::mem::take(&mut self.held);
        let is_empty = audio.is_empty() && starts.is_empty();
        let sample_rate_hz = chunk.sample_rate;
        Ok((!is_empty).then_some(TimedMessage { audio, starts, from, to, sample_rate_hz }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(spans: &[(usize, u64, u64)]) -> Vec<SpokenWord> {
        let mut text_start = 0;
        let words = spans.iter().map(|&(text_end, sample_start, sample_end)| {
            let word = SpokenWord { text_start, text_end, sample_start, sample_end };
            text_start = text_end;
            word
        });
        words.collect()
    }

    fn message(starts: Vec<Start>, from: u64, to: u64) -> TimedMessage {
        TimedMessage { audio: vec![0], starts, from, to, sample_rate_hz: 1_000 }
    }

    #[test]
    fn characters_share_the_time_of_their_word_and_spaces_the_time_between_words() {
        let mut aligner = Aligner::new("Hi you. ".to_owned(), true);
        aligner.push(&words(&[(2, 100, 200)]));
        aligner.push(&words(&[(7, 300, 700)]));
        let first = message(aligner.take(310, false), 0, 310);
        let ms = first.ms().unwrap();
        assert_eq!(ms.chars.concat(), "Hi y");
        assert_eq!(ms.char_start_times_ms, [100, 150, 200, 300]);
        assert_eq!(ms.char_durations_ms, [50, 50, 100, 10]);
        assert!(aligner.take(900, false).len() == 2, "the last character waits for the end");
        let last = message(aligner.take(1_000, true), 900, 1_000);
        let ms = last.ms().unwrap();
        assert_eq!(ms.chars.concat(), ". ");
        // Both started before the message: the first has no time left in it.
        assert_eq!(ms.char_start_times_ms.last().unwrap() + ms.char_durations_ms.last().unwrap(), 100);
        let seconds = first.seconds().unwrap();
        assert_eq!(seconds.character_start_times_seconds, [0.1, 0.15, 0.2, 0.3]);
        assert_eq!(seconds.character_end_times_seconds, [0.15, 0.2, 0.3, 0.31]);
    }

    #[test]
    fn white_space_that_the_model_was_not_given_is_kept() {
        let mut aligner = Aligner { lead: 2, ..Aligner::new("  Hi you. ".to_owned(), true) };
        aligner.push(&words(&[(2, 100, 200), (7, 300, 700)]));
        let ms = message(aligner.take(1_000, true), 0, 1_000).ms().unwrap();
        assert_eq!(ms.chars.concat(), "  Hi you. ");
        assert_eq!(ms.char_start_times_ms[..4], [0, 50, 100, 150]);
    }

    #[test]
    fn a_model_without_word_times_has_no_alignment() {
        let mut aligner = Aligner::new("Hi you.".to_owned(), false);
        assert!(aligner.take(500, false).is_empty() && aligner.take(900, true).is_empty());
        assert_eq!(message(Vec::new(), 0, 900).ms(), None);
        assert_eq!(message(Vec::new(), 0, 900).seconds(), None);
    }
}
