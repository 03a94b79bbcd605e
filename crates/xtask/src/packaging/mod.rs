//! Packages of the program and its clients: archives of a release, the files next to them, static checks, and a trial of each
//! way of installation on this machine.

mod archive;
mod check;
mod release;
mod trial;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process;
use crate::venv::Environment;
use crate::workspace::read;

pub(crate) use archive::make as make_archive;
pub(crate) use check::check;
pub(crate) use release::write_files as write_release_files;
pub(crate) use trial::run as try_packages;

/// The platforms of a release.
const TARGETS: [&str; 3] = ["aarch64-apple-darwin", "aarch64-unknown-linux-gnu", "x86_64-unknown-linux-gnu"];
const PYTHON_CLIENT: &str = "assets/clients/python";
const NODE_CLIENT: &str = "assets/clients/node";
/// Linters, and the builder of wheels.
const TOOLS: Environment =
    Environment { folder: "venv-packaging", requirements: "assets/packaging/requirements.txt" };

/// Where packages are made.
fn folder(root: &Path) -> PathBuf {
    root.join("target/packages")
}

/// The version of the workspace.
fn version(root: &Path) -> Result<String> {
    let manifest: toml::Table =
        read(&root.join("Cargo.toml"))?.parse().context("Cargo.toml does not parse")?;
    let version = manifest.get("workspace").and_then(|workspace| workspace.get("package")?.get("version"));
    let version =
        version.and_then(toml::Value::as_str).context("Cargo.toml has no workspace.package.version")?;
    Ok(version.to_owned())
}

/// The program of the tools' environment.
fn tool(python: &Path, name: &str) -> PathBuf {
    python.with_file_name(format!("{name}{}", std::env::consts::EXE_SUFFIX))
}

/// The platform of this machine, as rustc names it.
fn host() -> Result<String> {
    let output = process::output(std::process::Command::new("rustc").arg("-vV"))?;
    let output = String::from_utf8_lossy(&output);
    let host = output.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` names no host")?.to_owned())
}
