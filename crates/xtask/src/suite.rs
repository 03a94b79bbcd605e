//! The test commands: builds, the pull that a user runs, the generated pages, doc tests, then tests under nextest.
//!
//! The filter of the profile `fast` in `.config/nextest.toml` is the one list of tests that need real weights.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::binary::{build_izwi, built_izwi};
use crate::process::cargo;
use crate::steps::Steps;
use crate::workspace::read;
use crate::{alsa, balancers, chromium, desktop, docs, node, speech_dispatcher, venv};

/// The models that tests run: a TTS model, the smallest ASR model, and the default ASR model.
const TEST_MODELS: [&str; 5] = ["hibari", "whisper-tiny.en", "whisper-base", "kokoro-82m", "smart-turn"];
/// The packages whose tests run published clients, in Python and Node.js.
const RUN_CLIENTS: [&str; 2] = ["izwi-tests", "izwi-cli"];
/// The package whose tests run balancers, an X server and Speech Dispatcher.
const RUNS_PROGRAMS: &str = "izwi-cli";
const NEXTEST: [&str; 4] = ["nextest", "run", "--profile", "ci"];

/// Runs everything: all packages, all tests, pages and doc tests.
pub(crate) fn run_all(root: &Path, steps: &mut Steps) -> Result<()> {
    prepare(root, steps)?;
    run_prepared(root, steps)
}

/// Builds, pulls the test models and checks the pages and the doc tests: all that goes before the tests.
pub(crate) fn prepare(root: &Path, steps: &mut Steps) -> Result<()> {
    // Before the pull, so that `izwi` is built once.
    alsa::make(steps)?;
    let mut build = cargo(root, &["nextest", "run", "--workspace", "--no-run"]);
    steps.run("build tests", build.args(alsa::features()))?;
    let izwi = built_izwi()?;
    pull_with(root, steps, &izwi)?;
    clients(root, steps)?;
    balancers::make(steps)?;
    desktop::make(steps)?;
    speech_dispatcher::make(steps)?;
    docs::check_with(root, steps, &izwi)?;
    let mut doc_tests = tests(root, &["test", "--doc", "--workspace"]);
    steps.run("doc tests", doc_tests.args(alsa::features()))
}

/// Installs the published clients.
fn clients(root: &Path, steps: &mut Steps) -> Result<()> {
    let python = venv::make(root, steps, venv::CLIENTS)?;
    venv::download_wheel(root, steps, &python)?;
    node::make(root, steps)?;
    chromium::make(steps)
}

/// Runs all tests after [`prepare`].
pub(crate) fn run_prepared(root: &Path, steps: &mut Steps) -> Result<()> {
    steps.run_last("tests", tests(root, &NEXTEST).arg("--workspace").args(alsa::features()))
}

/// Runs what `args` of nextest select, after the preparations that the selected packages need.
pub(crate) fn run_selected(root: &Path, steps: &mut Steps, args: &[String]) -> Result<()> {
    let packages = packages(args);
    let selects = |package: &str| packages.is_empty() || packages.contains(&package);
    let filter = read(&root.join(".config/nextest.toml"))?;
    let needs_models = packages_with_weights(&filter)?.iter().any(|package| selects(package));
    if needs_models && !models_are_installed(root) {
        pull(root, steps)?;
    }
    if RUN_CLIENTS.into_iter().any(selects) {
        clients(root, steps)?;
    }
    if selects(RUNS_PROGRAMS) {
        balancers::make(steps)?;
        desktop::make(steps)?;
        speech_dispatcher::make(steps)?;
    }
    let mut command = tests(root, &NEXTEST);
    if packages.is_empty() {
        command.arg("--workspace").args(alsa::features());
    }
    steps.run_last("tests", command.args(args))
}

/// Runs all tests but those that need real weights, Python or Node.js.
pub(crate) fn run_fast(root: &Path, steps: &mut Steps, args: &[String]) -> Result<()> {
    // `--tests` leaves out the examples, which only a test on real weights runs.
    let mut command = tests(root, &["nextest", "run", "--profile", "fast", "--tests"]);
    if packages(args).is_empty() {
        command.arg("--workspace").args(alsa::features());
    }
    // An empty store: a test that needs weights fails here until the filter leaves it out.
    steps.run_last("fast tests", command.args(args).env("IZWI_HOME", root.join("target/no-models")))
}

