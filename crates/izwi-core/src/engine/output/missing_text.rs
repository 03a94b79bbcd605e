//! Sessions whose sequences wait for more text of their clients: what is not counted meanwhile, and who disconnects.
//!
//! Must not know the text.

use std::collections::BTreeMap;

use futures::FutureExt;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::time::Instant;

use super::{Delivery, OutputProcessor, Session};
use crate::engine::types::SequenceId;

impl OutputProcessor {
    /// Sets whether a sequence waits for text: its listener hears a gap that is not the engine's.
    pub(in crate::engine) fn set_waiting(&mut self, sequence: SequenceId, waits: bool) {
        let Some(session) = self.sessions.get_mut(&sequence) else { return };
        match session.waiting_since {
            None if waits => session.waiting_since = Some(Instant::now()),
            Some(since) if !waits => {
                session.waiting_since = None;
                let now = Instant::now();
                session.blocked_total += now - since;
                session.playback.wait(now);
            }
            _ => {}
        }
    }

    /// Whether some client is blocking, or its sequence waits for text.
    pub(in crate::engine) fn has_idle(&self) -> bool {
        !self.permits.is_empty() || self.sessions.values().any(|session| session.waiting_since.is_some())
    }
}

/// The first client that disconnects.
pub(super) async fn next_gone(sessions: &mut BTreeMap<SequenceId, Session>) -> SequenceId {
    let gone: FuturesUnordered<_> = sessions
        .iter_mut()
        .filter_map(|(sequence, session)| {
            let closed = match &mut session.start.delivery {
                Delivery::Stream(channel) => channel.closed().boxed(),
                Delivery::Whole(reply) => reply.closed().boxed(),
                Delivery::Kept => return None,
            };
            Some(closed.map(|()| *sequence))
        })
        .collect();
    match gone.into_future().await {
        (Some(sequence), _) => sequence,
        (None, _) => std::future::pending().await,
    }
}

/// The first client that disconnects of those whose sequences wait for text.
pub(super) async fn next_closed(sessions: &BTreeMap<SequenceId, Session>) -> SequenceId {
    let streams = sessions.iter().filter(|(_, session)| session.waiting_since.is_some());
    let closed: FuturesUnordered<_> = streams
        .filter_map(|(sequence, session)| match &session.start.delivery {
            Delivery::Stream(channel) => Some(channel.closed().map(|()| *sequence)),
            Delivery::Whole(_) | Delivery::Kept => None,
        })
        .collect();
    match closed.into_future().await {
        (Some(sequence), _) => sequence,
        (None, _) => std::future::pending().await,
    }
}
