//! One request: the passes that work it off, and how far it has come.

use candle_core::Tensor;

use super::codec::{Codec, DecoderState};
use super::generation::{Outcome, Pass, Said};
use super::prompt::{self, Position};
use super::tokens::{TextStream, Vocabulary};
use crate::portions::{Portions, Sounding};
use izwi_types::Segment;
use izwi_types::{Emission, StepOutput, Work};

/// What the encoder costs of a token of the language model, for each row it makes: one of this many.
const ROWS_PER_TOKEN: usize = 4;
/// Text tokens that speech may have beside its frames.
const SPARE_UNITS: usize = 16;

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// Sound alone.
    Speak,
    /// A transcript.
    Listen,
    /// Text and sound as they come.
    Converse,
}

/// What was prepared.
#[derive(Debug)]
pub(super) struct Errand {
    pub(super) task: Task,
    pub(super) passes: Vec<Pass>,
    /// Units that are too many for each pass; none where nothing is watched.
    pub(super) budgets: Vec<usize>,
    /// The part of the recording that each pass hears, in seconds.
    pub(super) windows: Vec<(f64, f64)>,
    pub(super) portions: Portions,
    /// Code of the language that is heard.
    pub(super) language: Option<String>,
}

/// A running request.
#[derive(Debug)]
pub(super) struct Running {
    /// The pass it is in.
    pub(super) pass: usize,
    pub(super) said: Said,
    /// What the encoder made of the pass's recordings, as far as it had to.
    pub(super) heard: Vec<Option<Tensor>>,
    /// `None` until the first frame of a pass.
    pub(super) decoder: Option<DecoderState>,
    pub(super) sounding: Sounding,
    text: TextStream,
    /// Text of the pass, where it is a transcript.
    transcript: String,
}

/// What a unit leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: it goes on.
    Goes,
    /// Frames become sound.
    Sounds,
    /// The engine ends the pass behind this unit: all frames become sound.
    Stops,
    /// The pass is over.
    Ends,
}

impl Errand {
    /// The work of a pass.
    pub(super) fn work(&self, pass: usize) -> Option<Work> {
        let prompt = &self.passes.get(pass)?.prompt;
        let rows: usize = prompt.recordings.iter().map(|recording| recording.rows()).sum();
        Some(Work::Autoregressive { prompt: prompt.keys(), encoder_tokens: rows.div_ceil(ROWS_PER_TOKEN) })
    }
}

impl Running {
    /// The state of a request that begins.
    pub(super) fn new(errand: &Errand) -> Self {
        Self::at(errand, 0, Sounding::default())
    }

    fn at(errand: &Errand, pass: usize, sounding: Sounding) -> Self {
        let begun = errand.passes.get(pass);
        Self {
            pass,
            said: Said::new(begun.map_or_else(Default::default, |pass| pass.mode)),
            heard: vec![None; begun.map_or(0, |pass| pass.prompt.recordings.len())],
            decoder: None,
            sounding,
            text: TextStream::default(),
            transcript: String::new(),
        }
    }

    /// The recordings that the positions `start..end` are rows of and that the encoder has not seen.
    pub(super) fn unheard(&self, errand: &Errand, start: usize, end: usize) -> Vec<usize> {
        let positions = errand.passes.get(self.pass).map_or(&[][..], |pass| &pass.prompt.positions);
        let asked = positions.get(start..end.min(positions.len())).unwrap_or_default();
        let mut recordings: Vec<usize> = asked
            .iter()
            .filter_map(|position| match position {
                Position::Heard { recording, .. } => Some(*recording),
                Position::Said(_) => None,
            })
            .collect();
        recordings.dedup();
        recordings.retain(|&recording| self.heard.get(recording).is_some_and(Option::is_none));
        recordings
    }

