//! The audio of a session of `/v1/listen`: turns of speech found in it, and the parts to transcribe. Knows no message.

use std::collections::VecDeque;

use bytes::Bytes;
use izwi_server::turns::{PcmEncoding, PcmInput, StreamBuffer, TurnDetector, TurnEvent, TurnOptions};
use izwi_server::upload::UploadMemory;
use izwi_server::{ApiError, AppState};

/// The most milliseconds of turns that wait to be transcribed: audio may come faster than it is played.
const MAX_WAITING_MS: u64 = 600_000;
/// Milliseconds of new audio after which a turn in progress is transcribed again.
const INTERIM_MS: u64 = 1_000;

/// A part of the stream that is to be transcribed.
pub(super) struct Part {
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
    /// As a WAV file.
    pub(super) file: Bytes,
    /// Whether it is a whole turn.
    pub(super) is_final: bool,
    /// Whether the client asked for the end of the turn.
    pub(super) from_finalize: bool,
}

/// The audio received so far, as far as it is needed.
pub(super) struct LiveAudio {
    state: AppState,
    input: PcmInput,
    detector: TurnDetector,
    buffer: StreamBuffer,
    waiting: VecDeque<Part>,
    turn_start_ms: Option<u64>,
    /// End of what the last interim transcript heard.
    interim_ms: u64,
}

impl LiveAudio {
    pub(super) fn new(
        state: &AppState,
        encoding: PcmEncoding,
        rate_hz: u32,
        turns: TurnOptions,
    ) -> Result<Self, ApiError> {
        let input = PcmInput::new(encoding, rate_hz);
        let input = input.map_err(|error| ApiError::invalid("sample_rate", error.to_string()))?;
        Ok(Self {
            state: state.clone(),
            input,
            detector: TurnDetector::new(&state.vad(), turns),
            buffer: StreamBuffer::new(UploadMemory::of_session(state)),
            waiting: VecDeque::new(),
            turn_start_ms: None,
            interim_ms: 0,
        })
    }

    /// Takes audio. Returns when turns began in it, in milliseconds from the start of the stream.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<u64>, ApiError> {
        let mut samples = Vec::new();
        let decoded = self.input.push(bytes, &mut samples);
        decoded.map_err(|error| ApiError::invalid("audio", error.to_string()))?;
        self.buffer.push(&samples)?;
        let events = self.detector.push(&samples);
        let mut starts = Vec::new();
        for event in events {
            match event {
                TurnEvent::SpeechStarted { at_ms } => {
                    self.turn_start_ms = Some(at_ms);
                    starts.push(at_ms);
                }
                TurnEvent::SpeechStopped { start_ms, end_ms } => self.end_turn(start_ms, end_ms, false)?,
            }
        }
        self.buffer.forget_before(self.detector.needed_from_ms());
        Ok(starts)
    }

    /// Ends the turn in progress, and marks the last one that waits. False if none does.
    pub(super) fn finalize(&mut self) -> Result<bool, ApiError> {
        if let Some(TurnEvent::SpeechStopped { start_ms, end_ms }) = self.detector.end_turn() {
            self.end_turn(start_ms, end_ms, true)?;
        }
        let last = self.waiting.back_mut();
        Ok(last.map(|part| part.from_finalize = true).is_some())
    }

    fn end_turn(&mut self, start_ms: u64, end_ms: u64, from_finalize: bool) -> Result<(), ApiError> {
        self.turn_start_ms = None;
        let waiting_ms: u64 = self.waiting.iter().map(|part| part.end_ms - part.start_ms).sum();
        if waiting_ms + (end_ms - start_ms) > MAX_WAITING_MS {
            let message = format!(
                "more than {} s of speech wait to be transcribed; send audio more slowly",
                MAX_WAITING_MS / 1_000
            );
            return Err(ApiError::overloaded(message));
        }
        let part = self.part(start_ms, end_ms, true, from_finalize)?;
        self.waiting.push_back(part);
        Ok(())
    }

    fn part(
        &self,
        start_ms: u64,
        end_ms: u64,
        is_final: bool,
        from_finalize: bool,
    ) -> Result<Part, ApiError> {
        let file = UploadMemory::wav_file(&self.state, self.buffer.part(start_ms..end_ms))?;
        Ok(Part { start_ms, end_ms, file, is_final, from_finalize })
    }

    /// The next whole turn.
    pub(super) fn next_turn(&mut self) -> Option<Part> {
        self.waiting.pop_front()
    }

    /// The turn in progress, once there is enough of it that no interim transcript heard.
    pub(super) fn next_interim(&mut self) -> Option<Result<Part, ApiError>> {
        let (start_ms, now_ms) = (self.turn_start_ms?, self.buffer.now_ms());
        if now_ms < self.interim_ms.max(start_ms) + INTERIM_MS {
            return None;
        }
        self.interim_ms = now_ms;
        Some(self.part(start_ms, now_ms, false, false))
    }

    /// Whether speech continues or waits to be transcribed.
    pub(super) fn has_speech(&self) -> bool {
        self.detector.is_speaking() || !self.waiting.is_empty()
    }

    /// Drops the turns that wait. False if there were none.
    pub(super) fn clear(&mut self) -> bool {
        let had_turns = !self.waiting.is_empty();
        self.waiting.clear();
        had_turns
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Length of the stream so far.
    pub(super) fn now_ms(&self) -> u64 {
        self.detector.now_ms()
    }
}
