//! Live audio as it arrives: decoded, and the turns in it. Where a turn model decides whether a pause ends a turn, audio after the pause
//! waits for the decision, so that turns do not depend on how fast audio comes.

use izwi_audio::vad::VadModel;

use super::decision::{Deciding, TurnModel};
use super::{
    Heard, MAX_HELD_BACK_MS, Pause, PcmEncoding, PcmInput, SAMPLES_PER_MS, StreamBuffer, TurnDetector,
    TurnEvent, TurnOptions,
};
use crate::error::ApiError;
use crate::ws::protocol::{Job, Protocol};

/// The latest audio of a turn that a turn model hears.
const TURN_WINDOW_MS: u64 = 8_000;
/// The most audio that waits for a decision: audio may come faster than it is played.
const MAX_WAITING_MS: u64 = 600_000;

/// Live audio of one stream.
#[derive(Debug)]
pub struct TurnInput {
    encoding: PcmEncoding,
    rate_hz: u32,
    input: PcmInput,
    /// Samples of the stream that were heard.
    samples: u64,
    /// `None` where no turns are looked for.
    detector: Option<TurnDetector>,
    decider: Option<Decider>,
    /// The pause that is decided on, and the samples after it, which are heard once it is.
    pause: Option<Pause>,
    waiting: Vec<f32>,
}

/// Who decides on pauses.
#[derive(Debug)]
struct Decider {
    model: TurnModel,
    /// The latest audio.
    recent: StreamBuffer,
    /// Whether the model is being asked.
    is_asked: bool,
}

impl TurnInput {
    /// Audio in which no turns are looked for.
    ///
    /// # Errors
    /// The rate is out of range.
    pub fn new(encoding: PcmEncoding, rate_hz: u32) -> Result<Self, ApiError> {
        let input = pcm_input(encoding, rate_hz)?;
        let (detector, decider, pause, waiting) = (None, None, None, Vec::new());
        Ok(Self { encoding, rate_hz, input, samples: 0, detector, decider, pause, waiting })
    }

    /// Audio with turns, which silence alone ends without a turn model.
    ///
    /// # Errors
    /// As of [`Self::new`].
    pub fn with_turns(
        (encoding, rate_hz): (PcmEncoding, u32),
        vad: &VadModel,
        turns: TurnOptions,
        model: Option<TurnModel>,
    ) -> Result<Self, ApiError> {
        let mut input = Self::new(encoding, rate_hz)?;
        input.set_turns(vad, Some(turns), model);
        Ok(input)
    }

    /// The encoding and the rate of the audio that comes.
    pub fn format(&self) -> (PcmEncoding, u32) {
        (self.encoding, self.rate_hz)
    }

    /// Takes audio of another format from now on. What the decoder held back is dropped.
    ///
    /// # Errors
    /// The rate is out of range; the format stays.
    pub fn set_format(&mut self, encoding: PcmEncoding, rate_hz: u32) -> Result<(), ApiError> {
        self.input = pcm_input(encoding, rate_hz)?;
        (self.encoding, self.rate_hz) = (encoding, rate_hz);
        Ok(())
    }

    /// Looks for turns like this from now on, or for none. Returns the end of the turn that this ends.
    pub fn set_turns(
        &mut self,
        vad: &VadModel,
        turns: Option<TurnOptions>,
        model: Option<TurnModel>,
    ) -> Option<TurnEvent> {
        let now_ms = self.now_ms();
        let ended = self.detector.as_mut().and_then(TurnDetector::end_turn);
        self.pause = None;
        self.detector = turns.map(|turns| TurnDetector::starting_at(vad, turns, now_ms));
        self.decider = model.map(|model| {
            let recent = StreamBuffer::starting_at(model.memory(), now_ms);
            Decider { model, recent, is_asked: false }
        });
        ended
    }

    /// Decides by another model from the next pause on, or by one that must be as sure as another.
    pub fn set_turn_model(&mut self, model: Option<TurnModel>) {
        if let (Some(decider), Some(model)) = (&mut self.decider, model) {
            decider.model = model;
        }
    }

