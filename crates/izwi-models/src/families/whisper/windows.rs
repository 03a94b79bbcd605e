//! One recording while it is worked off: which window, which pass, which tokens.
//!
//! Owns the state of a running sequence and the work its passes ask for. What a pass's end leads to is
//! [`super::scribe`]'s business.

use std::ops::Range;
use std::sync::Arc;

use super::config::FRAMES_PER_POSITION;
use super::encoder::WindowMel;
use super::mel::LogMel;
use super::segments::Heard;
use crate::regions::Region;
use izwi_nn::attention::CrossKv;
use izwi_nn::layers::ROW_ALIGN;
use izwi_nn::sampling::mix;
use izwi_types::Work;

/// How much silence the encoder sees behind a window.
///
/// The network learnt from windows of 30 s, padded with silence. Seeing less of it costs time in proportion to the
/// speech, and changes what is heard a little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Context {
    /// Up to 30 s, as the network learnt.
    Full,
    /// At least this many positions of 20 ms.
    Short { margin: usize },
}

/// No context is shorter than this many positions.
const MIN_POSITIONS: usize = 64;

impl Context {
    /// Encoder positions for a window of `frames`, of `most` that the network knows.
    fn positions(self, frames: usize, most: usize) -> usize {
        match self {
            Self::Full => most,
            Self::Short { margin } => {
                let positions = frames.div_ceil(FRAMES_PER_POSITION) + margin;
                positions.max(MIN_POSITIONS).next_multiple_of(ROW_ALIGN).min(most)
            }
        }
    }
}

/// What the user asked for, in the network's terms.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// Token of the language; `None` to detect it.
    pub(super) language: Option<u32>,
    /// Token of the task; `None` where the network knows one only.
    pub(super) task: Option<u32>,
    /// Text tokens that come before the recording.
    pub(super) prompt: Vec<u32>,
    pub(super) words: bool,
    pub(super) temperature: f32,
    pub(super) seed: u64,
    /// The most positions of a pass.
    pub(super) max_positions: usize,
}

/// A recording, ready to be listened to.
#[derive(Debug)]
pub(super) struct Recording {
    pub(super) regions: Vec<Region>,
    /// Log-mel frames of each region.
    pub(super) mel: Vec<LogMel>,
    /// The loudest value of all of them.
    pub(super) peak: f32,
    pub(super) duration_s: f64,
    /// Encoder positions the network knows.
    pub(super) max_positions: usize,
    pub(super) order: Order,
}

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// One look at the window tells the language.
    Detect,
    /// A token a step.
    Decode,
    /// The prompt is what was heard; where the decoder looks tells when.
    Align,
}

/// One pass of the decoder over the window.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) kind: Kind,
    /// The prompt, and behind it what was generated.
    pub(super) tokens: Vec<u32>,
    pub(super) prompt_len: usize,
    /// Position of the start token: its logits tell whether anybody speaks.
    pub(super) start_at: usize,
    /// Log-probability of each generated token.
    pub(super) logprobs: Vec<f32>,
    /// For [`Kind::Align`]: of each alignment head, the weights of the rows computed so far.
    pub(super) looks: Vec<Vec<f32>>,
    pub(super) looked_rows: usize,
}

impl Pass {
    pub(super) fn new(kind: Kind, tokens: Vec<u32>, start_at: usize) -> Self {
        let prompt_len = tokens.len();
        Self { kind, tokens, prompt_len, start_at, logprobs: Vec::new(), looks: Vec::new(), looked_rows: 0 }
    }

    /// What was generated.
    pub(super) fn said(&self) -> &[u32] {
        &self.tokens[self.prompt_len..]
    }
}

/// A stretch of at most 30 s, and the attempts at it.
#[derive(Debug)]
pub(super) struct Window {
    /// Mel frames of the recording.
    pub(super) frames: Range<usize>,
    pub(super) positions: usize,
    /// Tells windows with other audio or another context apart.
    identity: u64,
    /// What the encoder is to see; taken when it has.
    pub(super) mel: Option<WindowMel>,
    /// Keys and values of what the encoder saw, one for each layer of the decoder.
    pub(super) encoded: Vec<CrossKv>,
    pub(super) no_speech: Option<f32>,
    pub(super) attempt: usize,
    pub(super) temperature: f32,
    /// Whether the text from before is shown to the decoder.
    pub(super) conditioned: bool,
    /// What was accepted, while its words are being timed.
    pub(super) heard: Option<Heard>,
}

