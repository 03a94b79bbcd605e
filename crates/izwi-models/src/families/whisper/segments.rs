//! From the tokens of a window to segments, and how far the window got.
//!
//! The rules are openai-whisper's, <https://github.com/openai/whisper/blob/main/whisper/transcribe.py>.

use std::io::Write;
use std::ops::Range;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::config::FRAMES_PER_POSITION;
use super::tokens::Vocabulary;

/// Text that deflates better than this repeats itself: `compression_ratio_threshold` there.
const MAX_COMPRESSION_RATIO: f32 = 2.4;
/// Text that deflates better than this before its end is a loop and is not followed further: the whole would not pass
/// [`MAX_COMPRESSION_RATIO`] either.
const LOOP_COMPRESSION_RATIO: f32 = 3.0;
/// Tokens between two looks for a loop; none is looked for before the second.
const LOOP_TOKENS: usize = 32;
/// A window whose tokens are less likely than this on average was not understood: `logprob_threshold` there.
const MIN_AVG_LOGPROB: f32 = -1.0;
/// A window that was not understood holds no speech if that is likelier than this: `no_speech_threshold` there.
const NO_SPEECH: f32 = 0.6;

/// What a pass over a window came to.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Heard {
    /// Tokens, timestamps included, the end left out.
    pub(super) tokens: Vec<u32>,
    /// Probability of each.
    pub(super) probabilities: Vec<f32>,
    pub(super) text: String,
    pub(super) avg_logprob: f32,
    pub(super) compression_ratio: f32,
    pub(super) no_speech_prob: f32,
    pub(super) temperature: f32,
}

impl Heard {
    /// Whether nobody spoke: the window is passed over.
    pub(super) fn is_silence(&self) -> bool {
        self.no_speech_prob > NO_SPEECH && self.avg_logprob <= MIN_AVG_LOGPROB
    }

    /// Whether another attempt might hear better.
    pub(super) fn is_doubtful(&self) -> bool {
        let poor = self.compression_ratio > MAX_COMPRESSION_RATIO || self.avg_logprob < MIN_AVG_LOGPROB;
        poor && !self.is_silence()
    }
}

/// A run of tokens between two timestamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cut {
    /// Indices of its tokens, timestamps included.
    pub(super) tokens: Range<usize>,
    /// Start and end, in mel frames from the start of the window.
    pub(super) frames: Range<usize>,
}

/// A window's tokens, cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Cuts {
    pub(super) segments: Vec<Cut>,
    /// Mel frames of the window that are done with.
    pub(super) frames_done: usize,
    /// Whether the last segment was closed and nothing opened behind it.
    pub(super) closed: bool,
}

/// Cuts `tokens`, heard in a window of `frames` mel frames, where one timestamp follows another.
pub(super) fn cut(tokens: &[u32], frames: usize, vocabulary: &Vocabulary) -> Cuts {
    let time = |at: usize| tokens.get(at).and_then(|&id| vocabulary.timestamp(id));
    let frame = |at: usize| time(at).unwrap_or(0) * FRAMES_PER_POSITION;
    let count = tokens.len();
    let closed = count >= 2 && time(count - 1).is_some() && time(count - 2).is_none();
    let mut ends: Vec<usize> =
        (1..count).filter(|&at| time(at - 1).is_some() && time(at).is_some()).collect();
    let mut segments = Vec::new();
    if ends.is_empty() {
        let last = (0..count).rev().find_map(time).filter(|&steps| steps > 0);
        let end = last.map_or(frames, |steps| steps * FRAMES_PER_POSITION);
        segments.push(Cut { tokens: 0..count, frames: 0..end });
        return Cuts { segments, frames_done: frames, closed };
    }
    if closed {
        ends.push(count);
    }
    let mut begin = 0;
    for end in ends {
        segments.push(Cut { tokens: begin..end, frames: frame(begin)..frame(end - 1) });
        begin = end;
    }
    // What was opened and not closed is heard again, from where it was opened.
    let frames_done = if closed { frames } else { frame(begin - 1).min(frames) };
    Cuts { segments, frames_done, closed }
}

/// Bytes of `text` over bytes of the same, deflated.
pub(super) fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing into memory does not fail.
    let deflated = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).unwrap_or_default();
    text.len() as f32 / deflated.len().max(1) as f32
}

/// Whether what was said so far, `tokens` long, goes round in circles.
pub(super) fn is_loop(tokens: usize, text: impl FnOnce() -> String) -> bool {
    let looks = tokens > LOOP_TOKENS && tokens.is_multiple_of(LOOP_TOKENS);
    looks && compression_ratio(text().trim()) > LOOP_COMPRESSION_RATIO
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::whisper::golden::checkpoint_folder;

    #[test]
    fn repetition_compresses() {
        assert!(compression_ratio("The quick brown fox jumps over the lazy dog.") < 1.2);
        assert!(compression_ratio(&"Thank you. ".repeat(20)) > MAX_COMPRESSION_RATIO);
        assert_eq!(compression_ratio(""), 0.0);
    }

    #[test]
    fn loops_are_seen_now_and_then() {
        let round = || "and rather selfish ".repeat(16);
        assert!(is_loop(64, round) && !is_loop(65, round) && !is_loop(32, round));
        let plain =
            || "He might even have been made amiable himself, had he married another woman.".to_owned();
        assert!(!is_loop(64, plain));
    }

    #[test]
    fn cuts_follow_the_published_rules() {
        let vocabulary = Vocabulary::load(&checkpoint_folder("whisper-tiny.en"), 51_864).unwrap();
        let time = |steps: u32| vocabulary.first_timestamp + steps;
        let check = |tokens: &[u32], expected: &[(Range<usize>, Range<usize>)], done: usize, closed: bool| {
            let segments = expected
                .iter()
                .map(|(tokens, frames)| Cut { tokens: tokens.clone(), frames: frames.clone() });
            let expected = Cuts { segments: segments.collect(), frames_done: done, closed };
            assert_eq!(cut(tokens, 1000, &vocabulary), expected, "{tokens:?}");
        };
        // One segment, closed: the window is done.
        check(&[time(0), 5, 6, time(100)], &[(0..4, 0..200)], 1000, true);
        // Never closed: the segment is as long as the window.
        check(&[time(0), 5, 6], &[(0..3, 0..1000)], 1000, false);
        check(&[], &[(0..0, 0..1000)], 1000, false);
        // Two, the second closed.
        check(
            &[time(0), 5, time(100), time(120), 6, time(200)],
            &[(0..3, 0..200), (3..6, 240..400)],
            1000,
            true,
        );
        // The second stays open, with and without text: it is heard again.
        check(&[time(0), 5, time(100), time(120), 6], &[(0..3, 0..200)], 200, false);
        check(&[time(0), 5, time(100), time(100)], &[(0..3, 0..200)], 200, false);
    }

    #[test]
    fn silence_is_not_doubted() {
        let heard = Heard {
            tokens: Vec::new(),
            probabilities: Vec::new(),
            text: String::new(),
            avg_logprob: -1.5,
            compression_ratio: 1.0,
            no_speech_prob: 0.7,
            temperature: 0.0,
        };
        assert!(heard.is_silence() && !heard.is_doubtful());
        let spoken = Heard { no_speech_prob: 0.5, ..heard.clone() };
        assert!(!spoken.is_silence() && spoken.is_doubtful());
        let clear = Heard { avg_logprob: -0.5, ..heard.clone() };
        assert!(!clear.is_silence() && !clear.is_doubtful());
        let looping = Heard { compression_ratio: 3.0, ..clear };
        assert!(!looping.is_silence() && looping.is_doubtful());
    }
}
