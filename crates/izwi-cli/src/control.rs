//! How a command of this user tells another one that runs to begin or to stop: a socket in the folder for them.
//!
//! Only the user can open it. Knows no command.

use std::path::{Path, PathBuf};

use anyhow::Result;

#[cfg(not(unix))]
use self::no_sockets as sockets;
#[cfg(unix)]
use self::unix_sockets as sockets;

/// The name under which a dictation that waits listens.
pub(crate) const DICTATE: &str = "dictate";
/// The name under which a command that speaks a selection listens.
pub(crate) const SPEAK_SELECTION: &str = "speak-selection";
/// The name under which the icon in the tray listens.
pub(crate) const TRAY: &str = "tray";

/// Receives what other commands tell.
#[derive(Debug)]
pub(crate) struct Control(sockets::Control);

impl Control {
    /// Listens under a name. `None` if another command does.
    ///
    /// # Errors
    /// The socket cannot be made.
    pub(crate) fn listen(home: &Path, name: &str) -> Result<Option<Self>> {
        Ok(sockets::listen(&path(home, name))?.map(Self))
    }

    /// Waits until another command tells something. Must be called within a tokio runtime.
    pub(crate) async fn next(&mut self) {
        self.0.next().await;
    }
}

/// Tells the command that listens under a name. False if none does.
///
/// # Errors
/// The system has no such sockets.
pub(crate) fn tell(home: &Path, name: &str) -> Result<bool> {
    sockets::tell(&path(home, name))
}

/// The folder of the session, or else that of the model store.
fn path(home: &Path, name: &str) -> PathBuf {
    let session = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    session.map_or_else(|| home.to_path_buf(), PathBuf::from).join(format!("izwi-{name}.sock"))
}

#[cfg(unix)]
mod unix_sockets {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    use anyhow::{Context as _, Result};
    use tokio::io::AsyncReadExt as _;

    /// Time in which a command that connects must say something.
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);

    #[derive(Debug)]
    pub(super) struct Control {
        path: PathBuf,
        listener: UnixListener,
        tokio: Option<tokio::net::UnixListener>,
    }

    pub(super) fn listen(path: &Path) -> Result<Option<Control>> {
        if tell_nothing(path) {
            return Ok(None);
        }
        // Of a command that was killed.
        let _ = fs::remove_file(path);
        let bound = || -> std::io::Result<UnixListener> {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            let listener = UnixListener::bind(path)?;
            fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = bound().with_context(|| format!("cannot listen on {}", path.display()))?;
        Ok(Some(Control { path: path.to_path_buf(), listener, tokio: None }))
    }

    pub(super) fn tell(path: &Path) -> Result<bool> {
        let Ok(mut stream) = UnixStream::connect(path) else { return Ok(false) };
        Ok(std::io::Write::write_all(&mut stream, b"\n").is_ok())
    }

    /// Whether somebody listens; it hears nothing.
    fn tell_nothing(path: &Path) -> bool {
        UnixStream::connect(path).is_ok()
    }

    impl Control {
        pub(super) async fn next(&mut self) {
            loop {
                if let Some(listener) = &self.tokio {
                    let Ok((stream, _)) = listener.accept().await else {
                        // Without descriptors nothing is heard for a while.
                        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
                        continue;
                    };
                    if is_told(stream).await {
                        return;
                    }
                } else {
                    let clone = self.listener.try_clone().and_then(tokio::net::UnixListener::from_std);
                    match clone {
                        Ok(listener) => self.tokio = Some(listener),
                        Err(_) => return std::future::pending().await,
                    }
                }
            }
        }
    }

    /// Whether a connection says something before it closes.
    async fn is_told(mut stream: tokio::net::UnixStream) -> bool {
        let mut byte = [0];
        let read = tokio::time::timeout(PATIENCE, stream.read(&mut byte));
        matches!(read.await, Ok(Ok(1)))
    }

    impl Drop for Control {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.path);
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[tokio::test]
        async fn one_command_listens_and_hears_others() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run/izwi-test.sock");
            assert!(!tell(&path).unwrap(), "nobody listens");
            let mut control = listen(&path).unwrap().unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(listen(&path).unwrap().is_none(), "one listens already");
            assert!(tell(&path).unwrap());
            control.next().await;
            drop(control);
            assert!(!path.exists());
            // One that was killed leaves its socket.
            drop(UnixListener::bind(&path).unwrap());
            assert!(!tell(&path).unwrap() && listen(&path).unwrap().is_some());
        }
    }
}

#[cfg(not(unix))]
mod no_sockets {
    use std::path::Path;

    use anyhow::{Result, bail};

    #[derive(Debug)]
    pub(super) struct Control;

    #[allow(clippy::unnecessary_wraps, reason = "the signature is that of other systems")]
    pub(super) fn listen(_path: &Path) -> Result<Option<Control>> {
        Ok(Some(Control))
    }

    pub(super) fn tell(_path: &Path) -> Result<bool> {
        bail!("no command can be told to begin or to stop on this system")
    }

    impl Control {
        pub(super) async fn next(&mut self) {
            std::future::pending().await
        }
    }
}
