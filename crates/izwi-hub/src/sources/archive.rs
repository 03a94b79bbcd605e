//! Extracts single members from package archives.
//!
//! A member's name never becomes a path: a wanted member goes to a place of the staging folder, and an archive with an
//! unsafe name is refused. Knows no package client.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Component, Path, PathBuf};

use flate2::read::GzDecoder;

use super::file::SourceFile;
use super::staging::Staging;
use crate::files::remove;
use crate::io_error::IoError;
use crate::progress::ProgressSink;
use crate::source_error::SourceError;

/// A package's archive on disk.
#[derive(Debug)]
pub(super) struct Archive {
    /// The package's name in messages.
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) format: Format,
}

/// Format of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A wheel.
    Zip,
    /// An npm package.
    TarGz,
}

/// The most bytes of a tar archive's content, members that nobody wants included.
const MAX_TAR_BYTES: u64 = 16 << 30;
/// The most bytes of a tar header that holds the name of the next member; the tar library reads it into memory.
const MAX_NAME_BYTES: u64 = 64 << 10;
/// The most members of a tar archive.
const MAX_MEMBERS: usize = 100_000;

/// A member to extract.
struct Wanted {
    target: PathBuf,
    /// Where it begins, if it is a part of the member.
    offset: Option<u64>,
    /// Its bytes, or the most that a whole member may have.
    limit: u64,
}

/// What to take of each member.
type Members<'a> = BTreeMap<&'a str, Vec<Wanted>>;

/// Extracts the pieces of `files` into `staging`.
///
/// # Errors
/// An archive is malformed or unsafe, or none has a required member.
pub(super) fn unpack(
    archives: &[Archive],
    files: &[&SourceFile],
    staging: &Staging,
    progress: &mut dyn ProgressSink,
) -> Result<(), SourceError> {
    let mut wanted = Members::new();
    for file in files {
        for (index, path) in file.paths.iter().enumerate() {
            let target = staging.piece(file, index);
            remove(&target)?;
            let own = Wanted { target, offset: file.offset, limit: file.size };
            wanted.entry(path).or_default().push(own);
        }
    }
    for archive in archives {
        progress.note(&format!("unpacking {}", archive.name));
        let opened = File::open(&archive.path).map_err(IoError::at("open", &archive.path))?;
        let unpacked = match archive.format {
            Format::Zip => unzip(BufReader::new(&opened), &wanted),
            Format::TarGz => check_tar(BufReader::new(&opened))
                .and_then(|()| rewind(&opened, &archive.path))
                .and_then(|()| untar(BufReader::new(&opened), &wanted)),
        };
        unpacked.map_err(|error| match error {
            Refused::Io(error) => SourceError::Io(error),
            Refused::Archive(reason) => SourceError::Archive { archive: archive.name.clone(), reason },
        })?;
    }
    let is_there =
        |path: &str| wanted.get(path).is_some_and(|wanted| wanted.iter().all(|own| own.target.exists()));
    for file in files.iter().filter(|file| !file.optional) {
        if let Some(path) = file.paths.iter().find(|path| !is_there(path)) {
            let names: Vec<&str> = archives.iter().map(|archive| archive.name.as_str()).collect();
            let reason = format!("holds no '{path}'; check the manifest");
            return Err(SourceError::Archive { archive: names.join(" + "), reason });
        }
    }
    Ok(())
}

/// Why an archive is refused.
enum Refused {
    Archive(String),
    Io(IoError),
}

impl From<IoError> for Refused {
    fn from(error: IoError) -> Self {
        Self::Io(error)
    }
}

fn unreadable(error: impl std::fmt::Display) -> Refused {
    Refused::Archive(format!("cannot be read: {error}"))
}

fn unzip(reader: impl Read + io::Seek, wanted: &Members<'_>) -> Result<(), Refused> {
    let mut archive = zip::ZipArchive::new(reader).map_err(unreadable)?;
    for index in 0..archive.len() {
        let mut member = archive.by_index(index).map_err(unreadable)?;
        let name = member.name().map_err(unreadable)?.into_owned();
        check_name(&name)?;
        if let Some(wanted) = wanted.get(name.as_str()) {
            check_kind(&name, member.is_file())?;
            let declared = member.size();
            copy(&name, &mut member, declared, wanted)?;
        }
    }
    Ok(())
}

