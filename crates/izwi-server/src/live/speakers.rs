//! Who says what in a live stream: its audio goes to a model that tells speakers as it arrives, and words get theirs, again
//! where it hears that they are another one's.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use izwi_core::engine::speakers::{SpeakerJoin, label};
use izwi_core::engine::{
    AudioStream, Engine, EngineCoreRequest, FinishReason, Priority, Segment, StreamingOutput, Word,
};
use izwi_types::revise_turns;

use super::agreement::LiveWord;
use super::turn::{LiveEvent, Stretch};
use crate::error::ApiError;
use crate::speakers::Speakers;
use crate::upload::UploadMemory;
use crate::ws::protocol::{Job, Outcome, Protocol};

/// The most words whose speakers may still change, and turns of speakers that are kept: those of some hours.
const MAX_WORDS: usize = 20_000;
const MAX_SPEAKER_TURNS: usize = 10_000;
/// The last turns of speakers, among which that of a word is.
const RECENT: usize = 256;

/// The speakers of one stream.
#[derive(Debug)]
pub(super) struct LiveSpeakers {
    /// The model, and the speakers that are known by name.
    model: Speakers,
    chunk_ms: u32,
    priority: Priority,
    /// The audio that is heard; `None` once that has failed.
    audio: Option<AudioStream>,
    /// Where it begins in the stream, and the first speaker of it: after a pause without audio another begins.
    origin_s: f64,
    first_speaker: u32,
    /// Samples of it so far, and how far the stream is heard.
    samples: u64,
    heard_s: f64,
    /// What waits in the engine.
    memory: UploadMemory,
    is_running: bool,
    is_finished: bool,
    /// Whether there was no room for audio, so that what follows is not heard; and until that is told.
    is_cut: bool,
    fault: Option<ApiError>,
    speakers: Vec<Segment>,
    /// The embedding of each speaker so far, and the names of those that are known.
    embeddings: BTreeMap<u32, Arc<[f32]>>,
    names: BTreeMap<u32, Arc<str>>,
    turns: VecDeque<Said>,
    words: usize,
}

/// What is said in a turn.
#[derive(Debug)]
struct Said {
    turn: u64,
    words: Vec<Word>,
    told: Vec<Stretch>,
}

impl Said {
    fn end_s(&self) -> f64 {
        self.words.last().map_or(0.0, |word| word.end_s)
    }
}

impl LiveSpeakers {
    /// # Errors
    /// The model takes recordings as a whole.
    pub(super) fn new(model: Speakers, priority: Priority, memory: UploadMemory) -> Result<Self, ApiError> {
        let profile = model.engine.profile();
        let Some(&chunk_ms) = profile.info.chunks_ms.first() else {
            let message = format!(
                "model '{}' tells the speakers of whole recordings alone; leave speakers out, or name another model in it",
                profile.model
            );
            return Err(ApiError::invalid("speakers", message));
        };
        Ok(Self {
            model,
            chunk_ms,
            priority,
            audio: Some(AudioStream::new(chunk_ms)),
            origin_s: 0.0,
            first_speaker: 0,
            samples: 0,
            heard_s: 0.0,
            memory,
            is_running: false,
            is_finished: false,
            is_cut: false,
            fault: None,
            speakers: Vec::new(),
            embeddings: BTreeMap::new(),
            names: BTreeMap::new(),
            turns: VecDeque::new(),
            words: 0,
        })
    }

    /// Takes audio at 16 kHz. Where the model is so far behind that there is no room for it, no more speakers are told, and the next job is
    /// an error that says so.
    pub(super) fn hear(&mut self, samples: &[f32]) {
        let Some(audio) = self.audio.as_ref().filter(|_| !samples.is_empty() && !self.is_finished) else {
            return;
        };
        let bytes = (audio.waiting() + samples.len()) * size_of::<f32>();
        let has_room = self.memory.resize(bytes).is_ok() && audio.append(samples).is_ok();
        self.samples += samples.len() as u64;
        if !has_room {
            // What it has heard is told; it ends by itself.
            let _ = audio.finish();
            (self.is_finished, self.is_cut) = (true, true);
            let message = "too much audio waits for the model that tells speakers: none are told of what follows; send audio more \
                           slowly, or leave speakers out";
            self.fault = Some(ApiError::overloaded(message.to_owned()));
        }
    }

