//! Turns of a speaker in a live stream of audio: where they begin and end, and the audio of each.
//!
//! Common to the sessions that take streamed audio. Knows samples and milliseconds; knows no frame.

mod decision;
mod input;

use std::ops::Range;
use std::time::Duration;

use izwi_audio::pcm;
use izwi_audio::vad::{StreamingVad, StreamingVadOptions, VadEvent, VadModel};
use izwi_types::{Eagerness, TurnEnds, excerpt};

use crate::error::ApiError;
use crate::upload::UploadMemory;

pub use decision::{Deciding, TurnModel};
pub use input::TurnInput;
pub use izwi_audio::pcm_format::PcmEncoding;
pub use izwi_audio::pcm_input::{PcmInput, RATE_HZ};

/// Samples of a millisecond.
const SAMPLES_PER_MS: u64 = RATE_HZ as u64 / 1_000;
/// The most that the resampler of live audio holds back.
pub const MAX_HELD_BACK_MS: u64 = 250;
/// Silence in which what was said so far may be all, so that it is worth a transcript.
pub(crate) const LULL_MS: u64 = 96;
/// Silence after which a model is asked whether a turn is complete: what it was trained with.
const DECISION_PAUSE_MS: u64 = 200;
/// Samples that a buffer has room for at least, once it had so many: a second.
const KEPT_SAMPLES: usize = RATE_HZ as usize;

/// Parameters of turn detection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TurnOptions {
    /// Score at which speech begins, 0..=1.
    pub threshold: f32,
    /// Audio before the first speech that belongs to a turn.
    pub prefix_padding_ms: u64,
    /// Silence that ends a turn.
    pub silence_duration_ms: u64,
    /// A turn this long ends even without silence. What follows is another turn.
    pub max_turn_ms: u64,
    /// Silence after which it is asked whether the turn is complete: [`TurnDetector::push_to_pause`]. `None` if silence alone
    /// ends a turn.
    pub pause_ms: Option<u64>,
}

impl Default for TurnOptions {
    /// The values of OpenAI's server VAD.
    fn default() -> Self {
        Self {
            threshold: 0.5,
            prefix_padding_ms: 300,
            silence_duration_ms: 500,
            max_turn_ms: 30_000,
            pause_ms: None,
        }
    }
}

impl TurnOptions {
    /// The same, with ends of turns that are found like this.
    #[must_use]
    pub fn with_ends(self, ends: TurnEnds) -> Self {
        let longest_ms = ends.eagerness.map(Eagerness::longest_silence_ms);
        let silence_duration_ms =
            ends.silence_ms.or(longest_ms).unwrap_or(Self::default().silence_duration_ms);
        let pause_ms = ends.eagerness.map(|_| DECISION_PAUSE_MS);
        Self { silence_duration_ms, pause_ms, ..self }
    }
}

/// Reads how ends of turns are found, from the fields `turn_detection` and `eagerness` of a client.
///
/// # Errors
/// One of them is unknown, or there is an eagerness without a model to have it.
pub(crate) fn read_ends(
    kind: Option<&str>,
    eagerness: Option<&str>,
    silence_ms: Option<u64>,
) -> Result<TurnEnds, ApiError> {
    let [by_silence, by_model] = TurnEnds::TYPES;
    let refused = |param: &str, message: String| Err(ApiError::invalid(param, message));
    let is_semantic = match kind {
        None => false,
        Some(kind) if kind == by_silence => false,
        Some(kind) if kind == by_model => true,
        Some(other) => {
            let shown = excerpt(other);
            let message = format!("turn_detection is '{shown}'; use {by_silence} or {by_model}");
            return refused("turn_detection", message);
        }
    };
    let eagerness = match eagerness.map(|name| (name, Eagerness::parse(name))) {
        Some(_) if !is_semantic => {
            let message = format!("eagerness is only for {by_model}; set turn_detection to that");
            return refused("eagerness", message);
        }
        Some((name, None)) => {
            let (shown, names) = (excerpt(name), Eagerness::CHOICE);
            return refused("eagerness", format!("eagerness is '{shown}'; use {names}"));
        }
        Some((_, Some(eagerness))) => eagerness,
        None => Eagerness::Auto,
    };
    Ok(TurnEnds { eagerness: Some(eagerness).filter(|_| is_semantic), silence_ms })
}

