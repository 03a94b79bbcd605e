//! The weights: a file of PyTorch, which is a ZIP archive of storages and a pickled index.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Cursor, Read as _};
use std::rc::Rc;

use safetensors::tensor::{Dtype, View};
use zip::{CompressionMethod, ZipArchive};

use super::pickle::{self, Place};
use crate::convert::error::{ConversionError, malformed};

/// The most bytes of the index.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Tensors may share storages; more bytes of them than so many times the file's mean that it repeats one.
const MAX_GROWTH: usize = 4;
/// Counters of training.
const UNUSED: &str = ".num_batches_tracked";

/// A tensor whose bytes fit its shape.
#[derive(Debug)]
pub(super) struct Weight<'a> {
    kind: Dtype,
    shape: Vec<usize>,
    data: &'a [u8],
}

/// The tensors of a file, by name.
pub(super) fn named(file: &[u8]) -> Result<BTreeMap<String, Weight<'_>>, ConversionError> {
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(unreadable)?;
    let names: Vec<String> = archive.file_names().filter_map(|name| Some(name.ok()?.into_owned())).collect();
    let index = names.iter().find(|name| name.ends_with("/data.pkl") || *name == "data.pkl");
    let index = index.ok_or_else(|| malformed("the weights have no index".to_owned()))?;
    let folder = index.trim_end_matches("data.pkl");
    let order = format!("{folder}byteorder");
    if names.contains(&order) && text(&mut archive, &order)?.trim_ascii() != b"little" {
        return Err(ConversionError::Unsupported("the weights are not little-endian".to_owned()));
    }
    let mut storages = BTreeMap::new();
    let mut room = file.len().saturating_mul(MAX_GROWTH);
    let mut weights = BTreeMap::new();
    for (name, place) in pickle::tensors(&text(&mut archive, index)?)? {
        if name.ends_with(UNUSED) {
            continue;
        }
        let key: &Rc<str> = &place.storage;
        let storage = match storages.get(key) {
            Some(storage) => *storage,
            None => {
                let storage = stored(&mut archive, file, &format!("{folder}data/{key}"))?;
                storages.insert(Rc::clone(key), storage);
                storage
            }
        };
        let weight = weight(&place, storage)
            .ok_or_else(|| malformed(format!("'{}' is longer than its storage", name.escape_default())))?;
        room =
            room.checked_sub(weight.data.len()).ok_or_else(|| malformed("the weights repeat".to_owned()))?;
        weights.insert(name.to_string(), weight);
    }
    match weights.is_empty() {
        true => Err(malformed("the weights have no tensor".to_owned())),
        false => Ok(weights),
    }
}

/// The bytes of a small member.
fn text(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str) -> Result<Vec<u8>, ConversionError> {
    let member = archive.by_name(name).map_err(unreadable)?;
    let mut bytes = Vec::new();
    member.take(MAX_INDEX_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    match bytes.len() as u64 > MAX_INDEX_BYTES {
        true => Err(malformed(format!("the weights' index has more than {MAX_INDEX_BYTES} bytes"))),
        false => Ok(bytes),
    }
}

/// The bytes of a storage, which are in the file as they are.
fn stored<'a>(
    archive: &mut ZipArchive<Cursor<&[u8]>>,
    file: &'a [u8],
    name: &str,
) -> Result<&'a [u8], ConversionError> {
    let member = archive.by_name(name).map_err(unreadable)?;
    if member.compression() != CompressionMethod::Stored {
        return Err(ConversionError::Unsupported("the weights are compressed".to_owned()));
    }
    let start = member.data_start().and_then(|start| usize::try_from(start).ok());
    let size = usize::try_from(member.size()).ok();
    let part = start.zip(size).and_then(|(start, size)| file.get(start..start.checked_add(size)?));
    part.ok_or_else(|| malformed("a storage lies outside the file".to_owned()))
}

fn unreadable(error: impl std::fmt::Display) -> ConversionError {
    malformed(format!("the weights cannot be read: {error}"))
}

/// The part of a storage that is a tensor; `None` if it has fewer bytes.
fn weight<'a>(place: &Place, storage: &'a [u8]) -> Option<Weight<'a>> {
    let width = place.kind.bitsize() / 8;
    let count = place.shape.iter().try_fold(1usize, |count, &size| count.checked_mul(size))?;
    let start = place.offset.checked_mul(width)?;
    let data = storage.get(start..start.checked_add(count.checked_mul(width)?)?)?;
    Some(Weight { kind: place.kind, shape: place.shape.clone(), data })
}

impl View for Weight<'_> {
    fn dtype(&self) -> Dtype {
        self.kind
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(self.data)
    }

    fn data_len(&self) -> usize {
        self.data.len()
    }
}
