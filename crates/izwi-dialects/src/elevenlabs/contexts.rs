//! The contexts of a session: text that arrives in pieces, and the generations it is cut into. Knows no socket and no engine.
//!
//! Each context has one generation at a time, in the order of its text; contexts do not wait for one another. A flush asks for
//! all text so far. Closing a context drops its text that no flush asked for, and no other's; closing it again drops all of it.

use std::collections::VecDeque;
use std::sync::Arc;

use izwi_server::ApiError;
use izwi_server::speech::ResolvedSpeechOptions;
use izwi_types::excerpt;

use super::api::GenerationConfig;
use super::pieces;

/// The most open contexts of a session, as in the hosted service, and the most generations that run at once.
pub(super) const MAX_CONTEXTS: usize = 5;
/// Closed contexts whose text is not generated yet, and generations that wait, before no more is read.
const MAX_CLOSED: usize = 32;
const MAX_QUEUED: usize = 256;
/// Characters before the first, second … generation; the last counts for all that follow.
const SCHEDULE: [usize; 4] = [120, 160, 250, 290];
/// `try_trigger_generation` generates from so many characters on.
const MIN_TRIGGER_CHARS: usize = 50;
/// The most entries of a `chunk_length_schedule`, and the range of each.
const MAX_SCHEDULE: usize = 16;
const SCHEDULE_CHARS: std::ops::RangeInclusive<f32> = 1.0..=2_000.0;
/// The most characters of a context's id.
const MAX_ID_CHARS: usize = 256;

/// Tells contexts apart, also those that had the same id one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ContextKey(pub(super) u64);

/// A piece of text to generate.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) context: ContextKey,
    pub(super) id: Option<String>,
    /// With the white space around it.
    pub(super) text: String,
    pub(super) options: Arc<ResolvedSpeechOptions>,
}

/// A generation that waits.
#[derive(Debug)]
struct Piece {
    text: String,
    options: Arc<ResolvedSpeechOptions>,
}

#[derive(Debug)]
struct Context {
    key: ContextKey,
    id: Option<String>,
    options: Arc<ResolvedSpeechOptions>,
    schedule: Vec<usize>,
    /// Generations so far.
    generated: usize,
    buffer: String,
    /// The last character of the generations so far.
    last: Option<char>,
    queue: VecDeque<Piece>,
    /// How many of the queue a flush asked for, from its start.
    flushed: usize,
    /// Of the generation that runs: whether a flush asked for it.
    running: Option<bool>,
    is_closed: bool,
}

/// How text is cut, and how much there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Characters of the text of a context that no generation has taken.
    pub(super) buffer_chars: usize,
    /// Characters of all text of the session.
    pub(super) session_chars: usize,
    /// Whether every message is generated as it comes.
    pub(super) is_automatic: bool,
}

#[derive(Debug)]
pub(super) struct Contexts {
    limits: Limits,
    /// The oldest first. Bounded by the open ones and, as nothing is read beyond them, by [`MAX_CLOSED`].
    contexts: Vec<Context>,
    /// Generations that wait, of all contexts.
    queued: usize,
    next_key: u64,
    session_chars: usize,
}

