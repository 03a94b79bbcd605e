//! The input audio buffer of a session: its turns, and the audio that is not committed. Knows no event.

use bytes::Bytes;
use izwi_audio::pcm;
use izwi_server::turns::{
    Deciding, Heard, MAX_HELD_BACK_MS, PcmInput, RATE_HZ, StreamBuffer, TurnEvent, TurnInput, TurnModel,
    TurnOptions,
};
use izwi_server::upload::UploadMemory;
use izwi_server::ws::protocol::{Job, Protocol};
use izwi_server::{ApiError, AppState};

use super::audio_format::AudioFormat;
use super::config::{Kind, SessionConfig};
use super::refusal::Refusal;
use super::turn_detection::TurnDetection;

/// The shortest audio that can be committed, as in the hosted API.
const MIN_COMMIT_MS: u64 = 100;
/// A pause that is left out of the transcript of audio that the client commits.
const PAUSE_MS: u64 = 2_000;

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
    /// Finds the turns, those of the transcripts alone where the client commits.
    input: TurnInput,
    detection: Option<TurnOptions>,
    /// What is not committed.
    buffer: StreamBuffer,
    /// Whether the buffer keeps it.
    keeps_audio: bool,
    /// From where on audio is not committed.
    held_from_ms: u64,
    /// Whether the client commits.
    is_manual: bool,
    limits: Limits,
}

impl InputBuffer {
    pub(super) fn new(
        state: &AppState,
        config: &SessionConfig,
        limits: Limits,
        turn_model: Option<TurnModel>,
    ) -> Result<Self, Refusal> {
        let format = config.input_format;
        let mut buffer = Self {
            state: state.clone(),
            input: TurnInput::new(format.encoding, format.rate_hz)?,
            detection: None,
            buffer: StreamBuffer::new(UploadMemory::of_session(state)),
            keeps_audio: true,
            held_from_ms: 0,
            is_manual: true,
            limits,
        };
        buffer.configure(config, limits, turn_model)?;
        Ok(buffer)
    }

    /// Takes the settings of a session. What they do not change continues. Returns the end of a turn that they end.
    pub(super) fn configure(
        &mut self,
        config: &SessionConfig,
        limits: Limits,
        turn_model: Option<TurnModel>,
    ) -> Result<Option<TurnEvent>, Refusal> {
        let format = (config.input_format.encoding, config.input_format.rate_hz);
        if self.input.format() != format {
            self.input.set_format(format.0, format.1)?;
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
            if !self.is_manual && self.input.has_turns() && !self.input.is_speaking() {
                self.drop_held();
            }
            self.detection = detection;
            self.is_manual = is_manual;
            ended = self.input.set_turns(&self.state.vad(), detection, turn_model);
        } else {
            self.input.set_turn_model(turn_model);
        }
        self.limits = limits;
        Ok(ended)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.now_ms() == 0
    }

    /// Length of the stream so far.
    pub(super) fn now_ms(&self) -> u64 {
        self.input.now_ms()
    }

    /// Length of so many bytes.
    pub(super) fn ms_of(&self, bytes: usize) -> u64 {
        self.input.ms_of(bytes)
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
        // Without memory for it nothing is heard.
        self.reserve(self.ms_of(bytes.len()) + MAX_HELD_BACK_MS)?;
        let heard = self.input.push(bytes)?;
        self.keep(&heard)?;
        Ok(heard)
    }

    /// Makes room for what waits and so many milliseconds more.
    fn reserve(&mut self, ms: u64) -> Result<(), ApiError> {
        let samples = (self.input.waiting_ms() + ms) * u64::from(RATE_HZ) / 1_000;
        self.buffer.reserve(samples as usize)
    }

    fn keep(&mut self, heard: &Heard) -> Result<(), ApiError> {
        self.buffer.push(&heard.samples)
    }

    /// As [`TurnInput::decide`].
    pub(super) fn decide<P: Protocol>(&mut self, wrap: impl FnOnce(Deciding) -> P::Reply) -> Option<Job<P>> {
        self.input.decide(wrap)
    }

    /// Takes the decision on a pause, and hears what waited. What there is no memory for waits on.
    pub(super) fn resume(&mut self, deciding: &Deciding) -> Heard {
        let mut heard = self.input.decided(deciding);
        if self.reserve(1).is_ok() {
            let next = self.input.hear_on();
            if let Err(error) = self.keep(&next) {
                tracing::debug!(%error, "audio is lost");
            }
            heard.append(next);
        }
        heard
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
        let now_ms = self.now_ms();
        if self.input.has_turns() && !self.is_manual {
            self.held_from_ms = self.held_from_ms.max(self.input.needed_from_ms()).min(now_ms);
        }
        self.buffer.forget_before(if self.keeps_audio { self.held_from_ms } else { now_ms });
    }

    /// Takes all audio that was not committed. What was held back of it, and the turn that ends, is `heard` whether or not it
    /// can be committed.
    ///
    /// # Errors
    /// It is too short.
    pub(super) fn commit(&mut self, heard: &mut Heard) -> Result<Clip, Refusal> {
        self.reserve(MAX_HELD_BACK_MS)?;
        self.input.hear_waiting(heard);
        let kept = heard.samples.len();
        self.keep(heard)?;
        let held_ms = self.held_ms();
        if held_ms + MAX_HELD_BACK_MS < MIN_COMMIT_MS {
            return Err(too_short(held_ms));
        }
        self.input.finish(heard)?;
        self.buffer.push(&heard.samples[kept..])?;
        let held_ms = self.held_ms();
        if held_ms < MIN_COMMIT_MS {
            return Err(too_short(held_ms));
        }
        // Without memory for the clip, the audio stays.
        let clip = self.turn(self.held_from_ms, self.now_ms())?;
        heard.append(self.input.cut_turn());
        self.drop_held();
        Ok(clip)
    }

    /// Drops all audio that was not committed. The turn that ends is heard.
    pub(super) fn clear(&mut self) -> Result<Heard, Refusal> {
        let heard = self.input.clear()?;
        self.drop_held();
        Ok(heard)
    }

    fn drop_held(&mut self) {
        self.held_from_ms = self.now_ms();
        self.buffer.clear();
    }
}

/// Decodes audio that comes with an item.
pub(super) fn decode_whole(state: &AppState, bytes: &[u8], format: AudioFormat) -> Result<Clip, Refusal> {
    let mut samples = Vec::new();
    let mut input = PcmInput::new(format.encoding, format.rate_hz).map_err(audio_error)?;
    input.push(bytes, &mut samples).map_err(audio_error)?;
    input.finish(&mut samples).map_err(audio_error)?;
    let samples: Vec<i16> = samples.iter().map(|sample| pcm::to_i16(*sample)).collect();
    Clip::new(state, &samples)
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
