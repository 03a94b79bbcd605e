//! The stack on Metal: five fused kernels a layer, seven where rows of a sequence follow each other.

use candle_core::{Device, MetalDevice, Result, Tensor, bail};

use super::{Attention, DecoderStack, Layer, Mixer, StackRows, StackShape};
use crate::kv_pool::KvPool;
use crate::layers::Linear;
use crate::metal::{self, Fused, Heads, MAX_TAPS, Pass, StepTable, TableSpan};

/// Columns of a block's convolution state that come before those a continuing sequence reads.
pub(super) const AFTER_THE_POSITION_BEFORE: u32 = 1;

impl DecoderStack {
    /// The Metal device, if the fused kernels take this stack with keys and values of the pool's type.
    pub(super) fn fused_on<'a>(&self, device: &'a Device, kv: &KvPool) -> Option<&'a MetalDevice> {
        let supported = self.layers.iter().all(|layer| match &layer.mixer {
            Mixer::Attention(index, attention) => {
                kv.layer(*index).is_ok_and(|(keys, _)| self.heads(attention).are_supported(keys.dtype()))
            }
            Mixer::Convolution(_, convolution) => convolution.taps() <= MAX_TAPS,
        });
        metal::metal_device(device).filter(|_| supported)
    }

    fn heads<'a>(&self, attention: &'a Attention) -> Heads<'a> {
        let StackShape { heads, kv_heads, head_dim, .. } = self.shape;
        let norms = attention.head_norms.as_ref();
        let norms = norms.map(|[query, key]| (query.weight(), key.weight(), query.eps()));
        Heads { heads, kv_heads, head_dim, norms, rotates: true }
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

    /// As [`Self::forward`], in one pass.
    pub(super) fn forward_fused(
        &self,
        x: Tensor,
        kv: &mut KvPool,
        (device, rows): (&MetalDevice, &mut StackRows<'_>),
        mut watch: impl FnMut(&Tensor),
    ) -> Result<Tensor> {
        let skip = |index: usize| {
            rows.states.get(index).and_then(|state| state.skip).unwrap_or(AFTER_THE_POSITION_BEFORE)
        };
        let spans = rows.spans.iter().enumerate();
        let spans = spans.map(|(index, span)| TableSpan { rows: *span, skip: skip(index) }).collect();
        let mut tables = self.tables(device, &[spans], kv.block_size())?;
        let Some(table) = tables.pop() else { return Ok(x) };
        let x = x.contiguous()?;
        let pass = Pass::open(device)?;
        let mut results = Vec::with_capacity(self.layers.len());
        let mut last = x.clone();
        for layer in &self.layers {
            last = self.layer_fused(&pass, layer, &last, kv, &table)?;
            results.push(last.clone());
        }
        drop(pass);
        // Reading a result is an operation of its own: after the pass.
        results.iter().for_each(&mut watch);
        rows.states.iter_mut().for_each(|state| state.skip = Some(AFTER_THE_POSITION_BEFORE));
        Ok(last)
    }

    /// All layers over `x` `[rows, width]`, without the last norm.
    pub(super) fn layers_fused(
        &self,
        pass: &Pass<'_>,
        x: &Tensor,
        kv: &KvPool,
        table: &StepTable,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        for layer in &self.layers {
            x = self.layer_fused(pass, layer, &x, kv, table)?;
        }
        Ok(x)
    }

    fn layer_fused(
        &self,
        pass: &Pass<'_>,
        layer: &Layer,
        x: &Tensor,
        kv: &KvPool,
        table: &StepTable,
    ) -> Result<Tensor> {
        let into = Fused { norm: layer.mixing_norm.on_metal(), ..Fused::default() };
        let sum = Fused { residual: Some(x), ..Fused::default() };
        let x = match &layer.mixer {
            Mixer::Attention(index, attention) => {
                let mixed = pass.linear(x, stored(&attention.query_key_value)?, into)?;
                let y = pass.attend(&mixed, kv.layer(*index)?, table, self.heads(attention))?;
                pass.linear(&y, stored(&attention.output)?, sum)?
            }
            Mixer::Convolution(index, convolution) => {
                let (input, weight, output) = convolution.parts();
                let mixed = pass.linear(x, stored(input)?, into)?;
                let y = pass.short_conv(&mixed, weight, kv.conv_layer(*index)?, table)?;
                pass.linear(&y, stored(output)?, sum)?
            }
        };
        let norm = layer.feed_forward_norm.on_metal();
        let up = Fused { norm, epilogue: layer.activation, ..Fused::default() };
        let hidden = pass.linear(&x, stored(&layer.up)?, up)?;
        pass.linear(&hidden, stored(&layer.down)?, Fused { residual: Some(&x), ..Fused::default() })
    }
}

/// The weights of a linear layer on Metal.
pub(super) fn stored(linear: &Linear) -> Result<&metal::MetalWeights> {
    match linear.on_metal() {
        Some(weights) => Ok(weights),
        None => bail!("decoder stack: a weight is not on the device of its rows"),
    }
}
