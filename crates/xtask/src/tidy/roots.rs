//! The first file of each crate.

use anyhow::Result;

use super::Violation;
use super::tree::Tree;

/// The kernels, the opening of CUDA, and stand-ins for bindings, which are no part of the product.
const UNSAFE: [&str; 3] = ["crates/izwi-kernels/", "crates/izwi-cuda/", "scripts/metal-emulator/stand-ins/"];
const FORBID: &str = "#![forbid(unsafe_code)]";

pub(super) fn forbid_unsafe_code(tree: &Tree) -> Result<Vec<Violation>> {
    let is_root = |path: &str| {
        let package = path.strip_suffix("src/lib.rs").or_else(|| path.strip_suffix("src/main.rs"));
        package.is_some_and(|package| !UNSAFE.iter().any(|place| package.starts_with(place)))
    };
    let without = tree.rust_files().filter(|file| is_root(&file.path) && !file.code.contains(FORBID));
    let remedy = format!("add `{FORBID}`");
    Ok(without.map(|file| Violation::new(&file.path, 1, "unsafe code", remedy.clone())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn every_crate_but_the_kernels_forbids_unsafe_code() {
        let files = [
            ("crates/a/src/lib.rs", "//! a\n#![forbid(unsafe_code)]\n"),
            ("crates/b/src/main.rs", "//! b\n// #![forbid(unsafe_code)]\n"),
            ("crates/b/src/other.rs", "//! c\n"),
            ("crates/izwi-kernels/src/lib.rs", "//! d\n"),
            ("scripts/metal-emulator/stand-ins/objc2/src/lib.rs", "//! f\n"),
            ("tests/src/lib.rs", "//! e\n"),
        ];
        assert_eq!(found(forbid_unsafe_code, &files), ["crates/b/src/main.rs:1", "tests/src/lib.rs:1"]);
    }
}
