//! Windows: no icon is shown there.

use anyhow::Result;
use tokio::sync::mpsc;

use super::{Click, MAX_CLICKS, View};
use crate::failure;

/// No icon.
#[derive(Debug)]
pub(crate) struct Tray<C: Click>(mpsc::Sender<C>);

/// Runs `work` with a tray that cannot be shown.
pub(crate) fn with_tray<C: Click, T: Send>(
    _waits: bool,
    work: impl FnOnce(Tray<C>, mpsc::Receiver<C>) -> T + Send,
) -> T {
    let (clicks, receiver) = mpsc::channel(MAX_CLICKS);
    work(Tray(clicks), receiver)
}

impl<C: Click> Tray<C> {
    /// # Errors
    /// Always.
    #[allow(clippy::unused_async, reason = "the signature is that of other systems")]
    pub(crate) async fn show(&mut self, _view: View<C>) -> Result<()> {
        let help = "`izwi status` and `izwi dictate --type` work without it";
        Err(failure::with_help("no icon is shown on this system", help))
    }

    pub(crate) async fn ended(&mut self) {
        std::future::pending().await
    }

    pub(crate) fn tell(&self, _message: &str) {}
}
