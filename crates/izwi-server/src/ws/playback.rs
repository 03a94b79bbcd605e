//! What a listener has heard of a session's audio, by the client's reports or else by the clock, and the text of it.
//!
//! Knows samples and text. Knows no socket, no frame and no engine.

use std::collections::VecDeque;
use std::time::Duration;

use izwi_core::engine::SpokenWord;
use tokio::time::Instant;

use crate::error::ApiError;

/// The most utterances that are remembered: older ones count as heard.
const MAX_REMEMBERED: usize = 32;
/// Characters that a voice speaks in a second, where the length of the audio is not known yet.
const CHARS_PER_S: f64 = 15.0;

/// One utterance, or the answer of a turn.
#[derive(Debug)]
pub(crate) struct Spoken<T> {
    pub(crate) number: u64,
    pub(crate) text: String,
    /// What the protocol knows about it besides.
    pub(crate) detail: T,
    words: Vec<SpokenWord>,
    /// Samples that were sent.
    samples: u64,
    /// Whether all of its audio was sent.
    pub(crate) is_complete: bool,
    first_sent_at: Option<Instant>,
    /// The last report of the client: when it came, and how many samples had been played.
    report: Option<(Instant, u64)>,
}

/// How far the listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    samples: u64,
    is_estimated: bool,
}

/// What was heard of an utterance.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    /// Index of the utterance in its timeline.
    pub(crate) index: usize,
    /// Samples that were played.
    pub(crate) samples: u64,
    pub(crate) played_ms: u64,
    /// Bytes of the text that were spoken.
    pub(crate) text_end: usize,
    /// Whether the position or the text is an estimate.
    pub(crate) is_approximate: bool,
}

/// The utterances of a session that may not have been heard, oldest first.
#[derive(Debug)]
pub(crate) struct Timeline<T> {
    spoken: VecDeque<Spoken<T>>,
    sample_rate_hz: u32,
    /// Name of the member that numbers utterances.
    unit: &'static str,
    /// Number of the next utterance.
    next_number: u64,
}

impl<T> Timeline<T> {
    pub(crate) fn new(unit: &'static str) -> Self {
        Self { spoken: VecDeque::new(), sample_rate_hz: 0, unit, next_number: 0 }
    }

    pub(crate) fn set_rate(&mut self, sample_rate_hz: u32) {
        self.sample_rate_hz = sample_rate_hz;
    }

    /// Adds an utterance that is about to be generated.
    pub(crate) fn begin(&mut self, number: u64, text: String, detail: T) {
        self.next_number = number + 1;
        if self.spoken.len() == MAX_REMEMBERED {
            self.spoken.pop_front();
        }
        self.spoken.push_back(Spoken {
            number,
            text,
            detail,
            words: Vec::new(),
            samples: 0,
            is_complete: false,
            first_sent_at: None,
            report: None,
        });
    }

    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Spoken<T>> {
        self.spoken.iter_mut().find(|spoken| spoken.number == number)
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Spoken<T>> {
        self.spoken.get(index)
    }

    /// The utterances after the one at `index`.
    pub(crate) fn behind(&self, index: usize) -> impl Iterator<Item = &Spoken<T>> {
        self.spoken.iter().skip(index + 1)
    }

    /// Forgets all utterances.
    pub(crate) fn clear(&mut self) {
        self.spoken.clear();
    }

    /// Forgets the utterance with this number.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Spoken<T>> {
        let index = self.spoken.iter().position(|spoken| spoken.number == number)?;
        self.spoken.remove(index)
    }

    /// Forgets all utterances whose audio was sent.
    pub(crate) fn forget_complete(&mut self) {
        self.spoken.retain(|spoken| !spoken.is_complete);
    }

    /// Takes the client's report that `played_ms` of an utterance were played: of the one with this number, or else of the
    /// one that is played now. Returns the number and the time, as far as it was sent.
    ///
    /// # Errors
    /// There was no such utterance.
    pub(crate) fn report(
        &mut self,
        number: Option<u64>,
        played_ms: u64,
        now: Instant,
    ) -> Result<Option<(u64, Duration)>, ApiError> {
        let Some(index) = self.find(number, now)? else { return Ok(None) };
        let rate = self.sample_rate_hz;
        let Some(spoken) = self.spoken.get_mut(index) else { return Ok(None) };
        let played = samples_of(played_ms, rate).min(spoken.samples);
        // Reports may overtake each other only on different connections; playback does not run backwards.
        let played = spoken.report.map_or(played, |(_, before)| played.max(before));
        spoken.report = Some((now, played));
        Ok(Some((spoken.number, Duration::from_millis(ms_of(played, rate)))))
    }

