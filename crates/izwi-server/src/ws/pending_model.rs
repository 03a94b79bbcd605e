//! A session's model while it loads, and the frames that wait for it. Knows no socket and no frame.

use std::collections::VecDeque;

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::error::ApiError;

/// At most one model that is being loaded.
pub(super) struct PendingModel<F, M> {
    loading: Option<BoxFuture<'static, Result<M, ApiError>>>,
    frames: VecDeque<F>,
}

impl<F, M> Default for PendingModel<F, M> {
    fn default() -> Self {
        Self { loading: None, frames: VecDeque::new() }
    }
}

impl<F, M> PendingModel<F, M> {
    /// Starts to wait for a model. One that is loaded already is returned at once.
    pub(super) fn load(
        &mut self,
        mut loading: BoxFuture<'static, Result<M, ApiError>>,
    ) -> Option<Result<M, ApiError>> {
        let model = (&mut loading).now_or_never();
        self.loading = model.is_none().then_some(loading);
        model
    }

    pub(super) fn is_loading(&self) -> bool {
        self.loading.is_some()
    }

    /// Waits until the model is loaded, or cannot be; forever if none is being loaded. Cancel-safe.
    pub(super) async fn loaded(&mut self) -> Result<M, ApiError> {
        let Some(loading) = &mut self.loading else { return std::future::pending().await };
        let model = loading.await;
        self.loading = None;
        model
    }

    /// Keeps a frame until the model is loaded.
    pub(super) fn hold(&mut self, frame: F) {
        self.frames.push_back(frame);
    }

    pub(super) fn held(&self) -> usize {
        self.frames.len()
    }

    pub(super) fn take_held(&mut self) -> VecDeque<F> {
        std::mem::take(&mut self.frames)
    }

    /// Stops waiting and drops the held frames. False if there were none.
    pub(super) fn abandon(&mut self) -> bool {
        self.loading = None;
        !self.take_held().is_empty()
    }
}
