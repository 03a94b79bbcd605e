//! Splits the tokens of a window into segments and says how far the window was decoded.
//!
//! The rules are openai-whisper's, <https://github.com/openai/whisper/blob/main/whisper/transcribe.py>.

use std::io::Write;
use std::ops::Range;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::tokens::Vocabulary;
use crate::mel_encoder::FRAMES_PER_POSITION;

/// Text with a higher ratio is repetitive: openai-whisper's `compression_ratio_threshold`.
pub(super) const MAX_COMPRESSION_RATIO: f32 = 2.4;
/// Unfinished text with a higher ratio is a loop and ends the pass: the whole would exceed [`MAX_COMPRESSION_RATIO`] too.
const LOOP_COMPRESSION_RATIO: f32 = 3.0;
/// Tokens between two checks for a loop; the first check is at twice this number.
const LOOP_TOKENS: usize = 32;
/// A result with a lower mean log-probability is unreliable: openai-whisper's `logprob_threshold`.
const MIN_AVG_LOGPROB: f32 = -1.0;
/// An unreliable result above this probability is silence: openai-whisper's `no_speech_threshold`.
const NO_SPEECH: f32 = 0.6;

/// Score of [`is_phantom`] from which on a segment may be one.
const MIN_PHANTOM_SCORE: f32 = 0.3;
/// Least mean log-probability of a segment that is certainly not speech, by both the network and the detector. Between this
/// and [`MIN_AVG_LOGPROB`] it rises with the score.
const MIN_PHANTOM_LOGPROB: f32 = -0.1;

/// Whether a segment is text that nobody said: networks write phrases of their training data into silence and noise. Its
/// tokens have the mean log-probability `avg_logprob`, its window is silent with probability `no_speech_prob`, and the
/// detector finds speech in the part `activity` of it. Each of the three alone is often wrong.
pub(super) fn is_phantom(avg_logprob: f32, no_speech_prob: f32, activity: f32) -> bool {
    let score = no_speech_prob * (1.0 - activity);
    score >= MIN_PHANTOM_SCORE
        && avg_logprob < MIN_AVG_LOGPROB + (MIN_PHANTOM_LOGPROB - MIN_AVG_LOGPROB) * score
}

/// Result of a pass over a window.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct DecodingResult {
    /// Tokens with timestamps, without the end token.
    pub(super) tokens: Vec<u32>,
    /// Log-probability of each.
    pub(super) logprobs: Vec<f32>,
    pub(super) text: String,
    pub(super) avg_logprob: f32,
    pub(super) compression_ratio: f32,
    pub(super) no_speech_prob: f32,
    pub(super) temperature: f32,
}

impl DecodingResult {
    /// Mean log-probability of the tokens of a segment.
    pub(super) fn avg_logprob_of(&self, span: &SegmentSpan) -> f32 {
        let logprobs = self.logprobs.get(span.tokens.clone()).unwrap_or_default();
        logprobs.iter().sum::<f32>() / logprobs.len().max(1) as f32
    }

    /// Whether the window has no speech and is skipped.
    pub(super) fn is_silence(&self) -> bool {
        self.no_speech_prob > NO_SPEECH && self.avg_logprob <= MIN_AVG_LOGPROB
    }

    /// Whether to try again at another context or temperature.
    pub(super) fn needs_fallback(&self) -> bool {
        let poor = self.compression_ratio > MAX_COMPRESSION_RATIO || self.avg_logprob < MIN_AVG_LOGPROB;
        poor && !self.is_silence()
    }
}

/// A run of tokens between two timestamps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentSpan {
    /// Indices of its tokens, timestamps included.
    pub(super) tokens: Range<usize>,
    /// Start and end, in mel frames from the start of the window.
    pub(super) frames: Range<usize>,
}

/// The tokens of a window, split.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SegmentSpans {
    pub(super) segments: Vec<SegmentSpan>,
    /// Mel frames of the window that are decoded.
    pub(super) frames_done: usize,
    /// Whether the last segment has an end and no segment starts after it.
    pub(super) closed: bool,
}

