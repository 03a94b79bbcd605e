//! The prompt of the language model: for each position a text token, a frame, or a row of an encoded recording.
//!
//! Owns the template of a conversation. Computes no embedding.

use std::sync::{Arc, OnceLock};

use super::tokens::{Role, Vocabulary};
use crate::conformer::{FrontEnd, Mel};
use izwi_nn::sampling::mix;
use izwi_types::Emission;

/// One position.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Position {
    /// A text token or a frame, of any role.
    Emission(Emission),
    /// A row of an encoded recording.
    Encoded { recording: usize, row: usize },
}

/// A recording in a conversation.
#[derive(Debug, Clone)]
pub(super) struct Recording {
    /// Samples at the encoder's rate; none where `mel` was computed at once.
    samples: Arc<[f32]>,
    /// The input of the encoder, once it is needed.
    mel: OnceLock<Mel>,
    /// Positions it takes.
    rows: usize,
    /// Content key.
    key: u64,
    /// End of its positions in the prompt.
    pub(super) end: usize,
}

impl Recording {
    /// A recording of mono samples at the encoder's rate.
    pub(super) fn new(samples: &[f32], front_end: &FrontEnd) -> Self {
        let mel = OnceLock::from(front_end.frames(samples));
        Self { mel, ..Self::keyed(samples, front_end) }
    }

    /// A recording that may be in the prefix cache: the input of the encoder is computed when it is needed.
    pub(super) fn deferred(samples: &Arc<[f32]>, front_end: &FrontEnd) -> Self {
        Self { samples: Arc::clone(samples), ..Self::keyed(samples, front_end) }
    }

    fn keyed(samples: &[f32], front_end: &FrontEnd) -> Self {
        let key = samples
            .iter()
            .fold(mix(samples.len() as u64), |key, sample| mix(key ^ u64::from(sample.to_bits())));
        let rows = front_end.rows(samples.len());
        Self { samples: Arc::new([]), mel: OnceLock::new(), rows, key, end: 0 }
    }

    /// The input of the encoder.
    pub(super) fn mel(&self, front_end: &FrontEnd) -> &Mel {
        self.mel.get_or_init(|| front_end.frames(&self.samples))
    }

    /// Whether the input of the encoder is computed.
    #[cfg(test)]
    pub(super) fn has_mel(&self) -> bool {
        self.mel.get().is_some()
    }

    /// Positions it takes.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }
}

/// Positions before the first generated one, and the recordings among them.
#[derive(Debug, Clone, Default)]
pub(super) struct Prompt {
    pub(super) positions: Vec<Position>,
    pub(super) recordings: Vec<Recording>,
}

impl Prompt {
    /// A conversation without turns under these instructions.
    pub(super) fn begin(vocabulary: &Vocabulary, instructions: &str) -> Self {
        let mut prompt = Self::default();
        prompt.tokens(vocabulary.start());
        prompt.turn(vocabulary, Role::System);
        prompt.text(vocabulary, instructions);
        prompt.end(vocabulary);
        prompt
    }

    /// Opens a turn.
    pub(super) fn turn(&mut self, vocabulary: &Vocabulary, role: Role) {
        self.tokens(vocabulary.turn(role));
    }

    /// Ends a turn.
    pub(super) fn end(&mut self, vocabulary: &Vocabulary) {
        self.tokens(vocabulary.end());
    }

    /// A piece of text.
    pub(super) fn text(&mut self, vocabulary: &Vocabulary, text: &str) {
        self.tokens(vocabulary.encode(text));
    }

    /// A recording.
    pub(super) fn recording(&mut self, recording: Recording) {
        let index = self.recordings.len();
        let rows = 0..recording.rows();
        self.positions.extend(rows.map(|row| Position::Encoded { recording: index, row }));
        self.recordings.push(Recording { end: self.positions.len(), ..recording });
    }

    /// The emissions of an earlier turn of the model.
    pub(super) fn emissions(&mut self, emissions: &[Emission]) {
        self.positions.extend(emissions.iter().cloned().map(Position::Emission));
    }

    fn tokens(&mut self, ids: Vec<u32>) {
        self.positions.extend(ids.into_iter().map(|id| Position::Emission(Emission::Token(id))));
    }

    /// A content key for each position.
    pub(super) fn keys(&self) -> Arc<[u64]> {
        let key = |position: &Position| match position {
            Position::Emission(emission) => key(emission),
            Position::Encoded { recording, row } => {
                let of = self.recordings.get(*recording).map_or(0, |recording| recording.key);
                mix(mix(of ^ 3) ^ *row as u64)
            }
        };
        self.positions.iter().map(key).collect()
    }
}

/// Content key of the position of an emission.
pub(super) fn key(emission: &Emission) -> u64 {
    match emission {
        Emission::Token(id) => mix(mix(1) ^ u64::from(*id)),
        Emission::Frame(codes) => codes.iter().fold(mix(2), |key, &code| mix(key ^ u64::from(code))),
        // None of this model's.
        Emission::Said(_) | Emission::Call(_) => mix(3),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_differ_with_content() {
        let config = super::super::config::Config::load(&super::super::golden_set::root()).unwrap();
        let front_end = config.preprocessor.front_end();
        let mut prompt = Prompt::default();
        for samples in [vec![0.5f32; 3000], vec![0.25; 3000], vec![0.5; 3001]] {
            prompt.recording(Recording::new(&samples, &front_end));
        }
        let frame = |codes: &[u32]| Emission::Frame(codes.into());
        prompt.emissions(&[Emission::Token(1), Emission::Token(2), frame(&[1, 2]), frame(&[2, 1])]);
        let keys = prompt.keys();
        assert_eq!(keys.iter().collect::<HashSet<_>>().len(), keys.len());
        assert_eq!(keys.len(), 3 * 3 + 4);
    }
}
