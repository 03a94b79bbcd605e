//! What a model produced for one answer of a conversation, and how much of it was heard. Knows no frame and no text.

use izwi_core::engine::Emission;

/// The emissions of an answer, as far as they were delivered.
#[derive(Debug, Clone, Default)]
pub struct Produced {
    /// What was delivered whole; moved into the conversation with the end of the answer.
    pub emissions: Vec<Emission>,
    /// For each emission, the samples of the answer up to its end, and whether it is audio.
    ends: Vec<(u64, bool)>,
    /// Whether the conversation has the answer.
    pub(crate) is_recorded: bool,
}

impl Produced {
    /// Adds emissions, and the samples of the answer up to the end of each.
    pub fn push(&mut self, emissions: Vec<Emission>, ends: &[u64]) {
        let are_audio = emissions.iter().map(Emission::is_heard);
        self.ends.extend(ends.iter().copied().zip(are_audio));
        self.emissions.extend(emissions);
    }

    /// How many emissions were heard in the first `played` samples. Text tokens run ahead of their audio: those after the
    /// last frame that was heard do not count, unless the answer `is_complete` and all of it was heard.
    pub fn heard(&self, played: u64, is_complete: bool) -> usize {
        if is_complete && self.ends.iter().all(|(end, is_audio)| !is_audio || *end <= played) {
            return self.ends.len();
        }
        // A token after a frame was emitted before the frame was decoded.
        let played = self.ends.iter().take_while(|(end, is_audio)| !is_audio || *end <= played).count();
        self.ends[..played].iter().rposition(|(_, is_audio)| *is_audio).map_or(0, |last| last + 1)
    }

    /// Keeps the first `kept` emissions.
    pub fn truncate(&mut self, kept: usize) {
        self.emissions.truncate(kept);
        self.ends.truncate(kept);
    }
}
