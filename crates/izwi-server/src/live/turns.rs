//! The turns of a live stream, and what the engine is asked for next.
//!
//! A model that takes audio as it arrives gets the audio of a turn in one request. Others transcribe a window again for each
//! hop of new audio, or later where the machine is slower than that. A stream that ends a turn while an earlier one is
//! transcribed keeps both, within a limit.

use std::collections::VecDeque;
use std::time::Duration;

use izwi_audio::vad::VadModel;
use izwi_core::engine::AudioStream;

use super::agreement::LiveWord;
use super::turn::{LiveEvent, LiveTurn, MAX_PAUSE_MS, MAX_WINDOW_MS, MIN_WINDOW_MS, Rest};
use crate::error::ApiError;
use crate::turns::{PcmEncoding, PcmInput, StreamBuffer, TurnDetector, TurnEvent, TurnOptions};
use crate::upload::UploadMemory;

/// The most milliseconds of audio that wait to be transcribed: audio may come faster than it is played.
const MAX_WAITING_MS: u64 = 120_000;
/// New audio before the next step, relative to the time that the last step took: other work has the rest.
const STEP_SHARE: f64 = 0.6;
/// What 16-bit samples are divided by, as in files.
const FULL_SCALE: f32 = 32_768.0;

/// How turns become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    /// A window is transcribed again for each `hop_ms` of new audio.
    Windows { hop_ms: u64 },
    /// The model takes audio as it arrives, in chunks of `chunk_ms`.
    Chunks { chunk_ms: u32 },
}

impl Method {
    /// Milliseconds of new audio from one text to the next.
    pub(crate) fn latency_ms(self) -> u64 {
        match self {
            Self::Windows { hop_ms } => hop_ms,
            Self::Chunks { chunk_ms } => chunk_ms.into(),
        }
    }
}

/// How live audio is read.
#[derive(Debug, Clone)]
pub(crate) struct LiveOptions {
    pub(crate) encoding: PcmEncoding,
    pub(crate) rate_hz: u32,
    pub(crate) method: Method,
    pub(crate) turns: TurnOptions,
    /// Context as if it preceded the audio.
    pub(crate) prompt: String,
}

/// Audio to transcribe.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Window {
    /// Mono samples at 16 kHz.
    pub(crate) samples: Vec<i16>,
    /// From the start of the stream.
    pub(crate) start_ms: u64,
    pub(crate) end_ms: u64,
    /// What its transcript begins with.
    pub(crate) decided: String,
    /// What precedes it.
    pub(crate) context: String,
    /// Whether its words are uncertain, so that a better transcript is worth more time.
    pub(crate) is_thorough: bool,
}

/// What the engine is asked for.
#[derive(Debug, PartialEq)]
pub(crate) enum Ask {
    /// The transcript of a window.
    Window(Window),
    /// The transcript of audio that is handed over as it arrives, the first of it from `start_ms` of the stream on.
    Stream { audio: AudioStream, start_ms: u64 },
}

/// The turns of one stream.
#[derive(Debug)]
pub(crate) struct LiveTurns {
    input: PcmInput,
    detector: TurnDetector,
    buffer: StreamBuffer,
    method: Method,
    /// The audio that the engine transcribes as it arrives, and what of it waits there.
    open: Option<AudioStream>,
    waiting: UploadMemory,
    silence_ms: u64,
    /// Turns that are not transcribed to their end, in order. Those after the first wait.
    turns: VecDeque<LiveTurn>,
    next_turn: u64,
    /// What the next turn follows.
    rest: Rest,
    /// Time that the last step took.
    step: Duration,
    /// Whether a window is being transcribed.
    is_busy: bool,
    /// What the client was told last.
    partial: String,
}

impl LiveTurns {
    /// The turns of a stream whose audio counts in `memory`.
    ///
    /// # Errors
    /// The rate is out of range.
    pub(crate) fn new(vad: &VadModel, options: LiveOptions, memory: UploadMemory) -> Result<Self, ApiError> {
        let input = PcmInput::new(options.encoding, options.rate_hz);
        let input = input.map_err(|error| ApiError::invalid("sample_rate", error.to_string()))?;
        Ok(Self {
            input,
            detector: TurnDetector::new(vad, options.turns),
            waiting: memory.fresh(),
            buffer: StreamBuffer::new(memory),
            method: options.method,
            open: None,
            silence_ms: options.turns.silence_duration_ms,
            turns: VecDeque::new(),
            next_turn: 0,
            rest: Rest::of_text(options.prompt),
            step: Duration::ZERO,
            is_busy: false,
            partial: String::new(),
        })
    }