/// A change of turn. Times are from the start of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEvent {
    /// A turn begins.
    SpeechStarted {
        /// Where the turn begins, its padding included, not before the end of the last one.
        at_ms: u64,
    },
    /// A turn ends.
    SpeechStopped {
        /// As told when it started.
        start_ms: u64,
        /// Where the turn ends, the silence included.
        end_ms: u64,
        /// Where its speech ends: before the silence that ended it, or where the turn was cut.
        speech_end_ms: u64,
    },
    /// A turn may be about to end: nothing was said for a moment.
    Lull {
        /// Until where audio was heard.
        at_ms: u64,
    },
    /// The turn goes on after a lull.
    Resumed,
}

/// A pause in a turn, at the end of what was heard. Times are from the start of the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// Where the turn begins.
    pub start_ms: u64,
    /// Where its speech ends for now.
    pub speech_end_ms: u64,
}

/// The detector of one stream of mono samples at 16 kHz. Its state is a few kilobytes, whatever the length of the stream.
#[derive(Debug)]
pub struct TurnDetector {
    options: TurnOptions,
    vad: StreamingVad,
    /// Where in the stream the detector began to listen.
    origin_ms: u64,
    /// Samples that were pushed.
    samples: u64,
    /// Start of the turn in progress.
    turn_start_ms: Option<u64>,
    last_end_ms: u64,
}

impl TurnDetector {
    /// The detector of a stream.
    pub fn new(vad: &VadModel, options: TurnOptions) -> Self {
        Self::starting_at(vad, options, 0)
    }

    /// The detector of the rest of a stream, from `origin_ms` on.
    pub fn starting_at(vad: &VadModel, options: TurnOptions, origin_ms: u64) -> Self {
        let vad = StreamingVad::new(
            vad,
            &StreamingVadOptions {
                threshold: options.threshold,
                min_silence: Duration::from_millis(options.silence_duration_ms),
                pauses: options.pause_ms.into_iter().chain([LULL_MS]).map(Duration::from_millis).collect(),
                ..StreamingVadOptions::default()
            },
        );
        Self { options, vad, origin_ms, samples: 0, turn_start_ms: None, last_end_ms: origin_ms }
    }

    /// Adds samples, and tells the turns that begin and end in them. Any slicing gives the same events.
    pub fn push(&mut self, mut samples: &[f32]) -> Vec<TurnEvent> {
        let mut events = Vec::new();
        while !samples.is_empty() {
            let (taken, _) = self.push_to_pause(samples, &mut events);
            samples = &samples[taken..];
        }
        events
    }

    /// As [`Self::push`], up to the next pause: appends to `events`, and returns how many samples were taken and the pause after
    /// them. The turn goes on unless [`Self::end_turn`] is called.
    pub fn push_to_pause(
        &mut self,
        mut samples: &[f32],
        events: &mut Vec<TurnEvent>,
    ) -> (usize, Option<Pause>) {
        let (count, mut found) = (samples.len(), Vec::new());
        let frame = self.vad.frame_samples();
        while !samples.is_empty() {
            // Frame by frame, so that a turn that is too long ends at the same sample in any slicing.
            let frame_rest = frame - (self.samples % frame as u64) as usize;
            let (piece, rest) = samples.split_at(samples.len().min(frame_rest));
            samples = rest;
            self.samples += piece.len() as u64;
            self.vad.push(piece, &mut found);
            match found.pop() {
                Some(VadEvent::Started { start, .. }) => {
                    let at_ms = self.padded(start);
                    self.turn_start_ms = Some(at_ms);
                    events.push(TurnEvent::SpeechStarted { at_ms });
                }
                Some(VadEvent::Stopped { end, .. }) => {
                    let speech_end_ms = self.origin_ms + end / SAMPLES_PER_MS;
                    events.extend(self.stop(speech_end_ms));
                }
                Some(VadEvent::Resumed) => events.push(TurnEvent::Resumed),
                Some(VadEvent::Paused { length, .. })
                    if self.options.pause_ms.map(Duration::from_millis) != Some(length) =>
                {
                    events.push(TurnEvent::Lull { at_ms: self.now_ms() });
                }
                Some(VadEvent::Paused { end, .. }) => {
                    let speech_end_ms = self.origin_ms + end / SAMPLES_PER_MS;
                    let pause = self.turn_start_ms.map(|start_ms| Pause { start_ms, speech_end_ms });
                    if pause.is_some() {
                        return (count - samples.len(), pause);
                    }
                }
                None => {}
            }
            let is_too_long =
                |start_ms: u64| self.now_ms().saturating_sub(start_ms) >= self.options.max_turn_ms;
            if piece.len() == frame_rest && self.turn_start_ms.is_some_and(is_too_long) {
                events.extend(self.end_turn());
            }
        }
        (count, None)
    }