    /// What was heard until now, by the client's report if it sends one. `None` if nothing was generated, or it is
    /// forgotten.
    ///
    /// # Errors
    /// There was no utterance with this number.
    pub(crate) fn heard(
        &self,
        number: Option<u64>,
        played_ms: Option<u64>,
        now: Instant,
    ) -> Result<Option<Heard>, ApiError> {
        let Some(index) = self.find(number, now)? else { return Ok(None) };
        let Some(spoken) = self.spoken.get(index) else { return Ok(None) };
        let rate = self.sample_rate_hz;
        let position = match played_ms {
            Some(ms) => Position { samples: samples_of(ms, rate).min(spoken.samples), is_estimated: false },
            None => self.position(index, now),
        };
        let (text_end, is_guessed) = spoken.text_end(position.samples, rate);
        Ok(Some(Heard {
            index,
            samples: position.samples,
            played_ms: played_ms.unwrap_or(u64::MAX).min(ms_of(position.samples, rate)),
            text_end,
            is_approximate: is_guessed || position.is_estimated && position.samples > 0,
        }))
    }

    /// The utterance with this number, or else the one that is played now. `None` if it is forgotten.
    fn find(&self, number: Option<u64>, now: Instant) -> Result<Option<usize>, ApiError> {
        let Some(number) = number else { return Ok(self.playing(now)) };
        if number >= self.next_number {
            let (unit, next) = (self.unit, self.next_number);
            let message =
                format!("{unit} is {number}, but the next one is {next}; send a number of this session");
            return Err(ApiError::invalid(unit, message));
        }
        Ok(self.spoken.iter().position(|spoken| spoken.number == number))
    }

    /// The utterance that is played now, by the clock: the first that is not over, or else the last with audio.
    fn playing(&self, now: Instant) -> Option<usize> {
        let is_playing = |index: &usize| {
            self.spoken.get(*index).is_some_and(|spoken| self.position(*index, now).samples < spoken.samples)
        };
        let last = || self.spoken.iter().rposition(|spoken| spoken.samples > 0);
        let first = (!self.spoken.is_empty()).then_some(0);
        (0..self.spoken.len()).find(is_playing).or_else(last).or(first)
    }

    /// How far the utterance at `index` is played, for a client that plays at once and without a pause.
    fn position(&self, index: usize, now: Instant) -> Position {
        let rate = self.sample_rate_hz;
        let mut free_at: Option<Instant> = None;
        for (at, spoken) in self.spoken.iter().enumerate().take(index + 1) {
            let Some(first_sent_at) = spoken.first_sent_at else { continue };
            let begins_at = free_at.map_or(first_sent_at, |free_at| free_at.max(first_sent_at));
            let (since, before) = spoken.report.unwrap_or((begins_at, 0));
            if at == index {
                let passed = now.saturating_duration_since(since).as_millis() as u64;
                let played = before + samples_of(passed, rate);
                return Position { samples: played.min(spoken.samples), is_estimated: true };
            }
            let rest = spoken.samples.saturating_sub(before);
            free_at = Some(since + Duration::from_millis(ms_of(rest, rate)));
        }
        Position { samples: 0, is_estimated: true }
    }
}

impl<T> Spoken<T> {
    /// Adds audio that was sent, and what is known of its words.
    pub(crate) fn send(&mut self, samples: usize, words: Vec<SpokenWord>, now: Instant) {
        self.words.extend(words);
        if samples > 0 {
            self.first_sent_at.get_or_insert(now);
            self.samples += samples as u64;
        }
    }

    /// Bytes of the text that are spoken in the first `played` samples, and whether that is an estimate.
    fn text_end(&self, played: u64, sample_rate_hz: u32) -> (usize, bool) {
        if self.is_complete && played >= self.samples {
            return (self.text.len(), false);
        }
        if played == 0 {
            return (0, false);
        }
        if !self.words.is_empty() {
            let said = self.words.iter().take_while(|word| word.sample_end <= played);
            return (said.last().map_or(0, |word| word.text_end.min(self.text.len())), false);
        }
        let chars = self.text.chars().count();
        let expected = (chars as f64 / CHARS_PER_S * f64::from(sample_rate_hz)) as u64;
        let total = if self.is_complete { self.samples } else { self.samples.max(expected) };
        let said = chars as f64 * played as f64 / total.max(1) as f64;
        (word_end(&self.text, said as usize), true)
    }
}

/// Where the last word ends that is whole in the first `chars` characters. Texts without spaces end anywhere.
fn word_end(text: &str, chars: usize) -> usize {
    let at = text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at);
    let (head, rest) = text.split_at(at);
    if rest.chars().next().is_none_or(char::is_whitespace) {
        return head.trim_end().len();
    }
    match head.rfind(char::is_whitespace) {
        Some(space) => head[..space].trim_end().len(),
        None if text.contains(char::is_whitespace) => 0,
        None => at,
    }
}

