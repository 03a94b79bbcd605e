//! The audio that a step makes, learned while the engine runs.
//!
//! Must not know streams or clocks.

use super::admission::StreamRate;
use super::cost::StepShape;

/// Weight of a new observation.
const WEIGHT: f64 = 0.02;
/// Seconds of audio that a step is taken to make before one has made some: half a frame of the models.
const LEAST_AUDIO_S: f64 = 0.04;

/// Learned audio of a step of one stream.
#[derive(Debug, Default)]
pub(super) struct AudioRate {
    /// Seconds of audio of a generated token, or of a unit's token.
    pub(super) token_s: f64,
    /// Seconds of audio of a generated token that has audio; others may be text.
    frame_s: f64,
    /// Tokens of a unit; 0 for models that are autoregressive.
    unit_tokens: f64,
    observations: u32,
}

impl AudioRate {
    /// Work and audio of a step of one stream.
    pub(super) fn of_a_step(&self) -> StreamRate {
        if self.unit_tokens > 0.0 {
            let step = StepShape { prefill_tokens: self.unit_tokens.ceil() as usize, ..StepShape::default() };
            return StreamRate { step, audio_s: self.token_s * self.unit_tokens };
        }
        let audio_s = if self.token_s > 0.0 { self.token_s } else { LEAST_AUDIO_S };
        StreamRate { step: StepShape::decode(1), audio_s }
    }

    /// Learns that an item of `tokens` tokens, a whole unit or one generated token, made `audio_s` seconds of audio.
    pub(super) fn observe(&mut self, tokens: usize, is_unit: bool, audio_s: f64) {
        // The mean of the first ones: some of them have no audio.
        self.observations = self.observations.saturating_add(1);
        let weight = WEIGHT.max(1.0 / f64::from(self.observations.min(1_000)));
        let average = |average: &mut f64, value: f64| *average += weight * (value - *average);
        if is_unit {
            average(&mut self.unit_tokens, tokens as f64);
            average(&mut self.token_s, audio_s / tokens.max(1) as f64);
        } else {
            average(&mut self.token_s, audio_s);
            self.frame_s = self.frame_s.max(audio_s);
        }
    }

    /// Seconds of audio that a step of one stream makes on average, and of which it makes whole multiples; 0 for any.
    pub(super) fn of_a_frame(&self) -> (f64, f64) {
        let frame_s = if self.unit_tokens > 0.0 { 0.0 } else { self.frame_s };
        (self.of_a_step().audio_s, frame_s)
    }
}