    /// No more audio comes.
    pub(super) fn finish(&mut self) {
        self.is_finished = true;
        if let Some(audio) = &self.audio {
            // The end always fits.
            let _ = audio.finish();
        }
    }

    /// Drops the audio that no request has taken; one that runs ends.
    pub(super) fn clear(&mut self) {
        self.finish();
        self.audio.take_if(|_| !self.is_running);
    }

    /// Whether what was heard is not told to its end, though no more comes.
    pub(super) fn is_finishing(&self) -> bool {
        self.is_finished && self.audio.is_some() && self.samples > 0
    }

    /// The request for the audio, once there is some.
    ///
    /// # Errors
    /// There was no room for audio; this is told once.
    pub(super) fn job<P: Protocol>(
        &mut self,
        reply: impl FnOnce() -> P::Reply,
    ) -> Option<Result<Job<P>, ApiError>> {
        if let Some(fault) = self.fault.take() {
            return Some(Err(fault));
        }
        let audio = self.audio.as_ref().filter(|_| !self.is_running && self.samples > 0)?;
        self.is_running = true;
        let request = EngineCoreRequest::live_diarization(audio.clone()).with_priority(self.priority);
        Some(Ok(Job::new(Engine::clone(&self.model.engine), request, reply())))
    }

    /// Takes what the model tells, which may be of words that have a speaker already.
    pub(super) fn deliver(&mut self, chunk: StreamingOutput) -> Vec<LiveEvent> {
        let mut since_s = f64::INFINITY;
        let (origin_s, first) = (self.origin_s, self.first_speaker);
        let told = chunk.segments.into_iter().map(|mut segment| {
            segment.start_s += origin_s;
            segment.end_s += origin_s;
            segment.speaker = segment.speaker.map(|speaker| first + speaker);
            if let Some((speaker, embedding)) = segment.speaker.zip(segment.embedding.take()) {
                self.embeddings.insert(speaker, embedding);
            }
            if segment.is_revision() {
                since_s = since_s.min(segment.start_s);
                self.heard_s = self.heard_s.max(segment.end_s);
            }
            segment
        });
        revise_turns(&mut self.speakers, told);
        let more = self.speakers.len().saturating_sub(MAX_SPEAKER_TURNS);
        self.speakers.drain(..more);
        let names = self.model.known.names(&self.embeddings);
        if names != self.names {
            // Whoever has another name has it in all turns.
            (self.names, since_s) = (names, f64::NEG_INFINITY);
        }
        self.told(since_s)
    }

    /// Takes the end of the request. After a pause without audio another follows.
    pub(super) fn end(&mut self, outcome: &Outcome) -> Vec<LiveEvent> {
        self.is_running = false;
        self.memory.shrink_to(0);
        let is_late =
            matches!(outcome, Outcome::Finished(finish) if finish.reason == FinishReason::TextTimeout);
        if is_late && !self.is_finished {
            self.audio = Some(AudioStream::new(self.chunk_ms));
            self.origin_s += self.samples as f64 / f64::from(crate::turns::RATE_HZ);
            let speakers = self.speakers.iter().filter_map(|turn| turn.speaker);
            self.first_speaker = speakers.max().map_or(0, |last| last + 1);
            self.samples = 0;
            return Vec::new();
        }
        self.audio = None;
        // What was said after the last that was heard has the nearest speaker.
        if outcome.is_complete() && !self.is_cut {
            self.heard_s = f64::INFINITY;
        }
        self.told(f64::NEG_INFINITY)
    }

