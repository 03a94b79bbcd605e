//! The transcript of one turn of speech that continues: its window of audio, and the words that are decided.

use super::agreement::{Agreement, LiveWord};
use crate::turns::LULL_MS;

/// A window longer than this is cut after a decided sentence, and one longer than `LONG_MS` after any decided word: each
/// further second costs time at every step.
const TRIM_MS: u64 = 6_000;
const LONG_MS: u64 = 9_000;
/// The longest window. Where nothing was decided by then, what is old enough is decided as it stands.
pub(super) const MAX_WINDOW_MS: u64 = 16_000;
const OLD_ENOUGH_MS: u64 = 1_500;
/// The shortest window worth transcribing.
pub(super) const MIN_WINDOW_MS: u64 = 500;
/// A turn that begins this soon after the last one continues its window.
pub(super) const MAX_PAUSE_MS: u64 = 2_000;
/// Audio from one thorough transcript to the next, and after a doubtful word before one is wanted.
const THOROUGH_MS: u64 = 1_500;
const DOUBTED_MS: u64 = 700;
/// The shortest window for a thorough transcript of a turn in progress: of less audio it is worse than others.
const MIN_THOROUGH_MS: u64 = 2_500;
/// Bytes of the decided text before the window that its prompt contains.
const MAX_CONTEXT: usize = 200;

/// A stretch of a turn that one speaker says.
#[derive(Debug, Clone, PartialEq)]
pub struct Stretch {
    /// A letter, in the order in which speakers were first heard.
    pub speaker: String,
    /// Its text, with the leading space.
    pub text: String,
    /// Its start.
    pub start_ms: u64,
    /// Its end.
    pub end_ms: u64,
}

/// A change of the transcript of a live stream. Turns are numbered from 0; times are milliseconds from the start of the
/// stream. But for [`Started`](Self::Started) and [`Speakers`](Self::Speakers), events are about the first turn that has not ended.
#[derive(Debug, Clone, PartialEq)]
pub enum LiveEvent {
    /// A turn begins.
    Started {
        /// Its number.
        turn: u64,
        /// Its start.
        at_ms: u64,
    },
    /// What follows the committed text for now.
    Partial {
        /// The number of the turn.
        turn: u64,
        /// Words that replace the last partial ones.
        words: Vec<LiveWord>,
    },
    /// Text that never changes, after what was committed before.
    Committed {
        /// The number of the turn.
        turn: u64,
        /// The text, with its leading space.
        text: String,
        /// Its words; none if the model tells no times.
        words: Vec<LiveWord>,
    },
    /// Who says what was committed of a turn, as far as it is known; it may be any turn, and replaces what was told of it before.
    Speakers {
        /// The number of the turn.
        turn: u64,
        /// What each one says, in order.
        stretches: Vec<Stretch>,
    },
    /// A turn is transcribed to its end.
    Ended {
        /// The number of the turn.
        turn: u64,
        /// All that was committed.
        text: String,
        /// Code of the language that was set or detected.
        language: Option<String>,
        /// The start of the turn.
        start_ms: u64,
        /// Its end, the silence after it included.
        end_ms: u64,
    },
}

/// What was transcribed of a window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Transcribed {
    /// The end of its audio.
    pub(super) end_ms: u64,
    pub(super) is_thorough: bool,
    /// Whether words may be decided before the turn ends.
    pub(super) decides: bool,
}

/// A turn of speech.
#[derive(Debug)]
pub(super) struct LiveTurn {
    pub(super) number: u64,
    pub(super) start_ms: u64,
    /// `None` while it continues.
    pub(super) end_ms: Option<u64>,
    /// Where its speech ended, before the silence that ended the turn.
    pub(super) speech_end_ms: u64,
    /// Start of its window.
    pub(super) window_ms: u64,
    /// End of the audio that was transcribed last.
    pub(super) heard_ms: u64,
    /// When it was last about to end; 0 if it never was.
    pub(super) lull_ms: u64,
    /// Whether it may be about to end, and nobody has asked for its text.
    pub(super) is_lull: bool,
    /// Decided text before the window, without the oldest.
    context: String,
    /// Decided words of the window.
    decided: Vec<LiveWord>,
    agreement: Agreement,
    /// End of the last thorough transcript, and of the last of any kind.
    thorough_ms: u64,
    transcribed_ms: u64,
    /// All decided text of the turn, and the end of its last word.
    text: String,
    committed_ms: u64,
}

/// What a turn leaves to the next one.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// Start of its window, and its end.
    pub(super) window_ms: u64,
    pub(super) end_ms: u64,
    context: String,
    decided: Vec<LiveWord>,
}

impl Rest {
    /// Text alone.
    pub(super) fn of_text(text: String) -> Self {
        Self { context: text, ..Self::default() }
    }

