//! The text that a recording is aligned with: its words, and the segments that they form once they are timed.
//!
//! Knows no network and no token.

use std::ops::Range;

use crate::text::spoken_words::{WordFinder, cut, is_space};
use izwi_types::{InputError, Segment, Word};

/// Letters of a second: nobody speaks faster. An auctioneer says about 25.
const MAX_LETTERS_PER_S: usize = 40;
/// Letters that any recording may have.
const SPARE_LETTERS: usize = 40;
/// Marks at the end of a sentence, and those that may follow them.
const SENTENCE_ENDS: &str = ".!?…。！？।؟";
const CLOSING: &str = "\"'”’»)]」』";
/// Characters of a segment without an end of a sentence: two lines of a subtitle.
const MAX_SEGMENT_CHARS: usize = 84;

/// A text as words; there is one at least.
#[derive(Debug)]
pub(crate) struct GivenText {
    pub(crate) words: Vec<GivenWord>,
}

/// A word of the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GivenWord {
    /// As written, with its marks and a space before it. The words of a text concatenate to it, but for white space.
    pub(crate) text: String,
    /// From its first to its last letter, in bytes of `text`.
    pub(crate) letters: Range<usize>,
    /// Its letters alone.
    pub(crate) said: String,
    /// Whether a segment ends with it.
    ends_segment: bool,
}

/// When a word is said, in seconds from the start of the recording, and its probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SaidWord {
    pub(crate) start_s: f64,
    pub(crate) end_s: f64,
    pub(crate) probability: f32,
}

impl GivenText {
    /// The words of a `text` in the language of a code, for a recording of `duration_s`.
    ///
    /// # Errors
    /// The text has no letters, or more than can be said in that time.
    pub(crate) fn new(
        finder: &WordFinder,
        text: &str,
        language: Option<&str>,
        duration_s: f64,
    ) -> Result<Self, InputError> {
        let fault = |message| Err(InputError { param: "text", message });
        let found = finder.words(text, language);
        if found.is_empty() {
            return fault("text has no letters or digits; send what is said in the recording".to_owned());
        }
        let letters: usize = found.iter().map(|word| word.text.chars().count()).sum();
        let most = SPARE_LETTERS + (duration_s * MAX_LETTERS_PER_S as f64) as usize;
        if letters > most {
            return fault(format!(
                "text has {letters} letters, and nobody says more than {most} in the {duration_s:.1} s of the recording; send \
                 what is said in it"
            ));
        }
        let written = cut(text, &found);
        let mut words: Vec<GivenWord> = Vec::with_capacity(found.len());
        let (mut start, mut chars) = (0, 0);
        for (written, word) in written.into_iter().zip(&found) {
            let bare = written.trim_start_matches(is_space);
            let lead = written.len() - bare.len();
            let space = if lead > 0 { " " } else { "" };
            let place = |byte: usize| byte - start - lead + space.len();
            let given = GivenWord {
                text: [space, bare.trim_end_matches(is_space)].concat(),
                letters: place(word.place.start)..place(word.place.end),
                said: word.text.clone(),
                ends_segment: false,
            };
            let length = given.text.chars().count();
            chars += length;
            if let Some(last) = words.last_mut()
                && (written[..lead].contains('\n') || last.ends_sentence() || chars > MAX_SEGMENT_CHARS)
            {
                last.ends_segment = true;
                chars = length;
            }
            words.push(given);
            start += written.len();
        }
        if let Some(last) = words.last_mut() {
            last.ends_segment = true;
        }
        Ok(Self { words })
    }
}

impl GivenWord {
    fn ends_sentence(&self) -> bool {
        let after = self.text[self.letters.end..].trim_end_matches(|mark| CLOSING.contains(mark));
        after.ends_with(|mark| SENTENCE_ENDS.contains(mark))
    }
}

/// The words of a text that are timed so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Words before the pending ones, which are delivered.
    delivered: usize,
    pending: Vec<Word>,
    /// End of the last word that was found.
    end_s: f64,
}

impl Progress {
    /// Words that are timed.
    pub(crate) fn timed(&self) -> usize {
        self.delivered + self.pending.len()
    }