/// Splits `tokens` of a window of `frames` mel frames between consecutive timestamps.
pub(super) fn split_segments(tokens: &[u32], frames: usize, vocabulary: &Vocabulary) -> SegmentSpans {
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
        segments.push(SegmentSpan { tokens: 0..count, frames: 0..end });
        return SegmentSpans { segments, frames_done: frames, closed };
    }
    if closed {
        ends.push(count);
    }
    let mut begin = 0;
    for end in ends {
        segments.push(SegmentSpan { tokens: begin..end, frames: frame(begin)..frame(end - 1) });
        begin = end;
    }
    // A segment without an end is decoded again from its start.
    let frames_done = if closed { frames } else { frame(begin - 1).min(frames) };
    SegmentSpans { segments, frames_done, closed }
}

/// Bytes of `text` divided by its bytes after zlib compression.
pub(super) fn compression_ratio(text: &str) -> f32 {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing into memory does not fail.
    let deflated = encoder.write_all(text.as_bytes()).and_then(|()| encoder.finish()).unwrap_or_default();
    text.len() as f32 / deflated.len().max(1) as f32
}

/// Whether the text so far, of `tokens` tokens, is a loop.
pub(super) fn is_loop(tokens: usize, text: impl FnOnce() -> String) -> bool {
    let due = tokens > LOOP_TOKENS && tokens.is_multiple_of(LOOP_TOKENS);
    due && compression_ratio(text().trim()) > LOOP_COMPRESSION_RATIO
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
    fn unsure_text_is_a_phantom_where_nobody_speaks() {
        assert!(is_phantom(-0.5, 0.8, 0.0) && is_phantom(-0.3, 0.95, 0.1));
        assert!(!is_phantom(-0.5, 0.8, 0.9), "the detector hears speech");
        assert!(!is_phantom(-0.5, 0.1, 0.0), "the network hears speech");
        assert!(!is_phantom(-0.05, 1.0, 0.0), "sure of every token");
        assert!(
            !is_phantom(-3.0, 0.2, 0.0) && !is_phantom(-3.0, 1.0, 0.9),
            "unsure text is kept where there may be speech"
        );
    }

    #[test]
    fn loops_are_checked_every_32_tokens() {
        let round = || "and rather selfish ".repeat(16);
        assert!(is_loop(64, round) && !is_loop(65, round) && !is_loop(32, round));
        let plain =
            || "He might even have been made amiable himself, had he married another woman.".to_owned();
        assert!(!is_loop(64, plain));
    }

    #[test]
    fn segments_follow_the_published_rules() {
        let vocabulary = Vocabulary::load(&checkpoint_folder("whisper-tiny.en"), 51_864).unwrap();
        let time = |steps: u32| vocabulary.first_timestamp + steps;
        let check = |tokens: &[u32], expected: &[(Range<usize>, Range<usize>)], done: usize, closed: bool| {
            let segments = expected
                .iter()
                .map(|(tokens, frames)| SegmentSpan { tokens: tokens.clone(), frames: frames.clone() });
            let expected = SegmentSpans { segments: segments.collect(), frames_done: done, closed };
            assert_eq!(split_segments(tokens, 1000, &vocabulary), expected, "{tokens:?}");
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
        // The second stays open, with and without text: it is decoded again.
        check(&[time(0), 5, time(100), time(120), 6], &[(0..3, 0..200)], 200, false);
        check(&[time(0), 5, time(100), time(100)], &[(0..3, 0..200)], 200, false);
    }

    #[test]
    fn silence_needs_no_fallback() {
        let result = DecodingResult {
            tokens: Vec::new(),
            logprobs: Vec::new(),
            text: String::new(),
            avg_logprob: -1.5,
            compression_ratio: 1.0,
            no_speech_prob: 0.7,
            temperature: 0.0,
        };
        assert!(result.is_silence() && !result.needs_fallback());
        let spoken = DecodingResult { no_speech_prob: 0.5, ..result.clone() };
        assert!(!spoken.is_silence() && spoken.needs_fallback());
        let clear = DecodingResult { avg_logprob: -0.5, ..result.clone() };
        assert!(!clear.is_silence() && !clear.needs_fallback());
        let looping = DecodingResult { compression_ratio: 3.0, ..clear };
        assert!(!looping.is_silence() && looping.needs_fallback());
    }
}