impl Contexts {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, contexts: Vec::new(), queued: 0, next_key: 0, session_chars: 0 }
    }

    fn open_context(&mut self, id: Option<&str>) -> Option<&mut Context> {
        self.contexts.iter_mut().find(|context| context.id.as_deref() == id && !context.is_closed)
    }

    fn with_key(&mut self, key: ContextKey) -> Option<&mut Context> {
        self.contexts.iter_mut().find(|context| context.key == key)
    }

    /// Whether a context with this id is open.
    pub(super) fn is_open(&mut self, id: Option<&str>) -> bool {
        self.open_context(id).is_some()
    }

    /// Opens a context, or gives an open one new settings.
    pub(super) fn open(
        &mut self,
        id: Option<&str>,
        options: ResolvedSpeechOptions,
        config: Option<&GenerationConfig>,
    ) -> Result<(), ApiError> {
        let schedule = schedule(config)?;
        let options = Arc::new(options);
        if let Some(context) = self.open_context(id) {
            context.options = options;
            context.schedule = schedule.unwrap_or_else(|| std::mem::take(&mut context.schedule));
            return Ok(());
        }
        if self.contexts.iter().filter(|context| !context.is_closed).count() >= MAX_CONTEXTS {
            let message = format!(
                "context_id '{}' is one more than {MAX_CONTEXTS}; close another",
                excerpt(id.unwrap_or_default())
            );
            return Err(ApiError::invalid("context_id", message));
        }
        if id.is_some_and(|id| id.chars().nth(MAX_ID_CHARS).is_some()) {
            let message = format!("context_id has more than {MAX_ID_CHARS} characters; use a shorter one");
            return Err(ApiError::invalid("context_id", message));
        }
        let key = ContextKey(self.next_key);
        self.next_key += 1;
        self.contexts.push(Context {
            key,
            id: id.map(str::to_owned),
            options,
            schedule: schedule.unwrap_or_else(|| SCHEDULE.to_vec()),
            generated: 0,
            buffer: String::new(),
            last: None,
            queue: VecDeque::new(),
            flushed: 0,
            running: None,
            is_closed: false,
        });
        Ok(())
    }

    /// Adds text to an open context, and queues what the schedule asks for. `is_triggered` asks for less.
    pub(super) fn push(&mut self, id: Option<&str>, text: &str, is_triggered: bool) -> Result<(), ApiError> {
        let Limits { buffer_chars, session_chars, is_automatic } = self.limits;
        let total = self.session_chars + text.chars().count();
        let Some(context) = self.open_context(id) else { return Ok(()) };
        if text.chars().nth(buffer_chars.saturating_sub(context.buffer.chars().count())).is_some() {
            let message =
                format!("text has more than {buffer_chars} characters without a flush; send it in parts");
            return Err(ApiError::invalid("text", message));
        }
        if total > session_chars {
            let message =
                format!("the session has more than {session_chars} characters in all; open another");
            return Err(ApiError::invalid("text", message));
        }
        let before = context.queue.len();
        if is_automatic {
            context.push_message(text);
        } else {
            context.buffer.push_str(text);
            while let Some(piece) = context.cut(is_triggered) {
                context.enqueue(piece);
            }
        }
        let added = context.queue.len() - before;
        self.queued += added;
        self.session_chars = total;
        Ok(())
    }

    /// Asks for all text of a context so far.
    pub(super) fn flush(&mut self, id: Option<&str>) {
        if let Some(context) = self.open_context(id) {
            self.queued += context.flush();
        }
    }

    /// Closes a context and drops its text that no flush asked for; one that is closed already loses all of it. Returns the
    /// context if its running generation is dropped too.
    pub(super) fn close(&mut self, id: Option<&str>) -> Option<ContextKey> {
        if let Some(context) = self.open_context(id) {
            let kept = context.flushed;
            (context.is_closed, context.buffer) = (true, String::new());
            let (dropped, key) = (context.truncate(kept), context.key);
            let is_dropped = context.running == Some(false);
            self.queued -= dropped;
            return is_dropped.then_some(key);
        }
        // Only the oldest with this id can have a generation.
        let mut running = None;
        for context in self.contexts.iter_mut().filter(|context| context.id.as_deref() == id) {
            self.queued -= context.truncate(0);
            running = running.or(context.running.map(|_| context.key));
        }
        running
    }

    /// Closes a context whose generation failed, and drops its text.
    pub(super) fn close_key(&mut self, key: ContextKey) {
        let Some(context) = self.with_key(key) else { return };
        (context.is_closed, context.buffer) = (true, String::new());
        self.queued -= context.truncate(0);
    }

    /// Flushes and closes all contexts.
    pub(super) fn finish(&mut self) {
        for context in self.contexts.iter_mut().filter(|context| !context.is_closed) {
            self.queued += context.flush();
            context.is_closed = true;
        }
    }

    /// Drops all text. False if there was none.
    pub(super) fn clear(&mut self) -> bool {
        let had_text = self.queued > 0 || self.contexts.iter().any(|one| !one.buffer.trim().is_empty());
        for context in &mut self.contexts {
            context.truncate(0);
            context.buffer.clear();
        }
        self.queued = 0;
        had_text
    }

    /// Takes the next generation, of the oldest context that has none running; it runs until [`Self::ended`]. Contexts that
    /// have the same id follow one another.
    pub(super) fn next(&mut self) -> Option<Generation> {
        let is_next = |at: &usize| {
            let (before, context) = self.contexts.split_at(*at);
            context.first().is_some_and(|context| {
                context.running.is_none()
                    && !context.queue.is_empty()
                    && before.iter().all(|older| older.id != context.id)
            })
        };
        let at = (0..self.contexts.len()).find(is_next)?;
        let context = self.contexts.get_mut(at)?;
        let Piece { text, options } = context.queue.pop_front()?;
        context.running = Some(context.flushed > 0);
        context.flushed = context.flushed.saturating_sub(1);
        self.queued -= 1;
        Some(Generation { context: context.key, id: context.id.clone(), text, options })
    }

    /// Ends the generation of a context.
    pub(super) fn ended(&mut self, key: ContextKey) {
        if let Some(context) = self.with_key(key) {
            context.running = None;
        }
    }

    pub(super) fn has_queued(&self) -> bool {
        self.queued > 0
    }

    /// Whether no more may be read until generations have ended.
    pub(super) fn is_full(&self) -> bool {
        self.queued >= MAX_QUEUED
            || self.contexts.iter().filter(|context| context.is_closed).count() >= MAX_CLOSED
    }

    /// Takes out the ids of closed contexts of which nothing is left to generate.
    pub(super) fn take_finished(&mut self) -> Vec<Option<String>> {
        let mut finished = Vec::new();
        self.contexts.retain_mut(|context| {
            let is_busy = context.running.is_some() || !context.queue.is_empty();
            let is_finished = context.is_closed && !is_busy;
            if is_finished {
                finished.push(context.id.take());
            }
            !is_finished
        });
        finished
    }
}

