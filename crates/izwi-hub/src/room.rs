//! Free space of a disk, asked before a pull writes to it. Knows no layout.

use std::path::Path;

use crate::source_error::SourceError;

/// Space that a pull leaves to everything else.
const SPARE_BYTES: u64 = 128 << 20;

/// Refuses to write `bytes` where the disk of `folder` has no room for them. A disk that tells nothing has room.
///
/// # Errors
/// [`SourceError::NoRoom`].
pub(crate) fn check(folder: &Path, bytes: u64) -> Result<(), SourceError> {
    let need = bytes.saturating_add(SPARE_BYTES);
    match fs4::available_space(folder) {
        Ok(free) if free < need => Err(SourceError::NoRoom { folder: folder.to_path_buf(), need, free }),
        _ => Ok(()),
    }
}

/// Whether the disk of `folder` has no room for anything.
pub(crate) fn is_full(folder: &Path) -> bool {
    const NOTHING: u64 = 64 << 10;
    fs4::available_space(folder).is_ok_and(|free| free < NOTHING)
}