/// Builds `izwi` and lets it pull the test models into the repository's own model store.
pub(crate) fn pull(root: &Path, steps: &mut Steps) -> Result<()> {
    let izwi = build_izwi(root, steps)?;
    pull_with(root, steps, &izwi)
}

fn pull_with(root: &Path, steps: &mut Steps, izwi: &Path) -> Result<()> {
    let mut command = std::process::Command::new(izwi);
    command.current_dir(root).arg("pull").args(TEST_MODELS).env("IZWI_HOME", home(root));
    // The manifests pin the packages' files by hash: every machine tests the same bytes.
    command.env("HF_HUB_OFFLINE", "1");
    steps.run("pull", &mut command)
}

/// One compute thread per test: nextest runs tests in parallel, and more threads than cores slow each test down.
fn tests(root: &Path, args: &[&str]) -> std::process::Command {
    let mut command = cargo(root, args);
    command.env("IZWI_HOME", home(root)).env("RAYON_NUM_THREADS", "1");
    command
}

/// The model store of the tests, which is never the user's own.
pub(crate) fn home(root: &Path) -> PathBuf {
    root.join("target/izwi-home")
}

fn models_are_installed(root: &Path) -> bool {
    TEST_MODELS.iter().all(|model| home(root).join("models").join(model).is_dir())
}

/// The packages that `-p` and its other spellings select.
pub(crate) fn packages(args: &[String]) -> Vec<&str> {
    let mut packages = Vec::new();
    let mut args = args.iter().map(String::as_str);
    while let Some(arg) = args.next() {
        if matches!(arg, "-p" | "--package") {
            packages.extend(args.next());
        } else if let Some(name) = arg.strip_prefix("--package=").or_else(|| arg.strip_prefix("-p")) {
            packages.push(name.trim_start_matches('='));
        }
    }
    packages
}

/// The packages that the filter of the profile `fast` names.
fn packages_with_weights(config: &str) -> Result<Vec<String>> {
    let config: toml::Table = config.parse().context(".config/nextest.toml does not parse")?;
    let fast = config.get("profile").and_then(|profiles| profiles.get("fast"));
    let filter = fast.and_then(|fast| fast.get("default-filter")?.as_str());
    let filter = filter.context(".config/nextest.toml has no profile.fast with a default-filter")?;
    let named = filter.split("package(").skip(1).filter_map(|rest| rest.split(')').next());
    Ok(named.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn packages_are_read_in_every_spelling() {
        for (line, expected) in [
            ("-p a --package b", &["a", "b"][..]),
            ("--package=a -pb -p=c some_test", &["a", "b", "c"]),
            ("some_test --no-capture", &[]),
            ("--profile fast", &[]),
            ("-p", &[]),
        ] {
            assert_eq!(packages(&words(line)), expected, "{line}");
        }
    }

    #[test]
    fn the_filter_names_the_packages_that_need_weights() {
        let config = "[profile.fast]\ndefault-filter = 'not ((package(a) & test(x)) | package(b))'\n";
        assert_eq!(packages_with_weights(config).unwrap(), ["a", "b"]);
        assert!(packages_with_weights("[profile.ci]\n").is_err());
    }

    #[test]
    fn the_committed_filter_names_packages_that_exist() {
        let root = crate::root();
        let config = read(&root.join(".config/nextest.toml")).unwrap();
        let named = packages_with_weights(&config).unwrap();
        assert!(RUN_CLIENTS.iter().all(|package| named.contains(&(*package).to_owned())), "{named:?}");
        for package in named {
            let folder =
                if package == "izwi-tests" { "tests".to_owned() } else { format!("crates/{package}") };
            assert!(root.join(&folder).join("Cargo.toml").is_file(), "no package in {folder}");
        }
    }
}
