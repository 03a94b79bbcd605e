//! The physical KV pool: one pair of tensors per layer, `[num_blocks, block_size, kv_heads, head_dim]`.
//!
//! Block tables index it. It does not know which sequence owns a block: the block manager does.

use candle_core::{CpuStorage, DType, Device, InplaceOp2, Layout, Result, Tensor, bail};
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};
use izwi_metal::{OwnBuffers, TableSpan, metal_device};

/// Shape of one token's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers with attention.
    pub layers: usize,
    /// Key/value heads of a layer.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Element type.
    pub dtype: DType,
    /// Convolution state that each block keeps.
    pub conv_state: ConvStateLayout,
}

/// State of convolution layers: each block keeps one row per layer, the state after the block's last position, so that a
/// sequence that shares the block can continue from there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConvStateLayout {
    /// Convolution layers.
    pub layers: usize,
    /// Values of a row, f32.
    pub width: usize,
}

impl ConvStateLayout {
    /// All layers have attention.
    pub const NONE: Self = Self { layers: 0, width: 0 };
}

impl KvLayout {
    /// Bytes of one block of `block_size` tokens over all layers: keys, values and convolution state.
    pub fn block_bytes(&self, block_size: usize) -> usize {
        let ConvStateLayout { layers, width } = self.conv_state;
        2 * self.layers * block_size * self.kv_heads * self.head_dim * self.dtype.size_in_bytes()
            + layers * width * size_of::<f32>()
    }
}

/// One sequence's share of the rows of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagedSpan<'a> {
    /// Position of the first row.
    pub start: usize,
    /// Rows, at consecutive positions.
    pub num_tokens: usize,
    /// Blocks that hold the positions `0..start + num_tokens`, in order.
    pub block_table: &'a [u32],
}

impl<'a> PagedSpan<'a> {
    /// For kernels on Metal; `skip` as there.
    pub(crate) fn on_metal(self, skip: u32) -> TableSpan<'a> {
        TableSpan { start: self.start, count: self.num_tokens, block_table: self.block_table, skip }
    }
}

struct Layer {
    keys: Tensor,
    values: Tensor,
}

/// Keys and values of every running sequence.
pub struct KvPool {
    block_size: usize,
    num_blocks: usize,
    layers: Vec<Layer>,
    conv_states: Vec<Tensor>, // [num_blocks, width] each
    layout: Option<KvLayout>,
    scratch: Option<Box<Self>>,
    /// Dropped last, after the tensors over them.
    _buffers: OwnBuffers,
}

impl std::fmt::Debug for KvPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvPool")
            .field("block_size", &self.block_size)
            .field("layers", &self.layers.len())
            .finish()
    }
}

