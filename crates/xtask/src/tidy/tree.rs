//! The files that the checks read: all that git tracks and new ones that it does not ignore, with their text.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use super::code;
use crate::process;

/// Larger files are data and are not read.
const MAX_TEXT_BYTES: u64 = 4 << 20;

#[derive(Debug)]
pub(super) struct File {
    /// From the repository's root, with `/`.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// Empty where the file is not text.
    pub(super) text: String,
    /// Of a Rust file: the text with comments and literals blanked, line by line the same length.
    pub(super) code: String,
    /// Of a Rust file: the code without what only tests have, line by line the same; empty in a file of tests.
    pub(super) product: String,
}

impl File {
    fn new(path: &str, bytes: u64, text: String) -> Self {
        let code = if has_extension(path, "rs") { code::only(&text) } else { String::new() };
        let product = code::without_tests(&code);
        Self { path: path.to_owned(), bytes, text, code, product }
    }

    pub(super) fn is_rust(&self) -> bool {
        has_extension(&self.path, "rs")
    }

    /// The file's name without folders.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }
}

pub(super) fn has_extension(path: &str, extension: &str) -> bool {
    Path::new(path).extension().is_some_and(|found| found == extension)
}

/// Whether a path is one of `places`: a file, or a folder given with its closing `/`.
pub(super) fn is_in(path: &str, places: &[(&str, &str)]) -> bool {
    places.iter().any(|(place, _why)| path == *place || (place.ends_with('/') && path.starts_with(place)))
}

/// The number of the line that holds the byte at `offset`, from 1.
pub(super) fn line_of(text: &str, offset: usize) -> usize {
    text.bytes().take(offset).filter(|byte| *byte == b'\n').count() + 1
}

#[derive(Debug)]
pub(super) struct Tree {
    pub(super) files: Vec<File>,
}

impl Tree {
    /// The work tree at `root`: tracked files and new ones that git does not ignore.
    pub(super) fn of_repository(root: &Path) -> Result<Self> {
        let mut git = Command::new("git");
        git.current_dir(root).args(["ls-files", "-co", "--exclude-standard", "-z"]);
        let listed =
            String::from_utf8(process::output(&mut git)?).context("git lists a path that is not UTF-8")?;
        let mut files = Vec::new();
        for path in listed.split_terminator('\0') {
            let full = root.join(path);
            // A tracked file may be gone from the work tree, and a submodule is a folder.
            let Ok(metadata) = fs::metadata(&full) else { continue };
            if metadata.is_file() {
                files.push(File::new(path, metadata.len(), text_of(&full, metadata.len())?));
            }
        }
        Self::with(files)
    }

    /// Files of tests are known only when all are read: their parents declare them.
    fn with(mut files: Vec<File>) -> Result<Self> {
        let mut of_tests: Vec<String> = Vec::new();
        for file in &files {
            let folder = module_folder(&file.path);
            let declared = code::test_modules(&file.code)?;
            of_tests.extend(declared.iter().map(|name| format!("{folder}{name}")));
        }
        let is_of_tests = |path: &str| {
            let declared = of_tests.iter().any(|module| {
                path.strip_prefix(module.as_str()).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            });
            declared || path.starts_with("tests/tests/") || path.contains("/tests/")
        };
        for file in files.iter_mut().filter(|file| is_of_tests(&file.path)) {
            file.product = String::new();
        }
        Ok(Self { files })
    }

    /// Files given as (path, text).
    #[cfg(test)]
    pub(super) fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File::new(path, text.len() as u64, (*text).to_owned()));
        Self::with(files.collect()).unwrap()
    }

    pub(super) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|file| file.path == path).map(|file| file.text.as_str())
    }
}

/// Where the modules lie that the file at `path` declares, with the closing `/`.
fn module_folder(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => format!("{folder}/"),
        _ => format!("{}/", path.strip_suffix(".rs").unwrap_or(path)),
    }
}

fn text_of(path: &Path, bytes: u64) -> Result<String> {
    if bytes > MAX_TEXT_BYTES {
        return Ok(String::new());
    }
    let content = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(String::from_utf8(content).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_files_or_folders() {
        let places = &[("src/a.rs", "why"), ("src/b/", "why")];
        for (path, inside) in
            [("src/a.rs", true), ("src/a.rs.rs", false), ("src/b/c/d.rs", true), ("src/bc.rs", false)]
        {
            assert_eq!(is_in(path, places), inside, "{path}");
        }
    }

    #[test]
    fn what_only_tests_have_is_no_product() {
        let text = "fn f() {}\n#[cfg(test)]\nmod golden;\n#[cfg(test)]\nmod tests { fn g() {} }\n";
        let tree = Tree::of(&[
            ("a/src/lib.rs", text),
            ("a/src/golden.rs", "fn h() {}"),
            ("a/src/golden/set.rs", "fn h() {}"),
            ("a/src/x.rs", "#[cfg(test)]\nmod tests;\n"),
            ("a/src/x/tests.rs", "fn h() {}"),
            ("a/tests/e2e.rs", "fn h() {}"),
        ]);
        let kept: Vec<&str> = tree.files.iter().map(|file| file.product.trim()).collect();
        assert_eq!(kept, ["fn f() {}", "", "", "", "", ""]);
    }

    #[test]
    fn the_repository_lists_this_file_and_nothing_ignored() {
        let tree = Tree::of_repository(&crate::root()).unwrap();
        assert!(tree.text("crates/xtask/src/tidy/tree.rs").is_some());
        assert!(!tree.files.iter().any(|file| file.path.starts_with("target/")));
    }
}
