//! Downloads of files of known hash, in one piece or in several. Knows no origin of the hash.

use std::fs;

use super::download::{Hub, NOT_FOUND, Piece};
use crate::io_error::IoError;
use crate::progress::ProgressSink;
use crate::source_error::SourceError;
use crate::sources::file::SourceFile;
use crate::sources::staging::{Fetched, Staging};

/// Downloads a file of known hash; `None` for an optional one that the repository lacks.
pub(super) fn fetch(
    hub: &Hub<'_>,
    file: &SourceFile,
    staging: &Staging,
    progress: &mut dyn ProgressSink,
) -> Result<Option<Fetched>, SourceError> {
    let mut resumed = false;
    let mut base = 0;
    for (index, path) in file.paths.iter().enumerate() {
        let is_last = index + 1 == file.paths.len();
        let piece = Piece { path, base, total: file.size, is_last, label: &file.target };
        let target = staging.piece(file, index);
        match hub.download(&piece, &target, progress) {
            Ok(continued) => resumed |= continued,
            Err(SourceError::Status { status: NOT_FOUND, .. }) if file.optional => {
                progress.note(&format!("{} is not in the source; it is optional", file.target));
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        base += fs::metadata(&target).map_err(IoError::at("read", &target))?.len();
    }
    match staging.join(file) {
        // The beginning may come from another version of the file, or from a crash: download it again once.
        Err(SourceError::Checksum { .. }) if resumed => {
            progress.note(&format!(
                "{}: the resumed download has another hash; downloading it again",
                file.target
            ));
            fetch(hub, file, staging, progress)
        }
        other => other,
    }
}
