//! Waiting for a session's model to load and what else it needs of it to be found, and the frames that wait meanwhile.
//!
//! Knows no socket: what the frames mean is the session's business.

use std::collections::VecDeque;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::ApiError;

/// At most one model on its way, and what waits for it.
pub(super) struct Arrival<F, M> {
    under_way: Option<BoxFuture<'static, Result<M, ApiError>>>,
    arrived: Option<Result<M, ApiError>>,
    frames: VecDeque<F>,
}

impl<F, M> Default for Arrival<F, M> {
    fn default() -> Self {
        Self { under_way: None, arrived: None, frames: VecDeque::new() }
    }
}

impl<F, M> Arrival<F, M> {
    /// Begins to wait for a model; one that is loaded has arrived at once.
    pub(super) fn begin(&mut self, mut leasing: BoxFuture<'static, Result<M, ApiError>>) {
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
    pub(super) fn take_model(&mut self) -> Result<M, ApiError> {
        const NONE: ApiError = ApiError::OutOfOrder("no model was asked for; send session.config first");
        self.arrived.take().unwrap_or(Err(NONE))
    }

    /// Forgets a model that arrived and was not taken.
    pub(super) fn forget(&mut self) {
        self.arrived = None;
    }

    /// Keeps a frame until the model has arrived.
    pub(super) fn wait(&mut self, frame: F) {
        self.frames.push_back(frame);
    }

    pub(super) fn waiting(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn take_waiting(&mut self) -> VecDeque<F> {
        std::mem::take(&mut self.frames)
    }

    /// Waits for nothing any more. False if nothing waited.
    pub(super) fn abandon(&mut self) -> bool {
        self.under_way = None;
        self.arrived = None;
        !self.take_waiting().is_empty()
    }
}
