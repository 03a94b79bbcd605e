//! The wish of a person or the system that the process stops: Ctrl-C, and SIGTERM where there is one.

use anyhow::{Context as _, Result};

/// Signals that ask to stop, heard from the moment this is made.
#[derive(Debug)]
pub(crate) struct Interrupt {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
}

impl Interrupt {
    /// Begins to listen. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The system refuses to deliver signals.
    pub(crate) fn listen() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let heard = |kind| signal(kind).context("cannot listen for signals");
            Ok(Self {
                terminate: heard(SignalKind::terminate())?,
                interrupt: heard(SignalKind::interrupt())?,
            })
        }
        #[cfg(not(unix))]
        {
            Ok(Self {})
        }
    }

    /// Waits for the next wish to stop.
    pub(crate) async fn requested(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(not(unix))]
        if tokio::signal::ctrl_c().await.is_err() {
            // No signal can be heard: nobody will ask.
            std::future::pending::<()>().await;
        }
    }
}
