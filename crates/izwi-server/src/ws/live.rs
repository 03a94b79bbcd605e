//! The protocol of `/v1/audio/transcriptions/stream`: audio in, its transcript out while it is spoken.
//!
//! Choices of the protocol:
//! - Binary frames are mono audio in `encoding` at `sample_rate`, by default 16-bit little-endian PCM at 16 kHz.
//! - Voice activity detection finds turns. What is between them becomes no text.
//! - The transcript of a turn is the concatenation of its `committed` texts: they never change. `partial` is what follows
//!   them for now; the next one replaces it.
//! - What `session.config` asks to rewrite, numbers and spoken commands, is rewritten before it is committed: words of a run
//!   that can go on are `partial` until then.
//! - `input.flush` ends the turn in progress, `input.done` the session once all turns are transcribed.
//! - A model that takes audio as it arrives gets a turn in one request, another one windows of it in steps.
//! - A step that fails is an `error`; the session continues, and a turn whose last step fails ends with what was committed.

mod parse;
mod setup;

use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_audio::encode::EncodeError;
use izwi_core::engine::{Engine, LiveWindow, RequestId, Segment, StreamingOutput, Task, Word, Writer};
use izwi_types::TokenLogprob;
use tokio::time::Instant;

use self::setup::Setup;
use super::frame;
use super::outbox::Outbox;
use super::protocol::{Action, ClientMessage, Identity, Job, Outcome, Protocol};
use crate::dto::live::{ClientFrame, ConfigFields, ServerFrame};
use crate::dto::speech::WordTimes;
use crate::error::ApiError;
use crate::live::{Ask, LiveEvent, LiveTurns, LiveWord, Window};
use crate::registry::Lease;
use crate::state::AppState;
use crate::upload::UploadMemory;

/// State of a session.
pub(super) struct Live {
    state: AppState,
    id: RequestId,
    session: Option<Session>,
    is_closed: bool,
}

/// A session that is configured.
struct Session {
    setup: Setup,
    turns: LiveTurns,
    /// Language of the turn in progress, once it is detected.
    language: Option<String>,
    /// Rewrites the words of the turn in progress, of which `text` is committed.
    writer: Writer<LiveWord>,
    text: String,
}

/// A transcript in progress.
pub(super) enum Reply {
    Window(Step),
    /// Of audio that is handed over as it arrives, from `start_ms` on.
    Stream {
        start_ms: u64,
    },
}

/// A step: a transcript of a window in progress.
pub(super) struct Step {
    end_ms: u64,
    start_ms: u64,
    decided: String,
    is_thorough: bool,
    segments: Vec<Segment>,
    begun: Instant,
}

impl Protocol for Live {
    const KIND: &'static str = "live";
    type Frame = ClientFrame;
    type Model = Lease;
    type Reply = Reply;
    type Opening = ();

    fn new(state: &AppState, identity: Identity, (): ()) -> Self {
        Self { state: state.clone(), id: identity.id, session: None, is_closed: false }
    }

    fn parse(message: ClientMessage) -> Result<ClientFrame, ApiError> {
        match message {
            ClientMessage::Text(text) => parse::parse(&text),
            ClientMessage::Binary(audio) => Ok(ClientFrame::Audio(audio)),
        }
    }

    fn is_immediate(frame: &ClientFrame) -> bool {
        matches!(frame, ClientFrame::Ping)
    }

