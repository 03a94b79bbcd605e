//! Text of a simulated request that arrives while it is spoken: a generated token for each of its bytes, and one behind
//! the last.
//!
//! The prompt is that of the voice and the first byte; each generated position depends on the next byte.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use izwi_types::{InputError, Prepared, TextProgress, Work};

use super::{Job, mix};

/// Positions of the voice before the text.
const VOICE: usize = 40;
/// The most bytes of a text.
const MOST: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct OpenText(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    /// White space that is dropped if the text ends after it.
    rest: String,
    has_ended: bool,
}

/// A request for a text that begins with `text`.
pub(super) fn prepare(text: &str, has_more: bool, seed: u64) -> Result<Prepared, InputError> {
    let first = text.bytes().next().unwrap_or_default();
    let prompt = (0..VOICE as u64).map(|at| mix(7, at)).chain([u64::from(first)]).collect();
    let open = Arc::new(OpenText::default());
    open.append(text, !has_more)?;
    let job = Job {
        length: usize::MAX,
        passes: 1,
        words: Vec::new(),
        is_chat: false,
        seed,
        prompt: Vec::new(),
        open_text: Some(open),
    };
    Ok(Prepared::new(Work::Autoregressive { prompt, encoders: Arc::new([]), branches: 1 }, Arc::new(job)))
}

impl OpenText {
    pub(super) fn append(&self, text: &str, is_last: bool) -> Result<TextProgress, InputError> {
        let mut state = self.lock();
        let joined = format!("{}{text}", state.rest);
        let total = state.bytes.len() + joined.len();
        if total > MOST || state.has_ended {
            let message = format!("the text has {total} bytes of {MOST}, or has ended; send more as another");
            return Err(InputError { param: "input", message });
        }
        let (known, rest) = joined.split_at(joined.trim_end().len());
        state.bytes.extend(known.bytes());
        rest.clone_into(&mut state.rest);
        state.has_ended = is_last;
        let positions = VOICE + state.bytes.len();
        Ok(TextProgress { positions: (!is_last).then_some(positions), tokens_left: MOST - total })
    }

    /// What a generated position adds to its token; `None` where the text has not arrived.
    pub(super) fn input_of(&self, generated: usize) -> Option<u64> {
        let state = self.lock();
        let byte = state.bytes.get(generated + 1).map(|&byte| u64::from(byte) + 1);
        byte.or(state.has_ended.then_some(0))
    }

    /// Generated tokens after which it is spoken.
    pub(super) fn length(&self) -> usize {
        let state = self.lock();
        if state.has_ended { state.bytes.len() + 1 } else { usize::MAX }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
