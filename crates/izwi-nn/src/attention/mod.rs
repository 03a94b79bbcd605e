//! Attention of three kinds: bidirectional within packed sequences, causal over the paged pool, cross-attention to an
//! encoder's output.
//!
//! Rows are `[rows, heads * head_dim]` f32; the scale `1 / sqrt(head_dim)` is applied inside. On the CPU a row's result
//! is the same bits in any batch. Knows no projection and no model.

mod paged_rows;
pub mod relative;
pub mod window;

use candle_core::{DType, Result, Storage, Tensor, WithDType, bail};
use half::{bf16, f16};

use crate::kv_pool::KvPool;
use crate::slices::with_slices;
use izwi_kernels::Element;
use izwi_kernels::attention::{self as kernels, HeadKv, PagedCache, PagedQuery, Span as KernelSpan};
use izwi_metal::{HeadShape, Heads, MAX_HEAD_DIM, Pass, takes_window};

pub use self::paged_rows::PagedRows;
pub use crate::kv_pool::PagedSpan;

/// Keys and values of one layer over one sequence's encoder output.
#[derive(Debug, Clone)]
pub struct CrossKv {
    positions: usize,
    head_dim: usize,
    kept: Kept,
}

#[derive(Debug, Clone)]
enum Kept {
    F32(Vec<HeadKv<f32>>),
    F16(Vec<HeadKv<f16>>),
    /// Heads of keys, then heads of values: `[2 * heads, positions, head_dim]`.
    Device(Tensor),
}

impl CrossKv {
    /// From `keys` and `values` `[positions, heads * head_dim]`, kept at `dtype`: f32, or f16 for half the bytes to
    /// read at a relative error of 2⁻¹¹ per element. Sums are f32.
    ///
    /// # Errors
    /// Shapes do not fit, or `dtype` is neither.
    pub fn new(keys: &Tensor, values: &Tensor, heads: usize, dtype: DType) -> Result<Self> {
        let head_dim = head_dim(keys, heads)?;
        let positions = keys.dim(0)?;
        if keys.dims() != values.dims() || positions == 0 {
            bail!("cross attention: keys {:?}, values {:?}", keys.dims(), values.dims())
        }
        let kept = match (keys.device().is_cpu(), dtype) {
            (true, DType::F32) => Kept::F32(with_slices([keys, values], |[keys, values]| {
                kernels::pack_heads(keys, values, heads, head_dim, &[positions]).pop().unwrap_or_default()
            })?),
            (true, DType::F16) => Kept::F16(with_slices([keys, values], |[keys, values]| {
                kernels::pack_heads(keys, values, heads, head_dim, &[positions]).pop().unwrap_or_default()
            })?),
            (false, DType::F32 | DType::F16) if keys.device().is_metal() => {
                let (keys, values) = (contiguous_rows(keys)?, contiguous_rows(values)?);
                let shape = HeadShape { heads, head_dim };
                Kept::Device(Pass::of(&keys)?.pack_window([&keys, &values], shape, dtype)?)
            }
            (false, DType::F32 | DType::F16) => {
                let both = [by_head(keys, heads)?, by_head(values, heads)?];
                Kept::Device(Tensor::cat(&both, 0)?.to_dtype(dtype)?)
            }
            _ => bail!("cross attention: keys and values are kept at f32 or f16, not {dtype:?}"),
        };
        Ok(Self { positions, head_dim, kept })
    }

    /// Heads of keys, then heads of values, `[2 * heads, positions, head_dim]`, where they are on a device.
    pub(crate) fn window(&self) -> Option<&Tensor> {
        match &self.kept {
            Kept::Device(window) => Some(window),
            _ => None,
        }
    }

    /// Positions of the encoder output.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.kept {
            Kept::F32(heads) => heads.iter().map(HeadKv::bytes).sum(),
            Kept::F16(heads) => heads.iter().map(HeadKv::bytes).sum(),
            Kept::Device(both) => both.elem_count() * both.dtype().size_in_bytes(),
        }
    }
}

