//! The files of workspaces that chores make below `target/`, and the sources of packages in cargo's registry.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{self, cargo};

pub(crate) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Writes only what changed: a newer file would be checked again.
pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    if fs::read_to_string(path).is_ok_and(|old| old == text) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// The one version of `name` in the text of a lock file.
pub(crate) fn locked_version(lock: &str, name: &str) -> Result<String> {
    let lock: toml::Table = lock.parse().context("Cargo.lock does not parse")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let named =
        packages.iter().filter(|package| package.get("name").and_then(toml::Value::as_str) == Some(name));
    let versions: Vec<&str> = named.filter_map(|package| package.get("version")?.as_str()).collect();
    match versions[..] {
        [version] => Ok(version.to_owned()),
        _ => bail!("Cargo.lock has {} versions of {name}, not one", versions.len()),
    }
}

/// Where cargo unpacked a package, after a fetch if it did not yet.
pub(crate) fn registry_source(root: &Path, name: &str, version: &str) -> Result<PathBuf> {
    if let Some(source) = unpacked(name, version)? {
        return Ok(source);
    }
    // The packages of another platform too: Metal's are only needed there.
    process::run(&mut cargo(root, &["fetch", "--locked"]))?;
    unpacked(name, version)?
        .with_context(|| format!("{name} {version} is not in cargo's registry after a fetch"))
}

fn unpacked(name: &str, version: &str) -> Result<Option<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registries = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    let Ok(entries) = fs::read_dir(&registries) else { return Ok(None) };
    let mut candidates = entries.flatten().map(|entry| entry.path().join(format!("{name}-{version}")));
    Ok(candidates.find(|source| source.join(".cargo-ok").exists()))
}

/// Copies a folder's files, those that differ.
pub(crate) fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            write(&target, &read(&entry.path())?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_comes_from_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n[[package]]\nname = \"b\"\nversion = \"4.0.0\"\n";
        assert_eq!(locked_version(lock, "b").unwrap(), "4.0.0");
        assert!(locked_version(lock, "c").is_err());
        assert!(locked_version(&format!("{lock}{lock}"), "a").is_err());
    }
}
