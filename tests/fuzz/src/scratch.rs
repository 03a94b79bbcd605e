//! Files for readers that take a path. They lie in memory where the system has a folder there.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

thread_local! {
    static FOLDER: TempDir = {
        let memory = Path::new("/dev/shm");
        let place = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
        tempfile::tempdir_in(place).expect("a folder for temporary files")
    };
}

/// The path of this name in the thread's folder.
pub(crate) fn path(name: &str) -> PathBuf {
    FOLDER.with(|folder| folder.path().join(name))
}

/// Writes a file of this name, and returns its path.
pub(crate) fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = path(name);
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).expect("a folder in memory");
    }
    std::fs::write(&path, bytes).expect("a file in memory");
    path
}
