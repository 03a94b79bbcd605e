//! Packed weights in a file next to their checkpoint, so that a later load does not pack them again.
//!
//! Owns the file: it is read and checked as a whole, and replaced as a whole. A missing or damaged file costs only the
//! time to pack again. Knows no tensor and no layer.
//!
//! ```text
//! "izwipack", the version, the CRC-32 of the header, its length: each a little-endian u64
//! the header, JSON: the key, the CRC-32 of the weights; name, kind, sizes and offset of each
//! the weights, each padded to whole cache lines
//! ```

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use flate2::Crc;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use crate::checkpoint::lazy_tensor::read_at;
use izwi_kernels::packed::{Packed, PackedKind, Part, Region, Sizes};

/// Raised when the packing of weights changes.
const VERSION: u64 = 2;
const MAGIC: u64 = u64::from_le_bytes(*b"izwipack");
/// Bytes before the header.
const HEAD: usize = 4 * size_of::<u64>();
/// Limit of the header's length.
const MAX_HEADER_BYTES: u64 = 16 << 20;
/// Bytes read and checked together.
const PIECE: usize = 1 << 20;
/// Suffix of a file that is being written.
const PARTIAL: &str = "partial";
/// A partial file that was not written to for this long is abandoned.
const ABANDONED: Duration = Duration::from_secs(600);

/// The cache of one checkpoint at one precision.
#[derive(Debug)]
pub(crate) struct WeightCache {
    path: PathBuf,
    /// Identifies the checkpoint and the precision.
    key: String,
    found: Option<Found>,
    /// All weights of the model, for the next file.
    taken: Vec<(String, Arc<dyn Packed>)>,
    /// Whether the file lacks one of them.
    lacks: bool,
}

/// Content of a file.
#[derive(Debug)]
struct Found {
    entries: HashMap<String, Entry>,
    weights: Arc<Region>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    key: String,
    crc: u32,
    entries: Vec<Entry>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    kind: PackedKind,
    sizes: Sizes,
    /// Offset of its first byte from the first weight's.
    start: usize,
    bytes: usize,
}

impl WeightCache {
    /// Reads the file at `path` if it exists, is undamaged, has this key and at most `most` bytes of weights.
    pub(crate) fn open(path: PathBuf, key: String, most: u64) -> Self {
        let found = match read(&path, &key, most) {
            Ok(found) => Some(found),
            Err(error) => {
                tracing::debug!(path = %path.display(), %error, "no cached weights");
                None
            }
        };
        Self { path, key, found, taken: Vec::new(), lacks: false }
    }

    /// The cached weight of this name and these sizes.
    pub(crate) fn take<P: Packed>(&mut self, name: &str, sizes: Sizes) -> Option<Arc<P>> {
        let Found { entries, weights } = self.found.as_ref()?;
        let entry = entries.get(name).filter(|entry| entry.sizes == sizes)?;
        let data = Part::new(weights, entry.start..entry.start.checked_add(entry.bytes)?)?;
        let packed = Arc::new(P::unpack(entry.kind, sizes, data)?);
        self.taken.push((name.to_owned(), Arc::clone(&packed) as Arc<dyn Packed>));
        Some(packed)
    }

    /// Adds a newly packed weight.
    pub(crate) fn add<P: Packed>(&mut self, name: String, packed: &Arc<P>) {
        self.taken.push((name, Arc::clone(packed) as Arc<dyn Packed>));
        self.lacks = true;
    }

    /// Replaces the file if it lacks a weight. A failure is logged.
    pub(crate) fn finish(self) {
        if !self.lacks {
            return;
        }
        remove_abandoned(&self.path);
        let partial = self.path.with_added_extension(format!("{}.{PARTIAL}", std::process::id()));
        let file = match File::create_new(&partial) {
            Ok(file) => file,
            Err(error) => {
                return tracing::debug!(path = %partial.display(), %error, "weights are not cached");
            }
        };
        let written = self.write(file).and_then(|()| fs::rename(&partial, &self.path));
        if let Err(error) = written {
            tracing::debug!(path = %self.path.display(), %error, "weights are not cached");
            if let Err(error) = fs::remove_file(&partial) {
                tracing::debug!(path = %partial.display(), %error, "cannot be removed");
            }
        }
    }