    fn load_model(&self, frame: &ClientFrame) -> Option<BoxFuture<'static, Result<Lease, ApiError>>> {
        if self.session.is_some() || self.is_closed {
            return None;
        }
        let model = match frame {
            ClientFrame::Config(config) => config.model.clone(),
            ClientFrame::Audio(_) => None,
            _ => return None,
        };
        let state = self.state.clone();
        Some(async move { state.lease(model.as_deref(), Task::Asr).await }.boxed())
    }

    fn receive(
        &mut self,
        frame: ClientFrame,
        model: Option<Result<Lease, ApiError>>,
        out: &mut Outbox,
    ) -> Result<Action, ApiError> {
        match frame {
            ClientFrame::Config(fields) => self.configure(*fields, model, out)?,
            ClientFrame::Audio(audio) => {
                frame::check_open(self.is_closed)?;
                if self.session.is_none() {
                    self.configure(ConfigFields::default(), model, out)?;
                }
                self.hear(&audio, out)?;
            }
            ClientFrame::Flush => {
                frame::check_open(self.is_closed)?;
                if let Some(session) = &mut self.session {
                    session.turns.end_turn()?;
                }
            }
            ClientFrame::Done => {
                frame::check_open(self.is_closed)?;
                self.close_input();
            }
            ClientFrame::Ping => out.reply(&ServerFrame::Pong),
        }
        Ok(Action::None)
    }

    fn next_job(&mut self) -> Option<Result<Job<Self>, ApiError>> {
        let session = self.session.as_mut()?;
        let job = session.turns.next()?.and_then(|ask| job(&self.state, session, ask));
        if job.is_err() {
            // Without memory for it now, the rest of the audio is transcribed later, or not.
            session.clear();
        }
        Some(job)
    }

    fn deliver(
        &mut self,
        reply: &mut Reply,
        chunk: StreamingOutput,
        out: &mut Outbox,
    ) -> Result<(), EncodeError> {
        let Some(session) = &mut self.session else { return Ok(()) };
        session.language = chunk.language.or(session.language.take());
        match reply {
            Reply::Window(step) => step.segments.extend(chunk.segments),
            Reply::Stream { start_ms } => {
                let words = chunk.segments.iter().flat_map(|segment| &segment.words);
                let words = words.map(|word| live_word(word, *start_ms)).collect();
                let mut events = Vec::new();
                session.turns.hear(words, chunk.partial, &mut events);
                session.tell_all(events, out);
            }
        }
        Ok(())
    }

    fn end(&mut self, reply: Reply, outcome: Outcome, out: &mut Outbox) {
        let Some(session) = &mut self.session else { return };
        let mut events = Vec::new();
        match reply {
            Reply::Window(step) => {
                let words = outcome.is_complete().then(|| words_behind(&step)).flatten();
                let window = (step.end_ms, step.is_thorough);
                session.turns.take(window, words, step.begun.elapsed(), &mut events);
            }
            Reply::Stream { .. } => session.turns.close(&mut events),
        }
        session.tell_all(events, out);
    }

    fn drop_queued(&mut self) -> bool {
        self.session.as_mut().is_some_and(Session::clear)
    }

    fn close_input(&mut self) {
        if let Some(session) = &mut self.session
            && let Err(error) = session.turns.end_turn()
        {
            tracing::warn!(session = %self.id, %error, "the last audio is not transcribed");
        }
        self.is_closed = true;
    }

    fn is_over(&self) -> bool {
        self.is_closed && self.session.as_ref().is_none_or(|session| !session.turns.has_speech())
    }

    fn write_done(&self, out: &mut Outbox) {
        let ms = self.session.as_ref().map_or(0, |session| session.turns.now_ms());
        out.frame(&ServerFrame::Done { duration_s: ms as f64 / 1_000.0 });
    }

    fn write_error(&self, error: &ApiError, out: &mut Outbox) {
        frame::write_error(error, out);
    }
}

impl Live {
    fn configure(
        &mut self,
        fields: ConfigFields,
        model: Option<Result<Lease, ApiError>>,
        out: &mut Outbox,
    ) -> Result<(), ApiError> {
        if self.session.is_some() {
            return Err(frame::CONFIGURED);
        }
        frame::check_open(self.is_closed)?;
        let (setup, options) = Setup::resolve(fields, model.unwrap_or(Err(frame::NO_MODEL))?)?;
        let (rate_hz, latency_ms) = (options.rate_hz, options.method.latency_ms());
        let memory = UploadMemory::of_session(&self.state);
        let turns = LiveTurns::new(&self.state.vad(), options, memory)?;
        out.reply(&ServerFrame::Created {
            session_id: self.id.as_str(),
            model: &setup.engine.profile().model,
            encoding: setup.encoding,
            sample_rate: rate_hz,
            channels: 1,
            latency_ms,
        });
        let writer = Writer::new(setup.written);
        self.session = Some(Session { setup, turns, language: None, writer, text: String::new() });
        Ok(())
    }

    fn hear(&mut self, audio: &Bytes, out: &mut Outbox) -> Result<(), ApiError> {
        let Some(session) = &mut self.session else { return Err(frame::NO_MODEL) };
        let events = session.turns.push(audio)?;
        session.tell_all(events, out);
        Ok(())
    }
}

impl Session {
    /// Drops the turns that wait. False if there were none.
    fn clear(&mut self) -> bool {
        (self.writer, self.text) = (Writer::new(self.setup.written), String::new());
        self.turns.clear()
    }

    fn tell_all(&mut self, events: Vec<LiveEvent>, out: &mut Outbox) {
        let mut events = events.into_iter().peekable();
        while let Some(event) = events.next() {
            // What waits to be rewritten is shown at once, unless the next event does so.
            let shows = matches!(event, LiveEvent::Committed { .. })
                && !matches!(events.peek(), Some(LiveEvent::Partial { .. } | LiveEvent::Ended { .. }));
            self.tell(event, shows, out);
        }
    }

