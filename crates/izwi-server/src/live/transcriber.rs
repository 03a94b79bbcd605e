//! The live transcriber of one stream: audio and turns in, jobs for the engine out, and events of what they say.

use std::sync::Arc;

use izwi_core::engine::{Engine, LiveWindow, StreamingOutput};
use tokio::time::Instant;

use super::agreement::LiveWord;
use super::rewriting::Rewriting;
use super::settings::{Checked, LiveSettings, max_turn_ms, method};
use super::speakers::LiveSpeakers;
use super::step::{Step, live_word, words_behind};
use super::turn::{LiveEvent, Transcribed};
use super::turns::{Ask, LiveTurns, Method, Window};
use crate::error::ApiError;
use crate::speakers::Speakers;
use crate::state::AppState;
use crate::turns::{Deciding, Heard, TurnInput};
use crate::upload::UploadMemory;
use crate::ws::protocol::{Job, Outcome, Protocol};

/// The shortest audio in which a language is detected for the rest of its turn: in less, much English speech is taken for
/// Japanese or Chinese.
const SETTLED_MS: u64 = 3_000;

/// A transcript in progress.
#[derive(Debug)]
pub struct LiveReply(Reply);

impl LiveReply {
    /// Whether its audio is transcribed again, should it fail.
    pub fn is_repeated(&self) -> bool {
        matches!(self.0, Reply::Window(_))
    }
}

#[derive(Debug)]
enum Reply {
    Window(Step),
    /// Of a turn, or of audio that is handed over as it arrives, from `start_ms` on.
    Once {
        start_ms: u64,
    },
    /// Who speaks.
    Speakers,
}

/// Transcribes one stream of audio while it is spoken.
#[derive(Debug)]
pub struct LiveTranscriber {
    state: AppState,
    engine: Engine,
    settings: Checked,
    turns: LiveTurns,
    rewriting: Rewriting,
    /// Of a stream whose speakers are told.
    speakers: Option<LiveSpeakers>,
    /// Language of the turn in progress, as last detected, and the milliseconds of audio that it was detected in.
    detected: Option<(String, u64)>,
    /// Whether a job runs.
    is_running: bool,
}

impl LiveTranscriber {
    /// A transcriber of a stream from `origin_ms` on.
    ///
    /// # Errors
    /// The model does not support a setting; the error names it.
    pub fn new(
        state: &AppState,
        engine: &Engine,
        settings: LiveSettings,
        origin_ms: u64,
    ) -> Result<Self, ApiError> {
        let settings = Checked::check(settings, engine)?;
        let memory = UploadMemory::of_session(state);
        let turns = LiveTurns::new(settings.method, settings.prompt.clone(), memory, origin_ms);
        let rewriting = Rewriting::new(settings.written);
        let (state, engine) = (state.clone(), engine.clone());
        let speakers = None;
        Ok(Self { state, engine, settings, turns, rewriting, speakers, detected: None, is_running: false })
    }

    /// Tells speakers by a model, too, and those by name whom it knows.
    ///
    /// # Errors
    /// It does not take audio as it arrives.
    pub fn with_speakers(mut self, model: Speakers) -> Result<Self, ApiError> {
        let memory = UploadMemory::of_session(&self.state);
        self.speakers = Some(LiveSpeakers::new(model, self.settings.priority, memory)?);
        Ok(self)
    }

    /// The longest turn that a model transcribes live, in milliseconds.
    pub fn max_turn_ms(engine: &Engine) -> u64 {
        method(None, engine).map_or(0, |method| max_turn_ms(method, engine))
    }

    /// The model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Milliseconds of new audio from one text to the next; `None` if a turn is transcribed once it has ended.
    pub fn latency_ms(&self) -> Option<u64> {
        match self.settings.method {
            Method::Windows { hop_ms } => Some(hop_ms),
            Method::Chunks { chunk_ms } => Some(chunk_ms.into()),
            Method::Whole => None,
        }
    }

    /// Takes audio as it arrives.
    ///
    /// # Errors
    /// It is no audio of the encoding, or more audio waits than may, or than there is memory for: nothing is taken then.
    pub fn push(&mut self, input: &mut TurnInput, bytes: &[u8]) -> Result<Vec<LiveEvent>, ApiError> {
        self.admit(input.waiting_ms() + input.ms_of(bytes.len()))?;
        self.hear(&input.push(bytes)?)
    }

