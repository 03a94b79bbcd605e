//! Tensors in a safetensors file, read one by one: a checkpoint is never in memory twice.
//!
//! Owns the file's format, <https://huggingface.co/docs/safetensors/index#format>, and trusts nothing in it. Files are
//! read rather than mapped: one that is changed or cut meanwhile is an error and not a crash.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor, WithDType};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, Metadata};

use crate::model::ModelError;

/// The longest header that is read.
const MAX_HEADER_BYTES: u64 = 100 << 20;
/// Bytes of the length before the header.
const LENGTH_BYTES: u64 = 8;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// Where a tensor lies.
#[derive(Debug, Clone)]
pub(super) struct StoredTensor {
    file: Arc<(String, File)>,
    start: u64,
    bytes: usize,
    dtype: Dtype,
    shape: Vec<usize>,
}

/// The tensors of the file at `path`, by name.
///
/// # Errors
/// The file is absent or is not safetensors.
pub(super) fn open(path: &Path) -> Result<HashMap<String, StoredTensor>, ModelError> {
    let name = path.display().to_string();
    let fault = |message: String| ModelError::File { path: name.clone(), message };
    let io = |error: std::io::Error| fault(error.to_string());
    let mut file = File::open(path).map_err(io)?;
    let size = file.metadata().map_err(io)?.len();
    let mut length = [0; LENGTH_BYTES as usize];
    file.read_exact(&mut length).map_err(|_| fault("is too short for a safetensors file".to_owned()))?;
    let length = u64::from_le_bytes(length);
    if length > MAX_HEADER_BYTES || LENGTH_BYTES + length > size {
        return Err(fault(format!("a header of {length} bytes does not fit a file of {size}")));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(io)?;
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
        let stored = StoredTensor {
            file: Arc::clone(&file),
            start: data + start as u64,
            bytes: end - start,
            dtype: info.dtype,
            shape: info.shape.clone(),
        };
        (name, stored)
    });
    Ok(stored.collect())
}

impl StoredTensor {
    /// Its shape.
    pub(super) fn dims(&self) -> &[usize] {
        &self.shape
    }

    /// Number of its values.
    pub(super) fn elem_count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Its type, if it is one of those that weights are kept in.
    pub(super) fn float_type(&self) -> Option<DType> {
        match self.dtype {
            Dtype::F64 => Some(DType::F64),
            Dtype::F32 => Some(DType::F32),
            Dtype::F16 => Some(DType::F16),
            Dtype::BF16 => Some(DType::BF16),
            _ => None,
        }
    }

    /// What the file calls its type.
    pub(super) fn type_name(&self) -> String {
        format!("{:?}", self.dtype)
    }

    /// Reads it.
    ///
    /// # Errors
    /// It is of no floating-point type, the file cannot be read any more, or the device has not the memory.
    pub(super) fn read(&self, device: &Device) -> Result<Tensor, ModelError> {
        match self.float_type() {
            Some(DType::F64) => self.read_as(device, f64::from_le_bytes),
            Some(DType::F32) => self.read_as(device, f32::from_le_bytes),
            Some(DType::F16) => self.read_as(device, f16::from_le_bytes),
            Some(DType::BF16) => self.read_as(device, bf16::from_le_bytes),
            _ => Err(ModelError::Internal("a tensor of integers was read as weights")),
        }
    }

    fn read_as<T: WithDType, const N: usize>(
        &self,
        device: &Device,
        value: impl Fn([u8; N]) -> T,
    ) -> Result<Tensor, ModelError> {
        let (path, file) = &*self.file;
        let fault =
            |error: std::io::Error| ModelError::File { path: path.clone(), message: error.to_string() };
        let mut file: &File = file;
        file.seek(SeekFrom::Start(self.start)).map_err(fault)?;
        let mut values = Vec::with_capacity(self.bytes / N);
        let mut piece = vec![0; PIECE.min(self.bytes)];
        let mut left = self.bytes;
        while left > 0 {
            let piece = &mut piece[..PIECE.min(left)];
            file.read_exact(piece).map_err(fault)?;
            values.extend(piece.as_chunks().0.iter().map(|bytes| value(*bytes)));
            left -= piece.len();
        }
        Ok(Tensor::from_vec(values, self.shape.as_slice(), device)?)
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
    fn every_type_comes_back_as_it_was_saved() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let (_folder, path, tensor) = saved(dtype);
            let stored = open(&path).unwrap();
            assert_eq!((stored["b"].dims(), stored["b"].float_type()), (&[700, 801][..], Some(dtype)));
            assert!(stored["a"].float_type().is_none() && stored["a"].read(&Device::Cpu).is_err());
            let read = stored["b"].read(&Device::Cpu).unwrap();
            assert_eq!(read.dtype(), dtype);
            let values =
                |x: &Tensor| x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1::<f64>().unwrap();
            assert!(values(&read) == values(&tensor));
        }
    }

    #[test]
    fn damaged_files_are_errors_that_name_them() {
        let (folder, path, _) = saved(DType::F32);
        let whole = std::fs::read(&path).unwrap();
        let other = folder.path().join("other.safetensors");
        let refused = |bytes: &[u8]| {
            std::fs::write(&other, bytes).unwrap();
            open(&other).unwrap_err().to_string()
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

    #[test]
    fn a_file_that_is_cut_while_it_is_open_is_an_error() {
        let (_folder, path, _) = saved(DType::F32);
        let stored = open(&path).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(2000).unwrap();
        assert!(matches!(stored["b"].read(&Device::Cpu), Err(ModelError::File { .. })));
    }
}