    /// Ends the turn in progress, if one does, without waiting for silence.
    pub fn end_turn(&mut self) -> Option<TurnEvent> {
        self.stop(self.now_ms())
    }

    /// Ends the turn in progress, if one does, in this pause of it.
    pub fn end_in_pause(&mut self, pause: Pause) -> Option<TurnEvent> {
        self.stop(pause.speech_end_ms)
    }

    /// Ends the turn in progress, whose speech has ended.
    fn stop(&mut self, speech_end_ms: u64) -> Option<TurnEvent> {
        self.vad.end_span();
        let start_ms = self.turn_start_ms.take()?;
        let end_ms = self.now_ms();
        self.last_end_ms = end_ms;
        Some(TurnEvent::SpeechStopped { start_ms, end_ms, speech_end_ms })
    }

    /// Whether a turn continues.
    pub fn is_speaking(&self) -> bool {
        self.turn_start_ms.is_some()
    }

    /// Length of the stream so far.
    pub fn now_ms(&self) -> u64 {
        self.origin_ms + self.samples / SAMPLES_PER_MS
    }

    /// From where on audio belongs to the turn in progress, or to one that is reported later.
    pub fn needed_from_ms(&self) -> u64 {
        self.turn_start_ms.unwrap_or_else(|| self.padded(self.vad.next_start()))
    }

    /// Where a turn begins whose first speech is at this sample of the detector.
    fn padded(&self, sample: u64) -> u64 {
        let speech_ms = self.origin_ms + sample / SAMPLES_PER_MS;
        speech_ms.saturating_sub(self.options.prefix_padding_ms).max(self.last_end_ms)
    }
}

/// What a piece of a stream has.
#[derive(Debug, Default)]
pub struct Heard {
    /// Mono samples at 16 kHz.
    pub samples: Vec<f32>,
    /// Turns that begin and end in it.
    pub turns: Vec<TurnEvent>,
    /// From where on audio belongs to the turn in progress, or to one that is reported later.
    pub needed_from_ms: u64,
}

impl Heard {
    /// Adds what was heard next.
    pub fn append(&mut self, next: Self) {
        self.samples.extend(next.samples);
        self.turns.extend(next.turns);
        self.needed_from_ms = next.needed_from_ms;
    }
}

/// The latest part of a stream of samples at 16 kHz, addressed by milliseconds from the start of the stream. It is kept as
/// 16-bit samples and counts in the memory of all recordings.
#[derive(Debug)]
pub struct StreamBuffer {
    samples: Vec<i16>,
    /// Position of the first sample in the stream.
    first: u64,
    memory: UploadMemory,
}

impl StreamBuffer {
    /// An empty buffer whose samples count in `memory`.
    pub fn new(memory: UploadMemory) -> Self {
        Self::starting_at(memory, 0)
    }

    /// As [`Self::new`], for the rest of a stream from `origin_ms` on.
    pub fn starting_at(memory: UploadMemory, origin_ms: u64) -> Self {
        Self { samples: Vec::new(), first: origin_ms * SAMPLES_PER_MS, memory }
    }

    /// Appends samples.
    ///
    /// # Errors
    /// There is no memory for them; nothing is appended.
    pub fn push(&mut self, samples: &[f32]) -> Result<(), ApiError> {
        self.reserve(samples.len())?;
        self.samples.extend(samples.iter().map(|sample| pcm::to_i16(*sample)));
        Ok(())
    }

