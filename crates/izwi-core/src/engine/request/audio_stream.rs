//! Audio of a request that arrives while it is transcribed: the client's side.
//!
//! Must not know queues or the state of the engine.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use izwi_types::{AudioProgress, Prepared};

use super::{EngineCoreRequest, Wake};
use crate::engine::error::{EngineError, Result};
use crate::engine::executor::{ExecutorProfile, RequestPreparer};

/// The most samples that arrive before the request is prepared: four minutes at 16 kHz.
const MAX_PENDING: usize = 240 * 16_000;

/// Audio that arrives while it is transcribed, for [`EngineCoreRequest::listen`]. Clones share the audio.
///
/// Where the audio has run out, the request is held until more arrives or [`AudioStream::finish`] is called; after the
/// engine's `text_timeout` it ends.
#[derive(Clone)]
pub struct AudioStream(Arc<Audio>);

/// The audio has no single owner: the client appends, and what it appended must be known before the engine is woken, even
/// before the request is prepared.
struct Audio {
    chunk_ms: u32,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Samples that arrived before the request was prepared.
    pending: Vec<f32>,
    /// Samples so far.
    samples: u64,
    is_finished: bool,
    attached: Option<Attached>,
}

struct Attached {
    preparer: Arc<dyn RequestPreparer>,
    prepared: Prepared,
    progress: AudioProgress,
    wake: Wake,
}

impl fmt::Debug for AudioStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AudioStream").field("chunk_ms", &self.0.chunk_ms).finish_non_exhaustive()
    }
}

impl PartialEq for AudioStream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl AudioStream {
    /// Without audio yet; `chunk_ms` is one of the model's [`chunks_ms`](izwi_types::ModelInfo::chunks_ms).
    pub fn new(chunk_ms: u32) -> Self {
        Self(Arc::new(Audio { chunk_ms, state: Mutex::default() }))
    }

    /// Appends mono samples at the rate of the model's input.
    ///
    /// # Errors
    /// The audio has ended, or too much of it waits; it is unchanged then.
    pub fn append(&self, samples: &[f32]) -> Result<()> {
        self.extend(samples, false)
    }

    /// Ends the audio. Later calls change nothing.
    ///
    /// # Errors
    /// None that the audio can cause: the end always fits.
    pub fn finish(&self) -> Result<()> {
        if self.lock().is_finished { Ok(()) } else { self.extend(&[], true) }
    }

    /// Samples that had not been computed when the last ones were appended.
    pub fn waiting(&self) -> usize {
        let state = self.lock();
        state.attached.as_ref().map_or(state.pending.len(), |attached| attached.progress.waiting)
    }

    fn extend(&self, samples: &[f32], is_last: bool) -> Result<()> {
        let mut state = self.lock();
        if state.is_finished {
            return Err(EngineError::invalid(
                "audio",
                "the audio has ended already; send more as another request",
            ));
        }
        let State { pending, attached, .. } = &mut *state;
        match attached {
            Some(attached) => {
                attached.progress = attached.preparer.append_audio(&attached.prepared, samples, is_last)?;
                if is_last || !samples.is_empty() {
                    (attached.wake)();
                }
            }
            None if pending.len() + samples.len() > MAX_PENDING => {
                let message = format!("more than {MAX_PENDING} samples wait; send them more slowly");
                return Err(EngineError::invalid("audio", message));
            }
            None => pending.extend_from_slice(samples),
        }
        state.samples += samples.len() as u64;
        state.is_finished = is_last;
        Ok(())
    }

    /// Passes audio on to the prepared request from now on, first what arrived while it was prepared.
    pub(super) fn attach(
        &self,
        preparer: Arc<dyn RequestPreparer>,
        prepared: Prepared,
        wake: Wake,
    ) -> Result<()> {
        let mut state = self.lock();
        let pending = std::mem::take(&mut state.pending);
        let progress = preparer.append_audio(&prepared, &pending, state.is_finished)?;
        state.attached = Some(Attached { preparer, prepared, progress, wake });
        Ok(())
    }

    /// Positions that can be computed with the audio so far, and whether it has ended.
    pub(super) fn reach(&self) -> (Option<usize>, bool) {
        let state = self.lock();
        (state.attached.as_ref().map(|attached| attached.progress.positions), state.is_finished)
    }

    /// Samples so far.
    pub(super) fn samples(&self) -> u64 {
        self.lock().samples
    }

    pub(super) fn chunk_ms(&self) -> u32 {
        self.0.chunk_ms
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No method leaves the state half changed.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that the model transcribes audio as it arrives.
pub(super) fn check(request: &EngineCoreRequest, profile: &ExecutorProfile) -> Result<()> {
    let Some(stream) = &request.audio_stream else { return Ok(()) };
    let (model, known, wanted) = (&profile.model, &profile.info.chunks_ms, stream.chunk_ms());
    if known.contains(&wanted) {
        return Ok(());
    }
    let message = match known.as_slice() {
        [] => format!("model '{model}' takes a recording as a whole; send it at once"),
        known => format!("model '{model}' takes audio in chunks of {known:?} ms, not {wanted}"),
    };
    Err(EngineError::invalid("chunk_ms", message))
}
