//! Waits that end.

use std::future::Future;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::GUARD;

/// The result of a future that must come, in whatever time.
pub async fn guarded<F: Future>(future: F) -> Result<F::Output> {
    tokio::time::timeout(GUARD, future).await.context("nothing happened within the guard time")
}

/// Waits until a condition holds.
pub async fn eventually<F, Fut>(what: &str, mut holds: F) -> Result<()>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<bool>>,
{
    let wait = async {
        while !holds().await? {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        anyhow::Ok(())
    };
    guarded(wait).await.with_context(|| format!("waiting for {what}"))?
}
