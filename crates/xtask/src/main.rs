//! Repository chores, run as `cargo xtask CHORE`: what CI does, the test command, tidy, generated pages,
//! checks for other machines.
//!
//! Each chore is one module. Nothing here is part of the product.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a chore runner talks to the terminal")]

mod aarch64;
mod alsa;
mod apt;
mod balancers;
mod binary;
mod book;
mod chromium;
mod ci;
mod compatibility;
mod darwin;
mod deploy;
mod desktop;
mod docs;
mod emulate;
mod examples;
mod figures;
mod fuzz;
mod inlining;
mod markdown;
mod metal_costs;
mod metal_report;
mod monitoring;
mod node;
mod packaging;
mod process;
mod ray;
mod speech_dispatcher;
mod steps;
mod suite;
mod targets;
mod tidy;
mod venv;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

use steps::Steps;

const USAGE: &str = "usage: cargo xtask CHORE

chores:
  ci                        fmt, clippy, tidy, book, darwin, aarch64, cargo-deny where installed, then test
  test                      everything: pull of the test models, generated pages, doc tests, all tests
  test -- ARGS              the tests that ARGS of nextest select (`-p CRATE` builds that crate only)
  test --fast [-- ARGS]     no pull, no Python: all tests but those that need real weights
  pull                      only the pull of the test models, into target/izwi-home
  tidy                      the structural rules of this repository
  book                      the pages of docs/ as a book in target/book
  docs [--check]            write the generated pages of docs/ (or only compare them)
  compatibility             only docs/compatibility.md, without a build; a part of `docs`
  record NOTE               keep the durations of the last `ci` as benches/baselines/ci.json
  metal-emulate [-- ARGS]   the tests of izwi-metal, izwi-nn and izwi-models that ARGS of nextest select, on an emulated Metal device
  metal-emulate --some      its self-check, all tests of izwi-metal and izwi-nn and a golden test or two of each family
  metal-emulate --self-check [-- ARGS]
                            the emulator's own tests, and those of candle's Metal kernels
  metal-costs               the table of estimated frame times in docs/metal.md; a part of `docs`
  metal-report              on a Mac: system, tests on Metal and bench in target/metal-report.md
  packaging                 static checks of the installer, the image, the workflows and the client packages
  packages                  builds the packages for this machine in release mode, and tries each; not in `ci`
  archive                   builds the release archive for this machine
  release-files DIR ADDRESS writes sums, formula and installer alongside the archives in DIR, for the repository at ADDRESS
  darwin                    types and lints of the workspace for Macs with Apple Silicon
  monitoring                alert rules, their tests, and the dashboard, read by Prometheus' promtool
  deploy                    configurations of balancers, and the Helm chart, read by their programs; not in `ci`
  ray [--all]               the tests of assets/deploy/ray; with --all also those of clusters that lose a node
  inlining                  read the release code of the CPU kernels for calls that should be instructions
  aarch64                   run the tests of the CPU kernels for aarch64 in an emulator
  fuzz [TARGET] [--seconds N]
                            fuzz a target of tests/fuzz, or each of them, for 600 s; needs a C++ compiler";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Some(chore) = parse(&args) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    match run(&root(), &chore) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::from(process::exit_code(&error))
        }
    }
}

/// What `cargo xtask` was asked to do.
#[derive(Debug, PartialEq, Eq)]
enum Chore {
    Ci,
    Test { fast: bool, nextest_args: Vec<String> },
    Pull,
    Tidy,
    Book,
    Docs { check: bool },
    Record { note: String },
    MetalEmulate { self_check: bool, nextest_args: Vec<String> },
    MetalEmulateSome,
    Monitoring,
    Deploy,
    Aarch64,
    Inlining,
    Darwin,
    Compatibility,
    MetalCosts,
    MetalReport,
    Fuzz(fuzz::Order),
    Packaging,
    Packages,
    Ray { all: bool },
    Archive,
    ReleaseFiles { folder: String, address: String },
}

