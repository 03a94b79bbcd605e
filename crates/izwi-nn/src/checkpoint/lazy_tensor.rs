//! Tensors of a safetensors file, read lazily one by one: a checkpoint is never in memory twice.
//!
//! Owns the file format, <https://huggingface.co/docs/safetensors/index#format>, and validates all of it. Files are read
//! rather than mapped: a file that is changed or truncated meanwhile is an error, not a crash. A large table of which few
//! rows are read stays in its file. Knows no checkpoint.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use candle_core::{DType, Device, Tensor};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata};
use sha2::{Digest, Sha256};

use crate::Error;

/// Limit of the header's length.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// Bytes of the length before the header.
const LENGTH_BYTES: u64 = 8;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// The place of a tensor in its file.
#[derive(Debug, Clone)]
pub(crate) struct LazyTensor {
    file: Arc<(String, File)>,
    start: u64,
    bytes: usize,
    dtype: Dtype,
    shape: Vec<usize>,
    /// The scales of a tensor of int8: one, or one of each row.
    scale: Option<Arc<Self>>,
}

/// An open file.
pub(crate) struct TensorFile {
    /// Its tensors, by name.
    pub(crate) tensors: HashMap<String, LazyTensor>,
    /// Its length.
    pub(crate) bytes: u64,
    /// SHA-256 of its header, length and modification time: identifies its content without reading it all. `None` if the
    /// file system has no modification times.
    pub(crate) fingerprint: Option<[u8; 32]>,
}

