//! Schedulable work, and the output of one step.

use std::any::Any;
use std::sync::Arc;

use crate::{Emission, Segment};

/// The amount and shape of a prepared input's work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// A prompt, then one token per step until the model or a limit ends the sequence. Uses the paged KV cache.
    Autoregressive {
        /// Content key of each prompt position: sequences with equal prefixes of keys may share blocks.
        prompt: Arc<[u64]>,
        /// Encoders that run before the positions of the prompt.
        encoders: Arc<[EncoderWork]>,
        /// The most branches into which [`StepOutput::parents`] may fork it after the prompt; 1 without a search.
        branches: usize,
    },
    /// Units of fixed size, one per step, in order, without KV cache. Each entry is a unit's size in tokens.
    Units(Arc<[usize]>),
    /// An encoder in parts, one per step, in order, without KV cache: the pass after it needs its output. Each entry is a
    /// part's cost in tokens of the step budget; they do not count as tokens of the input.
    Encoder(Arc<[usize]>),
    /// The positions of a recording that grows, without KV cache: a step takes whole chunks of those whose audio has come.
    /// The model ends it.
    Chunks {
        /// Positions of a chunk, which are its size in tokens.
        chunk: usize,
        /// The most positions of a step, which are whole chunks.
        longest: usize,
    },
}

/// An encoder that runs before the positions of a prompt. Where they are all in the prefix cache, it does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncoderWork {
    /// End of the positions that need its output.
    pub end: usize,
    /// Its cost, in tokens of the step budget.
    pub tokens: usize,
}

/// An input that is ready to be scheduled.
#[derive(Clone)]
pub struct Prepared {
    /// The work to schedule.
    pub work: Work,
    /// Data of the model family (token ids, phonemes, reference codes …).
    pub payload: Arc<dyn Any + Send + Sync>,
    /// Characters of a text to synthesise that the model cannot pronounce and leaves out, each once; empty if there is
    /// none or the model does not know.
    pub unspoken: String,
}

impl Prepared {
    /// Work with its data, and nothing left out.
    pub fn new(work: Work, payload: Arc<dyn Any + Send + Sync>) -> Self {
        Self { work, payload, unspoken: String::new() }
    }
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("work", &self.work).finish_non_exhaustive()
    }
}

/// How far the text of an input with [`SpeakInput::has_more_text`](crate::SpeakInput::has_more_text) reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextProgress {
    /// Positions, prompt and generated, that can be computed with the text so far; `None` once the text has ended.
    pub positions: Option<usize>,
    /// Text tokens that can still be appended. A text has at most one token a byte.
    pub tokens_left: usize,
}

/// How far the audio of an input with [`ListenInput::chunk_ms`](crate::ListenInput::chunk_ms) reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AudioProgress {
    /// Positions that can be computed with the audio so far: whole chunks, and all once the audio has ended.
    pub positions: usize,
    /// Samples that wait to be computed.
    pub waiting: usize,
}

/// A word of the text of an utterance, and when it is spoken.
///
/// The spans of an utterance's words follow each other without a gap: white space, and text that is not spoken, belongs to
/// the word after it, and at the end of the text to the last word. Written words that are spoken as one phrase are one
/// word (`7:30 pm`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpokenWord {
    /// First byte of its span in the text.
    pub text_start: usize,
    /// End of its span.
    pub text_end: usize,
    /// First sample of its first sound.
    pub sample_start: u64,
    /// End of its last sound, without a pause after it.
    pub sample_end: u64,
}

/// One sequence's output of one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOutput {
    /// New mono samples at [`ModelInfo::sample_rate_hz`](crate::ModelInfo::sample_rate_hz).
    pub samples: Vec<f32>,
    /// The words that are spoken in `samples`, in order, their times counted from the start of `samples`; empty where the
    /// family does not know when words are spoken.
    pub words: Vec<SpokenWord>,
    /// Samples of silence to insert before and behind `samples`, which no model makes.
    pub silence: [usize; 2],
    /// New text.
    pub text: String,
    /// New segments of a transcript; their texts concatenate to `text`.
    pub segments: Vec<Segment>,
    /// Of a recording that grows: what follows the text for now, and the next output replaces.
    pub partial: String,
    /// Code of the detected language, once known.
    pub language: Option<String>,
    /// Probability of that language among those that it could be, if the model tells it.
    pub language_probability: Option<f32>,
    /// New output of a conversational turn.
    pub emission: Option<Emission>,
    /// Content key of the generated position, where equal keys mean equal content: the sequence finds it again after a
    /// preemption, and a later prompt of the conversation may contain it.
    pub content_key: Option<u64>,
    /// For a search: the branch, from 0, that each branch of the next step continues. Branches of the same parent share its
    /// blocks until they write; those that nobody continues end. Empty leaves the branches as they are.
    pub parents: Vec<usize>,
    /// Tokens generated: 0 until the last prompt token is computed. In a search, those of one branch.
    pub generated_tokens: usize,
    /// Tokens of the prompt, where only the server that runs the model counts them.
    pub prompt_tokens: Option<usize>,
    /// Whether a limit of tokens ends it, at the server that runs the model.
    pub is_cut: bool,
    /// Whether the model has ended the sequence.
    pub finished: bool,
    /// Whether the watchdog ended it as a runaway generation.
    pub runaway: bool,
    /// Ends the pass and continues the sequence with this work: its KV blocks are freed, its state stays. The next batch
    /// entry has `begins` set and starts at 0, or after a shared prefix.
    pub next_pass: Option<Work>,
}

impl StepOutput {
    /// Puts the silence into the samples. Words keep their place in them.
    pub fn insert_silence(&mut self) {
        let [before, behind] = std::mem::take(&mut self.silence);
        if before > 0 {
            self.samples.splice(..0, std::iter::repeat_n(0.0, before));
            for word in &mut self.words {
                word.sample_start += before as u64;
                word.sample_end += before as u64;
            }
        }
        self.samples.extend(std::iter::repeat_n(0.0, behind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_move_with_the_silence_before_them() {
        let word = SpokenWord { text_start: 0, text_end: 2, sample_start: 1, sample_end: 2 };
        let output = StepOutput { samples: vec![0.5, -0.5], words: vec![word], ..StepOutput::default() };
        let mut quiet = StepOutput { silence: [2, 1], ..output };
        quiet.insert_silence();
        assert_eq!((&quiet.samples[..], quiet.silence), (&[0.0, 0.0, 0.5, -0.5, 0.0][..], [0, 0]));
        assert_eq!((quiet.words[0].sample_start, quiet.words[0].sample_end), (3, 4));
    }
}
