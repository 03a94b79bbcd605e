//! The service of this user: its files, and the service manager that runs it.
//!
//! The contents of the files are pure functions of a [`Definition`], on every platform. Knows no settings and no server.

pub(crate) mod activation;
pub(crate) mod autostart;
mod launchd;
pub(crate) mod speech_dispatcher;
mod systemd;
mod tool;

use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::{failure, private_file};

/// What a service runs.
#[derive(Debug, Clone)]
pub(crate) struct Definition {
    /// The `izwi` binary.
    pub(crate) program: PathBuf,
    /// Its configuration file.
    pub(crate) config: PathBuf,
    /// Time to finish open requests, before the process is killed.
    pub(crate) stop_timeout: Duration,
    /// Address of the socket whose first connection starts the server; `None` to start it at login.
    pub(crate) socket: Option<SocketAddr>,
    /// Search path for programs that the server runs, where the service manager has a shorter one.
    pub(crate) search_path: String,
}

/// A file of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ServiceFile {
    /// Where the service manager reads it.
    pub(crate) path: PathBuf,
    /// Its contents.
    pub(crate) text: String,
}

/// The state of one file's unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct UnitState {
    /// The file.
    pub(crate) file: PathBuf,
    /// The state in the words of the service manager.
    pub(crate) state: String,
    /// Whether it runs, or waits for connections.
    pub(crate) active: bool,
    /// Whether it ended with a failure.
    pub(crate) failed: bool,
}

/// A program that starts services and watches them.
pub(crate) trait Manager: Debug {
    /// The files of a service.
    ///
    /// # Errors
    /// The service manager cannot run such a service, or a path cannot be written in its files.
    fn files(&self, definition: &Definition) -> Result<Vec<ServiceFile>>;

    /// The paths of all files that an installation may have.
    fn paths(&self) -> Vec<PathBuf>;

    /// Checks that the service manager runs for this user.
    ///
    /// # Errors
    /// It does not.
    fn check(&self) -> Result<()>;

    /// Starts the service of these files, now and at each login.
    ///
    /// # Errors
    /// It does not start.
    fn start(&self, files: &[PathBuf]) -> Result<()>;

    /// Stops the service of these files, and starts it no more.
    ///
    /// # Errors
    /// It does not stop.
    fn stop(&self, files: &[PathBuf]) -> Result<()>;

    /// Makes the service manager read its files again.
    ///
    /// # Errors
    /// It refuses.
    fn reload(&self) -> Result<()>;

    /// Stops the server and starts it again.
    ///
    /// # Errors
    /// It does not start.
    fn restart(&self) -> Result<()>;

    /// The state of each of these files.
    ///
    /// # Errors
    /// The service manager does not answer.
    fn states(&self, files: &[PathBuf]) -> Result<Vec<UnitState>>;

    /// The command that prints the last `lines` of the log, and with `follow` those that come.
    ///
    /// # Errors
    /// The program for it is not installed, or there is no log.
    fn log(&self, lines: u32, follow: bool) -> Result<Command>;

    /// What the user should know after an installation.
    fn note(&self) -> &'static str;
}

/// The service manager of this system.
///
/// # Errors
/// The system has none that is known, or the user has no home folder.
pub(crate) fn manager() -> Result<Box<dyn Manager>> {
    if cfg!(target_os = "linux") {
        return Ok(Box::new(systemd::Systemd::of_user()?));
    }
    if cfg!(target_os = "macos") {
        return Ok(Box::new(launchd::Launchd::of_user()?));
    }
    Err(failure::with_help(
        format!(
            "izwi is no service on {}: it knows systemd (Linux) and launchd (macOS)",
            std::env::consts::OS
        ),
        "let the scheduler of this system start `izwi serve` at login",
    ))
}

/// What an installation did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Installed {
    /// The files are new.
    New,
    /// They were there with the same contents.
    Unchanged,
}

/// The files that are installed.
pub(crate) fn installed(manager: &dyn Manager) -> Vec<PathBuf> {
    manager.paths().into_iter().filter(|path| path.exists()).collect()
}

/// Writes the files of a service and starts it. Other contents are replaced only with `force`.
///
/// # Errors
/// Another service is installed, the service manager does not run, or the service does not start.
pub(crate) fn install(manager: &dyn Manager, files: &[ServiceFile], force: bool) -> Result<Installed> {
    let present = installed(manager);
    let is_same = |file: &ServiceFile| fs::read_to_string(&file.path).is_ok_and(|text| text == file.text);
    let unchanged = present.len() == files.len() && files.iter().all(is_same);
    if let Some(first) = present.first().filter(|_| !unchanged && !force) {
        return Err(failure::with_help(
            format!("{} is installed already, with other contents", first.display()),
            "`izwi service install --force` replaces it; `--print` shows the new contents",
        ));
    }
    manager.check()?;
    if !unchanged {
        remove(manager, &present)?;
        for ServiceFile { path, text } in files {
            private_file::write(path, text, true)
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
    }
    let paths: Vec<PathBuf> = files.iter().map(|file| file.path.clone()).collect();
    manager.reload()?;
    manager.start(&paths)?;
    Ok(if unchanged { Installed::Unchanged } else { Installed::New })
}

/// Stops the service and removes its files. Returns them.
///
/// # Errors
/// No service is installed, the service manager does not run, or a file cannot be removed.
pub(crate) fn uninstall(manager: &dyn Manager) -> Result<Vec<PathBuf>> {
    let present = expect_installed(manager)?;
    manager.check()?;
    remove(manager, &present)?;
    manager.reload()?;
    Ok(present)
}

/// The installed files.
///
/// # Errors
/// There are none.
pub(crate) fn expect_installed(manager: &dyn Manager) -> Result<Vec<PathBuf>> {
    let present = installed(manager);
    if present.is_empty() {
        return Err(failure::with_help(
            "izwi is not installed as a service",
            "`izwi service install` installs it; `izwi serve` runs it in this terminal",
        ));
    }
    Ok(present)
}

fn remove(manager: &dyn Manager, files: &[PathBuf]) -> Result<()> {
    if files.is_empty() {
        return Ok(());
    }
    manager.stop(files)?;
    for path in files {
        fs::remove_file(path).with_context(|| format!("cannot remove {}", path.display()))?;
    }
    Ok(())
}

/// The absolute folders of a search path.
pub(crate) fn absolute_search_path(search: &OsStr) -> String {
    let folders = std::env::split_paths(search).filter(|folder| folder.is_absolute());
    let joined = std::env::join_paths(folders).unwrap_or_default();
    joined.to_string_lossy().into_owned()
}

/// A path as a service file can hold it.
fn plain(what: &str, path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) if !text.chars().any(char::is_control) => Ok(text.to_owned()),
        _ => Err(failure::with_help(
            format!("the path of the {what}, {path:?}, cannot be written in a service file"),
            "move it to a path in UTF-8 without control characters",
        )),
    }
}

#[cfg(test)]
mod tests;
