//! Rewrites the words of a stream before they are committed: numbers in figures, and spoken commands.

use izwi_core::engine::{Writer, WriterOptions, words_of};

use super::agreement::LiveWord;
use super::turn::{LiveEvent, concatenated};

/// Rewrites the events of one stream. Words of a run that can go on are partial until it is over.
#[derive(Debug)]
pub(super) struct Rewriting {
    /// `None` where words stay as they are.
    writer: Option<Writer<LiveWord>>,
    options: WriterOptions,
    /// What was committed of the turn in progress, and whether times of its words are known.
    text: String,
    has_times: bool,
}

impl Rewriting {
    pub(super) fn new(options: WriterOptions) -> Self {
        let writer = (options != WriterOptions::default()).then(|| Writer::new(options));
        Self { writer, options, text: String::new(), has_times: false }
    }

    /// Whether words are rewritten.
    pub(super) fn is_on(&self) -> bool {
        self.writer.is_some()
    }

    /// Forgets the turn in progress.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.options);
    }

    /// Adds what becomes of an event to `told`. The words are in the language of a code. What waits to be rewritten is shown
    /// at once if `is_last`: the next event does not show it.
    pub(super) fn rewrite(
        &mut self,
        event: LiveEvent,
        language: Option<&str>,
        is_last: bool,
        told: &mut Vec<LiveEvent>,
    ) {
        let Some(writer) = &mut self.writer else { return told.push(event) };
        match event {
            LiveEvent::Started { .. } | LiveEvent::Speakers { .. } => told.push(event),
            LiveEvent::Partial { turn, words } => {
                let words = writer.preview().into_iter().chain(words).collect();
                told.push(LiveEvent::Partial { turn, words });
            }
            LiveEvent::Committed { turn, text, words } => {
                self.has_times = !words.is_empty();
                let words = if self.has_times { words } else { untimed(&text) };
                let settled = writer.push(words, language);
                let waiting = (is_last && writer.is_waiting()).then(|| writer.preview());
                self.commit(turn, settled, told);
                told.extend(waiting.map(|words| LiveEvent::Partial { turn, words }));
            }
            LiveEvent::Ended { turn, language, start_ms, end_ms, .. } => {
                let rest = writer.finish();
                self.commit(turn, rest, told);
                let text = std::mem::take(&mut self.text).trim_matches(' ').to_owned();
                told.push(LiveEvent::Ended { turn, text, language, start_ms, end_ms });
            }
        }
    }

    fn commit(&mut self, turn: u64, words: Vec<LiveWord>, told: &mut Vec<LiveEvent>) {
        if words.is_empty() {
            return;
        }
        let text = concatenated(&words);
        self.text.push_str(&text);
        let words = if self.has_times { words } else { Vec::new() };
        told.push(LiveEvent::Committed { turn, text, words });
    }
}

/// The words of a text, without times.
fn untimed(text: &str) -> Vec<LiveWord> {
    let word = |text| LiveWord { text, start_ms: 0, end_ms: 0, probability: 0.0, certainty: 0.0 };
    words_of(text).into_iter().map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a client is told of a turn whose words come in `pieces`, with times or without.
    fn told(pieces: &[&str], has_times: bool) -> (Vec<LiveEvent>, String) {
        let mut rewriting = Rewriting::new(WriterOptions { numbers: true, commands: true });
        let mut told = Vec::new();
        for piece in pieces {
            let words = if has_times { untimed(piece) } else { Vec::new() };
            let event = LiveEvent::Committed { turn: 0, text: (*piece).to_owned(), words };
            rewriting.rewrite(event, Some("en"), true, &mut told);
        }
        let end = LiveEvent::Ended { turn: 0, text: String::new(), language: None, start_ms: 0, end_ms: 9 };
        rewriting.rewrite(end, None, true, &mut told);
        let Some(LiveEvent::Ended { text, .. }) = told.last().cloned() else { panic!("{told:?}") };
        (told, text)
    }

    #[test]
    fn a_run_waits_until_it_is_over_and_is_shown_meanwhile() {
        for has_times in [false, true] {
            let (events, text) = told(&[" pay twenty", " five", " dollars now"], has_times);
            assert_eq!(text, "pay $25 now");
            let committed = events.iter().filter_map(|event| match event {
                LiveEvent::Committed { text, words, .. } => {
                    assert_eq!(words.is_empty(), !has_times);
                    Some(text.as_str())
                }
                _ => None,
            });
            assert_eq!(committed.collect::<String>(), " pay $25 now");
            let shown = |event: &LiveEvent| matches!(event, LiveEvent::Partial { words, .. } if concatenated(words) == " 25");
            assert!(events.iter().any(shown), "{events:?}");
        }
    }

    #[test]
    fn without_rules_nothing_changes_and_a_turn_that_is_forgotten_leaves_nothing() {
        let event = LiveEvent::Committed { turn: 0, text: " twenty".to_owned(), words: untimed(" twenty") };
        let (mut plain, mut events) = (Rewriting::new(WriterOptions::default()), Vec::new());
        plain.rewrite(event.clone(), Some("en"), true, &mut events);
        assert_eq!(events, std::slice::from_ref(&event));
        let mut rewriting = Rewriting::new(WriterOptions { numbers: true, commands: false });
        rewriting.rewrite(event, Some("en"), true, &mut events);
        rewriting.clear();
        let end = LiveEvent::Ended { turn: 0, text: String::new(), language: None, start_ms: 0, end_ms: 9 };
        events.clear();
        rewriting.rewrite(end.clone(), None, true, &mut events);
        assert_eq!(events, [end]);
    }
}
