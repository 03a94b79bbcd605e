//! Standard libraries of the compiler's other targets.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::process;

/// Lets rustup install the target's standard library where it is missing.
pub(crate) fn add(root: &Path, target: &str) -> Result<()> {
    if !is_installed(root, target)? {
        process::run(Command::new("rustup").args(["target", "add", target]).current_dir(root))?;
        ensure!(is_installed(root, target)?, "the compiler has no {target}");
    }
    Ok(())
}

fn is_installed(root: &Path, target: &str) -> Result<bool> {
    let mut rustc = Command::new("rustc");
    let path =
        process::output(rustc.args(["--print", "target-libdir", "--target", target]).current_dir(root))?;
    Ok(Path::new(String::from_utf8(path)?.trim()).is_dir())
}
