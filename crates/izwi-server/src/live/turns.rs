//! The turns of a live stream, and what the engine is asked for next.
//!
//! A model that takes audio as it arrives gets the audio of a turn in one request. Others transcribe a window again for each
//! hop of new audio, or later where the machine is slower than that, or the whole turn once it has ended. A stream that ends a
//! turn while an earlier one is transcribed keeps both, within a limit.

use std::collections::VecDeque;
use std::time::Duration;

use izwi_core::engine::AudioStream;

use super::agreement::LiveWord;
use super::turn::{
    LiveEvent, LiveTurn, MAX_PAUSE_MS, MAX_WINDOW_MS, MIN_WINDOW_MS, Rest, Transcribed, concatenated,
};
use crate::error::ApiError;
use crate::turns::{Heard, MAX_HELD_BACK_MS, StreamBuffer, TurnEvent};
use crate::upload::UploadMemory;

/// The most milliseconds of audio that wait to be transcribed: audio may come faster than it is played.
const MAX_WAITING_MS: u64 = 600_000;
/// The most of it that waits in the engine.
const MAX_HANDED_OVER_MS: u64 = 120_000;
/// New audio before the next step, relative to the time that the last step took: other work has the rest.
const STEP_SHARE: f64 = 0.6;
/// What 16-bit samples are divided by, as in files.
const FULL_SCALE: f32 = 32_768.0;

/// How turns become text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// A window is transcribed again for each `hop_ms` of new audio.
    Windows { hop_ms: u64 },
    /// The model takes audio as it arrives, in chunks of `chunk_ms`.
    Chunks { chunk_ms: u32 },
    /// A turn is transcribed once, when it has ended.
    Whole,
}

/// Audio to transcribe.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Window {
    /// Mono samples at 16 kHz.
    pub(super) samples: Vec<i16>,
    /// From the start of the stream.
    pub(super) start_ms: u64,
    pub(super) end_ms: u64,
    /// What its transcript begins with.
    pub(super) decided: String,
    /// What precedes it.
    pub(super) context: String,
    /// Whether its words are uncertain, so that a better transcript is worth more time.
    pub(super) is_thorough: bool,
}

/// What the engine is asked for.
#[derive(Debug, PartialEq)]
pub(super) enum Ask {
    /// The transcript of a window.
    Window(Window),
    /// The transcript of audio that is handed over as it arrives, the first of it from `start_ms` of the stream on.
    Stream { audio: AudioStream, start_ms: u64 },
    /// The transcript of a turn that has ended.
    Whole { samples: Vec<i16>, start_ms: u64 },
}

/// The turns of one stream.
#[derive(Debug)]
pub(super) struct LiveTurns {
    buffer: StreamBuffer,
    method: Method,
    /// The audio that the engine transcribes as it arrives, and what of it waits there.
    open: Option<AudioStream>,
    waiting: UploadMemory,
    /// Turns that are not transcribed to their end, in order. Those after the first wait.
    turns: VecDeque<LiveTurn>,
    next_turn: u64,
    /// What the next turn follows.
    rest: Rest,
    /// Until where in the stream audio belongs to no turn any more.
    needed_from_ms: u64,
    /// Time that the last step took.
    step: Duration,
    /// Whether a window or a turn is being transcribed.
    is_busy: bool,
    /// What the client was told last.
    partial: String,
}

impl LiveTurns {
    /// The turns of a stream from `origin_ms` on, whose audio counts in `memory`, with `prompt` as if it preceded them.
    pub(super) fn new(method: Method, prompt: String, memory: UploadMemory, origin_ms: u64) -> Self {
        Self {
            waiting: memory.fresh(),
            buffer: StreamBuffer::starting_at(memory, origin_ms),
            method,
            open: None,
            turns: VecDeque::new(),
            next_turn: 0,
            rest: Rest::of_text(prompt),
            needed_from_ms: origin_ms,
            step: Duration::ZERO,
            is_busy: false,
            partial: String::new(),
        }
    }

