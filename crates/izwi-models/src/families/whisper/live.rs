//! A window of live audio: one pass whose text begins with what is decided already, and a second without the previous text
//! where the first is unreliable.
//!
//! The decided text is part of the prompt, so that only what follows it costs steps. Does not decide what is decided: the
//! caller compares the transcripts of a window that grows.

use super::context::Decided;
use super::state::{DecodingState, Pass, PassKind, Recording};
use super::window_decoder::WindowDecoder;
use izwi_nn::Error;
use izwi_types::{StepOutput, Work};

use super::sampling::{Draws, choose_with};
use super::segments::{DecodingResult, is_loop};

/// The most generated tokens for a second of the window, and alongside them: nobody speaks faster, loops do.
const TOKENS_PER_S: usize = 10;
const SPARE_TOKENS: usize = 16;

impl WindowDecoder {
    /// The pass over a live window: previous text, head, decided text.
    pub(super) fn live_pass(
        &self,
        recording: &Recording,
        decided: &Decided,
        state: &mut DecodingState,
    ) -> Work {
        let head = self.head(recording, state);
        let options = &recording.options;
        let room = (options.max_positions / 2).saturating_sub(decided.tokens.len() + head.len() + 2);
        let shown: &[u32] = if state.window.conditioned { &state.history } else { &[] };
        let shown = &shown[shown.len().saturating_sub(room)..];
        let mut tokens = Vec::with_capacity(shown.len() + head.len() + decided.tokens.len() + 2);
        if !shown.is_empty() {
            tokens.push(self.vocabulary.previous);
            tokens.extend(shown);
        }
        let start_at = tokens.len();
        tokens.extend(head);
        tokens.push(self.vocabulary.first_timestamp);
        tokens.extend(&decided.tokens);
        state.begin(Pass::new(PassKind::Decode, tokens, start_at))
    }

    /// Samples the next token of a live window and, at the end, finishes the pass.
    pub(super) fn sample_live(
        &self,
        recording: &Recording,
        decided: &Decided,
        state: &mut DecodingState,
        mut logits: Vec<f32>,
    ) -> Result<StepOutput, Error> {
        let (window, pass) = (&state.window, &mut state.pass);
        let count = pass.generated().len();
        // The decided text and its first timestamp are part of what was generated before.
        self.rules.apply(&mut logits, &pass.tokens[pass.prompt_len - decided.tokens.len() - 1..]);
        let draws = Draws::new(recording.options.seed, window.frames.start, window.attempt);
        let choice = choose_with(recording.options.keywords.as_ref(), &mut pass.place, &logits, |logits| {
            draws.choose(logits, window.temperature, count)
        });
        pass.logprobs.push(choice.logprob);
        let mut ended = choice.token == self.vocabulary.end;
        if !ended {
            pass.tokens.push(choice.token);
            let most = window.frames.len() * TOKENS_PER_S / 100 + SPARE_TOKENS;
            let generated = pass.generated();
            ended = generated.len() >= most
                || pass.tokens.len() + 1 >= recording.options.max_positions
                || is_loop(generated.len(), || self.vocabulary.text(generated));
        }
        let output = if ended { self.finish_live(recording, decided, state) } else { StepOutput::default() };
        Ok(StepOutput { generated_tokens: 1, ..output })
    }

    /// Accepts the result, tries again without the previous text, or drops silence and loops: what is decided stands alone
    /// then.
    fn finish_live(&self, recording: &Recording, decided: &Decided, state: &mut DecodingState) -> StepOutput {
        let mut result = self.result(state);
        let is_shown = state.window.conditioned && !state.history.is_empty();
        if result.needs_fallback() && is_shown {
            state.window.conditioned = false;
            state.window.attempt += 1;
            let work = self.live_pass(recording, decided, state);
            return StepOutput { next_pass: Some(work), ..StepOutput::default() };
        }
        if result.is_silence() || result.is_repetitive() {
            let end = state.window.frames.end;
            return self.next_window(recording, state, end, Vec::new());
        }
        // One segment: the times of its words replace the timestamps, which would divide it.
        let generated =
            result.tokens.iter().zip(&result.logprobs).filter(|(id, _)| self.vocabulary.is_text(**id));
        let (tokens, logprobs): (Vec<u32>, Vec<f32>) = generated.unzip();
        result.tokens = [&decided.tokens[..], &tokens].concat();
        result.logprobs = [vec![0.0; decided.tokens.len()], logprobs].concat();
        result.text = self.vocabulary.text(&result.tokens);
        let prompt = state.pass.tokens[..state.pass.prompt_len - decided.tokens.len()].to_vec();
        self.rescore(recording, state, prompt, result)
    }
}

impl DecodingResult {
    /// Whether its text repeats itself.
    fn is_repetitive(&self) -> bool {
        self.compression_ratio > super::segments::MAX_COMPRESSION_RATIO
    }
}
