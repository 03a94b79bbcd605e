//! State of one recording: its window, decoder pass and tokens, and the work they ask for.
//!
//! Does not decide what follows a pass: [`super::window_decoder`] does.

use std::ops::Range;
use std::sync::Arc;

use super::alignment::CrossWeights;
use super::beam_search::{BeamOptions, Beams};
use super::context::{Context, Decided};
use super::encoder::{Encoding, WindowMel};
use super::given::Given;
use super::rescoring::Rescoring;
use super::segments::DecodingResult;
use crate::given_text::Progress;
use crate::keywords::{Keywords, Place};
use crate::log_mel::LogMel;
use crate::mel_encoder::FRAMES_PER_POSITION;
use crate::regions::Region;
use izwi_nn::attention::CrossKv;
use izwi_nn::sampling::{logprob, mix};
use izwi_types::Work;

/// Options of a request as tokens; openai-whisper's `DecodingOptions`.
#[derive(Debug)]
pub(super) struct DecodingOptions {
    /// Token of the language; `None` to detect it.
    pub(super) language: Option<u32>,
    /// Tokens of the languages of which one is detected; empty for all.
    pub(super) languages: Vec<u32>,
    /// Token of the task; `None` if the network has only one.
    pub(super) task: Option<u32>,
    /// Text tokens of the user's prompt.
    pub(super) prompt: Vec<u32>,
    /// What the tokens of keywords gain; `None` without any.
    pub(super) keywords: Option<Keywords>,
    pub(super) words: bool,
    /// Whether segments tell the log-probabilities of their tokens.
    pub(super) logprobs: bool,
    pub(super) temperature: f32,
    /// The search at temperature 0.
    pub(super) beams: BeamOptions,
    pub(super) seed: u64,
    /// Limit of the positions of a pass.
    pub(super) max_positions: usize,
    /// Limit of the tokens of a step.
    pub(super) max_tokens_per_step: usize,
    /// Set for a window of live audio.
    pub(super) decided: Option<Decided>,
    /// The text that is aligned, where one is given.
    pub(super) given: Option<Given>,
}

/// A prepared recording.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) regions: Vec<Region>,
    /// Log-mel frames of each region.
    pub(super) mel: Vec<LogMel>,
    /// The largest value of all of them.
    pub(super) peak: f32,
    pub(super) duration_s: f64,
    /// Limit of encoder positions.
    pub(super) max_positions: usize,
    pub(super) options: DecodingOptions,
}

/// Purpose of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PassKind {
    /// Detects the language in one step.
    Detect,
    /// Generates text, a token a step.
    Decode,
    /// Tells how likely the text is that follows the prompt.
    Score,
    /// Aligns the text, given as the prompt, by its cross-attention weights.
    Align,
}

/// One pass of the decoder over the window.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) kind: PassKind,
    /// The prompt and the generated tokens.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Position of the start token, whose logits give the probability of no speech.
    pub(super) start_at: usize,
    /// Log-probability of each generated token, or of each token of a given text.
    pub(super) logprobs: Vec<f32>,
    /// How far the generated tokens are in a keyword.
    pub(super) place: Place,
    /// The search that generates them, whose best text they become at its end; `None` if they are generated one by one.
    pub(super) beams: Option<Beams>,
    /// For [`PassKind::Align`]: the cross-attention weights of each alignment head, rows computed so far.
    pub(super) cross_weights: Vec<Vec<f32>>,
    /// Rows whose weights or log-probabilities are recorded.
    pub(super) recorded_rows: usize,
}

impl Pass {
    pub(super) fn new(kind: PassKind, tokens: Vec<u32>, start_at: usize) -> Self {
        let prompt_len = tokens.len();
        Self {
            kind,
            tokens,
            prompt_len,
            start_at,
            logprobs: Vec::new(),
            place: Place::default(),
            beams: None,
            cross_weights: Vec::new(),
            recorded_rows: 0,
        }
    }

    /// The same pass, whose tokens are searched for.
    pub(super) fn with_beams(mut self, options: BeamOptions) -> Self {
        self.beams = (options.beam_size > 1).then(|| Beams::new(options));
        self
    }

    /// Positions whose tokens are known.
    pub(super) fn known(&self) -> usize {
        self.tokens.len() + self.beams.as_ref().map_or(0, Beams::len)
    }

    /// The generated tokens.
    pub(super) fn generated(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }
}

/// A window of at most 30 s and the current attempt at it.
#[derive(Debug)]
pub(super) struct Window {
    /// Mel frames of the recording.
    pub(super) frames: Range<usize>,
    pub(super) positions: usize,
    /// Hash of the network input.
    identity: u64,
    pub(super) encoding: Encoding,
    /// Cost of each part of the encoder.
    parts: Arc<[usize]>,
    /// Cross-attention keys and values, one for each layer of the decoder.
    pub(super) encoded: Vec<CrossKv>,
    pub(super) no_speech: Option<f32>,
    pub(super) attempt: usize,
    pub(super) temperature: f32,
    /// Whether the prompt contains the previous text.
    pub(super) conditioned: bool,
    /// The result while keywords are tried in it.
    pub(super) rescoring: Option<Rescoring>,
    /// The accepted result while its words are aligned.
    pub(super) result: Option<DecodingResult>,
}

