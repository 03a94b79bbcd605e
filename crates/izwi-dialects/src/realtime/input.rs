//! The input audio buffer of a session: decoding, turn detection, and the audio that is not committed. Knows no event.

use bytes::Bytes;
use izwi_audio::pcm;
use izwi_server::turns::{
    Heard, MAX_HELD_BACK_MS, Pause, PcmInput, RATE_HZ, StreamBuffer, TurnDetector, TurnEvent, TurnOptions,
};
use izwi_server::upload::UploadMemory;
use izwi_server::{ApiError, AppState};

use super::audio_format::AudioFormat;
use super::config::{Kind, SessionConfig};
use super::refusal::Refusal;
use super::turn_detection::TurnDetection;

/// The shortest audio that can be committed, as in the hosted API.
const MIN_COMMIT_MS: u64 = 100;
/// A pause that is left out of the transcript of audio that the client commits.
const PAUSE_MS: u64 = 2_000;
/// The latest audio of a turn that the turn model hears.
const TURN_WINDOW_MS: u64 = 8_000;

/// Audio of one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clip {
    /// A WAV file, 16-bit mono at 16 kHz; `None` if no model hears it again.
    pub(super) file: Option<Bytes>,
    pub(super) duration_ms: u64,
}

impl Clip {
    /// The file counts in the memory of all recordings until nothing holds it.
    fn new(state: &AppState, samples: &[i16]) -> Result<Self, Refusal> {
        let file = Some(UploadMemory::wav_file(state, samples)?);
        Ok(Self { file, duration_ms: samples.len() as u64 * 1_000 / u64::from(RATE_HZ) })
    }
}

/// The longest audio that becomes one item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of a turn that the VAD finds.
    pub(super) turn_ms: u64,
    /// That the client commits.
    pub(super) commit_ms: u64,
    /// Of a turn that is transcribed; `None` without transcripts.
    pub(super) transcribed_ms: Option<u64>,
}

#[derive(Debug)]
pub(super) struct InputBuffer {
    state: AppState,
    format: AudioFormat,
    input: PcmInput,
    detection: Option<TurnOptions>,
    /// Finds the turns, those of the transcripts alone where the client commits.
    detector: Option<TurnDetector>,
    buffer: StreamBuffer,
    /// The pause that is decided on, and the samples after it, which are heard once it is.
    pause: Option<Pause>,
    waiting: Vec<f32>,
    /// Whether the buffer keeps what is not committed.
    keeps_audio: bool,
    /// From where on audio is not committed.
    held_from_ms: u64,
    /// Whether the client commits.
    is_manual: bool,
    limits: Limits,
}

impl InputBuffer {
    pub(super) fn new(state: &AppState, config: &SessionConfig, limits: Limits) -> Result<Self, Refusal> {
        let format = config.input_format;
        let mut buffer = Self {
            state: state.clone(),
            format,
            input: input(format)?,
            detection: None,
            detector: None,
            buffer: StreamBuffer::new(UploadMemory::of_session(state)),
            pause: None,
            waiting: Vec::new(),
            keeps_audio: true,
            held_from_ms: 0,
            is_manual: true,
            limits,
        };
        buffer.configure(config, limits)?;
        Ok(buffer)
    }

    /// Takes the settings of a session. What they do not change continues. Returns the end of a turn that they end.
    pub(super) fn configure(
        &mut self,
        config: &SessionConfig,
        limits: Limits,
    ) -> Result<Option<TurnEvent>, Refusal> {
        if self.format != config.input_format {
            self.input = input(config.input_format)?;
            self.format = config.input_format;
        }
        let longest_ms = limits.transcribed_ms.unwrap_or(u64::MAX);
        let detection = match config.turn_detection {
            Some(TurnDetection { options, .. }) => {
                Some(TurnOptions { max_turn_ms: limits.turn_ms.min(longest_ms), ..options })
            }
            None => limits.transcribed_ms.map(|max_turn_ms| TurnOptions {
                silence_duration_ms: PAUSE_MS,
                max_turn_ms,
                ..TurnOptions::default()
            }),
        };
        let mut ended = None;
        self.keeps_audio = config.kind == Kind::Realtime;
        let is_manual = config.turn_detection.is_none();
        if self.detection != detection || self.is_manual != is_manual {
            // What is kept for the padding of a turn is no audio that the client may commit.
            if !self.is_manual && self.detector.as_ref().is_some_and(|detector| !detector.is_speaking()) {
                self.drop_held();
            }
            self.pause = None;
            self.detection = detection;
            self.is_manual = is_manual;
            let now_ms = self.buffer.now_ms();
            ended = self.detector.as_mut().and_then(TurnDetector::end_turn);
            self.detector =
                detection.map(|options| TurnDetector::starting_at(&self.state.vad(), options, now_ms));
        }
        self.limits = limits;
        Ok(ended)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.now_ms() == 0
    }

