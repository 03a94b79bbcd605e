//! Attention of the three kinds a transformer needs: within packed sequences, over the paged pool, across to an
//! encoder's output.
//!
//! Rows are `[rows, heads * head_dim]` f32; the scale `1 / sqrt(head_dim)` is applied inside. On the CPU a row's result
//! is the same bits whatever other rows there are. Knows no projection and no model.

use candle_core::{DType, Result, Tensor, bail};

use super::kv_pool::KvPool;

/// One sequence's share of the rows given to [`paged`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagedSpan<'a> {
    /// Position of the first row.
    pub start: usize,
    /// Rows, at consecutive positions.
    pub num_tokens: usize,
    /// Blocks that hold the positions `0..start + num_tokens`, in order.
    pub block_table: &'a [u32],
}

/// Keys and values of one layer over one sequence's encoder output.
#[derive(Debug, Clone)]
pub struct CrossKv {
    keys: Tensor,   // [heads, positions, head_dim]
    values: Tensor, // [heads, positions, head_dim]
}

impl CrossKv {
    /// From `keys` and `values` `[positions, heads * head_dim]`, kept at `dtype`: f32, or f16 for half the bytes to
    /// read at a relative error of 2⁻¹¹ an element.
    ///
    /// # Errors
    /// Shapes do not fit, or `dtype` is neither.
    pub fn new(keys: &Tensor, values: &Tensor, heads: usize, dtype: DType) -> Result<Self> {
        if !matches!(dtype, DType::F32 | DType::F16) {
            bail!("cross attention: keys and values are kept at f32 or f16, not {dtype:?}")
        }
        Ok(Self {
            keys: by_head(keys, heads)?.to_dtype(dtype)?,
            values: by_head(values, heads)?.to_dtype(dtype)?,
        })
    }

    /// Positions of the encoder output.
    pub fn positions(&self) -> usize {
        self.keys.dims()[1]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        2 * self.keys.elem_count() * self.keys.dtype().size_in_bytes()
    }
}

/// Each of the packed sequences of `spans` rows attends to itself only: `q`, `k`, `v` and the answer are
/// `[rows, heads * head_dim]`, where `rows` is the sum of `spans`.
///
/// # Errors
/// Shapes do not fit.
pub fn bidirectional(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, spans: &[usize]) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(spans.len());
    let mut start = 0;
    for &rows in spans {
        let part = |x: &Tensor| by_head(&x.narrow(0, start, rows)?, heads);
        let (mixed, _) = composite(&part(q)?, &part(k)?, &part(v)?, None)?;
        parts.push(mixed);
        start += rows;
    }
    Tensor::cat(&parts, 0)
}

/// Causal attention of each span's rows over the positions `0..=own` of its sequence, read through the block table:
/// `q` and the answer are `[rows, heads * head_dim]`, the spans' rows behind one another. The pool's `kv_heads` divide
/// `heads`; keys and values of the rows are already in the pool.
///
/// # Errors
/// Shapes do not fit, or a block lies outside the pool.
pub fn paged(
    pool: &KvPool,
    layer: usize,
    q: &Tensor,
    spans: &[PagedSpan<'_>],
    heads: usize,
) -> Result<Tensor> {
    let mut parts = Vec::new();
    let mut row = 0;
    for span in spans {
        let slots = pool.slots(span.block_table, 0, span.start + span.num_tokens);
        let (k, v) = pool.gather(layer, &slots)?;
        for position in span.start..span.start + span.num_tokens {
            let part = |x: &Tensor| repeat_heads(&x.narrow(0, 0, position + 1)?.to_dtype(DType::F32)?, heads);
            let q = by_head(&q.narrow(0, row, 1)?, heads)?;
            parts.push(composite(&q, &part(&k)?, &part(&v)?, None)?.0);
            row += 1;
        }
    }
    Tensor::cat(&parts, 0)
}

/// Attention of each span's rows over all positions of its [`CrossKv`]: `q` and the answer are
/// `[rows, heads * head_dim]`, the spans' rows behind one another. With `record`, also the softmax weights of those
/// heads: one vector per span, `[record.len(), rows, positions]`; else the vectors are empty.
///
/// # Errors
/// Shapes do not fit, or a recorded head is not below `heads`.
pub fn cross(
    q: &Tensor,
    spans: &[(usize, &CrossKv)],
    heads: usize,
    record: Option<&[usize]>,
) -> Result<(Tensor, Vec<Vec<f32>>)> {
    let (mut parts, mut recorded) = (Vec::new(), Vec::with_capacity(spans.len()));
    let mut start = 0;
    for &(rows, kv) in spans {
        let (keys, values) = (kv.keys.to_dtype(DType::F32)?, kv.values.to_dtype(DType::F32)?);
        let mut weights: Vec<Vec<f32>> = vec![Vec::new(); record.map_or(0, <[usize]>::len)];
        for row in start..start + rows {
            let q = by_head(&q.narrow(0, row, 1)?, heads)?;
            let (mixed, found) = composite(&q, &keys, &values, record)?;
            parts.push(mixed);
            weights.iter_mut().zip(found).for_each(|(all, one)| all.extend(one));
        }
        recorded.push(weights.concat());
        start += rows;
    }
    Ok((Tensor::cat(&parts, 0)?, recorded))
}

/// `[rows, heads * head_dim]` to `[heads, rows, head_dim]`.
fn by_head(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    x.reshape((rows, heads, width / heads))?.transpose(0, 1)?.contiguous()
}

/// `[rows, kv_heads, head_dim]` to `[heads, rows, head_dim]`: neighbouring heads share keys and values.
fn repeat_heads(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, kv_heads, head_dim) = x.dims3()?;
    let shape = (kv_heads, heads / kv_heads, rows, head_dim);
    x.transpose(0, 1)?.unsqueeze(1)?.broadcast_as(shape)?.reshape((heads, rows, head_dim))
}

/// `q` `[heads, rows, head_dim]` over `k` and `v` `[heads, positions, head_dim]`: `[rows, heads * head_dim]`, and for
/// each recorded head the weights `[rows, positions]`.
fn composite(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    record: Option<&[usize]>,
) -> Result<(Tensor, Vec<Vec<f32>>)> {
    let (heads, rows, head_dim) = q.dims3()?;
    let scores = (q.matmul(&k.t()?)? * (1.0 / (head_dim as f64).sqrt()))?; // [heads, rows, positions]
    let weights = candle_nn::ops::softmax_last_dim(&scores)?;
    let found = record.unwrap_or_default().iter().map(|&head| weights.get(head)?.flatten_all()?.to_vec1());
    let found = found.collect::<Result<_>>()?;
    let mixed = weights.matmul(v)?.transpose(0, 1)?.reshape((rows, heads * head_dim))?;
    Ok((mixed, found))
}