fn parse(args: &[&str]) -> Option<Chore> {
    let test = |fast, args: &[&str]| Chore::Test {
        fast,
        nextest_args: args.iter().map(ToString::to_string).collect(),
    };
    let emulate = |self_check, args: &[&str]| Chore::MetalEmulate {
        self_check,
        nextest_args: args.iter().map(ToString::to_string).collect(),
    };
    match args {
        ["ci"] => Some(Chore::Ci),
        ["test"] => Some(test(false, &[])),
        ["test", "--", rest @ ..] => Some(test(false, rest)),
        ["test", "--fast"] => Some(test(true, &[])),
        ["test", "--fast", "--", rest @ ..] => Some(test(true, rest)),
        ["pull"] => Some(Chore::Pull),
        ["tidy"] => Some(Chore::Tidy),
        ["book"] => Some(Chore::Book),
        ["docs"] => Some(Chore::Docs { check: false }),
        ["docs", "--check"] => Some(Chore::Docs { check: true }),
        ["record", note @ ..] if !note.is_empty() => Some(Chore::Record { note: note.join(" ") }),
        ["metal-emulate"] => Some(emulate(false, &[])),
        ["metal-emulate", "--", rest @ ..] => Some(emulate(false, rest)),
        ["metal-emulate", "--some"] => Some(Chore::MetalEmulateSome),
        ["metal-emulate", "--self-check"] => Some(emulate(true, &[])),
        ["metal-emulate", "--self-check", "--", rest @ ..] => Some(emulate(true, rest)),
        ["monitoring"] => Some(Chore::Monitoring),
        ["deploy"] => Some(Chore::Deploy),
        ["aarch64"] => Some(Chore::Aarch64),
        ["inlining"] => Some(Chore::Inlining),
        ["darwin"] => Some(Chore::Darwin),
        ["compatibility"] => Some(Chore::Compatibility),
        ["metal-costs"] => Some(Chore::MetalCosts),
        ["metal-report"] => Some(Chore::MetalReport),
        ["packaging"] => Some(Chore::Packaging),
        ["packages"] => Some(Chore::Packages),
        ["ray"] => Some(Chore::Ray { all: false }),
        ["ray", "--all"] => Some(Chore::Ray { all: true }),
        ["archive"] => Some(Chore::Archive),
        ["release-files", folder, address] => {
            Some(Chore::ReleaseFiles { folder: (*folder).to_owned(), address: (*address).to_owned() })
        }
        ["fuzz", rest @ ..] => fuzz::parse(rest).map(Chore::Fuzz),
        _ => None,
    }
}

fn run(root: &Path, chore: &Chore) -> Result<()> {
    let steps = &mut Steps::default();
    match chore {
        Chore::Ci => ci::run(root, steps),
        Chore::Test { fast: true, nextest_args } => suite::run_fast(root, steps, nextest_args),
        Chore::Test { nextest_args, .. } if nextest_args.is_empty() => suite::run_all(root, steps),
        Chore::Test { nextest_args, .. } => suite::run_selected(root, steps, nextest_args),
        Chore::Pull => suite::pull(root, steps),
        Chore::Tidy => tidy::run(root),
        Chore::Book => book::build(root, steps),
        Chore::Docs { check: false } => docs::write(root, steps),
        Chore::Docs { check: true } => docs::check(root, steps),
        Chore::Record { note } => steps::record(root, note),
        Chore::MetalEmulateSome => emulate::check(root, steps),
        Chore::MetalEmulate { self_check: false, nextest_args } => emulate::run(root, steps, nextest_args),
        Chore::MetalEmulate { nextest_args, .. } => emulate::self_check(root, steps, nextest_args),
        Chore::Monitoring => monitoring::check(root, steps),
        Chore::Deploy => deploy::check(root, steps),
        Chore::Aarch64 => aarch64::check(root, steps),
        Chore::Inlining => inlining::check(root, steps),
        Chore::Darwin => darwin::check(root, steps),
        Chore::Compatibility => compatibility::write(root, &root.join("docs")),
        Chore::MetalCosts => metal_costs::write(root, &root.join("docs")),
        Chore::MetalReport => metal_report::write_report(root, steps),
        Chore::Fuzz(order) => fuzz::run(root, steps, order),
        Chore::Packaging => packaging::check(root, steps),
        Chore::Packages => packaging::try_packages(root, steps),
        Chore::Ray { all } => ray::run(root, steps, *all),
        Chore::Archive => {
            packaging::make_archive(root, steps).map(|archive| println!("{}", archive.display()))
        }
        Chore::ReleaseFiles { folder, address } => {
            packaging::write_release_files(root, Path::new(folder), address)
        }
    }
}

/// The repository's root: this package lies in `crates/xtask`.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.ancestors().nth(2).unwrap_or(package).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_name_one_chore() {
        let test = |fast, args: &[&str]| Chore::Test {
            fast,
            nextest_args: args.iter().map(ToString::to_string).collect(),
        };
        for (args, chore) in [
            (vec!["ci"], Some(Chore::Ci)),
            (vec!["aarch64"], Some(Chore::Aarch64)),
            (vec!["inlining"], Some(Chore::Inlining)),
            (vec!["docs", "--check"], Some(Chore::Docs { check: true })),
            (vec!["test", "--", "-p", "x"], Some(test(false, &["-p", "x"]))),
            (vec!["test", "--fast"], Some(test(true, &[]))),
            (vec!["test", "--fast", "--", "-p", "x"], Some(test(true, &["-p", "x"]))),
            (vec!["record", "a", "b"], Some(Chore::Record { note: "a b".into() })),
            (vec!["ray", "--all"], Some(Chore::Ray { all: true })),
            (vec!["record"], None),
            (vec!["test", "-p"], None),
            (vec![], None),
        ] {
            assert_eq!(parse(&args), chore, "{args:?}");
        }
    }

    #[test]
    fn root_holds_the_workspace() {
        assert!(root().join("crates/xtask/Cargo.toml").is_file());
    }
}
