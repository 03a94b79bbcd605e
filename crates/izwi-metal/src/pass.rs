//! A pass: kernels encoded one after another into candle's current command buffer. Knows no layer.

use std::cell::{Cell, RefCell};

use candle_core::{DType, MetalDevice, Result, Shape, Tensor, bail};

use crate::counters::{count_launch, count_work};
use crate::driver::{Encoder, empty};
use crate::kernel::{Grid, Kernel};
use crate::metal_device;

/// Work of kernels, in bytes that a GPU reads meanwhile, that is one opening of the encoder: about 3 ms on an M1. candle commits
/// a command buffer before its 51st opening, so one is 10 GB or 100 GFLOP and a launch at most. The system ends one that
/// takes seconds, and the screen stands still meanwhile.
const OPENING: usize = 200_000_000;
/// Openings that commit what was encoded before.
const MAX_OPENINGS: usize = 50;
/// Operations that take as long as reading a byte does, at a third of the arithmetic that an M1 has.
const FLOP_PER_BYTE: usize = 10;

/// Encodes kernels. While it lives, candle's operations on this device wait: do not call them.
pub struct Pass<'a> {
    device: &'a MetalDevice,
    /// None once it could not be opened again.
    encoder: RefCell<Option<Encoder<'a>>>,
    /// Work since the last opening, in bytes.
    work: Cell<usize>,
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
        Ok(Self { device, encoder: RefCell::new(Some(Encoder::open(device)?)), work: Cell::new(0) })
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

    /// Counts what the next kernel costs: operations and bytes of weights. Commits what was encoded before, where that and the
    /// kernel are much work.
    ///
    /// # Errors
    /// The device has failed.
    pub(crate) fn expect(&self, flop: usize, weight_bytes: usize) -> Result<()> {
        let (openings, rest) = openings(self.work.get(), flop, weight_bytes);
        self.work.set(rest);
        for _ in 0..openings {
            // The old one first: they exclude each other.
            self.encoder.replace(None);
            self.encoder.replace(Some(Encoder::open(self.device)?));
        }
        count_work(flop, weight_bytes);
        Ok(())
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
        let encoder = self.encoder.borrow();
        let Some(encoder) = &*encoder else { bail!("metal: the pass has failed") };
        encoder.choose(self.device, kernel, grid.threads)?;
        for (index, arg) in args.iter().enumerate() {
            match *arg {
                Arg::In(tensor) => encoder.read(index, tensor)?,
                Arg::Rows(tensor) => encoder.read(index, &tensor.narrow(0, 0, 1)?)?,
                Arg::Out(tensor) => encoder.write(index, tensor)?,
                Arg::Params(words) => encoder.copy(index, words),
                Arg::Unused => encoder.copy(index, &[0; 4]),
            }
        }
        encoder.launch(grid);
        Ok(())
    }
}

/// Openings of the encoder before a kernel, and the work that is left to count: `work` is what was left before.
fn openings(work: usize, flop: usize, weight_bytes: usize) -> (usize, usize) {
    let work = work + weight_bytes + flop / FLOP_PER_BYTE;
    ((work / OPENING).min(MAX_OPENINGS), work % OPENING)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_one_command_buffer_and_a_large_launch_begins_one() {
        // 1.76 GB of weights at 8 bits, 8 sequences, about a launch for 3 MB.
        let (mut total, mut work) = (0, 0);
        for _ in 0..587 {
            let (openings, rest) = openings(work, 8 * 2 * 3_000_000, 3_000_000);
            (total, work) = (total + openings, rest);
        }
        assert!((8..40).contains(&total), "{total}");
        assert_eq!(openings(OPENING - 1, 0, 1), (1, 0));
        assert_eq!(openings(0, FLOP_PER_BYTE * (OPENING - 1), 0), (0, OPENING - 1));
        assert_eq!(openings(0, 1_000_000_000_000_000, 0).0, MAX_OPENINGS);
    }
}