impl KvPool {
    /// Allocates the whole pool at once, on Metal without filling it; a model without KV (`layout` is `None`) gets an empty one.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(
        layout: Option<KvLayout>,
        num_blocks: usize,
        block_size: usize,
        device: &Device,
    ) -> Result<Self> {
        let (mut layers, mut conv_states) = (Vec::new(), Vec::new());
        let mut buffers = OwnBuffers::default();
        if let Some(layout) = layout {
            let shape = (num_blocks * block_size, layout.kv_heads, layout.head_dim);
            for _ in 0..layout.layers {
                let mut empty = || match metal_device(device) {
                    Some(device) => buffers.empty(device, shape, layout.dtype),
                    None => zeros(shape, layout.dtype, device),
                };
                layers.push(Layer { keys: empty()?, values: empty()? });
            }
            for _ in 0..layout.conv_state.layers {
                conv_states.push(Tensor::zeros((num_blocks, layout.conv_state.width), DType::F32, device)?);
            }
        }
        Ok(Self { block_size, num_blocks, layers, conv_states, layout, scratch: None, _buffers: buffers })
    }

    /// A pool for positions that only the caller's step reads, with at least so many blocks of at least so many positions. It
    /// is kept for the next call, and holds anything.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn scratch(
        &mut self,
        layout: KvLayout,
        blocks: usize,
        positions: usize,
        device: &Device,
    ) -> Result<&mut Self> {
        let fits =
            |kv: &Self| kv.layout == Some(layout) && kv.num_blocks >= blocks && kv.block_size >= positions;
        let kept = self.scratch.take().filter(|kv| fits(kv));
        let kept =
            kept.map_or_else(|| Self::new(Some(layout), blocks, positions, device).map(Box::new), Ok)?;
        Ok(self.scratch.insert(kept))
    }

    /// Rows of the flattened pool that hold positions `start..start + len` of a sequence.
    ///
    /// The table must cover `start + len` positions.
    pub fn slots(&self, block_table: &[u32], start: usize, len: usize) -> Vec<u32> {
        let size = self.block_size;
        (start..start + len).map(|at| block_table[at / size] * size as u32 + (at % size) as u32).collect()
    }

    /// Writes `keys` and `values` `[T, kv_heads, head_dim]` of one layer, of any device, into the given slots (`[T]`), in the
    /// pool's element type.
    ///
    /// # Errors
    /// Shapes do not fit the pool, or a slot lies outside it.
    pub fn write(&mut self, layer: usize, slots: &[u32], keys: &Tensor, values: &Tensor) -> Result<()> {
        let (pool_keys, pool_values) = self.layer(layer)?;
        for (pool, rows) in [(pool_keys, keys), (pool_values, values)] {
            if rows.dims()[1..] != pool.dims()[1..] || rows.dim(0)? != slots.len() {
                bail!("kv pool: {:?} do not fit {} slots of {:?}", rows.dims(), slots.len(), pool.dims())
            }
            set_rows(pool, &rows.to_dtype(pool.dtype())?.to_device(pool.device())?, slots)?;
        }
        Ok(())
    }

    /// Writes `rows` `[blocks, width]` as the state of convolution layer `layer` (counted among those alone) after the last
    /// positions of `blocks`.
    ///
    /// # Errors
    /// Shapes do not fit the pool, or a block lies outside it.
    pub fn write_conv_state(&mut self, layer: usize, blocks: &[u32], rows: &Tensor) -> Result<()> {
        let pool = self.conv_layer(layer)?;
        if rows.dims() != [blocks.len(), pool.dim(1)?] {
            bail!(
                "kv pool: state {:?} does not fit {} blocks of {:?}",
                rows.dims(),
                blocks.len(),
                pool.dims()
            )
        }
        set_rows(pool, rows, blocks)
    }

    /// The state of convolution layer `layer` after the last position of `block`: `[width]`.
    ///
    /// # Errors
    /// The block lies outside the pool.
    pub fn conv_state(&self, layer: usize, block: u32) -> Result<Tensor> {
        // A true copy: what candle calls one shares the pool's memory on Metal, and copies all of the pool on the CPU.
        self.conv_layer(layer)?.get(block as usize)?.force_contiguous()
    }

    pub(crate) fn conv_layer(&self, layer: usize) -> Result<&Tensor> {
        match self.conv_states.get(layer) {
            Some(rows) => Ok(rows),
            None => bail!("kv pool: convolution layer {layer} of {}", self.conv_states.len()),
        }
    }

    /// As [`Self::write`], for rows whose slots are on the pool's device: `slots` `[T, kv_heads, head_dim]` u32.
    pub(crate) fn write_indexed(
        &mut self,
        layer: usize,
        slots: &Tensor,
        keys: &Tensor,
        values: &Tensor,
    ) -> Result<()> {
        let (pool_keys, pool_values) = self.layer(layer)?;
        for (pool, rows) in [(pool_keys, keys), (pool_values, values)] {
            if rows.dims() != slots.dims() {
                bail!("kv pool: {:?} do not fit slots {:?}", rows.dims(), slots.dims())
            }
            pool.scatter_set(slots, &rows.to_dtype(pool.dtype())?.contiguous()?, 0)?;
        }
        Ok(())
    }

    /// Tokens of a block.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// Blocks of the pool.
    pub fn num_blocks(&self) -> usize {
        self.num_blocks
    }

    /// Keys and values of one layer, `[num_blocks * block_size, kv_heads, head_dim]` each.
    pub(crate) fn layer(&self, layer: usize) -> Result<(&Tensor, &Tensor)> {
        match self.layers.get(layer) {
            Some(layer) => Ok((&layer.keys, &layer.values)),
            None => bail!("kv pool: layer {layer} of {}", self.layers.len()),
        }
    }

    /// Keys and values of one layer at the given slots: two tensors `[T, kv_heads, head_dim]`.
    ///
    /// # Errors
    /// A slot lies outside the pool.
    pub fn gather(&self, layer: usize, slots: &[u32]) -> Result<(Tensor, Tensor)> {
        let layer = &self.layers[layer];
        let index = Tensor::new(slots, layer.keys.device())?;
        Ok((layer.keys.index_select(&index, 0)?, layer.values.index_select(&index, 0)?))
    }

    /// Copies whole blocks `(from, to)` in every layer, in order: copy-on-write.
    ///
    /// # Errors
    /// A block lies outside the pool.
    pub fn copy_blocks(&mut self, copies: &[(u32, u32)]) -> Result<()> {
        for &(from, to) in copies {
            let source = self.slots(&[from], 0, self.block_size);
            let target = self.slots(&[to], 0, self.block_size);
            for layer in 0..self.layers.len() {
                let (keys, values) = self.gather(layer, &source)?;
                self.write(layer, &target, &keys, &values)?;
            }
            for layer in 0..self.conv_states.len() {
                let row = self.conv_state(layer, from)?.unsqueeze(0)?;
                self.write_conv_state(layer, &[to], &row)?;
            }
        }
        Ok(())
    }

    /// The content of a block: keys and values of each layer, then the convolution states; [`KvLayout::block_bytes`] bytes.
    ///
    /// # Errors
    /// The block lies outside the pool, or the device failed.
    pub fn read_block(&self, block: u32) -> Result<Vec<u8>> {
        // Joined on the device, which is waited for once then.
        let mut bytes = Vec::new();
        let start = block as usize * self.block_size;
        let tensors = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        let rows = tensors.map(|tensor| tensor.narrow(0, start, self.block_size));
        let states = self.conv_states.iter().map(|tensor| tensor.narrow(0, block as usize, 1));
        for parts in [rows.collect::<Result<Vec<_>>>()?, states.collect::<Result<Vec<_>>>()?] {
            if !parts.is_empty() {
                Tensor::cat(&parts, 0)?.write_bytes(&mut bytes)?;
            }
        }
        Ok(bytes)
    }

    /// Writes what [`Self::read_block`] gave, block by block of `[(block, content)]`; each tensor is written once.
    ///
    /// # Errors
    /// A length differs, a block lies outside the pool, or the device failed.
    pub fn write_blocks(&mut self, blocks: &[(u32, &[u8])]) -> Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        let length = self.layout.map_or(0, |layout| layout.block_bytes(self.block_size));
        for (block, bytes) in blocks {
            if bytes.len() != length || *block as usize >= self.num_blocks {
                bail!("kv pool: {} bytes for block {block} of {} with {length}", bytes.len(), self.num_blocks)
            }
        }
        let ids: Vec<u32> = blocks.iter().map(|(block, _)| *block).collect();
        let slots = self.slots(&ids, 0, ids.len() * self.block_size);
        let keys_and_values = self.layers.iter().flat_map(|layer| [&layer.keys, &layer.values]);
        let tensors = keys_and_values.map(|tensor| (tensor, &slots, self.block_size));
        let tensors = tensors.chain(self.conv_states.iter().map(|tensor| (tensor, &ids, 1)));
        let mut start = 0;
        for (tensor, places, rows_of_block) in tensors {
            let row: usize = tensor.dims()[1..].iter().product();
            let end = start + rows_of_block * row * tensor.dtype().size_in_bytes();
            let rows: Vec<&[u8]> = blocks.iter().map(|(_, bytes)| &bytes[start..end]).collect();
            let shape: Vec<usize> = [&[places.len()], &tensor.dims()[1..]].concat();
            let rows = Tensor::from_raw_buffer(&rows.concat(), tensor.dtype(), &shape, tensor.device())?;
            set_rows(tensor, &rows, places)?;
            start = end;
        }
        Ok(())
    }
}

