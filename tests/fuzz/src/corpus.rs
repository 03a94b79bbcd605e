//! The inputs that a target begins with: its seeds, and the files of `corpus/<name>/`, each of which broke a promise once
//! or reaches what no seed reaches.

use std::path::{Path, PathBuf};

use crate::Target;

/// The repository's root.
pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The seeds of a target and its files, in the order of their names.
pub fn inputs(target: &Target) -> Vec<Vec<u8>> {
    let mut inputs = (target.seeds)();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    inputs.extend(files.iter().map(|file| std::fs::read(file).expect("a readable file of the corpus")));
    inputs
}

/// A file of the repository.
pub(crate) fn file(path: &str) -> Vec<u8> {
    let path = repository().join(path);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}
