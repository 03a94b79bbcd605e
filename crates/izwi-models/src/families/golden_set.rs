//! Golden data of reference implementations, one set for each family, and comparison with tolerances.

use std::collections::HashMap;
use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};

use izwi_nn::device;
use izwi_types::DeviceChoice;

/// Tolerance relative to the largest value or 1.
pub(super) const TOLERANCE: f32 = 1e-4;

/// The folder of a family's golden data.
#[derive(Debug, Clone, Copy)]
pub(super) struct GoldenSet {
    /// Its name under `tests/golden/`.
    pub(super) name: &'static str,
    /// The environment variable that overrides the folder.
    pub(super) variable: &'static str,
}

impl GoldenSet {
    /// The folder.
    pub(super) fn root(self) -> PathBuf {
        let own = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(self.name);
        std::env::var_os(self.variable).map_or_else(own, PathBuf::from)
    }

    /// The tensors of one file, on the CPU.
    pub(super) fn tensors(self, name: &str) -> HashMap<String, Tensor> {
        let path = self.root().join("goldens").join(format!("{name}.safetensors"));
        candle_core::safetensors::load(&path, &Device::Cpu)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// A JSON file next to the tensors.
    pub(super) fn json<T: serde::de::DeserializeOwned>(self, name: &str) -> T {
        let path = self.root().join("goldens").join(format!("{name}.json"));
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The archive of a checkpoint that NeMo wrote, as the folder that a pull makes of it.
    pub(super) fn unpacked(self, kind: &str) -> tempfile::TempDir {
        let archive = std::fs::read(self.root().join(kind).join(format!("{kind}.nemo"))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut rest = &archive[..];
        while rest[0] != 0 {
            let (header, content) = rest.split_at(512);
            let field =
                |at: std::ops::Range<usize>| std::str::from_utf8(&header[at]).unwrap().trim_matches('\0');
            let size = usize::from_str_radix(field(124..136).trim(), 8).unwrap();
            let name = field(0..100).trim_start_matches("./");
            let name = if name.ends_with("tokenizer.model") { "tokenizer.model" } else { name };
            std::fs::write(folder.path().join(name), &content[..size]).unwrap();
            rest = &content[size.next_multiple_of(512)..];
        }
        let weights = candle_core::pickle::read_all(folder.path().join("model_weights.ckpt")).unwrap();
        let used = weights.into_iter().filter(|(name, _)| !name.ends_with("num_batches_tracked"));
        candle_core::safetensors::save(&used.collect(), folder.path().join("model.safetensors")).unwrap();
        folder
    }
}

/// Settings in YAML with another value for the first field of a name.
pub(super) fn with(settings: &str, key: &str, value: &str) -> String {
    let line = settings.lines().find(|line| line.trim_start().starts_with(&format!("{key}:"))).unwrap();
    let (before, after) = settings.split_once(line).unwrap();
    let indent = &line[..line.len() - line.trim_start().len()];
    let is_part =
        |line: &&str| [format!("{indent}-"), format!("{indent} ")].iter().any(|own| line.starts_with(own));
    let rest: Vec<&str> = after.lines().skip(1).skip_while(is_part).collect();
    format!("{before}{indent}{key}: {value}\n{}\n", rest.join("\n"))
}

/// `$IZWI_TEST_DEVICE`, or the CPU.
pub(crate) fn device() -> Device {
    let name = std::env::var("IZWI_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    device::open(name.parse::<DeviceChoice>().unwrap()).unwrap()
}

/// `$IZWI_TEST_DEVICE`, if it is an emulated Metal device.
#[cfg(all(feature = "metal", not(target_vendor = "apple")))]
pub(super) fn metal_device() -> Option<Device> {
    Some(device()).filter(Device::is_metal)
}

/// Whether results on that device do not depend on what else is in a batch, to the bit.
pub(crate) fn is_bit_exact() -> bool {
    device().is_cpu()
}

/// Whether products with weights of 16 bits round their inputs and results to 16 bits too: those of candle on CUDA.
pub(crate) fn rounds_activations() -> bool {
    device().is_cuda()
}

/// `[1, channels, rows]` as `[rows, channels]`.
pub(super) fn by_rows(x: &Tensor) -> Tensor {
    x.squeeze(0).unwrap().t().unwrap().contiguous().unwrap()
}

/// All values in order.
pub(super) fn values(x: &Tensor) -> Vec<f32> {
    x.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// Rows of codes `[frames, codebooks]`.
pub(super) fn codes(x: &Tensor) -> Vec<Vec<u32>> {
    x.to_dtype(DType::U32).unwrap().to_vec2().unwrap()
}

/// Ours must be within `tolerance` of theirs, relative to their largest value or 1.
pub(super) fn compare(name: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    assert_eq!(ours.len(), theirs.len(), "{name}: number of values");
    assert!(!theirs.is_empty(), "{name}: nothing to compare");
    let scale = theirs.iter().fold(1f32, |scale, value| scale.max(value.abs()));
    let off = |(a, b): (&f32, &f32)| if (a - b).is_nan() { f32::INFINITY } else { (a - b).abs() };
    let worst = ours.iter().zip(theirs).map(off).fold(0f32, f32::max);
    println!("{name}: within {:.1e} of {scale:.1e}", worst / scale);
    assert!(worst <= tolerance * scale, "{name}: differs by {worst} at a scale of {scale}");
}

/// Two ways to one result: the same bits where that is promised, within [`TOLERANCE`] on other devices. Both may be empty.
pub(crate) fn assert_same(name: &str, ours: &[f32], theirs: &[f32]) {
    assert_near(name, ours, theirs, TOLERANCE);
}

/// As [`assert_same`], with another tolerance on other devices.
pub(crate) fn assert_near(name: &str, ours: &[f32], theirs: &[f32], tolerance: f32) {
    if is_bit_exact() || theirs.is_empty() {
        assert!(ours == theirs, "{name}: {} and {} values differ", ours.len(), theirs.len());
    } else {
        compare(name, ours, theirs, tolerance);
    }
}

/// All values as ids.
pub(super) fn ids(tensor: &Tensor) -> Vec<u32> {
    let tensor = tensor.flatten_all().unwrap().to_dtype(DType::I64).unwrap();
    tensor.to_vec1::<i64>().unwrap().into_iter().map(|id| id as u32).collect()
}
