//! The modality of the next position, text or audio, and the end of a turn, in every mode.
//!
//! Knows no tensor. Rules:
//! <https://github.com/Liquid4All/liquid-audio/blob/main/src/liquid_audio/model/lfm2_audio.py>.

use super::config::{AUDIO_START, END_OF_AUDIO, IM_END, TEXT_END};

/// How text and frames alternate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Mode {
    /// Text until a token starts audio, frames until a code ends it, and so on.
    #[default]
    Sequential,
    /// Frames without end, for random weights, which rarely start or end audio.
    Frames,
    /// `text` tokens and `audio` frames in turn until the text ends.
    Interleaved { text: i64, audio: i64 },
}

/// The kind of a generated position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modality {
    Text,
    Audio,
}

/// The effect of a sampled text token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextOutcome {
    /// It is emitted and the turn continues.
    Continue,
    /// It is emitted and the turn ends.
    EndAfter,
    /// It is not emitted and the turn ends.
    EndBefore,
}

/// The modality state of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModalityState {
    mode: Mode,
    modality: Modality,
    /// Positions left of the modality, in interleaved mode.
    left: i64,
    /// Whether the text has ended.
    done: bool,
}

impl ModalityState {
    /// The state at the start of a turn.
    pub(super) fn new(mode: Mode) -> Self {
        let left = if let Mode::Interleaved { text, .. } = mode { text } else { 0 };
        let modality = if mode == Mode::Frames { Modality::Audio } else { Modality::Text };
        Self { mode, modality, left, done: false }
    }

    /// The modality of the next position.
    pub(super) fn next(&self) -> Modality {
        self.modality
    }

    /// Accounts for a sampled text token.
    pub(super) fn text(&mut self, token: u32) -> TextOutcome {
        self.left -= 1;
        match self.mode {
            Mode::Sequential if token == IM_END => return TextOutcome::EndAfter,
            Mode::Interleaved { .. } if token == IM_END => return TextOutcome::EndBefore,
            Mode::Sequential if token == AUDIO_START => self.modality = Modality::Audio,
            Mode::Sequential | Mode::Frames => {}
            Mode::Interleaved { audio, .. } => {
                self.done |= token == TEXT_END;
                if self.left == 0 || self.done {
                    (self.modality, self.left) = (Modality::Audio, audio);
                }
            }
        }
        TextOutcome::Continue
    }

    /// Accounts for a sampled frame; one that ends audio gets that code in all codebooks.
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

    /// Runs a state over sampled tokens (`Ok` text, `Err` the first code of a frame) and spells the emissions.
    fn emitted(mode: Mode, drawn: &[Result<u32, u32>]) -> String {
        let mut state = ModalityState::new(mode);
        let mut emitted = String::new();
        for token in drawn {
            match (token, state.next()) {
                (Ok(token), Modality::Text) => match state.text(*token) {
                    TextOutcome::Continue => emitted.push('t'),
                    TextOutcome::EndAfter => return emitted + "t.",
                    TextOutcome::EndBefore => return emitted + ".",
                },
                (Err(code), Modality::Audio) => {
                    let mut codes = [*code, 5, 2048];
                    state.frame(&mut codes);
                    assert_eq!(codes[1] == END_OF_AUDIO, *code == END_OF_AUDIO);
                    emitted.push(if codes[1] == END_OF_AUDIO { 'E' } else { 'a' });
                }
                (_, next) => return format!("{emitted}, then {next:?}"),
            }
        }
        emitted
    }

    const T: Result<u32, u32> = Ok(500);
    const A: Result<u32, u32> = Err(3);
    const END: Result<u32, u32> = Ok(IM_END);
    const TEXT_DONE: Result<u32, u32> = Ok(TEXT_END);
    const AUDIO_DONE: Result<u32, u32> = Err(END_OF_AUDIO);

    #[test]
    fn sequential_tokens_start_and_end_audio() {
        let emitted = |drawn: &[_]| emitted(Mode::Sequential, drawn);
        assert_eq!(emitted(&[T, T, TEXT_DONE, T, END, T]), "ttttt.");
        assert_eq!(emitted(&[Ok(AUDIO_START), A, A, A, AUDIO_DONE, T, END]), "taaaEtt.");
        assert_eq!(emitted(&[Ok(AUDIO_START), A, T]), "ta, then Audio");
        assert_eq!(emitted(&[A]), ", then Text");
    }

    #[test]
    fn interleaved_text_and_frames_are_counted() {
        let emitted = |drawn: &[_]| emitted(Mode::Interleaved { text: 2, audio: 3 }, drawn);
        assert_eq!(emitted(&[T, T, A, A, A, T, T, A]), "ttaaatta");
        assert_eq!(emitted(&[T, T, A, A, T]), "ttaa, then Audio");
        assert_eq!(emitted(&[T, END]), "t.");
        // After the end of text frames alone follow; each text token leads back to frames.
        assert_eq!(emitted(&[TEXT_DONE, A, A, A, A, A, AUDIO_DONE, END]), "taaaaaE.");
        assert_eq!(emitted(&[TEXT_DONE, A, AUDIO_DONE, T, A, A, A, A]), "taEtaaaa");
    }

    #[test]
    fn the_end_of_audio_does_not_reset_the_count() {
        let emitted = |drawn: &[_]| emitted(Mode::Interleaved { text: 2, audio: 4 }, drawn);
        // Three positions were left: text continues until none is.
        assert_eq!(emitted(&[T, T, AUDIO_DONE, T, T, T, A]), "ttEttta");
        // At the last frame of a turn the count is reset, and the end changes nothing.
        assert_eq!(emitted(&[T, T, A, A, A, AUDIO_DONE, T, T, A]), "ttaaaEtta");
    }
}
