//! The binary `izwi`, as the tests use it.

use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::alsa;
use crate::process::{self, cargo};
use crate::steps::Steps;

/// Builds the binary with the same features as the tests of the whole workspace, so that both builds share every crate.
/// The test target makes cargo add the features of dev-dependencies.
pub(crate) fn build_izwi(root: &Path, steps: &mut Steps) -> Result<PathBuf> {
    let mut build = cargo(root, &["build", "--workspace", "--bin", "izwi", "--test", "cli"]);
    steps.run("build izwi", build.args(alsa::features()))?;
    built_izwi()
}

/// Where cargo puts the binary.
pub(crate) fn built_izwi() -> Result<PathBuf> {
    Ok(process::target_folder()?.join("debug").join(format!("izwi{}", std::env::consts::EXE_SUFFIX)))
}