    /// Adds the times of the next words; `None` for a word that is not found, which takes no time and has the probability 0.
    /// Returns the segments that they complete.
    pub(crate) fn add(
        &mut self,
        text: &GivenText,
        said: impl IntoIterator<Item = Option<SaidWord>>,
    ) -> Vec<Segment> {
        let mut segments = Vec::new();
        for said in said {
            let Some(word) = text.words.get(self.timed()) else { break };
            let missed = SaidWord { start_s: self.end_s, end_s: self.end_s, probability: 0.0 };
            let SaidWord { start_s, end_s, probability } = said.unwrap_or(missed);
            // Windows may overlap, words do not.
            let start_s = start_s.max(self.end_s);
            self.end_s = end_s.max(start_s);
            let end_s = self.end_s;
            self.pending.push(Word { text: word.text.clone(), start_s, end_s, probability });
            if word.ends_segment {
                self.delivered += self.pending.len();
                segments.push(segment(std::mem::take(&mut self.pending)));
            }
        }
        segments
    }

    /// Tells that all further words are not found.
    pub(crate) fn end(&mut self, text: &GivenText) -> Vec<Segment> {
        self.add(text, std::iter::repeat_n(None, text.words.len() - self.timed()))
    }
}

/// A segment of some words, one at least.
fn segment(words: Vec<Word>) -> Segment {
    let found = || words.iter().filter(|word| word.probability > 0.0);
    let start_s = found().next().or(words.first()).map_or(0.0, |word| word.start_s);
    let logprob: f32 = found().map(|word| word.probability.ln()).sum();
    Segment {
        window_start_s: start_s,
        start_s,
        end_s: words.last().map_or(start_s, |word| word.end_s),
        text: words.iter().map(|word| word.text.as_str()).collect(),
        avg_logprob: logprob / found().count().max(1) as f32,
        words,
        ..Segment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(text: &str) -> Result<GivenText, InputError> {
        GivenText::new(&WordFinder::new().unwrap(), text, None, 10.0)
    }

    #[test]
    fn words_keep_their_marks_and_lose_white_space() {
        let words = given("  “Well-known”,  he said —\n twice!  (You?)  ").unwrap().words;
        let told: Vec<_> = words.iter().map(|word| (&*word.text, &word.text[word.letters.clone()])).collect();
        assert_eq!(
            told,
            [
                (" “Well-known”,", "Well-known"),
                (" he", "he"),
                (" said", "said"),
                (" —\n twice!", "twice"),
                (" (You?)", "You")
            ]
        );
        let words = given("你好，世界。").unwrap().words;
        let told: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(told, ["你", "好，", "世", "界。"]);
    }

    #[test]
    fn a_text_that_nobody_can_say_is_refused() {
        for (text, told) in
            [("", "no letters"), (" …\n— ", "no letters"), (&"word ".repeat(120), "480 letters")]
        {
            let error = given(text).unwrap_err();
            assert_eq!(error.param, "text");
            assert!(error.message.contains(told), "{error}");
        }
        assert!(given(&"word ".repeat(100)).is_ok());
    }

    #[test]
    fn segments_end_with_sentences_lines_and_before_they_are_long() {
        let text = given("One. “Two?” Three\nfour and five").unwrap();
        let said = |at: usize| SaidWord { start_s: at as f64, end_s: at as f64 + 0.5, probability: 1.0 };
        let mut progress = Progress::default();
        let segments = progress.add(&text, [Some(said(1)), None, Some(said(3)), Some(said(4))]);
        let told: Vec<_> =
            segments.iter().map(|segment| (&*segment.text, segment.start_s, segment.end_s)).collect();
        assert_eq!(told, [("One.", 1.0, 1.5), (" “Two?”", 1.5, 1.5), (" Three", 3.0, 3.5)]);
        assert_eq!(segments[1].words[0].probability, 0.0);
        let rest = progress.end(&text);
        assert_eq!((rest[0].text.as_str(), rest[0].start_s, rest[0].end_s), (" four and five", 4.0, 4.5));
        let long = given(&"eleven char ".repeat(20)).unwrap();
        let segments = Progress::default().end(&long);
        assert!(segments.iter().all(|segment| segment.text.chars().count() <= MAX_SEGMENT_CHARS));
        assert_eq!(segments.len(), 3);
    }
}
