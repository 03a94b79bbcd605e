//! The contexts of a session: text that arrives in pieces, and the generations it is cut into. Knows no socket and no engine.
//!
//! Generations run in the order in which their text became complete, over all contexts. Closing a context drops its text that
//! no flush asked for, and no other's.

use std::collections::VecDeque;
use std::sync::Arc;

use izwi_types::excerpt;

use super::api::GenerationConfig;
use crate::error::ApiError;
use crate::speech::ResolvedSpeechOptions;

/// The most open contexts of a session, as in the hosted service.
const MAX_CONTEXTS: usize = 5;
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
pub(super) struct ContextKey(u64);

/// A piece of text to generate.
#[derive(Debug)]
pub(super) struct Generation {
    pub(super) context: ContextKey,
    pub(super) id: Option<String>,
    pub(super) text: String,
    /// Whether the client asked for it: then it outlives its context.
    pub(super) is_flushed: bool,
    pub(super) options: Arc<ResolvedSpeechOptions>,
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
    contexts: Vec<Context>,
    queue: VecDeque<Generation>,
    /// The context whose generation runs.
    running: Option<ContextKey>,
    next_key: u64,
    session_chars: usize,
}

impl Contexts {
    pub(super) fn new(limits: Limits) -> Self {
        let (contexts, queue) = (Vec::new(), VecDeque::new());
        Self { limits, contexts, queue, running: None, next_key: 0, session_chars: 0 }
    }

    fn position(&self, id: Option<&str>) -> Option<usize> {
        self.contexts.iter().position(|context| context.id.as_deref() == id && !context.is_closed)
    }