/// Bidirectional attention within each of the packed sequences of `spans` rows: `q`, `k`, `v` and the result are
/// `[rows, heads * head_dim]`, where `rows` is the sum of `spans`.
///
/// # Errors
/// Shapes do not fit.
pub fn bidirectional(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, spans: &[usize]) -> Result<Tensor> {
    let head_dim = head_dim(q, heads)?;
    if q.dims() != k.dims() || q.dims() != v.dims() || spans.iter().sum::<usize>() != q.dim(0)? {
        bail!("attention: {:?} {:?} {:?} do not fit {spans:?}", q.dims(), k.dims(), v.dims())
    }
    if q.device().is_metal() && head_dim <= MAX_HEAD_DIM {
        let (q, k, v) = (contiguous_rows(q)?, contiguous_rows(k)?, contiguous_rows(v)?);
        return Pass::of(&q)?.encoder_attention([&q, &k, &v], HeadShape { heads, head_dim }, spans);
    }
    if !q.device().is_cpu() {
        return bidirectional_composite(q, k, v, heads, spans);
    }
    let y = with_slices([q, k, v], |[q, k, v]| {
        let packed = kernels::pack_heads::<f32>(k, v, heads, head_dim, spans);
        let spans = spans.iter().zip(&packed).filter(|&(&rows, _)| rows > 0);
        let spans: Vec<_> = spans.map(|(&rows, heads)| KernelSpan { rows, heads }).collect();
        let mut y = vec![0f32; q.len()];
        kernels::attention(q, &spans, head_dim, &[], &mut y, &mut []);
        y
    })?;
    Tensor::from_vec(y, q.dims(), q.device())
}

fn bidirectional_composite(
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    heads: usize,
    spans: &[usize],
) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(spans.len());
    let mut start = 0;
    for &rows in spans {
        let part = |x: &Tensor| by_head(&x.narrow(0, start, rows)?, heads);
        parts.push(composite(&part(q)?, &part(k)?, &part(v)?, None)?.0);
        start += rows;
    }
    Tensor::cat(&parts, 0)
}

/// Causal attention of each row over the positions `0..=own` of its sequence, read through the block table: `q` and the
/// result are `[rows, heads * head_dim]`. The pool's `kv_heads` divide `heads`; keys and values of the rows are already in
/// the pool.
///
/// # Errors
/// Shapes do not fit.
pub fn paged(pool: &KvPool, layer: usize, q: &Tensor, rows: &PagedRows<'_>, heads: usize) -> Result<Tensor> {
    let head_dim = head_dim(q, heads)?;
    let (keys, values) = pool.layer(layer)?;
    let (_, kv_heads, kv_dim) = keys.dims3()?;
    if head_dim != kv_dim || !heads.is_multiple_of(kv_heads) || rows.count() != q.dim(0)? {
        bail!("paged attention: {:?}, {heads} heads, do not fit {:?} or the rows", q.dims(), keys.dims())
    }
    if !q.device().is_cpu() {
        return rows.composite(pool, layer, q, heads);
    }
    let rows: Vec<_> = rows
        .spans()
        .iter()
        .flat_map(|span| {
            let own = span.start..span.start + span.num_tokens;
            own.map(|own| PagedQuery { positions: own + 1, table: span.block_table })
        })
        .collect();
    let shape = (pool.block_size(), heads, kv_heads, head_dim);
    let y = with_slices([q], |[q]| match keys.dtype() {
        DType::F16 => paged_rows::<f16>(q, &rows, (keys, values), shape),
        DType::BF16 => paged_rows::<bf16>(q, &rows, (keys, values), shape),
        _ => paged_rows::<f32>(q, &rows, (keys, values), shape),
    })??;
    Tensor::from_vec(y, q.dims(), q.device())
}

/// Queries, keys and values of rows.
#[derive(Debug, Clone, Copy)]
pub struct Qkv<'a> {
    /// `[rows, heads * head_dim]` each, the keys and values with their own number of heads.
    pub parts: [&'a Tensor; 3],
    /// Side by side, if they were computed so on Metal.
    pub joint: Option<&'a Tensor>,
}

/// Writes the keys and values of the rows into a layer of the pool, and attends as [`paged`].
///
/// # Errors
/// Shapes do not fit.
pub fn write_and_attend(
    pool: &mut KvPool,
    layer: usize,
    qkv: Qkv<'_>,
    rows: &PagedRows<'_>,
    heads: usize,
) -> Result<Tensor> {
    let (_, kv_heads, head_dim) = pool.layer(layer)?.0.dims3()?;
    if let (Some(joint), Some(table)) = (qkv.joint, rows.table()) {
        let heads = Heads { heads, kv_heads, head_dim, norms: None, rotates: false };
        return Pass::of(joint)?.attend(joint, pool.layer(layer)?, table, heads);
    }
    let [q, k, v] = qkv.parts;
    let by_head = |x: &Tensor| x.reshape((rows.count(), kv_heads, head_dim));
    rows.write(pool, layer, &by_head(k)?, &by_head(v)?)?;
    paged(pool, layer, q, rows, heads)
}

