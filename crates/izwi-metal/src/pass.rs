//! A pass: kernels encoded one after another into candle's current command buffer. Knows no layer.

use candle_core::{DType, MetalDevice, Result, Shape, Tensor, bail};

use crate::counters::count_launch;
use crate::driver::{Encoder, empty};
use crate::kernel::{Grid, Kernel};
use crate::metal_device;

/// Encodes kernels. While it lives, candle's operations on this device wait: do not call them.
pub struct Pass<'a> {
    device: &'a MetalDevice,
    encoder: Encoder<'a>,
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
    /// Nothing: the kernel does not read the argument. A few zero bytes are bound, which no kernel may be able to write: an
    /// argument that it only could write gets a tensor that it does.
    Unused,
}

impl<'a> Arg<'a> {
    /// A tensor that the kernel reads where it is given.
    pub(crate) fn optional(tensor: Option<&'a Tensor>) -> Self {
        tensor.map_or(Self::Unused, Self::In)
    }
}

impl std::fmt::Debug for Pass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").finish_non_exhaustive()
    }
}

impl<'a> Pass<'a> {
    /// Opens a pass on a device.
    ///
    /// # Errors
    /// The device has failed, or this build has no Metal.
    pub fn open(device: &'a MetalDevice) -> Result<Self> {
        Ok(Self { device, encoder: Encoder::open(device)? })
    }

    /// Opens a pass on the device of a tensor.
    ///
    /// # Errors
    /// The tensor is not on Metal.
    pub fn of(tensor: &'a Tensor) -> Result<Self> {
        match metal_device(tensor.device()) {
            Some(device) => Self::open(device),
            None => bail!("metal: a tensor of {:?} is on another device", tensor.dims()),
        }
    }

    /// A new tensor whose elements are not set.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn empty(&self, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
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
        self.encoder.choose(self.device, kernel, grid.threads)?;
        for (index, arg) in args.iter().enumerate() {
            match *arg {
                Arg::In(tensor) => self.encoder.read(index, tensor)?,
                Arg::Rows(tensor) => self.encoder.read(index, &tensor.narrow(0, 0, 1)?)?,
                Arg::Out(tensor) => self.encoder.write(index, tensor)?,
                Arg::Params(words) => self.encoder.copy(index, words),
                Arg::Unused => self.encoder.copy(index, &[0; 4]),
            }
        }
        self.encoder.launch(grid);
        Ok(())
    }
}
