//! Metal as candle and the Objective-C bindings have it: devices, buffers, encoders. Besides `library` no module names them.

use std::sync::Arc;

use candle_core::op::BackpropOp;
use candle_core::{DType, MetalDevice, MetalStorage, Result, Shape, Storage, Tensor, bail};
use candle_metal_kernels::metal::{Buffer, CommandsGuard, Device};
use objc2_metal::{MTLDevice, MTLSize};

use crate::Gpu;
use crate::kernel::{Grid, Kernel};
use crate::library::pipeline;
use crate::scratch;

pub use crate::library::prepare;

/// Candle's current encoder.
pub(crate) struct Encoder<'a>(CommandsGuard<'a>);

impl<'a> Encoder<'a> {
    pub(crate) fn open(device: &'a MetalDevice) -> Result<Self> {
        Ok(Self(device.command_encoder()?))
    }

    /// The kernel that the next arguments are for, in threadgroups of so many threads.
    pub(crate) fn choose(&self, device: &MetalDevice, kernel: Kernel, threads: usize) -> Result<()> {
        let pipeline = pipeline(device, kernel)?;
        let most = pipeline.max_total_threads_per_threadgroup();
        if threads > most {
            let Kernel(source, name) = kernel;
            bail!(
                "metal: kernel {name} of {source:?} needs {threads} threads, and this GPU runs it with {most}"
            )
        }
        self.0.as_ref().set_compute_pipeline_state(&pipeline);
        Ok(())
    }

    pub(crate) fn read(&self, index: usize, tensor: &Tensor) -> Result<()> {
        bind(tensor, |buffer, offset| self.0.as_ref().set_input_buffer(index, Some(buffer), offset))
    }

    pub(crate) fn write(&self, index: usize, tensor: &Tensor) -> Result<()> {
        bind(tensor, |buffer, offset| self.0.as_ref().set_output_buffer(index, Some(buffer), offset))
    }

    pub(crate) fn copy(&self, index: usize, words: &[u32]) {
        self.0.as_ref().set_bytes_directly(index, size_of_val(words), words.as_ptr().cast());
    }

    pub(crate) fn launch(&self, grid: Grid) {
        let [width, height, depth] = grid.groups;
        let threads = MTLSize { width: grid.threads, height: 1, depth: 1 };
        self.0.as_ref().dispatch_thread_groups(MTLSize { width, height, depth }, threads);
    }
}

fn bind(tensor: &Tensor, set: impl FnOnce(&Buffer, usize)) -> Result<()> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Metal(storage) = &*storage else {
        bail!("metal: a tensor of {:?} is on another device", tensor.dims())
    };
    if !layout.is_contiguous() {
        bail!("metal: an argument of shape {:?} is not contiguous", layout.dims())
    }
    set(storage.buffer(), layout.start_offset() * tensor.dtype().size_in_bytes());
    Ok(())
}

/// A new tensor on Metal whose elements are not set, in a buffer that is kept for later.
///
/// # Errors
/// The device is out of memory.
pub(crate) fn empty(device: &MetalDevice, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    let elements = shape.elem_count().max(1);
    let buffer = match scratch::take(device, elements * dtype.size_in_bytes())? {
        Some(buffer) => buffer,
        None => device.new_buffer(elements, dtype, "")?,
    };
    Ok(over(buffer, device, shape, dtype))
}

/// Bytes on a device as a tensor `[bytes]` u8, in a buffer of exactly their size.
///
/// # Errors
/// The device is out of memory.
pub(crate) fn upload(device: &MetalDevice, bytes: &[u8]) -> Result<Tensor> {
    Ok(over(device.new_buffer_with_data(bytes)?, device, bytes.len().into(), DType::U8))
}

fn over(buffer: Arc<Buffer>, device: &MetalDevice, shape: Shape, dtype: DType) -> Tensor {
    let storage = MetalStorage::new(buffer, device.clone(), shape.elem_count(), dtype);
    Tensor::from_storage(Storage::Metal(storage), shape, BackpropOp::none(), false)
}

/// Waits for the work so far, and frees the buffers that are kept for later. Unlike candle's `synchronize`, it
/// leaves the fences of work that other threads encode meanwhile.
///
/// # Errors
/// The work failed.
pub fn finish(device: &MetalDevice) -> Result<()> {
    let waited = device.flush_and_wait_current();
    scratch::free(device);
    waited
}

/// Whether all work so far succeeded: a read tells of the command buffer that it waits for alone, this of those before it, too.
/// Waits for what no read has waited for. No other thread may encode meanwhile: candle forgets the fences of its work.
///
/// # Errors
/// A command buffer failed since the last check.
pub fn check(device: &MetalDevice) -> Result<()> {
    device.wait_until_completed()
}

/// Buffers outside candle's allocator, for tensors that live long. Dropped after these tensors.
#[derive(Debug, Default)]
pub struct OwnBuffers(Option<(MetalDevice, Vec<Arc<Buffer>>)>);

impl OwnBuffers {
    /// A tensor whose elements are not set, in a buffer of exactly its size: the device's own allocator would round it up to
    /// a power of two.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn empty(&mut self, device: &MetalDevice, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        let shape = shape.into();
        let buffer = device.new_private_buffer(shape.elem_count(), dtype, "own")?;
        self.0.get_or_insert_with(|| (device.clone(), Vec::new())).1.push(Arc::clone(&buffer));
        Ok(over(buffer, device, shape, dtype))
    }
}

impl Drop for OwnBuffers {
    fn drop(&mut self) {
        let Some((device, buffers)) = &self.0 else { return };
        // The device's set of resident buffers holds them until they are taken out, after the last kernel.
        if let Err(error) = finish(device) {
            tracing::warn!(%error, "the last step over dropped buffers failed");
        }
        device.unregister_buffers(buffers.iter().map(|buffer| &**buffer));
    }
}

/// Why the device of this index cannot be opened, with a remedy. candle panics in these cases.
pub fn fault(index: usize) -> Option<String> {
    let count = with_autorelease_pool(|| Device::all().len());
    if index >= count {
        let (noun, last) = if count == 1 { ("device", "metal:0") } else { ("devices", "a lower index") };
        return Some(match count {
            0 => "this machine has no Metal device; use a Mac with Apple Silicon".to_owned(),
            _ => format!("this machine has {count} Metal {noun}; use {last}"),
        });
    }
    // Buffers are kept resident by a class that macOS has since version 15.
    let has_residency_sets = objc2::runtime::AnyClass::get(c"MTLResidencySetDescriptor").is_some();
    (!has_residency_sets).then(|| "Metal needs macOS 15 or later; update macOS".to_owned())
}

/// The first GPU, without opening it; `None` where there is none, this build lacks Metal, or the system is too old.
pub fn gpu() -> Option<Gpu> {
    with_autorelease_pool(|| {
        if fault(0).is_some() {
            return None;
        }
        let gpu = Device::all().into_iter().next()?;
        Some(Gpu {
            name: gpu.as_ref().name().to_string(),
            architecture: gpu.architecture_name(),
            working_set_bytes: gpu.recommended_max_working_set_size(),
        })
    })
}

/// Runs `work`, then frees what Apple's frameworks left to the autorelease pool of the thread: without one of their own,
/// threads keep half a kilobyte of each operation. Without Metal it only runs `work`.
pub fn with_autorelease_pool<T>(work: impl FnOnce() -> T) -> T {
    objc2::rc::autoreleasepool(|_| work())
}

/// Bytes that this process holds on the device, the allocator's unused buffers included.
pub fn allocated_bytes(device: &MetalDevice) -> usize {
    device.metal_device().current_allocated_size()
}
