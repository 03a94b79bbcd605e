//! CPU tensors as slices.

use candle_core::{Result, Storage, Tensor, bail};

use super::conv::cpu_slice;

/// Runs `work` on the f32 values of tensors on the CPU, made contiguous where they are not.
pub(super) fn with_slices<const N: usize, T>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[f32]; N]) -> T,
) -> Result<T> {
    let tensors: Vec<Tensor> = tensors.iter().map(|tensor| tensor.contiguous()).collect::<Result<_>>()?;
    let storages: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
    let mut slices = [&[][..]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&storages) {
        let Storage::Cpu(storage) = &**storage else { bail!("a tensor on the CPU is needed here") };
        *slice = cpu_slice(storage, layout)?;
    }
    Ok(work(slices))
}
