//! What a model that converses said, handed on with the sound that it became.
//!
//! Knows counts of samples; sees no chunk and no client.

use std::collections::VecDeque;

use crate::engine::executor::Emission;

/// What was said and is not handed on yet.
#[derive(Debug, Default)]
pub(super) struct Saying {
    /// With the samples after which each has been heard; `None` for frames that are no sound yet.
    queue: VecDeque<(Emission, Option<u64>)>,
    /// Samples made.
    made: u64,
}

impl Saying {
    /// Takes what a step said, and the number of samples it made of this and of what was no sound before.
    pub(super) fn take(&mut self, emission: Option<Emission>, samples: usize) {
        if let Some(emission) = emission {
            let heard_at = matches!(emission, Emission::Token(_)).then_some(self.made);
            self.queue.push_back((emission, heard_at));
        }
        if samples == 0 {
            return;
        }
        let samples = samples as u64;
        let frames = self.queue.iter().filter(|(_, heard_at)| heard_at.is_none()).count() as u64;
        // One of the frames may be the end of the sound and have none itself: so shared out, none counts as heard early.
        let shares = frames.saturating_sub(1).max(1);
        let unheard = self.queue.iter_mut().filter(|(_, heard_at)| heard_at.is_none());
        for (count, (_, heard_at)) in (1..).zip(unheard) {
            *heard_at = Some(self.made + (samples * count).div_ceil(shares).min(samples));
        }
        self.made += samples;
    }

    /// What has been heard whole, and all before it, once `samples` were.
    pub(super) fn heard(&mut self, samples: u64) -> Vec<Emission> {
        let is_heard = |at: &Option<u64>| at.is_some_and(|at| at <= samples);
        let count = self.queue.iter().take_while(|(_, at)| is_heard(at)).count();
        self.queue.drain(..count).map(|(emission, _)| emission).collect()
    }

    /// All there is.
    pub(super) fn rest(&mut self) -> Vec<Emission> {
        self.queue.drain(..).map(|(emission, _)| emission).collect()
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
    fn tokens_are_said_at_once_and_frames_with_their_sound() {
        let mut saying = Saying::default();
        saying.take(Some(token(1)), 0);
        assert_eq!(saying.heard(0), [token(1)]);
        saying.take(Some(frame(2)), 0);
        saying.take(Some(token(3)), 0);
        assert_eq!(saying.heard(1_000), [], "what follows a frame waits for it");
        saying.take(Some(frame(4)), 0);
        saying.take(Some(frame(5)), 300);
        assert_eq!(saying.heard(149), []);
        assert_eq!(saying.heard(150), [frame(2), token(3)]);
        assert_eq!(saying.heard(299), []);
        assert_eq!(saying.heard(300), [frame(4), frame(5)]);
        saying.take(Some(frame(6)), 100);
        assert_eq!(saying.heard(399), []);
        assert_eq!(saying.heard(400), [frame(6)]);
        saying.take(Some(frame(7)), 0);
        assert_eq!(saying.heard(u64::MAX), []);
        assert_eq!(saying.rest(), [frame(7)]);
    }
}