    /// Ends the turn in progress, if one does, without waiting for silence.
    ///
    /// # Errors
    /// As of [`Self::push`].
    pub fn end_turn(&mut self, input: &mut TurnInput) -> Result<Vec<LiveEvent>, ApiError> {
        self.admit(input.waiting_ms())?;
        self.hear(&input.end_turn()?)
    }

    /// Takes the decision on a pause, and the audio that waited for it.
    pub(super) fn decided(&mut self, input: &mut TurnInput, deciding: &Deciding) -> Vec<LiveEvent> {
        let mut heard = input.decided(deciding);
        match self.admit(input.waiting_ms()) {
            Ok(()) => heard.append(input.hear_on()),
            Err(error) => tracing::debug!(%error, "audio waits for memory"),
        }
        // What was admitted fits.
        self.hear(&heard).unwrap_or_default()
    }

    /// Makes room for so many milliseconds of audio, before it is decoded.
    ///
    /// # Errors
    /// More audio waits than may, or than there is memory for.
    pub fn admit(&mut self, ms: u64) -> Result<(), ApiError> {
        self.turns.admit(ms)
    }

    /// Takes audio that was [admitted](Self::admit), and the turns in it.
    ///
    /// # Errors
    /// It is more than was admitted, and there is no memory for it.
    pub fn hear(&mut self, heard: &Heard) -> Result<Vec<LiveEvent>, ApiError> {
        let events = self.turns.push(heard)?;
        if let Some(speakers) = &mut self.speakers {
            speakers.hear(&heard.samples);
        }
        Ok(self.told(events))
    }

    /// The next job, once there is enough new audio and none runs; `wrap` makes the session's reply of its own.
    pub fn next_job<P: Protocol>(
        &mut self,
        wrap: impl FnOnce(LiveReply) -> P::Reply,
    ) -> Option<Result<Job<P>, ApiError>> {
        if self.is_running {
            return self.speakers.as_mut()?.job(|| wrap(LiveReply(Reply::Speakers)));
        }
        let Some(ask) = self.turns.next() else {
            return self.speakers.as_mut()?.job(|| wrap(LiveReply(Reply::Speakers)));
        };
        let job = ask.and_then(|ask| self.job(ask, wrap));
        if job.is_err() {
            // Without memory for it now, the rest of the audio is transcribed later, or not.
            self.clear();
        }
        self.is_running = job.is_ok();
        Some(job)
    }

    fn job<P: Protocol>(
        &self,
        ask: Ask,
        wrap: impl FnOnce(LiveReply) -> P::Reply,
    ) -> Result<Job<P>, ApiError> {
        let (request, reply) = match ask {
            Ask::Stream { audio, start_ms } => {
                (self.settings.stream_request(audio), Reply::Once { start_ms })
            }
            Ask::Whole { samples, start_ms } => {
                let file = UploadMemory::wav_file(&self.state, &samples)?;
                (self.settings.whole_request(file), Reply::Once { start_ms })
            }
            Ask::Window(window) => {
                let Window { samples, start_ms, end_ms, decided, context, is_thorough } = window;
                let file = UploadMemory::wav_file(&self.state, &samples)?;
                let language = self.settings.language.clone().or_else(|| self.settled_language());
                let live = LiveWindow { decided: decided.clone(), is_thorough };
                let request = self.settings.window_request(file, live, context, language);
                let (segments, begun) = (Vec::new(), Instant::now());
                (request, Reply::Window(Step { end_ms, start_ms, decided, is_thorough, segments, begun }))
            }
        };
        Ok(Job::new(self.engine.clone(), request, wrap(LiveReply(reply))))
    }

    /// Takes the next chunk of a job.
    pub fn deliver(&mut self, reply: &mut LiveReply, chunk: StreamingOutput) -> Vec<LiveEvent> {
        let heard_ms = match &reply.0 {
            Reply::Window(step) => step.end_ms - step.start_ms,
            Reply::Once { .. } => u64::MAX,
            Reply::Speakers => {
                return self.speakers.as_mut().map(|speakers| speakers.deliver(chunk)).unwrap_or_default();
            }
        };
        if let Some(language) = chunk.language.filter(|_| self.settled_language().is_none()) {
            self.detected = Some((language, heard_ms));
        }
        let mut events = Vec::new();
        match &mut reply.0 {
            Reply::Window(step) => step.segments.extend(chunk.segments),
            Reply::Once { start_ms } => {
                let words = chunk.segments.iter().flat_map(|segment| &segment.words);
                let words: Vec<LiveWord> = words.map(|word| live_word(word, *start_ms)).collect();
                let text = chunk.text.unwrap_or_default();
                self.turns.hear(text, words, chunk.partial, &mut events);
            }
            Reply::Speakers => {}
        }
        self.told(events)
    }

