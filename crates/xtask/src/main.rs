//! Repository chores, run as `cargo xtask CHORE`: what CI does, the test command, tidy, generated pages,
//! checks for other machines.
//!
//! Each chore is one module. Nothing here is part of the product.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a chore runner talks to the terminal")]

mod aarch64;
mod ci;
mod docs;
mod figures;
mod metal;
mod process;
mod suite;
mod tidy;
mod venv;
mod workspace;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;

const USAGE: &str = "usage: cargo xtask CHORE

chores:
  ci                 fmt, clippy, tidy, metal, aarch64, cargo-deny where installed, then test
  test [-- ARGS]     build izwi, pull the test model, docs --check, doc tests, then nextest (ARGS go to nextest)
  pull               only the pull of the test model, into target/izwi-home
  tidy               the repository's own rules
  docs [--check]     write the generated pages of docs/ (or only compare them)
  metal              type-check the metal feature on a machine without Metal
  aarch64            run the tests of the CPU kernels for aarch64 in an emulator";

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
    Test { nextest_args: Vec<String> },
    Pull,
    Tidy,
    Docs { check: bool },
    Metal,
    Aarch64,
}

fn parse(args: &[&str]) -> Option<Chore> {
    match args {
        ["ci"] => Some(Chore::Ci),
        ["test"] => Some(Chore::Test { nextest_args: Vec::new() }),
        ["test", "--", rest @ ..] => {
            Some(Chore::Test { nextest_args: rest.iter().map(ToString::to_string).collect() })
        }
        ["pull"] => Some(Chore::Pull),
        ["tidy"] => Some(Chore::Tidy),
        ["docs"] => Some(Chore::Docs { check: false }),
        ["docs", "--check"] => Some(Chore::Docs { check: true }),
        ["metal"] => Some(Chore::Metal),
        ["aarch64"] => Some(Chore::Aarch64),
        _ => None,
    }
}

fn run(root: &Path, chore: &Chore) -> Result<()> {
    match chore {
        Chore::Ci => ci::run(root),
        Chore::Test { nextest_args } => suite::run(root, nextest_args),
        Chore::Pull => suite::pull(root),
        Chore::Tidy => tidy::run(root),
        Chore::Docs { check: false } => docs::write(root),
        Chore::Docs { check: true } => docs::check(root),
        Chore::Metal => metal::check(root),
        Chore::Aarch64 => aarch64::check(root),
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
        for (args, chore) in [
            (vec!["ci"], Some(Chore::Ci)),
            (vec!["aarch64"], Some(Chore::Aarch64)),
            (vec!["docs", "--check"], Some(Chore::Docs { check: true })),
            (
                vec!["test", "--", "-p", "x"],
                Some(Chore::Test { nextest_args: vec!["-p".into(), "x".into()] }),
            ),
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
