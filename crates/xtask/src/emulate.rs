//! Runs tests on an emulated Metal device: candle's `metal` feature over stand-ins for the Objective-C bindings, with
//! shaders compiled for this CPU. `docs/metal.md` says what that proves.
//!
//! The workspace lies below the target folder: links to the repository's folders, and a manifest that patches the
//! bindings. The tree and its lock file stay as they are.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{self, cargo};
use crate::steps::Steps;
use crate::workspace::{copy_folder, locked_version, read, registry_source, write};
use crate::{suite, venv};

/// Fibers are switched by assembly.
const IS_SUPPORTED: bool = cfg!(all(target_arch = "x86_64", target_os = "linux"));
const UNSUPPORTED: &str = "the Metal emulator runs on x86-64 Linux; on a Mac run the tests with `--features metal` and \
                           IZWI_TEST_DEVICE=metal";
/// The crates with code for devices.
const CRATES: [&str; 6] = ["-p", "izwi-metal", "-p", "izwi-nn", "-p", "izwi-models"];
const EMULATOR: &str = "scripts/metal-emulator";
/// The packages of the bindings, each a folder of stand-ins.
const BINDINGS: [&str; 4] = ["block2", "objc2", "objc2-foundation", "objc2-metal"];
/// Patched with a copy, so that its own tests can be run.
const KERNELS: &str = "candle-metal-kernels";
/// Where the shaders of this repository lie, if there are any.
const OWN_SHADERS: &str = "crates/izwi-metal/src/kernels";
/// Compiled for emulation alone, as they have Metal or lie in its workspace. Emulated kernels take the time: what is around
/// them needs little optimisation.
const OPTIMISED_LITTLE: [&str; 7] =
    ["candle-core", "candle-nn", "izwi-audio", "izwi-kernels", "izwi-metal", "izwi-models", "izwi-nn"];
/// A package that asks of the other dependencies what the whole workspace asks of them. Cargo unifies features among the
/// packages that are selected, and for fewer of them it would compile most dependencies once more.
const SHARED: &str = "shared-dependencies";
/// Left out: its dependencies on a Mac ask the bindings for more than the stand-ins have.
const BINARY: &str = "crates/izwi-cli";
/// Left out of [`SHARED`] for the same reason: the binary alone has them.
const DESKTOP: [&str; 2] = ["arboard", "global-hotkey"];
/// Left out: it depends on the binary's package.
const FUZZ: &str = "tests/fuzz";
const NEXTEST_CONFIG: &str = ".config/nextest.toml";
/// The emulator's own tests are those of this stand-in.
const SELF: &str = "objc2-metal";
/// Differs from the half-precision reference in the last digit: the reference is not rounded step by step.
const KNOWN: &str = "not (package(candle-metal-kernels) & test(/gelu_f16/))";
const NEXTEST: [&str; 4] = ["nextest", "run", "--profile", "device"];
/// Its filter in `.config/nextest.toml` is the list of these tests.
const NEXTEST_SOME: [&str; 4] = ["nextest", "run", "--profile", "device-some"];

/// The emulator's own tests, candle's kernels, and some tests of each layer and family: what a change should pass.
pub(crate) fn check(root: &Path, steps: &mut Steps) -> Result<()> {
    if !IS_SUPPORTED {
        eprintln!("\n==> emulated Metal: skipped, {UNSUPPORTED}");
        return Ok(());
    }
    let emulation = Emulation::prepare(root, steps)?;
    steps.run("Metal emulator", &mut emulation.self_check())?;
    let mut command = emulation.tests(root, &NEXTEST_SOME);
    steps.run("emulated Metal", command.args(CRATES))
}

/// Runs the tests of the crates with device code, or those that `args` of nextest select.
pub(crate) fn run(root: &Path, steps: &mut Steps, args: &[String]) -> Result<()> {
    let emulation = Emulation::prepare(root, steps)?;
    let mut command = emulation.tests(root, &NEXTEST);
    if suite::packages(args).is_empty() {
        command.args(CRATES);
    }
    steps.run_last("emulated Metal", command.args(args))
}

/// Runs the emulator's own tests and those of candle's Metal kernels.
pub(crate) fn self_check(root: &Path, steps: &mut Steps, args: &[String]) -> Result<()> {
    let emulation = Emulation::prepare(root, steps)?;
    steps.run_last("Metal emulator", emulation.self_check().args(args))
}

/// A workspace and the shaders compiled for it.
struct Emulation {
    workspace: PathBuf,
    shaders: PathBuf,
}

