//! The positions that a stack computes inside one codec frame, for several sequences together, over a scratch pool: a frame
//! reads nothing that it did not write.

use candle_core::{DType, Device, MetalDevice, Result, Tensor, bail};
use izwi_metal::{Pass, StepTable};

use super::fused::AFTER_THE_POSITION_BEFORE;
use super::{DecoderStack, StackRows, Step};
use crate::attention::PagedSpan;
use crate::kv_pool::KvPool;

/// An unfinished frame of several sequences.
#[derive(Debug)]
pub(super) struct FrameSteps<'a> {
    stack: &'a DecoderStack,
    kv: &'a mut KvPool,
    /// One block holds a whole frame.
    blocks: Vec<[u32; 1]>,
    /// Rows of a sequence in each step.
    rows: Vec<usize>,
    /// Steps computed.
    done: usize,
    /// Of all steps, where the fused kernels take them.
    tables: Vec<StepTable>,
}

impl<'a> FrameSteps<'a> {
    /// A frame of `sequences` sequences in steps of `rows` rows of each. Every layer of the stack must be attention.
    ///
    /// # Errors
    /// The device is out of memory.
    pub(super) fn new(
        stack: &'a DecoderStack,
        kv: &'a mut KvPool,
        sequences: usize,
        rows: Vec<usize>,
        device: &Device,
    ) -> Result<Self> {
        let kv = kv.scratch(stack.kv_layout(DType::F32), sequences, rows.iter().sum(), device)?;
        let blocks = (0..sequences as u32).map(|block| [block]).collect();
        let mut frame = Self { stack, kv, blocks, rows, done: 0, tables: Vec::new() };
        if let Some(device) = stack.fused_on(device, frame.kv) {
            let steps = frame.rows.iter().scan(0, |start, &rows| {
                *start += rows;
                let spans = spans(&frame.blocks, *start - rows, rows);
                Some(spans.map(|span| span.on_metal(AFTER_THE_POSITION_BEFORE)).collect())
            });
            let steps: Vec<_> = steps.collect();
            frame.tables = stack.tables(device, &steps, frame.kv.block_size())?;
        }
        Ok(frame)
    }

    /// The Metal device, if the fused kernels take the stack.
    pub(super) fn fused_on<'d>(&self, device: &'d Device) -> Option<&'d MetalDevice> {
        self.stack.fused_on(device, self.kv)
    }

    /// The next rows of every sequence, sequence after sequence, to the last row of each, `[sequences, width]`, before the
    /// last norm.
    ///
    /// # Errors
    /// Shapes do not fit, or the frame has no further step.
    pub(super) fn forward(&mut self, pass: Option<&Pass<'_>>, x: Tensor) -> Result<Tensor> {
        let (sequences, (all, width)) = (self.blocks.len(), x.dims2()?);
        let Some(&rows) = self.rows.get(self.done).filter(|&rows| sequences * rows == all && all > 0) else {
            bail!("frame: {all} rows do not fit step {} of {sequences} sequences", self.done)
        };
        let y = match (pass, self.tables.get(self.done)) {
            (Some(pass), Some(table)) => self.stack.layers(x, self.kv, Step::Fused(pass, table), |_| ()),
            _ => {
                let start = self.rows[..self.done].iter().sum();
                let spans = spans(&self.blocks, start, rows).collect();
                let mut rows = StackRows::new(self.kv, spans);
                self.stack.forward(x, self.kv, &mut rows, |_| ())
            }
        }?;
        self.done += 1;
        let last = y.reshape((sequences, rows * width))?.narrow(1, (rows - 1) * width, width)?;
        // In a pass the next kernel reads the rows where they are.
        if pass.is_some() { Ok(last) } else { last.contiguous() }
    }
}

fn spans(blocks: &[[u32; 1]], start: usize, num_tokens: usize) -> impl Iterator<Item = PagedSpan<'_>> {
    blocks.iter().map(move |block_table| PagedSpan { start, num_tokens, block_table })
}
