//! Packed weights in memory: owned, or a part of a region that was read from a file. Knows no kernel.

use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};

/// Bytes of a cache line: the length of a packed weight is a multiple of it.
pub const CACHE_LINE: usize = 64;

/// Bytes aligned to a cache line.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub(crate) [u8; CACHE_LINE]);

/// Values of which every bit pattern is valid.
///
/// # Safety
/// The type has neither padding nor invalid bit patterns, and its alignment divides that of a cache line.
pub unsafe trait Plain: Copy + Send + Sync + 'static {}

// SAFETY: floating-point numbers and bytes.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for f16 {}
// SAFETY: as above.
unsafe impl Plain for bf16 {}
// SAFETY: as above.
unsafe impl Plain for Line {}

/// The values of a packed weight.
#[derive(Debug, Clone)]
pub enum Memory<T> {
    /// Owned.
    Own(Vec<T>),
    /// A part of a shared region.
    Part(Part),
}

/// Some cache lines of a region.
#[derive(Debug, Clone)]
pub struct Part {
    region: Arc<Region>,
    bytes: Range<usize>,
}

/// The contents of a file in memory, in huge pages where the system has them.
#[derive(Debug)]
pub struct Region(MmapMut);

impl Region {
    /// A region of `bytes` zeros.
    ///
    /// # Errors
    /// Out of memory.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1))?;
        // The advice is optional.
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok();
        Ok(Self(map))
    }

    /// The bytes, before the region is shared.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Part {
    /// The cache lines at `bytes` of a region; `None` where they are not whole lines of it.
    pub fn new(region: &Arc<Region>, bytes: Range<usize>) -> Option<Self> {
        let are_lines = bytes.start.is_multiple_of(CACHE_LINE) && bytes.end.is_multiple_of(CACHE_LINE);
        let are_there = bytes.start <= bytes.end && bytes.end <= region.0.len();
        (are_lines && are_there).then(|| Self { region: Arc::clone(region), bytes })
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }
}

impl<T: Plain> Memory<T> {
    /// The bytes of the values.
    pub fn bytes(&self) -> &[u8] {
        let values: &[T] = self;
        // SAFETY: plain values have no padding.
        unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
    }
}

impl<T: Plain> Deref for Memory<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        match self {
            Self::Own(values) => values,
            Self::Part(Part { region, bytes }) => {
                let start = region.0[bytes.clone()].as_ptr();
                // SAFETY: inside the region, which does not change once it is shared; a mapping begins with a page and
                // the part with a line of it, where plain values may begin, and any bytes are such values.
                unsafe { std::slice::from_raw_parts(start.cast(), bytes.len() / size_of::<T>()) }
            }
        }
    }
}

/// The layout of a packed weight. Files hold the serialised names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum PackedKind {
    /// Panels of f32.
    #[serde(rename = "single")]
    F32,
    /// Panels of f16.
    #[serde(rename = "half")]
    F16,
    /// Panels of bf16.
    #[serde(rename = "brain")]
    Bf16,
    /// Blocks of 8 bits.
    #[serde(rename = "eight")]
    Q8,
    /// Blocks of 4 bits.
    #[serde(rename = "four")]
    Q4,
    /// A convolution in f32.
    #[serde(rename = "conv")]
    Conv,
    /// A convolution in pairs of bf16.
    #[serde(rename = "pairs")]
    ConvBf16,
    /// A convolution at 8 bits.
    #[serde(rename = "conv8")]
    ConvQ8,
}

/// Taps, inputs and outputs; a linear layer has one tap.
pub type Sizes = [usize; 3];

/// A packed weight that a file can hold.
pub trait Packed: std::fmt::Debug + Send + Sync + 'static {
    /// The layout.
    fn kind(&self) -> PackedKind;
    /// Taps, inputs and outputs.
    fn sizes(&self) -> Sizes;
    /// The packed bytes: whole cache lines.
    fn data(&self) -> &[u8];
    /// The weight of this layout and these sizes whose packed bytes are `data`; `None` where they do not fit.
    fn unpack(kind: PackedKind, sizes: Sizes, data: Part) -> Option<Self>
    where
        Self: Sized;
}