    /// Takes the end of a job.
    pub fn end(&mut self, reply: LiveReply, outcome: &Outcome) -> Vec<LiveEvent> {
        let mut events = Vec::new();
        self.is_running &= matches!(reply.0, Reply::Speakers);
        match reply.0 {
            Reply::Speakers => {
                return self.speakers.as_mut().map(|speakers| speakers.end(outcome)).unwrap_or_default();
            }
            Reply::Window(step) => {
                let words = outcome.is_complete().then(|| words_behind(&step)).flatten();
                let Step { end_ms, is_thorough, .. } = step;
                let transcribed = Transcribed { end_ms, is_thorough, decides: self.knows_language() };
                self.turns.take(transcribed, words, step.begun.elapsed(), &mut events);
            }
            Reply::Once { .. } => self.turns.close(&mut events),
        }
        self.told(events)
    }

    /// The language of the turn, once it was detected in enough audio. Until then each window has its own.
    fn settled_language(&self) -> Option<String> {
        self.detected.as_ref().filter(|(_, ms)| *ms >= SETTLED_MS).map(|(language, _)| language.clone())
    }

    /// Whether the language is known, in which words are decided.
    fn knows_language(&self) -> bool {
        let detects = self.engine.profile().info.detects_language;
        !detects || self.settings.language.is_some() || self.settled_language().is_some()
    }

    /// Rewrites events, and tells the language of turns that end.
    fn told(&mut self, events: Vec<LiveEvent>) -> Vec<LiveEvent> {
        let mut told = Vec::with_capacity(events.len());
        let mut events = events.into_iter().peekable();
        while let Some(mut event) = events.next() {
            let detected = self.detected.as_ref().map(|(language, _)| language.as_str());
            let spoken = self.settings.spoken_language(detected, &self.engine);
            let is_last = !matches!(events.peek(), Some(LiveEvent::Partial { .. } | LiveEvent::Ended { .. }));
            let is_end = matches!(event, LiveEvent::Ended { .. });
            if let LiveEvent::Ended { language, .. } = &mut event {
                *language = self.settings.language.as_deref().or(detected).map(str::to_owned);
            }
            let from = told.len();
            self.rewriting.rewrite(event, spoken, is_last, &mut told);
            if let Some(speakers) = &mut self.speakers {
                let of_speakers: Vec<LiveEvent> =
                    told[from..].iter().filter_map(|event| speakers.said(event)).collect();
                told.extend(of_speakers);
            }
            self.detected = self.detected.take().filter(|_| !is_end);
        }
        told
    }

    /// Drops the turns that are not transcribed to their end. False if there were none.
    pub fn clear(&mut self) -> bool {
        self.rewriting.clear();
        self.turns.clear()
    }

    /// Who speaks from `start_ms` to `end_ms`, or nearest to it, as far as it is heard: counted from 0, and the name if it is known.
    /// `None` if speakers are not told.
    pub fn speaker(&self, start_ms: u64, end_ms: u64) -> Option<(u32, Option<Arc<str>>)> {
        self.speakers.as_ref()?.speaker(start_ms, end_ms)
    }

    /// Tells no more speakers than those of audio that a request has taken.
    pub(super) fn clear_speakers(&mut self) {
        if let Some(speakers) = &mut self.speakers {
            speakers.clear();
        }
    }

    /// No more audio comes.
    pub(super) fn finish(&mut self) {
        if let Some(speakers) = &mut self.speakers {
            speakers.finish();
        }
    }

    /// What is said in the turn in progress if it ends in the lull that lasts: once for each lull, when that is transcribed.
    /// `None` where words are rewritten, which depends on what follows.
    pub fn take_lull_text(&mut self) -> Option<String> {
        if self.rewriting.is_on() { None } else { self.turns.take_lull_text() }
    }

    /// How many turns have begun.
    pub fn begun(&self) -> u64 {
        self.turns.begun()
    }

    /// How many turns have ended: those with a lower number than this.
    pub fn ended(&self) -> u64 {
        self.turns.ended()
    }

    /// Whether a job runs.
    pub fn is_running(&self) -> bool {
        self.is_running
    }

    /// Whether a turn continues or is not transcribed to its end, or its speakers are not told.
    pub fn has_speech(&self) -> bool {
        self.ended() < self.begun() || self.speakers.as_ref().is_some_and(LiveSpeakers::is_finishing)
    }
}