    /// Keeps the text and not the window.
    pub(super) fn forget_window(&mut self) {
        for word in self.decided.drain(..) {
            push_context(&mut self.context, &word.text);
        }
        self.window_ms = self.end_ms;
    }
}

impl LiveTurn {
    /// A turn that begins at `start_ms`.
    pub(super) fn new(number: u64, start_ms: u64) -> Self {
        Self {
            number,
            start_ms,
            end_ms: None,
            speech_end_ms: u64::MAX,
            window_ms: start_ms,
            heard_ms: start_ms,
            lull_ms: 0,
            is_lull: false,
            context: String::new(),
            decided: Vec::new(),
            agreement: Agreement::default(),
            thorough_ms: 0,
            transcribed_ms: 0,
            text: String::new(),
            committed_ms: start_ms,
        }
    }

    /// Sets what precedes the turn. After a short pause its window begins with the last turn's.
    pub(super) fn follow(&mut self, mut rest: Rest) {
        let is_near = self.start_ms <= rest.end_ms + MAX_PAUSE_MS && self.start_ms < rest.window_ms + TRIM_MS;
        if !is_near || rest.decided.is_empty() {
            rest.forget_window();
        } else {
            self.window_ms = rest.window_ms;
        }
        (self.context, self.decided) = (rest.context, rest.decided);
    }

    /// Whether the turn has ended and all that was said in it is transcribed, and not doubtful: its last silence is not
    /// transcribed, since decoders like to add words in it. [`Self::finish`] decides the rest.
    pub(super) fn is_transcribed(&self) -> bool {
        self.end_ms.is_some() && self.is_certain_until(self.speech_end_ms)
    }

    /// Whether all is transcribed that was said up to `speech_end_ms`, and not doubtful.
    fn is_certain_until(&self, speech_end_ms: u64) -> bool {
        let tail = self.agreement.tail();
        (!self.text.is_empty() || !tail.is_empty())
            && !tail.iter().any(LiveWord::is_doubtful)
            && self.transcribed_ms >= speech_end_ms.saturating_add(LULL_MS)
    }

    /// The text of the turn if it ends in the lull that lasts, as [`Self::finish`] would decide it. `None` where that is not
    /// known.
    pub(super) fn text_in_lull(&self) -> Option<String> {
        let speech_end_ms = self.lull_ms.saturating_sub(LULL_MS);
        if !self.is_lull || self.end_ms.is_some() || !self.is_certain_until(speech_end_ms) {
            return None;
        }
        let mut agreement = self.agreement.clone();
        let rest = agreement.finish(self.agreement.tail().to_vec(), speech_end_ms);
        let text = format!("{}{}", self.text, concatenated(&rest));
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    }

    /// Decides the words that are transcribed and not decided, at the end of the turn.
    pub(super) fn finish(&mut self) -> Vec<LiveWord> {
        let tail = self.agreement.tail().to_vec();
        let new = self.agreement.finish(tail, self.speech_end_ms);
        self.decided.extend(new.iter().cloned());
        new
    }

    /// Whether the next transcript, of audio up to `end_ms`, should be a thorough one: the last of a turn whose end is
    /// uncertain, or one with a word that stays undecided.
    pub(super) fn wants_thorough(&self, end_ms: u64) -> bool {
        let tail = self.agreement.tail();
        if self.end_ms == Some(end_ms) {
            return tail.iter().any(LiveWord::is_doubtful);
        }
        let is_late = |word: &LiveWord| word.is_doubtful() && word.end_ms + DOUBTED_MS <= end_ms;
        end_ms >= self.window_ms + MIN_THOROUGH_MS
            && end_ms >= self.thorough_ms + THOROUGH_MS
            && tail.iter().any(is_late)
    }

    /// Decided text before the window.
    pub(super) fn context(&self) -> &str {
        &self.context
    }

    /// Decided text of the window.
    pub(super) fn decided(&self) -> String {
        concatenated(&self.decided)
    }

    /// Decided text of the turn.
    pub(super) fn text(&self) -> &str {
        self.text.trim()
    }

    /// What the next turn follows.
    pub(super) fn into_rest(self) -> Rest {
        let end_ms = self.end_ms.unwrap_or(self.heard_ms);
        Rest { window_ms: self.window_ms, end_ms, context: self.context, decided: self.decided }
    }

    /// The words that are not decided.
    pub(super) fn partial(&self) -> &[LiveWord] {
        self.agreement.tail()
    }

    /// A word that may go on, of which no more is known than that it follows the others.
    pub(super) fn open_word(&self, text: String) -> LiveWord {
        let (start_ms, end_ms) = (self.committed_ms, self.heard_ms.max(self.committed_ms));
        LiveWord { text, start_ms, end_ms, probability: 0.0, certainty: 0.0 }
    }

