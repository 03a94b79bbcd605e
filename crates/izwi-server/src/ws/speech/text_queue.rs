//! The text of a speech session: what was received, the utterances it is cut into, and the limits on both.
//!
//! Knows no socket and no engine.

use std::collections::VecDeque;

use izwi_core::engine::request::{LiveText, first_end, sentence_ends, utterance_end};
use izwi_core::engine::{EngineCoreRequest, TextInput};

use crate::config::ServerConfig;
use crate::error::ApiError;
use crate::speech::{ResolvedSpeechOptions, check_text};

/// Complete sentences of at least this many characters together become an utterance without a flush.
const EARLY_CHARS: usize = 40;

/// The text of a session that arrives in pieces, and the utterances it is cut into.
#[derive(Debug)]
pub struct TextQueue {
    buffer: String,
    utterances: VecDeque<String>,
    session_chars: usize,
    max_utterance_chars: usize,
    max_session_chars: usize,
    /// Whether text is spoken as it arrives, rather than in complete sentences.
    is_live: bool,
    /// Whether the last utterance came as a whole.
    is_whole: bool,
    is_done: bool,
    /// The utterance that is spoken while its text arrives.
    live: Option<LiveText>,
}

/// The text of an utterance that is to be spoken.
#[derive(Debug)]
pub struct SpokenText {
    /// All of it, or its first words.
    pub text: String,
    /// Where the rest comes from while it is spoken, in a session whose text is spoken as it arrives.
    pub input: Option<TextInput>,
}

impl SpokenText {
    /// The engine's request.
    pub fn request(self, options: &ResolvedSpeechOptions) -> EngineCoreRequest {
        let request = options.request(self.text);
        match self.input {
            Some(input) => request.with_text_input(input),
            None => request,
        }
    }
}

/// The text of the next utterance.
#[derive(Debug, PartialEq, Eq)]
enum NextText {
    /// All of it, at once.
    Whole(String),
    /// All of it, of a session whose text is spoken as it arrives.
    Complete(String),
    /// Its first words. The rest follows while they are spoken.
    Start(String),
}

impl TextQueue {
    /// The text of a session with the limits of `config`.
    pub fn new(config: &ServerConfig) -> Self {
        Self::of_limits(config.max_input_chars, config.max_session_chars)
    }

    fn of_limits(max_utterance_chars: usize, max_session_chars: usize) -> Self {
        Self {
            buffer: String::new(),
            utterances: VecDeque::new(),
            session_chars: 0,
            max_utterance_chars,
            max_session_chars,
            is_live: false,
            is_whole: false,
            is_done: false,
            live: None,
        }
    }

    /// From now on text is spoken as it arrives.
    pub fn set_live(&mut self) {
        self.is_live = true;
    }

    /// Takes a piece of text: for the utterance that is spoken, if text is spoken as it arrives; else complete sentences become
    /// an utterance once there are enough of them.
    ///
    /// # Errors
    /// The text has ended, or is longer than it may be.
    pub fn push(&mut self, text: &str) -> Result<(), ApiError> {
        self.append(text)?;
        if self.is_live {
            self.feed();
            return Ok(());
        }
        let end = sentences_end(&self.buffer);
        if self.buffer[..end].trim().chars().nth(EARLY_CHARS - 1).is_some() {
            let rest = self.buffer.split_off(end);
            self.flush();
            self.buffer = rest;
        }
        Ok(())
    }