impl Emulation {
    fn prepare(root: &Path, steps: &mut Steps) -> Result<Self> {
        ensure!(IS_SUPPORTED, "{UNSUPPORTED}");
        let folder = process::target_folder()?.join("metal-emulate");
        let workspace = folder.join("workspace");
        let version = locked_version(&read(&root.join("Cargo.lock"))?, KERNELS)?;
        let kernels = registry_source(root, KERNELS, &version)?;
        let rules = root.join(EMULATOR).join("stand-ins").join(SELF).join("tests");
        let sources = [kernels.join("src/metal_src"), root.join(OWN_SHADERS), rules];
        make_workspace(root, &workspace)?;
        copy_kernels(&kernels, &workspace.join(KERNELS))?;
        let shaders = compile_shaders(root, steps, &folder, &sources)?;
        Ok(Self { workspace, shaders })
    }

    fn self_check(&self) -> Command {
        let mut command = self.cargo(&NEXTEST);
        command.args(["-p", SELF, "-p", KERNELS, "-E", KNOWN]);
        command
    }

    fn tests(&self, root: &Path, nextest: &[&str]) -> Command {
        let mut command = self.cargo(nextest);
        command.args(["--features", "metal"]).env("IZWI_HOME", suite::home(root));
        command
    }

    /// Cargo in the workspace, with the emulated device as the device of tests.
    fn cargo(&self, args: &[&str]) -> Command {
        let mut command = cargo(&self.workspace, args);
        command.args(["-p", SHARED]);
        if let Ok(target) = process::target_folder() {
            command.arg("--target-dir").arg(target);
        }
        command.env("EMU_OUT", &self.shaders).env("IZWI_TEST_DEVICE", "metal").env("RAYON_NUM_THREADS", "1");
        command
    }
}

/// Links, manifest and lock file.
fn make_workspace(root: &Path, workspace: &Path) -> Result<()> {
    fs::create_dir_all(workspace).with_context(|| format!("cannot make {}", workspace.display()))?;
    for entry in fs::read_dir(root).with_context(|| format!("cannot list {}", root.display()))? {
        let entry = entry?;
        let link = workspace.join(entry.file_name());
        let is_made_here =
            [".git", ".config", "target", "Cargo.toml", "Cargo.lock"].iter().any(|n| entry.file_name() == *n);
        // A link of a target folder that was copied from another checkout leads there.
        if is_made_here || fs::read_link(&link).is_ok_and(|to| to == entry.path()) {
            continue;
        }
        if fs::symlink_metadata(&link).is_ok() {
            fs::remove_file(&link).with_context(|| format!("cannot remove {}", link.display()))?;
        }
        symlink(&entry.path(), &link).with_context(|| format!("cannot make {}", link.display()))?;
    }
    let manifest = |folder: &str| read(&root.join(folder).join("Cargo.toml"));
    let crates = fs::read_dir(root.join("crates")).context("cannot list the crates")?;
    let crates = crates.map(|entry| manifest(&format!("crates/{}", entry?.file_name().display())));
    let manifests = crates.chain(["tests", "benches"].map(manifest)).collect::<Result<Vec<_>>>()?;
    write(&workspace.join(SHARED).join("Cargo.toml"), &shared(&manifests)?)?;
    write(&workspace.join(SHARED).join("src/lib.rs"), "//! Nothing.\n")?;
    write(&workspace.join("Cargo.toml"), &patched(&read(&root.join("Cargo.toml"))?)?)?;
    write(&workspace.join(NEXTEST_CONFIG), &device_profiles(&read(&root.join(NEXTEST_CONFIG))?)?)?;
    // Cargo adapts the copy to the patches; it is made again when the original changes.
    let lock = read(&root.join("Cargo.lock"))?;
    let original = workspace.join("Cargo.lock.original");
    if fs::read_to_string(&original).is_ok_and(|old| old == lock) {
        return Ok(());
    }
    write(&workspace.join("Cargo.lock"), &lock)?;
    write(&original, &lock)
}