/// Zeros. On the CPU the system maps their pages at the first write, so that a pool costs only the part in use. (A vector
/// of 16-bit floats would be written once to become zero.)
fn zeros(shape: (usize, usize, usize), dtype: DType, device: &Device) -> Result<Tensor> {
    let zeros = || vec![0u16; shape.0 * shape.1 * shape.2];
    match (device.is_cpu(), dtype) {
        (true, DType::F16) => Tensor::from_vec(zeros().reinterpret_into::<f16>(), shape, device),
        (true, DType::BF16) => Tensor::from_vec(zeros().reinterpret_into::<bf16>(), shape, device),
        _ => Tensor::zeros(shape, dtype, device),
    }
}

/// Copies row `i` of `rows` to row `slots[i]` of `pool`, of the same type.
fn set_rows(pool: &Tensor, rows: &Tensor, slots: &[u32]) -> Result<()> {
    if slots.is_empty() {
        return Ok(());
    }
    let rows = rows.contiguous()?;
    if pool.device().is_cpu() {
        return pool.inplace_op2(&rows, &WriteRows { slots });
    }
    let mut shape = vec![1; rows.rank()];
    shape[0] = slots.len();
    let index = Tensor::new(slots, rows.device())?.reshape(shape)?;
    pool.scatter_set(&index.broadcast_as(rows.shape())?.contiguous()?, &rows, 0)
}