    /// Length of the stream so far.
    pub(super) fn now_ms(&self) -> u64 {
        self.buffer.now_ms()
    }

    /// Length of so many bytes.
    pub(super) fn ms_of(&self, bytes: usize) -> u64 {
        bytes as u64 * 1_000 / (self.format.encoding.sample_bytes() as u64 * u64::from(self.format.rate_hz))
    }

    /// Adds audio, and tells the turns that begin and end in it.
    ///
    /// # Errors
    /// Turns are committed by the client, and more is not committed than may be, or than there is memory for.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Heard, Refusal> {
        if self.is_manual && self.held_ms() + self.ms_of(bytes.len()) > self.limits.commit_ms {
            let seconds = self.limits.commit_ms / 1_000;
            let message = format!("the input audio buffer holds at most {seconds} s; commit or clear it");
            return Err(ApiError::TooLarge(message).into());
        }
        let mut samples = Vec::new();
        self.input.push(bytes, &mut samples).map_err(audio_error)?;
        self.add(samples)
    }

    /// Hears samples up to the next pause that is decided on. Those after it wait.
    fn add(&mut self, samples: Vec<f32>) -> Result<Heard, Refusal> {
        // Without memory for it nothing is heard.
        self.buffer.reserve(self.waiting.len() + samples.len())?;
        let mut samples = match self.waiting.is_empty() {
            true => samples,
            false => {
                self.waiting.extend(samples);
                std::mem::take(&mut self.waiting)
            }
        };
        if self.pause.is_some() {
            self.waiting = samples;
            return Ok(self.heard(Vec::new(), Vec::new()));
        }
        let mut turns = Vec::new();
        if let Some(detector) = &mut self.detector {
            let (taken, pause) = detector.push_to_pause(&samples, &mut turns);
            self.pause = pause;
            self.waiting = samples.split_off(taken);
        }
        self.buffer.push(&samples)?;
        Ok(self.heard(samples, turns))
    }

    /// Length of the audio that waits for a decision.
    pub(super) fn waiting_ms(&self) -> u64 {
        self.waiting.len() as u64 * 1_000 / u64::from(RATE_HZ)
    }

    /// The pause that is to be decided on.
    pub(super) fn pause(&self) -> Option<Pause> {
        self.pause
    }

    /// The audio that the turn model hears: a WAV file.
    pub(super) fn before_pause(&self, pause: Pause) -> Result<Bytes, ApiError> {
        let end_ms = self.now_ms();
        let start_ms = pause.start_ms.max(end_ms.saturating_sub(TURN_WINDOW_MS));
        UploadMemory::wav_file(&self.state, self.buffer.part(start_ms..end_ms))
    }

    /// Takes the decision on a pause, and hears what waited. Nothing if the pause is over.
    pub(super) fn resume(&mut self, pause: Pause, ends_turn: bool) -> Heard {
        if self.pause != Some(pause) {
            return self.heard(Vec::new(), Vec::new());
        }
        self.pause = None;
        let ended = self.detector.as_mut().filter(|_| ends_turn);
        let ended = ended.and_then(|detector| detector.end_in_pause(pause));
        // What there is no memory for waits on.
        let mut heard = self.add(Vec::new()).unwrap_or_else(|_| self.heard(Vec::new(), Vec::new()));
        heard.turns.splice(..0, ended);
        heard
    }

    /// Hears all that waits, whatever may be decided.
    fn hear_waiting(&mut self, heard: &mut Heard) -> Result<(), Refusal> {
        while self.pause.take().is_some() || !self.waiting.is_empty() {
            let next = self.add(Vec::new())?;
            heard.samples.extend(next.samples);
            heard.turns.extend(next.turns);
            heard.needed_from_ms = next.needed_from_ms;
        }
        Ok(())
    }

    fn heard(&self, samples: Vec<f32>, turns: Vec<TurnEvent>) -> Heard {
        let needed_from_ms = self.detector.as_ref().map_or(0, TurnDetector::needed_from_ms);
        Heard { samples, turns, needed_from_ms }
    }

    fn held_ms(&self) -> u64 {
        self.now_ms() - self.held_from_ms
    }

    /// The audio of a turn that was told.
    pub(super) fn turn(&self, start_ms: u64, end_ms: u64) -> Result<Clip, Refusal> {
        if !self.keeps_audio {
            return Ok(Clip { file: None, duration_ms: end_ms - start_ms });
        }
        Clip::new(&self.state, self.buffer.part(start_ms..end_ms))
    }

    /// Drops what belongs to no turn that can still be reported.
    pub(super) fn trim(&mut self) {
        if let Some(detector) = self.detector.as_ref().filter(|_| !self.is_manual) {
            self.held_from_ms = self.held_from_ms.max(detector.needed_from_ms()).min(self.buffer.now_ms());
        }
        let decided_by =
            self.detector.as_ref().filter(|_| self.detection.is_some_and(|turns| turns.pause_ms.is_some()));
        let now_ms = self.buffer.now_ms();
        let needed_ms = match decided_by {
            _ if self.keeps_audio => self.held_from_ms,
            Some(detector) => {
                detector.needed_from_ms().max(now_ms.saturating_sub(TURN_WINDOW_MS)).min(now_ms)
            }
            None => now_ms,
        };
        self.buffer.forget_before(needed_ms);
    }

    /// Takes all audio that was not committed. What was held back of it, and the turn that ends, is `heard` whether or not it
    /// can be committed.
    ///
    /// # Errors
    /// It is too short.
    pub(super) fn commit(&mut self, heard: &mut Heard) -> Result<Clip, Refusal> {
        self.hear_waiting(heard)?;
        let held_ms = self.held_ms();
        if held_ms + MAX_HELD_BACK_MS < MIN_COMMIT_MS {
            return Err(too_short(held_ms));
        }
        let mut rest = Vec::new();
        self.input.finish(&mut rest).map_err(audio_error)?;
        let last = self.add(rest)?;
        heard.samples.extend(last.samples);
        heard.turns.extend(last.turns);
        heard.needed_from_ms = last.needed_from_ms;
        self.hear_waiting(heard)?;
        let held_ms = self.held_ms();
        if held_ms < MIN_COMMIT_MS {
            return Err(too_short(held_ms));
        }
        // Without memory for the clip, the audio stays.
        let clip = self.turn(self.held_from_ms, self.now_ms())?;
        heard.turns.extend(self.detector.as_mut().and_then(TurnDetector::end_turn));
        self.drop_held();
        Ok(clip)
    }

    /// Drops all audio that was not committed. The turn that ends is heard.
    pub(super) fn clear(&mut self) -> Result<Heard, Refusal> {
        self.input = input(self.format)?;
        self.pause = None;
        self.waiting.clear();
        let ended = self.detector.as_mut().and_then(TurnDetector::end_turn);
        self.drop_held();
        Ok(self.heard(Vec::new(), ended.into_iter().collect()))
    }

    fn drop_held(&mut self) {
        self.held_from_ms = self.now_ms();
        self.buffer.clear();
    }
}

/// Decodes audio that comes with an item.
pub(super) fn decode_whole(state: &AppState, bytes: &[u8], format: AudioFormat) -> Result<Clip, Refusal> {
    let mut samples = Vec::new();
    let mut input = input(format)?;
    input.push(bytes, &mut samples).map_err(audio_error)?;
    input.finish(&mut samples).map_err(audio_error)?;
    let samples: Vec<i16> = samples.iter().map(|sample| pcm::to_i16(*sample)).collect();
    Clip::new(state, &samples)
}

fn input(format: AudioFormat) -> Result<PcmInput, Refusal> {
    PcmInput::new(format.encoding, format.rate_hz).map_err(audio_error)
}

fn audio_error(error: izwi_audio::decode::DecodeError) -> Refusal {
    ApiError::Audio { param: "audio", error }.into()
}

fn too_short(held_ms: u64) -> Refusal {
    let message = format!(
        "the input audio buffer has {held_ms} ms; append at least {MIN_COMMIT_MS} ms before you commit it"
    );
    Refusal::coded("input_audio_buffer_commit_empty", None, message)
}