    /// Takes a transcript of the window, after its decided words, if there is one. Returns the words that are
    /// decided now.
    pub(super) fn take(
        &mut self,
        words: Option<Vec<LiveWord>>,
        Transcribed { end_ms, is_thorough, decides }: Transcribed,
    ) -> Vec<LiveWord> {
        self.heard_ms = end_ms;
        if is_thorough {
            self.thorough_ms = end_ms;
        }
        let is_last = self.end_ms == Some(end_ms);
        let is_full = end_ms >= self.window_ms + MAX_WINDOW_MS;
        if words.is_none() && !is_last && !is_full {
            return Vec::new();
        }
        if words.is_some() {
            self.transcribed_ms = end_ms;
        }
        let words = words.unwrap_or_default();
        let new = match (is_last, is_full) {
            (true, _) => self.agreement.finish(words, self.speech_end_ms),
            (false, true) => self.agreement.decide(words, end_ms - OLD_ENOUGH_MS),
            (false, false) if !decides => self.agreement.hold(words),
            (false, false) if is_thorough => self.agreement.settle(words, end_ms),
            (false, false) => self.agreement.agree(words, end_ms),
        };
        self.decided.extend(new.iter().cloned());
        if is_full && self.decided.is_empty() {
            // Nothing was said that long: the window continues without it.
            self.window_ms = end_ms - OLD_ENOUGH_MS;
        }
        if !is_last {
            self.trim(end_ms);
        }
        new
    }

    /// Adds decided words to the text of the turn.
    pub(super) fn commit(&mut self, words: Vec<LiveWord>) -> LiveEvent {
        self.commit_text(concatenated(&words), words)
    }

    /// Adds decided text of which these words are known.
    pub(super) fn commit_text(&mut self, text: String, words: Vec<LiveWord>) -> LiveEvent {
        self.text.push_str(&text);
        self.committed_ms = words.last().map_or(self.committed_ms, |word| word.end_ms);
        LiveEvent::Committed { turn: self.number, text, words }
    }

    /// Moves the start of a long window after decided words, which become context.
    fn trim(&mut self, end_ms: u64) {
        let length_ms = end_ms - self.window_ms;
        if length_ms < TRIM_MS {
            return;
        }
        let sentence = self.decided.iter().rposition(LiveWord::ends_sentence).map(|at| at + 1);
        let cut = match sentence {
            Some(cut) => cut,
            None if length_ms >= LONG_MS => self.longest_pause(),
            None => return,
        };
        let Some(last) = cut.checked_sub(1).and_then(|at| self.decided.get(at)) else { return };
        let next_ms = self.decided.get(cut).map_or(last.end_ms, |next| next.start_ms.max(last.end_ms));
        let cut_ms = last.end_ms + (next_ms - last.end_ms) / 2;
        if cut_ms + MIN_WINDOW_MS > end_ms {
            return;
        }
        self.window_ms = cut_ms.max(self.window_ms);
        for word in self.decided.drain(..cut) {
            push_context(&mut self.context, &word.text);
        }
    }

    /// The place in the second half of the decided words with the longest pause before it; after all of them for one word.
    fn longest_pause(&self) -> usize {
        let pause = |at: &usize| self.decided[*at].start_ms.saturating_sub(self.decided[at - 1].end_ms);
        let half = (self.decided.len() / 2).max(1);
        (half..self.decided.len()).max_by_key(pause).unwrap_or(self.decided.len())
    }
}

/// The text of words.
pub(super) fn concatenated(words: &[LiveWord]) -> String {
    words.iter().map(|word| word.text.as_str()).collect()
}

