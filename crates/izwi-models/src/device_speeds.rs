//! The measured speeds of a model on Metal and on the CPU, in a small JSON file next to its weights, so that a later load
//! need not measure again.
//!
//! A missing, damaged or older file only costs another measurement. Knows no device and no tensor.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use izwi_nn::checkpoint;
use izwi_types::Precision;
use serde::{Deserialize, Serialize};

/// Steps per second of one model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpeeds {
    /// On Metal.
    #[serde(rename = "metal_steps_per_s")]
    pub metal: f64,
    /// On the CPU.
    #[serde(rename = "cpu_steps_per_s")]
    pub cpu: f64,
}

impl DeviceSpeeds {
    /// Whether the CPU is faster.
    pub fn prefers_cpu(&self) -> bool {
        self.cpu > self.metal
    }

    fn are_valid(&self) -> bool {
        [self.metal, self.cpu].iter().all(|speed| speed.is_finite() && *speed > 0.0)
    }
}

/// Of measurements that compare speeds and outputs.
const MEASUREMENT: u32 = 2;

/// What a measurement depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Key {
    /// Fingerprint of the weights.
    checkpoint: String,
    /// Version of this program.
    version: String,
    /// Version of what a measurement is; a file without one is older than the comparison of outputs.
    measurement: u32,
    precision: String,
    gpu: String,
    /// Compute threads of the CPU.
    threads: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Content {
    key: Key,
    #[serde(flatten)]
    speeds: DeviceSpeeds,
}

/// The file of one checkpoint at one precision.
#[derive(Debug)]
pub struct SpeedFile {
    path: PathBuf,
    key: Key,
}

impl SpeedFile {
    /// The file of the checkpoint in `folder`, for the GPU named `gpu` and a number of compute threads. `None` if the
    /// checkpoint cannot be identified: its speeds are not remembered.
    pub fn of(folder: &Path, precision: Precision, gpu: &str, threads: usize) -> Option<Self> {
        let key = Key {
            checkpoint: checkpoint::fingerprint(folder)?,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            measurement: MEASUREMENT,
            precision: precision.to_string(),
            gpu: gpu.to_owned(),
            threads,
        };
        // As of the weight cache, which a pull leaves out of a model's size.
        Some(Self { path: folder.join(format!("device.izwi-{precision}.cache")), key })
    }

    /// The speeds that were measured under the same conditions, if any.
    pub fn read(&self) -> Option<DeviceSpeeds> {
        let content: Content = serde_json::from_slice(&fs::read(&self.path).ok()?).ok()?;
        Some(content.speeds).filter(|speeds| content.key == self.key && speeds.are_valid())
    }

    /// Replaces the file. A failure is logged: the next load measures again.
    pub fn write(&self, speeds: DeviceSpeeds) {
        if let Err(error) = self.replace(speeds) {
            tracing::debug!(path = %self.path.display(), %error, "the speeds of devices are not remembered");
        }
    }

    fn replace(&self, speeds: DeviceSpeeds) -> io::Result<()> {
        let text = serde_json::to_vec_pretty(&Content { key: self.key.clone(), speeds })?;
        let partial = self.path.with_added_extension(format!("{}.partial", std::process::id()));
        fs::write(&partial, text)?;
        fs::rename(&partial, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file without a tensor; `note` changes its length.
    fn write_weights(folder: &Path, note: &str) {
        let header = format!("{{\"__metadata__\":{{\"note\":\"{note}\"}}}}");
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        fs::write(folder.join("model.safetensors"), bytes).unwrap();
    }

    fn open(folder: &Path) -> SpeedFile {
        SpeedFile::of(folder, Precision::Q8, "a GPU", 4).unwrap()
    }

    const SPEEDS: DeviceSpeeds = DeviceSpeeds { metal: 30.5, cpu: 12.0 };

    #[test]
    fn speeds_are_read_back_for_the_same_conditions_only() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert!(SpeedFile::of(folder, Precision::Q8, "a GPU", 4).is_none(), "there are no weights");
        write_weights(folder, "one");
        assert_eq!(open(folder).read(), None);
        open(folder).write(SPEEDS);
        assert_eq!(open(folder).read(), Some(SPEEDS));
        for other in [
            SpeedFile::of(folder, Precision::Q8, "another GPU", 4),
            SpeedFile::of(folder, Precision::Q8, "a GPU", 8),
            SpeedFile::of(folder, Precision::Q4, "a GPU", 4),
        ] {
            assert_eq!(other.unwrap().read(), None);
        }
        let mut newer = open(folder);
        newer.key.version = "999.0.0".to_owned();
        assert_eq!(newer.read(), None);
        write_weights(folder, "another");
        assert_eq!(open(folder).read(), None, "the weights changed");
        open(folder).write(SPEEDS);
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let partial = names.filter(|name| name.to_string_lossy().contains("partial")).count();
        assert_eq!(partial, 0);
    }

    #[test]
    fn a_damaged_file_is_as_if_there_were_none() {
        let folder = tempfile::tempdir().unwrap();
        write_weights(folder.path(), "one");
        let file = open(folder.path());
        file.write(SPEEDS);
        let good = fs::read_to_string(&file.path).unwrap();
        let cut = good[..good.len() / 2].to_owned();
        let older = good.replace("\"measurement\": 2,", "");
        assert_ne!(older, good);
        let damaged = [
            cut,
            String::new(),
            "[]".to_owned(),
            good.replace("30.5", "-1"),
            good.replace("12.0", "0"),
            older,
        ];
        for text in damaged {
            fs::write(&file.path, &text).unwrap();
            assert_eq!(file.read(), None, "{text}");
        }
        fs::write(&file.path, good).unwrap();
        assert_eq!(file.read(), Some(SPEEDS));
    }

    #[test]
    fn the_faster_device_is_preferred() {
        assert!(!SPEEDS.prefers_cpu());
        assert!(DeviceSpeeds { metal: 11.9, cpu: 12.0 }.prefers_cpu());
    }
}
