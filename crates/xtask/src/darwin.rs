//! Checks the types and lints of the whole workspace for Macs with Apple Silicon, where it has Metal: each line behind
//! `cfg(target_os = "macos")`. Nothing is linked, so no Apple framework is needed.
//!
//! C sources of dependencies are compiled by zig. Without the target's standard library the check is skipped.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::workspace::write;
use crate::{targets, venv};

const TARGET: &str = "aarch64-apple-darwin";

pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    if cfg!(target_os = "macos") {
        eprintln!("\n==> darwin: this machine is a Mac, its own checks see these lines");
        return Ok(());
    }
    if let Err(missing) = targets::add(root, TARGET) {
        eprintln!("\n==> darwin: skipped, {missing:#}");
        return Ok(());
    }
    let python = venv::make(root, steps, venv::ZIG)?;
    let folder = process::target_folder()?.join("darwin");
    let compiler = script(&folder, "cc", &compiler(&python))?;
    let archiver = script(&folder, "ar", &format!("exec '{}' -m ziglang ar \"$@\"\n", python.display()))?;

    let mut command = cargo(root, &["clippy", "--workspace", "--all-targets", "--target", TARGET]);
    command.args(["--", "-D", "warnings"]);
    command.env("CC_aarch64_apple_darwin", compiler).env("AR_aarch64_apple_darwin", archiver);
    // Build scripts ask for the folder of Apple's headers; zig has those of C.
    command.env("SDKROOT", &folder);
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        command.env(cache, folder.join("zig-cache"));
    }
    steps.run("darwin", &mut command)
}

/// A shell script that calls zig without the arguments that only Apple's compiler knows.
fn compiler(python: &Path) -> String {
    format!(
        "for argument do
    shift
    case $argument in
    --target=* | -gfull | -mmacosx-version-min=*) ;;
    *) set -- \"$@\" \"$argument\" ;;
    esac
done
exec '{}' -m ziglang cc -target aarch64-macos \"$@\"
",
        python.display()
    )
}

fn script(folder: &Path, name: &str, body: &str) -> Result<PathBuf> {
    let path = folder.join(name);
    write(&path, &format!("#!/bin/sh\n{body}"))?;
    make_executable(&path).with_context(|| format!("cannot make {} executable", path.display()))?;
    Ok(path)
}

#[cfg(unix)]
fn make_executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn make_executable(_path: &Path) -> std::io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_drops_what_zig_does_not_know() {
        let folder = crate::process::target_folder().unwrap().join("darwin-test");
        let printer = script(&folder, "printer", "shift 4\necho \"$@\"\n").unwrap();
        let compiler = script(&folder, "cc", &compiler(&printer)).unwrap();
        let mut command = std::process::Command::new(compiler);
        command.args([
            "--target=arm64-apple-macosx",
            "-O2",
            "-gfull",
            "-mmacosx-version-min=15.0",
            "-c",
            "a b.c",
        ]);
        let printed = process::output(&mut command).unwrap();
        assert_eq!(String::from_utf8(printed).unwrap(), "aarch64-macos -O2 -c a b.c\n");
    }
}
