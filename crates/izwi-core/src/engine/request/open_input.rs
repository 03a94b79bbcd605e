//! Input of a request that arrives while it is computed: text or audio.
//!
//! Must not know queues or the state of the engine.

use std::sync::Arc;

use izwi_types::Prepared;

use super::{AudioStream, TextInput, Wake};
use crate::engine::error::Result;
use crate::engine::executor::RequestPreparer;

/// Where more input comes from.
#[derive(Debug, Clone)]
pub(in crate::engine) enum OpenInput {
    Text(TextInput),
    Audio(AudioStream),
}

impl OpenInput {
    /// Passes input on to the prepared request from now on, first what arrived while it was prepared.
    ///
    /// # Errors
    /// That input does not fit.
    pub(in crate::engine) fn attach(
        &self,
        preparer: Arc<dyn RequestPreparer>,
        prepared: Prepared,
        wake: Wake,
    ) -> Result<()> {
        match self {
            Self::Text(text) => text.attach(preparer, prepared, wake),
            Self::Audio(audio) => audio.attach(preparer, prepared, wake),
        }
    }

    /// Positions that can be computed with the input so far, `None` where that is all, and whether it has ended.
    pub(in crate::engine) fn reach(&self) -> (Option<usize>, bool) {
        match self {
            Self::Text(text) => {
                let positions = text.positions();
                (positions, positions.is_none())
            }
            Self::Audio(audio) => audio.reach(),
        }
    }

    /// Samples so far; `None` for text.
    pub(in crate::engine) fn samples(&self) -> Option<u64> {
        match self {
            Self::Text(_) => None,
            Self::Audio(audio) => Some(audio.samples()),
        }
    }
}