    fn tell(&mut self, event: LiveEvent, shows: bool, out: &mut Outbox) {
        match event {
            LiveEvent::Started { turn, at_ms } => out.frame(&ServerFrame::Started { turn, at_ms }),
            LiveEvent::Partial { turn, text } => {
                let text = self.writer.preview() + &text;
                out.frame(&ServerFrame::Partial { turn, text: &text });
            }
            LiveEvent::Committed { turn, words } => {
                let language = self.setup.language_of(self.language.as_deref());
                let words = self.writer.push(words, language);
                self.commit(turn, &words, out);
                if shows && self.writer.is_waiting() {
                    out.frame(&ServerFrame::Partial { turn, text: &self.writer.preview() });
                }
            }
            LiveEvent::Ended { turn, start_ms, end_ms } => {
                let rest = self.writer.finish();
                self.commit(turn, &rest, out);
                let text = std::mem::take(&mut self.text);
                let language = self.setup.language.clone().or(self.language.take());
                let (text, language) = (text.trim_matches(' '), language.as_deref());
                out.frame(&ServerFrame::TurnEnd { turn, text, language, start_ms, end_ms });
            }
        }
    }

    /// Commits words of a turn.
    fn commit(&mut self, turn: u64, words: &[LiveWord], out: &mut Outbox) {
        if words.is_empty() {
            return;
        }
        let text: String = words.iter().map(|word| word.text.as_str()).collect();
        self.text.push_str(&text);
        let words = self.setup.word_times.then(|| words.iter().filter_map(word_times).collect());
        out.frame(&ServerFrame::Committed { turn, text: &text, words });
    }
}

/// A word for a client; `None` for marks alone, which belong to the word before.
fn word_times(word: &LiveWord) -> Option<WordTimes<'_>> {
    let LiveWord { text, start_ms, end_ms, .. } = word;
    let has_sound = text.contains(char::is_alphanumeric);
    has_sound.then(|| WordTimes { text: text.trim(), start_ms: *start_ms, end_ms: *end_ms })
}

/// A word of audio that begins at `start_ms` of the stream.
fn live_word(word: &Word, start_ms: u64) -> LiveWord {
    let ms = |seconds: f64| start_ms + (seconds.max(0.0) * 1e3) as u64;
    let Word { text, probability, .. } = word;
    LiveWord {
        text: text.clone(),
        start_ms: ms(word.start_s),
        end_ms: ms(word.end_s),
        probability: *probability,
        certainty: *probability,
    }
}

/// The job of what the engine is asked for.
fn job(state: &AppState, session: &Session, ask: Ask) -> Result<Job<Live>, ApiError> {
    let window = match ask {
        Ask::Window(window) => window,
        Ask::Stream { audio, start_ms } => {
            let (engine, request) = (&session.setup.engine, session.setup.stream_request(audio));
            return Ok(Job::new(Engine::clone(engine), request, Reply::Stream { start_ms }));
        }
    };
    let Window { samples, start_ms, end_ms, decided, context, is_thorough } = window;
    let file = UploadMemory::wav_file(state, &samples)?;
    let language = session.setup.language.clone().or_else(|| session.language.clone());
    let request =
        session.setup.request(file, LiveWindow { decided: decided.clone(), is_thorough }, context, language);
    let segments = Vec::new();
    let step = Step { end_ms, start_ms, decided, is_thorough, segments, begun: Instant::now() };
    Ok(Job::new(Engine::clone(&session.setup.engine), request, Reply::Window(step)))
}

/// The words of a step after what was decided; `None` if its transcript does not begin with that.
fn words_behind(step: &Step) -> Option<Vec<LiveWord>> {
    let ms = |seconds: f64| (step.start_ms + (seconds.max(0.0) * 1e3) as u64).min(step.end_ms);
    let mut left = step.decided.as_str();
    let mut words = Vec::new();
    for segment in &step.segments {
        let mut tokens = TokenProbabilities::new(segment);
        for word in &segment.words {
            let probability = word.probability;
            let certainty = tokens.least(&word.text).unwrap_or(probability);
            let text = word.text.as_str();
            if let Some(rest) = left.strip_prefix(text) {
                left = rest;
                continue;
            }
            // A mark or an ending that joins the last decided word.
            let text = text.strip_prefix(std::mem::take(&mut left))?;
            let (start_ms, end_ms) = (ms(word.start_s), ms(word.end_s));
            let text = text.to_owned();
            words.push(LiveWord { text, start_ms, end_ms, probability, certainty });
        }
    }
    drop_unheard(&mut words);
    left.is_empty().then_some(words)
}

/// The probabilities of a segment's tokens, word by word.
struct TokenProbabilities<'a> {
    tokens: std::slice::Iter<'a, TokenLogprob>,
    /// Bytes that the tokens so far are ahead of the words.
    ahead: usize,
}

