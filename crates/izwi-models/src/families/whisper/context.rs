//! What surrounds the speech of a window: silence that pads it, and text that is decided already.

use super::SAMPLE_RATE_HZ;
use super::tokens::Vocabulary;
use crate::mel_encoder::FRAMES_PER_POSITION;
use crate::regions::WINDOW_FRAMES;
use izwi_nn::layers::ROW_ALIGN;
use izwi_types::{InputError, LiveWindow};

/// Silence that pads a window for the encoder.
///
/// The network was trained on windows of 30 s, padded with silence. Less padding costs time in proportion to the speech
/// and changes the transcript slightly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Context {
    /// Padding up to 30 s, as in training.
    Full,
    /// Padding of at least `margin` positions of 20 ms.
    Short { margin: usize },
}

/// Least positions of a context.
const MIN_POSITIONS: usize = 64;

impl Context {
    /// Encoder positions for a window of `frames` mel frames, at most `most`.
    pub(super) fn positions(self, frames: usize, most: usize) -> usize {
        match self {
            Self::Full => most,
            Self::Short { margin } => {
                let positions = frames.div_ceil(FRAMES_PER_POSITION) + margin;
                positions.max(MIN_POSITIONS).next_multiple_of(ROW_ALIGN).min(most)
            }
        }
    }
}

/// What is decided of a window, as tokens.
#[derive(Debug, Clone)]
pub(super) struct Decided {
    pub(super) tokens: Vec<u32>,
    is_thorough: bool,
}

impl Decided {
    /// Tokens of the decided text of a window of `samples`.
    ///
    /// # Errors
    /// The window is longer than the network's, or the text has more than half of `positions` tokens.
    pub(super) fn new(
        window: &LiveWindow,
        samples: usize,
        positions: usize,
        vocabulary: &Vocabulary,
    ) -> Result<Self, InputError> {
        let longest_s = WINDOW_FRAMES / 100;
        if samples > longest_s * SAMPLE_RATE_HZ {
            let message = format!("a live window has at most {longest_s} s of audio; send less");
            return Err(InputError { param: "audio", message });
        }
        let tokens = vocabulary.encode(&window.decided);
        if tokens.len() > positions / 2 {
            let message = format!(
                "the decided text of a live window has {} tokens, at most {} fit; send less",
                tokens.len(),
                positions / 2
            );
            return Err(InputError { param: "decided", message });
        }
        Ok(Self { tokens, is_thorough: window.is_thorough })
    }

    /// The context of the window: that of files, or the whole, which costs more and changes words that are hard to hear.
    pub(super) fn context(&self, of_files: Context) -> Context {
        if self.is_thorough { Context::Full } else { of_files }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_holds_the_window_and_its_margin_in_aligned_rows() {
        let short = Context::Short { margin: 50 };
        assert_eq!(short.positions(1000, 1500), 560);
        assert_eq!(short.positions(10, 1500), MIN_POSITIONS);
        assert_eq!(short.positions(2990, 1500), 1500);
        assert_eq!(Context::Full.positions(10, 1500), 1500);
    }
}
