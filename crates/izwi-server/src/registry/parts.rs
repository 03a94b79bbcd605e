//! Leases for models that are composed of others.

use std::sync::Weak;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use izwi_core::engine::leases::{Engines, Leased};
use izwi_core::engine::{RemoteError, Task};

use super::{Inner, Registry};
use crate::error::ApiError;

/// Suggested time until a retry where the error tells none.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The registry, without keeping it: its engines may hold this.
pub(super) struct Parts(pub(super) Weak<Inner>);

impl Engines for Parts {
    fn lease(&self, model: Option<&str>, task: Task) -> BoxFuture<'static, Result<Leased, RemoteError>> {
        let (inner, model) = (self.0.upgrade(), model.map(str::to_owned));
        async move {
            let inner = inner.ok_or_else(|| RemoteError::Failed("the models are gone".to_owned()))?;
            let lease = Registry { inner }.lease(model.as_deref(), task).await.map_err(refusal)?;
            Ok(Box::new(lease) as Leased)
        }
        .boxed()
    }
}

fn refusal(error: ApiError) -> RemoteError {
    let message = error.to_string();
    match error {
        ApiError::Overloaded { retry_after, .. } => RemoteError::Busy { message, retry_after },
        ApiError::ModelLoading(_) | ApiError::ModelRestarting { .. } | ApiError::NoRoom { .. } => {
            RemoteError::Unavailable { message, retry_after: RETRY_AFTER }
        }
        _ => RemoteError::Failed(message),
    }
}
