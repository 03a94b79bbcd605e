//! Texts of errors of models and devices.

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

/// What to do about a failed operation of a GPU, by the words of its driver.
fn gpu_remedy(text: &str) -> &'static str {
    let text = text.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&[
        "timeout",
        "timed out",
        "innocent victim",
        "ignored",
        "page fault",
        "access revoked",
        "device removed",
    ]) {
        "the GPU gave up its work; try again, and if it fails again, restart izwi or use --device cpu"
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
    use super::gpu_remedy;

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
    }
}
