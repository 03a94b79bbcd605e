//! When frames of codes become sound, and what is taken note of when they do.
//!
//! Knows no codec: it is told how many samples a frame has.

use crate::watchdog::{Limits, Watchdog};

/// Frames that wait for their sound at most, whatever the listener wants at once: others wait for this step.
pub(crate) const MAX_PORTION: usize = 4;
/// Frames that are too many: so many for a token of text, and so many in any case.
const BUDGET_PER_TOKEN: usize = 12;
const BUDGET: usize = 60;
/// Seconds of a loop or of silence that speech does not have.
const LOOP_S: f64 = 4.0;
const SILENCE_S: f64 = 4.0;

/// Frames that are too many for a text of `tokens`.
pub(crate) fn budget(tokens: usize) -> usize {
    BUDGET + BUDGET_PER_TOKEN * tokens
}

/// When frames become sound: each portion of them costs a pass over the codec's weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Portions {
    /// Samples of a frame.
    pub(crate) frame: usize,
    /// Samples that come only with the frame behind them, or at the end.
    pub(crate) held_back: usize,
    /// Samples in a second.
    pub(crate) rate: usize,
    /// Samples that the listener gets at once.
    pub(crate) chunk: usize,
    /// Units and positions after which the engine ends a pass.
    pub(crate) max_units: usize,
    pub(crate) max_positions: usize,
}

impl Portions {
    /// Units after which the engine ends a pass with a prompt of so many positions.
    pub(crate) fn most(&self, prompt: usize) -> usize {
        self.max_units.min(self.max_positions.saturating_sub(prompt))
    }
}

/// The sound of a running utterance.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sounding {
    /// Frames that are no sound yet.
    pub(crate) pending: Vec<Vec<u32>>,
    /// How many of them, the first, become sound beside the next step.
    put_off: usize,
    /// Samples of all passes.
    sounded: usize,
    /// Whether the pass has sounded.
    begun: bool,
    watchdog: Option<Watchdog>,
    pub(crate) ran_away: bool,
}

impl Sounding {
    /// Whether the pending frames are to become sound now, for they complete a chunk.
    pub(crate) fn is_due(&self, portions: &Portions) -> bool {
        let Portions { frame, held_back, chunk, .. } = *portions;
        let held_back = if self.begun { 0 } else { held_back };
        let (before, after) = (self.sounded, self.sounded + self.pending.len() * frame);
        let after = after.saturating_sub(held_back);
        self.pending.len() >= MAX_PORTION || after / chunk > before / chunk
    }

    /// Whether the sound of the pending frames can wait for the next step: the listener has heard the beginning.
    pub(crate) fn can_wait(&self) -> bool {
        self.begun
    }

    /// Lets the pending frames become sound beside the next step.
    pub(crate) fn put_off(&mut self) {
        self.put_off = self.pending.len();
    }

    /// The frames that become sound beside this step.
    pub(crate) fn waiting(&self) -> &[Vec<u32>] {
        &self.pending[..self.put_off.min(self.pending.len())]
    }

    /// Takes note of the sound of the frames that waited for this step, of all that are pending where none did; whether
    /// the pass is to end with it, having more frames than `budget`, a loop or silence. What lies behind the end is cut
    /// off. Without a budget nothing is watched.
    pub(crate) fn heard(
        &mut self,
        portions: &Portions,
        budget: Option<usize>,
        samples: &mut Vec<f32>,
    ) -> bool {
        let frame = portions.frame;
        let count = match std::mem::take(&mut self.put_off) {
            0 => self.pending.len(),
            waiting => waiting,
        };
        let pending: Vec<_> = self.pending.drain(..count.min(self.pending.len())).collect();
        let sounds = pending.iter().zip(samples.chunks(frame));
        let end = sounds.enumerate().find_map(|(at, (codes, sound))| {
            let token = codes.first().copied().unwrap_or_default();
            self.watch(portions, budget?, token, sound).then_some((at + 1) * frame)
        });
        samples.truncate(end.unwrap_or(usize::MAX));
        self.sounded += samples.len();
        self.begun = true;
        end.is_some()
    }

    fn watch(&mut self, portions: &Portions, budget: usize, token: u32, samples: &[f32]) -> bool {
        let frames_per_s = portions.rate as f64 / portions.frame.max(1) as f64;
        let limits = Limits { frames_per_s, budget, loop_s: LOOP_S, silence_s: SILENCE_S };
        let bites = self.watchdog.get_or_insert_with(|| Watchdog::new(limits)).observe(token, samples);
        self.ran_away |= bites;
        bites
    }

    /// Goes on to the next pass.
    pub(crate) fn next_pass(&mut self) {
        let Self { sounded, ran_away, .. } = *self;
        *self = Self { sounded, ran_away, ..Self::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_is_not_counted_as_heard() {
        let portions =
            Portions { frame: 100, held_back: 30, rate: 1000, chunk: 100, max_units: 9, max_positions: 20 };
        assert_eq!((portions.most(5), portions.most(15), portions.most(25)), (9, 5, 0));
        let mut sounding = Sounding::default();
        sounding.pending.push(vec![1]);
        assert!(!sounding.is_due(&portions), "70 samples complete no chunk");
        sounding.pending.push(vec![2]);
        assert!(sounding.is_due(&portions));
        assert!(!sounding.heard(&portions, Some(3), &mut vec![0.5; 170]));
        sounding.pending.push(vec![3]);
        assert!(sounding.is_due(&portions), "nothing more is held back");
        let mut samples = vec![0.5; 100];
        assert!(sounding.heard(&portions, Some(3), &mut samples) && sounding.ran_away);
        sounding.next_pass();
        assert!(sounding.ran_away && !sounding.begun && sounding.pending.is_empty());
        assert_eq!(sounding.sounded, 270);
    }
}
