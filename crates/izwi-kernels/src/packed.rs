//! Where packed weights lie: in memory of their own, or in a part of a file that was read in one piece.

use std::io;
use std::ops::{Deref, Range};
use std::sync::Arc;

use half::{bf16, f16};
use memmap2::MmapMut;
use serde::{Deserialize, Serialize};

/// Bytes of a cache line: the length of a packed weight is a multiple of it.
pub const CACHE_LINE: usize = 64;

/// A line of the cache: packed weights are whole numbers of it.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub struct Line(pub(crate) [u8; CACHE_LINE]);

/// Values that any bytes are.
///
/// # Safety
/// The type has neither padding nor bit patterns without a meaning, and begins anywhere a line does.
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
    /// Its own.
    Own(Vec<T>),
    /// A part of what others have too.
    Part(Part),
}

/// Some lines of a region.
#[derive(Debug, Clone)]
pub struct Part {
    region: Arc<Region>,
    bytes: Range<usize>,
}

/// What a file holds, in pages as large as the system has them.
#[derive(Debug)]
pub struct Region(MmapMut);

impl Region {
    /// A region of `bytes` zeros.
    ///
    /// # Errors
    /// The system has not the memory.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        let map = MmapMut::map_anon(bytes.max(1))?;
        // Small pages do too where there are no others.
        #[cfg(target_os = "linux")]
        map.advise(memmap2::Advice::HugePage).ok();
        Ok(Self(map))
    }

    /// Its bytes, while nobody shares them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.0
    }
}

impl Part {
    /// The lines at `bytes` of a region; `None` where these are no whole lines of it.
    pub fn new(region: &Arc<Region>, bytes: Range<usize>) -> Option<Self> {
        let are_lines = bytes.start.is_multiple_of(CACHE_LINE) && bytes.end.is_multiple_of(CACHE_LINE);
        let are_there = bytes.start <= bytes.end && bytes.end <= region.0.len();
        (are_lines && are_there).then(|| Self { region: Arc::clone(region), bytes })
    }

    /// Number of its bytes.
    pub fn len(&self) -> usize {
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
                // SAFETY: inside the region, which nobody changes once it is shared; a mapping begins with a page and
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
}

/// Taps, inputs and outputs; a linear layer has one tap.
pub type Sizes = [usize; 3];

/// A packed weight that can lie in a file.
pub trait Packed: std::fmt::Debug + Send + Sync + 'static {
    /// What it is.
    fn kind(&self) -> PackedKind;
    /// Its sizes.
    fn sizes(&self) -> Sizes;
    /// Its bytes, whole lines.
    fn data(&self) -> &[u8];
    /// What was of this kind and these sizes and had these bytes; `None` where there is no such thing.
    fn unpack(kind: PackedKind, sizes: Sizes, data: Part) -> Option<Self>
    where
        Self: Sized;
}
