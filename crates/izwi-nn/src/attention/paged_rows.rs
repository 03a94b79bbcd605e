//! The rows of a step over the paged pool: where each is written, and what candle's operations need to attend to it on a
//! device, uploaded once for all layers. Knows no layer and no model.

use candle_core::{DType, Device, Result, Tensor, bail};

use crate::kv_pool::{KvPool, PagedSpan};
use izwi_metal::{Heads, StepTable, metal_device};

/// Spans of a step, one after another, over one pool.
#[derive(Debug)]
pub struct PagedRows<'a> {
    spans: &'a [PagedSpan<'a>],
    slots: Vec<u32>,
    on_device: Option<OnDevice>,
    /// For the kernels on Metal, in the place of `on_device`.
    table: Option<StepTable>,
}

/// Tensors of a step for candle's operations.
#[derive(Debug)]
struct OnDevice {
    /// The slot of each element to write, `[rows, kv_heads, head_dim]` u32.
    slots: Tensor,
    batches: Vec<Batch>,
}

/// Neighbouring spans of as many rows each, computed together: their histories are padded to the longest one.
#[derive(Debug)]
struct Batch {
    sequences: usize,
    /// Rows of each sequence.
    rows: usize,
    /// Positions of each history.
    positions: usize,
    /// Rows of the pool as `[slots * kv_heads, head_dim]`, `[sequences * kv_heads * positions]` u32. A padded position
    /// repeats the first one: slots that were never written may hold anything.
    history: Tensor,
    /// What is added to the scores, `[sequences, 1, rows, 1, positions]`; `None` if every row attends to every position.
    mask: Option<Tensor>,
}

impl<'a> PagedRows<'a> {
    /// The rows of `spans`, in order.
    ///
    /// # Errors
    /// A block table is too short or names a block outside the pool, or the device is out of memory.
    pub fn new(pool: &KvPool, spans: &'a [PagedSpan<'a>]) -> Result<Self> {
        for span in spans {
            let used = (span.start + span.num_tokens).div_ceil(pool.block_size());
            let is_known = |&block: &u32| (block as usize) < pool.num_blocks();
            if !span.block_table.get(..used).is_some_and(|table| table.iter().all(is_known)) {
                bail!("paged attention: a table of {} blocks does not fit the pool", span.block_table.len())
            }
        }
        let slots = spans.iter().flat_map(|span| pool.slots(span.block_table, span.start, span.num_tokens));
        let slots: Vec<u32> = slots.collect();
        if let Some(table) = step_table(pool, spans)? {
            return Ok(Self { spans, slots, on_device: None, table: Some(table) });
        }
        let on_device = match pool.layer(0) {
            Ok((keys, _)) if !keys.device().is_cpu() => Some(OnDevice::new(pool, keys, spans, &slots)?),
            _ => None,
        };
        Ok(Self { spans, slots, on_device, table: None })
    }

    /// For the kernels on Metal, if the rows are there and the kernels take the pool.
    pub(super) fn table(&self) -> Option<&StepTable> {
        self.table.as_ref()
    }

    /// The spans.
    pub fn spans(&self) -> &[PagedSpan<'a>] {
        self.spans
    }

    /// Number of rows.
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Writes `keys` and `values` `[rows, kv_heads, head_dim]` of one layer into the pool.
    ///
    /// # Errors
    /// Shapes do not fit the pool.
    pub fn write(&self, pool: &mut KvPool, layer: usize, keys: &Tensor, values: &Tensor) -> Result<()> {
        match &self.on_device {
            Some(device) => pool.write_indexed(layer, &device.slots, keys, values),
            None => pool.write(layer, &self.slots, keys, values),
        }
    }

    /// Attention of every row with candle's operations: `q` and the result are `[rows, heads * head_dim]`.
    pub(super) fn composite(&self, pool: &KvPool, layer: usize, q: &Tensor, heads: usize) -> Result<Tensor> {
        let uploaded;
        let device = match &self.on_device {
            Some(device) => device,
            None => {
                uploaded = OnDevice::new(pool, pool.layer(layer)?.0, self.spans, &self.slots)?;
                &uploaded
            }
        };
        let mut first = 0;
        let mut parts = Vec::with_capacity(device.batches.len());
        for batch in &device.batches {
            let count = batch.sequences * batch.rows;
            parts.push(batch.attend(pool, layer, &q.narrow(0, first, count)?, heads)?);
            first += count;
        }
        if parts.len() == 1 { Ok(parts.remove(0)) } else { Tensor::cat(&parts, 0) }
    }
}

