//! Waiting for a session's model to load and its voice to be found, and the frames that wait meanwhile.
//!
//! Knows no socket and no script: what the frames mean is the session's business.

use std::collections::VecDeque;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::dto::session::ClientFrame;
use crate::error::ApiError;
use crate::registry::Lease;
use crate::voices::Voice;

/// A model and the voice of it that was asked for.
pub(super) struct Cast {
    pub(super) engine: Lease,
    /// `None` where the model has no voices.
    pub(super) voice: Option<Voice>,
}

type Arriving = Result<Cast, ApiError>;

/// At most one model on its way, and what waits for it.
#[derive(Default)]
pub(super) struct Arrival {
    under_way: Option<BoxFuture<'static, Arriving>>,
    arrived: Option<Arriving>,
    frames: VecDeque<ClientFrame>,
}

impl Arrival {
    /// Begins to wait for a model; one that is loaded has arrived at once.
    pub(super) fn begin(&mut self, mut leasing: BoxFuture<'static, Arriving>) {
        self.arrived = (&mut leasing).now_or_never();
        self.under_way = self.arrived.is_none().then_some(leasing);
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.is_some()
    }

    /// Waits until the model on its way has arrived, or will not. Cancel-safe.
    pub(super) async fn settled(&mut self) {
        if let Some(leasing) = &mut self.under_way {
            self.arrived = Some(leasing.await);
            self.under_way = None;
        }
    }

    /// The model that has arrived.
    pub(super) fn take_model(&mut self) -> Arriving {
        const NONE: ApiError = ApiError::OutOfOrder("no model was asked for; send session.config first");
        self.arrived.take().unwrap_or(Err(NONE))
    }

    /// Forgets a model that arrived and was not taken.
    pub(super) fn forget(&mut self) {
        self.arrived = None;
    }

    /// Keeps a frame until the model has arrived.
    pub(super) fn wait(&mut self, frame: ClientFrame) {
        self.frames.push_back(frame);
    }

    pub(super) fn waiting(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn take_waiting(&mut self) -> VecDeque<ClientFrame> {
        std::mem::take(&mut self.frames)
    }

    /// Waits for nothing any more. False if nothing waited.
    pub(super) fn abandon(&mut self) -> bool {
        self.under_way = None;
        self.arrived = None;
        !self.take_waiting().is_empty()
    }
}