    /// Takes the last text, as one utterance with the text before it.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub fn push_last(&mut self, text: &str) -> Result<(), ApiError> {
        self.append(text)?;
        self.is_whole = self.open_live().is_none();
        self.finish();
        Ok(())
    }

    fn append(&mut self, text: &str) -> Result<(), ApiError> {
        self.check_open()?;
        let limit = self.max_utterance_chars;
        let buffered = self.buffer.chars().count();
        if text.chars().nth(limit.saturating_sub(buffered)).is_some() {
            let message = format!("text has more than {limit} characters without a flush; send it in parts");
            return Err(ApiError::invalid("text", message));
        }
        let chars = text.chars().count();
        if self.session_chars + chars > self.max_session_chars {
            let total = self.max_session_chars;
            let message = format!("the session has more than {total} characters in all; open another");
            return Err(ApiError::invalid("text", message));
        }
        self.session_chars += chars;
        self.buffer.push_str(text);
        Ok(())
    }

    /// Checks that a whole text could be taken and is not blank.
    ///
    /// # Errors
    /// It could not, or is.
    pub fn check_whole(&self, text: &str) -> Result<(), ApiError> {
        self.check_open()?;
        check_text("text", text, self.max_utterance_chars)
    }

    /// Ends the utterance that is spoken as it arrives with the buffered text, or makes one of that.
    pub fn flush(&mut self) {
        self.give(true);
        let text = std::mem::take(&mut self.buffer);
        let text = text.trim();
        if !text.is_empty() {
            self.utterances.push_back(text.to_owned());
        }
    }

    /// Flushes and takes no more text.
    pub fn finish(&mut self) {
        self.flush();
        self.is_done = true;
    }

    /// Gives the buffered text to the utterance that is spoken as it arrives, if it takes any.
    fn feed(&mut self) {
        self.give(false);
    }

    fn give(&mut self, is_all: bool) {
        if let Some(live) = self.live.as_mut().filter(|live| !live.has_ended()) {
            live.take(&mut self.buffer, is_all);
        }
    }

    fn open_live(&self) -> Option<&LiveText> {
        self.live.as_ref().filter(|live| !live.has_ended())
    }

    /// The text so far of the utterance that is spoken as it arrives, until that is over.
    pub fn spoken(&self) -> Option<&str> {
        self.live.as_ref().map(LiveText::text)
    }

    /// Tells that an utterance is over.
    pub fn ended(&mut self) {
        self.live = None;
    }

    /// Drops text that was not taken yet. False if there was none.
    pub fn clear(&mut self) -> bool {
        self.live = None;
        let had_text = !self.utterances.is_empty() || !self.buffer.trim().is_empty();
        self.buffer.clear();
        self.utterances.clear();
        had_text
    }

    /// Text that was not taken yet, in order.
    pub fn remaining(&self) -> impl Iterator<Item = &str> {
        self.utterances.iter().map(String::as_str).chain([self.buffer.trim()])
    }

    /// The next utterance, if there is enough text for one.
    pub fn next_utterance(&mut self) -> Option<SpokenText> {
        let (text, input) = match self.next_text()? {
            NextText::Whole(text) => (text, None),
            NextText::Complete(text) => {
                let input = TextInput::new();
                // A text input without more to come always ends.
                drop(input.finish());
                (text, Some(input))
            }
            NextText::Start(text) => {
                let input = TextInput::new();
                self.live = Some(LiveText::new(input.clone(), &text));
                (text, Some(input))
            }
        };
        self.feed();
        Some(SpokenText { text, input })
    }

    fn next_text(&mut self) -> Option<NextText> {
        let Some(mut text) = self.utterances.pop_front() else {
            return self.is_live.then(|| self.first_words()).flatten().map(NextText::Start);
        };
        if !self.is_live || (self.is_whole && self.utterances.is_empty()) {
            return Some(NextText::Whole(text));
        }
        let rest = text.split_off(utterance_end(&text).unwrap_or(text.len()));
        let rest = rest.trim_start();
        if !rest.is_empty() {
            self.utterances.push_front(rest.to_owned());
        }
        Some(NextText::Complete(text))
    }

    fn first_words(&mut self) -> Option<String> {
        let text = self.buffer.trim_start();
        let (words, rest) = text.split_at(first_end(text)?);
        let (words, rest) = (words.to_owned(), rest.to_owned());
        self.buffer = rest;
        Some(words)
    }

    /// Whether the text has ended and every utterance was taken.
    pub fn is_over(&self) -> bool {
        self.is_done && self.utterances.is_empty()
    }

    /// Checks that the text has not ended.
    ///
    /// # Errors
    /// It has.
    pub fn check_open(&self) -> Result<(), ApiError> {
        if self.is_done {
            return Err(ApiError::OutOfOrder("the session's text has ended already; open another session"));
        }
        Ok(())
    }
}

