//! The input audio buffer of a session: decoding, turn detection, and the audio that is not committed. Knows no event.

use bytes::Bytes;
use izwi_audio::pcm;
use izwi_server::turns::{PcmInput, RATE_HZ, StreamBuffer, TurnDetector, TurnEvent, TurnOptions};
use izwi_server::upload::UploadMemory;
use izwi_server::{ApiError, AppState};

use super::config::{AudioFormat, SessionConfig};
use super::refusal::Refusal;

/// The shortest audio that can be committed, as in the hosted API.
const MIN_COMMIT_MS: u64 = 100;

/// Audio of one turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Clip {
    /// A WAV file, 16-bit mono at 16 kHz.
    pub(super) file: Bytes,
    pub(super) duration_ms: u64,
}

impl Clip {
    /// The file counts in the memory of all recordings until nothing holds it.
    fn new(state: &AppState, samples: &[i16]) -> Result<Self, Refusal> {
        let file = UploadMemory::wav_file(state, samples)?;
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
}

#[derive(Debug)]
pub(super) struct InputBuffer {
    state: AppState,
    format: AudioFormat,
    input: PcmInput,
    detection: Option<TurnOptions>,
    detector: Option<TurnDetector>,
    buffer: StreamBuffer,
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
            limits,
        };
        buffer.configure(config, limits)?;
        Ok(buffer)
    }

    /// Takes the settings of a session. What they do not change continues.
    pub(super) fn configure(&mut self, config: &SessionConfig, limits: Limits) -> Result<(), Refusal> {
        if self.format != config.input_format {
            self.input = input(config.input_format)?;
            self.format = config.input_format;
        }
        let options = |options: TurnOptions| TurnOptions { max_turn_ms: limits.turn_ms, ..options };
        let detection = config.turn_detection.map(|detection| options(detection.options));
        if self.detection != detection {
            // What is kept for the padding of a turn is no audio that the client may commit.
            if self.detector.as_ref().is_some_and(|detector| !detector.is_speaking()) {
                self.buffer.clear();
            }
            self.detection = detection;
            let now_ms = self.buffer.now_ms();
            self.detector =
                detection.map(|options| TurnDetector::starting_at(&self.state.vad(), options, now_ms));
        }
        self.limits = limits;
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.buffer.now_ms() == 0
    }

    /// Adds audio, and tells the turns that begin and end in it.
    ///
    /// # Errors
    /// Turns are committed by the client, and more is not committed than may be, or than there is memory for.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<TurnEvent>, Refusal> {
        let added_ms = bytes.len() as u64 * 1_000
            / (self.format.encoding.sample_bytes() as u64 * u64::from(self.format.rate_hz));
        if self.detector.is_none() && self.held_ms() + added_ms > self.limits.commit_ms {
            let seconds = self.limits.commit_ms / 1_000;
            let message = format!("the input audio buffer holds at most {seconds} s; commit or clear it");
            return Err(ApiError::TooLarge(message).into());
        }
        let mut samples = Vec::new();
        self.input.push(bytes, &mut samples).map_err(audio_error)?;
        self.buffer.push(&samples)?;
        Ok(self.detector.as_mut().map(|detector| detector.push(&samples)).unwrap_or_default())
    }

    fn held_ms(&self) -> u64 {
        self.buffer.samples().len() as u64 * 1_000 / u64::from(RATE_HZ)
    }

    /// The audio of a turn that was told.
    pub(super) fn turn(&self, start_ms: u64, end_ms: u64) -> Result<Clip, Refusal> {
        Clip::new(&self.state, self.buffer.part(start_ms..end_ms))
    }

    /// Drops what belongs to no turn that can still be reported.
    pub(super) fn trim(&mut self) {
        if let Some(detector) = &self.detector {
            self.buffer.forget_before(detector.needed_from_ms());
        }
    }

    /// Takes all audio that was not committed.
    ///
    /// # Errors
    /// It is too short.
    pub(super) fn commit(&mut self) -> Result<Clip, Refusal> {
        let held_ms = self.held_ms();
        if held_ms + MAX_HELD_BACK_MS < MIN_COMMIT_MS {
            return Err(too_short(held_ms));
        }
        let mut rest = Vec::new();
        self.input.finish(&mut rest).map_err(audio_error)?;
        self.buffer.push(&rest)?;
        if let Some(detector) = &mut self.detector {
            detector.push(&rest);
            detector.end_turn();
        }
        let held_ms = self.held_ms();
        if held_ms < MIN_COMMIT_MS {
            return Err(too_short(held_ms));
        }
        // Without memory for the clip, the audio stays.
        let clip = Clip::new(&self.state, self.buffer.samples())?;
        self.buffer.clear();
        Ok(clip)
    }

    pub(super) fn clear(&mut self) -> Result<(), Refusal> {
        self.input = input(self.format)?;
        if let Some(detector) = &mut self.detector {
            detector.end_turn();
        }
        self.buffer.clear();
        Ok(())
    }
}

/// The most that the resampler holds back.
const MAX_HELD_BACK_MS: u64 = 250;

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
