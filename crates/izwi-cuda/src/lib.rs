//! CUDA: opening a device, and its memory. It computes with candle's kernels. Compiles everywhere; without the feature there
//! is no such device.

#![cfg_attr(not(feature = "cuda"), forbid(unsafe_code))]

use candle_core::{Device, Result};

/// Whether this build has CUDA.
pub const IS_BUILT_IN: bool = cfg!(feature = "cuda");

/// Opens the GPU with one stream for all threads. candle's own opening has a stream for each thread: work of two threads then has
/// no order, and memory that is freed on a thread which has not used the device stays allocated and fails later work.
///
/// # Errors
/// There is no such GPU, or no driver, or this build lacks CUDA.
pub fn open(index: usize) -> Result<Device> {
    let device = Device::new_cuda_with_stream(index)?;
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = &device {
        // SAFETY: events order the uses of a tensor on several streams; this device has one.
        #[expect(unsafe_code, reason = "event tracking takes nearly half of a step")]
        unsafe {
            device.disable_event_tracking();
        }
    }
    Ok(device)
}

/// Bytes that a CUDA device has free for any process; `None` for other devices.
pub fn free_bytes(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if let Device::Cuda(device) = device {
        return device.cuda_stream().context().mem_get_info().ok().map(|(free, _)| free as u64);
    }
    let _ = device;
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_cuda_opens_nothing() {
        assert_eq!(free_bytes(&Device::Cpu), None);
        if !IS_BUILT_IN {
            assert!(open(0).is_err());
        }
    }
}
