//! The kernels that are generic over the type of an element, once for each type: `cargo xtask inlining` reads what the
//! compiler makes of them.

use half::{bf16, f16};
use izwi_kernels::attention::{PagedCache, PagedQuery, Span, attention, paged_attention};

/// Functions of the kernels for one type.
macro_rules! instances {
    ($($dense:ident $paged:ident $element:ty,)*) => {$(
        #[allow(missing_docs, reason = "read by nobody")]
        #[inline(never)]
        pub fn $dense(q: &[f32], spans: &[Span<'_, $element>], y: &mut [f32], weights: &mut [Vec<f32>]) {
            attention(q, spans, 64, &[], y, weights);
        }

        #[allow(missing_docs, reason = "read by nobody")]
        #[inline(never)]
        pub fn $paged(q: &[f32], rows: &[PagedQuery<'_>], cache: &PagedCache<'_, $element>, y: &mut [f32]) {
            paged_attention(q, rows, cache, y);
        }
    )*};
}

instances! {
    attention_f32 paged_attention_f32 f32,
    attention_f16 paged_attention_f16 f16,
    attention_bf16 paged_attention_bf16 bf16,
}
