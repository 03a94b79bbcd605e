//! The structural rules of this repository: each check is a function over the list of files and prints `path:line: rule: remedy`.
//!
//! Runs as `cargo xtask tidy` and as a test of this package. A rule's exceptions stand alongside it, each with its reason.

mod circles;
mod code;
mod confined;
mod dependencies;
mod families;
mod hosts;
mod imports;
mod kernels;
mod manifests;
mod modules;
mod pages;
mod roots;
mod shape;
mod tree;

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

use tree::Tree;

/// One place that breaks one rule.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Violation {
    path: String,
    line: usize,
    rule: &'static str,
    remedy: String,
}

impl Violation {
    fn new(path: &str, line: usize, rule: &'static str, remedy: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, remedy: remedy.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.remedy)
    }
}

type Check = fn(&Tree) -> Result<Vec<Violation>>;

const CHECKS: &[Check] = &[
    dependencies::point_one_way,
    circles::are_untied,
    roots::forbid_unsafe_code,
    confined::stays_in_its_place,
    families::names_stay_home,
    kernels::have_no_closures,
    shape::modules_say_what_they_own,
    shape::files_are_short,
    shape::names_say_something,
    shape::weights_stay_out,
    manifests::are_complete,
    hosts::are_not_named,
    pages::links_resolve,
    pages::book_is_complete,
];

/// Prints every violation in the repository at `root` and fails if there is one.
pub(crate) fn run(root: &Path) -> Result<()> {
    eprintln!("\n==> tidy");
    let violations = violations(&Tree::of_repository(root)?)?;
    for violation in &violations {
        eprintln!("{violation}");
    }
    match violations.len() {
        0 => Ok(()),
        count => bail!("tidy: {count} violations"),
    }
}

fn violations(tree: &Tree) -> Result<Vec<Violation>> {
    let mut found = Vec::new();
    for check in CHECKS {
        found.extend(check(tree)?);
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// For the tests of each check: the `path:line`s it finds in files given as text.
#[cfg(test)]
fn found(check: Check, files: &[(&str, &str)]) -> Vec<String> {
    let mut violations = check(&Tree::of(files)).unwrap();
    violations.sort();
    violations.iter().map(|violation| format!("{}:{}", violation.path, violation.line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let violations = violations(&Tree::of_repository(&crate::root()).unwrap()).unwrap();
        let lines: Vec<String> = violations.iter().map(ToString::to_string).collect();
        assert!(lines.is_empty(), "tidy:\n{}", lines.join("\n"));
    }

    #[test]
    fn a_violation_says_where_and_what_to_do() {
        let violation = Violation::new("a/b.rs", 3, "length", "split it");
        assert_eq!(violation.to_string(), "a/b.rs:3: length: split it");
    }
}