    /// Makes room for so many samples.
    ///
    /// # Errors
    /// There is no memory for them.
    pub fn reserve(&mut self, count: usize) -> Result<(), ApiError> {
        let length = self.samples.len() + count;
        if length > self.samples.capacity() {
            let capacity = length + length / 4;
            self.memory.resize(capacity * size_of::<i16>())?;
            self.samples.reserve_exact(capacity - self.samples.len());
        }
        Ok(())
    }

    /// Samples that are kept.
    pub fn samples(&self) -> &[i16] {
        &self.samples
    }

    /// Length of the stream so far.
    pub fn now_ms(&self) -> u64 {
        (self.first + self.samples.len() as u64) / SAMPLES_PER_MS
    }

    /// A part, as far as it is kept.
    pub fn part(&self, ms: Range<u64>) -> &[i16] {
        let index = |ms: u64| {
            let at = (ms * SAMPLES_PER_MS).saturating_sub(self.first);
            usize::try_from(at).unwrap_or(usize::MAX).min(self.samples.len())
        };
        let (from, to) = (index(ms.start), index(ms.end));
        self.samples.get(from..to).unwrap_or_default()
    }

    /// Drops all samples that are kept.
    pub fn clear(&mut self) {
        self.first += self.samples.len() as u64;
        self.samples = Vec::new();
        self.memory.shrink_to(0);
    }

