//! The test command: the pull that a user runs, the generated pages, doc tests, then every test under nextest.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::process::{self, cargo};
use crate::{docs, venv};

/// The models that tests speak and listen with: a voice, the smallest ear, and the default ear.
const TEST_MODELS: [&str; 3] = ["hibari", "whisper-tiny.en", "whisper-base"];

pub(crate) fn run(root: &Path, nextest_args: &[String]) -> Result<()> {
    pull(root)?;
    venv::make(root)?;
    docs::check(root)?;
    tests(root, &["test", "--doc", "--workspace"])?;
    let mut args = vec!["nextest", "run", "--workspace", "--profile", "ci"];
    args.extend(nextest_args.iter().map(String::as_str));
    tests(root, &args)
}

/// Builds `izwi` as a user does and lets it pull the test models into the repository's own model store.
pub(crate) fn pull(root: &Path) -> Result<()> {
    process::run(&mut cargo(root, &["build", "-p", "izwi-cli"]))?;
    let mut command = cargo(root, &["run", "--quiet", "-p", "izwi-cli", "--", "pull"]);
    process::run(command.args(TEST_MODELS).env("IZWI_HOME", home(root)))
}

/// One compute thread a test: nextest runs tests side by side, and more threads than cores makes each far slower.
fn tests(root: &Path, args: &[&str]) -> Result<()> {
    process::run(cargo(root, args).env("IZWI_HOME", home(root)).env("RAYON_NUM_THREADS", "1"))
}

/// Where tests find models: never the user's own store.
fn home(root: &Path) -> PathBuf {
    root.join("target/izwi-home")
}
