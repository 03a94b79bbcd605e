//! Texts of errors of models and devices.

use izwi_nn::Error;
use izwi_nn::device::{self, Device};

/// An error, with what to do about it where a tensor operation failed on a GPU: most often it is out of memory.
pub(super) fn with_remedy(error: &Error, device: &Device) -> String {
    let text = chain(error);
    match error {
        Error::Tensor(_) if !device.is_cpu() => format!(
            "{text} (on {}): free its memory, choose a smaller model or --dtype q8, lower max_blocks, or use --device cpu",
            device::name(device)
        ),
        _ => text,
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