/// The rows as the kernels on Metal read them; `None` on other devices, or if the kernels do not take the pool.
fn step_table(pool: &KvPool, spans: &[PagedSpan<'_>]) -> Result<Option<StepTable>> {
    let Ok((keys, _)) = pool.layer(0) else { return Ok(None) };
    let (_, kv_heads, head_dim) = keys.dims3()?;
    let heads = Heads { heads: kv_heads, kv_heads, head_dim, norms: None, rotates: false };
    let Some(device) = metal_device(keys.device()).filter(|_| heads.are_supported(keys.dtype())) else {
        return Ok(None);
    };
    let spans = spans.iter().map(|span| span.on_metal(0)).collect();
    Ok(StepTable::upload(device, &[spans], pool.block_size(), &|_| Vec::new())?.pop())
}

impl OnDevice {
    fn new(pool: &KvPool, keys: &Tensor, spans: &[PagedSpan<'_>], slots: &[u32]) -> Result<Self> {
        let (device, (_, kv_heads, head_dim)) = (keys.device(), keys.dims3()?);
        let of_rows = Tensor::from_slice(slots, (slots.len(), 1, 1), device)?;
        let of_rows = of_rows.broadcast_as((slots.len(), kv_heads, head_dim))?.contiguous()?;
        let spans: Vec<_> = spans.iter().filter(|span| span.num_tokens > 0).collect();
        let batches = spans.chunk_by(|a, b| a.num_tokens == b.num_tokens);
        let batches = batches.map(|spans| Batch::new(pool, kv_heads, spans, device));
        Ok(Self { slots: of_rows, batches: batches.collect::<Result<_>>()? })
    }
}

impl Batch {
    fn new(pool: &KvPool, kv_heads: usize, spans: &[&PagedSpan<'_>], device: &Device) -> Result<Self> {
        let lengths = || spans.iter().map(|span| span.start + span.num_tokens);
        let rows = spans.first().map_or(0, |span| span.num_tokens);
        let positions = lengths().max().unwrap_or(0);
        let mut history = Vec::with_capacity(spans.len() * kv_heads * positions);
        let mut mask = Vec::with_capacity(spans.len() * rows * positions);
        for (span, length) in spans.iter().zip(lengths()) {
            let mut slots = pool.slots(span.block_table, 0, length);
            slots.resize(positions, slots.first().copied().unwrap_or(0));
            for head in 0..kv_heads as u32 {
                history.extend(slots.iter().map(|slot| slot * kv_heads as u32 + head));
            }
            for row in 0..rows {
                let seen = span.start + row + 1;
                mask.extend((0..positions).map(|at| if at < seen { 0.0 } else { f32::NEG_INFINITY }));
            }
        }
        let shape = (spans.len(), 1, rows, 1, positions);
        let hides = mask.iter().any(|&added| added != 0.0);
        Ok(Self {
            sequences: spans.len(),
            rows,
            positions,
            history: Tensor::from_vec(history, spans.len() * kv_heads * positions, device)?,
            mask: if hides { Some(Tensor::from_vec(mask, shape, device)?) } else { None },
        })
    }

    /// `q` and the result are `[sequences * rows, heads * head_dim]`. Heads that share keys are rows of one product, so
    /// that no history is repeated.
    fn attend(&self, pool: &KvPool, layer: usize, q: &Tensor, heads: usize) -> Result<Tensor> {
        let Self { sequences, rows, positions, .. } = *self;
        let (count, width) = q.dims2()?;
        let (keys, values) = pool.layer(layer)?;
        let (_, kv_heads, head_dim) = keys.dims3()?;
        let group = heads / kv_heads;
        let history = |pool: &Tensor| {
            let rows = pool.flatten(0, 1)?.index_select(&self.history, 0)?.to_dtype(DType::F32)?;
            rows.reshape((sequences * kv_heads, positions, head_dim))
        };
        // One row of each sequence has its heads in this order already.
        let ordered = |x: &Tensor, shape: (usize, usize, usize, usize)| {
            if rows == 1 { Ok(x.clone()) } else { x.reshape(shape)?.transpose(1, 2)?.contiguous() }
        };
        let q = (q * (1.0 / (head_dim as f64).sqrt()))?;
        let q = ordered(&q, (sequences, rows, kv_heads, group * head_dim))?;
        let q = q.reshape((sequences * kv_heads, rows * group, head_dim))?;
        let mut scores = q.matmul(&history(keys)?.t()?)?; // [sequences * kv_heads, rows * group, positions]
        if let Some(mask) = &self.mask {
            let by_row = scores.reshape((sequences, kv_heads, rows, group, positions))?;
            scores = by_row.broadcast_add(mask)?.reshape(scores.dims())?;
        }
        let mixed = candle_nn::ops::softmax_last_dim(&scores)?.matmul(&history(values)?)?;
        ordered(&mixed, (sequences, kv_heads, rows, group * head_dim))?.reshape((count, width))
    }
}
