//! Type-checks the `metal` feature on a machine without Metal.
//!
//! The committed workspace in `metal-check/` is copied below `target/`, with the repository's lock file and profiles and
//! a copy of objc2-metal whose one link attribute is limited to Apple's platforms. Types are checked, shaders are not,
//! and neither is code behind `cfg(target_os = "macos")`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::workspace::{read, write};

const LINK: &str = r#"#[link(name = "Metal", kind = "framework")]"#;
const LINK_ON_APPLE: &str =
    r#"#[cfg_attr(target_vendor = "apple", link(name = "Metal", kind = "framework"))]"#;
/// Where objc2-metal has that attribute, inside its package.
const LINK_FILE: &str = "src/generated/mod.rs";

pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    let lock = read(&root.join("Cargo.lock"))?;
    let version = locked_version(&lock, "objc2-metal")?;
    let target = root.join("target/metal-check");
    let patched = patched_copy(root, &version, &target)?;
    let workspace = target.join("workspace");

    let manifest = read(&root.join("crates/xtask/metal-check/Cargo.toml"))?;
    let manifest = moved_manifest(&manifest, root)? + &profiles(&read(&root.join("Cargo.toml"))?)?;
    write(&workspace.join("Cargo.toml"), &manifest)?;
    write(&workspace.join("src/lib.rs"), &read(&root.join("crates/xtask/metal-check/src/lib.rs"))?)?;
    write(&workspace.join("Cargo.lock"), &lock)?;

    let patch =
        format!("patch.crates-io.objc2-metal.path={}", toml::Value::from(patched.to_string_lossy().as_ref()));
    // Quiet, because the profiles name packages that this workspace has not.
    let mut command = cargo(root, &["check", "--quiet", "--config", &patch]);
    command.arg("--manifest-path").arg(workspace.join("Cargo.toml"));
    steps.run("metal", command.arg("--target-dir").arg(process::target_folder()?))
}

/// The one version of `name` in the lock file.
fn locked_version(lock: &str, name: &str) -> Result<String> {
    let lock: toml::Table = lock.parse().context("Cargo.lock does not parse")?;
    let packages = lock.get("package").and_then(toml::Value::as_array).map_or(&[][..], Vec::as_slice);
    let named =
        packages.iter().filter(|package| package.get("name").and_then(toml::Value::as_str) == Some(name));
    let versions: Vec<&str> = named.filter_map(|package| package.get("version")?.as_str()).collect();
    match versions[..] {
        [version] => Ok(version.to_owned()),
        _ => {
            bail!("Cargo.lock has {} versions of {name}; the metal check patches exactly one", versions.len())
        }
    }
}

/// A copy of objc2-metal below `target` that compiles anywhere. Made once for each version.
fn patched_copy(root: &Path, version: &str, target: &Path) -> Result<PathBuf> {
    let patched = target.join(format!("objc2-metal-{version}"));
    if patched.is_dir() {
        return Ok(patched);
    }
    let source = match registry_source(version)? {
        Some(source) => source,
        None => {
            process::run(&mut cargo(root, &["fetch", "--target", "aarch64-apple-darwin"]))?;
            registry_source(version)?
                .with_context(|| format!("objc2-metal {version} is not in cargo's registry after a fetch"))?
        }
    };
    let partial = target.join("objc2-metal.partial");
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("cannot empty {}", partial.display()))?;
    }
    copy_folder(&source, &partial)?;
    let file = partial.join(LINK_FILE);
    fs::write(&file, limited_to_apple(&read(&file)?)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    fs::rename(&partial, &patched).with_context(|| format!("cannot make {}", patched.display()))?;
    Ok(patched)
}

/// Where cargo unpacked objc2-metal, if it did.
fn registry_source(version: &str) -> Result<Option<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let registries = home.context("neither CARGO_HOME nor HOME is set")?.join("registry/src");
    let Ok(entries) = fs::read_dir(&registries) else { return Ok(None) };
    let candidates = entries.flatten().map(|entry| entry.path().join(format!("objc2-metal-{version}")));
    Ok(candidates.into_iter().find(|source| source.join(".cargo-ok").exists()))
}

fn limited_to_apple(text: &str) -> Result<String> {
    match text.matches(LINK).count() {
        1 => Ok(text.replace(LINK, LINK_ON_APPLE)),
        count => bail!(
            "{LINK_FILE} of objc2-metal has {LINK} {count} times, not once; adapt crates/xtask/src/metal.rs"
        ),
    }
}

/// The committed manifest with its paths made absolute, for a copy that lies elsewhere.
fn moved_manifest(manifest: &str, root: &Path) -> Result<String> {
    let here = r#"path = "../../"#;
    if !manifest.contains(here) {
        bail!("crates/xtask/metal-check/Cargo.toml has no dependency with `{here}…`");
    }
    Ok(manifest.replace(here, &format!(r#"path = "{}/"#, root.join("crates").display())))
}

/// The repository's profiles: with them, what was compiled for its other checks serves here too.
fn profiles(manifest: &str) -> Result<String> {
    let manifest: toml::Table = manifest.parse().context("Cargo.toml does not parse")?;
    let profiles = manifest.get("profile").context("Cargo.toml has no profiles")?.clone();
    let table: toml::Table = [("profile".to_owned(), profiles)].into_iter().collect();
    Ok(format!("\n{}", toml::to_string(&table).context("the profiles cannot be written")?))
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to).with_context(|| format!("cannot make {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target).with_context(|| format!("cannot write {}", target.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_link_attribute_must_be_there_exactly_once() {
        let once = limited_to_apple(&format!("//! x\n{LINK}\nextern \"C\" {{}}\n")).unwrap();
        assert_eq!(once, format!("//! x\n{LINK_ON_APPLE}\nextern \"C\" {{}}\n"));
        assert!(limited_to_apple("extern \"C\" {}").is_err());
        assert!(limited_to_apple(&format!("{LINK}{LINK}")).is_err());
    }

    #[test]
    fn the_profiles_come_with_their_packages() {
        let profiles = profiles("[profile.dev.package]\n\"*\".debug = false\na.opt-level = 3\n").unwrap();
        let table: toml::Table = profiles.parse().unwrap();
        assert_eq!(table["profile"]["dev"]["package"]["a"]["opt-level"].as_integer(), Some(3));
        assert!(super::profiles("[workspace]\n").is_err());
    }

    #[test]
    fn the_version_comes_from_the_lock_file() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.2.3\"\n[[package]]\nname = \"b\"\nversion = \"4.0.0\"\n";
        assert_eq!(locked_version(lock, "b").unwrap(), "4.0.0");
        assert!(locked_version(lock, "c").is_err());
        assert!(locked_version(&format!("{lock}{lock}"), "a").is_err());
    }

    #[test]
    fn the_committed_workspace_names_every_library_that_forwards_metal() {
        let root = crate::root();
        let manifest = read(&root.join("crates/xtask/metal-check/Cargo.toml")).unwrap();
        let moved = moved_manifest(&manifest, &root).unwrap();
        assert!(!moved.contains("../"), "{moved}");
        for entry in fs::read_dir(root.join("crates")).unwrap() {
            let package = entry.unwrap().path();
            let forwards = read(&package.join("Cargo.toml")).unwrap().contains("\nmetal = ");
            let name = package.file_name().unwrap().to_string_lossy().into_owned();
            if forwards && package.join("src/lib.rs").exists() {
                assert!(moved.contains(&format!("\n{name} = ")), "{name} is not in the metal check");
            }
        }
    }
}
