//! The Python of the tests that use published clients: a virtual environment in `target/` with pinned packages, made
//! again when their list changes.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::steps::Steps;

const REQUIREMENTS: &str = "tests/openai/requirements.txt";

/// Makes the environment, unless it is there and complete.
pub(crate) fn make(root: &Path, steps: &mut Steps) -> Result<()> {
    let list = root.join(REQUIREMENTS);
    let wanted = std::fs::read_to_string(&list).with_context(|| format!("cannot read {}", list.display()))?;
    let folder = root.join("target/venv");
    // Written last, so that an environment that is not complete is made again.
    let stamp = folder.join("requirements.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    let mut create = Command::new("python3");
    create.args(["-m", "venv", "--clear"]).arg(&folder);
    steps.run("python environment", &mut create).context(
        "the tests need Python 3.10 or later with its venv module: install it (on Debian: python3 and python3-venv)",
    )?;
    let mut install = Command::new(python(&folder));
    install.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"]).arg(&list);
    steps
        .run("python packages", &mut install)
        .with_context(|| format!("the packages of {REQUIREMENTS} cannot be installed"))?;
    std::fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

fn python(folder: &Path) -> PathBuf {
    folder.join(if cfg!(windows) { "Scripts/python.exe" } else { "bin/python" })
}
