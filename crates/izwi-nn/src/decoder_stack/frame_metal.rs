//! A frame on Metal: one pass, one table of positions and one of draws, one read of the codes.

use std::sync::PoisonError;

use candle_core::{DType, Device, MetalDevice, Result, Tensor, bail};

use super::frame_decoder::{CodebookHead, FrameDecoder, FrameStart};
use super::metal::{AFTER_THE_POSITION_BEFORE, stored};
use crate::attention::PagedSpan;
use crate::kv_pool::KvPool;
use crate::layers::RmsNorm;
use crate::metal::{self, DrawTable, Fused, Lookup, Norm, Pass, RowDraw, StepTable, TableSpan};
use crate::sampling::{Draw, DrawLimits};

/// Rows of a frame's first step and what later steps add to embeddings.
struct Start<'a> {
    /// `[sequences, rows * width]`.
    x: Tensor,
    /// Rows of a sequence in the first step.
    rows: usize,
    parts: Option<&'a Tensor>,
}

impl FrameDecoder<'_> {
    /// As [`Self::decode`]; `None` where the fused kernels do not take the frame.
    pub(super) fn decode_fused(
        &self,
        start: FrameStart<'_>,
        draws: &[Draw<'_>],
        first: usize,
        observer: &mut dyn FnMut(&Tensor),
    ) -> Result<Option<Vec<Vec<u32>>>> {
        let of = match start {
            FrameStart::Parts(rows) => rows,
            FrameStart::Code { hidden, .. } | FrameStart::Logits { hidden, .. } => hidden,
        };
        let device: Device = of.device().clone();
        let Some(on) = metal::metal_device(&device) else { return Ok(None) };
        let has_tables = self.heads.iter().all(|head| head.codes.table().is_some());
        let mut kv = self.frame_pool(draws.len(), &device)?;
        if !has_tables || self.stack.fused_on(&device, &kv).is_none() {
            return Ok(None);
        }
        let result = self.decode_on(on, start, (draws, first), &mut kv, observer);
        *self.stack.frame_pool.lock().unwrap_or_else(PoisonError::into_inner) = Some(kv);
        result.map(Some)
    }

    fn frame_pool(&self, sequences: usize, device: &Device) -> Result<KvPool> {
        let positions = self.heads.len() + 1;
        let kept = self.stack.frame_pool.lock().unwrap_or_else(PoisonError::into_inner).take();
        let fits = |kv: &KvPool| kv.num_blocks() >= sequences && kv.block_size() >= positions;
        match kept.filter(fits) {
            Some(kv) => Ok(kv),
            None => KvPool::new(Some(self.stack.kv_layout(DType::F32)), sequences, positions, device),
        }
    }

    fn decode_on(
        &self,
        on: &MetalDevice,
        start: FrameStart<'_>,
        (draws, first): (&[Draw<'_>], usize),
        kv: &mut KvPool,
        observer: &mut dyn FnMut(&Tensor),
    ) -> Result<Vec<Vec<u32>>> {
        let sequences = draws.len();
        let Start { x, rows, parts } = self.start(start)?;
        let tables = self.step_tables(on, sequences, rows, kv)?;
        let table = draw_table(on, start, (draws, first), self.heads.len())?;
        let codes = table.codes(on)?;
        let width = x.dim(1)? / rows;
        let pass = Pass::open(on)?;
        let mut at = 0;
        if let FrameStart::Logits { logits, embedding, .. } = start {
            let lookup = Lookup { table: known(embedding.table())?, add: None, out: &x, start: width };
            pass.draw(logits, &table, at, &codes, Some(lookup))?;
            at += 1;
        }
        let mut x = x.reshape((sequences * rows, width))?;
        let mut seen = Vec::with_capacity(self.heads.len());
        for (codebook, (head, step)) in self.heads.iter().zip(&tables).enumerate() {
            if let Some(project) = self.project {
                let fused = Fused { bias: project.bias(), ..Fused::default() };
                x = pass.linear(&x, stored(project)?, fused)?;
            }
            let y = self.stack.layers_fused(&pass, &x, kv, step)?;
            let logits = head_logits(&pass, &y, sequences, head)?;
            let is_last = codebook + 1 == self.heads.len();
            let next = pass.empty((sequences, width), DType::F32)?;
            let add = parts.map(|parts| (parts, (codebook + 1) * width));
            let lookup = Lookup { table: known(head.codes.table())?, add, out: &next, start: 0 };
            pass.draw(&logits, &table, at, &codes, (!is_last).then_some(lookup))?;
            at += 1;
            x = next;
            seen.push(logits);
        }
        drop(pass);
        let drawn = codes.to_vec2::<u32>()?;
        seen.iter().for_each(observer);
        Ok((0..sequences).map(|sequence| drawn.iter().map(|codes| codes[sequence]).collect()).collect())
    }

    /// The rows of the first step; where its second row is not known yet, it is not set.
    fn start<'a>(&self, start: FrameStart<'a>) -> Result<Start<'a>> {
        match start {
            FrameStart::Parts(parts) => {
                let width = parts.dim(1)? / self.heads.len().max(1);
                Ok(Start { x: parts.narrow(1, 0, width)?.contiguous()?, rows: 1, parts: Some(parts) })
            }
            FrameStart::Code { hidden, codes, embedding } => {
                let embedded = embedding.select(&Tensor::new(codes, hidden.device())?)?;
                Ok(Start { x: Tensor::cat(&[hidden, &embedded], 1)?, rows: 2, parts: None })
            }
            FrameStart::Logits { hidden, .. } => {
                Ok(Start { x: Tensor::cat(&[hidden, hidden], 1)?, rows: 2, parts: None })
            }
        }
    }

    /// The tables of all steps: `rows` positions of each sequence, then one position after another.
    fn step_tables(
        &self,
        on: &MetalDevice,
        sequences: usize,
        rows: usize,
        kv: &KvPool,
    ) -> Result<Vec<StepTable>> {
        let blocks: Vec<[u32; 1]> = (0..sequences as u32).map(|block| [block]).collect();
        let spans = |start: usize, num_tokens: usize| {
            let span = |block_table| TableSpan {
                rows: PagedSpan { start, num_tokens, block_table },
                skip: AFTER_THE_POSITION_BEFORE,
            };
            blocks.iter().map(|block| span(block.as_slice())).collect()
        };
        let mut steps: Vec<Vec<TableSpan<'_>>> = vec![spans(0, rows)];
        steps.extend((1..self.heads.len()).map(|step| spans(rows + step - 1, 1)));
        self.stack.tables(on, &steps, kv.block_size())
    }
}

