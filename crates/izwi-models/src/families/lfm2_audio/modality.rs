//! What comes next: text or a frame, and whether it is the last. The rules of both modes, and nothing else.
//!
//! <https://github.com/Liquid4All/liquid-audio/blob/main/src/liquid_audio/model/lfm2_audio.py>.

use super::config::{AUDIO_START, END_OF_AUDIO, IM_END, TEXT_END};

/// How text and frames follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    /// Text until a token begins audio, frames until a code ends it, and so on.
    #[default]
    Sequential,
    /// Frames without end: what made-up weights would say never begins or ends by itself.
    Frames,
    /// So many tokens of text and so many frames in turn, until the text is done.
    Interleaved { text: i64, audio: i64 },
}

/// What is generated next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modality {
    Text,
    Audio,
}

/// What a drawn text token leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is said and is the next input.
    Goes,
    /// It is said, and the turn ends.
    EndsWith,
    /// It is not said, and the turn ends.
    EndsBefore,
}

/// How far a turn is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Course {
    mode: Mode,
    modality: Modality,
    /// Units left of the modality, before the one that comes next; only where the two take turns.
    left: i64,
    /// Whether all text is there.
    done: bool,
}

impl Course {
    /// The course of a turn that begins.
    pub(super) fn new(mode: Mode) -> Self {
        let left = if let Mode::Interleaved { text, .. } = mode { text } else { 0 };
        let modality = if mode == Mode::Frames { Modality::Audio } else { Modality::Text };
        Self { mode, modality, left, done: false }
    }

    /// What comes next.
    pub(super) fn next(&self) -> Modality {
        self.modality
    }

    /// Takes note of a text token.
    pub(super) fn text(&mut self, token: u32) -> Turn {
        self.left -= 1;
        match self.mode {
            Mode::Sequential if token == IM_END => return Turn::EndsWith,
            Mode::Interleaved { .. } if token == IM_END => return Turn::EndsBefore,
            Mode::Sequential if token == AUDIO_START => self.modality = Modality::Audio,
            Mode::Sequential | Mode::Frames => {}
            Mode::Interleaved { audio, .. } => {
                self.done |= token == TEXT_END;
                if self.left == 0 || self.done {
                    (self.modality, self.left) = (Modality::Audio, audio);
                }
            }
        }
        Turn::Goes
    }

    /// Takes note of a frame; one that ends audio becomes that in all books.
    pub(super) fn frame(&mut self, codes: &mut [u32]) {
        self.left -= 1;
        if self.mode == Mode::Frames {
            return;
        }
        if let Mode::Interleaved { text, .. } = self.mode
            && self.left == 0
            && !self.done
        {
            (self.modality, self.left) = (Modality::Text, text);
        }
        if codes.first() == Some(&END_OF_AUDIO) {
            codes.fill(END_OF_AUDIO);
            self.modality = Modality::Text;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a course over drawn units (`Ok` text, `Err` the first code of a frame) and writes down what is said.
    fn said(mode: Mode, units: &[Result<u32, u32>]) -> String {
        let mut course = Course::new(mode);
        let mut said = String::new();
        for unit in units {
            match (unit, course.next()) {
                (Ok(token), Modality::Text) => match course.text(*token) {
                    Turn::Goes => said.push('t'),
                    Turn::EndsWith => return said + "t.",
                    Turn::EndsBefore => return said + ".",
                },
                (Err(code), Modality::Audio) => {
                    let mut codes = [*code, 5, 2048];
                    course.frame(&mut codes);
                    assert_eq!(codes[1] == END_OF_AUDIO, *code == END_OF_AUDIO);
                    said.push(if codes[1] == END_OF_AUDIO { 'E' } else { 'a' });
                }
                (_, next) => return format!("{said}, then {next:?}"),
            }
        }
        said
    }

    const T: Result<u32, u32> = Ok(500);
    const A: Result<u32, u32> = Err(3);
    const END: Result<u32, u32> = Ok(IM_END);
    const TEXT_DONE: Result<u32, u32> = Ok(TEXT_END);
    const AUDIO_DONE: Result<u32, u32> = Err(END_OF_AUDIO);

    #[test]
    fn in_sequence_tokens_begin_and_end_audio() {
        let said = |units: &[_]| said(Mode::Sequential, units);
        assert_eq!(said(&[T, T, TEXT_DONE, T, END, T]), "ttttt.");
        assert_eq!(said(&[Ok(AUDIO_START), A, A, A, AUDIO_DONE, T, END]), "taaaEtt.");
        assert_eq!(said(&[Ok(AUDIO_START), A, T]), "ta, then Audio");
        assert_eq!(said(&[A]), ", then Text");
    }

    #[test]
    fn in_turns_text_and_frames_are_counted() {
        let said = |units: &[_]| said(Mode::Interleaved { text: 2, audio: 3 }, units);
        assert_eq!(said(&[T, T, A, A, A, T, T, A]), "ttaaatta");
        assert_eq!(said(&[T, T, A, A, T]), "ttaa, then Audio");
        assert_eq!(said(&[T, END]), "t.");
        // The end of text: frames alone, until they end; one token each sends it back to them.
        assert_eq!(said(&[TEXT_DONE, A, A, A, A, A, AUDIO_DONE, END]), "taaaaaE.");
        assert_eq!(said(&[TEXT_DONE, A, AUDIO_DONE, T, A, A, A, A]), "taEtaaaa");
    }

    #[test]
    fn the_end_of_audio_does_not_reset_the_count() {
        let said = |units: &[_]| said(Mode::Interleaved { text: 2, audio: 4 }, units);
        // Three were left: text goes on until none is.
        assert_eq!(said(&[T, T, AUDIO_DONE, T, T, T, A]), "ttEttta");
        // At the last frame of a turn the count is reset, and the end changes nothing.
        assert_eq!(said(&[T, T, A, A, A, AUDIO_DONE, T, T, A]), "ttaaaEtta");
    }
}
