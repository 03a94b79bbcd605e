//! Operations on files and folders whose errors name the path. Knows no layout.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use crate::io_error::IoError;

/// Removes a file that may not exist.
pub(crate) fn remove(path: &Path) -> Result<(), IoError> {
    absent_is_fine(fs::remove_file(path), path)
}

/// Removes a folder that may not exist.
pub(crate) fn remove_folder(folder: &Path) -> Result<(), IoError> {
    absent_is_fine(fs::remove_dir_all(folder), folder)
}

fn absent_is_fine(removed: io::Result<()>, path: &Path) -> Result<(), IoError> {
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(IoError::at("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Writes a file with these contents, which appears or changes completely or not at all. Creates its folder.
pub(crate) fn replace(path: &Path, contents: &[u8]) -> Result<(), IoError> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(IoError::at("create", folder))?;
    }
    let part = path.with_added_extension("part");
    let write = || {
        let mut file = File::create(&part)?;
        file.write_all(contents)?;
        file.sync_all()?;
        fs::rename(&part, path)
    };
    write().map_err(IoError::at("write", &part))
}

/// Writes a file that its owner alone can read, in a folder that exists. It appears or changes completely or not at all.
///
/// # Errors
/// The disk is full, or the system refuses.
pub fn write_private(path: &Path, contents: &[u8]) -> Result<(), IoError> {
    let part = path.with_added_extension("part");
    let write = || {
        let mut file = private_file().create(true).truncate(true).open(&part)?;
        file.write_all(contents)?;
        // Its name must not survive a power failure that its bytes do not.
        file.sync_data()?;
        fs::rename(&part, path)
    };
    write().map_err(IoError::at("write", path))
}

/// Bytes of all files in a folder; unreadable ones count 0.
pub fn folder_bytes(folder: &Path) -> u64 {
    bytes_of(folder, &|_| false)
}

/// Bytes of the files in a folder, without those that are `left_out`; unreadable ones count 0.
pub(crate) fn bytes_of(folder: &Path, left_out: &impl Fn(&Path) -> bool) -> u64 {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let bytes = |path: &Path| match fs::metadata(path) {
        _ if left_out(path) => 0,
        Ok(found) if found.is_dir() => bytes_of(path, left_out),
        Ok(found) => found.len(),
        Err(_) => 0,
    };
    entries.flatten().map(|entry| bytes(&entry.path())).fold(0, u64::saturating_add)
}

/// Creates a folder that its owner alone can enter. An existing one is closed to others, unless it is not our own.
///
/// # Errors
/// The system refuses.
pub fn create_private_folder(folder: &Path) -> Result<(), IoError> {
    if let Some(parent) = folder.parent() {
        fs::create_dir_all(parent).map_err(IoError::at("create", parent))?;
    }
    let mut builder = DirBuilder::new();
    private_folder(&mut builder);
    match builder.create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {
            close_to_others(folder).map_err(IoError::at("restrict", folder))
        }
        created => created.map_err(IoError::at("create", folder)),
    }
}

/// Options to write a file that its owner alone can read.
pub fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Closes a file to others than its owner.
///
/// # Errors
/// The system refuses.
pub fn close_file(path: &Path) -> Result<(), IoError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))
            .map_err(IoError::at("restrict", path))?;
    }
    #[cfg(not(unix))]
    let _ = path;
    Ok(())
}

#[cfg(unix)]
fn private_folder(builder: &mut DirBuilder) {
    std::os::unix::fs::DirBuilderExt::mode(builder, 0o700);
}

#[cfg(unix)]
fn close_to_others(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = fs::metadata(folder)?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    match fs::set_permissions(folder, fs::Permissions::from_mode(mode & 0o7700)) {
        // An administrator manages the folder.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

// On Windows the data folder of a user is closed to others.
#[cfg(not(unix))]
fn private_folder(_builder: &mut DirBuilder) {}

#[cfg(not(unix))]
fn close_to_others(_folder: &Path) -> io::Result<()> {
    Ok(())
}
