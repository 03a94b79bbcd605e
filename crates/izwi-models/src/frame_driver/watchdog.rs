//! Ends generation that does not end by itself.
//!
//! Autoregressive speech models sometimes miss their end token and continue with silence, a loop or babble. The watchdog
//! counts frames and detects repetition and silence. Knows no model and no codec.

/// The longest period of a loop, in frames.
const MAX_PERIOD: usize = 12;

/// When generation counts as a runaway.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// Frames in one second.
    pub(crate) frames_per_s: f64,
    /// The most frames.
    pub(crate) max_frames: usize,
    /// Seconds of frames whose keys repeat with a short period.
    pub(crate) loop_s: f64,
    /// Seconds of silence.
    pub(crate) silence_s: f64,
}

/// Amplitude that counts as silence: −60 dB of full scale.
const SILENCE: f32 = 1e-3;

/// Watches one pass.
#[derive(Debug, Clone)]
pub(crate) struct Watchdog {
    limits: Limits,
    keys: Vec<Option<u32>>,
    /// For each period from 1 on, how many keys in a row equal the one a period before.
    repeated: [usize; MAX_PERIOD],
    silent_frames: usize,
}

impl Watchdog {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, keys: Vec::new(), repeated: [0; MAX_PERIOD], silent_frames: 0 }
    }

    /// Sets the most frames, for a text that has grown.
    pub(crate) fn set_max_frames(&mut self, max_frames: usize) {
        self.limits.max_frames = max_frames;
    }

    /// Observes a frame: the key that decides repetition, `None` where there is none, and its samples. Returns whether
    /// generation must end here.
    pub(crate) fn observe(&mut self, key: Option<u32>, samples: &[f32]) -> bool {
        self.keys.push(key);
        let count = self.keys.len();
        for (index, repeated) in self.repeated.iter_mut().enumerate() {
            let earlier = count.checked_sub(index + 2).and_then(|at| self.keys[at]);
            *repeated = if key.is_some() && earlier == key { *repeated + 1 } else { 0 };
        }
        let silent = samples.iter().all(|sample| sample.abs() < SILENCE);
        self.silent_frames = if silent { self.silent_frames + 1 } else { 0 };
        let frames = |seconds: f64| (seconds * self.limits.frames_per_s) as usize;
        let looped = self.repeated.iter().any(|&repeated| repeated >= frames(self.limits.loop_s));
        count >= self.limits.max_frames || looped || self.silent_frames >= frames(self.limits.silence_s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { frames_per_s: 10.0, max_frames: 100, loop_s: 2.0, silence_s: 1.0 };
    const LOUD: [f32; 2] = [0.5, -0.5];

    /// The frame at which the watchdog ends generation.
    fn end(keys: impl Iterator<Item = Option<u32>>, samples: &[f32]) -> Option<usize> {
        let mut watchdog = Watchdog::new(LIMITS);
        keys.take(1000).position(|key| watchdog.observe(key, samples))
    }

    #[test]
    fn each_limit_ends_generation_and_speech_passes() {
        assert_eq!(end((0..).map(Some), &LOUD), Some(99), "the most frames");
        assert_eq!(end((0..).map(Some), &[1e-4; 4]), Some(9), "silence");
        assert_eq!(end(std::iter::repeat(Some(7)), &LOUD), Some(20), "one token");
        assert_eq!(end((0..).map(|n| Some(n % 3)), &LOUD), Some(22), "three tokens");
        assert_eq!(end(std::iter::repeat(None), &LOUD), Some(99), "continuous frames have no loops");
        let speech = (0..60u32).map(|n| Some(n * n % 61));
        assert_eq!(end(speech, &LOUD), None);
    }

    #[test]
    fn a_loud_frame_resets_the_silence() {
        let mut watchdog = Watchdog::new(LIMITS);
        for n in 0..50 {
            let samples = if n % 9 == 8 { LOUD } else { [0.0; 2] };
            assert!(!watchdog.observe(Some(n), &samples));
        }
    }
}
