//! What clients do while they wait for their sequences: those that catch up, and those that disconnect.
//!
//! Must not know what is delivered.

use std::collections::BTreeMap;
use std::task::{Context, Poll, Waker};

use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc;

use super::{Delivery, Pushed, Sequence, Sequences};
use crate::engine::metrics::MetricsCollector;
use crate::engine::types::{SequenceId, StreamingOutput};

/// An event of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum DeliveryEvent {
    /// All pending chunks were delivered: resume the sequence.
    CaughtUp(SequenceId),
    /// The client disconnected.
    Disconnected(SequenceId),
}

/// The clients of which an event is awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum Watch {
    /// Those that are slow, as they take what waits for them.
    Slow,
    /// Those that are slow or have more text to send.
    Idle,
    All,
}

/// A place in the channel of a slow client; an error if it disconnected.
pub(super) type Permit = Result<mpsc::OwnedPermit<StreamingOutput>, ()>;

/// Places in the channels of slow clients, as they come free.
pub(super) type Permits = FuturesUnordered<BoxFuture<'static, (SequenceId, Permit)>>;

impl Sequences {
    /// Waits for an event of a client. Cancel-safe. Never returns while there is none.
    pub(in crate::engine) async fn next_event(
        &mut self,
        watch: Watch,
        metrics: &MetricsCollector,
    ) -> DeliveryEvent {
        loop {
            let Self { by_id, permits, .. } = self;
            let (sequence, permit) = tokio::select! {
                biased;
                Some(permit) = permits.next() => permit,
                sequence = next_gone(by_id, watch) => return DeliveryEvent::Disconnected(sequence),
            };
            if let Some(event) = self.resume(sequence, permit, metrics) {
                return event;
            }
        }
    }

    /// Events that are ready now.
    pub(in crate::engine) fn ready_events(&mut self, metrics: &MetricsCollector) -> Vec<DeliveryEvent> {
        let mut events = Vec::new();
        let mut context = Context::from_waker(Waker::noop());
        while let Poll::Ready(Some((sequence, permit))) = self.permits.poll_next_unpin(&mut context) {
            events.extend(self.resume(sequence, permit, metrics));
        }
        events
    }

    /// Whether some client is blocking, or its sequence waits for text.
    pub(in crate::engine) fn has_idle(&self) -> bool {
        !self.permits.is_empty() || self.sessions().any(|(_, session)| session.waiting_since.is_some())
    }

    fn resume(
        &mut self,
        sequence: SequenceId,
        permit: Permit,
        metrics: &MetricsCollector,
    ) -> Option<DeliveryEvent> {
        let sample_rate = self.sample_rate;
        let session = self.session_mut(sequence)?;
        let Ok(permit) = permit else { return Some(DeliveryEvent::Disconnected(sequence)) };
        if let Some(since) = session.blocked_since {
            session.stall_clock.wait(since.elapsed());
        }
        if let Some((chunk, made_at)) = session.pending.pop_front() {
            session.leaves(chunk.samples.len(), made_at, sample_rate, metrics);
            session.stall_clock.take(session.playing_time(&chunk));
            permit.send(chunk);
        }
        if let Some(since) = session.blocked_since.take() {
            session.blocked_total += since.elapsed();
        }
        match self.send(sequence, metrics) {
            Pushed::Open { .. } => Some(DeliveryEvent::CaughtUp(sequence)),
            Pushed::Disconnected => Some(DeliveryEvent::Disconnected(sequence)),
            Pushed::Blocked => None,
        }
    }
}

/// The first watched client that disconnects.
async fn next_gone(by_id: &mut BTreeMap<SequenceId, Sequence>, watch: Watch) -> SequenceId {
    let watched = by_id.iter_mut().filter(|(_, Sequence { session, .. })| match watch {
        Watch::Slow => false,
        Watch::Idle => session.waiting_since.is_some(),
        Watch::All => true,
    });
    let closed = watched.filter_map(|(id, sequence)| {
        let closed = match &mut sequence.session.client.delivery {
            Delivery::Stream(channel) => channel.closed().boxed(),
            Delivery::Whole(reply) => reply.closed().boxed(),
            Delivery::Step => return None,
        };
        Some(closed.map(|()| *id))
    });
    match closed.collect::<FuturesUnordered<_>>().into_future().await {
        (Some(sequence), _) => sequence,
        (None, _) => std::future::pending().await,
    }
}