/// Refuses an archive whose headers would take much memory, or whose content much time.
fn check_tar(reader: impl Read) -> Result<(), Refused> {
    let mut archive = tar::Archive::new(GzDecoder::new(reader).take(MAX_TAR_BYTES));
    for (index, member) in archive.entries().map_err(unreadable)?.raw(true).enumerate() {
        let member = member.map_err(unreadable)?;
        let kind = member.header().entry_type();
        let is_name = kind.is_gnu_longname()
            || kind.is_gnu_longlink()
            || kind.is_pax_local_extensions()
            || kind.is_pax_global_extensions();
        let size = member.header().entry_size().map_err(unreadable)?;
        if is_name && size > MAX_NAME_BYTES {
            return Err(Refused::Archive(format!("has a name of {size} bytes, at most {MAX_NAME_BYTES}")));
        }
        if index >= MAX_MEMBERS {
            return Err(Refused::Archive(format!("has more than {MAX_MEMBERS} members")));
        }
    }
    Ok(())
}

fn rewind(mut file: &File, path: &Path) -> Result<(), Refused> {
    Ok(file.seek(SeekFrom::Start(0)).map(drop).map_err(IoError::at("read", path))?)
}

fn untar(reader: impl Read, wanted: &Members<'_>) -> Result<(), Refused> {
    let mut archive = tar::Archive::new(GzDecoder::new(reader));
    for member in archive.entries().map_err(unreadable)? {
        let mut member = member.map_err(unreadable)?;
        let path = member.path().map_err(unreadable)?;
        let name = path.to_str().ok_or_else(|| unreadable("a member's name is not UTF-8"))?.to_owned();
        check_name(&name)?;
        if let Some(wanted) = wanted.get(name.as_str()) {
            check_kind(&name, member.header().entry_type().is_file())?;
            let declared = member.size();
            copy(&name, &mut member, declared, wanted)?;
        }
    }
    Ok(())
}

/// Refuses names that lead out of the folder that an archive is unpacked into.
fn check_name(name: &str) -> Result<(), Refused> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
    let drive = name.as_bytes().get(1) == Some(&b':');
    if drive || name.contains(['\\', '\0']) || !Path::new(name).components().all(inside) {
        return Err(Refused::Archive(format!("holds the unsafe name '{}'", name.escape_debug())));
    }
    Ok(())
}

fn check_kind(name: &str, is_file: bool) -> Result<(), Refused> {
    if is_file {
        Ok(())
    } else {
        Err(Refused::Archive(format!("'{}' is not a plain file", name.escape_debug())))
    }
}

/// Writes what is wanted of one member: all of it, at most as long as the manifest allows, or parts.
fn copy(name: &str, member: &mut impl Read, declared: u64, wanted: &[Wanted]) -> Result<(), Refused> {
    let mut files = Vec::new();
    for own in wanted {
        let end = own.offset.unwrap_or(0).saturating_add(own.limit);
        if own.offset.is_none() && declared > end {
            let limit = own.limit;
            return Err(Refused::Archive(format!("'{name}' is longer than the manifest's {limit} bytes")));
        }
        if own.offset.is_some() && declared < end {
            let reason =
                format!("'{name}' has {declared} bytes, but the manifest's part of it ends at {end}");
            return Err(Refused::Archive(reason));
        }
        let file = File::create(&own.target).map_err(IoError::at("create", &own.target))?;
        files.push((own.offset.unwrap_or(0)..end, file, own));
    }
    let takes_all = wanted.iter().any(|own| own.offset.is_none());
    let last = files.iter().map(|(range, ..)| range.end).max().unwrap_or(0);
    let mut buffer = vec![0; 1 << 16];
    let mut copied = 0;
    while takes_all || copied < last {
        let read = member.read(&mut buffer).map_err(unreadable)?;
        if read == 0 {
            break;
        }
        let here = copied..copied + read as u64;
        copied = here.end;
        if copied > declared {
            break;
        }
        for (range, file, own) in &mut files {
            let (start, end) = (range.start.max(here.start), range.end.min(here.end));
            if start < end {
                let part = &buffer[(start - here.start) as usize..(end - here.start) as usize];
                io::Write::write_all(file, part).map_err(IoError::at("write", &own.target))?;
            }
        }
    }
    if copied < last && !takes_all || takes_all && copied != declared {
        let reason = format!("'{name}' has {copied} bytes where the archive declares {declared}");
        return Err(Refused::Archive(reason));
    }
    Ok(())
}