/// Opens the file at `path`.
///
/// # Errors
/// The file is missing or is not safetensors.
pub(crate) fn open(path: &Path) -> Result<TensorFile, Error> {
    let name = path.display().to_string();
    let fault = |message: String| Error::File { path: name.clone(), message };
    let io = |error: std::io::Error| fault(error.to_string());
    let mut file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    let size = metadata.len();
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(|_| fault("is too short for a safetensors file".to_owned()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || LENGTH_BYTES + length > size {
        return Err(fault(format!("a header of {length} bytes does not fit a file of {size}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(io)?;
    let fingerprint = fingerprint(&header, &metadata);
    let header: Metadata =
        serde_json::from_slice(&header).map_err(|error| fault(format!("the header is damaged: {error}")))?;
    let data = LENGTH_BYTES + length;
    let expected = data + header.data_len() as u64;
    if expected != size {
        return Err(fault(format!("has {size} bytes where its header promises {expected}")));
    }
    let file = Arc::new((name, file));
    let stored = header.tensors().into_iter().map(|(name, info)| {
        let (start, end) = info.data_offsets;
        let stored = LazyTensor {
            file: Arc::clone(&file),
            start: data + start as u64,
            bytes: end - start,
            dtype: info.dtype,
            shape: info.shape.clone(),
            scale: None,
        };
        (name, stored)
    });
    Ok(TensorFile { tensors: with_scales(stored.collect()), bytes: size, fingerprint })
}

/// Gives a tensor of int8 the scales `{name}_scale` alongside it: together they are a tensor of floats.
fn with_scales(mut tensors: HashMap<String, LazyTensor>) -> HashMap<String, LazyTensor> {
    let names = tensors.iter().filter(|(_, tensor)| tensor.dtype == Dtype::I8);
    let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    for name in names {
        let scale_name = format!("{name}_scale");
        let fits = |scale: &LazyTensor, rows: Option<&usize>| {
            let of_rows = |count| count == 1 || Some(&count) == rows;
            scale.dtype == Dtype::F32 && matches!(scale.shape[..], [count] if of_rows(count))
        };
        let rows = tensors[&name].shape.first().copied();
        if tensors.get(&scale_name).is_some_and(|scale| fits(scale, rows.as_ref()))
            && let Some(scale) = tensors.remove(&scale_name)
            && let Some(tensor) = tensors.get_mut(&name)
        {
            tensor.scale = Some(Arc::new(scale));
        }
    }
    tensors
}

fn fingerprint(header: &[u8], metadata: &std::fs::Metadata) -> Option<[u8; 32]> {
    let changed = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let mut digest = Sha256::new();
    digest.update(metadata.len().to_le_bytes());
    digest.update(changed.as_nanos().to_le_bytes());
    digest.update(header);
    Some(digest.finalize().into())
}

/// Fills `to` from byte `start` of a file; safe to call from several threads.
///
/// # Errors
/// The file is shorter, or cannot be read.
pub(crate) fn read_at(file: &File, to: &mut [u8], start: u64) -> io::Result<()> {
    #[cfg(unix)]
    return std::os::unix::fs::FileExt::read_exact_at(file, to, start);
    #[cfg(windows)]
    {
        let mut done = 0;
        while done < to.len() {
            let at = start + done as u64;
            match std::os::windows::fs::FileExt::seek_read(file, &mut to[done..], at)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => done += read,
            }
        }
        Ok(())
    }
}

impl LazyTensor {
    /// Its shape.
    pub(crate) fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// Number of its values.
    pub(crate) fn elem_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its type, if it is a floating-point type or int8 with scales, which reads as f32.
    pub(crate) fn float_type(&self) -> Option<DType> {
        match self.dtype {
            Dtype::I8 if self.scale.is_some() => Some(DType::F32),
            Dtype::F64 => Some(DType::F64),
            Dtype::F32 => Some(DType::F32),
            Dtype::F16 => Some(DType::F16),
            Dtype::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// Its type as the file names it.
    pub(crate) fn type_name(&self) -> String {
        format!("{:?}", self.dtype)
    }

    /// Reads it, onto the CPU.
    ///
    /// # Errors
    /// It is no floating-point tensor, or the file cannot be read.
    pub(crate) fn read(&self) -> Result<Tensor, Error> {
        let values = self.read_spans(&[self.start], self.bytes, &self.shape)?;
        match &self.scale {
            Some(scale) => scaled(&values, &scale.read()?),
            None => Ok(values),
        }
    }

    /// Reads rows `ids` of a table `[entries, width]`, ids below the number of entries: `[ids, width]`.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_rows(&self, ids: &[u32]) -> Result<Tensor, Error> {
        let [entries, width] = self.shape[..] else {
            return Err(Error::Internal("rows were read of a tensor that is no table"));
        };
        let row = self.bytes / entries.max(1);
        let starts: Vec<u64> = ids.iter().map(|&id| self.start + u64::from(id) * row as u64).collect();
        let values = self.read_spans(&starts, row, &[ids.len(), width])?;
        match &self.scale {
            Some(scale) if scale.elem_count() == 1 => scaled(&values, &scale.read()?),
            Some(scale) => scaled(&values, &scale.read()?.index_select(&Tensor::new(ids, &Device::Cpu)?, 0)?),
            None => Ok(values),
        }
    }

    /// The values of spans of `bytes` each.
    fn read_spans(&self, starts: &[u64], bytes: usize, shape: &[usize]) -> Result<Tensor, Error> {
        let device = &Device::Cpu;
        let spans = Spans { file: &self.file, starts, bytes };
        let tensor = match self.float_type() {
            Some(DType::F32) if self.scale.is_some() => {
                let int8 = |[byte]: [u8; 1]| f32::from(byte.cast_signed());
                Tensor::from_vec(spans.values(int8)?, shape, device)
            }
            Some(DType::F64) => Tensor::from_vec(spans.values(f64::from_le_bytes)?, shape, device),
            Some(DType::F32) => Tensor::from_vec(spans.values(f32::from_le_bytes)?, shape, device),
            Some(DType::F16) => Tensor::from_vec(spans.values(f16::from_le_bytes)?, shape, device),
            Some(DType::BF16) => Tensor::from_vec(spans.values(bf16::from_le_bytes)?, shape, device),
            _ => return Err(Error::Internal("a tensor of integers was read as weights")),
        };
        Ok(tensor?)
    }
}

/// `values` times one scale, or the scale of each row.
fn scaled(values: &Tensor, scales: &Tensor) -> Result<Tensor, Error> {
    let mut shape = vec![1; values.rank()];
    shape[0] = scales.elem_count();
    Ok(values.broadcast_mul(&scales.reshape(shape)?)?)
}

/// Parts of a file, each of `bytes`.
struct Spans<'a> {
    file: &'a (String, File),
    starts: &'a [u64],
    bytes: usize,
}

impl Spans<'_> {
    fn values<T, const N: usize>(&self, value: impl Fn([u8; N]) -> T) -> Result<Vec<T>, Error> {
        let (path, file) = self.file;
        let mut values = Vec::with_capacity(self.starts.len() * (self.bytes / N));
        let mut piece = vec![0; PIECE.min(self.bytes)];
        for start in self.starts {
            for done in (0..self.bytes).step_by(PIECE) {
                let piece = &mut piece[..PIECE.min(self.bytes - done)];
                read_at(file, piece, start + done as u64)
                    .map_err(|error| Error::File { path: path.clone(), message: error.to_string() })?;
                values.extend(piece.as_chunks().0.iter().map(|bytes| value(*bytes)));
            }
        }
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved(dtype: DType) -> (tempfile::TempDir, std::path::PathBuf, Tensor) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let tensor = Tensor::randn(0f32, 1.0, (700, 801), &Device::Cpu).unwrap().to_dtype(dtype).unwrap();
        let first = Tensor::ones(3, DType::U8, &Device::Cpu).unwrap();
        let tensors = HashMap::from([("a".to_owned(), first), ("b".to_owned(), tensor.clone())]);
        candle_core::safetensors::save(&tensors, &path).unwrap();
        (folder, path, tensor)
    }

    #[test]
    fn every_float_type_is_read_back_unchanged() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let (_folder, path, tensor) = saved(dtype);
            let stored = open(&path).unwrap().tensors;
            assert_eq!((stored["b"].dims(), stored["b"].float_type()), (&[700, 801][..], Some(dtype)));
            assert!(stored["a"].float_type().is_none() && stored["a"].read().is_err());
            let read = stored["b"].read().unwrap();
            assert_eq!(read.dtype(), dtype);
            let ids = [699, 0, 350, 0];
            let rows = tensor.index_select(&Tensor::new(&ids[..], &Device::Cpu).unwrap(), 0).unwrap();
            let values =
                |x: &Tensor| x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
            assert!(values(&read) == values(&tensor));
            assert!(values(&stored["b"].read_rows(&ids).unwrap()) == values(&rows));
        }
    }

    #[test]
    fn int8_beside_scales_reads_as_floats() {
        use safetensors::tensor::TensorView;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let values = [1u8, 255, 3, 128];
        let scales: Vec<u8> = [0.5f32, 2.0].iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let int8 = || TensorView::new(Dtype::I8, vec![2, 2], &values).unwrap();
        let tensors = [
            ("rows", int8()),
            ("rows_scale", TensorView::new(Dtype::F32, vec![2], &scales).unwrap()),
            ("one", int8()),
            ("one_scale", TensorView::new(Dtype::F32, vec![1], &scales[..4]).unwrap()),
            ("bare", int8()),
            ("wrong", int8()),
            ("wrong_scale", TensorView::new(Dtype::F32, vec![2, 1], &scales).unwrap()),
        ];
        std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
        let stored = open(&path).unwrap().tensors;
        assert_eq!(stored.len(), 5);
        let rows = |x: Tensor| x.to_vec2::<f32>().unwrap();
        assert_eq!(rows(stored["rows"].read().unwrap()), [[0.5, -0.5], [6.0, -256.0]]);
        assert_eq!(rows(stored["rows"].read_rows(&[1, 0]).unwrap()), [[6.0, -256.0], [0.5, -0.5]]);
        assert_eq!(rows(stored["one"].read().unwrap()), [[0.5, -0.5], [1.5, -64.0]]);
        assert_eq!(rows(stored["one"].read_rows(&[1]).unwrap()), [[1.5, -64.0]]);
        assert!(stored["bare"].read().is_err() && stored["wrong"].float_type().is_none());
    }

    #[test]
    fn damaged_files_are_errors_that_name_them() {
        let (folder, path, _) = saved(DType::F32);
        let whole = std::fs::read(&path).unwrap();
        let other = folder.path().join("other.safetensors");
        let refused = |bytes: &[u8]| {
            std::fs::write(&other, bytes).unwrap();
            open(&other).map(drop).unwrap_err().to_string()
        };
        assert!(refused(&whole[..5]).contains("other.safetensors: is too short"));
        assert!(refused(&whole[..40]).contains("does not fit a file of 40"));
        assert!(refused(&whole[..whole.len() - 1]).contains("where its header promises"));
        let longer = [&whole[..], &[0]].concat();
        assert!(refused(&longer).contains("where its header promises"));
        let mut garbled = whole.clone();
        garbled[9] = b'#';
        assert!(refused(&garbled).contains("the header is damaged"));
        garbled[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(refused(&garbled).contains("does not fit"));
    }

    /// A flipped bit of the length or of the header is refused, or gives another valid header whose tensors are in the
    /// file. A flipped bit of a tensor is read as it is: the hash of the installation covers it, the format does not.
    #[test]
    fn every_damaged_bit_is_refused_or_read_inside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let tensor = |rows| Tensor::ones((rows, 3), DType::F32, &Device::Cpu).unwrap();
        let tensors = HashMap::from([("a".to_owned(), tensor(2)), ("b".to_owned(), tensor(1))]);
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let whole = std::fs::read(&path).unwrap();
        let data = whole.len() - 36;
        let mut refused = 0;
        for (at, bit) in (0..whole.len()).flat_map(|at| (0..8).map(move |bit| (at, bit))) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1 << bit;
            std::fs::write(&path, damaged).unwrap();
            match open(&path) {
                Err(error) => {
                    assert!(at < data && error.to_string().contains("a.safetensors"), "{at}: {error}");
                    refused += 1;
                }
                Ok(file) => {
                    for stored in file.tensors.values().filter(|stored| stored.float_type().is_some()) {
                        assert!(stored.start + stored.bytes as u64 <= whole.len() as u64, "{at}");
                        assert_eq!(stored.read().unwrap().elem_count(), stored.elem_count(), "{at}");
                    }
                }
            }
        }
        assert!(refused > data, "{refused} of {} bits of length and header", 8 * data);
    }

    #[test]
    fn a_file_truncated_while_open_is_an_error() {
        let (_folder, path, _) = saved(DType::F32);
        let stored = open(&path).unwrap().tensors;
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2000).unwrap();
        assert!(matches!(stored["b"].read(), Err(Error::File { .. })));
        assert!(matches!(stored["b"].read_rows(&[699]), Err(Error::File { .. })));
    }
}
