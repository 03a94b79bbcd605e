//! The balancers of the tests of replicas: HAProxy and NGINX.
//!
//! Installs them if it can; if it cannot, says so and succeeds: the tests of a missing one are not run then.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::apt;
use crate::steps::Steps;

/// Programs and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 2] = [("haproxy", "haproxy"), ("nginx", "nginx-light")];
/// Folders of programs, as `crates/izwi-cli/tests/cli/replicas/balancer.rs` adds them to PATH.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/usr/local/sbin"];
/// Exists where systemd runs, which would start what is installed.
const SYSTEMD: &str = "/run/systemd/system";

/// Installs what is missing, where an installation starts no service.
pub(crate) fn make(steps: &mut Steps) -> Result<()> {
    let missing =
        || PROGRAMS.iter().filter(|(program, _)| find(program).is_none()).map(|(_, package)| *package);
    let packages: Vec<&str> = missing().collect();
    if packages.is_empty() {
        return Ok(());
    }
    if !Path::new(SYSTEMD).exists() {
        steps.time("balancers", || apt::install(&packages))?;
    }
    let packages: Vec<&str> = missing().collect();
    if !packages.is_empty() {
        eprintln!(
            "\n==> the tests of replicas behind them are not run; on Debian install {}",
            packages.join(" ")
        );
    }
    Ok(())
}

/// An installed program.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|program| program.is_file())
}