    /// Who speaks from `start_ms` to `end_ms`, or nearest to it, as far as it is heard: counted from 0, and the name if it is known.
    pub(super) fn speaker(&self, start_ms: u64, end_ms: u64) -> Option<(u32, Option<Arc<str>>)> {
        let [start_s, end_s] = [start_ms, end_ms].map(|ms| ms as f64 / 1e3);
        let shared = |turn: &&Segment| turn.end_s.min(end_s) - turn.start_s.max(start_s);
        let turns = self.speakers.iter().rev().take(RECENT);
        let speaker = turns.max_by(|one, other| shared(one).total_cmp(&shared(other)))?.speaker?;
        Some((speaker, self.names.get(&speaker).cloned()))
    }

    /// Takes an event of the transcript; what is told of the speakers of its words.
    pub(super) fn said(&mut self, event: &LiveEvent) -> Option<LiveEvent> {
        match event {
            LiveEvent::Committed { turn, words, .. } => self.add(*turn, words.iter().map(word)),
            LiveEvent::Ended { turn, text, start_ms, end_ms, .. } if !text.is_empty() => {
                // Of a model that tells no times of words.
                if self.turns.back().is_some_and(|said| said.turn == *turn) {
                    return None;
                }
                let [start_s, end_s] = [*start_ms, *end_ms].map(|ms| ms as f64 / 1e3);
                self.add(*turn, [Word { text: text.clone(), start_s, end_s, probability: 1.0 }])
            }
            _ => None,
        }
    }

    fn add(&mut self, turn: u64, words: impl IntoIterator<Item = Word>) -> Option<LiveEvent> {
        let words: Vec<Word> = words.into_iter().collect();
        if words.is_empty() {
            return None;
        }
        self.words += words.len();
        match self.turns.back_mut().filter(|said| said.turn == turn) {
            Some(said) => said.words.extend(words),
            None => self.turns.push_back(Said { turn, words, told: Vec::new() }),
        }
        while self.words > MAX_WORDS
            && let Some(gone) = self.turns.pop_front()
        {
            self.words -= gone.words.len();
        }
        let last = self.turns.len().checked_sub(1)?;
        self.told_from(last, f64::NEG_INFINITY).pop()
    }

    /// The speakers of words that end after `since_s`, where they are others than were told.
    fn told(&mut self, since_s: f64) -> Vec<LiveEvent> {
        let from = self.turns.partition_point(|said| said.end_s() <= since_s);
        self.told_from(from, since_s)
    }

    fn told_from(&mut self, from: usize, since_s: f64) -> Vec<LiveEvent> {
        if since_s == f64::INFINITY || from >= self.turns.len() || self.speakers.is_empty() {
            return Vec::new();
        }
        let mut join = SpeakerJoin::new();
        join.add_turns(self.speakers.iter().map(|turn| Segment {
            speaker_name: turn.speaker.and_then(|speaker| self.names.get(&speaker).cloned()),
            ..turn.clone()
        }));
        let mut events = Vec::new();
        for said in self.turns.range_mut(from..) {
            let words = said.words.iter().filter(|word| word.end_s <= self.heard_s);
            let words: Vec<Word> = words.cloned().collect();
            let Some((first, last)) = words.first().zip(words.last()) else { continue };
            let (start_s, end_s) = (first.start_s, last.end_s);
            join.add([Segment { start_s, end_s, text: concatenated(&words), words, ..Segment::default() }]);
            let told: Vec<Stretch> = join.take(true).iter().filter_map(stretch).collect();
            if told != said.told {
                said.told.clone_from(&told);
                events.push(LiveEvent::Speakers { turn: said.turn, stretches: told });
            }
        }
        events
    }
}

fn concatenated(words: &[Word]) -> String {
    words.iter().map(|word| word.text.as_str()).collect()
}

fn word(word: &LiveWord) -> Word {
    let [start_s, end_s] = [word.start_ms, word.end_ms].map(|ms| ms as f64 / 1e3);
    Word { text: word.text.clone(), start_s, end_s, probability: word.probability }
}

fn stretch(segment: &Segment) -> Option<Stretch> {
    let ms = |seconds: f64| (seconds.max(0.0) * 1e3).round() as u64;
    let (start_ms, end_ms) = (ms(segment.start_s), ms(segment.end_s));
    Some(Stretch { speaker: label(segment)?, text: segment.text.clone(), start_ms, end_ms })
}
