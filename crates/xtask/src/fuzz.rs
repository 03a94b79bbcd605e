//! Coverage-guided fuzzing: the targets of `tests/fuzz` under libFuzzer, on the stable compiler.
//!
//! Flags of code generation make the compiler count edges and comparisons, so that they need a target folder of their
//! own. What a target finds stays in `target/fuzz/`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::process::{self, cargo};
use crate::steps::Steps;

const PACKAGE: &str = "izwi-fuzz";
/// Edges, comparisons, and the table that tells which function an edge belongs to.
const COVERAGE: [&str; 5] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
];
/// Seconds for one input, and MiB of the whole process: more is a finding.
const LIMITS: [&str; 2] = ["-timeout=20", "-rss_limit_mb=1536"];
const DEFAULT_SECONDS: u64 = 600;

/// What `cargo xtask fuzz` was asked to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Order {
    /// All targets without a name.
    pub(crate) target: Option<String>,
    /// For each target.
    pub(crate) seconds: u64,
}

/// Reads `[TARGET] [--seconds N]`.
pub(crate) fn parse(args: &[&str]) -> Option<Order> {
    let (target, rest) = match args {
        [name, rest @ ..] if !name.starts_with('-') => (Some((*name).to_owned()), rest),
        rest => (None, rest),
    };
    let seconds = match rest {
        [] => DEFAULT_SECONDS,
        ["--seconds", seconds] => seconds.parse().ok().filter(|seconds| *seconds > 0)?,
        _ => return None,
    };
    Some(Order { target, seconds })
}

/// Fuzzes the targets one after another. Continues after a finding, and fails at the end.
pub(crate) fn run(root: &Path, steps: &mut Steps, order: &Order) -> Result<()> {
    let fuzzer = build(root, steps)?;
    let listed = process::output(&mut Command::new(&fuzzer)).context("the fuzzer lists no targets")?;
    let listed = String::from_utf8(listed).context("the fuzzer lists no targets")?;
    let targets = listed.lines().filter_map(|line| line.split_once(' '));
    let selected: Vec<(&str, &str)> =
        targets.filter(|(name, _)| order.target.as_ref().is_none_or(|target| target == name)).collect();
    ensure!(
        !selected.is_empty(),
        "there is no such target; the targets, with the most bytes of an input:\n{listed}"
    );
    let folder = process::target_folder()?.join("fuzz");
    let mut failed = Vec::new();
    for (name, max_bytes) in selected {
        let command = &mut fuzz(root, &fuzzer, &folder, (name, max_bytes), order.seconds)?;
        if let Err(error) = steps.run(name, command) {
            eprintln!("{error:#}");
            failed.push(name);
        }
    }
    ensure!(
        failed.is_empty(),
        "findings of {}: the inputs are in {}",
        failed.join(", "),
        folder.join("found").display()
    );
    Ok(())
}

/// Builds the fuzzer and returns its path.
fn build(root: &Path, steps: &mut Steps) -> Result<PathBuf> {
    check_compiler()?;
    let host = host(root)?;
    let folder = process::target_folder()?.join("fuzz/build");
    // With a target given, build scripts and macros are compiled without the flags: nothing counts there.
    let args = ["build", "-p", PACKAGE, "--profile", "fuzz", "--features", "libfuzzer", "--target", &host];
    let mut command = cargo(root, &args);
    command.env("RUSTFLAGS", COVERAGE.join(" ")).env("CARGO_TARGET_DIR", &folder);
    steps.run("build the fuzzer", &mut command)?;
    Ok(folder.join(host).join("fuzz").join(PACKAGE))
}

/// libFuzzer is C++.
fn check_compiler() -> Result<()> {
    let named = std::env::var("CXX").ok();
    let compilers = named.as_deref().map_or(vec!["c++", "g++", "clang++"], |compiler| vec![compiler]);
    if compilers.iter().any(|compiler| process::is_installed(compiler)) {
        return Ok(());
    }
    bail!(
        "libFuzzer needs a C++ compiler ({}): install g++ or clang, or name one in CXX",
        compilers.join(", ")
    )
}

fn host(root: &Path) -> Result<String> {
    let version = process::output(Command::new("rustc").arg("-vV").current_dir(root))?;
    let version = String::from_utf8(version).context("rustc's version is no text")?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not tell its host")?.to_owned())
}

/// The command that fuzzes one target. Its corpus grows from run to run.
fn fuzz(
    root: &Path,
    fuzzer: &Path,
    folder: &Path,
    (name, max_bytes): (&str, &str),
    seconds: u64,
) -> Result<Command> {
    let [seeds, corpus, found] = ["seeds", "corpus", "found"].map(|part| folder.join(part));
    let [seeds, corpus] = [seeds.join(name), corpus.join(name)];
    for folder in [&seeds, &corpus, &found] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let mut command = Command::new(fuzzer);
    command.current_dir(root).env("IZWI_FUZZ_TARGET", name).env("IZWI_FUZZ_SEEDS", &seeds);
    // One thread: what is counted belongs to the input that runs.
    command.env("RAYON_NUM_THREADS", "1").args(LIMITS);
    command.arg(format!("-max_total_time={seconds}")).arg(format!("-max_len={max_bytes}"));
    command.arg("-print_final_stats=1").arg(format!("-artifact_prefix={}/{name}-", found.display()));
    command.arg(corpus).arg(seeds);
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_name_one_target_or_all() {
        let order = |target: Option<&str>, seconds| Order { target: target.map(str::to_owned), seconds };
        for (args, expected) in [
            (&[][..], Some(order(None, DEFAULT_SECONDS))),
            (&["onnx"], Some(order(Some("onnx"), DEFAULT_SECONDS))),
            (&["--seconds", "9"], Some(order(None, 9))),
            (&["onnx", "--seconds", "9"], Some(order(Some("onnx"), 9))),
            (&["onnx", "json"], None),
            (&["--seconds"], None),
            (&["--seconds", "0"], None),
        ] {
            assert_eq!(parse(args), expected, "{args:?}");
        }
    }
}