impl Context {
    /// Adds a message whose end is the end of a word and of a piece.
    fn push_message(&mut self, text: &str) {
        if let Some(last) = self.buffer.chars().next_back() {
            self.buffer.push_str(pieces::space_between(last, text));
        }
        self.buffer.push_str(text);
        // A title belongs to the name in the next message.
        if self.buffer.contains(char::is_alphanumeric) && !pieces::ends_in_abbreviation(&self.buffer) {
            let piece = std::mem::take(&mut self.buffer);
            self.enqueue(piece);
        }
    }

    /// Queues a piece, with a space before it if none stands between it and the text before it.
    fn enqueue(&mut self, mut piece: String) {
        match self.last {
            None => piece = piece.trim_start().to_owned(),
            Some(last) => piece.insert_str(0, pieces::space_between(last, &piece)),
        }
        self.last = piece.chars().next_back();
        self.generated += 1;
        self.queue.push_back(Piece { text: piece, options: Arc::clone(&self.options) });
    }

    /// Asks for all text so far. Returns how many generations it queued.
    fn flush(&mut self) -> usize {
        let before = self.queue.len();
        let text = std::mem::take(&mut self.buffer);
        if text.contains(char::is_alphanumeric) {
            self.enqueue(text);
        }
        self.flushed = self.queue.len();
        self.running = self.running.map(|_| true);
        self.queue.len() - before
    }

    /// Keeps the first `kept` generations that wait. Returns how many it dropped.
    fn truncate(&mut self, kept: usize) -> usize {
        let before = self.queue.len();
        self.queue.truncate(kept);
        self.flushed = self.flushed.min(kept);
        before - self.queue.len()
    }

    /// Takes a piece off the buffer, if the schedule asks for one.
    fn cut(&mut self, is_triggered: bool) -> Option<String> {
        let at = self.generated.min(self.schedule.len().saturating_sub(1));
        let scheduled = self.schedule.get(at).copied().unwrap_or(MIN_TRIGGER_CHARS);
        let least = if is_triggered { scheduled.min(MIN_TRIGGER_CHARS) } else { scheduled };
        self.buffer.trim().chars().nth(least - 1)?;
        let end = pieces::piece_end(&self.buffer, least)?;
        if !self.buffer[..end].contains(char::is_alphanumeric) {
            return None;
        }
        let rest = self.buffer.split_off(end);
        Some(std::mem::replace(&mut self.buffer, rest))
    }
}