/// The manifest of [`SHARED`], of the workspace's manifests.
fn shared(manifests: &[String]) -> Result<String> {
    let mut asked = BTreeMap::<String, Vec<toml::Value>>::new();
    for manifest in manifests {
        let manifest: toml::Table = manifest.parse().context("a Cargo.toml does not parse")?;
        let kinds = ["dependencies", "dev-dependencies"].into_iter();
        let tables = kinds.filter_map(|kind| manifest.get(kind)?.as_table());
        for (name, dependency) in tables.flatten() {
            let is = |key| dependency.get(key).and_then(toml::Value::as_bool) == Some(true);
            let is_left_out = name.starts_with("izwi-") || DESKTOP.contains(&name.as_str());
            if is("workspace") && !is("optional") && !is_left_out {
                let features = dependency.get("features").and_then(toml::Value::as_array);
                asked.entry(name.clone()).or_default().extend(features.into_iter().flatten().cloned());
            }
        }
    }
    let mut manifest = format!(
        "[package]\nname = \"{SHARED}\"\nedition = \"2024\"\n[lib]\ntest = false\ndoctest = false\n[dependencies]\n"
    );
    for (name, features) in asked {
        let features = toml::Value::Array(features);
        manifest.push_str(&format!("{name} = {{ workspace = true, features = {features} }}\n"));
    }
    Ok(manifest)
}

/// The profiles of nextest without `fast`, whose filter names the binary: nextest refuses names that a workspace lacks.
fn device_profiles(config: &str) -> Result<String> {
    let mut config: toml::Table =
        config.parse().with_context(|| format!("{NEXTEST_CONFIG} does not parse"))?;
    let profiles = config.get_mut("profile").and_then(toml::Value::as_table_mut);
    profiles.with_context(|| format!("{NEXTEST_CONFIG} has no profiles"))?.remove("fast");
    toml::to_string(&config).context("the profiles cannot be written")
}

/// The published package without its profiles, which only a workspace may have.
fn copy_kernels(from: &Path, to: &Path) -> Result<()> {
    copy_folder(&from.join("src"), &to.join("src"))?;
    let mut manifest: toml::Table =
        read(&from.join("Cargo.toml"))?.parse().with_context(|| format!("{KERNELS} has a bad manifest"))?;
    manifest.remove("profile");
    manifest.remove("example");
    write(&to.join("Cargo.toml"), &toml::to_string(&manifest).context("the manifest cannot be written")?)
}

#[cfg(unix)]
fn symlink(to: &Path, link: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(to, link)
}

#[cfg(not(unix))]
fn symlink(_to: &Path, _link: &Path) -> std::io::Result<()> {
    Err(std::io::ErrorKind::Unsupported.into())
}

/// The repository's manifest with the stand-ins and the copy of the kernels as members and patches.
fn patched(manifest: &str) -> Result<String> {
    let mut manifest: toml::Table = manifest.parse().context("Cargo.toml does not parse")?;
    let workspace = manifest.get_mut("workspace").and_then(toml::Value::as_table_mut);
    let workspace = workspace.context("Cargo.toml has no workspace")?;
    workspace.insert("exclude".to_owned(), vec![toml::Value::from(BINARY)].into());
    for key in ["members", "default-members"] {
        if let Some(members) = workspace.get_mut(key).and_then(toml::Value::as_array_mut) {
            members.retain(|member| member.as_str() != Some(FUZZ));
        }
    }
    let members = workspace.get_mut("members").and_then(toml::Value::as_array_mut);
    let members = members.context("Cargo.toml has no workspace.members")?;
    let mut patches = toml::Table::new();
    let stand_ins = BINDINGS.map(|name| (name, format!("{EMULATOR}/stand-ins/{name}")));
    members.push(SHARED.into());
    for (name, path) in stand_ins.into_iter().chain([(KERNELS, KERNELS.to_owned())]) {
        members.push(path.clone().into());
        patches.insert(name.to_owned(), toml::Table::from_iter([("path".to_owned(), path.into())]).into());
    }
    let registries = toml::Table::from_iter([("crates-io".to_owned(), patches.into())]);
    manifest.insert("patch".to_owned(), registries.into());
    for package in OPTIMISED_LITTLE {
        let mut table = &mut manifest;
        for key in ["profile", "dev", "package", package] {
            let inner = table.entry(key).or_insert_with(|| toml::Table::new().into());
            table = inner.as_table_mut().with_context(|| format!("Cargo.toml has a bad {key}"))?;
        }
        table.insert("opt-level".to_owned(), 1.into());
    }
    toml::to_string(&manifest).context("the manifest cannot be written")
}

