//! An utterance: the passes that speak it, and how far it has come.

use std::sync::Arc;

use super::codec::DecoderState;
use super::generation::{Pass, Said};
use super::tokens::{Script, Vocabulary};
use super::voice::ClonedVoice;
use crate::model::Work;
use crate::text::sentences;
use crate::watchdog::{Limits, Watchdog};

/// Tokens of text in one pass: about a minute of speech. What is longer is cut between sentences, for the models lose
/// their way in long texts, and a pass has to fit the pool.
pub(super) const MAX_TOKENS: usize = 250;
/// Frames of a token of text, for most languages and tempi.
pub(super) const FRAMES_PER_TOKEN: usize = 5;
/// Frames that are too many: so many for a token, and so many in any case.
const BUDGET_PER_TOKEN: usize = 12;
const BUDGET: usize = 60;
/// Seconds of a loop or of silence that speech does not have.
const LOOP_S: f64 = 4.0;
const SILENCE_S: f64 = 4.0;
/// Frames that wait for their sound at most, whatever the listener wants at once: others wait for this step.
pub(super) const MAX_PORTION: usize = 4;

/// What was prepared.
#[derive(Debug)]
pub(super) struct Utterance {
    pub(super) passes: Vec<Pass>,
    /// Frames that are too many for each pass.
    pub(super) budgets: Vec<usize>,
    pub(super) voice: Option<Arc<ClonedVoice>>,
    pub(super) portions: Portions,
}

/// When frames become sound: each portion of them costs a pass over the codec's weights.
#[derive(Debug, Clone, Copy)]
pub(super) struct Portions {
    /// Samples of a frame.
    pub(super) frame: usize,
    /// Samples in a second.
    pub(super) rate: usize,
    /// Samples that the listener gets at once.
    pub(super) chunk: usize,
    /// Frames and positions after which the engine ends a pass.
    pub(super) max_frames: usize,
    pub(super) max_positions: usize,
}

/// A running utterance.
#[derive(Debug)]
pub(super) struct Speaking {
    /// The pass it is in.
    pub(super) pass: usize,
    pub(super) said: Said,
    /// `None` until the first frame of a pass.
    pub(super) decoder: Option<DecoderState>,
    /// Frames that are no sound yet.
    pub(super) pending: Vec<Vec<u32>>,
    /// Samples of all passes.
    sounded: usize,
    watchdog: Option<Watchdog>,
    pub(super) ran_away: bool,
}

impl Speaking {
    pub(super) fn new() -> Self {
        Self {
            pass: 0,
            said: Said::default(),
            decoder: None,
            pending: Vec::new(),
            sounded: 0,
            watchdog: None,
            ran_away: false,
        }
    }

    /// Whether the pending frames are to become sound now: they complete a chunk, or the engine ends the pass.
    pub(super) fn is_due(&self, utterance: &Utterance) -> bool {
        let Portions { frame, chunk, max_frames, max_positions, .. } = utterance.portions;
        let prompt = utterance.passes.get(self.pass).map_or(0, |pass| pass.prompt.positions.len());
        let most = max_frames.min(max_positions.saturating_sub(prompt));
        let (before, after) = (self.sounded, self.sounded + self.pending.len() * frame);
        self.pending.len() >= MAX_PORTION || after / chunk > before / chunk || self.said.frames.len() >= most
    }

    /// Takes note of the sound of the pending frames; whether the pass is to end with it. What lies behind the end is
    /// cut off.
    pub(super) fn heard(&mut self, utterance: &Utterance, samples: &mut Vec<f32>) -> bool {
        let frame = utterance.portions.frame;
        let pending = std::mem::take(&mut self.pending);
        let sounds = pending.iter().zip(samples.chunks_exact(frame));
        let end = sounds.enumerate().find_map(|(at, (codes, sound))| {
            let token = codes.first().copied().unwrap_or_default();
            self.watch(utterance, token, sound).then_some((at + 1) * frame)
        });
        samples.truncate(end.unwrap_or(usize::MAX));
        self.sounded += samples.len();
        end.is_some()
    }

    fn watch(&mut self, utterance: &Utterance, token: u32, samples: &[f32]) -> bool {
        let Some(&budget) = utterance.budgets.get(self.pass) else { return false };
        let frames_per_s = utterance.portions.rate as f64 / utterance.portions.frame.max(1) as f64;
        let limits = Limits { frames_per_s, budget, loop_s: LOOP_S, silence_s: SILENCE_S };
        let bites = self.watchdog.get_or_insert_with(|| Watchdog::new(limits)).observe(token, samples);
        self.ran_away |= bites;
        bites
    }

    /// Goes on to the next pass, if there is one.
    pub(super) fn next(&mut self, utterance: &Utterance) -> Option<Work> {
        let next = utterance.work(self.pass + 1)?;
        let Self { pass, sounded, ran_away, .. } = *self;
        *self = Self { pass: pass + 1, sounded, ran_away, ..Self::new() };
        Some(next)
    }
}

impl Utterance {
    /// The work of a pass.
    pub(super) fn work(&self, pass: usize) -> Option<Work> {
        let positions = &self.passes.get(pass)?.prompt.positions;
        Some(Work::Autoregressive { prompt: positions.iter().map(|p| p.key()).collect(), setup_tokens: 0 })
    }
}

/// Frames that are too many for a text of `tokens`.
pub(super) fn budget(tokens: usize) -> usize {
    BUDGET + BUDGET_PER_TOKEN * tokens
}

/// Cuts a text into pieces of at most `most` tokens: whole where it fits, else between sentences, and within one only
/// where it alone is too long.
pub(super) fn pieces(text: &str, vocabulary: &Vocabulary, most: usize) -> Option<Vec<Script>> {
    let whole = vocabulary.script(text)?;
    if whole.body.len() <= most {
        return Some(vec![whole]);
    }
    let mut pieces: Vec<String> = Vec::new();
    let mut size = usize::MAX;
    for part in sentences::split(text).into_iter().flat_map(|sentence| shorten(sentence, vocabulary, most)) {
        let tokens = vocabulary.encode(part).len();
        match pieces.last_mut().filter(|_| size.saturating_add(tokens) < most) {
            Some(piece) => {
                piece.push(' ');
                piece.push_str(part);
                size += tokens + 1;
            }
            None => {
                pieces.push(part.to_owned());
                size = tokens;
            }
        }
    }
    pieces.iter().map(|piece| vocabulary.script(piece)).collect()
}

/// Halves a text, near its middle and between words where it can, until every part is short enough.
fn shorten<'a>(text: &'a str, vocabulary: &Vocabulary, most: usize) -> Vec<&'a str> {
    let middle = text.len() / 2;
    if vocabulary.encode(text).len() <= most || text.chars().nth(1).is_none() {
        return vec![text];
    }
    let near = |(at, _): &(usize, char)| at.abs_diff(middle);
    let space = text.char_indices().skip(1).filter(|(_, c)| c.is_whitespace()).min_by_key(near);
    let cut = space.or_else(|| text.char_indices().skip(1).min_by_key(near)).map_or(text.len(), |(at, _)| at);
    let (front, back) = text.split_at(cut);
    let parts = [front.trim(), back.trim()].into_iter().filter(|part| !part.is_empty());
    parts.flat_map(|part| shorten(part, vocabulary, most)).collect()
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
