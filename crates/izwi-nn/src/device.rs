//! Opens compute devices. Knows no tensor.

use candle_core::Device;
use izwi_types::DeviceChoice;

use crate::Error;

/// Opens a device. `Auto` falls back to the CPU; a named device that does not exist is an error.
///
/// # Errors
/// The named device cannot be opened, or this build lacks its backend.
pub fn open(choice: DeviceChoice) -> Result<Device, Error> {
    match choice {
        DeviceChoice::Cpu => Ok(Device::Cpu),
        DeviceChoice::Auto => Ok(open_gpu().unwrap_or(Device::Cpu)),
        DeviceChoice::Metal(index) => {
            named(choice, cfg!(feature = "metal"), "metal", || Device::new_metal(index))
        }
        DeviceChoice::Cuda(index) => {
            named(choice, cfg!(feature = "cuda"), "cuda", || Device::new_cuda(index))
        }
    }
}

fn named(
    choice: DeviceChoice,
    built_in: bool,
    feature: &str,
    open: impl FnOnce() -> candle_core::Result<Device>,
) -> Result<Device, Error> {
    if !built_in {
        let message = format!("this build lacks it; build with `--features {feature}` or use `cpu`");
        return Err(Error::Device { device: choice.to_string(), message });
    }
    open().map_err(|error| Error::Device { device: choice.to_string(), message: error.to_string() })
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

/// Whether a codec decodes on other threads while a forward pass runs: on the CPU. Other devices run one queue.
pub fn decodes_in_parallel(device: &Device) -> bool {
    device.is_cpu()
}

/// The device's name for logs, `/health` and `izwi_build_info`.
pub fn name(device: &Device) -> String {
    match device.location() {
        candle_core::DeviceLocation::Cpu => "cpu".to_owned(),
        candle_core::DeviceLocation::Cuda { gpu_id } => format!("cuda:{gpu_id}"),
        candle_core::DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// `$IZWI_TEST_DEVICE`, or the CPU.
#[cfg(test)]
pub(crate) fn of_tests() -> Device {
    let name = std::env::var("IZWI_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned());
    open(name.parse::<DeviceChoice>().unwrap()).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(feature = "cuda"))]
    fn a_device_missing_from_the_build_names_its_feature() {
        let error = open(DeviceChoice::Cuda(0)).unwrap_err().to_string();
        assert!(error.contains("--features cuda"), "{error}");
    }
}