/// Copies row `i` of the source to row `slots[i]` of the pool.
struct WriteRows<'a> {
    slots: &'a [u32],
}

impl InplaceOp2 for WriteRows<'_> {
    fn name(&self) -> &'static str {
        "kv-write"
    }

    fn cpu_fwd(
        &self,
        pool: &mut CpuStorage,
        pool_layout: &Layout,
        rows: &CpuStorage,
        layout: &Layout,
    ) -> Result<()> {
        let width: usize = layout.dims()[1..].iter().product();
        let (Some((start, end)), Some((0, _))) =
            (layout.contiguous_offsets(), pool_layout.contiguous_offsets())
        else {
            bail!("kv-write: the tensor must be contiguous")
        };
        match (pool, rows) {
            (CpuStorage::F32(pool), CpuStorage::F32(rows)) => {
                write_rows(pool, &rows[start..end], width, self.slots)
            }
            (CpuStorage::F16(pool), CpuStorage::F16(rows)) => {
                write_rows(pool, &rows[start..end], width, self.slots)
            }
            (CpuStorage::BF16(pool), CpuStorage::BF16(rows)) => {
                write_rows(pool, &rows[start..end], width, self.slots)
            }
            _ => bail!("kv-write: the pool is f32, f16 or bf16"),
        }
    }
}

