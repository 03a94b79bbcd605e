//! Packages of Debian and its relatives, installed where this process may.

use std::process::Command;

use anyhow::Result;

use crate::process;

/// Installs packages if this machine has apt and the user is root; does nothing otherwise.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    if !is_root() || !process::is_installed("apt-get") {
        return Ok(());
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        process::run(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let install = [&["install", "-y", "--no-install-recommends"], packages].concat();
    apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))
}

fn is_root() -> bool {
    process::output(Command::new("id").arg("-u")).is_ok_and(|user| user.trim_ascii() == b"0")
}