    fn write(&self, file: File) -> io::Result<()> {
        let mut start = 0;
        let entries = self.taken.iter().map(|(name, packed)| {
            let entry = Entry {
                name: name.clone(),
                kind: packed.kind(),
                sizes: packed.sizes(),
                start,
                bytes: packed.data().len(),
            };
            start += entry.bytes;
            entry
        });
        let entries = entries.collect();
        let pieces: Vec<&[u8]> =
            self.taken.iter().flat_map(|(_, packed)| packed.data().chunks(PIECE)).collect();
        let crc = combined(pieces.par_iter().map(|piece| crc_of(piece)).collect());
        let header = serde_json::to_vec(&Header { key: self.key.clone(), crc, entries })?;
        let mut file = BufWriter::new(file);
        for word in [MAGIC, VERSION, crc_of(&header).sum().into(), header.len() as u64] {
            file.write_all(&word.to_le_bytes())?;
        }
        file.write_all(&header)?;
        pieces.iter().try_for_each(|piece| file.write_all(piece))?;
        file.into_inner()?.sync_all()
    }
}

/// Content of the file at `path`, if it has this key and is undamaged.
fn read(path: &Path, key: &str, most: u64) -> io::Result<Found> {
    let unfit = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why.to_owned());
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    let mut head = [0; HEAD];
    file.read_exact(&mut head)?;
    let mut words = head.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
    if words.next() != Some(MAGIC) || words.next() != Some(VERSION) {
        return Err(unfit("of another version"));
    }
    let (crc, length) = (words.next(), words.next().filter(|length| *length <= MAX_HEADER_BYTES));
    let begin = length.map(|length| HEAD as u64 + length).filter(|begin| *begin <= size);
    let (Some(length), Some(begin)) = (length, begin) else {
        return Err(unfit("truncated, or its header has a wrong length"));
    };
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header)?;
    if crc != Some(crc_of(&header).sum().into()) {
        return Err(unfit("with a damaged header"));
    }
    let header: Header = serde_json::from_slice(&header)?;
    if header.key != key {
        return Err(unfit("of another checkpoint, or of this one before it was changed"));
    }
    if size - begin > most {
        return Err(unfit("larger than its weights can be"));
    }
    let mut weights = Region::zeroed((size - begin) as usize)?;
    let pieces = weights.bytes_mut().par_chunks_mut(PIECE).enumerate().map(|(at, piece)| {
        read_at(&file, piece, begin + (at * PIECE) as u64)?;
        Ok(crc_of(piece))
    });
    if combined(pieces.collect::<io::Result<_>>()?) != header.crc {
        return Err(unfit("with damaged weights"));
    }
    let entries = header.entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
    Ok(Found { entries, weights: Arc::new(weights) })
}

fn crc_of(bytes: &[u8]) -> Crc {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc
}

/// The checksum of consecutive pieces.
fn combined(pieces: Vec<Crc>) -> u32 {
    let mut whole = Crc::new();
    pieces.iter().for_each(|piece| whole.combine(piece));
    whole.sum()
}

/// Removes partial files of killed writers.
fn remove_abandoned(path: &Path) {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return;
    };
    let is_of_this = |file: &Path| {
        let file = file.file_name().and_then(|file| file.to_str());
        file.is_some_and(|file| file.starts_with(name) && file.ends_with(PARTIAL))
    };
    let is_old = |file: &Path| {
        let changed = fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        let age = changed.and_then(|changed| SystemTime::now().duration_since(changed).ok());
        age.is_some_and(|age| age > ABANDONED)
    };
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    for file in files.filter(|file| is_of_this(file) && is_old(file)) {
        if let Err(error) = fs::remove_file(&file) {
            tracing::debug!(path = %file.display(), %error, "cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests;
