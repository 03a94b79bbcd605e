//! Text of a request that arrives while it is spoken: the client's side.
//!
//! Must not know queues or the state of the engine.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use izwi_types::{Prepared, TextProgress};

use super::Wake;
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::{Filter, Lexicons, RequestPreparer};

/// The most characters of text in one request.
pub const MAX_TEXT_CHARS: usize = 65_536;

/// Text that arrives while it is spoken, for [`EngineCoreRequest::with_text_input`](super::EngineCoreRequest): what is
/// appended joins the text of the request, in the same sequence. Clones share the text.
///
/// Where the text has run out, the request is held until more arrives or [`TextInput::finish`] is called; after the
/// engine's `text_timeout` it ends. A word is spoken once a space or punctuation follows it.
#[derive(Clone, Default)]
pub struct TextInput(Arc<Text>);

/// The text has no single owner: the client appends, and what it appended must be known before the engine is woken, even
/// before the request is prepared.
#[derive(Default)]
struct Text {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Text that arrived before the request was prepared, as it is written.
    pending: String,
    /// Leaves markup out of what is passed on, and says the words of lexicons.
    filter: Filter,
    is_finished: bool,
    attached: Option<Attached>,
}

struct Attached {
    preparer: Arc<dyn RequestPreparer>,
    prepared: Prepared,
    progress: TextProgress,
    wake: Wake,
}

impl fmt::Debug for TextInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextInput").field("is_finished", &self.lock().is_finished).finish_non_exhaustive()
    }
}

impl PartialEq for TextInput {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl TextInput {
    /// An input without text yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends text.
    ///
    /// # Errors
    /// The text has ended, or does not fit a request of the model with this part; it is unchanged then. See
    /// [`TextInput::tokens_left`].
    pub fn append(&self, text: &str) -> Result<()> {
        self.extend(text, false)
    }

    /// Ends the text. Later calls change nothing.
    ///
    /// # Errors
    /// None that the text can cause: the end always fits.
    pub fn finish(&self) -> Result<()> {
        if self.lock().is_finished { Ok(()) } else { self.extend("", true) }
    }

    /// Text tokens that can still be appended: text of at most as many bytes always fits. `None` until the request is
    /// admitted.
    pub fn tokens_left(&self) -> Option<usize> {
        let state = self.lock();
        let left = state.attached.as_ref()?.progress.tokens_left;
        Some((left / state.filter.expansion()).saturating_sub(state.filter.held_bytes()))
    }

    fn extend(&self, text: &str, is_last: bool) -> Result<()> {
        let mut state = self.lock();
        if state.is_finished {
            return Err(EngineError::invalid(
                "input",
                "the text has ended already; send more as another request",
            ));
        }
        let State { pending, attached, filter, .. } = &mut *state;
        match attached {
            Some(attached) => {
                let mut filtered = filter.clone();
                attached.append(&filtered.push(text, is_last), is_last)?;
                *filter = filtered;
            }
            None if pending.len() + text.len() > MAX_TEXT_CHARS => {
                let message = format!("input has more than {MAX_TEXT_CHARS} bytes; send it in parts");
                return Err(EngineError::invalid("input", message));
            }
            None => pending.push_str(text),
        }
        state.is_finished = is_last;
        Ok(())
    }

    /// Says the words of lexicons in the text, nothing of which was taken yet.
    pub(super) fn use_lexicons(&self, lexicons: Lexicons, is_english: bool) {
        self.lock().filter = Filter::with_lexicons(lexicons, is_english);
    }

    /// Takes the text that arrived so far behind `first`, without markup, and whether it is all.
    pub(super) fn take_pending(&self, first: &str) -> (String, bool) {
        let mut state = self.lock();
        let written = format!("{first}{}", std::mem::take(&mut state.pending));
        let is_finished = state.is_finished;
        (state.filter.push(&written, is_finished), is_finished)
    }

    /// Markup that was left out since the last call, each once.
    pub fn take_markup(&self) -> Vec<String> {
        self.lock().filter.take_told()
    }

    /// Passes text on to the prepared request from now on, first what arrived while it was prepared.
    ///
    /// # Errors
    /// That text does not fit.
    pub(in crate::engine) fn attach(
        &self,
        preparer: Arc<dyn RequestPreparer>,
        prepared: Prepared,
        wake: Wake,
    ) -> Result<()> {
        let mut state = self.lock();
        let written = std::mem::take(&mut state.pending);
        let is_finished = state.is_finished;
        let text = state.filter.push(&written, is_finished);
        let progress = preparer.append_text(&prepared, &text, is_finished)?;
        state.attached = Some(Attached { preparer, prepared, progress, wake });
        Ok(())
    }

    /// Positions that can be computed with the text so far; `None` once all can.
    pub(in crate::engine) fn positions(&self) -> Option<usize> {
        self.lock().attached.as_ref().and_then(|attached| attached.progress.positions)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No method leaves the state half changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Attached {
    fn append(&mut self, text: &str, is_last: bool) -> Result<()> {
        self.progress = self.preparer.append_text(&self.prepared, text, is_last)?;
        (self.wake)();
        Ok(())
    }
}