/// Logits of the last row of each sequence of `y` `[sequences * n, width]`.
fn head_logits(pass: &Pass<'_>, y: &Tensor, sequences: usize, head: &CodebookHead<'_>) -> Result<Tensor> {
    let (rows, width) = y.dims2()?;
    let of_sequence = rows / sequences;
    let last = y.reshape((sequences, of_sequence * width))?.narrow(1, (of_sequence - 1) * width, width)?;
    let norm = head.norm.map_or(Norm::None, RmsNorm::on_metal);
    pass.linear(&last, stored(head.head)?, Fused { norm, bias: head.head.bias(), ..Fused::default() })
}

fn draw_table(
    on: &MetalDevice,
    start: FrameStart<'_>,
    (draws, first): (&[Draw<'_>], usize),
    heads: usize,
) -> Result<DrawTable> {
    let mut all = Vec::with_capacity((heads + 1) * draws.len());
    let (mut drawn, mut codes) = (Vec::new(), 0);
    if let FrameStart::Logits { logits, draws: tokens, .. } = start {
        codes = logits.dim(1)?;
        for token in tokens.rows() {
            all.push(RowDraw { draw: token.draw, index: 0, limits: token.limits });
            drawn.push(token.drawn);
        }
    }
    for index in first..first + heads {
        all.extend(draws.iter().map(|&draw| RowDraw { draw, index, limits: DrawLimits::default() }));
    }
    DrawTable::new(on, &all, draws.len(), &drawn, codes)
}

fn known(table: Option<&Tensor>) -> Result<&Tensor> {
    match table {
        Some(table) => Ok(table),
        None => bail!("frame: an embedding table is not on the device"),
    }
}
