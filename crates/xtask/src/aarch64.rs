//! Runs the tests of the CPU kernels for aarch64 in an emulator, as processors with and without extensions.
//!
//! Installs the tools if it can; if it cannot, says so and succeeds.

use std::path::Path;

use anyhow::Result;

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::{apt, targets};

/// The crate whose code differs by instruction set.
const PACKAGE: &str = "izwi-kernels";
const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where the packages put the target's libraries.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const PACKAGES: [&str; 3] = ["qemu-user", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// With every extension; with dot products of bytes only; without extensions.
const PROCESSORS: [&str; 3] = ["max", "cortex-a76", "cortex-a72"];

pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    if cfg!(target_arch = "aarch64") {
        eprintln!("\n==> aarch64: this machine is one, its own tests run the kernels");
        return Ok(());
    }
    if let Err(missing) = tools(root) {
        eprintln!("\n==> aarch64: skipped, {missing:#}");
        return Ok(());
    }
    let with = |chore: &str| {
        let mut command = cargo(root, &[chore, "-p", PACKAGE, "--tests", "--target", TARGET]);
        command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER);
        command
    };
    steps.run("aarch64 clippy", with("clippy").args(["--", "-D", "warnings"]))?;
    for processor in PROCESSORS {
        let runner = format!("{EMULATOR} -cpu {processor} -L {LIBRARIES}");
        let tests = &mut with("test");
        tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
        steps.run(&format!("aarch64 tests as {processor}"), tests)?;
    }
    Ok(())
}

/// Installs compiler, emulator and the libraries of the target where they are missing; the error names what is left.
fn tools(root: &Path) -> Result<()> {
    let there = || {
        let libraries = Path::new(LIBRARIES).join("lib/libc.so.6").exists();
        libraries && process::is_installed(EMULATOR) && process::is_installed(COMPILER)
    };
    if !there() {
        apt::install(&PACKAGES)?;
    }
    anyhow::ensure!(there(), "{} are not installed", PACKAGES.join(", "));
    targets::add(root, TARGET)
}
