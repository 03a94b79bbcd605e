//! Emissions of a conversational turn, delivered with the chunk that completes their audio.
//!
//! Must not know chunks or clients, only sample counts.

use std::collections::VecDeque;

use izwi_types::Emission;

/// Emissions that are not delivered yet.
#[derive(Debug, Default)]
pub(super) struct EmissionQueue {
    /// Each with the sample count that completes it; `None` for frames that are not decoded yet.
    queue: VecDeque<(Emission, Option<u64>)>,
    /// Samples decoded.
    decoded: u64,
}

impl EmissionQueue {
    /// Appends the emission of a step that decoded `samples` samples of this and earlier frames.
    pub(super) fn push(&mut self, emission: Option<Emission>, samples: usize) {
        if let Some(emission) = emission {
            let complete_at = match emission {
                Emission::Frame(_) => None,
                Emission::Said(_) => Some(self.decoded + samples as u64),
                Emission::Token(_) | Emission::Call(_) => Some(self.decoded),
            };
            self.queue.push_back((emission, complete_at));
        }
        if samples == 0 {
            return;
        }
        let samples = samples as u64;
        let frames = self.queue.iter().filter(|(_, complete_at)| complete_at.is_none()).count() as u64;
        // The last frame may be the end marker without samples: dividing by one frame less, no frame completes early.
        let shares = frames.saturating_sub(1).max(1);
        let pending = self.queue.iter_mut().filter(|(_, complete_at)| complete_at.is_none());
        for (count, (_, complete_at)) in (1..).zip(pending) {
            *complete_at = Some(self.decoded + (samples * count).div_ceil(shares).min(samples));
        }
        self.decoded += samples;
    }

    /// Removes the emissions that are complete after `samples` samples, up to the first incomplete one; each with the sample
    /// count that completes it.
    pub(super) fn pop_complete(&mut self, samples: u64) -> Vec<(Emission, u64)> {
        let is_complete = |at: &Option<u64>| at.is_some_and(|at| at <= samples);
        let count = self.queue.iter().take_while(|(_, at)| is_complete(at)).count();
        self.queue.drain(..count).map(|(emission, at)| (emission, at.unwrap_or(samples))).collect()
    }

    /// Removes all emissions; those that were never decoded end with the audio.
    pub(super) fn drain(&mut self) -> Vec<(Emission, u64)> {
        let decoded = self.decoded;
        self.queue.drain(..).map(|(emission, at)| (emission, at.unwrap_or(decoded))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn token(id: u32) -> Emission {
        Emission::Token(id)
    }

    fn frame(code: u32) -> Emission {
        Emission::Frame([code].into())
    }

    #[test]
    fn tokens_complete_at_once_and_frames_with_their_samples() {
        let mut queue = EmissionQueue::default();
        queue.push(Some(token(1)), 0);
        assert_eq!(queue.pop_complete(0), [(token(1), 0)]);
        queue.push(Some(frame(2)), 0);
        queue.push(Some(token(3)), 0);
        assert_eq!(queue.pop_complete(1_000), [], "a token after a frame waits for it");
        queue.push(Some(frame(4)), 0);
        queue.push(Some(frame(5)), 300);
        assert_eq!(queue.pop_complete(149), []);
        assert_eq!(queue.pop_complete(150), [(frame(2), 150), (token(3), 0)]);
        assert_eq!(queue.pop_complete(299), []);
        assert_eq!(queue.pop_complete(300), [(frame(4), 300), (frame(5), 300)]);
        queue.push(Some(frame(6)), 100);
        assert_eq!(queue.pop_complete(399), []);
        assert_eq!(queue.pop_complete(400), [(frame(6), 400)]);
        queue.push(Some(frame(7)), 0);
        assert_eq!(queue.pop_complete(u64::MAX), []);
        assert_eq!(queue.drain(), [(frame(7), 400)]);
    }
}