impl Window {
    /// The window of `recording` at `frames`, all within `region`.
    pub(super) fn new(recording: &Recording, region: usize, frames: Range<usize>, context: Context) -> Self {
        let positions = context.positions(frames.len(), recording.max_positions);
        let length = positions * FRAMES_PER_POSITION;
        let values = recording.mel[region].network_input(frames.clone(), length, recording.peak);
        let identity =
            values.iter().fold(mix(positions as u64), |hash, value| mix(hash ^ u64::from(value.to_bits())));
        Self {
            frames,
            positions,
            identity,
            mel: Some(WindowMel { values, positions }),
            encoded: Vec::new(),
            no_speech: None,
            attempt: 0,
            temperature: recording.order.temperature,
            conditioned: true,
            heard: None,
        }
    }

    /// What a pass with this prompt asks for. Equal tokens over equal audio may share blocks: above the first layer
    /// even the decoder's own keys and values depend on what it hears.
    fn work(&self, prompt: &[u32]) -> Work {
        let keys = prompt.iter().map(|&token| mix(self.identity ^ mix(u64::from(token))));
        let encoder_tokens = if self.mel.is_some() { self.positions } else { 0 };
        Work::Autoregressive { prompt: keys.collect::<Vec<_>>().into(), encoder_tokens }
    }
}

/// A recording being listened to.
#[derive(Debug)]
pub(super) struct Listening {
    pub(super) region: usize,
    pub(super) language: Option<u32>,
    /// Tokens of everything so far, the user's prompt first.
    pub(super) history: Vec<u32>,
    /// The history before this is no longer shown to the decoder.
    pub(super) shown_from: usize,
    /// Text of the last window.
    pub(super) last_window: String,
    /// Text of the last segment, and how often it came in a row.
    pub(super) last_segment: (String, usize),
    /// Where the last timed word ended.
    pub(super) last_speech_s: f64,
    pub(super) window: Window,
    pub(super) pass: Pass,
}

impl Listening {
    /// Puts another pass in place of the one that ended, and tells its work.
    pub(super) fn begin(&mut self, pass: Pass) -> Work {
        let work = self.window.work(&pass.tokens);
        self.pass = pass;
        work
    }

    /// The position from which a step that begins at `start` has to compute. Blocks shared with another sequence hold
    /// keys and values, not what this one still has to learn from their positions; those are computed again, to the
    /// same values.
    pub(super) fn first_row(&self, start: usize) -> usize {
        match self.pass.kind {
            Kind::Detect => start,
            Kind::Decode if self.window.no_speech.is_none() => start.min(self.pass.start_at),
            Kind::Decode => start,
            Kind::Align => start.min(self.pass.looked_rows),
        }
    }

    /// Adds what the rows from position `from` on looked at.
    pub(super) fn look(&mut self, from: usize, rows: usize, looks: Vec<Vec<f32>>) {
        let kept = from * self.window.positions;
        self.pass.looks.resize_with(looks.len(), Vec::new);
        for (all, new) in self.pass.looks.iter_mut().zip(looks) {
            all.truncate(kept);
            all.extend(new);
        }
        self.pass.looked_rows = from + rows;
    }
}

/// The first work of a recording without speech: one token's worth, to say so.
pub(super) fn silent_work() -> Work {
    Work::Units(Arc::new([1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_holds_the_window_and_its_margin_in_whole_rows() {
        let short = Context::Short { margin: 50 };
        assert_eq!(short.positions(1000, 1500), 560);
        assert_eq!(short.positions(10, 1500), MIN_POSITIONS);
        assert_eq!(short.positions(2990, 1500), 1500);
        assert_eq!(Context::Full.positions(10, 1500), 1500);
    }
}
