//! The passes that rescore a transcript with keywords. Knows no tensor.

use super::rescoring::Rescoring;
use super::segments::DecodingResult;
use super::state::{DecodingState, Pass, PassKind, Recording};
use super::window_decoder::WindowDecoder;
use izwi_types::StepOutput;

impl WindowDecoder {
    /// Rescores a result that follows `prompt` with the keywords of the request, before it is timed or accepted.
    pub(super) fn rescore(
        &self,
        recording: &Recording,
        state: &mut DecodingState,
        prompt: Vec<u32>,
        result: DecodingResult,
    ) -> StepOutput {
        let keywords = recording.options.keywords.as_ref().filter(|_| recording.options.given.is_none());
        let Some(keywords) = keywords.filter(|_| !self.is_unspaced(state)) else {
            return self.align_or_accept(recording, state, result);
        };
        let most = recording.options.max_positions.saturating_sub(prompt.len() + result.tokens.len());
        let mut rescoring = Rescoring::new(result, prompt, keywords.words(), &self.vocabulary);
        rescoring.keep_within(most);
        state.window.rescoring = Some(rescoring);
        self.next_candidate(recording, state)
    }

    /// Finishes a pass over a candidate.
    pub(super) fn rescored(&self, recording: &Recording, state: &mut DecodingState) -> StepOutput {
        if let Some(rescoring) = &mut state.window.rescoring {
            rescoring.take_scores(&state.pass.logprobs, &self.vocabulary);
        }
        self.next_candidate(recording, state)
    }

    fn next_candidate(&self, recording: &Recording, state: &mut DecodingState) -> StepOutput {
        if let Some((tokens, prompt_len)) = state.window.rescoring.as_ref().and_then(Rescoring::next_tokens) {
            let pass = Pass { prompt_len, ..Pass::new(PassKind::Score, tokens, 0) };
            return StepOutput { next_pass: Some(state.begin(pass)), ..StepOutput::default() };
        }
        match state.window.rescoring.take() {
            Some(rescoring) => self.align_or_accept(recording, state, rescoring.into_result()),
            None => StepOutput::default(),
        }
    }
}
