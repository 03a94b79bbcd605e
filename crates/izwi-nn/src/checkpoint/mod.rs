//! Strict reading of safetensors files: every tensor is taken exactly once, by name and shape.
//!
//! Collects missing, unknown and mis-shaped tensors into one error, and decides whether packed weights come from the
//! weight cache. A load yields before each tensor. Knows no architecture.

pub(crate) mod lazy_tensor;
mod weight_cache;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use half::bf16;
use serde::Deserialize;
use sha2::{Digest, Sha256};

use self::lazy_tensor::{LazyTensor, TensorFile};
use self::weight_cache::WeightCache;
use crate::Error;
use crate::sampling::mix;
use crate::yielding::yield_point;
use izwi_kernels::conv::ConvPanels;
use izwi_kernels::linear::Weights;
use izwi_kernels::packed::{Packed, Sizes};
use izwi_types::Precision;

/// Problems listed in one error; the rest is counted.
const MAX_LISTED: usize = 20;
/// Problems after which a load ends.
const MAX_PROBLEMS: usize = 10_000;
/// Elements of zeros in place of tensors that cannot be taken: settings of another model may ask for any number.
const MAX_ZEROS: usize = 1 << 24;

/// Name of a checkpoint's one file of weights.
const WHOLE: &str = "model.safetensors";
/// Name of the list of files of a checkpoint in several.
const INDEX: &str = "model.safetensors.index.json";

/// Smaller checkpoints have no cache: packing them is fast.
const MIN_CACHED_BYTES: u64 = 64 << 20;
/// Limit of packed bytes per byte of the checkpoint.
const MOST_PACKED: u64 = 4;

/// The tensors of one or several files that were not taken yet.
#[derive(Debug)]
pub struct Checkpoint {
    file: String,
    device: Device,
    tensors: HashMap<String, LazyTensor>,
    origin: Option<Origin>,
    cache: Option<WeightCache>,
    problems: Vec<String>,
    /// Elements of the zeros that stand for tensors that could not be taken.
    zeros: usize,
    /// Elements of the tensors that were taken.
    taken: usize,
    /// Type of the tensors of a checkpoint of random weights.
    random: Option<DType>,
}

/// Source of a checkpoint's packed weights.
#[derive(Debug)]
struct Origin {
    /// The file, or the path it would have if the checkpoint were one file.
    path: PathBuf,
    bytes: u64,
    /// Fingerprints of its files; `None` if the file system has no modification times.
    fingerprints: Option<Vec<[u8; 32]>>,
}

/// A packed weight and the tensors it is computed from.
#[derive(Debug)]
pub struct Recipe<'a> {
    /// The tensors, with their shapes.
    pub parts: &'a [(String, Vec<usize>)],
    /// Names the transform of the tensors: equal ids must give equal weights.
    pub transform_id: &'a str,
    /// Type of the packed weight.
    pub precision: Precision,
    /// Sizes of the packed weight.
    pub sizes: Sizes,
}

/// Which file of a checkpoint holds which tensor.
#[derive(Debug, Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

/// Identifies the weights of a folder without reading them: all safetensors files in it, by name, header, length and
/// modification time. `None` if there are none, or one of them cannot be identified.
#[must_use]
pub fn fingerprint(folder: &Path) -> Option<String> {
    let entries = std::fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|suffix| suffix == "safetensors")).collect();
    files.sort_unstable();
    files.first()?;
    let mut digest = Sha256::new();
    for file in files {
        digest.update(file.file_name()?.as_encoded_bytes());
        digest.update(lazy_tensor::open(&file).ok()?.fingerprint?);
    }
    Some(hex(digest))
}

/// The linear weight `a` `[70, 96]` and the convolution `b` `[50, 3, 6]` of the cache file at `path` with this key: what
/// a fuzz target calls.
#[doc(hidden)]
pub fn read_weight_cache(path: &Path, key: &str) -> (Option<Arc<Weights>>, Option<Arc<ConvPanels>>) {
    let mut cache = WeightCache::open(path.to_owned(), key.to_owned(), 1 << 20);
    (cache.take("a", [1, 96, 70]), cache.take("b", [3, 6, 50]))
}

