//! The positions that a stack computes inside one codec frame, for several sequences together, over a pool of their own.
//! Frames use one pool after another: none reads what it did not write.

use std::sync::PoisonError;

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::attention::PagedSpan;
use crate::decoder_stack::{DecoderStack, StackRows};
use crate::kv_pool::KvPool;

/// An unfinished frame of several sequences.
#[derive(Debug)]
pub(super) struct FrameSteps<'a> {
    stack: &'a DecoderStack,
    /// Given back to the stack at the end.
    kv: Option<KvPool>,
    /// One block holds a whole frame.
    tables: Vec<[u32; 1]>,
    start: usize,
}

impl<'a> FrameSteps<'a> {
    /// A frame of at most `positions` positions for each of `sequences` sequences. Every layer of the stack must be
    /// attention.
    ///
    /// # Errors
    /// The device is out of memory.
    pub(super) fn new(
        stack: &'a DecoderStack,
        sequences: usize,
        positions: usize,
        device: &Device,
    ) -> Result<Self> {
        let kept = stack.frame_pool.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fits = |kv: &KvPool| kv.num_blocks() >= sequences && kv.block_size() >= positions;
        let kv = match kept.filter(fits) {
            Some(kv) => kv,
            None => KvPool::new(Some(stack.kv_layout(DType::F32)), sequences, positions, device)?,
        };
        Ok(Self {
            stack,
            kv: Some(kv),
            tables: (0..sequences as u32).map(|block| [block]).collect(),
            start: 0,
        })
    }

    /// The next `n` rows of every sequence, sequence after sequence: `[sequences * n, width]` to the last row of each,
    /// `[sequences, width]`, before the last norm.
    ///
    /// # Errors
    /// Shapes do not fit, or the frame has fewer positions.
    pub(super) fn forward(&mut self, x: Tensor) -> Result<Tensor> {
        let (count, rows) = (self.tables.len(), x.dim(0)?);
        if count == 0 || rows == 0 || rows % count != 0 {
            bail!("frame: {rows} rows do not divide into {count} sequences")
        }
        let num_tokens = rows / count;
        let span = |table| PagedSpan { start: self.start, num_tokens, block_table: table };
        let spans = self.tables.iter().map(|table| span(table.as_slice())).collect();
        let Some(kv) = &mut self.kv else { bail!("frame: it has no pool") };
        if self.start + num_tokens > kv.block_size() {
            bail!("frame: {num_tokens} more positions than {} of {}", self.start, kv.block_size())
        }
        let mut rows = StackRows::new(kv, spans);
        let y = self.stack.forward(x, kv, &mut rows, |_| ())?;
        self.start += num_tokens;
        if num_tokens == 1 {
            return Ok(y);
        }
        let last: Vec<u32> = (0..count).map(|n| ((n + 1) * num_tokens - 1) as u32).collect();
        y.contiguous()?.index_select(&Tensor::new(last, y.device())?, 0)
    }
}

impl Drop for FrameSteps<'_> {
    fn drop(&mut self) {
        *self.stack.frame_pool.lock().unwrap_or_else(PoisonError::into_inner) = self.kv.take();
    }
}
