//! A key that comes in a message of a WebSocket. Knows no message.

use std::time::Instant;

use crate::error::ApiError;
use crate::peer::Peer;
use crate::state::AppState;

/// Marks a request that may bring its key later, in a message. Until it does, nothing may be done for it.
#[derive(Debug, Clone, Copy)]
pub struct LateKey {
    peer: Option<Peer>,
}

impl LateKey {
    /// Of a request of this peer.
    pub(crate) fn new(peer: Option<Peer>) -> Self {
        Self { peer }
    }

    /// Whether `key` is right, from a peer that may still try. Counts nothing.
    pub fn is_right(self, state: &AppState, key: &str, now: Instant) -> bool {
        let may_try = self.peer.is_none_or(|peer| state.key_throttle().check(peer, now).is_ok());
        may_try && state.api_key().is_some_and(|expected| expected.is(key))
    }

    /// Checks the key of a message as that of a request is checked.
    pub fn check(self, state: &AppState, key: Option<&str>, now: Instant) -> Result<(), ApiError> {
        let Some(key) = key else { return Err(ApiError::Unauthorized) };
        if let Some(peer) = self.peer {
            let throttled = state.key_throttle().check(peer, now);
            throttled.map_err(|retry_after| ApiError::TooManyWrongKeys { retry_after })?;
        }
        if self.is_right(state, key, now) {
            return Ok(());
        }
        if let Some(peer) = self.peer {
            state.key_throttle().failed(peer, now);
        }
        Err(ApiError::Unauthorized)
    }
}