    /// Takes audio.
    ///
    /// # Errors
    /// It is no audio of the encoding, or more audio waits than may, or than there is memory for.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<Vec<LiveEvent>, ApiError> {
        self.hand_over()?;
        let waiting = self.open.as_ref().map_or(0, AudioStream::waiting);
        if (self.buffer.samples().len() + waiting) as u64 / 16 > MAX_WAITING_MS {
            let message =
                format!("more than {} s of speech wait; send audio more slowly", MAX_WAITING_MS / 1_000);
            return Err(ApiError::overloaded(message));
        }
        let mut samples = Vec::new();
        let decoded = self.input.push(bytes, &mut samples);
        decoded.map_err(|error| ApiError::invalid("audio", error.to_string()))?;
        self.buffer.push(&samples)?;
        let mut events = Vec::new();
        for event in self.detector.push(&samples) {
            events.extend(self.turn_event(event));
            if !self.is_busy && self.turns.front().is_some_and(LiveTurn::is_transcribed) {
                self.end_front(&mut events);
            }
        }
        let handed_over = self.hand_over();
        self.forget();
        handed_over.map(|()| events)
    }

    /// Ends the turn in progress, if one does, without waiting for silence.
    ///
    /// # Errors
    /// There is no memory to hand over its last audio.
    pub(crate) fn end_turn(&mut self) -> Result<(), ApiError> {
        if let Some(event) = self.detector.end_turn() {
            self.turn_event(event);
            if let Some(turn) = self.turns.back_mut() {
                turn.speech_end_ms = u64::MAX;
            }
        }
        self.hand_over()
    }

    /// Hands the new audio of the first turn over to the engine, if that takes it as it arrives.
    fn hand_over(&mut self) -> Result<(), ApiError> {
        let (Some(audio), Some(turn)) = (&self.open, self.turns.front_mut()) else { return Ok(()) };
        let until_ms = turn.end_ms.unwrap_or_else(|| self.buffer.now_ms());
        let new = self.buffer.part(turn.window_ms..until_ms);
        self.waiting.resize((audio.waiting() + new.len()) * size_of::<f32>())?;
        let samples: Vec<f32> = new.iter().map(|&sample| f32::from(sample) / FULL_SCALE).collect();
        let appended = audio.append(&samples);
        // A request that has ended takes no more, and another one follows it.
        if appended.is_ok() {
            (turn.window_ms, turn.heard_ms) = (until_ms, until_ms);
        }
        self.waiting.shrink_to(audio.waiting() * size_of::<f32>());
        if turn.end_ms.is_some() && appended.is_ok() {
            // The end fits where the audio did.
            let _ = audio.finish();
        }
        Ok(())
    }

    /// What the engine is to be asked for next, once there is enough new audio.
    ///
    /// # Errors
    /// There is no memory to hand audio over.
    pub(crate) fn next(&mut self) -> Option<Result<Ask, ApiError>> {
        match self.method {
            Method::Windows { hop_ms } => self.next_window(hop_ms).map(|window| Ok(Ask::Window(window))),
            Method::Chunks { chunk_ms } => {
                let turn = self.turns.front().filter(|_| self.open.is_none())?;
                let start_ms = turn.window_ms;
                // After a failure it begins again with audio enough for a word.
                let least_ms = if turn.heard_ms > turn.start_ms { MIN_WINDOW_MS } else { 0 };
                if turn.end_ms.is_none() && self.buffer.now_ms() < start_ms + least_ms {
                    return None;
                }
                let audio = self.open.insert(AudioStream::new(chunk_ms)).clone();
                Some(self.hand_over().map(|()| Ask::Stream { audio, start_ms }))
            }
        }
    }

    /// Takes the next words of the audio that was handed over, and what may follow them.
    pub(crate) fn hear(&mut self, words: Vec<LiveWord>, partial: String, events: &mut Vec<LiveEvent>) {
        let Some(front) = self.turns.front_mut() else { return };
        let number = front.number;
        if !words.is_empty() {
            events.push(front.commit(words));
        }
        if partial != self.partial {
            self.partial.clone_from(&partial);
            events.push(LiveEvent::Partial { turn: number, text: partial });
        }
    }

    /// The request for the audio that was handed over has ended.
    pub(crate) fn close(&mut self, events: &mut Vec<LiveEvent>) {
        self.open = None;
        self.waiting.shrink_to(0);
        if self.turns.front().is_some_and(|turn| turn.end_ms.is_some()) {
            self.end_front(events);
        }
        self.forget();
    }

    fn turn_event(&mut self, event: TurnEvent) -> Option<LiveEvent> {
        match event {
            TurnEvent::SpeechStarted { at_ms } => {
                let turn = self.next_turn;
                self.next_turn += 1;
                let mut new = LiveTurn::new(turn, at_ms);
                // What precedes a turn that waits is known once it begins.
                if self.turns.is_empty() {
                    new.follow(std::mem::take(&mut self.rest));
                }
                self.turns.push_back(new);
                Some(LiveEvent::Started { turn, at_ms })
            }
            TurnEvent::SpeechStopped { end_ms, .. } => {
                if let Some(turn) = self.turns.back_mut() {
                    turn.end_ms = Some(end_ms);
                    turn.speech_end_ms = end_ms.saturating_sub(self.silence_ms);
                }
                None
            }
        }
    }

    /// The next window. [`Self::take`] takes its words before another is asked for.
    fn next_window(&mut self, hop_ms: u64) -> Option<Window> {
        let turn = self.turns.front()?;
        let until_ms = turn.end_ms.unwrap_or_else(|| self.buffer.now_ms());
        let end_ms = until_ms.min(turn.window_ms + MAX_WINDOW_MS);
        let step_ms = (self.step.as_secs_f64() * 1e3 / STEP_SHARE) as u64;
        let is_due =
            end_ms >= turn.heard_ms + hop_ms.max(step_ms) && end_ms >= turn.window_ms + MIN_WINDOW_MS;
        let is_rest = turn.end_ms == Some(end_ms) || end_ms < until_ms;
        self.is_busy = is_due || is_rest;
        self.is_busy.then(|| Window {
            samples: self.buffer.part(turn.window_ms..end_ms).to_vec(),
            start_ms: turn.window_ms,
            end_ms,
            decided: turn.decided(),
            context: turn.context().to_owned(),
            is_thorough: turn.wants_thorough(end_ms),
        })
    }

    /// Takes the words of a window up to `end_ms` after what was decided of it, and the time that the step took. `None` for
    /// a window without a transcript.
    pub(crate) fn take(
        &mut self,
        (end_ms, is_thorough): (u64, bool),
        words: Option<Vec<LiveWord>>,
        step: Duration,
        events: &mut Vec<LiveEvent>,
    ) {
        (self.step, self.is_busy) = (step, false);
        let Some(front) = self.turns.front_mut() else { return };
        let number = front.number;
        let new = front.take(words, end_ms, is_thorough);
        if !new.is_empty() {
            events.push(front.commit(new));
        }
        let partial = front.partial();
        if front.end_ms == Some(end_ms) || front.is_transcribed() {
            self.end_front(events);
        } else if partial != self.partial {
            self.partial.clone_from(&partial);
            events.push(LiveEvent::Partial { turn: number, text: partial });
        }
        self.forget();
    }

    /// Ends the first turn, which is transcribed.
    fn end_front(&mut self, events: &mut Vec<LiveEvent>) {
        let Some(ended) = self.turns.pop_front() else { return };
        let end_ms = ended.end_ms.unwrap_or(ended.heard_ms);
        events.push(LiveEvent::Ended { turn: ended.number, start_ms: ended.start_ms, end_ms });
        let rest = ended.into_rest();
        match self.turns.front_mut() {
            Some(next) => next.follow(rest),
            None => self.rest = rest,
        }
        self.partial.clear();
    }

    /// Drops the audio that no window needs.
    fn forget(&mut self) {
        let needed_ms = self.detector.needed_from_ms();
        if needed_ms > self.rest.end_ms + MAX_PAUSE_MS {
            self.rest.forget_window();
        }
        // A window that no turn can continue any more ends where it was forgotten. The turn in progress is the first, or
        // begins after it.
        self.buffer.forget_before(match self.turns.front() {
            Some(turn) => turn.window_ms,
            None if needed_ms <= self.rest.end_ms + MAX_PAUSE_MS => self.rest.window_ms.min(needed_ms),
            None => needed_ms,
        });
    }

    /// Drops the turns that wait. False if there were none.
    pub(crate) fn clear(&mut self) -> bool {
        let had_turns = !self.turns.is_empty();
        self.detector.end_turn();
        self.turns.clear();
        if let Some(audio) = self.open.take() {
            // What was handed over ends, unheard.
            let _ = audio.finish();
        }
        self.waiting.shrink_to(0);
        self.is_busy = false;
        had_turns
    }

    /// Length of the stream so far.
    pub(crate) fn now_ms(&self) -> u64 {
        self.detector.now_ms()
    }

    /// Whether a turn continues or is not transcribed to its end.
    pub(crate) fn has_speech(&self) -> bool {
        !self.turns.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use izwi_audio::decode::{DecodeLimits, decode};
    use izwi_audio::pcm;
    use tokio::sync::Semaphore;

    use super::*;
    use crate::turns::RATE_HZ;

    fn turns_of(method: Method, silence_duration_ms: u64, memory_kib: usize) -> LiveTurns {
        let turns = TurnOptions { silence_duration_ms, max_turn_ms: u64::MAX, ..TurnOptions::default() };
        let options = LiveOptions {
            encoding: PcmEncoding::S16Le,
            rate_hz: RATE_HZ,
            method,
            turns,
            prompt: String::new(),
        };
        let memory = UploadMemory::of(Arc::new(Semaphore::new(memory_kib)), 0);
        LiveTurns::new(&VadModel::default(), options, memory).unwrap()
    }

    fn speech(name: &str) -> Vec<f32> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/speech").join(name);
        let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
        decode(std::fs::read(path).unwrap(), RATE_HZ, &limits).unwrap()
    }

    fn bytes_of(samples: &[f32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        pcm::write_i16_le(samples, &mut bytes);
        bytes
    }

    #[test]
    fn audio_that_is_handed_over_is_kept_no_longer_and_counts_as_long_as_it_waits() {
        let mut turns = turns_of(Method::Chunks { chunk_ms: 80 }, 10_000, 1_500);
        let samples = speech("jfk.wav");
        let (mut asked, mut refused) = (Vec::new(), None);
        for piece in samples.chunks(RATE_HZ as usize / 10).cycle().take(400) {
            if let Err(error) = turns.push(&bytes_of(piece)) {
                refused = Some(error);
                break;
            }
            asked.extend(turns.next().map(Result::unwrap));
            assert!(turns.open.is_none() || turns.buffer.samples().len() <= RATE_HZ as usize);
        }
        // No engine takes it: what waits is all of the turn.
        assert_eq!(refused.unwrap().code(), "overloaded");
        let [Ask::Stream { audio, start_ms }] = &asked[..] else { panic!("{asked:?}") };
        let handed_over = audio.waiting() as u64 / 16;
        assert!((20_000..30_000).contains(&handed_over) && *start_ms < 1_000, "{handed_over} ms");
        let mut events = Vec::new();
        turns.close(&mut events);
        assert_eq!((events, turns.waiting.take(1_000 << 10).is_ok()), (Vec::new(), true), "the turn goes on");
    }

    #[test]
    fn a_turn_ends_with_its_silence_where_all_words_are_decided() {
        let mut samples = speech("sense_and_sensibility_01_austen_64kb-0880.wav");
        samples.resize(samples.len() + 2 * RATE_HZ as usize, 0.0);
        let mut turns = turns_of(Method::Windows { hop_ms: 200 }, 500, 1_024);
        let (mut events, mut last_ms) = (Vec::new(), 0);
        for piece in samples.chunks(RATE_HZ as usize / 20) {
            events.extend(turns.push(&bytes_of(piece)).unwrap());
            let Some(ask) = turns.next() else { continue };
            let Ask::Window(window) = ask.unwrap() else { panic!("a window") };
            last_ms = window.end_ms;
            // One word, whatever is said.
            let word = LiveWord {
                text: " So".to_owned(),
                start_ms: window.start_ms,
                end_ms: window.start_ms + 300,
                probability: 1.0,
                certainty: 1.0,
            };
            let words = if window.decided.is_empty() { vec![word] } else { Vec::new() };
            turns.take((window.end_ms, window.is_thorough), Some(words), Duration::ZERO, &mut events);
        }
        let Some(LiveEvent::Ended { end_ms, .. }) = events.last() else { panic!("{events:?}") };
        let committed = events.iter().filter_map(|event| match event {
            LiveEvent::Committed { words, .. } => Some(words.iter().map(|word| word.text.as_str())),
            _ => None,
        });
        assert_eq!(committed.flatten().collect::<Vec<_>>(), [" So"]);
        assert!(last_ms < *end_ms, "the last window ends at {last_ms} ms, the turn at {end_ms} ms");
        assert!(!turns.has_speech());
    }
}
