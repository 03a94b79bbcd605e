//! Which device computes: `auto`, `cpu`, `metal[:n]` or `cuda[:n]`.

use std::fmt;
use std::str::FromStr;

use candle_core::Device;

use crate::model::ModelError;

/// A device as a user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// Metal, then CUDA where built in and present, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The n-th Metal GPU.
    Metal(usize),
    /// The n-th CUDA GPU.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, index) = match text.split_once(':') {
            Some((name, index)) => {
                let index =
                    index.parse().map_err(|_| format!("device '{text}': '{index}' is not an index"))?;
                (name, Some(index))
            }
            None => (text, None),
        };
        match (name, index) {
            ("auto", None) => Ok(Self::Auto),
            ("cpu", None) => Ok(Self::Cpu),
            ("metal", index) => Ok(Self::Metal(index.unwrap_or(0))),
            ("cuda", index) => Ok(Self::Cuda(index.unwrap_or(0))),
            _ => Err(format!("device '{text}' is unknown; use auto, cpu, metal, metal:N, cuda or cuda:N")),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Metal(index) => write!(f, "metal:{index}"),
            Self::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl DeviceChoice {
    /// Opens the device. `Auto` falls back to the CPU; a named device that is not there is an error.
    ///
    /// # Errors
    /// The device was named and cannot be opened, or this build lacks its backend.
    pub fn open(self) -> Result<Device, ModelError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto => Ok(open_gpu().unwrap_or(Device::Cpu)),
            Self::Metal(index) => self.named(cfg!(feature = "metal"), "metal", || Device::new_metal(index)),
            Self::Cuda(index) => self.named(cfg!(feature = "cuda"), "cuda", || Device::new_cuda(index)),
        }
    }

    fn named(
        self,
        built_in: bool,
        feature: &str,
        open: impl FnOnce() -> candle_core::Result<Device>,
    ) -> Result<Device, ModelError> {
        if !built_in {
            let message = format!("this build lacks it; build with `--features {feature}` or use `cpu`");
            return Err(ModelError::Device { device: self.to_string(), message });
        }
        open().map_err(|error| ModelError::Device { device: self.to_string(), message: error.to_string() })
    }
}

fn open_gpu() -> Option<Device> {
    if cfg!(feature = "metal") && candle_core::utils::metal_is_available() {
        return Device::new_metal(0).ok();
    }
    if cfg!(feature = "cuda") && candle_core::utils::cuda_is_available() {
        return Device::new_cuda(0).ok();
    }
    None
}

/// The device's name for logs, `/health` and `izwi_build_info`.
pub fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => "cpu".to_owned(),
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_print() {
        for (text, choice) in [
            ("auto", DeviceChoice::Auto),
            ("cpu", DeviceChoice::Cpu),
            ("metal", DeviceChoice::Metal(0)),
            ("metal:1", DeviceChoice::Metal(1)),
            ("cuda:2", DeviceChoice::Cuda(2)),
        ] {
            assert_eq!(text.parse(), Ok(choice));
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "gpu", "cpu:0", "metal:x", "auto:1"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_device_that_is_not_built_in_says_how_to_get_it() {
        let error = DeviceChoice::Cuda(0).open().unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }
}
