//! Requests to stop the process: Ctrl-C, and SIGTERM on Unix.

use std::future::Future;

use anyhow::{Context as _, Result};

use crate::failure::Failure;

/// The signals that ask the process to stop, received from the moment this is created.
#[derive(Debug)]
pub(crate) struct Interrupt {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Interrupt {
    /// Installs the signal handlers. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system refuses the handlers.
    pub(crate) fn listen() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let handler = |kind| signal(kind).context("cannot install a signal handler");
            Ok(Self {
                terminate: handler(SignalKind::terminate())?,
                interrupt: handler(SignalKind::interrupt())?,
            })
        }
        #[cfg(not(unix))]
        {
            Ok(Self {})
        }
    }

    /// Waits for the next signal.
    pub(crate) async fn requested(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            // No signal can be received.
            std::future::pending::<()>().await;
        }
    }

    /// Runs `work` to its end, or drops it at the next signal.
    ///
    /// # Errors
    /// `work` fails, or [`Failure::Interrupted`].
    pub(crate) async fn guard<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            result = work => result,
            () = self.requested() => Err(Failure::Interrupted.into()),
        }
    }

    /// Runs `work` until it fails or the next signal, which is how it is meant to end.
    ///
    /// # Errors
    /// `work` fails.
    pub(crate) async fn guard_to_end(&mut self, work: impl Future<Output = Result<()>>) -> Result<()> {
        tokio::select! {
            result = work => result,
            () = self.requested() => Ok(()),
        }
    }
}
