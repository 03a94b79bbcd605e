//! The state of a running pass: what was generated, what the encoder computed, and the text so far.
//!
//! Knows no scheduling and no codec.

use candle_core::Tensor;

use super::generation::{Generated, Outcome, Pass};
use super::plan::LANGUAGE;
use super::prompt::{self, Position};
use super::tokens::{TextStream, Vocabulary};
use crate::frame_driver::{self, StepResult};
use izwi_types::{Emission, Segment, StepOutput, Task};

/// Text tokens in which a repetition of at most [`MAX_PERIOD`] tokens does not occur: several times the longest period.
const LOOP_TOKENS: usize = 48;
const MAX_PERIOD: usize = 12;

/// The state of a running pass.
#[derive(Debug)]
pub(super) struct PassState {
    pub(super) generated: Generated,
    /// The encoder's rows of each recording of the prompt, `[rows, width]`; `None` before it runs and once the positions
    /// are computed.
    pub(super) encoded: Vec<Option<Tensor>>,
    text: TextStream,
    /// Text of the pass, in a transcription.
    transcript: String,
}

impl PassState {
    /// The state of a pass that starts.
    pub(super) fn new(pass: &Pass) -> Self {
        Self {
            generated: Generated::new(pass.mode),
            encoded: vec![None; pass.prompt.recordings.len()],
            text: TextStream::default(),
            transcript: String::new(),
        }
    }

    /// The recordings that positions `start..end` need and that the encoder has not run over.
    pub(super) fn missing_recordings(&self, pass: &Pass, start: usize, end: usize) -> Vec<usize> {
        let positions = &pass.prompt.positions;
        let wanted = positions.get(start..end.min(positions.len())).unwrap_or_default();
        let mut recordings: Vec<usize> = wanted
            .iter()
            .filter_map(|position| match position {
                Position::Encoded { recording, .. } => Some(*recording),
                Position::Emission(_) => None,
            })
            .collect();
        recordings.dedup();
        recordings.retain(|&recording| self.encoded.get(recording).is_some_and(Option::is_none));
        recordings
    }

    /// Text tokens of the pass.
    pub(super) fn text_tokens(&self) -> usize {
        self.texts().count()
    }

    /// Whether the text repeats itself: the last [`LOOP_TOKENS`] tokens with a short period.
    pub(super) fn loops(&self) -> bool {
        let last: Vec<u32> = self.texts().rev().take(LOOP_TOKENS).collect();
        last.len() == LOOP_TOKENS
            && (1..=MAX_PERIOD).any(|period| last[period..] == last[..LOOP_TOKENS - period])
    }

    fn texts(&self) -> impl DoubleEndedIterator<Item = u32> {
        self.generated.emissions.iter().filter_map(|emission| match emission {
            Emission::Token(id) => Some(*id),
            Emission::Frame(_) | Emission::Said(_) | Emission::Call(_) => None,
        })
    }

    /// Drops the encoder's rows of recordings whose positions up to `end` are all computed. After a preemption they are
    /// encoded again.
    pub(super) fn drop_computed(&mut self, pass: &Pass, end: usize) {
        for (recording, rows) in pass.prompt.recordings.iter().zip(&mut self.encoded) {
            if recording.end <= end {
                *rows = None;
            }
        }
    }

    /// What an outcome of the language model is to the driver: text as far as it is complete, and a frame where
    /// `is_audible` says that the codec decodes it.
    pub(super) fn result(
        &mut self,
        task: Task,
        pass: &Pass,
        outcome: Outcome,
        vocabulary: &Vocabulary,
        is_audible: impl Fn(&[u32]) -> bool,
    ) -> StepResult<Vec<u32>> {
        let (emission, ends) = match outcome {
            Outcome::Pending => return frame_driver::Outcome::Pending.into(),
            Outcome::Emission(emission) => (Some(emission), false),
            Outcome::Last(emission) => (Some(emission), true),
            Outcome::End => (None, true),
        };
        let text = match &emission {
            Some(Emission::Token(id)) if task != Task::Tts => {
                let text = self.text.push(vocabulary.bytes(*id));
                self.written(pass, text)
            }
            _ => String::new(),
        };
        let outcome = match &emission {
            _ if ends => frame_driver::Outcome::End,
            Some(Emission::Frame(codes)) if task != Task::Asr && is_audible(codes) => {
                frame_driver::Outcome::Frame(codes.to_vec())
            }
            _ => frame_driver::Outcome::Token,
        };
        let content_key = emission.as_ref().map(prompt::key);
        StepResult { outcome, text, content_key, emission: emission.filter(|_| task == Task::Chat) }
    }

    /// Adds the rest of the text, and the segment of a transcription.
    pub(super) fn finish(&mut self, task: Task, pass: &Pass, output: &mut StepOutput) {
        if task != Task::Tts {
            let rest = self.text.finish();
            output.text.push_str(&self.written(pass, rest));
        }
        if pass.window.is_some() {
            output.language = Some(LANGUAGE.to_owned());
            output.segments.extend(self.segment(pass));
        }
    }

    /// Notes the text of a transcription; windows of a recording are joined by a space.
    fn written(&mut self, pass: &Pass, text: String) -> String {
        let Some(window) = &pass.window else { return text };
        let needs_space =
            self.transcript.is_empty() && !window.is_first && !text.is_empty() && !text.starts_with(' ');
        let text = if needs_space { format!(" {text}") } else { text };
        self.transcript.push_str(&text);
        text
    }

    /// The segment of a window; `None` where its transcript is empty.
    fn segment(&mut self, pass: &Pass) -> Option<Segment> {
        let window = pass.window.as_ref()?;
        let text = std::mem::take(&mut self.transcript);
        (!text.is_empty()).then(|| Segment {
            window_start_s: window.start_s,
            start_s: window.start_s,
            end_s: window.end_s,
            text,
            tokens: self.texts().collect(),
            ..Segment::default()
        })
    }
}