    /// Whether a context with this id is open.
    pub(super) fn is_open(&self, id: Option<&str>) -> bool {
        self.position(id).is_some()
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
        if let Some(context) = self.position(id).and_then(|at| self.contexts.get_mut(at)) {
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
            is_closed: false,
        });
        Ok(())
    }

    /// Adds text to an open context, and queues what the schedule asks for. `is_triggered` asks for less.
    pub(super) fn push(&mut self, id: Option<&str>, text: &str, is_triggered: bool) -> Result<(), ApiError> {
        let Limits { buffer_chars, session_chars, is_automatic } = self.limits;
        let Some(context) = self.position(id).and_then(|at| self.contexts.get_mut(at)) else { return Ok(()) };
        let chars = text.chars().count();
        if context.buffer.chars().count() + chars > buffer_chars {
            let message =
                format!("text has more than {buffer_chars} characters without a flush; send it in parts");
            return Err(ApiError::invalid("text", message));
        }
        if self.session_chars + chars > session_chars {
            let message =
                format!("the session has more than {session_chars} characters in all; open another");
            return Err(ApiError::invalid("text", message));
        }
        self.session_chars += chars;
        context.buffer.push_str(text);
        while let Some(piece) = context.cut(is_triggered, is_automatic) {
            self.queue.extend(context.generation(&piece, false));
        }
        Ok(())
    }

    /// Queues all text of a context.
    pub(super) fn flush(&mut self, id: Option<&str>) {
        if let Some(at) = self.position(id) {
            self.flush_at(at);
        }
    }

    fn flush_at(&mut self, at: usize) {
        let Some(context) = self.contexts.get_mut(at) else { return };
        let (key, text) = (context.key, std::mem::take(&mut context.buffer));
        // A flush asks for all text so far.
        self.queue.iter_mut().filter(|one| one.context == key).for_each(|one| one.is_flushed = true);
        self.queue.extend(context.generation(&text, true));
    }

    /// Closes a context and drops its text that no flush asked for. Returns its key.
    pub(super) fn close(&mut self, id: Option<&str>) -> Option<ContextKey> {
        let context = self.position(id).and_then(|at| self.contexts.get_mut(at))?;
        context.is_closed = true;
        context.buffer.clear();
        let key = context.key;
        self.queue.retain(|one| one.context != key || one.is_flushed);
        Some(key)
    }

    /// Closes a context whose generation failed, and drops its text.
    pub(super) fn close_key(&mut self, key: ContextKey) {
        self.contexts
            .iter_mut()
            .filter(|context| context.key == key)
            .for_each(|context| context.is_closed = true);
        self.queue.retain(|one| one.context != key);
    }

    /// Flushes and closes all contexts.
    pub(super) fn finish(&mut self) {
        for at in 0..self.contexts.len() {
            self.flush_at(at);
        }
        self.contexts.iter_mut().for_each(|context| context.is_closed = true);
    }

    /// Drops all text. False if there was none.
    pub(super) fn clear(&mut self) -> bool {
        let had_text =
            !self.queue.is_empty() || self.contexts.iter().any(|one| !one.buffer.trim().is_empty());
        self.queue.clear();
        self.contexts.iter_mut().for_each(|context| context.buffer.clear());
        had_text
    }

    /// Takes the next generation; it runs until [`Self::ended`].
    pub(super) fn next(&mut self) -> Option<Generation> {
        let next = self.queue.pop_front()?;
        self.running = Some(next.context);
        Some(next)
    }

    pub(super) fn ended(&mut self) {
        self.running = None;
    }

    pub(super) fn is_running(&self, key: ContextKey) -> bool {
        self.running == Some(key)
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes out the ids of closed contexts of which nothing is left to generate.
    pub(super) fn take_finished(&mut self) -> Vec<Option<String>> {
        let (queue, running) = (&self.queue, self.running);
        let mut finished = Vec::new();
        self.contexts.retain_mut(|context| {
            let is_busy = running == Some(context.key) || queue.iter().any(|one| one.context == context.key);
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
    /// A generation of `text`; `None` if nothing in it can be spoken.
    fn generation(&mut self, text: &str, is_flushed: bool) -> Option<Generation> {
        if !text.chars().any(char::is_alphanumeric) {
            return None;
        }
        self.generated += 1;
        Some(Generation {
            context: self.key,
            id: self.id.clone(),
            text: text.trim().to_owned(),
            is_flushed,
            options: Arc::clone(&self.options),
        })
    }

    /// Takes a piece off the buffer, if the schedule asks for one.
    fn cut(&mut self, is_triggered: bool, is_automatic: bool) -> Option<String> {
        let at = self.generated.min(self.schedule.len().saturating_sub(1));
        let scheduled = self.schedule.get(at).copied().unwrap_or(MIN_TRIGGER_CHARS);
        let least = match (is_automatic, is_triggered) {
            (true, _) => 1,
            (false, true) => scheduled.min(MIN_TRIGGER_CHARS),
            (false, false) => scheduled,
        };
        if self.buffer.trim().chars().nth(least - 1).is_none() {
            return None;
        }
        let end = piece_end(&self.buffer, least)?;
        let rest = self.buffer.split_off(end);
        let piece = std::mem::replace(&mut self.buffer, rest);
        // White space alone is no piece.
        (!piece.trim().is_empty()).then_some(piece)
    }
}

/// Where a piece of about `least` characters or more ends: behind the last sentence, unless that is short, else behind the last
/// word. `None` while no word is complete.
fn piece_end(text: &str, least: usize) -> Option<usize> {
    let ends_sentence = |c: char| matches!(c, '.' | '!' | '?' | '…');
    let is_full_width = |c: char| matches!(c, '。' | '！' | '？');
    let pairs = text.char_indices().zip(text.chars().skip(1).map(Some).chain([None]));
    let (mut sentence, mut word) = (None, None);
    for (count, ((at, c), next)) in pairs.enumerate() {
        let end = at + c.len_utf8();
        if is_full_width(c) || ends_sentence(c) && next.is_some_and(char::is_whitespace) {
            sentence = Some(end).filter(|_| count + 1 >= least / 2).or(sentence);
        }
        if c.is_whitespace() {
            word = Some(end);
        }
    }
    sentence.or(word)
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

    fn contexts(limits: Limits, lengths: Option<Vec<f32>>) -> Contexts {
        let mut contexts = Contexts::new(limits);
        let config = GenerationConfig { chunk_length_schedule: lengths };
        contexts.open(None, ResolvedSpeechOptions::for_tests(), Some(&config)).unwrap();
        contexts
    }

    fn generated(contexts: &mut Contexts) -> Vec<String> {
        std::iter::from_fn(|| contexts.next()).map(|next| next.text).collect()
    }

    #[test]
    fn the_schedule_decides_what_is_generated() {
        let mut one = contexts(LIMITS, Some(vec![20.0, 40.0]));
        one.push(None, "A sentence. And a half of ", false).unwrap();
        assert_eq!(generated(&mut one), ["A sentence."]);
        one.push(None, "the next one", false).unwrap();
        assert!(generated(&mut one).is_empty(), "the second piece needs 40 characters");
        one.push(None, " that goes on without an end to it", false).unwrap();
        assert_eq!(generated(&mut one), ["And a half of the next one that goes on without an end to"]);
        one.flush(None);
        assert_eq!(generated(&mut one), ["it"]);

        let mut usual = contexts(LIMITS, None);
        let text = "Fifty characters and a few more are in this sentence. ";
        usual.push(None, text, false).unwrap();
        assert!(generated(&mut usual).is_empty());
        usual.push(None, "", true).unwrap();
        assert_eq!(generated(&mut usual), [text.trim()]);

        let mut automatic = contexts(Limits { is_automatic: true, ..LIMITS }, None);
        automatic.push(None, "Short. ", false).unwrap();
        automatic.push(None, "wor", false).unwrap();
        assert_eq!(generated(&mut automatic), ["Short."], "a word that is not complete waits");
        automatic.push(None, "... — ", false).unwrap();
        automatic.flush(None);
        assert_eq!(generated(&mut automatic), ["wor..."]);
        automatic.push(None, " — ", false).unwrap();
        automatic.flush(None);
        assert!(generated(&mut automatic).is_empty(), "nothing can be spoken");
    }

    #[test]
    fn a_closed_context_keeps_what_a_flush_asked_for() {
        let mut contexts = contexts(LIMITS, Some(vec![1.0]));
        contexts.push(None, "Asked for. ", false).unwrap();
        contexts.flush(None);
        contexts.push(None, "Not asked for. And ", false).unwrap();
        let other = ResolvedSpeechOptions::for_tests();
        contexts.open(Some("other"), other, None).unwrap();
        contexts.push(Some("other"), "Other text ", false).unwrap();
        assert!(contexts.close(None).is_some() && contexts.close(None).is_none());
        contexts.flush(Some("other"));
        assert!(contexts.take_finished().is_empty(), "its text is not spoken yet");
        let next = contexts.next().unwrap();
        assert!(next.is_flushed && contexts.is_running(next.context));
        contexts.ended();
        assert_eq!(contexts.take_finished(), [None]);
        assert_eq!(generated(&mut contexts), ["Other text"]);
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
}
