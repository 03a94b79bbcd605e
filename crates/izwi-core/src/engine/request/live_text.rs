//! Text that is spoken as it arrives: the utterance that takes it, and where one utterance ends and the next begins.
//!
//! Knows no client. Where utterances end depends on the text, and on its pieces only within very long sentences.

use izwi_types::stable_end;

use super::TextInput;

/// An utterance ends with the first sentence that reaches so many bytes: about 100 text tokens, half a minute of speech.
const UTTERANCE_BYTES: usize = 400;
/// A sentence that reaches so many bytes of its utterance is cut between words.
const MAX_BYTES: usize = 800;
/// The most bytes an utterance begins with. The rest follows while it is spoken.
const FIRST_BYTES: usize = 100;

/// A full stop ends a sentence only after a word of at least this many letters: abbreviations are shorter.
const WORD_LETTERS: usize = 4;

/// The utterance that is being spoken while its text arrives.
#[derive(Debug)]
pub struct LiveText {
    input: TextInput,
    /// Its text so far.
    text: String,
    has_ended: bool,
}

impl LiveText {
    /// An utterance that begins with `text`, whose rest `input` gets.
    pub fn new(input: TextInput, text: &str) -> Self {
        Self { input, text: text.to_owned(), has_ended: false }
    }

    /// Its text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it takes no more text.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes text of `waiting`, all of it or up to where the utterance ends. `is_all` ends the utterance after it. Returns
    /// whether the utterance has ended; text that is left in `waiting` belongs to the next.
    pub fn take(&mut self, waiting: &mut String, is_all: bool) -> bool {
        let joined = format!("{}{waiting}", self.text);
        let end = utterance_end(&joined).map(|end| end.saturating_sub(self.text.len()));
        let taken = &waiting[..end.unwrap_or(waiting.len())];
        // Text that the model has no room for begins the next utterance.
        let fits = taken.is_empty() || self.input.append(taken).is_ok();
        if fits {
            self.text.push_str(taken);
            waiting.drain(..taken.len());
        }
        let has_ended = !fits || end.is_some() || is_all;
        if has_ended && let Err(error) = self.input.finish() {
            tracing::error!(%error, "the text of an utterance cannot be ended");
        }
        self.has_ended = has_ended;
        has_ended
    }
}

/// Where the utterance that begins `text` ends, if it does.
pub fn utterance_end(text: &str) -> Option<usize> {
    let end = sentence_ends(text).into_iter().find(|&end| end >= UTTERANCE_BYTES);
    if end.is_some_and(|end| end <= MAX_BYTES) || text.len() <= MAX_BYTES {
        return end;
    }
    let most = text.floor_char_boundary(MAX_BYTES);
    let words = text[..most].rfind(char::is_whitespace).filter(|&end| end > 0);
    Some(words.unwrap_or(most))
}

/// Where the text that an utterance begins with ends; `None` while no word of `text` is complete.
pub fn first_end(text: &str) -> Option<usize> {
    let head = &text[..text.floor_char_boundary(FIRST_BYTES)];
    Some(stable_end(head)).filter(|&end| !head[..end].trim().is_empty())
}

/// Where the complete sentences of `text` end. A sentence is complete once white space follows its terminator.
pub fn sentence_ends(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut letters = 0;
    let mut terminated = false;
    for (index, character) in text.char_indices() {
        match character {
            '!' | '?' | '…' => terminated = true,
            // These need no space after them.
            '。' | '！' | '？' => ends.push(index + character.len_utf8()),
            '\n' => ends.push(index + 1),
            '.' => terminated |= letters >= WORD_LETTERS,
            '"' | '\'' | '”' | '’' | ')' | ']' | '»' => {}
            c if c.is_whitespace() => {
                if terminated {
                    ends.push(index + c.len_utf8());
                }
                terminated = false;
            }
            _ => terminated = false,
        }
        letters = if character.is_alphabetic() { letters + 1 } else { 0 };
    }
    ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_utterance_ends_with_a_sentence_and_a_long_sentence_between_words() {
        let sentence = "One sentence of some words. ";
        let text = sentence.repeat(30);
        let end = utterance_end(&text).unwrap();
        assert_eq!(end, sentence.len() * UTTERANCE_BYTES.div_ceil(sentence.len()));
        assert_eq!(utterance_end(&text[..end - 1]), None, "the sentence may go on");
        assert_eq!(utterance_end(&text[..end]), Some(end));
        let words = "word ".repeat(200);
        assert_eq!(utterance_end(&words), Some(MAX_BYTES - 1));
        let end = utterance_end(&"語".repeat(300)).unwrap();
        assert!(end <= MAX_BYTES && end > MAX_BYTES - 3);
    }

    #[test]
    fn an_utterance_begins_with_whole_words() {
        assert_eq!(first_end("Hello"), None);
        assert_eq!(first_end("Hello wor"), Some(5));
        assert_eq!(first_end("你好，世界"), Some(6));
        let words = "word ".repeat(200);
        assert_eq!(first_end(&words), Some(99 - 5 + 5));
        assert_eq!(first_end(&"語".repeat(300)), None);
    }

    #[test]
    fn text_behind_the_end_of_an_utterance_stays() {
        let (input, mut waiting) = (TextInput::new(), "b c".to_owned());
        let mut live = LiveText::new(input.clone(), "a ");
        assert!(!live.take(&mut waiting, false) && waiting.is_empty());
        let sentences = " More words follow. ".repeat(30);
        waiting = sentences.clone();
        assert!(live.take(&mut waiting, false));
        let taken = &sentences[..sentences.len() - waiting.len()];
        assert!(taken.len() + 5 >= UTTERANCE_BYTES && taken.ends_with(". "));
        assert!(input.append("more").is_err(), "the utterance has ended");
    }
}
