//! Attention kernels: dense, paged, over a sliding window, and with relative positions.

mod dense;
mod paged;
mod relative;
mod windowed;

pub use dense::{HeadKv, Span, attention, pack_heads};
pub use paged::{PagedCache, PagedQuery, paged_attention};
pub use relative::{RelativeAttention, RelativeSpan};
pub use windowed::{WindowRows, WindowShape, sliding_window_attention};