/// The CPU kernel over a pool of one type; `shape` is block size, heads, key/value heads and head width.
fn paged_rows<W: Element + WithDType>(
    q: &[f32],
    rows: &[PagedQuery<'_>],
    (keys, values): (&Tensor, &Tensor),
    shape: (usize, usize, usize, usize),
) -> Result<Vec<f32>> {
    let ((keys, _), (values, _)) = (keys.storage_and_layout(), values.storage_and_layout());
    let (Storage::Cpu(keys), Storage::Cpu(values)) = (&*keys, &*values) else {
        bail!("paged attention: the pool is not on the CPU")
    };
    let (block_size, heads, kv_heads, head_dim) = shape;
    let (keys, values) = (keys.as_slice::<W>()?, values.as_slice::<W>()?);
    let cache = PagedCache { keys, values, block_size, heads, kv_heads, head_dim };
    let mut y = vec![0f32; q.len()];
    kernels::paged_attention(q, rows, &cache, &mut y);
    Ok(y)
}

/// Attention of each span's rows over all positions of its [`CrossKv`]: `q` and the result are
/// `[rows, heads * head_dim]`, span after span. With `record`, also the softmax weights of those
/// heads: one vector per span, `[record.len(), rows, positions]`; else the vectors are empty.
///
/// # Errors
/// Shapes do not fit, the spans are kept in different types, or the recorded heads are not distinct and below `heads`.
pub fn cross(
    q: &Tensor,
    spans: &[(usize, &CrossKv)],
    heads: usize,
    record: Option<&[usize]>,
) -> Result<(Tensor, Vec<Vec<f32>>)> {
    let head_dim = head_dim(q, heads)?;
    let record = record.unwrap_or_default();
    let rows: usize = spans.iter().map(|(rows, _)| rows).sum();
    let repeated = |(index, head): (usize, &usize)| *head >= heads || record[..index].contains(head);
    if rows != q.dim(0)? || record.iter().enumerate().any(repeated) {
        bail!(
            "cross attention: {:?} with {heads} heads do not fit {rows} rows, recorded {record:?}",
            q.dims()
        )
    }
    if spans.iter().any(|(_, kv)| kv.head_dim != head_dim) {
        bail!("cross attention: the encoder output has other heads than {heads} of {head_dim}")
    }
    let mut weights: Vec<_> =
        spans.iter().map(|(rows, kv)| vec![0f32; record.len() * rows * kv.positions]).collect();
    let y = match spans.first().map(|(_, kv)| &kv.kept) {
        None => return Ok((q.clone(), weights)),
        Some(Kept::Device(_)) => return cross_on_device(q, spans, heads, record),
        Some(Kept::F32(_)) => cross_rows(q, spans, record, &mut weights, |kept| match kept {
            Kept::F32(heads) => Some(heads),
            _ => None,
        })?,
        Some(Kept::F16(_)) => cross_rows(q, spans, record, &mut weights, |kept| match kept {
            Kept::F16(heads) => Some(heads),
            _ => None,
        })?,
    };
    Ok((Tensor::from_vec(y, q.dims(), q.device())?, weights))
}

/// The CPU kernel over spans of one type.
fn cross_rows<W: Element>(
    q: &Tensor,
    spans: &[(usize, &CrossKv)],
    record: &[usize],
    weights: &mut [Vec<f32>],
    kept: impl Fn(&Kept) -> Option<&Vec<HeadKv<W>>>,
) -> Result<Vec<f32>> {
    let mut parts = Vec::with_capacity(spans.len());
    let width = q.dim(1)?;
    for &(rows, kv) in spans {
        match kept(&kv.kept) {
            Some(heads) if heads.len() * kv.head_dim == width => parts.push(KernelSpan { rows, heads }),
            _ => bail!("cross attention: spans of different types or widths"),
        }
    }
    let head_dim = spans.first().map_or(0, |(_, kv)| kv.head_dim);
    with_slices([q], |[q]| {
        let mut y = vec![0f32; q.len()];
        kernels::attention(q, &parts, head_dim, record, &mut y, weights);
        y
    })
}

fn cross_on_device(
    q: &Tensor,
    spans: &[(usize, &CrossKv)],
    heads: usize,
    record: &[usize],
) -> Result<(Tensor, Vec<Vec<f32>>)> {
    if let Some((y, recorded)) = cross_on_metal(q, spans, heads, record)? {
        let sizes: Vec<usize> = spans.iter().map(|(rows, kv)| record.len() * rows * kv.positions).collect();
        return Ok((y, split_weights(recorded.as_ref(), &sizes)?));
    }
    cross_composite(q, spans, heads, record)
}

/// The kernel; `None` where it does not take the heads.
fn cross_on_metal(
    q: &Tensor,
    spans: &[(usize, &CrossKv)],
    heads: usize,
    record: &[usize],
) -> Result<Option<(Tensor, Option<Tensor>)>> {
    let shape = HeadShape { heads, head_dim: head_dim(q, heads)? };
    let windows = spans.iter().map(|&(rows, kv)| Some((rows, kv.window()?))).collect::<Option<Vec<_>>>();
    let fits = q.device().is_metal() && spans.iter().all(|(_, kv)| takes_window(kv.positions, shape));
    match windows {
        Some(windows) if fits => {
            let q = q.contiguous()?;
            Pass::of(&q)?.cross_attention(&q, &windows, shape, record).map(Some)
        }
        _ => Ok(None),
    }
}

/// Recorded weights of one span after another.
pub(crate) fn split_weights(recorded: Option<&Tensor>, sizes: &[usize]) -> Result<Vec<Vec<f32>>> {
    let all = recorded.map_or(Ok(Vec::new()), Tensor::to_vec1::<f32>)?;
    let mut rest = &all[..];
    let parts = sizes.iter().map(|&size| match rest.split_at_checked(size) {
        Some((part, behind)) => {
            rest = behind;
            Ok(part.to_vec())
        }
        None => bail!("cross attention: {size} recorded weights are missing"),
    });
    parts.collect()
}

fn cross_composite(
    q: &Tensor,
    spans: &[(usize, &CrossKv)],
    heads: usize,
    record: &[usize],
) -> Result<(Tensor, Vec<Vec<f32>>)> {
    let (mut parts, mut recorded) = (Vec::new(), Vec::with_capacity(spans.len()));
    let mut start = 0;
    for &(rows, kv) in spans {
        let Kept::Device(both) = &kv.kept else { bail!("cross attention: spans on different devices") };
        let both = both.to_dtype(DType::F32)?;
        let q = by_head(&q.narrow(0, start, rows)?, heads)?;
        let (keys, values) = (both.narrow(0, 0, heads)?, both.narrow(0, heads, heads)?);
        let (mixed, weights) = composite(&q, &keys, &values, Some(record))?;
        parts.push(mixed);
        recorded.push(weights.concat());
        start += rows;
    }
    Ok((Tensor::cat(&parts, 0)?, recorded))
}

/// `x` `[rows, width]` with contiguous rows, which need not follow each other.
fn contiguous_rows(x: &Tensor) -> Result<Tensor> {
    if x.stride().last() == Some(&1) { Ok(x.clone()) } else { x.contiguous() }
}

/// Width of a head of `x` `[rows, heads * head_dim]`.
fn head_dim(x: &Tensor, heads: usize) -> Result<usize> {
    let (_, width) = x.dims2()?;
    if heads == 0 || width == 0 || width % heads != 0 {
        bail!("attention: a width of {width} is not {heads} heads")
    }
    Ok(width / heads)
}

/// `[rows, heads * head_dim]` to `[heads, rows, head_dim]`.
fn by_head(x: &Tensor, heads: usize) -> Result<Tensor> {
    let (rows, width) = x.dims2()?;
    x.reshape((rows, heads, width / heads))?.transpose(0, 1)?.contiguous()
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

#[cfg(test)]
mod tests {
    use candle_core::Device;
    use proptest::prelude::*;

    use super::*;
    use crate::kv_pool::{ConvStateLayout, KvLayout};

    fn random(rows: usize, width: usize) -> Tensor {
        Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap()
    }

    fn worst(a: &Tensor, b: &Tensor) -> f32 {
        (a - b).unwrap().abs().unwrap().max_all().unwrap().to_scalar().unwrap()
    }

    fn rows(x: &Tensor) -> Vec<Vec<f32>> {
        x.to_vec2().unwrap()
    }

    /// One position after another, over a gathered history with repeated heads.
    fn row_by_row(pool: &KvPool, q: &Tensor, span: PagedSpan<'_>, heads: usize) -> Tensor {
        let slots = pool.slots(span.block_table, 0, span.start + span.num_tokens);
        let (k, v) = pool.gather(1, &slots).unwrap();
        let repeated = |x: &Tensor, positions: usize| {
            let x = x.narrow(0, 0, positions).unwrap().to_dtype(DType::F32).unwrap().transpose(0, 1).unwrap();
            let (kv_heads, rows, head_dim) = x.dims3().unwrap();
            let shape = (kv_heads, heads / kv_heads, rows, head_dim);
            x.unsqueeze(1).unwrap().broadcast_as(shape).unwrap().reshape((heads, rows, head_dim)).unwrap()
        };
        let parts = (0..span.num_tokens).map(|row| {
            let q = by_head(&q.narrow(0, row, 1).unwrap(), heads).unwrap();
            let (k, v) = (repeated(&k, span.start + row + 1), repeated(&v, span.start + row + 1));
            composite(&q, &k, &v, None).unwrap().0
        });
        Tensor::cat(&parts.collect::<Vec<_>>(), 0).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn bidirectional_equals_the_composite_and_each_sequence_alone(
            heads in 1usize..4,
            head_dim in prop::sample::select(vec![3usize, 16, 40, 64, 80, 130]),
            spans in prop::collection::vec(1usize..150, 1..4),
        ) {
            let total = spans.iter().sum();
            let (q, k, v) =
                (random(total, heads * head_dim), random(total, heads * head_dim), random(total, heads * head_dim));
            let y = bidirectional(&q, &k, &v, heads, &spans).unwrap();
            let reference = bidirectional_composite(&q, &k, &v, heads, &spans).unwrap();
            prop_assert!(worst(&y, &reference) < 5e-6);
            let mut start = 0;
            for &len in &spans {
                let part = |x: &Tensor| x.narrow(0, start, len).unwrap();
                let alone = bidirectional(&part(&q), &part(&k), &part(&v), heads, &[len]).unwrap();
                prop_assert_eq!(rows(&alone), rows(&part(&y)));
                start += len;
            }
        }

        #[test]
        fn paged_equals_the_gathered_composite_and_any_chunking(
            kv_heads in 1usize..3,
            group in 1usize..8,
            head_dim in prop::sample::select(vec![3usize, 16, 40, 64, 80, 128]),
            block_size in prop::sample::select(vec![1usize, 4, 16]),
            total in 2usize..90,
            cut in 1usize..1000,
            dtype in prop::sample::select(vec![DType::F32, DType::F16, DType::BF16]),
            table in Just((0u32..100).collect::<Vec<_>>()).prop_shuffle(),
        ) {
            let layout = KvLayout { layers: 2, kv_heads, head_dim, dtype, conv_state: ConvStateLayout::NONE };
            let mut pool = KvPool::new(Some(layout), 100, block_size, &Device::Cpu).unwrap();
            let kv = || random(total, kv_heads * head_dim).reshape((total, kv_heads, head_dim)).unwrap();
            pool.write(1, &pool.slots(&table, 0, total), &kv(), &kv()).unwrap();
            let heads = kv_heads * group;
            let q = random(total, heads * head_dim);
            let span = |start, num_tokens| PagedSpan { start, num_tokens, block_table: &table };
            let attend = |q: &Tensor, spans: &[PagedSpan<'_>]| {
                let rows = PagedRows::new(&pool, spans).unwrap();
                let y = paged(&pool, 1, q, &rows, heads).unwrap();
                assert!(worst(&y, &rows.composite(&pool, 1, q, heads).unwrap()) < 5e-6);
                y
            };
            let whole = attend(&q, &[span(0, total)]);
            prop_assert!(worst(&whole, &row_by_row(&pool, &q, span(0, total), heads)) < 5e-6);
            let cut = 1 + cut % (total - 1);
            let first = attend(&q.narrow(0, 0, cut).unwrap(), &[span(0, cut)]);
            prop_assert_eq!(rows(&first), rows(&whole)[..cut].to_vec());
            // The rest and then one row again, in one batch.
            let last = q.narrow(0, total - 1, 1).unwrap();
            let rest = Tensor::cat(&[&q.narrow(0, cut, total - cut).unwrap(), &last], 0).unwrap();
            let spans = [span(cut, total - cut), span(total - 1, 1)];
            let second = rows(&attend(&rest, &spans));
            prop_assert_eq!(&second[..total - cut], &rows(&whole)[cut..]);
            prop_assert_eq!(&second[total - cut], &rows(&whole)[total - 1]);
            // Three sequences of one row each, of different lengths.
            let spans = [span(total - 1, 1), span(0, 1), span(cut, 1)];
            let pick = Tensor::new(&[total as u32 - 1, 0, cut as u32], &Device::Cpu).unwrap();
            let third = rows(&attend(&q.index_select(&pick, 0).unwrap(), &spans));
            prop_assert_eq!(third, [total - 1, 0, cut].map(|row| rows(&whole)[row].clone()));
        }

        #[test]
        fn cross_equals_the_composite_with_its_weights_and_each_row_alone(
            heads in 1usize..4,
            head_dim in prop::sample::select(vec![3usize, 16, 64, 80]),
            spans in prop::collection::vec((1usize..30, 1usize..200), 1..4),
            half in any::<bool>(),
        ) {
            let width = heads * head_dim;
            let dtype = if half { DType::F16 } else { DType::F32 };
            let cast = |x: Tensor| x.to_dtype(dtype).unwrap().to_dtype(DType::F32).unwrap();
            let kv: Vec<_> = spans.iter().map(|&(_, len)| (cast(random(len, width)), cast(random(len, width)))).collect();
            let kept: Vec<_> = kv.iter().map(|(k, v)| CrossKv::new(k, v, heads, dtype).unwrap()).collect();
            let parts: Vec<_> = spans.iter().zip(&kept).map(|(&(rows, _), kv)| (rows, kv)).collect();
            let q = random(spans.iter().map(|(rows, _)| rows).sum(), width);
            let record = [heads - 1, 0];
            let record = &record[..heads.min(2)];
            let (y, weights) = cross(&q, &parts, heads, Some(record)).unwrap();
            let mut start = 0;
            for (index, &(len, kept)) in parts.iter().enumerate() {
                let (k, v) = &kv[index];
                let part = q.narrow(0, start, len).unwrap();
                let by = |x: &Tensor| by_head(x, heads).unwrap();
                let (mixed, reference) = composite(&by(&part), &by(k), &by(v), Some(record)).unwrap();
                prop_assert!(worst(&mixed, &y.narrow(0, start, len).unwrap()) < 5e-6);
                let off = weights[index].iter().zip(reference.concat()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                prop_assert!(weights[index].len() == record.len() * len * kept.positions() && off < 1e-6);
                let last = q.narrow(0, start + len - 1, 1).unwrap();
                let (alone, none) = cross(&last, &[(1, kept)], heads, None).unwrap();
                prop_assert_eq!(&rows(&alone)[0], &rows(&y)[start + len - 1]);
                prop_assert!(none[0].is_empty());
                start += len;
            }
        }
    }

    #[test]
    fn bad_shapes_are_errors() {
        let q = random(4, 6);
        assert!(bidirectional(&q, &q, &q, 4, &[4]).is_err());
        assert!(bidirectional(&q, &q, &q, 2, &[3]).is_err());
        let layout = KvLayout {
            layers: 1,
            kv_heads: 2,
            head_dim: 3,
            dtype: DType::F32,
            conv_state: ConvStateLayout::NONE,
        };
        let pool = KvPool::new(Some(layout), 2, 2, &Device::Cpu).unwrap();
        for table in [&[0u32][..], &[0, 2]] {
            let spans = [PagedSpan { start: 0, num_tokens: 4, block_table: table }];
            assert!(PagedRows::new(&pool, &spans).is_err());
            let spans = [PagedSpan { start: 0, num_tokens: 2, block_table: table }];
            let rows = PagedRows::new(&pool, &spans).unwrap();
            assert!(paged(&pool, 0, &q, &rows, 2).is_err());
            let two = q.narrow(0, 0, 2).unwrap();
            assert!(paged(&pool, 0, &two, &rows, 3).is_err() && paged(&pool, 0, &two, &rows, 2).is_ok());
        }
        let kept = CrossKv::new(&q, &q, 2, DType::F16).unwrap();
        assert!(cross(&q, &[(3, &kept)], 2, None).is_err());
        assert!(cross(&q, &[(4, &kept)], 2, Some(&[2])).is_err());
        assert!(cross(&q, &[(4, &kept)], 2, Some(&[1, 1])).is_err());
        assert!(CrossKv::new(&q, &q, 2, DType::BF16).is_err());
    }
}