/// Where the last complete sentence of `text` ends.
fn sentences_end(text: &str) -> usize {
    sentence_ends(text).last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> TextQueue {
        TextQueue::of_limits(100, 250)
    }

    fn whole(text: &str) -> NextText {
        NextText::Whole(text.to_owned())
    }

    #[test]
    fn live_text_is_spoken_from_its_first_word_on() {
        let mut queue = TextQueue::of_limits(1_000, 5_000);
        queue.set_live();
        queue.push(" The qui").unwrap();
        assert_eq!(queue.next_utterance().unwrap().text, "The");
        queue.push("ck fox. ").unwrap();
        assert_eq!(queue.spoken(), Some("The quick fox. "));
        assert_eq!(queue.next_text(), None, "all text went to the utterance");
        queue.flush();
        queue.ended();
        queue.push("Next. ").unwrap();
        queue.flush();
        assert_eq!(queue.next_text(), Some(NextText::Complete("Next.".to_owned())));
        queue.push_last("As a whole.").unwrap();
        assert_eq!(queue.next_text(), Some(whole("As a whole.")));
        assert!(queue.is_over());
    }

    #[test]
    fn complete_sentences_are_cut_at_their_end() {
        let check = |text: &str, head: &str| assert_eq!(&text[..sentences_end(text)], head, "{text}");
        check("no end", "");
        check("An end.", "");
        check("A real sentence. And", "A real sentence. ");
        check("Mr. Smith e.g. said 3.5 times. Then", "Mr. Smith e.g. said 3.5 times. ");
        check("Really?! \"Yes indeed.\" Then", "Really?! \"Yes indeed.\" ");
        check("こんにちは。元気", "こんにちは。");
        check("A title\nand text", "A title\n");
    }

    #[test]
    fn enough_complete_text_becomes_an_utterance_and_the_rest_stays() {
        let mut queue = queue();
        queue.push("Short one. ").unwrap();
        assert_eq!(queue.next_text(), None);
        queue.push("This sentence makes it long enough. And a rest").unwrap();
        assert_eq!(queue.next_text(), Some(whole("Short one. This sentence makes it long enough.")));
        queue.finish();
        assert_eq!(queue.next_text(), Some(whole("And a rest")));
        assert!(queue.is_over());
    }

    #[test]
    fn text_beyond_the_limits_is_refused_and_the_queue_goes_on() {
        let mut queue = queue();
        queue.push(&"a".repeat(60)).unwrap();
        assert_eq!(queue.push(&"b".repeat(41)).unwrap_err().param(), Some("text"));
        queue.push(&"c".repeat(40)).unwrap();
        queue.flush();
        assert_eq!(queue.next_text(), Some(whole(&("a".repeat(60) + &"c".repeat(40)))));
        queue.push(&"d".repeat(100)).unwrap();
        queue.flush();
        assert!(queue.push(&"e".repeat(51)).unwrap_err().to_string().contains("250"));
        queue.push(&"f".repeat(50)).unwrap();
        queue.finish();
        assert_eq!(queue.push("g").unwrap_err().code(), "out_of_order");
    }

    #[test]
    fn blank_text_makes_no_utterance() {
        let mut queue = queue();
        queue.push(" \n ").unwrap();
        queue.finish();
        assert!(queue.is_over());
        assert_eq!(queue.check_whole(" ").unwrap_err().code(), "out_of_order");
        assert_eq!(self::queue().check_whole(" ").unwrap_err().param(), Some("text"));
    }
}