impl Window {
    /// The window of `recording` at `frames`, all within `region`, for an encoder in `parts`.
    pub(super) fn new(
        recording: &Recording,
        region: usize,
        frames: Range<usize>,
        context: Context,
        parts: usize,
    ) -> Self {
        let positions = context.positions(frames.len(), recording.max_positions);
        let length = positions * FRAMES_PER_POSITION;
        let values = recording.mel[region].network_input(frames.clone(), length, recording.peak);
        let identity =
            values.iter().fold(mix(positions as u64), |hash, value| mix(hash ^ u64::from(value.to_bits())));
        let cost = positions.div_ceil(parts.max(1)).clamp(1, recording.options.max_tokens_per_step.max(1));
        Self {
            frames,
            positions,
            identity,
            encoding: Encoding::Input(WindowMel { values, positions }),
            parts: vec![cost; parts].into(),
            encoded: Vec::new(),
            no_speech: None,
            attempt: 0,
            temperature: recording.options.temperature,
            conditioned: true,
            rescoring: None,
            result: None,
        }
    }

    /// The work of a pass at its begin. Only equal tokens over equal audio share blocks: above the first layer the
    /// decoder's own keys and values depend on the audio too.
    fn work(&self, pass: &Pass) -> Work {
        let keys = pass.tokens.iter().map(|&token| mix(self.identity ^ mix(u64::from(token))));
        let branches = pass.beams.as_ref().map_or(1, Beams::beam_size);
        Work::Autoregressive { prompt: keys.collect(), encoders: Arc::new([]), branches }
    }
}

/// State of a running sequence.
#[derive(Debug)]
pub(super) struct DecodingState {
    pub(super) region: usize,
    pub(super) language: Option<u32>,
    /// The user's prompt and all text tokens so far.
    pub(super) history: Vec<u32>,
    /// Start of the part of the history that prompts contain; openai-whisper's `prompt_reset_since`.
    pub(super) prompt_reset_since: usize,
    /// Text of the last window.
    pub(super) last_window: String,
    /// Text of the last segment and how many times in a row it occurred.
    pub(super) last_segment: (String, usize),
    /// End of the last timed word.
    pub(super) last_speech_s: f64,
    /// Words of a given text that are aligned with the window, their probabilities, and the words that are timed.
    pub(super) share: Range<usize>,
    pub(super) likely: Vec<f32>,
    pub(super) progress: Progress,
    pub(super) window: Window,
    pub(super) pass: Pass,
}

impl DecodingState {
    /// The cross-attention weights of the pass over the window.
    pub(super) fn cross_weights(&self) -> CrossWeights<'_> {
        let Self { window, pass, .. } = self;
        CrossWeights {
            heads: &pass.cross_weights,
            rows: pass.tokens.len(),
            positions: window.positions,
            used: (window.frames.len() / FRAMES_PER_POSITION).clamp(1, window.positions),
        }
    }

    /// Replaces the finished pass and returns the work of the new one: the encoder's first, if the window needs it.
    pub(super) fn begin(&mut self, pass: Pass) -> Work {
        self.pass = pass;
        self.next_work()
    }

    /// The encoder's work, or that of the pass once the window is encoded.
    pub(super) fn next_work(&self) -> Work {
        match self.window.encoding {
            Encoding::Input(_) | Encoding::Partial { .. } => Work::Encoder(Arc::clone(&self.window.parts)),
            Encoding::Done => self.window.work(&self.pass),
        }
    }

    /// The first position that a step from `start` computes. Blocks shared with another sequence hold keys and values, but
    /// not the logits and cross-attention weights of their positions; those positions are computed again, to the same
    /// values.
    pub(super) fn first_row(&self, start: usize) -> usize {
        match self.pass.kind {
            PassKind::Detect => start,
            PassKind::Decode if self.window.no_speech.is_none() => start.min(self.pass.start_at),
            PassKind::Decode => start,
            PassKind::Score | PassKind::Align => start.min(self.pass.recorded_rows),
        }
    }

    /// Adds the cross-attention weights of the rows from position `from` on.
    pub(super) fn record_cross_weights(&mut self, from: usize, rows: usize, cross_weights: Vec<Vec<f32>>) {
        let kept = from * self.window.positions;
        self.pass.cross_weights.resize_with(cross_weights.len(), Vec::new);
        for (all, new) in self.pass.cross_weights.iter_mut().zip(cross_weights) {
            all.truncate(kept);
            all.extend(new);
        }
        self.pass.recorded_rows = from + rows;
    }

    /// Adds the log-probabilities of the tokens of a given text that follow the rows `from..end`.
    pub(super) fn record_logprobs(&mut self, (from, end): (usize, usize), logits: &[Vec<f32>]) {
        let pass = &mut self.pass;
        pass.recorded_rows = end;
        let first = (from + 1).max(pass.prompt_len);
        pass.logprobs.truncate(first - pass.prompt_len);
        let tokens = pass.tokens.iter().skip(first);
        pass.logprobs.extend(tokens.zip(logits).map(|(token, logits)| logprob(logits, *token as usize)));
    }
}

/// The work of a recording without speech: one step that finishes it.
pub(super) fn no_speech_work() -> Work {
    Work::Units(Arc::new([1]))
}