fn write_rows<T: Copy>(pool: &mut [T], rows: &[T], width: usize, slots: &[u32]) -> Result<()> {
    for (row, &slot) in rows.chunks_exact(width).zip(slots) {
        match pool.get_mut(slot as usize * width..(slot as usize + 1) * width) {
            Some(to) => to.copy_from_slice(row),
            None => bail!("kv-write: slot {slot} lies outside the pool"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: KvLayout = KvLayout {
        layers: 2,
        kv_heads: 2,
        head_dim: 3,
        dtype: DType::F32,
        conv_state: ConvStateLayout { layers: 2, width: 5 },
    };

    fn rows(from: f32, count: usize) -> Tensor {
        let values: Vec<f32> = (0..count * 6).map(|i| from + i as f32).collect();
        Tensor::from_vec(values, (count, 2, 3), &Device::Cpu).unwrap()
    }

    fn flat(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn positions_written_through_a_shuffled_table_read_back() {
        let mut pool = KvPool::new(Some(LAYOUT), 6, 4, &Device::Cpu).unwrap();
        let table = [5, 1, 3];
        let slots = pool.slots(&table, 2, 7);
        assert_eq!(slots, [22, 23, 4, 5, 6, 7, 12]);
        pool.write(1, &slots, &rows(100.0, 7), &rows(500.0, 7)).unwrap();
        let (keys, values) = pool.gather(1, &slots).unwrap();
        assert_eq!(flat(&keys), flat(&rows(100.0, 7)));
        assert_eq!(flat(&values), flat(&rows(500.0, 7)));
        let (untouched, _) = pool.gather(0, &slots).unwrap();
        assert!(flat(&untouched).iter().all(|&v| v == 0.0), "another layer is not written");
    }

    #[test]
    fn a_copied_block_is_independent_of_its_source() {
        let mut pool = KvPool::new(Some(LAYOUT), 4, 2, &Device::Cpu).unwrap();
        let (source, target) = (pool.slots(&[2], 0, 2), pool.slots(&[0], 0, 2));
        pool.write(0, &source, &rows(1.0, 2), &rows(2.0, 2)).unwrap();
        pool.copy_blocks(&[(2, 0)]).unwrap();
        pool.write(0, &source, &rows(9.0, 2), &rows(9.0, 2)).unwrap();
        let (keys, values) = pool.gather(0, &target).unwrap();
        assert_eq!(flat(&keys), flat(&rows(1.0, 2)));
        assert_eq!(flat(&values), flat(&rows(2.0, 2)));
    }

    #[test]
    fn a_block_is_the_same_after_it_was_bytes() {
        let device = crate::device::of_tests();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let layout = KvLayout { dtype, ..LAYOUT };
            let mut pool = KvPool::new(Some(layout), 4, 2, &device).unwrap();
            for (layer, block) in [(0, 2), (1, 2), (0, 3)] {
                let slots = pool.slots(&[block], 0, 2);
                let value = 10.0 * layer as f32 + block as f32;
                pool.write(layer, &slots, &rows(value, 2), &rows(-value, 2)).unwrap();
                let state = Tensor::full(value, (1, 5), &device).unwrap();
                pool.write_conv_state(layer, &[block], &state).unwrap();
            }
            let bytes = pool.read_block(2).unwrap();
            assert_eq!(bytes.len(), layout.block_bytes(2));
            assert_ne!(bytes, pool.read_block(3).unwrap());
            let other = pool.read_block(3).unwrap();
            pool.write_blocks(&[(1, &bytes), (0, &other)]).unwrap();
            assert_eq!([1, 0].map(|block| pool.read_block(block).unwrap()), [bytes.clone(), other]);
            let slots = pool.slots(&[1, 2], 0, 4);
            let (keys, _) = pool.gather(1, &slots).unwrap();
            let keys = flat(&keys.to_dtype(DType::F32).unwrap());
            assert_eq!(keys[..12], keys[12..]);
            assert!(keys[0] == 12.0 && pool.read_block(4).is_err());
            let refused =
                [(4, &bytes[..]), (0, &bytes[1..])].map(|block| pool.write_blocks(&[block]).is_err());
            assert_eq!(refused, [true, true]);
            pool.write_blocks(&[]).unwrap();
        }
    }

    #[test]
    fn a_model_without_kv_has_an_empty_pool() {
        let mut pool = KvPool::new(None, 1024, 16, &Device::Cpu).unwrap();
        pool.copy_blocks(&[(0, 1)]).unwrap();
    }

    #[test]
    fn a_conv_state_does_not_change_with_the_pool_it_was_read_from() {
        let device = crate::device::of_tests();
        let mut pool = KvPool::new(Some(LAYOUT), 4, 2, &device).unwrap();
        let row = |value: f32| Tensor::full(value, (1, 5), &device).unwrap();
        pool.write_conv_state(0, &[2], &row(1.0)).unwrap();
        let read = pool.conv_state(0, 2).unwrap();
        pool.write_conv_state(0, &[2], &row(2.0)).unwrap();
        assert_eq!(flat(&read), [1.0; 5]);
    }

    #[test]
    fn conv_state_is_copied_with_its_block_and_counted_in_its_bytes() {
        let mut pool = KvPool::new(Some(LAYOUT), 4, 2, &Device::Cpu).unwrap();
        let row = |value: f32| Tensor::full(value, (1, 5), &Device::Cpu).unwrap();
        pool.write_conv_state(1, &[3, 1], &Tensor::cat(&[row(7.0), row(8.0)], 0).unwrap()).unwrap();
        pool.copy_blocks(&[(3, 0)]).unwrap();
        pool.write_conv_state(1, &[3], &row(9.0)).unwrap();
        let kept = [0, 1, 2, 3].map(|block| flat(&pool.conv_state(1, block).unwrap())[4]);
        assert_eq!(kept, [7.0, 8.0, 0.0, 9.0]);
        assert_eq!(flat(&pool.conv_state(0, 3).unwrap()), [0.0; 5], "another layer is not written");
        assert!(
            pool.write_conv_state(2, &[0], &row(1.0)).is_err()
                && pool.write_conv_state(0, &[4], &row(1.0)).is_err()
        );
        assert!(pool.conv_state(0, 4).is_err() && pool.write_conv_state(0, &[0, 1], &row(1.0)).is_err());
        let plain = KvLayout { conv_state: ConvStateLayout::NONE, ..LAYOUT };
        assert_eq!(LAYOUT.block_bytes(2), plain.block_bytes(2) + 2 * 5 * 4);
    }
}