    /// Takes audio in any slices.
    ///
    /// # Errors
    /// It is no audio of the encoding, or more waits for a decision than may, or than there is memory for.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Heard, ApiError> {
        self.admit(self.ms_of(bytes.len()))?;
        let mut samples = Vec::new();
        self.input.push(bytes, &mut samples).map_err(audio_error)?;
        self.waiting.extend(samples);
        Ok(self.hear_on())
    }

    /// Makes room for so many milliseconds of audio, before it is decoded.
    fn admit(&mut self, ms: u64) -> Result<(), ApiError> {
        if self.waiting_ms() > MAX_WAITING_MS {
            let seconds = MAX_WAITING_MS / 1_000;
            let message = format!("more than {seconds} s of audio wait; send it more slowly");
            return Err(ApiError::overloaded(message));
        }
        let samples = self.waiting.len() + ((ms + MAX_HELD_BACK_MS) * SAMPLES_PER_MS) as usize;
        self.decider.as_mut().map_or(Ok(()), |decider| decider.recent.reserve(samples))
    }

    /// Hears what waits, up to the next pause that is to be decided on.
    pub fn hear_on(&mut self) -> Heard {
        let mut turns = Vec::new();
        let mut samples = Vec::new();
        if self.pause.is_none() {
            samples = std::mem::take(&mut self.waiting);
            if let Some(detector) = &mut self.detector {
                let (taken, pause) = detector.push_to_pause(&samples, &mut turns);
                self.pause = pause;
                self.waiting = samples.split_off(taken);
            }
        }
        self.samples += samples.len() as u64;
        self.remember(&samples);
        self.heard(samples, turns)
    }

    /// Keeps samples for the turn model, as far as they may belong to what it hears.
    fn remember(&mut self, samples: &[f32]) {
        let (now_ms, needed_ms) = (self.now_ms(), self.needed_from_ms());
        let Some(Decider { model, recent, .. }) = &mut self.decider else { return };
        match recent.push(samples) {
            Ok(()) => recent.forget_before(needed_ms.max(now_ms.saturating_sub(TURN_WINDOW_MS)).min(now_ms)),
            // Without memory for it now, the model hears what follows.
            Err(_) => *recent = StreamBuffer::starting_at(model.memory(), now_ms),
        }
    }

    /// Hears all that waits, whatever may be decided, and adds it to what was `heard`.
    pub fn hear_waiting(&mut self, heard: &mut Heard) {
        while self.pause.take().is_some() || !self.waiting.is_empty() {
            heard.append(self.hear_on());
        }
    }

    /// Hears all that waits and what the decoder held back, and adds it to what was `heard`.
    ///
    /// # Errors
    /// As of [`Self::push`]; what waits is heard.
    pub fn finish(&mut self, heard: &mut Heard) -> Result<(), ApiError> {
        self.hear_waiting(heard);
        self.input.finish(&mut self.waiting).map_err(audio_error)?;
        self.hear_waiting(heard);
        Ok(())
    }

    /// Ends the turn in progress, if one does, without waiting for silence: what the decoder held back belongs to it.
    ///
    /// # Errors
    /// As of [`Self::finish`].
    pub fn end_turn(&mut self) -> Result<Heard, ApiError> {
        let mut heard = self.heard(Vec::new(), Vec::new());
        self.finish(&mut heard)?;
        heard.append(self.cut_turn());
        Ok(heard)
    }

    /// Ends the turn in progress, if one does, where it was heard to.
    pub fn cut_turn(&mut self) -> Heard {
        let ended = self.detector.as_mut().and_then(TurnDetector::end_turn);
        self.heard(Vec::new(), ended.into_iter().collect())
    }

    /// Drops what waits and what the decoder held back, and ends the turn in progress.
    ///
    /// # Errors
    /// The rate is out of range, which it was not before.
    pub fn clear(&mut self) -> Result<Heard, ApiError> {
        self.input = pcm_input(self.encoding, self.rate_hz)?;
        self.pause = None;
        self.waiting.clear();
        Ok(self.cut_turn())
    }

    /// The job that decides whether the pause that was heard ends the turn, if there is one and no job runs; `wrap` makes the
    /// session's reply of its own.
    pub fn decide<P: Protocol>(&mut self, wrap: impl FnOnce(Deciding) -> P::Reply) -> Option<Job<P>> {
        let (pause, end_ms) = (self.pause?, self.now_ms());
        let decider = self.decider.as_mut().filter(|decider| !decider.is_asked)?;
        decider.is_asked = true;
        let start_ms = pause.start_ms.max(end_ms.saturating_sub(TURN_WINDOW_MS));
        Some(decider.model.job(pause, decider.recent.part(start_ms..end_ms), wrap))
    }

    /// Takes the decision on a pause. Returns the end of the turn, if that ends; [`Self::hear_on`] hears what waited.
    pub fn decided(&mut self, deciding: &Deciding) -> Heard {
        if let Some(decider) = &mut self.decider {
            decider.is_asked = false;
        }
        // Another pause may have taken the place of the one that was decided on.
        let pause = self.pause.take_if(|pause| *pause == deciding.pause);
        let ended = pause.filter(|_| deciding.ends_turn());
        let ended = ended.and_then(|pause| self.detector.as_mut()?.end_in_pause(pause));
        self.heard(Vec::new(), ended.into_iter().collect())
    }

    fn heard(&self, samples: Vec<f32>, turns: Vec<TurnEvent>) -> Heard {
        Heard { samples, turns, needed_from_ms: self.needed_from_ms() }
    }

    /// From where on audio belongs to the turn in progress, or to one that is reported later.
    pub fn needed_from_ms(&self) -> u64 {
        self.detector.as_ref().map_or(0, TurnDetector::needed_from_ms)
    }

    /// Whether turns are looked for.
    pub fn has_turns(&self) -> bool {
        self.detector.is_some()
    }

    /// Whether a turn continues.
    pub fn is_speaking(&self) -> bool {
        self.detector.as_ref().is_some_and(TurnDetector::is_speaking)
    }

    /// Whether a decision on a pause is awaited.
    pub fn is_waiting(&self) -> bool {
        self.pause.is_some() && self.decider.is_some()
    }

    /// Length of the audio that waits for a decision.
    pub fn waiting_ms(&self) -> u64 {
        self.waiting.len() as u64 / SAMPLES_PER_MS
    }

    /// Length of so many bytes.
    pub fn ms_of(&self, bytes: usize) -> u64 {
        bytes as u64 * 1_000 / (self.encoding.sample_bytes() as u64 * u64::from(self.rate_hz))
    }

    /// Length of the stream that was heard so far.
    pub fn now_ms(&self) -> u64 {
        self.samples / SAMPLES_PER_MS
    }
}

fn pcm_input(encoding: PcmEncoding, rate_hz: u32) -> Result<PcmInput, ApiError> {
    PcmInput::new(encoding, rate_hz).map_err(|error| ApiError::invalid("sample_rate", error.to_string()))
}

fn audio_error(error: izwi_audio::decode::DecodeError) -> ApiError {
    ApiError::Audio { param: "audio", error }
}
