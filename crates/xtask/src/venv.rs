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

/// The Wyoming integration of Home Assistant, which the tests run out of its wheel: it is made for a newer Python.
const WHEEL: &str = "tests/clients/frameworks/homeassistant.txt";

/// Downloads the wheel into `target/homeassistant`, unless it is there. `python` has pip.
pub(crate) fn download_wheel(root: &Path, steps: &mut Steps, python: &Path) -> Result<()> {
    let list = root.join(WHEEL);
    let wanted = read(&list)?;
    let folder = root.join("target/homeassistant");
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    let mut download = Command::new(python);
    download.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]);
    download.args(["--only-binary", ":all:", "--python-version", "3.14.2", "--requirement"]).arg(&list);
    steps
        .run("home assistant", download.arg("--dest").arg(&folder))
        .with_context(|| format!("the wheel of {WHEEL} cannot be downloaded"))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

fn python(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}