    /// Drops what is before `ms`.
    pub fn forget_before(&mut self, ms: u64) {
        let before = (ms * SAMPLES_PER_MS).saturating_sub(self.first).min(self.samples.len() as u64);
        self.samples.drain(..before as usize);
        self.first += before;
        // A long turn leaves no memory behind.
        if self.samples.capacity() > 4 * self.samples.len().max(KEPT_SAMPLES) {
            self.samples.shrink_to(2 * self.samples.len());
            self.memory.shrink_to(self.samples.capacity() * size_of::<i16>());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use izwi_audio::decode::{DecodeLimits, decode};
    use izwi_core::engine::MemoryBudget;
    use proptest::prelude::*;

    use super::*;

    /// An empty buffer with so many KiB of memory.
    fn buffer_of(kib: u64) -> StreamBuffer {
        StreamBuffer::new(UploadMemory::of(&MemoryBudget::new(Some(kib << 10)), 0))
    }

    fn to_i16(samples: &[f32]) -> Vec<i16> {
        samples.iter().map(|sample| pcm::to_i16(*sample)).collect()
    }

    fn recording(name: &str) -> Vec<f32> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/speech").join(name);
        let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
        decode(std::fs::read(path).unwrap(), RATE_HZ, &limits).unwrap()
    }

    /// White noise of a level.
    fn noise(ms: u64, rms: f32) -> Vec<f32> {
        let mut state = 1u64;
        let uniform = |state: &mut u64| {
            *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (*state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        };
        (0..ms * SAMPLES_PER_MS).map(|_| uniform(&mut state) * rms * 1.73).collect()
    }

    /// Turns of a stream, in pieces of `step` samples.
    fn turns(stream: &[f32], options: TurnOptions, step: usize) -> Vec<(u64, u64)> {
        let mut detector = TurnDetector::new(&VadModel::default(), options);
        let events = stream.chunks(step).flat_map(|piece| detector.push(piece));
        let is_within = |event: &TurnEvent| matches!(event, TurnEvent::Lull { .. } | TurnEvent::Resumed);
        let events: Vec<_> = events.filter(|event| !is_within(event)).collect();
        let pairs = events.chunks_exact(2).map(|pair| match pair {
            [TurnEvent::SpeechStarted { at_ms }, TurnEvent::SpeechStopped { start_ms, end_ms, .. }] => {
                assert_eq!(at_ms, start_ms);
                (*start_ms, *end_ms)
            }
            other => panic!("{other:?}"),
        });
        let rest = events.chunks_exact(2).remainder();
        assert!(matches!(rest, [] | [TurnEvent::SpeechStarted { .. }]), "{events:?}");
        pairs.collect()
    }

    /// Three sentences with noise of a level between them, and where they are.
    fn conversation(gain: f32, noise_rms: f32) -> (Vec<f32>, Vec<(u64, u64)>) {
        let names = ["0880", "0930", "0890"];
        let (mut stream, mut at) = (noise(1_500, noise_rms), Vec::new());
        for name in names {
            let speech = recording(&format!("sense_and_sensibility_01_austen_64kb-{name}.wav"));
            let start = stream.len() as u64 / SAMPLES_PER_MS;
            let background = noise(speech.len() as u64 / SAMPLES_PER_MS + 1, noise_rms);
            stream.extend(speech.iter().zip(background).map(|(speech, noise)| speech * gain + noise));
            at.push((start, stream.len() as u64 / SAMPLES_PER_MS));
            stream.extend(noise(1_500, noise_rms));
        }
        (stream, at)
    }

    #[test]
    fn sentences_are_turns_at_any_level_and_in_any_slices() {
        for (gain, noise_rms) in [(1.0, 0.0), (1.0, 0.002), (0.1, 0.000_5), (0.03, 0.0), (4.0, 0.001)] {
            let (stream, sentences) = conversation(gain, noise_rms);
            let found = turns(&stream, TurnOptions::default(), 320);
            assert_eq!(
                found.len(),
                sentences.len(),
                "gain {gain}, noise {noise_rms}: {found:?} of {sentences:?}"
            );
            for ((from, to), (start, end)) in found.iter().zip(&sentences) {
                let (early, late) = (start.saturating_sub(*from), to.abs_diff(*end));
                assert!(*from < start + 350 && early < 500 && late < 800, "{found:?} of {sentences:?}");
            }
            for step in [1, 777, stream.len()] {
                assert_eq!(turns(&stream, TurnOptions::default(), step), found, "pieces of {step}");
            }
        }
    }

    #[test]
    fn noise_is_no_turn() {
        for rms in [0.0, 0.000_1, 0.001, 0.01, 0.05, 0.2] {
            assert_eq!(turns(&noise(20_000, rms), TurnOptions::default(), 320), [], "noise of {rms}");
        }
        let hum: Vec<f32> = (0..320_000).map(|i| (i as f32 * 50.0 * 0.000_392_7).sin() * 0.05).collect();
        assert_eq!(turns(&hum, TurnOptions::default(), 320), []);
    }

    #[test]
    fn a_pause_shorter_than_the_silence_joins_and_a_longer_one_divides() {
        let (stream, sentences) = conversation(1.0, 0.001);
        let of = |silence_duration_ms| {
            turns(&stream, TurnOptions { silence_duration_ms, ..TurnOptions::default() }, 160)
        };
        assert_eq!(of(2_500), [], "the turn goes on at the end of the stream");
        assert!(of(200).len() >= sentences.len());
        let padded = turns(&stream, TurnOptions { prefix_padding_ms: 0, ..TurnOptions::default() }, 160);
        let unpadded = turns(&stream, TurnOptions::default(), 160);
        assert_eq!(padded[1].0, unpadded[1].0 + 300);
    }

    #[test]
    fn a_lull_is_told_before_a_turn_ends_and_beside_a_pause() {
        let (stream, sentences) = conversation(1.0, 0.001);
        let options = TurnOptions { pause_ms: Some(200), ..TurnOptions::default() };
        let lulls = |step| {
            let mut detector = TurnDetector::new(&VadModel::default(), options);
            let events: Vec<_> = stream.chunks(step).flat_map(|piece| detector.push(piece)).collect();
            let is_lull = |event: &&[TurnEvent]| {
                matches!(event, [TurnEvent::Lull { at_ms }, TurnEvent::SpeechStopped { speech_end_ms, .. }]
                    if *at_ms == speech_end_ms + LULL_MS)
            };
            assert_eq!(events.windows(2).filter(is_lull).count(), sentences.len(), "{events:?}");
            events
        };
        assert_eq!(lulls(160), lulls(stream.len()));
    }

    #[test]
    fn a_turn_that_is_too_long_is_divided_without_a_gap() {
        let stream = recording("jfk.wav");
        let options = TurnOptions { max_turn_ms: 2_000, ..TurnOptions::default() };
        let mut detector = TurnDetector::new(&VadModel::default(), options);
        let mut events = detector.push(&stream);
        events.extend(detector.end_turn());
        let ends: Vec<(u64, u64)> = events
            .iter()
            .filter_map(|event| match event {
                TurnEvent::SpeechStopped { start_ms, end_ms, .. } => Some((*start_ms, *end_ms)),
                TurnEvent::SpeechStarted { .. } | TurnEvent::Lull { .. } | TurnEvent::Resumed => None,
            })
            .collect();
        assert!(ends.len() >= 4, "{ends:?}");
        assert!(ends.iter().all(|(start, end)| end - start < 2_016), "{ends:?}");
        assert!(ends.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ends:?}");
    }

    #[test]
    fn what_is_needed_contains_every_turn_and_stays_short_in_silence() {
        let (stream, _) = conversation(1.0, 0.001);
        let mut detector = TurnDetector::starting_at(&VadModel::default(), TurnOptions::default(), 5_000);
        let mut buffer = StreamBuffer { first: 5_000 * SAMPLES_PER_MS, ..buffer_of(1_024) };
        let mut turns = 0;
        for piece in stream.chunks(320) {
            buffer.push(piece).unwrap();
            for event in detector.push(piece) {
                if let TurnEvent::SpeechStopped { start_ms, end_ms, .. } = event {
                    let part = buffer.part(start_ms..end_ms);
                    assert_eq!(part.len() as u64, (end_ms - start_ms) * SAMPLES_PER_MS);
                    let from = ((start_ms - 5_000) * SAMPLES_PER_MS) as usize;
                    assert_eq!(part, to_i16(&stream[from..from + part.len()]));
                    turns += 1;
                }
            }
            buffer.forget_before(detector.needed_from_ms());
            let most = if detector.is_speaking() { 8_000 } else { 4_000 };
            assert!(buffer.samples().len() as u64 <= most * SAMPLES_PER_MS);
        }
        assert_eq!((turns, buffer.now_ms()), (3, detector.now_ms()));
    }

    #[test]
    fn a_buffer_takes_what_its_memory_allows_and_gives_it_back() {
        let memory = MemoryBudget::new(Some(200_000));
        let mut buffer = StreamBuffer::new(UploadMemory::of(&memory, 0));
        // Two seconds are 64,000 bytes, and the buffer takes a quarter more.
        buffer.push(&[0.5; 32_000]).unwrap();
        assert_eq!(memory.recordings(), 80_000);
        buffer.push(&[0.5; 8_000]).unwrap();
        assert_eq!(memory.recordings(), 80_000, "it has room");
        assert_eq!(buffer.push(&[0.5; 80_000]).unwrap_err().code(), "overloaded");
        assert_eq!((buffer.now_ms(), memory.recordings()), (2_500, 80_000), "nothing of it was taken");
        buffer.forget_before(2_490);
        assert_eq!((buffer.samples().len(), memory.recordings()), (160, 80_000), "a second is kept");
        buffer.push(&[0.5; 60_000]).unwrap();
        assert_eq!(memory.recordings(), 150_400);
        buffer.forget_before(6_240);
        assert_eq!((buffer.samples().len(), memory.recordings()), (160, 640), "a long turn is over");
        buffer.clear();
        assert_eq!((buffer.now_ms(), memory.recordings()), (6_250, 0));
    }

    proptest! {
        #[test]
        fn parts_of_a_buffer_are_parts_of_the_stream(
            pieces in prop::collection::vec((0usize..400, 0u64..100), 0..20),
            from in 0u64..200,
            to in 0u64..200,
        ) {
            let mut buffer = buffer_of(1_024);
            let (mut stream, mut forgotten) = (Vec::new(), 0);
            for (length, forget_ms) in pieces {
                let piece: Vec<f32> = (0..length).map(|i| (stream.len() + i) as f32 / 32_767.0).collect();
                buffer.push(&piece).unwrap();
                stream.extend(to_i16(&piece));
                buffer.forget_before(forget_ms);
                forgotten = forgotten.max((forget_ms as usize * 16).min(stream.len()));
            }
            let index = |ms: u64| (ms as usize * 16).clamp(forgotten, stream.len());
            let expected = stream.get(index(from)..index(to)).unwrap_or_default();
            prop_assert_eq!(buffer.part(from..to), expected);
            prop_assert_eq!(buffer.samples(), &stream[forgotten..]);
            buffer.clear();
            prop_assert_eq!((buffer.samples().len(), buffer.now_ms()), (0, stream.len() as u64 / 16));
        }
    }
}
