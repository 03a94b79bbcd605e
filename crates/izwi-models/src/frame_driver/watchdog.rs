//! Ends speech that would not end by itself.
//!
//! Autoregressive speech models miss their end now and then: they go on in silence, in a loop, or babble. Counts frames
//! against a budget, and looks for repetition and for silence. Knows no model.

/// The longest period of a loop, in frames.
const MAX_PERIOD: usize = 12;

/// What is too much.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// Frames in one second.
    pub(crate) frames_per_s: f64,
    /// The most frames.
    pub(crate) budget: usize,
    /// Seconds of tokens that repeat with a short period.
    pub(crate) loop_s: f64,
    /// Seconds of silence.
    pub(crate) silence_s: f64,
}

/// Amplitude below which nothing is heard: −60 dB of full scale.
const SILENCE: f32 = 1e-3;

/// Watches one utterance.
#[derive(Debug, Clone)]
pub(crate) struct Watchdog {
    limits: Limits,
    tokens: Vec<u32>,
    /// For each period from 1 on, how many tokens in a row equal the one a period before.
    repeated: [usize; MAX_PERIOD],
    silent_frames: usize,
}

impl Watchdog {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, tokens: Vec::new(), repeated: [0; MAX_PERIOD], silent_frames: 0 }
    }

    /// Takes note of a frame: the token that decided it and its samples. Whether the utterance is to end here.
    pub(crate) fn observe(&mut self, token: u32, samples: &[f32]) -> bool {
        self.tokens.push(token);
        let count = self.tokens.len();
        for (index, repeated) in self.repeated.iter_mut().enumerate() {
            let earlier = count.checked_sub(index + 2).map(|at| self.tokens[at]);
            *repeated = if earlier == Some(token) { *repeated + 1 } else { 0 };
        }
        let silent = samples.iter().all(|sample| sample.abs() < SILENCE);
        self.silent_frames = if silent { self.silent_frames + 1 } else { 0 };
        let frames = |seconds: f64| (seconds * self.limits.frames_per_s) as usize;
        let looped = self.repeated.iter().any(|&repeated| repeated >= frames(self.limits.loop_s));
        count >= self.limits.budget || looped || self.silent_frames >= frames(self.limits.silence_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { frames_per_s: 10.0, budget: 100, loop_s: 2.0, silence_s: 1.0 };
    const LOUD: [f32; 2] = [0.5, -0.5];

    /// The frame at which it bites.
    fn bites(tokens: impl Iterator<Item = u32>, samples: &[f32]) -> Option<usize> {
        let mut dog = Watchdog::new(LIMITS);
        tokens.take(1000).position(|token| dog.observe(token, samples))
    }

    #[test]
    fn each_limit_bites_and_speech_passes() {
        assert_eq!(bites(0.., &LOUD), Some(99), "the budget");
        assert_eq!(bites(0.., &[1e-4; 4]), Some(9), "silence");
        assert_eq!(bites(std::iter::repeat(7), &LOUD), Some(20), "one token");
        assert_eq!(bites((0..).map(|n| n % 3), &LOUD), Some(22), "three tokens");
        let speech = (0..60u32).map(|n| n * n % 61);
        assert_eq!(bites(speech, &LOUD), None);
    }

    #[test]
    fn what_is_heard_again_resets_the_silence() {
        let mut dog = Watchdog::new(LIMITS);
        for n in 0..50 {
            let samples = if n % 9 == 8 { LOUD } else { [0.0; 2] };
            assert!(!dog.observe(n, &samples));
        }
    }
}