fn hex(digest: Sha256) -> String {
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

impl Checkpoint {
    /// Opens the file; its tensors are read when they are taken.
    ///
    /// # Errors
    /// The file is missing or is not safetensors.
    pub fn open(path: &Path, device: &Device) -> Result<Self, Error> {
        let TensorFile { tensors, bytes, fingerprint } = lazy_tensor::open(path)?;
        let mut whole = Self::new(path.display().to_string(), device, tensors);
        whole.origin = Some(Origin {
            path: path.to_owned(),
            bytes,
            fingerprints: fingerprint.map(|fingerprint| vec![fingerprint]),
        });
        Ok(whole)
    }

    /// Opens the weights of a folder: `model.safetensors`, or the files that `model.safetensors.index.json` names.
    ///
    /// # Errors
    /// A file is missing or malformed.
    pub fn open_folder(folder: &Path, device: &Device) -> Result<Self, Error> {
        let path = folder.join(INDEX);
        if folder.join(WHOLE).exists() || !path.exists() {
            return Self::open(&folder.join(WHOLE), device);
        }
        let fault = |message: String| Error::File { path: path.display().to_string(), message };
        let text = std::fs::read_to_string(&path).map_err(|error| fault(error.to_string()))?;
        let index: Index = serde_json::from_str(&text).map_err(|error| fault(error.to_string()))?;
        let mut files: Vec<&String> = index.weight_map.values().collect();
        files.sort_unstable();
        files.dedup();
        let mut whole = Self::new(folder.display().to_string(), device, HashMap::new());
        let mut origin = Origin { path: folder.join(WHOLE), bytes: 0, fingerprints: Some(Vec::new()) };
        for file in files {
            if Path::new(file).components().count() != 1 {
                return Err(fault(format!("names '{file}', which is not a file of this folder")));
            }
            let TensorFile { tensors, bytes, fingerprint } = lazy_tensor::open(&folder.join(file))?;
            origin.bytes += bytes;
            origin.fingerprints =
                origin.fingerprints.zip(fingerprint).map(|(known, new)| [known, vec![new]].concat());
            for (name, tensor) in tensors {
                match index.weight_map.get(&name) {
                    Some(listed) if listed == file => drop(whole.tensors.insert(name, tensor)),
                    _ => whole
                        .problems
                        .push(format!("{name}: in {file}, which the index does not list for it")),
                }
            }
        }
        whole.origin = Some(origin);
        Ok(whole)
    }

    /// On the CPU and for a large checkpoint, reads packed weights of `precision` from a cache file next to it, or writes
    /// that file in [`Self::finish`]. Tensors are checked as without a cache.
    #[must_use]
    pub fn with_cache(mut self, precision: Precision) -> Self {
        let is_large = self.origin.as_ref().is_some_and(|origin| origin.bytes >= MIN_CACHED_BYTES);
        if is_large && self.device.is_cpu() {
            self.open_cache(precision);
        }
        self
    }

    /// As [`Self::with_cache`], for a checkpoint of any size.
    pub(crate) fn open_cache(&mut self, precision: Precision) {
        let Some(Origin { path, bytes, fingerprints: Some(fingerprints) }) = &self.origin else { return };
        let mut key = Sha256::new();
        fingerprints.iter().for_each(|fingerprint| key.update(fingerprint));
        key.update([cfg!(target_endian = "big").into()]);
        key.update(precision.to_string());
        let key = hex(key);
        let path = path.with_extension(format!("izwi-{precision}.cache"));
        self.cache = Some(WeightCache::open(path, key, bytes.saturating_mul(MOST_PACKED)));
    }

    /// A checkpoint that answers every tensor with reproducible random values scaled by fan-in; norms and variances are 1.
    /// For benchmarks: the output of such a model is noise.
    pub fn random(device: &Device, dtype: DType) -> Self {
        let mut checkpoint = Self::new("random weights".to_owned(), device, HashMap::new());
        checkpoint.random = Some(dtype);
        checkpoint
    }

    fn new(file: String, device: &Device, tensors: HashMap<String, LazyTensor>) -> Self {
        Self {
            file,
            device: device.clone(),
            tensors,
            origin: None,
            cache: None,
            problems: Vec::new(),
            zeros: 0,
            taken: 0,
            random: None,
        }
    }

    /// Whether it holds a tensor of this name that was not taken.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Elements of the tensors that were taken.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// Device of its tensors.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Bytes that the tensors not yet taken have in type `dtype`.
    pub fn bytes_as(&self, dtype: DType) -> usize {
        self.tensors.values().map(|tensor| tensor.elem_count() * dtype.size_in_bytes()).sum()
    }

    /// The first of `names` that a tensor not yet taken has, else the first name.
    pub fn first_of(&self, names: impl Iterator<Item = String>) -> String {
        let names: Vec<String> = names.collect();
        let found = names.iter().find(|name| self.tensors.contains_key(*name)).or(names.first());
        found.cloned().unwrap_or_default()
    }

    /// Shape of a tensor not yet taken; `None` if there is no such tensor.
    pub fn shape_of(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(LazyTensor::dims)
    }

    /// Gives every tensor the name that `new` makes of its own, for checkpoints of several layouts.
    pub fn rename(&mut self, new: impl Fn(&str) -> String) {
        self.tensors = std::mem::take(&mut self.tensors)
            .into_iter()
            .map(|(name, tensor)| (new(&name), tensor))
            .collect();
    }

    /// Drops the tensors that `known` selects: known by name and not needed.
    pub fn skip(&mut self, known: impl Fn(&str) -> bool) {
        self.tensors.retain(|name, _| !known(name));
    }

    /// Takes the tensor `name` as contiguous f32. A missing or mis-shaped tensor is recorded and replaced by zeros;
    /// [`Self::finish`] reports all of them together.
    ///
    /// # Errors
    /// The file cannot be read, or the device is out of memory.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, Error> {
        self.take_as(name, shape, DType::F32)
    }

    /// As [`Self::take`], in type `dtype`.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_as(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<Tensor, Error> {
        // Converted on the host: a device would hold both types until its allocator gives one back.
        Ok(self.take_host(name, shape)?.to_dtype(dtype)?.to_device(&self.device)?)
    }

    /// As [`Self::take`], in the floating-point type the file has it in.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_stored(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, Error> {
        Ok(self.take_host(name, shape)?.to_device(&self.device)?)
    }

    /// As [`Self::take_stored`], on the CPU whatever the checkpoint's device: for weights that are transformed before
    /// they go there.
    ///
    /// # Errors
    /// As [`Self::take`].
    pub fn take_host(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, Error> {
        yield_point();
        if let Some(dtype) = self.random {
            self.taken += shape.iter().product::<usize>();
            return random_tensor(name, shape, dtype);
        }
        let problem = self.problem(name, shape);
        match (self.tensors.remove(name), problem) {
            (Some(tensor), None) => {
                self.taken += tensor.elem_count();
                tensor.read()
            }
            (_, problem) => {
                self.problems.extend(problem);
                self.zeros(shape)
            }
        }
    }

    /// Zeros in place of a tensor that cannot be taken, so that the load finds all problems; an error once they are many.
    fn zeros(&mut self, shape: &[usize]) -> Result<Tensor, Error> {
        let count = shape.iter().try_fold(1_usize, |count, dim| count.checked_mul(*dim));
        self.zeros = self.zeros.saturating_add(count.unwrap_or(usize::MAX));
        if self.zeros > MAX_ZEROS || self.problems.len() > MAX_PROBLEMS {
            return Err(self.problems_error());
        }
        Ok(Tensor::zeros(shape, DType::F32, &Device::Cpu)?)
    }

    /// The error of the problems so far.
    fn problems_error(&mut self) -> Error {
        let rest = self.problems.len().saturating_sub(MAX_LISTED);
        self.problems.truncate(MAX_LISTED);
        if rest > 0 {
            self.problems.push(format!("and {rest} more"));
        }
        Error::Checkpoint(format!("{}:\n{}", self.file, self.problems.join("\n")))
    }

    /// Why the tensor cannot be taken, if so.
    fn problem(&self, name: &str, shape: &[usize]) -> Option<String> {
        match self.tensors.get(name) {
            None => Some(format!("{name}: missing, expected {shape:?}")),
            Some(tensor) if tensor.dims() != shape => {
                Some(format!("{name}: shape {:?}, expected {shape:?}", tensor.dims()))
            }
            Some(tensor) if tensor.float_type().is_none() => {
                Some(format!("{name}: type {}, expected a floating-point type", tensor.type_name()))
            }
            Some(_) => None,
        }
    }

    /// Takes the table `name` `[entries, width]` without reading it. `None` if it is missing or has another shape.
    pub(crate) fn take_lazy(&mut self, name: &str, shape: &[usize]) -> Option<LazyTensor> {
        if self.problem(name, shape).is_some() {
            return None;
        }
        self.taken += shape.iter().product::<usize>();
        self.tensors.remove(name)
    }

    /// Takes tensors as the weight that `make` packs, or as the cached weight of an earlier load.
    ///
    /// # Errors
    /// As [`Self::take`], and those of `make`.
    pub fn take_packed<P: Packed>(
        &mut self,
        recipe: &Recipe<'_>,
        make: impl FnOnce(Vec<Tensor>) -> Result<P, Error>,
    ) -> Result<Arc<P>, Error> {
        let Recipe { parts, transform_id, precision, sizes } = recipe;
        let are_fine = parts.iter().all(|(name, shape)| self.problem(name, shape).is_none());
        let names: Vec<&str> = parts.iter().map(|(name, _)| name.as_str()).collect();
        let name = format!("{}: {transform_id}{precision}", names.join(", "));
        let mut cache = self.cache.take().filter(|_| are_fine);
        yield_point();
        let kept = cache.as_mut().and_then(|cache| cache.take(&name, *sizes));
        let packed = match kept {
            Some(packed) => {
                for (name, shape) in *parts {
                    self.taken += shape.iter().product::<usize>();
                    self.tensors.remove(name);
                }
                packed
            }
            None => {
                let tensors = parts.iter().map(|(name, shape)| self.take_host(name, shape));
                let packed = Arc::new(make(tensors.collect::<Result<_, _>>()?)?);
                cache.iter_mut().for_each(|cache| cache.add(name.clone(), &packed));
                packed
            }
        };
        self.cache = cache;
        Ok(packed)
    }

    /// All float tensors that were not taken, by name.
    ///
    /// # Errors
    /// A tensor cannot be read.
    pub fn into_tensors(self) -> Result<HashMap<String, Tensor>, Error> {
        let floats = self.tensors.into_iter().filter(|(_, tensor)| tensor.float_type().is_some());
        floats.map(|(name, tensor)| Ok((name, tensor.read()?.to_device(&self.device)?))).collect()
    }

    /// Checks that every tensor was taken, and writes the weight cache.
    ///
    /// # Errors
    /// A tensor was missing, mis-shaped or not taken; each line of the message names one.
    pub fn finish(mut self) -> Result<(), Error> {
        let mut unknown: Vec<_> = self.tensors.keys().map(|name| format!("{name}: unknown")).collect();
        unknown.sort();
        self.problems.append(&mut unknown);
        if self.problems.is_empty() {
            if let Some(cache) = self.cache.take() {
                cache.finish();
            }
            return Ok(());
        }
        Err(self.problems_error())
    }
}

