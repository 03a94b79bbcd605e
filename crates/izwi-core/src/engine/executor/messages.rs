//! Texts of errors of models and devices.

use crate::engine::error::EngineError;
use izwi_nn::Error;
use izwi_nn::device::{self, Device};

/// An error, with what to do about it where a tensor operation failed on a GPU.
pub(super) fn with_remedy(error: &Error, device: &Device) -> String {
    let text = chain(error);
    match error {
        Error::Tensor(_) if !device.is_cpu() => {
            format!("{text} (on {}): {}", device::name(device), gpu_remedy(&text))
        }
        _ => text,
    }
}

/// Words of drivers for work that the GPU gave up, after which it may take no more from this opening of it.
const FAULTS: [&str; 11] = [
    "timeout",
    "timed out",
    "innocent victim",
    "submissionsignored",
    "ignored (for causing",
    "page fault",
    "access revoked",
    "device removed",
    "illegal_address",
    "launch_failed",
    "ecc_uncorrectable",
];

/// Whether a GPU gave up its work: the device is to be opened anew.
pub(super) fn is_device_fault(error: &Error, device: &Device) -> bool {
    let text = chain(error).to_lowercase();
    matches!(error, Error::Tensor(_)) && !device.is_cpu() && FAULTS.iter().any(|words| text.contains(words))
}

/// Has a device opened anew if it gave up its work. Returns whether it did.
pub(super) fn note_fault(error: &Error, device: &Device) -> bool {
    let is_fault = is_device_fault(error, device);
    if is_fault {
        device::forget(device);
    }
    is_fault
}

/// The error of a load.
pub(super) fn load_error(error: &Error, device: &Device) -> EngineError {
    let told = with_remedy(error, device);
    note_fault(error, device);
    EngineError::Load(told)
}

/// What to do about a failed operation of a GPU, by the words of its driver.
fn gpu_remedy(text: &str) -> &'static str {
    let text = text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&FAULTS) {
        "the GPU gave up its work, and the model is loaded again; if it fails again, use --device cpu"
    } else if says(&["memory", "alloc", "failed to create"]) {
        "free its memory, choose a smaller model or --dtype q8, lower max_blocks, or use --device cpu"
    } else {
        "restart izwi; if it fails again, free the GPU's memory or use --device cpu"
    }
}

/// An error and its causes on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use izwi_nn::Error;
    use izwi_nn::device::Device;

    use super::{FAULTS, gpu_remedy, is_device_fault};

    #[test]
    fn only_a_lack_of_memory_is_answered_with_memory() {
        for text in [
            "Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
            "Failed to create metal resource: Buffer",
            "DriverError(CUDA_ERROR_OUT_OF_MEMORY, \"out of memory\")",
        ] {
            assert!(gpu_remedy(text).starts_with("free its memory"), "{text}");
        }
        for text in [
            "Caused GPU Timeout Error (00000002:kIOGPUCommandBufferCallbackErrorTimeout)",
            "Ignored (for causing prior/excessive GPU errors) (00000004:...SubmissionsIgnored)",
            "Innocent Victim (00000005:...CallbackErrorInnocentVictim)",
        ] {
            assert!(gpu_remedy(text).starts_with("the GPU gave up"), "{text}");
        }
        assert!(gpu_remedy("shape mismatch").starts_with("restart izwi"));
        for words in FAULTS {
            assert!(gpu_remedy(words).starts_with("the GPU gave up"), "{words}");
        }
        let error = Error::Internal("timed out");
        assert!(!is_device_fault(&error, &Device::Cpu), "only work of a GPU");
    }
}