impl<'a> TokenProbabilities<'a> {
    fn new(segment: &'a Segment) -> Self {
        Self { tokens: segment.logprobs.iter(), ahead: 0 }
    }

    /// The least probability of the tokens of the next word, without the marks after it: an unlikely full stop says nothing
    /// about the word. `None` without tokens.
    fn least(&mut self, word: &str) -> Option<f32> {
        let spoken = word.trim_end_matches(|c: char| !c.is_alphanumeric()).len();
        let (mut least, mut at) = (None, self.ahead.min(word.len()));
        self.ahead -= at;
        while at < word.len() {
            let token = self.tokens.next()?;
            if at < spoken {
                let probability = token.logprob.exp();
                least = Some(least.map_or(probability, |least: f32| least.min(probability)));
            }
            at += token.bytes.len().max(1);
        }
        self.ahead += at.saturating_sub(word.len());
        least
    }
}

/// Drops the end of a transcript from the first of several words without a duration on: a decoder that repeats itself behind
/// the last word finds no audio for them.
fn drop_unheard(words: &mut Vec<LiveWord>) {
    const RUN: usize = 3;
    let is_unheard = |run: &[LiveWord]| run.iter().all(|word| word.start_ms >= word.end_ms);
    if let Some(at) = words.windows(RUN).position(is_unheard) {
        words.truncate(at);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn words_behind_the_decided_text() {
        let behind = |decided: &str, words: &[&str]| {
            let word =
                |text: &&str| Word { text: (*text).to_owned(), start_s: 0.5, end_s: 1.0, probability: 1.0 };
            let segment = Segment { words: words.iter().map(word).collect(), ..Segment::default() };
            let mut step = Step {
                start_ms: 1_000,
                end_ms: 1_800,
                decided: decided.to_owned(),
                is_thorough: false,
                segments: vec![segment],
                begun: Instant::now(),
            };
            let words = words_behind(&step)?;
            step.segments.clear();
            assert!(words.iter().all(|word| (word.start_ms, word.end_ms) == (1_500, 1_800)));
            Some(words.into_iter().map(|word| word.text).collect::<Vec<_>>())
        };
        assert_eq!(behind("", &[" And", " so"]).unwrap(), [" And", " so"]);
        assert_eq!(behind(" And so", &[" And", " so", " my"]).unwrap(), [" my"]);
        assert_eq!(behind(" And so", &[" And", " so,", " my"]).unwrap(), [",", " my"]);
        assert_eq!(behind(" And so", &[" And", " so"]).unwrap(), [""; 0]);
        assert_eq!(behind(" And so", &[" And"]), None);
        assert_eq!(behind(" And so", &[]), None);
        assert_eq!(behind(" And so", &[" End", " so"]), None);
    }

    #[test]
    fn a_word_is_as_certain_as_its_least_certain_token() {
        let word = |text: &str| Word { text: text.to_owned(), start_s: 0.0, end_s: 0.1, probability: 0.8 };
        let token = |&(text, probability): &(&str, f32)| TokenLogprob {
            bytes: text.as_bytes().to_vec(),
            logprob: probability.ln(),
        };
        let tokens =
            [(" an", 1.0), (" ill", 0.9), ("-", 0.6), ("sp", 0.7), (",", 0.1), (" y\u{fc}", 0.5), ("n", 0.4)];
        let segment = Segment {
            words: [" an", " ill-sp,", " y\u{fc}", "n"].map(word).to_vec(),
            logprobs: tokens.iter().map(token).collect(),
            ..Segment::default()
        };
        let step = |segment| Step {
            start_ms: 0,
            end_ms: 1_000,
            decided: " an".to_owned(),
            is_thorough: false,
            segments: vec![segment],
            begun: Instant::now(),
        };
        let certainty = |segment| -> Vec<u32> {
            let words = words_behind(&step(segment)).unwrap();
            words.iter().map(|word| (word.certainty * 100.0).round() as u32).collect()
        };
        assert_eq!(certainty(segment.clone()), [60, 50, 40]);
        assert_eq!(
            certainty(Segment { logprobs: Vec::new(), ..segment.clone() }),
            [80, 80, 80],
            "without tokens"
        );
        // Half of a character, and a token that two words share.
        let mut split = Segment { logprobs: tokens[..1].iter().map(token).collect(), ..segment };
        split.logprobs.push(TokenLogprob { bytes: b" ill-sp, y\xc3".to_vec(), logprob: 0.3f32.ln() });
        split.logprobs.push(TokenLogprob { bytes: b"\xbcn".to_vec(), logprob: 0.2f32.ln() });
        assert_eq!(certainty(split), [30, 20, 80], "without a token of its own it has its mean");
    }
}