/// Compiles the shaders of `sources` that are missing. Their folder is named by the translator and the compiler, and
/// each shader in it by its text. Returns the folder.
fn compile_shaders(root: &Path, steps: &mut Steps, folder: &Path, sources: &[PathBuf]) -> Result<PathBuf> {
    let all = folder.join("shaders");
    let key = hash(root)?;
    remove_others(&all, &key)?;
    let contracts = std::env::var_os("EMU_CONTRACT").is_some_and(|choice| choice == "fast");
    let out = all.join(if contracts { format!("{key}-fast") } else { key });
    let python = venv::make(root, steps, venv::ZIG)?;
    let mut build = Command::new(python);
    build.arg(root.join(EMULATOR).join("shaders/build.py")).arg(&out);
    build.env("PYTHONDONTWRITEBYTECODE", "1");
    for cache in ["ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"] {
        build.env(cache, folder.join("zig-cache"));
    }
    for source in sources.iter().filter(|source| source.is_dir()) {
        build.arg("--sources").arg(source);
    }
    steps.run("emulated shaders", &mut build)?;
    Ok(out)
}

/// FNV-1a over the translator's files and the list of the compiler's package.
fn hash(root: &Path) -> Result<String> {
    let folder = root.join(EMULATOR).join("shaders");
    let files = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = files.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
    files.retain(|file| file.is_file());
    files.push(root.join(venv::ZIG.requirements));
    files.sort();
    let texts = files.iter().map(|file| read(file)).collect::<Result<Vec<_>>>()?;
    let bytes = texts.iter().flat_map(|text| text.bytes().chain([0]));
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    Ok(format!("{hash:016x}"))
}

/// Shaders of another translator are never used again.
fn remove_others(all: &Path, key: &str) -> Result<()> {
    let Ok(entries) = fs::read_dir(all) else { return Ok(()) };
    for entry in entries.flatten().filter(|entry| !entry.file_name().to_string_lossy().starts_with(key)) {
        fs::remove_dir_all(entry.path())
            .with_context(|| format!("cannot remove {}", entry.path().display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_patches_the_bindings_and_keeps_the_rest() {
        let manifest = "[workspace]\nmembers = [\"crates/*\", \"tests/fuzz\"]\nexclude = [\"x\"]\n[profile.dev]\ndebug = false\n";
        let patched: toml::Table = patched(manifest).unwrap().parse().unwrap();
        let patches = &patched["patch"]["crates-io"];
        assert_eq!(patches["objc2"]["path"].as_str(), Some("scripts/metal-emulator/stand-ins/objc2"));
        assert_eq!(patches[KERNELS]["path"].as_str(), Some(KERNELS));
        assert_eq!(patched["workspace"]["members"].as_array().unwrap().len(), 7);
        assert_eq!(patched["workspace"]["exclude"][0].as_str(), Some(BINARY));
        assert_eq!(patched["profile"]["dev"]["debug"].as_bool(), Some(false));
        let nn = &patched["profile"]["dev"]["package"]["izwi-nn"];
        assert_eq!(nn["opt-level"].as_integer(), Some(1));
        assert!(super::patched("[package]\n").is_err());
    }

    #[test]
    fn shared_dependencies_have_the_features_of_all_packages() {
        let one = "[dependencies]\nserde = { workspace = true, features = [\"rc\"] }\nizwi-nn.workspace = true\narboard.workspace = true\n";
        let two = "[dependencies]\nalsa = { workspace = true, optional = true }\n[dev-dependencies]\nserde = { workspace = true, features = [\"std\"] }\n";
        let manifest: toml::Table = shared(&[one.to_owned(), two.to_owned()]).unwrap().parse().unwrap();
        let dependencies = manifest["dependencies"].as_table().unwrap();
        assert_eq!(dependencies.keys().collect::<Vec<_>>(), ["serde"]);
        assert_eq!(dependencies["serde"]["features"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn the_profile_that_names_the_binary_is_left_out() {
        let config = "[profile.fast]\ndefault-filter = 'package(izwi-cli)'\n[profile.device]\nretries = 1\n";
        let profiles: toml::Table = device_profiles(config).unwrap().parse().unwrap();
        let profiles = profiles["profile"].as_table().unwrap();
        assert_eq!(profiles.keys().collect::<Vec<_>>(), ["device"]);
        assert!(device_profiles("x = 1").is_err());
    }

    #[test]
    fn each_stand_in_has_the_version_that_the_lock_file_has() {
        let root = crate::root();
        let lock = read(&root.join("Cargo.lock")).unwrap();
        for name in BINDINGS {
            let manifest =
                read(&root.join(EMULATOR).join("stand-ins").join(name).join("Cargo.toml")).unwrap();
            let manifest: toml::Table = manifest.parse().unwrap();
            let version = manifest["package"]["version"].as_str().unwrap();
            assert_eq!(version, locked_version(&lock, name).unwrap(), "{name}");
        }
    }
}