/// Reproducible random values, on the CPU.
fn random_tensor(name: &str, shape: &[usize], dtype: DType) -> Result<Tensor, Error> {
    let count: usize = shape.iter().product();
    let is_one = name.contains("norm") && (name.ends_with("weight") || name.ends_with("running_var"));
    if is_one || name.ends_with("usage") {
        return Ok(Tensor::ones(shape, dtype, &Device::Cpu)?);
    }
    // Keeps the variance of a sum over the inputs that of its terms.
    let fan_in: usize = shape.iter().skip(1).product();
    let reach = (3.0 / fan_in.max(1) as f32).sqrt();
    let seed = name.bytes().fold(0, |seed, byte| mix(seed ^ u64::from(byte)));
    let value =
        |n: usize| ((mix(seed.wrapping_add(n as u64)) >> 40) as f32 / (1u64 << 23) as f32 - 1.0) * reach;
    let tensor = match dtype {
        // The type of published checkpoints, without a copy at f32.
        DType::BF16 => {
            let values: Vec<bf16> = (0..count).map(|n| bf16::from_f32(value(n))).collect();
            Tensor::from_vec(values, shape, &Device::Cpu)?
        }
        _ => Tensor::from_vec((0..count).map(value).collect::<Vec<f32>>(), shape, &Device::Cpu)?
            .to_dtype(dtype)?,
    };
    Ok(tensor)
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
    fn a_load_yields_before_each_tensor() {
        let (_folder, mut checkpoint) = file_with(&[("a", &[2, 3]), ("b", &[1])]);
        let yields = std::rc::Rc::new(std::cell::Cell::new(0));
        let count = std::rc::Rc::clone(&yields);
        crate::yielding::with_yields(
            move || count.set(count.get() + 1),
            || {
                checkpoint.take("a", &[2, 3]).unwrap();
                checkpoint.take_stored("b", &[1]).unwrap();
            },
        );
        assert_eq!(yields.get(), 2);
    }

    #[test]
    fn taking_every_tensor_once_succeeds() {
        let (_folder, mut checkpoint) = file_with(&[("a", &[2, 3]), ("b", &[1])]);
        assert_eq!(checkpoint.take("a", &[2, 3]).unwrap().dims(), [2, 3]);
        checkpoint.take("b", &[1]).unwrap();
        checkpoint.finish().unwrap();
    }

    #[test]
    fn skipped_tensors_are_no_problem_and_the_first_existing_name_is_chosen() {
        let (_folder, mut checkpoint) = file_with(&[("a", &[2, 3]), ("old", &[1]), ("extra", &[4])]);
        assert_eq!(checkpoint.shape_of("a"), Some(&[2, 3][..]));
        assert_eq!(checkpoint.shape_of("b"), None);
        let choose = |checkpoint: &Checkpoint, names: [&str; 2]| {
            checkpoint.first_of(names.map(String::from).into_iter())
        };
        assert_eq!(choose(&checkpoint, ["new", "old"]), "old");
        assert_eq!(choose(&checkpoint, ["new", "newer"]), "new");
        checkpoint.skip(|name| name == "a" || name == "old");
        let message = checkpoint.finish().unwrap_err().to_string();
        assert!(message.contains("extra: unknown") && !message.contains("old"), "{message}");
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
    fn a_shape_beyond_any_memory_is_an_error_and_no_allocation() {
        for shape in [&[1 << 20, 1 << 20][..], &[usize::MAX, 2], &[1 << 40]] {
            let (_folder, mut checkpoint) = file_with(&[("a", &[2])]);
            let error = checkpoint.take("a", shape).unwrap_err().to_string();
            assert!(error.contains("a: shape [2], expected ["), "{error}");
        }
        let (_folder, mut checkpoint) = file_with(&[("a", &[2])]);
        let taken = (0..=MAX_PROBLEMS).filter(|layer| checkpoint.take(&format!("{layer}"), &[1]).is_ok());
        assert_eq!(taken.count(), MAX_PROBLEMS, "layers that are missing are listed up to a limit");
    }

    #[test]
    fn shards_are_one_checkpoint_and_must_agree_with_their_index() {
        let folder = tempfile::tempdir().unwrap();
        let shard = |file: &str, name: &str| {
            let tensors =
                HashMap::from([(name.to_owned(), Tensor::ones(3, DType::F32, &Device::Cpu).unwrap())]);
            candle_core::safetensors::save(&tensors, folder.path().join(file)).unwrap();
        };
        shard("one.safetensors", "a");
        shard("two.safetensors", "b");
        let index = |text: &str| std::fs::write(folder.path().join(INDEX), text).unwrap();
        index(r#"{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}"#);
        let mut whole = Checkpoint::open_folder(folder.path(), &Device::Cpu).unwrap();
        whole.take("a", &[3]).unwrap();
        whole.take("b", &[3]).unwrap();
        whole.finish().unwrap();
        index(r#"{"weight_map": {"a": "one.safetensors", "c": "two.safetensors"}}"#);
        let mut whole = Checkpoint::open_folder(folder.path(), &Device::Cpu).unwrap();
        whole.take("a", &[3]).unwrap();
        whole.take("c", &[3]).unwrap();
        let message = whole.finish().unwrap_err().to_string();
        assert!(message.contains("b: in two.safetensors") && message.contains("c: missing"), "{message}");
        index(r#"{"weight_map": {"a": "../one.safetensors"}}"#);
        let error = Checkpoint::open_folder(folder.path(), &Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("../one.safetensors"), "{error}");
    }

    #[test]
    fn random_weights_are_reproducible_and_bounded() {
        let make = || {
            let mut checkpoint = Checkpoint::random(&Device::Cpu, DType::BF16);
            let weight = checkpoint.take("x.weight", &[64, 300]).unwrap();
            checkpoint.finish().unwrap();
            weight.to_vec2::<f32>().unwrap()
        };
        assert_eq!(make(), make());
        let squares: f32 = make().iter().flatten().map(|value| value * value).sum();
        assert!((squares / 64.0 - 1.0).abs() < 0.1, "{squares}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Checkpoint::open(Path::new("/nowhere/model.safetensors"), &Device::Cpu).unwrap_err();
        assert!(error.to_string().contains("/nowhere/model.safetensors"), "{error}");
    }
}