    /// Makes room for audio that comes.
    ///
    /// # Errors
    /// More audio waits than may, or than there is memory for.
    pub(super) fn admit(&mut self, ms: u64) -> Result<(), ApiError> {
        let waiting = self.open.as_ref().map_or(0, AudioStream::waiting);
        if (self.buffer.samples().len() + waiting) as u64 / 16 > MAX_WAITING_MS {
            let message =
                format!("more than {} s of speech wait; send audio more slowly", MAX_WAITING_MS / 1_000);
            return Err(ApiError::overloaded(message));
        }
        self.buffer.reserve((ms + MAX_HELD_BACK_MS) as usize * 16)
    }

    /// Takes audio.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn push(&mut self, heard: &Heard) -> Result<Vec<LiveEvent>, ApiError> {
        self.buffer.push(&heard.samples)?;
        let mut events = Vec::new();
        for event in &heard.turns {
            events.extend(self.turn_event(event));
            if !self.is_busy {
                self.end_if_transcribed(&mut events);
            }
        }
        self.needed_from_ms = heard.needed_from_ms;
        self.hand_over_if_possible();
        self.forget();
        Ok(events)
    }

    /// Without memory for it, audio waits here.
    fn hand_over_if_possible(&mut self) {
        if let Err(error) = self.hand_over() {
            tracing::debug!(%error, "no audio is handed over");
        }
    }

    /// Hands the new audio of the first turn over to the engine, if that takes it as it arrives.
    fn hand_over(&mut self) -> Result<(), ApiError> {
        let (Some(audio), Some(turn)) = (&self.open, self.turns.front_mut()) else { return Ok(()) };
        let last_ms = turn.end_ms.unwrap_or_else(|| self.buffer.now_ms());
        let room_ms = MAX_HANDED_OVER_MS.saturating_sub(audio.waiting() as u64 / 16);
        let until_ms = last_ms.min(turn.window_ms + room_ms);
        let new = self.buffer.part(turn.window_ms..until_ms);
        self.waiting.resize((audio.waiting() + new.len()) * size_of::<f32>())?;
        let samples: Vec<f32> = new.iter().map(|&sample| f32::from(sample) / FULL_SCALE).collect();
        let appended = audio.append(&samples);
        // A request that has ended takes no more, and another one follows it.
        if appended.is_ok() {
            (turn.window_ms, turn.heard_ms) = (until_ms, until_ms);
        }
        self.waiting.shrink_to(audio.waiting() * size_of::<f32>());
        if turn.end_ms == Some(until_ms) && appended.is_ok() {
            // The end fits where the audio did.
            let _ = audio.finish();
        }
        Ok(())
    }

    /// What the engine is to be asked for next, once there is enough new audio.
    ///
    /// # Errors
    /// There is no memory to hand audio over.
    pub(super) fn next(&mut self) -> Option<Result<Ask, ApiError>> {
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
            Method::Whole => {
                let turn = self.turns.front().filter(|_| !self.is_busy)?;
                let (start_ms, end_ms) = (turn.start_ms, turn.end_ms?);
                self.is_busy = true;
                Some(Ok(Ask::Whole { samples: self.buffer.part(start_ms..end_ms).to_vec(), start_ms }))
            }
        }
    }

    /// Takes the next text of audio that is not transcribed again, with the words that are known of it, and what may follow.
    pub(super) fn hear(
        &mut self,
        text: String,
        words: Vec<LiveWord>,
        partial: String,
        events: &mut Vec<LiveEvent>,
    ) {
        let Some(front) = self.turns.front_mut() else { return };
        if !text.is_empty() {
            events.push(front.commit_text(text, words));
        }
        if partial != self.partial {
            let words = if partial.is_empty() { Vec::new() } else { vec![front.open_word(partial.clone())] };
            events.push(LiveEvent::Partial { turn: front.number, words });
            self.partial = partial;
        }
        self.hand_over_if_possible();
    }

    /// The request for a turn has ended, or for as much of it as was handed over.
    pub(super) fn close(&mut self, events: &mut Vec<LiveEvent>) {
        self.open = None;
        self.is_busy = false;
        self.waiting.shrink_to(0);
        let is_whole = |turn: &LiveTurn| {
            turn.end_ms.is_some_and(|end_ms| turn.window_ms >= end_ms || self.method == Method::Whole)
        };
        if self.turns.front().is_some_and(is_whole) {
            self.end_front(events);
        }
        self.forget();
    }

    fn turn_event(&mut self, event: &TurnEvent) -> Option<LiveEvent> {
        match *event {
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
            TurnEvent::SpeechStopped { end_ms, speech_end_ms, .. } => {
                // Of a turn that began before this stream nothing is known.
                if let Some(turn) = self.turns.back_mut().filter(|turn| turn.end_ms.is_none()) {
                    (turn.end_ms, turn.speech_end_ms) = (Some(end_ms), speech_end_ms);
                }
                None
            }
            TurnEvent::Lull { at_ms } => {
                if let Some(turn) = self.turns.back_mut() {
                    (turn.lull_ms, turn.is_lull) = (at_ms, true);
                }
                None
            }
            TurnEvent::Resumed => {
                if let Some(turn) = self.turns.back_mut() {
                    turn.is_lull = false;
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
        // The transcript of what may be all is ready when the turn ends.
        let is_lull = turn.heard_ms < turn.lull_ms;
        self.is_busy = is_due || is_rest || is_lull;
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
    pub(super) fn take(
        &mut self,
        transcribed: Transcribed,
        words: Option<Vec<LiveWord>>,
        step: Duration,
        events: &mut Vec<LiveEvent>,
    ) {
        (self.step, self.is_busy) = (step, false);
        let Some(front) = self.turns.front_mut() else { return };
        let number = front.number;
        let (end_ms, new) = (transcribed.end_ms, front.take(words, transcribed));
        if !new.is_empty() {
            events.push(front.commit(new));
        }
        let partial = concatenated(front.partial());
        if front.end_ms == Some(end_ms) {
            self.end_front(events);
        } else if !self.end_if_transcribed(events)
            && partial != self.partial
            && let Some(front) = self.turns.front()
        {
            events.push(LiveEvent::Partial { turn: number, words: front.partial().to_vec() });
            self.partial = partial;
        }
        self.forget();
    }

    /// Ends the first turn if it is over and needs no further transcript.
    fn end_if_transcribed(&mut self, events: &mut Vec<LiveEvent>) -> bool {
        let Some(front) = self.turns.front_mut().filter(|turn| turn.is_transcribed()) else { return false };
        let rest = front.finish();
        if !rest.is_empty() {
            events.push(front.commit(rest));
        }
        self.end_front(events);
        true
    }

    /// Ends the first turn, which is transcribed.
    fn end_front(&mut self, events: &mut Vec<LiveEvent>) {
        let Some(ended) = self.turns.pop_front() else { return };
        let (text, start_ms) = (ended.text().to_owned(), ended.start_ms);
        let end_ms = ended.end_ms.unwrap_or(ended.heard_ms);
        events.push(LiveEvent::Ended { turn: ended.number, text, language: None, start_ms, end_ms });
        let rest = ended.into_rest();
        match self.turns.front_mut() {
            Some(next) => next.follow(rest),
            None => self.rest = rest,
        }
        self.partial.clear();
    }

    /// Drops the audio that no window needs.
    fn forget(&mut self) {
        let needed_ms = self.needed_from_ms;
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
    pub(super) fn clear(&mut self) -> bool {
        let had_turns = !self.turns.is_empty();
        self.turns.clear();
        if let Some(audio) = self.open.take() {
            // What was handed over ends, unheard.
            let _ = audio.finish();
        }
        self.waiting.shrink_to(0);
        self.is_busy = false;
        had_turns
    }

    /// What is said in the turn in progress if it ends in the lull that lasts: once, when that is transcribed.
    pub(super) fn take_lull_text(&mut self) -> Option<String> {
        let turn = self.turns.front_mut()?;
        let text = turn.text_in_lull()?;
        turn.is_lull = false;
        Some(text)
    }

    /// How many turns have begun.
    pub(super) fn begun(&self) -> u64 {
        self.next_turn
    }

    /// How many turns are transcribed to their end. Others wait or continue.
    pub(super) fn ended(&self) -> u64 {
        self.turns.front().map_or(self.next_turn, |turn| turn.number)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use izwi_audio::decode::{DecodeLimits, decode};
    use izwi_audio::pcm;
    use izwi_audio::vad::VadModel;
    use izwi_core::engine::MemoryBudget;

    use super::*;
    use crate::turns::{PcmEncoding, RATE_HZ, TurnInput, TurnOptions};

    fn turns_of(
        method: Method,
        silence_duration_ms: u64,
        memory_kib: u64,
    ) -> (impl FnMut(&[f32]) -> Heard, LiveTurns) {
        let options = TurnOptions { silence_duration_ms, max_turn_ms: u64::MAX, ..TurnOptions::default() };
        let format = (PcmEncoding::S16Le, RATE_HZ);
        let mut input = TurnInput::with_turns(format, &VadModel::default(), options, None).unwrap();
        let memory = UploadMemory::of(&MemoryBudget::new(Some(memory_kib << 10)), 0);
        let hear = move |samples: &[f32]| input.push(&bytes_of(samples)).unwrap();
        (hear, LiveTurns::new(method, String::new(), memory, 0))
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
        let (mut hear, mut turns) = turns_of(Method::Chunks { chunk_ms: 80 }, 10_000, 1_500);
        let samples = speech("jfk.wav");
        let (mut asked, mut refused) = (Vec::new(), None);
        for piece in samples.chunks(RATE_HZ as usize / 10).cycle().take(400) {
            if let Err(error) = turns.push(&hear(piece)) {
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

    /// The events of a recording whose windows all have one word, its end, the end of the last window, and what was said in its
    /// lulls.
    fn transcribed(hop_ms: u64) -> (Vec<LiveEvent>, u64, u64, Vec<String>) {
        let mut samples = speech("sense_and_sensibility_01_austen_64kb-0880.wav");
        let end_ms = samples.len() as u64 / 16;
        samples.resize(samples.len() + 2 * RATE_HZ as usize, 0.0);
        let (mut hear, mut turns) = turns_of(Method::Windows { hop_ms }, 500, 1_024);
        let (mut events, mut last_ms, mut lulls) = (Vec::new(), 0, Vec::new());
        for piece in samples.chunks(RATE_HZ as usize / 20) {
            events.extend(turns.push(&hear(piece)).unwrap());
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
            assert_eq!(turns.take_lull_text(), None, "it is not transcribed");
            let (end_ms, is_thorough) = (window.end_ms, window.is_thorough);
            let transcribed = Transcribed { end_ms, is_thorough, decides: true };
            turns.take(transcribed, Some(words), Duration::ZERO, &mut events);
            lulls.extend(turns.take_lull_text());
            assert_eq!(turns.take_lull_text(), None, "once");
        }
        assert_eq!((turns.begun(), turns.ended()), (1, 1));
        (events, end_ms, last_ms, lulls)
    }

    #[test]
    fn a_turn_ends_with_its_silence_where_all_words_are_transcribed() {
        // With long hops, the last window is that of the lull before the end.
        for hop_ms in [200, 5_000] {
            let (events, speech_ms, last_ms, lulls) = transcribed(hop_ms);
            assert!(!lulls.is_empty() && lulls.iter().all(|text| text == "So"), "{lulls:?}");
            let Some(LiveEvent::Ended { text, end_ms, .. }) = events.last() else { panic!("{events:?}") };
            assert_eq!(text, "So");
            assert!(last_ms < *end_ms, "the last window ends at {last_ms} ms, the turn at {end_ms} ms");
            assert!(hop_ms < 1_000 || last_ms < speech_ms + 200, "{last_ms} ms of {speech_ms} ms");
        }
    }
}
