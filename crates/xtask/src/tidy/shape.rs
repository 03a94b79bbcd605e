//! First line, length, name and size of a file.

use anyhow::Result;

use super::Violation;
use super::tree::{File, Tree, has_extension};

const MAX_LINES: usize = 600;
const MAX_WEIGHT_BYTES: u64 = 8 << 20;
/// Names that say nothing about what a module owns.
const EMPTY_NAMES: &[&str] = &["utils", "helpers", "common"];

pub(super) fn modules_say_what_they_own(tree: &Tree) -> Result<Vec<Violation>> {
    let silent = tree.rust_files().filter(|file| !file.text.starts_with("//!"));
    let remedy = "open the file with `//!`: what it owns and what it must not know";
    Ok(silent.map(|file| Violation::new(&file.path, 1, "module doc", remedy)).collect())
}

pub(super) fn files_are_short(tree: &Tree) -> Result<Vec<Violation>> {
    let long = tree.rust_files().filter_map(|file| {
        let lines = lines_before_tests(file);
        let remedy = format!("{lines} lines without tests, at most {MAX_LINES}: split it by what it owns");
        (lines > MAX_LINES).then(|| Violation::new(&file.path, MAX_LINES + 1, "length", remedy))
    });
    Ok(long.collect())
}

/// Lines up to the first `#[cfg(test)]` that opens a block: `#[cfg(test)] mod tests;` ends nothing.
fn lines_before_tests(file: &File) -> usize {
    let lines: Vec<&str> = file.code.lines().map(str::trim).collect();
    let opens_block = |at: usize| {
        let after = lines[at + 1..].iter().find(|line| !line.is_empty() && !line.starts_with("#["));
        after.is_some_and(|line| !line.ends_with(';'))
    };
    let tests = (0..lines.len()).find(|at| lines[*at].starts_with("#[cfg(test)]") && opens_block(*at));
    tests.unwrap_or(lines.len())
}

pub(super) fn names_say_something(tree: &Tree) -> Result<Vec<Violation>> {
    let empty = tree.rust_files().filter(|file| {
        let path = file.path.strip_suffix(".rs").unwrap_or(&file.path);
        let module = path.strip_suffix("/mod").unwrap_or(path);
        EMPTY_NAMES.contains(&module.rsplit('/').next().unwrap_or(module))
    });
    let remedy = "name the module after what it owns";
    Ok(empty.map(|file| Violation::new(&file.path, 1, "file name", remedy)).collect())
}

pub(super) fn weights_stay_out(tree: &Tree) -> Result<Vec<Violation>> {
    let weights = tree.files.iter().filter(|file| has_extension(file.name(), "safetensors"));
    let large = weights.filter(|file| file.bytes > MAX_WEIGHT_BYTES);
    let remedy = "weights over 8 MiB are pulled, never committed";
    Ok(large.map(|file| Violation::new(&file.path, 1, "weights", remedy)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::found;

    #[test]
    fn every_rust_file_opens_with_its_doc() {
        let files =
            [("a.rs", "//! a\n"), ("b.rs", "\n//! b\n"), ("c.rs", "/// c\n"), ("d.rs", ""), ("e.py", "")];
        assert_eq!(found(modules_say_what_they_own, &files), ["b.rs:1", "c.rs:1", "d.rs:1"]);
    }

    #[test]
    fn length_counts_up_to_the_tests() {
        let body = |lines: usize| "fn f() {}\n".repeat(lines);
        let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", body(900));
        let files = [
            ("limit.rs", body(600)),
            ("over.rs", body(601)),
            ("tests_after.rs", body(600) + &tests),
            ("tests_late.rs", body(601) + &tests),
            ("declared.rs", format!("#[cfg(test)]\nmod tests;\n{}", body(599))),
        ];
        let files = files.each_ref().map(|(path, text)| (*path, text.as_str()));
        assert_eq!(found(files_are_short, &files), ["declared.rs:601", "over.rs:601", "tests_late.rs:601"]);
    }

    #[test]
    fn empty_names_are_refused() {
        let paths =
            ["src/utils.rs", "src/helpers/mod.rs", "tests/common.rs", "src/common/a.rs", "src/commons.rs"];
        let files = paths.map(|path| (path, ""));
        assert_eq!(
            found(names_say_something, &files),
            ["src/helpers/mod.rs:1", "src/utils.rs:1", "tests/common.rs:1"]
        );
    }

    #[test]
    fn weights_have_a_limit() {
        let file = |path: &str, bytes: u64| {
            let mut tree = Tree::of(&[(path, "")]);
            tree.files[0].bytes = bytes;
            weights_stay_out(&tree).unwrap().len()
        };
        assert_eq!(file("a.safetensors", MAX_WEIGHT_BYTES), 0);
        assert_eq!(file("a.safetensors", MAX_WEIGHT_BYTES + 1), 1);
        assert_eq!(file("a.wav", MAX_WEIGHT_BYTES + 1), 0);
    }
}
