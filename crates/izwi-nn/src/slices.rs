//! CPU tensors as slices.

use candle_core::{CpuStorage, Layout, Result, Storage, Tensor, bail};

use izwi_kernels::linear::Rows;

/// Runs `work` on the f32 values of tensors on the CPU, made contiguous where they are not.
pub fn with_slices<const N: usize, T>(
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

/// As [`with_slices`], of one tensor `[rows, width]` whose rows may lie apart: a part of every row of a larger one is
/// not copied.
pub(crate) fn with_rows<T>(x: &Tensor, work: impl FnOnce(Rows<'_>) -> T) -> Result<T> {
    let (count, width) = x.dims2()?;
    let x = if x.stride()[1] == 1 { x.clone() } else { x.contiguous()? };
    let (storage, layout) = x.storage_and_layout();
    let Storage::Cpu(storage) = &*storage else { bail!("a tensor on the CPU is needed here") };
    let stride = if count == 1 { width } else { layout.stride()[0] };
    let length = if count == 0 { 0 } else { (count - 1) * stride + width };
    let data = &storage.as_slice::<f32>()?[layout.start_offset()..][..length];
    Ok(work(Rows { data, stride, count }))
}

/// The f32 values of a contiguous tensor in CPU storage.
pub(crate) fn cpu_slice<'a>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [f32]> {
    let (start, end) = match layout.contiguous_offsets() {
        Some(offsets) => offsets,
        None => bail!("a contiguous tensor is needed here"),
    };
    Ok(&storage.as_slice::<f32>()?[start..end])
}
