//! The passes over a text that is given: which of its words are said in a window, how likely, and when.
//!
//! The network reads a text twice: as the tokens of its training, which tells how likely each word is, and letter by letter,
//! which tells when each is said: the boundaries of letters are sharper than those of longer tokens, as
//! <https://arxiv.org/abs/2509.09987> finds. A recording that a window holds is aligned with the whole text at once. Windows of a
//! longer one are transcribed first: the words of the text that the transcript comes from are aligned with the window, wherever the
//! two differ. Knows no tensor.

use std::ops::Range;

use super::given::{Given, tokens};
use super::segments::{DecodingResult, split_segments};
use super::state::{DecodingState, Pass, PassKind, Recording};
use super::tokens::TIME_STEP_S;
use super::window_decoder::{MAX_PROMPT_TEMPERATURE, WindowDecoder, seconds};
use crate::given_text::SaidWord;
use izwi_types::{Segment, StepOutput};

impl WindowDecoder {
    /// A pass over words of the text, which follow what every transcript starts with.
    fn given_pass(
        &self,
        recording: &Recording,
        state: &DecodingState,
        kind: PassKind,
        words: impl Iterator<Item = u32>,
    ) -> Pass {
        let mut tokens = self.head(recording, state);
        tokens.push(self.vocabulary.no_timestamps);
        let prompt_len = tokens.len();
        tokens.extend(words);
        Pass { prompt_len, ..Pass::new(kind, tokens, 0) }
    }

    /// The first pass over the words `share` of the text.
    fn score_pass(
        &self,
        recording: &Recording,
        given: &Given,
        state: &mut DecodingState,
        share: Range<usize>,
    ) -> Pass {
        state.share = share.clone();
        self.given_pass(recording, state, PassKind::Score, tokens(&given.words[share]))
    }

    /// Finishes the first pass over words of the text and begins the one that aligns them.
    pub(super) fn scored(&self, recording: &Recording, state: &mut DecodingState) -> StepOutput {
        let Some(given) = &recording.options.given else { return StepOutput::default() };
        let mut rest = state.pass.logprobs.as_slice();
        let likely = given.words[state.share.clone()].iter().map(|word| {
            let (own, others) = rest.split_at(word.tokens.len().min(rest.len()));
            rest = others;
            let said = own.get(word.said.clone()).unwrap_or_default();
            said.iter().map(|logprob| logprob.exp()).sum::<f32>() / said.len().max(1) as f32
        });
        state.likely = likely.collect();
        let words = given.aligned(state.share.clone(), recording.options.max_positions);
        let words = tokens(words).chain([self.vocabulary.end]);
        let pass = self.given_pass(recording, state, PassKind::Align, words);
        StepOutput { next_pass: Some(state.begin(pass)), ..StepOutput::default() }
    }

    /// The first pass of a recording that a window holds, all of its text given.
    pub(super) fn whole_pass(&self, recording: &Recording, state: &mut DecodingState) -> Option<Pass> {
        let given = recording.options.given.as_ref().filter(|given| given.is_whole)?;
        Some(self.score_pass(recording, given, state, 0..given.words.len()))
    }

    /// Aligns the words of the text that the transcript of a window comes from.
    pub(super) fn align_given(
        &self,
        recording: &Recording,
        given: &Given,
        state: &mut DecodingState,
        result: DecodingResult,
    ) -> StepOutput {
        let spans = split_segments(&result.tokens, state.window.frames.len(), &self.vocabulary);
        let end = spans.segments.last().map_or(0, |last| last.tokens.end);
        let transcript = self.vocabulary.text(&result.tokens[..end]);
        state.window.result = Some(result);
        let share = given.heard(state.progress.timed(), &transcript, recording.options.max_positions);
        if share.is_empty() {
            return self.accept_given(recording, state, Vec::new(), None);
        }
        let pass = self.score_pass(recording, given, state, share);
        StepOutput { next_pass: Some(state.begin(pass)), ..StepOutput::default() }
    }

    /// Finishes the pass over the window: times its words.
    pub(super) fn given_aligned(
        &self,
        recording: &Recording,
        given: &Given,
        state: &mut DecodingState,
    ) -> StepOutput {
        let said = self.said(recording, given, state);
        let last_s = said.iter().flatten().last().map(|word| word.end_s);
        let segments = state.progress.add(&given.text, said);
        state.history.extend(tokens(&given.words[state.share.clone()]));
        self.accept_given(recording, state, segments, last_s)
    }

    /// Goes on after a window whose words end at `last_s`.
    pub(super) fn accept_given(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        segments: Vec<Segment>,
        last_s: Option<f64>,
    ) -> StepOutput {
        let mut end = state.window.frames.end;
        if let Some(result) = state.window.result.take() {
            let spans = split_segments(&result.tokens, state.window.frames.len(), &self.vocabulary);
            end = self.end_of(recording, state, &spans, last_s);
            result.text.trim().clone_into(&mut state.last_window);
            if result.temperature > MAX_PROMPT_TEMPERATURE || !state.window.conditioned {
                state.prompt_reset_since = state.history.len();
            }
        }
        self.next_window(recording, state, end, segments)
    }

    /// The words of the window, timed by the pass that has ended, and those before them, which are not found.
    fn said(&self, recording: &Recording, given: &Given, state: &DecodingState) -> Vec<Option<SaidWord>> {
        let (window, pass) = (&state.window, &state.pass);
        let cross_weights = state.cross_weights();
        let bounds = cross_weights.bounds(pass.prompt_len..pass.tokens.len() - 1);
        let at = |token: usize| {
            let position = bounds.get(token).copied().unwrap_or_default();
            (seconds(window.frames.start) + position * TIME_STEP_S).min(recording.duration_s)
        };
        let mut said = vec![None; state.share.start.saturating_sub(state.progress.timed())];
        let mut first = 0;
        let words = given.aligned(state.share.clone(), recording.options.max_positions);
        for (word, &probability) in words.iter().zip(&state.likely) {
            let (start_s, end_s) = (at(first + word.said.start), at(first + word.said.end));
            first += word.tokens.len();
            said.push((probability > 0.0).then_some(SaidWord { start_s, end_s, probability }));
        }
        said
    }
}
