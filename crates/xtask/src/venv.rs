//! Python environments below `target/` with pinned packages, each made again when its list changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::Steps;
use crate::workspace::read;

/// One environment: its folder below `target/`, and the list of its packages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Environment {
    pub(crate) folder: &'static str,
    pub(crate) requirements: &'static str,
}

/// The published clients that tests run.
pub(crate) const CLIENTS: Environment =
    Environment { folder: "venv", requirements: "tests/clients/requirements.txt" };
/// The C++ compiler of the Metal emulator.
pub(crate) const ZIG: Environment =
    Environment { folder: "venv-zig", requirements: "scripts/metal-emulator/requirements.txt" };

/// The installer: a tenth of the time of pip.
const INSTALLER: &str = "uv==0.13.9";

/// Makes the environment, unless it is there and complete. Returns its Python.
pub(crate) fn make(root: &Path, steps: &mut Steps, environment: Environment) -> Result<PathBuf> {
    let list = root.join(environment.requirements);
    let wanted = read(&list)?;
    let folder = root.join("target").join(environment.folder);
    // Written last, so that an environment that is not complete is made again.
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(python(&folder));
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&folder);
    steps.run("python environment", &mut create).context(
        "this needs Python 3.11 or later with its venv module: install it (on Debian: python3 and python3-venv)",
    )?;
    let mut installer = Command::new(python(&folder));
    installer.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", INSTALLER]);
    steps.run("python installer", &mut installer)?;
    let mut install = Command::new(python(&folder));
    install.args(["-m", "uv", "pip", "install", "--quiet", "--python"]).arg(python(&folder));
    install.arg("--requirements").arg(&list);
    // The index of pip is the index of its stand-in.
    if let Some(index) = std::env::var_os("PIP_INDEX_URL") {
        install.env("UV_DEFAULT_INDEX", index);
    }
    steps
        .run("python packages", &mut install)
        .with_context(|| format!("the packages of {} cannot be installed", environment.requirements))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python(&folder))
}

fn python(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}
