//! Windows, and builds without the feature `tray`: they show no icon.

use anyhow::Result;
use tokio::sync::mpsc;

use super::{Click, MAX_CLICKS, View};
use crate::failure;

/// No icon.
#[derive(Debug)]
pub(crate) struct Tray<C: Click> {
    /// No click comes, and the receiver waits for ever.
    _clicks: mpsc::Sender<C>,
}

/// Runs `work` with a tray that cannot be shown.
pub(crate) fn with_tray<C: Click, T: Send>(
    _waits: bool,
    work: impl FnOnce(Tray<C>, mpsc::Receiver<C>) -> T + Send,
) -> T {
    let (clicks, receiver) = mpsc::channel(MAX_CLICKS);
    work(Tray { _clicks: clicks }, receiver)
}

impl<C: Click> Tray<C> {
    /// # Errors
    /// Always.
    #[allow(clippy::unused_async, reason = "the signature is that of other systems")]
    pub(crate) async fn show(&mut self, _view: View<C>) -> Result<()> {
        let help = "`izwi status` and `izwi dictate --type` work without it; on Linux and macOS build with the feature tray";
        Err(failure::with_help("this build of izwi shows no icon", help))
    }

    pub(crate) async fn ended(&mut self) {
        std::future::pending().await
    }

    pub(crate) fn tell(&self, _message: &str) {}
}