fn samples_of(ms: u64, sample_rate_hz: u32) -> u64 {
    ms.saturating_mul(u64::from(sample_rate_hz)) / 1_000
}

fn ms_of(samples: u64, sample_rate_hz: u32) -> u64 {
    samples.saturating_mul(1_000) / u64::from(sample_rate_hz.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u32 = 1_000;

    fn timeline(texts: &[(&str, usize)], now: Instant) -> Timeline<()> {
        let mut timeline = Timeline::new("utterance");
        timeline.set_rate(RATE);
        for (number, (text, samples)) in (0..).zip(texts) {
            timeline.begin(number, (*text).to_owned(), ());
            let spoken = timeline.get_mut(number).unwrap();
            spoken.send(*samples, Vec::new(), now);
            spoken.is_complete = true;
        }
        timeline
    }

    fn said(timeline: &Timeline<()>, number: u64, played_ms: u64) -> (String, bool) {
        let heard = timeline.heard(Some(number), Some(played_ms), Instant::now()).unwrap().unwrap();
        (timeline.get(heard.index).unwrap().text[..heard.text_end].to_owned(), heard.is_approximate)
    }

    #[test]
    fn text_is_divided_at_words_by_the_share_of_the_audio() {
        let now = Instant::now();
        let timeline = timeline(&[("one two three four", 1_800), ("こんにちは", 500)], now);
        let parts =
            [(0, ""), (299, ""), (300, "one"), (650, "one"), (700, "one two"), (1_799, "one two three")];
        for (played, expected) in parts {
            assert_eq!(said(&timeline, 0, played), (expected.to_owned(), played > 0), "{played}");
        }
        assert_eq!(
            said(&timeline, 0, 9_999),
            ("one two three four".to_owned(), false),
            "all of it is no estimate"
        );
        assert_eq!(said(&timeline, 1, 200).0, "こん");
        assert_eq!(timeline.heard(Some(2), Some(0), now).unwrap_err().param(), Some("utterance"));
    }

    #[test]
    fn word_times_are_exact_and_an_unfinished_text_is_not_taken_for_all_of_the_audio() {
        let now = Instant::now();
        let mut timeline = timeline(&[], now);
        timeline.begin(0, "It costs $5".to_owned(), ());
        let words = [(0, 2, 100, 300), (2, 8, 300, 700), (8, 11, 900, 1_600)];
        let words = words.map(|(text_start, text_end, sample_start, sample_end)| SpokenWord {
            text_start,
            text_end,
            sample_start,
            sample_end,
        });
        timeline.get_mut(0).unwrap().send(1_700, words.to_vec(), now);
        assert_eq!(said(&timeline, 0, 299), (String::new(), false));
        assert_eq!(said(&timeline, 0, 1_599), ("It costs".to_owned(), false));
        assert_eq!(said(&timeline, 0, 1_650), ("It costs $5".to_owned(), false));
        timeline.begin(1, "a word ".repeat(15), ());
        timeline.get_mut(1).unwrap().send(1_000, Vec::new(), now);
        assert_eq!(said(&timeline, 1, 1_000), ("a word a word a".to_owned(), true), "a second of seven");
    }

    #[test]
    fn without_reports_the_clock_tells_what_is_played_and_reports_correct_it() {
        let start = Instant::now();
        let mut timeline = timeline(&[("one two", 1_000), ("three four", 1_000)], start);
        let after = |ms| start + Duration::from_millis(ms);
        let at = |timeline: &Timeline<()>, ms| {
            let heard = timeline.heard(None, None, after(ms)).unwrap().unwrap();
            (heard.index, heard.played_ms, heard.is_approximate)
        };
        assert_eq!(at(&timeline, 600), (0, 600, true));
        let report = |timeline: &mut Timeline<()>, number, played, ms| {
            timeline.report(number, played, after(ms)).unwrap()
        };
        assert_eq!(report(&mut timeline, None, 200, 600), Some((0, Duration::from_millis(200))));
        assert_eq!(at(&timeline, 600), (0, 200, true));
        assert_eq!(at(&timeline, 1_500), (1, 100, true));
        assert_eq!(report(&mut timeline, Some(1), 5_000, 1_500), Some((1, Duration::from_secs(1))));
        assert_eq!(report(&mut timeline, Some(1), 10, 1_500), Some((1, Duration::from_secs(1))));
        assert_eq!(at(&timeline, 1_500), (1, 1_000, true));
        timeline.forget_complete();
        assert_eq!(timeline.heard(None, None, start), Ok(None));
        assert_eq!(timeline.heard(Some(1), Some(5), start), Ok(None));
        assert_eq!(timeline.report(None, 1, start), Ok(None));
    }
}
