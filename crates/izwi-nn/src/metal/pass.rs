//! A pass: kernels encoded one after another into candle's current command buffer. Knows no layer.

use candle_core::op::BackpropOp;
use candle_core::{DType, Device, MetalDevice, MetalStorage, Result, Shape, Storage, Tensor, bail};
use candle_metal_kernels::metal::CommandsGuard;
use objc2_metal::MTLSize;

use super::counters::count_launch;
use super::library::{Kernel, pipeline};
use super::with_storage;

/// Encodes kernels. While it lives, candle's operations on this device wait: do not call them.
pub(crate) struct Pass<'a> {
    device: &'a MetalDevice,
    encoder: CommandsGuard<'a>,
}

/// An argument of a kernel, bound at the index of its place.
#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    /// A contiguous tensor that the kernel reads.
    In(&'a Tensor),
    /// A tensor `[rows, width]` that the kernel reads, each row contiguous.
    Rows(&'a Tensor),
    /// A contiguous tensor that the kernel writes, or reads and writes.
    Out(&'a Tensor),
    /// Parameters, copied into the command: at most 4096 bytes.
    Params(&'a [u32]),
    /// Nothing: the kernel does not read the argument. A few zero bytes are bound.
    Unused,
}

impl<'a> Arg<'a> {
    /// A tensor that the kernel reads where it is given.
    pub(crate) fn optional(tensor: Option<&'a Tensor>) -> Self {
        tensor.map_or(Self::Unused, Self::In)
    }
}

/// Threadgroups and threads of each.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    /// Threadgroups.
    pub(crate) groups: [usize; 3],
    /// Threads of a threadgroup.
    pub(crate) threads: usize,
}

impl<'a> Pass<'a> {
    /// Opens a pass on a device.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn open(device: &'a MetalDevice) -> Result<Self> {
        Ok(Self { device, encoder: device.command_encoder()? })
    }

    /// Opens a pass on the device of a tensor.
    ///
    /// # Errors
    /// The tensor is not on Metal.
    pub(crate) fn of(tensor: &'a Tensor) -> Result<Self> {
        match metal_device(tensor.device()) {
            Some(device) => Self::open(device),
            None => bail!("metal: a tensor of {:?} is on another device", tensor.dims()),
        }
    }

    /// A new tensor whose elements are not set.
    ///
    /// # Errors
    /// The device is out of memory.
    pub(crate) fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
        empty(self.device, shape, dtype)
    }

    /// Encodes a kernel. A grid without threadgroups is skipped.
    ///
    /// # Errors
    /// The kernel does not compile, or an argument is on another device or not contiguous.
    pub(crate) fn run(&self, kernel: Kernel, args: &[Arg<'_>], grid: Grid) -> Result<()> {
        if grid.groups.contains(&0) {
            return Ok(());
        }
        count_launch();
        let pipeline = pipeline(self.device, kernel)?;
        let encoder = self.encoder.as_ref();
        encoder.set_compute_pipeline_state(&pipeline);
        for (index, arg) in args.iter().enumerate() {
            match *arg {
                Arg::In(tensor) => bind(tensor, |buffer, offset| {
                    encoder.set_input_buffer(index, Some(buffer), offset);
                })?,
                Arg::Rows(tensor) => bind(&tensor.narrow(0, 0, 1)?, |buffer, offset| {
                    encoder.set_input_buffer(index, Some(buffer), offset);
                })?,
                Arg::Out(tensor) => bind(tensor, |buffer, offset| {
                    encoder.set_output_buffer(index, Some(buffer), offset);
                })?,
                Arg::Params(words) => {
                    encoder.set_bytes_directly(index, size_of_val(words), words.as_ptr().cast());
                }
                Arg::Unused => encoder.set_bytes(index, &[0u32; 4]),
            }
        }
        let [width, height, depth] = grid.groups;
        let threads = MTLSize { width: grid.threads, height: 1, depth: 1 };
        encoder.dispatch_thread_groups(MTLSize { width, height, depth }, threads);
        Ok(())
    }
}

/// A new tensor on Metal whose elements are not set, from candle's pool of buffers.
///
/// # Errors
/// The device is out of memory.
pub(crate) fn empty(device: &MetalDevice, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    let count = shape.elem_count();
    let buffer = device.new_buffer(count.max(1), dtype, "")?;
    let storage = Storage::Metal(MetalStorage::new(buffer, device.clone(), count, dtype));
    Ok(Tensor::from_storage(storage, shape, BackpropOp::none(), false))
}

/// Bytes on a device as a tensor `[bytes]` u8, in a buffer of exactly their size.
///
/// # Errors
/// The device is out of memory.
pub(crate) fn upload(device: &MetalDevice, bytes: &[u8]) -> Result<Tensor> {
    let buffer = device.new_buffer_with_data(bytes)?;
    let storage = Storage::Metal(MetalStorage::new(buffer, device.clone(), bytes.len(), DType::U8));
    Ok(Tensor::from_storage(storage, bytes.len(), BackpropOp::none(), false))
}

fn bind(tensor: &Tensor, set: impl FnOnce(&candle_metal_kernels::metal::Buffer, usize)) -> Result<()> {
    with_storage(tensor, |storage, layout| {
        if !layout.is_contiguous() {
            bail!("metal: an argument of shape {:?} is not contiguous", layout.dims())
        }
        set(storage.buffer(), layout.start_offset() * storage_size(tensor));
        Ok(())
    })
}

fn storage_size(tensor: &Tensor) -> usize {
    tensor.dtype().size_in_bytes()
}

/// The Metal device of a [`Device`].
pub(crate) fn metal_device(device: &Device) -> Option<&MetalDevice> {
    match device {
        Device::Metal(device) => Some(device),
        _ => None,
    }
}