/// Appends text to a context, whose oldest words are dropped.
fn push_context(context: &mut String, text: &str) {
    context.push_str(text);
    if context.len() > MAX_CONTEXT {
        let from = context.ceil_char_boundary(context.len() - MAX_CONTEXT);
        let from = context[from..].find(' ').map_or(from, |space| from + space);
        context.drain(..from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str, start_ms: u64, end_ms: u64) -> LiveWord {
        LiveWord { text: format!(" {text}"), start_ms, end_ms, probability: 0.9, certainty: 0.9 }
    }

    /// Commits the words that a transcript decides, and counts them.
    fn take(turn: &mut LiveTurn, words: Option<Vec<LiveWord>>, end_ms: u64) -> usize {
        let new = turn.take(words, Transcribed { end_ms, is_thorough: false, decides: true });
        let count = new.len();
        turn.commit(new);
        count
    }

    #[test]
    fn a_long_window_is_cut_behind_a_decided_sentence() {
        let mut turn = LiveTurn::new(0, 1_000);
        let said = [word("One", 1_100, 1_400), word("two.", 1_400, 2_000), word("Three", 3_000, 3_400)];
        assert_eq!(take(&mut turn, Some(said.to_vec()), 6_500), 0);
        let said = [&said[..], &[word("four", 7_000, 7_400)]].concat();
        assert_eq!(take(&mut turn, Some(said), 7_500), 3);
        assert_eq!((turn.window_ms, turn.context(), turn.decided().as_str()), (2_500, " One two.", " Three"));
        assert_eq!((turn.text(), concatenated(turn.partial()).as_str()), ("One two. Three", " four"));
    }

    #[test]
    fn a_turn_whose_words_are_decided_needs_no_transcript_of_its_silence() {
        let mut turn = LiveTurn::new(0, 0);
        let said = || Some(vec![word("One", 100, 400)]);
        take(&mut turn, said(), 800);
        assert_eq!(take(&mut turn, said(), 1_200), 1);
        (turn.end_ms, turn.speech_end_ms) = (Some(1_500), 1_000);
        assert!(turn.is_transcribed());
        turn.speech_end_ms = 1_150;
        assert!(!turn.is_transcribed(), "a word may follow");
        take(&mut turn, None, 1_250);
        assert!(!turn.is_transcribed(), "there was no transcript");
        let two = word("two", 900, 1_100);
        take(&mut turn, Some(vec![LiveWord { certainty: 0.5, ..two.clone() }]), 1_250);
        assert!(!turn.is_transcribed(), "a word is doubtful");
        take(&mut turn, Some(vec![two, word("you", 1_200, 1_240)]), 1_250);
        assert!(turn.is_transcribed());
        let rest = turn.finish();
        assert_eq!(concatenated(&rest), " two", "the last word is in the silence");
    }

    #[test]
    fn a_window_without_a_sentence_is_cut_at_a_pause() {
        let mut turn = LiveTurn::new(0, 0);
        let said: Vec<LiveWord> =
            (0..10).map(|n| word("word", n * 1_000, n * 1_000 + 800 + 10 * n)).collect();
        take(&mut turn, Some(said[..9].to_vec()), 9_500);
        assert_eq!(take(&mut turn, Some(said), 10_000), 9);
        assert_eq!(
            turn.window_ms, 3_915,
            "between the fourth and the fifth, the longest pause of the later half"
        );
        assert_eq!(turn.decided().split_whitespace().count(), 5);
    }

    #[test]
    fn a_window_never_exceeds_its_limit_and_the_last_transcript_is_decided() {
        let mut turn = LiveTurn::new(3, 0);
        let said = |from: u64, to: u64| {
            (from..to).map(|n| word("no", n * 1_000, n * 1_000 + 900)).collect::<Vec<_>>()
        };
        assert_eq!(take(&mut turn, Some(said(0, 16)), 16_000), 14);
        assert!(turn.window_ms > 0);
        turn.end_ms = Some(17_000);
        assert_eq!(take(&mut turn, Some(said(14, 17)), 17_000), 3);
        assert_eq!(turn.text().split_whitespace().count(), 17);
        let mut rest = turn.into_rest();
        let mut near = LiveTurn::new(4, 18_000);
        assert!(rest.window_ms < 17_000 && rest.end_ms == 17_000);
        near.follow(Rest {
            context: rest.context.clone(),
            decided: rest.decided.clone(),
            window_ms: 14_000,
            ..rest
        });
        assert_eq!((near.window_ms, near.text()), (14_000, ""));
        assert!(!near.decided().is_empty());
        rest = near.into_rest();
        let mut far = LiveTurn::new(5, 30_000);
        far.follow(rest);
        assert_eq!((far.window_ms, far.decided().as_str()), (30_000, ""));
        assert!(far.context().len() <= MAX_CONTEXT && far.context().ends_with(" no"));
        let mut silent = LiveTurn::new(4, 0);
        silent.take(None, Transcribed { end_ms: 16_000, is_thorough: false, decides: true });
        assert_eq!(silent.window_ms, 14_500);
    }
    #[test]
    fn words_of_an_uncertain_language_are_decided_at_the_end() {
        let mut turn = LiveTurn::new(0, 0);
        let mut heard = |text: &str, end_ms| {
            let words = Some(vec![word(text, 100, 400)]);
            turn.end_ms = Some(2_000).filter(|end| *end == end_ms);
            turn.take(words, Transcribed { end_ms, is_thorough: false, decides: false })
        };
        assert!(heard("hima", 1_000).is_empty() && heard("hima", 1_500).is_empty());
        assert_eq!(concatenated(&heard("he", 2_000)), " he");
    }
}
