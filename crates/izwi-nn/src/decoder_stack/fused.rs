//! What the fused kernels for Metal need of a stack: five of them a layer, seven where rows of a sequence follow each other.

use candle_core::{Device, MetalDevice, Result, bail};
use izwi_metal::{Heads, MAX_TAPS, StepTable, TableSpan, metal_device};

use super::{Attention, DecoderStack, Mixer, StackRows, StackShape};
use crate::kv_pool::KvPool;

/// Columns of a block's convolution state that come before those a continuing sequence reads.
pub(super) const AFTER_THE_POSITION_BEFORE: u32 = 1;

impl DecoderStack {
    /// The Metal device, if the fused kernels take this stack with keys and values of the pool's type.
    pub(super) fn fused_on<'a>(&self, device: &'a Device, kv: &KvPool) -> Option<&'a MetalDevice> {
        let is_supported = |layer: &Mixer| match layer {
            Mixer::Attention(index, attention) => {
                kv.layer(*index).is_ok_and(|(keys, _)| self.heads(attention).are_supported(keys.dtype()))
            }
            Mixer::Convolution(_, convolution) => convolution.taps() <= MAX_TAPS,
        };
        metal_device(device).filter(|_| self.layers.iter().all(|layer| is_supported(&layer.mixer)))
    }

    pub(super) fn heads<'a>(&self, attention: &'a Attention) -> Heads<'a> {
        let StackShape { heads, kv_heads, head_dim, .. } = self.shape;
        let norms = attention.head_norms.as_ref();
        let norms = norms.map(|[query, key]| (query.weight(), key.weight(), query.eps()));
        Heads { heads, kv_heads, head_dim, norms, rotates: true }
    }

    /// The table of a step.
    pub(super) fn table(
        &self,
        device: &MetalDevice,
        rows: &StackRows<'_>,
        block_size: usize,
    ) -> Result<StepTable> {
        let skip = |index: usize| {
            rows.states.get(index).and_then(|state| state.skip).unwrap_or(AFTER_THE_POSITION_BEFORE)
        };
        let spans = rows.spans.iter().enumerate().map(|(index, span)| span.on_metal(skip(index)));
        match self.tables(device, &[spans.collect()], block_size)?.pop() {
            Some(table) => Ok(table),
            None => bail!("decoder stack: a step has no table"),
        }
    }

    /// Tables of several steps in one upload.
    pub(super) fn tables(
        &self,
        device: &MetalDevice,
        steps: &[Vec<TableSpan<'_>>],
        block_size: usize,
    ) -> Result<Vec<StepTable>> {
        StepTable::upload(device, steps, block_size, &|position| self.rope.cos_sin(position))
    }
}
