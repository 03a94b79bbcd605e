//! Runs the tests of the CPU kernels for aarch64 in an emulator, as processors with and without extensions.
//!
//! The kernels need little: a workspace of them alone is written below `target/`, beside the repository's lock file, so
//! that nothing else is compiled. Tools are installed where the system lets us; where they cannot be had the chore says
//! so and ends well.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::workspace::{read, write};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
const EMULATOR: &str = "qemu-aarch64";
/// Where the packages put the target's libraries.
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";
const PACKAGES: [&str; 3] = ["qemu-user", "gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"];
/// With every extension, with dot products of bytes alone, with none.
const PROCESSORS: [&str; 3] = ["max", "cortex-a76", "cortex-a72"];
/// What the kernels depend on.
const DEPENDENCIES: [&str; 4] = ["half", "memmap2", "rayon", "serde"];
/// The library; `nn` is the folder in which they lie.
const LIBRARY: &str = r#"//! The CPU kernels and the types of their weights, as izwi-models has them.
#![allow(dead_code, reason = "the layers that use them are elsewhere")]

#[path = "{nn}/cpu/mod.rs"]
mod cpu;
#[path = "{nn}/precision.rs"]
pub mod precision;
"#;

pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    if cfg!(target_arch = "aarch64") {
        eprintln!("\n==> aarch64: this machine is one, its own tests run the kernels");
        return Ok(());
    }
    if let Err(missing) = tools(root) {
        eprintln!("\n==> aarch64: skipped, {missing:#}");
        return Ok(());
    }
    let target = root.join("target/aarch64-check");
    let workspace = target.join("workspace");
    write(&workspace.join("Cargo.toml"), &manifest(&read(&root.join("Cargo.toml"))?)?)?;
    write(&workspace.join("src/lib.rs"), &library(root))?;
    write(&workspace.join("Cargo.lock"), &read(&root.join("Cargo.lock"))?)?;
    let with = |chore: &str| {
        let mut command = cargo(root, &[chore, "--target", TARGET, "--tests", "--manifest-path"]);
        command.arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(&target);
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

/// Sees to it that compiler, emulator and the target's libraries are there; the error says what is missing.
fn tools(root: &Path) -> Result<()> {
    let there = || {
        let libraries = Path::new(LIBRARIES).join("lib/libc.so.6").exists();
        libraries && process::is_installed(EMULATOR) && process::is_installed(COMPILER)
    };
    if !there() && is_root() && process::is_installed("apt-get") {
        let apt = |args: &[&str]| {
            let mut command = Command::new("apt-get");
            process::run(command.args(args).env("DEBIAN_FRONTEND", "noninteractive"))
        };
        let install = [&["install", "-y", "--no-install-recommends"], &PACKAGES[..]].concat();
        apt(&install).or_else(|_| apt(&["update"]).and_then(|()| apt(&install)))?;
    }
    anyhow::ensure!(there(), "{} are not installed", PACKAGES.join(", "));
    if !has_target(root)? {
        process::run(Command::new("rustup").args(["target", "add", TARGET]).current_dir(root))?;
        anyhow::ensure!(has_target(root)?, "the compiler has no {TARGET}");
    }
    Ok(())
}

/// Whether the compiler has the target's standard library.
fn has_target(root: &Path) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    let path =
        process::output(rustc.args(["--print", "target-libdir", "--target", TARGET]).current_dir(root))?;
    Ok(Path::new(String::from_utf8(path)?.trim()).is_dir())
}

fn is_root() -> bool {
    process::output(Command::new("id").arg("-u")).is_ok_and(|user| user.trim_ascii() == b"0")
}

/// A manifest with the versions and the lints of the repository's.
fn manifest(root: &str) -> Result<String> {
    let root: Table = root.parse().context("Cargo.toml does not parse")?;
    let of_all = |name: &str| {
        root.get("workspace").and_then(|all| all.get(name)).with_context(|| format!("no workspace.{name}"))
    };
    let versions = of_all("dependencies")?;
    let mut dependencies = Table::new();
    for name in DEPENDENCIES {
        let version = versions.get(name).with_context(|| format!("no workspace.dependencies.{name}"))?;
        dependencies.insert(name.into(), version.clone());
    }
    let table = |pairs: &[(&str, Value)]| {
        Value::Table(pairs.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect())
    };
    let package = [
        ("name", "aarch64-check".into()),
        ("version", "0.0.0".into()),
        ("edition", "2024".into()),
        ("publish", false.into()),
    ];
    let everything = [
        ("package", table(&package)),
        ("workspace", table(&[("lints", of_all("lints")?.clone())])),
        ("lints", table(&[("workspace", true.into())])),
        ("dependencies", Value::Table(dependencies)),
        // Emulated, the speed of the kernels matters more than that of the compiler.
        ("profile", table(&[("dev", table(&[("opt-level", 2.into()), ("debug", false.into())]))])),
    ];
    toml::to_string(&table(&everything)).context("the manifest cannot be written")
}

fn library(root: &Path) -> String {
    LIBRARY.replace("{nn}", &root.join("crates/izwi-models/src/nn").to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_depend_on_what_their_workspace_gives() {
        let root = crate::root();
        let manifest: Table = manifest(&read(&root.join("Cargo.toml")).unwrap()).unwrap().parse().unwrap();
        let given = |name: &str| manifest["dependencies"].get(name).is_some();
        assert!(manifest["workspace"]["lints"].get("clippy").is_some());
        for entry in std::fs::read_dir(root.join("crates/izwi-models/src/nn/cpu")).unwrap() {
            let file = entry.unwrap().path();
            for line in read(&file).unwrap().lines().map(str::trim_start) {
                let Some(path) = line.strip_prefix("use ") else { continue };
                let first = path.split("::").next().unwrap();
                let own = ["super", "std", "self"].contains(&first) || !path.contains("::");
                assert!(own || given(first), "{}: {line}", file.display());
            }
        }
    }

    #[test]
    fn the_library_names_files_that_exist() {
        let library = library(&crate::root());
        let paths = library.lines().filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"));
        let paths: Vec<&str> = paths.collect();
        assert!(paths.len() == 2 && paths.iter().all(|path| Path::new(path).is_file()), "{paths:?}");
    }

    #[test]
    fn a_manifest_without_the_dependencies_is_refused() {
        assert!(manifest("[workspace.lints]\n[workspace.dependencies]\nhalf = \"2\"\n").is_err());
    }
}
