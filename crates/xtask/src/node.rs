//! The Node.js packages that tests run, in `target/node`, installed again when their lock file changes.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::steps::Steps;
use crate::workspace::{read, write};

const FOLDER: &str = "target/node";
/// What is installed: `npm ci` installs exactly what the lock file says, with the hashes in it.
const LISTS: [&str; 2] = ["package.json", "package-lock.json"];
const SOURCE: &str = "tests/clients";
const REMEDY: &str = "this needs Node.js 20 or later with npm: install it (on Debian: nodejs and npm)";
/// The oldest version of Node.js that the clients run on.
const OLDEST: u32 = 20;

/// Installs the packages, unless they are there.
pub(crate) fn make(root: &Path, steps: &mut Steps) -> Result<()> {
    let folder = root.join(FOLDER);
    let wanted = LISTS.map(|list| read(&root.join(SOURCE).join(list)));
    let wanted: Vec<String> = wanted.into_iter().collect::<Result<_>>()?;
    // Written last, so that an installation that is not complete is made again.
    let stamp = folder.join("installed.json");
    if std::fs::read_to_string(&stamp).is_ok_and(|made| made == wanted.concat()) {
        return Ok(());
    }
    check_version()?;
    std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    for (list, text) in LISTS.iter().zip(&wanted) {
        write(&folder.join(list), text)?;
    }
    let mut install = Command::new(if cfg!(windows) { "npm.cmd" } else { "npm" });
    // No package needs a script, and none is run.
    install
        .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel", "error"])
        .current_dir(&folder);
    steps.run("node packages", &mut install).context(REMEDY)?;
    write(&stamp, &wanted.concat())
}

fn check_version() -> Result<()> {
    let output = Command::new("node").arg("--version").output().context(REMEDY)?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = major(&text).with_context(|| format!("`node --version` says '{}'; {REMEDY}", text.trim()))?;
    ensure!(found >= OLDEST, "found Node.js {}; {REMEDY}", text.trim());
    Ok(())
}

/// The first number of `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.trim().strip_prefix('v')?.split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!((major("v20.20.2\n"), major("v8.0.0")), (Some(20), Some(8)));
        assert_eq!((major(""), major("20.1")), (None, None));
    }
}
