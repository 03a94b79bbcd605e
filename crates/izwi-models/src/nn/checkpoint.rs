//! Strict reading of a safetensors file: every tensor is taken exactly once, by name and shape.
//!
//! Owns the tally of what is missing, left over or mis-shaped. Knows no architecture.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use crate::model::ModelError;

/// Problems listed in one error before the rest is only counted.
const MAX_LISTED: usize = 20;

/// The tensors of one file that nobody has taken yet.
#[derive(Debug)]
pub struct Checkpoint {
    file: String,
    device: Device,
    tensors: HashMap<String, Tensor>,
    problems: Vec<String>,
}

impl Checkpoint {
    /// Reads the file into memory.
    ///
    /// # Errors
    /// The file is absent or is not safetensors.
    pub fn open(path: &Path, device: &Device) -> Result<Self, ModelError> {
        let file = path.display().to_string();
        match candle_core::safetensors::load(path, device) {
            Ok(tensors) => Ok(Self { file, device: device.clone(), tensors, problems: Vec::new() }),
            Err(error) => Err(ModelError::File { path: file, message: error.to_string() }),
        }
    }

    /// Where its tensors are.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes of the tensors not yet taken, were they of type `dtype`.
    pub fn bytes_as(&self, dtype: DType) -> usize {
        self.tensors.values().map(|tensor| tensor.elem_count() * dtype.size_in_bytes()).sum()
    }

    /// Takes the tensor `name` as contiguous f32. A tensor that is absent or has another shape is noted, and zeros
    /// stand in for it until [`Self::finish`] reports all such tensors together.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        self.take_as(name, shape, DType::F32)
    }

    /// As [`Self::take`], in type `dtype`.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn take_as(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor, ModelError> {
        Ok(self.take_stored(name, shape)?.to_dtype(dtype)?)
    }

    /// As [`Self::take`], in the floating-point type the file has it in.
    ///
    /// # Errors
    /// The device has not the memory.
    pub fn take_stored(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let found = self.tensors.remove(name);
        let problem = match &found {
            None => format!("{name}: missing, expected {shape:?}"),
            Some(tensor) if tensor.dims() != shape => {
                format!("{name}: shape {:?}, expected {shape:?}", tensor.dims())
            }
            Some(tensor) if !tensor.dtype().is_float() => {
                format!("{name}: type {:?}, expected f32", tensor.dtype())
            }
            Some(tensor) => return Ok(tensor.contiguous()?),
        };
        self.problems.push(problem);
        Ok(Tensor::zeros(shape, DType::F32, &self.device)?)
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// Some tensor was missing, mis-shaped or is left over; each line of the message names one.
    pub fn finish(mut self) -> Result<(), ModelError> {
        let mut unknown: Vec<_> = self.tensors.into_keys().map(|name| format!("{name}: unknown")).collect();
        unknown.sort();
        self.problems.append(&mut unknown);
        if self.problems.is_empty() {
            return Ok(());
        }
        let rest = self.problems.len().saturating_sub(MAX_LISTED);
        self.problems.truncate(MAX_LISTED);
        if rest > 0 {
            self.problems.push(format!("and {rest} more"));
        }
        Err(ModelError::Checkpoint(format!("{}:\n{}", self.file, self.problems.join("\n"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_with(names: &[(&str, &[usize])]) -> (tempfile::TempDir, Checkpoint) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let tensors: HashMap<_, _> = names
            .iter()
            .map(|(name, shape)| (name.to_string(), Tensor::ones(*shape, DType::F32, &Device::Cpu).unwrap()))
            .collect();
        candle_core::safetensors::save(&tensors, &path).unwrap();
        let checkpoint = Checkpoint::open(&path, &Device::Cpu).unwrap();
        (folder, checkpoint)
    }

    #[test]
    fn all_taken_once_is_fine() {
        let (_folder, mut checkpoint) = file_with(&[("a", &[2, 3]), ("b", &[1])]);
        assert_eq!(checkpoint.take("a", &[2, 3]).unwrap().dims(), [2, 3]);
        checkpoint.take("b", &[1]).unwrap();
        checkpoint.finish().unwrap();
    }

    #[test]
    fn missing_unknown_twice_taken_and_misshaped_tensors_are_all_named() {
        let (_folder, mut checkpoint) = file_with(&[("a", &[2, 3]), ("b", &[1]), ("extra", &[4])]);
        checkpoint.take("a", &[3, 2]).unwrap();
        checkpoint.take("b", &[1]).unwrap();
        checkpoint.take("b", &[1]).unwrap();
        checkpoint.take("c", &[9]).unwrap();
        let message = checkpoint.finish().unwrap_err().to_string();
        for line in ["a: shape [2, 3], expected [3, 2]", "b: missing", "c: missing", "extra: unknown"] {
            assert!(message.contains(line), "{message}");
        }
    }

    #[test]
    fn an_absent_file_is_named() {
        let error = Checkpoint::open(Path::new("/nowhere/model.safetensors"), &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("/nowhere/model.safetensors"), "{error}");
    }
}
