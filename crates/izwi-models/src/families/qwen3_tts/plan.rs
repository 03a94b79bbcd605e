//! An utterance: the passes that speak it, and how far it has come.

use std::sync::Arc;

use super::codec::DecoderState;
use super::generation::{Outcome, Pass, Said};
use super::tokens::{Script, Vocabulary};
use super::voice::ClonedVoice;
use crate::portions::{Portions, Sounding};
use crate::text::pieces;
use izwi_types::Work;

/// Tokens of text in one pass: about a minute of speech. What is longer is cut between sentences, for the models lose
/// their way in long texts, and a pass has to fit the pool.
pub(super) const MAX_TOKENS: usize = 250;
/// Frames of a token of text, for most languages and tempi.
pub(super) const FRAMES_PER_TOKEN: usize = 5;

/// What was prepared.
#[derive(Debug)]
pub(super) struct Utterance {
    pub(super) passes: Vec<Pass>,
    /// Frames that are too many for each pass.
    pub(super) budgets: Vec<usize>,
    pub(super) voice: Option<Arc<ClonedVoice>>,
    pub(super) portions: Portions,
}

/// A running utterance.
#[derive(Debug)]
pub(super) struct Speaking {
    /// The pass it is in.
    pub(super) pass: usize,
    pub(super) said: Said,
    /// `None` until the first frame of a pass.
    pub(super) decoder: Option<DecoderState>,
    pub(super) sounding: Sounding,
}

/// What a step leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: its rows are not all computed.
    Pending,
    /// Nothing: it goes on.
    Goes,
    /// The pending frames complete a chunk and become sound.
    Sounds,
    /// The engine ends the pass behind this frame: all that are pending become sound.
    Stops,
    /// The pass is over.
    Ends,
}

impl Speaking {
    pub(super) fn new() -> Self {
        Self { pass: 0, said: Said::default(), decoder: None, sounding: Sounding::default() }
    }

    /// Takes note of what a step said.
    pub(super) fn take(&mut self, utterance: &Utterance, outcome: Outcome) -> Next {
        match outcome {
            Outcome::Pending => return Next::Pending,
            Outcome::End => return Next::Ends,
            Outcome::Frame(frame) => self.sounding.pending.push(frame.to_vec()),
        }
        let prompt = utterance.passes.get(self.pass).map_or(0, |pass| pass.prompt.positions.len());
        if self.said.frames.len() >= utterance.portions.most(prompt) {
            Next::Stops
        } else if self.sounding.is_due(&utterance.portions) {
            Next::Sounds
        } else {
            Next::Goes
        }
    }

    /// Takes note of the sound of the pending frames; whether the pass is to end with it. What lies behind the end is
    /// cut off.
    pub(super) fn heard(&mut self, utterance: &Utterance, samples: &mut Vec<f32>) -> bool {
        self.sounding.heard(&utterance.portions, utterance.budgets.get(self.pass).copied(), samples)
    }

    /// Goes on to the next pass, if there is one.
    pub(super) fn next(&mut self, utterance: &Utterance) -> Option<Work> {
        let next = utterance.work(self.pass + 1)?;
        let mut sounding = std::mem::take(&mut self.sounding);
        sounding.next_pass();
        *self = Self { pass: self.pass + 1, sounding, ..Self::new() };
        Some(next)
    }
}

impl Utterance {
    /// The work of a pass.
    pub(super) fn work(&self, pass: usize) -> Option<Work> {
        let positions = &self.passes.get(pass)?.prompt.positions;
        Some(Work::Autoregressive { prompt: positions.iter().map(|p| p.key()).collect(), encoder_tokens: 0 })
    }
}

/// Cuts a text into pieces of at most `most` tokens: whole where it fits, else between sentences, and within one only
/// where it alone is too long.
pub(super) fn pieces(text: &str, vocabulary: &Vocabulary, most: usize) -> Option<Vec<Script>> {
    let whole = vocabulary.script(text)?;
    if whole.body.len() <= most {
        return Some(vec![whole]);
    }
    let pieces = pieces::pieces(text, most, |part| vocabulary.encode(part).len());
    pieces.iter().map(|piece| vocabulary.script(piece)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::golden_set::root;
    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn pieces_fit_and_lose_nothing(text in "[a-zA-Z .,!?é你\n]{1,400}", most in 8usize..60) {
            let vocabulary = Vocabulary::load(&root().join("cv06"), usize::MAX).unwrap();
            let pieces = pieces(&text, &vocabulary, most).unwrap();
            prop_assert!(pieces.iter().all(|piece| piece.body.len() <= most.max(8) + 1));
            let whole = vocabulary.script(&text).unwrap();
            if whole.body.len() <= most {
                prop_assert_eq!(pieces, vec![whole]);
            }
        }
    }

    #[test]
    fn long_texts_are_cut_between_sentences() {
        let vocabulary = Vocabulary::load(&root().join("cv06"), usize::MAX).unwrap();
        let sentence = "This is one sentence of several. ";
        let text = sentence.repeat(12);
        let most = vocabulary.encode(sentence).len() * 4;
        let pieces = pieces(&text, &vocabulary, most).unwrap();
        assert!(pieces.len() >= 3 && pieces.len() <= 6, "{}", pieces.len());
    }
}
