//! The tests of `assets/deploy/ray`, over the built `izwi` and with Ray from its published wheels.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::steps::Steps;
use crate::venv::{self, Environment};
use crate::{process, suite};

const FOLDER: &str = "assets/deploy/ray";
const RAY: Environment =
    Environment { folder: "ray-venv", requirements: "assets/deploy/ray/tests/requirements.txt" };

/// Builds `izwi`, pulls the test models and runs the tests: all of them, or those that take no minutes.
pub(crate) fn run(root: &Path, steps: &mut Steps, all: bool) -> Result<()> {
    suite::pull(root, steps)?;
    let python = venv::make(root, steps, RAY)?;
    let mut pytest = Command::new(python);
    pytest
        .args(["-m", "pytest", "-q", "--timeout", "900", "--durations", "5"])
        .current_dir(root.join(FOLDER));
    pytest.args(if all { &[][..] } else { &["-m", "not slow"] });
    pytest.env("IZWI_BIN", crate::binary::built_izwi()?).env("IZWI_HOME", suite::home(root));
    pytest.env("PYTHONDONTWRITEBYTECODE", "1");
    process::forget_cargo_run(&mut pytest);
    steps.run_last("Ray", &mut pytest)
}
