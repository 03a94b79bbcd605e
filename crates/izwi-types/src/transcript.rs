//! Transcripts with their times.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The transcript of a recording.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Transcript {
    /// Code of the detected language; `None` if the recording holds no speech.
    pub language: Option<String>,
    /// Probability of that language among those that it could be; `None` where the model does not tell it, or it was not detected.
    pub language_probability: Option<f32>,
    /// Segments in order; their texts concatenate to the whole text.
    pub segments: Vec<Segment>,
}

impl Transcript {
    /// The whole text without surrounding white space.
    pub fn text(&self) -> String {
        let text: String = self.segments.iter().map(|segment| segment.text.as_str()).collect();
        text.trim().to_owned()
    }
}

/// A stretch of speech, about a sentence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Start of the window it was decoded in, in seconds from the start of the recording.
    pub window_start_s: f64,
    /// Start, in seconds from the start of the recording.
    pub start_s: f64,
    /// End, in seconds from the start of the recording.
    pub end_s: f64,
    /// Text, with the leading space that joins it to the previous segment.
    pub text: String,
    /// Its tokens, timestamps included.
    pub tokens: Vec<u32>,
    /// Decoding temperature.
    pub temperature: f32,
    /// Mean log-probability of the window's tokens.
    pub avg_logprob: f32,
    /// Bytes of the window's text over bytes of the deflated text: high for repetitions.
    pub compression_ratio: f32,
    /// Probability that the window holds no speech.
    pub no_speech_prob: f32,
    /// Its words; empty unless requested.
    pub words: Vec<Word>,
    /// Its text tokens with their log-probabilities; empty unless requested.
    pub logprobs: Vec<TokenLogprob>,
    /// Who speaks, counted from 0 in the order in which speakers begin; `None` where it is not known.
    pub speaker: Option<u32>,
    /// The name of a known speaker.
    pub speaker_name: Option<Arc<str>>,
    /// Of a turn: the speaker's embedding, to compare with others of the same model; `None` where the model makes none.
    pub embedding: Option<Arc<[f32]>>,
    /// Probability that who speaks has finished at its end; `None` where it is not known.
    pub end_of_turn: Option<f32>,
}

impl Segment {
    /// Of speakers in audio that arrives: no turn, but where what was told before ends, since all turns from there on follow as they
    /// are known now, and how far the audio is heard. A turn that began before goes on where one of its speaker follows.
    #[must_use]
    pub fn revision(start_s: f64, heard_s: f64) -> Self {
        Self { start_s, end_s: heard_s, ..Self::default() }
    }

    /// Whether it is a [revision](Self::revision), among turns of speakers.
    pub fn is_revision(&self) -> bool {
        self.speaker.is_none()
    }
}

/// Adds what is told of speakers in audio that arrives to the turns so far, which its [revisions](Segment::revision) cut. A turn that
/// goes on after a cut is one.
pub fn revise_turns(turns: &mut Vec<Segment>, told: impl IntoIterator<Item = Segment>) {
    for segment in told {
        if segment.is_revision() {
            turns.retain(|turn| turn.start_s < segment.start_s);
            turns.iter_mut().for_each(|turn| turn.end_s = turn.end_s.min(segment.start_s));
            continue;
        }
        let before = turns.iter_mut().rev().find(|turn| turn.speaker == segment.speaker);
        match before.filter(|turn| turn.end_s >= segment.start_s) {
            Some(turn) => turn.end_s = turn.end_s.max(segment.end_s),
            None => turns.push(segment),
        }
    }
    turns.sort_by(|a, b| a.start_s.total_cmp(&b.start_s).then(a.speaker.cmp(&b.speaker)));
}

/// A text token of a transcript and its log-probability.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// Bytes of its text: not always whole characters. Those of all tokens of a segment concatenate to its text.
    pub bytes: Vec<u8>,
    /// Natural logarithm of its probability at temperature 1, among the tokens that the decoding rules allow.
    pub logprob: f32,
}

impl TokenLogprob {
    /// Its text; what is no whole character becomes U+FFFD.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// One word with its times.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Word {
    /// The word with its punctuation and leading space.
    pub text: String,
    /// Start, in seconds from the start of the recording.
    pub start_s: f64,
    /// End, in seconds from the start of the recording.
    pub end_s: f64,
    /// Mean probability of its tokens.
    pub probability: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_cut_where_they_are_told_again() {
        let turn = |start_s, end_s, speaker| Segment {
            start_s,
            end_s,
            speaker: Some(speaker),
            ..Segment::default()
        };
        let mut turns = Vec::new();
        revise_turns(&mut turns, [Segment::revision(0.0, 10.0), turn(1.0, 8.0, 0), turn(7.0, 9.0, 1)]);
        revise_turns(&mut turns, [Segment::revision(7.5, 12.0), turn(7.5, 12.0, 0), turn(11.0, 12.0, 1)]);
        assert_eq!(turns, [turn(1.0, 12.0, 0), turn(7.0, 7.5, 1), turn(11.0, 12.0, 1)]);
        revise_turns(&mut turns, [Segment::revision(0.0, 13.0), turn(1.0, 12.5, 3)]);
        assert_eq!(turns, [turn(1.0, 12.5, 3)]);
    }
}