/// Checks a `chunk_length_schedule`.
fn schedule(config: Option<&GenerationConfig>) -> Result<Option<Vec<usize>>, ApiError> {
    let Some(lengths) = config.and_then(|config| config.chunk_length_schedule.as_ref()) else {
        return Ok(None);
    };
    let param = "generation_config.chunk_length_schedule";
    if lengths.is_empty() || lengths.len() > MAX_SCHEDULE {
        let message = format!("{param} has {} lengths; it needs 1 to {MAX_SCHEDULE}", lengths.len());
        return Err(ApiError::invalid(param, message));
    }
    if let Some(wrong) = lengths.iter().find(|length| !SCHEDULE_CHARS.contains(*length)) {
        let (least, most) = (SCHEDULE_CHARS.start(), SCHEDULE_CHARS.end());
        let message = format!("{param} has a length of {wrong}; it must be between {least} and {most}");
        return Err(ApiError::invalid(param, message));
    }
    Ok(Some(lengths.iter().map(|length| *length as usize).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { buffer_chars: 1_000, session_chars: 2_000, is_automatic: false };

    fn open(contexts: &mut Contexts, id: Option<&str>) {
        contexts.open(id, ResolvedSpeechOptions::default(), None).unwrap();
    }

    fn contexts(limits: Limits, lengths: Option<Vec<f32>>) -> Contexts {
        let mut contexts = Contexts::new(limits);
        let config = GenerationConfig { chunk_length_schedule: lengths };
        contexts.open(None, ResolvedSpeechOptions::default(), Some(&config)).unwrap();
        contexts
    }

    fn automatic() -> Contexts {
        contexts(Limits { is_automatic: true, ..LIMITS }, None)
    }

    /// Takes the next generation and ends it at once.
    fn generate(contexts: &mut Contexts) -> Option<String> {
        let next = contexts.next()?;
        contexts.ended(next.context);
        Some(next.text)
    }

    fn generated(contexts: &mut Contexts) -> Vec<String> {
        std::iter::from_fn(|| generate(contexts)).collect()
    }

    #[test]
    fn the_schedule_decides_what_is_generated() {
        let mut one = contexts(LIMITS, Some(vec![20.0, 40.0]));
        one.push(None, " A sentence. And a half of ", false).unwrap();
        assert_eq!(generated(&mut one), ["A sentence. "]);
        one.push(None, "the next one", false).unwrap();
        assert!(generated(&mut one).is_empty(), "the second piece needs 40 characters");
        one.push(None, " that goes on without an end to it", false).unwrap();
        assert_eq!(generated(&mut one), ["And a half of the next one that goes on without an end to "]);
        one.flush(None);
        assert_eq!(generated(&mut one), ["it"]);

        let mut usual = contexts(LIMITS, None);
        let text = "Fifty characters and a few more are in this sentence. ";
        usual.push(None, text, false).unwrap();
        assert!(generated(&mut usual).is_empty());
        usual.push(None, "", true).unwrap();
        assert_eq!(generated(&mut usual), [text]);
    }

    #[test]
    fn the_end_of_a_message_ends_a_word_in_automatic_mode() {
        let mut automatic = automatic();
        for message in
            ["The man. And the taxi waits outside.", "Then it", " leaves", ", we met Dr.", "Smith."]
        {
            automatic.push(None, message, false).unwrap();
        }
        let expected = ["The man. And the taxi waits outside.", " Then it", " leaves", ", we met Dr. Smith."];
        assert_eq!(generated(&mut automatic), expected);
        automatic.push(None, " — ", false).unwrap();
        assert!(generated(&mut automatic).is_empty(), "nothing can be spoken");
        automatic.push(None, "你好。", false).unwrap();
        automatic.push(None, "很好", false).unwrap();
        assert_eq!(generated(&mut automatic), [" — 你好。", "很好"]);
    }

    #[test]
    fn white_space_between_generations_is_kept_and_a_flush_ends_a_word() {
        let mut one = contexts(LIMITS, None);
        for message in ["  The taxi waits", "outside.", " Then ", "it leaves"] {
            one.push(None, message, false).unwrap();
            one.flush(None);
        }
        one.flush(None);
        assert_eq!(generated(&mut one), ["The taxi waits", " outside.", " Then ", "it leaves"]);
    }

    #[test]
    fn a_closed_context_keeps_what_a_flush_asked_for() {
        let mut contexts = contexts(LIMITS, Some(vec![1.0]));
        contexts.push(None, "Asked for. ", false).unwrap();
        contexts.push(None, "This as well. ", false).unwrap();
        let running = contexts.next().unwrap();
        contexts.flush(None);
        contexts.push(None, "Not asked for. And ", false).unwrap();
        open(&mut contexts, Some("other"));
        contexts.push(Some("other"), "Other text ", false).unwrap();
        assert_eq!(contexts.close(None), None, "the flush asked for what runs too");
        contexts.flush(Some("other"));
        assert!(contexts.take_finished().is_empty(), "its text is not spoken yet");
        assert_eq!(generate(&mut contexts).as_deref(), Some("Other text "), "it does not wait");
        contexts.ended(running.context);
        assert_eq!(generated(&mut contexts), ["This as well. "]);
        assert_eq!(contexts.take_finished(), [None]);
        assert!(!contexts.has_queued());
    }

    #[test]
    fn a_context_that_is_closed_without_a_flush_or_twice_is_dropped() {
        let mut contexts = automatic();
        for text in ["Not flushed.", "Nor this."] {
            contexts.push(None, text, false).unwrap();
        }
        let running = contexts.next().unwrap().context;
        assert_eq!(contexts.close(None), Some(running));
        contexts.ended(running);
        assert_eq!((contexts.next().is_none(), contexts.take_finished()), (true, vec![None]));

        open(&mut contexts, Some("a"));
        for text in ["Flushed.", "This too."] {
            contexts.push(Some("a"), text, false).unwrap();
        }
        contexts.flush(Some("a"));
        let running = contexts.next().unwrap().context;
        assert_eq!(contexts.close(Some("a")), None);
        // Its id is free again; the text after it waits, so that the audio of one id does not mix.
        open(&mut contexts, Some("a"));
        contexts.push(Some("a"), "Again.", false).unwrap();
        assert!(contexts.next().is_none());
        contexts.flush(Some("a"));
        assert_eq!(contexts.close(Some("a")), None);
        assert_eq!(contexts.close(Some("a")), Some(running), "a second close drops all");
        contexts.ended(running);
        assert!(contexts.next().is_none() && !contexts.has_queued());
        assert_eq!(contexts.take_finished().len(), 2);
        assert_eq!(contexts.close(Some("a")), None);
    }

    #[test]
    fn text_is_bounded() {
        let mut contexts = contexts(LIMITS, None);
        let error = contexts.push(None, &"a".repeat(1_001), false).unwrap_err();
        assert_eq!(error.param(), Some("text"));
        for _ in 0..2 {
            contexts.push(None, &"a".repeat(1_000), false).unwrap();
            contexts.flush(None);
        }
        assert!(contexts.push(None, "a", false).is_err());
    }

    #[test]
    fn what_waits_is_bounded() {
        let limits = Limits { session_chars: 100_000, ..LIMITS };
        let mut contexts = Contexts::new(limits);
        let closed = (0..1_000).take_while(|id| {
            let id = id.to_string();
            open(&mut contexts, Some(&id));
            contexts.push(Some(&id), "Text.", false).unwrap();
            contexts.flush(Some(&id));
            contexts.close(Some(&id));
            contexts.take_finished();
            !contexts.is_full()
        });
        assert_eq!(closed.count(), MAX_CLOSED - 1);
        generate(&mut contexts).unwrap();
        contexts.take_finished();
        assert!(!contexts.is_full());

        let mut contexts = self::contexts(Limits { is_automatic: true, ..limits }, None);
        let pieces = (0..1_000).take_while(|_| {
            contexts.push(None, "Text.", false).unwrap();
            !contexts.is_full()
        });
        assert_eq!(pieces.count(), MAX_QUEUED - 1);
        assert!(contexts.clear() && !contexts.is_full() && !contexts.clear());
    }
}
