//! The archive of a release for the platform of this machine: the program, its manual pages, completions and licence, in the
//! layout of a prefix such as `~/.local`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::{folder, host};
use crate::process::{self, cargo};
use crate::steps::Steps;

/// Of each shell: where its completions lie below `share/`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/izwi"),
    ("zsh", "zsh/site-functions/_izwi"),
    ("fish", "fish/vendor_completions.d/izwi.fish"),
];

/// Builds the program as it is released, and its archive `izwi-TARGET.tgz`.
pub(crate) fn make(root: &Path, steps: &mut Steps) -> Result<PathBuf> {
    let build = ["build", "--release", "--locked", "-p", "izwi-cli", "--bin", "izwi"];
    steps.run("release build", &mut cargo(root, &build))?;
    let program = process::target_folder()?.join("release/izwi");
    steps.time("archive", || pack(root, &program, &host()?))
}

fn pack(root: &Path, program: &Path, target: &str) -> Result<PathBuf> {
    let name = format!("izwi-{target}");
    let staged = folder(root).join(&name);
    if staged.exists() {
        fs::remove_dir_all(&staged).with_context(|| format!("cannot empty {}", staged.display()))?;
    }
    place(program, &staged.join("bin/izwi"))?;
    for document in ["LICENSE", "README.md", "CHANGELOG.md"] {
        place(&root.join(document), &staged.join("share/doc/izwi").join(document))?;
    }
    process::run(Command::new(program).arg("man").arg(staged.join("share/man/man1")))?;
    for (shell, file) in COMPLETIONS {
        let script = process::output(Command::new(program).args(["completions", shell]))?;
        write(&staged.join("share").join(file), &script)?;
    }
    let archive = folder(root).join(format!("{name}.tgz"));
    let mut tar = Command::new("tar");
    tar.current_dir(folder(root)).arg("-czf").arg(&archive).arg(&name);
    process::run(&mut tar)?;
    Ok(archive)
}

fn place(from: &Path, to: &Path) -> Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    make_parent(path)?;
    fs::write(path, content).with_context(|| format!("cannot write {}", path.display()))
}

fn make_parent(path: &Path) -> Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    fs::create_dir_all(parent).with_context(|| format!("cannot make {}", parent.display()))
}
