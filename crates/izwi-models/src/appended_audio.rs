//! Audio that is appended to an input while it is transcribed: the part that is not computed yet.
//!
//! Knows no model.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use izwi_types::InputError;

/// The most seconds of audio that wait to be computed.
const MAX_WAITING_S: usize = 240;

/// The audio of one input. Clients append while the executor computes, so it has no single owner.
#[derive(Debug)]
pub(crate) struct AppendedAudio {
    rate_hz: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    samples: Vec<f32>,
    /// Place of the first of them in the recording.
    first: usize,
    is_finished: bool,
}

/// How long a recording is so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    /// All samples, and those of them that are kept.
    pub(crate) samples: usize,
    pub(crate) kept: usize,
    /// Whether no more come.
    pub(crate) is_finished: bool,
}

impl AppendedAudio {
    /// An empty recording.
    pub(crate) fn new(rate_hz: usize) -> Self {
        Self { rate_hz, kept: Mutex::default() }
    }

    /// Appends samples; `is_last` ends the recording.
    ///
    /// # Errors
    /// It has ended, or too much of it waits. It is unchanged then.
    pub(crate) fn append(&self, samples: &[f32], is_last: bool) -> Result<Extent, InputError> {
        let refusal = |message: String| Err(InputError { param: "audio", message });
        let mut kept = self.lock();
        if kept.is_finished {
            return refusal("the audio has ended already; send more as another request".to_owned());
        }
        if kept.samples.len() + samples.len() > MAX_WAITING_S * self.rate_hz {
            return refusal(format!("more than {MAX_WAITING_S} s of audio wait; send it more slowly"));
        }
        kept.samples.extend_from_slice(samples);
        kept.is_finished = is_last;
        Ok(kept.extent())
    }

    pub(crate) fn extent(&self) -> Extent {
        self.lock().extent()
    }

    /// A part of the recording, as far as there is one; `None` if some of it was forgotten. What is before `needed` is
    /// forgotten from now on.
    pub(crate) fn take(&self, part: Range<usize>, needed: usize) -> Option<Vec<f32>> {
        let mut kept = self.lock();
        let from = part.start.checked_sub(kept.first)?;
        let to = part.end.saturating_sub(kept.first).min(kept.samples.len());
        let taken = kept.samples.get(from.min(to)..to)?.to_vec();
        let before = needed.saturating_sub(kept.first).min(kept.samples.len());
        kept.samples.drain(..before);
        kept.first += before;
        if kept.samples.capacity() > 4 * kept.samples.len().max(self.rate_hz) {
            let room = 2 * kept.samples.len();
            kept.samples.shrink_to(room);
        }
        Some(taken)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // No method leaves it half changed.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn extent(&self) -> Extent {
        let kept = self.samples.len();
        Extent { samples: self.first + kept, kept, is_finished: self.is_finished }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_computed_is_forgotten_and_what_waits_is_bounded() {
        let audio = AppendedAudio::new(10);
        let samples: Vec<f32> = (0..2_400).map(|n| n as f32).collect();
        assert_eq!(
            audio.append(&samples, false),
            Ok(Extent { samples: 2_400, kept: 2_400, is_finished: false })
        );
        let refused = audio.append(&[0.0], false).unwrap_err();
        assert!(refused.message.contains("more than 240 s"), "{}", refused.message);
        assert_eq!(audio.take(5..8, 2_390).unwrap(), [5.0, 6.0, 7.0]);
        assert_eq!(audio.take(2_389..2_392, 0), None, "it was forgotten");
        assert_eq!(audio.take(2_398..2_500, 0).unwrap(), [2_398.0, 2_399.0]);
        assert_eq!(audio.take(2_500..2_510, 0).unwrap(), [0.0; 0], "it has not come");
        assert_eq!(audio.append(&[1.0], true), Ok(Extent { samples: 2_401, kept: 11, is_finished: true }));
        assert!(audio.append(&[], true).unwrap_err().message.contains("ended"));
    }
}