    /// Takes note of what a step said.
    pub(super) fn take(
        &mut self,
        errand: &Errand,
        outcome: Outcome,
        (vocabulary, codec): (&Vocabulary, &Codec),
        output: &mut StepOutput,
    ) -> Next {
        let (unit, ended) = match outcome {
            Outcome::Pending => return Next::Goes,
            Outcome::Said(unit) => (Some(unit), false),
            Outcome::Last(unit) => (Some(unit), true),
            Outcome::End => (None, true),
        };
        output.generated_tokens = 1;
        match &unit {
            Some(Emission::Token(id)) => self.write(errand, vocabulary.bytes(*id), output),
            Some(Emission::Frame(codes)) if errand.task != Task::Listen && codec.sounds(codes) => {
                self.sounding.pending.push(codes.to_vec());
            }
            Some(Emission::Frame(_)) | None => {}
        }
        if errand.task == Task::Converse {
            output.content_key = unit.as_ref().map(prompt::key);
            output.emission = unit;
        }
        let prompt = errand.passes.get(self.pass).map_or(0, |pass| pass.prompt.positions.len());
        let budget = errand.budgets.get(self.pass);
        let (said, most) = (self.said.units.len(), errand.portions.most(prompt));
        if ended {
            Next::Ends
        } else if budget.is_some_and(|&budget| said >= budget + SPARE_UNITS) {
            self.sounding.ran_away = true;
            Next::Ends
        } else if said >= most {
            if errand.task == Task::Listen { Next::Ends } else { Next::Stops }
        } else if !self.sounding.pending.is_empty() && self.sounding.is_due(&errand.portions) {
            Next::Sounds
        } else {
            Next::Goes
        }
    }

    fn write(&mut self, errand: &Errand, bytes: &[u8], output: &mut StepOutput) {
        if errand.task == Task::Speak {
            return;
        }
        let text = self.text.push(bytes);
        self.tell(errand, &text, output);
    }

    /// Hands text on; windows of a recording are joined by a space.
    fn tell(&mut self, errand: &Errand, text: &str, output: &mut StepOutput) {
        if errand.task == Task::Listen {
            if text.is_empty() {
                return;
            }
            let begins = self.transcript.is_empty() && self.pass > 0 && !text.starts_with(' ');
            let text = if begins { format!(" {text}") } else { text.to_owned() };
            self.transcript.push_str(&text);
            output.text.push_str(&text);
        } else {
            output.text.push_str(text);
        }
    }

    /// Whether the sound of the pending frames can wait for the next step. In a conversation it comes with the frame that
    /// completes it, so that it is known what was heard when it is broken off.
    pub(super) fn can_wait(&self, errand: &Errand) -> bool {
        errand.task == Task::Speak && self.sounding.can_wait()
    }

    /// Takes note of the sound of the pending frames; whether the pass is to end with it. What lies behind the end is
    /// cut off.
    pub(super) fn heard(&mut self, errand: &Errand, samples: &mut Vec<f32>) -> bool {
        let budget = errand.budgets.get(self.pass).copied().filter(|_| errand.task == Task::Speak);
        self.sounding.heard(&errand.portions, budget, samples)
    }

    /// Ends the pass: goes on to the next, or tells that there is none.
    pub(super) fn end(&mut self, errand: &Errand, output: &mut StepOutput) {
        if errand.task != Task::Speak {
            let rest = self.text.finish();
            self.tell(errand, &rest, output);
        }
        if let Some(&(start_s, end_s)) = errand.windows.get(self.pass) {
            output.language = errand.language.clone();
            output.segments.extend(self.segment(start_s, end_s));
        }
        output.next_pass = errand.work(self.pass + 1);
        if output.next_pass.is_some() {
            let mut sounding = std::mem::take(&mut self.sounding);
            sounding.next_pass();
            *self = Self::at(errand, self.pass + 1, sounding);
        } else {
            output.finished = true;
            output.runaway = self.sounding.ran_away;
        }
    }

    /// What was heard in a window; `None` where it was nothing.
    fn segment(&mut self, start_s: f64, end_s: f64) -> Option<Segment> {
        let text = std::mem::take(&mut self.transcript);
        let token = |unit: &Emission| match unit {
            Emission::Token(id) => Some(*id),
            Emission::Frame(_) => None,
        };
        (!text.is_empty()).then(|| Segment {
            window_start_s: start_s,
            start_s,
            end_s,
            text,
            tokens: self.said.units.iter().filter_map(token).collect(),
            ..Segment::default()
        })
    }
}
