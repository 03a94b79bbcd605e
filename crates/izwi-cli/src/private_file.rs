//! Files that only their owner reads: each appears whole, or not at all.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// Writes a file, and the folders above it where they are missing. Without `replace`, a file that exists stays and is an
/// error.
///
/// # Errors
/// The file exists, or cannot be written.
pub(crate) fn write(path: &Path, text: &str, replace: bool) -> io::Result<()> {
    // A link stays; the file that it points to is replaced.
    let target = if replace && path.exists() { fs::canonicalize(path)? } else { path.to_path_buf() };
    let folder = match target.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    fs::create_dir_all(folder)?;
    let mut file = tempfile::Builder::new().prefix(".izwi-").suffix(".part").tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.as_file().sync_all()?;
    let persisted = if replace { file.persist(&target) } else { file.persist_noclobber(&target) };
    persisted.map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_whole_and_replaced_on_request_only() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/c.toml");
        write(&path, "one", false).unwrap();
        let refused = write(&path, "two", false).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "one");
        write(&path, "two", true).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_reads_it_and_links_stay() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let (real, link) = (folder.path().join("real"), folder.path().join("link"));
        write(&real, "one", false).unwrap();
        assert_eq!(fs::metadata(&real).unwrap().permissions().mode() & 0o777, 0o600);
        std::os::unix::fs::symlink(&real, &link).unwrap();
        write(&link, "two", true).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read_to_string(&real).unwrap(), "two");
    }
}
