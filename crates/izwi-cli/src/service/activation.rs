//! What a service manager hands to a server, and what it hears from it: a listening socket, and when the server is ready.
//!
//! Without a service manager nothing is handed over and nobody hears. Knows no server.

use std::net::TcpListener;

use anyhow::Result;

#[cfg(unix)]
use crate::failure;

/// The TCP socket that was passed to this process, if any was. Must be called while the process has one thread: the
/// variables that announce the socket are removed.
///
/// # Errors
/// Several sockets were passed, or one that is no TCP socket.
#[cfg(unix)]
pub(crate) fn listener() -> Result<Option<TcpListener>> {
    let mut passed = listenfd::ListenFd::from_env();
    if passed.len() > 1 {
        return Err(failure::with_help(
            format!("LISTEN_FDS: {} sockets are passed; izwi takes one, for HTTP", passed.len()),
            "keep one ListenStream= in the socket unit",
        ));
    }
    passed.take_tcp_listener(0).map_err(|error| {
        failure::with_help(
            format!("LISTEN_FDS: the passed socket cannot be used: {error}"),
            "pass a listening TCP socket as file descriptor 3",
        )
    })
}

#[cfg(not(unix))]
pub(crate) fn listener() -> Result<Option<TcpListener>> {
    Ok(None)
}

/// Tells the service manager that the server accepts connections on `url`.
pub(crate) fn ready(url: &str) {
    #[cfg(unix)]
    notify(&[sd_notify::NotifyState::Ready, sd_notify::NotifyState::Status(&format!("serves on {url}"))]);
    #[cfg(not(unix))]
    let _ = url;
}

/// Tells the service manager that the server finishes its open requests.
pub(crate) fn stopping() {
    #[cfg(unix)]
    notify(&[sd_notify::NotifyState::Stopping, sd_notify::NotifyState::Status("finishes open requests")]);
}

#[cfg(unix)]
fn notify(state: &[sd_notify::NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::warn!(%error, "the service manager could not be notified (NOTIFY_SOCKET)");
    }
}
