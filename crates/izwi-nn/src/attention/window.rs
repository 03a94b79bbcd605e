//! Causal sliding-window attention; a sequence keeps the keys and values of its window: constant memory.

use candle_core::{DType, Device, Result, Storage, Tensor, bail};

use crate::slices::cpu_slice;
use izwi_kernels::attention::{WindowRows, WindowShape, sliding_window_attention};

pub use izwi_metal::window::Window;

/// Keys and values of the last positions of one sequence in one layer.
#[derive(Debug, Clone)]
pub struct WindowKv {
    positions: usize, // seen so far
    slots: usize,
    width: usize,
    kept: Kept,
}

#[derive(Debug, Clone)]
enum Kept {
    /// Ring buffers `[slots, width]`: position `p` is in slot `p % slots`.
    Cpu { keys: Vec<f32>, values: Vec<f32> },
    /// The last positions in order, `[up to slots, width]`.
    Device { keys: Tensor, values: Tensor },
}

impl WindowKv {
    /// An empty state of `slots` positions, one less than the window.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn new(slots: usize, width: usize, device: &Device) -> Result<Self> {
        let kept = if device.is_cpu() {
            Kept::Cpu { keys: vec![0.0; slots * width], values: vec![0.0; slots * width] }
        } else {
            let none = Tensor::zeros((0, width), DType::F32, device)?;
            Kept::Device { keys: none.clone(), values: none }
        };
        Ok(Self { positions: 0, slots, width, kept })
    }

    /// Positions seen so far: the position of the next row.
    pub fn positions(&self) -> usize {
        self.positions
    }

    /// Bytes held once the window is full.
    pub fn bytes(&self) -> usize {
        2 * self.slots * self.width * size_of::<f32>()
    }

    /// Appends new positions; the last `slots` are kept.
    fn push(&mut self, new_keys: &Tensor, new_values: &Tensor) -> Result<()> {
        let rows = new_keys.dim(0)?;
        let start = self.positions;
        self.positions += rows;
        match &mut self.kept {
            Kept::Cpu { keys, values } => {
                let (slots, width) = (self.slots, self.width);
                for (kept, new) in [(keys, new_keys), (values, new_values)] {
                    let new = new.contiguous()?;
                    let (storage, layout) = new.storage_and_layout();
                    let Storage::Cpu(storage) = &*storage else { bail!("the keys are on another device") };
                    let new = cpu_slice(storage, layout)?.chunks_exact(width);
                    for (row, new) in new.enumerate().skip(rows.saturating_sub(slots)) {
                        kept[(start + row) % slots * width..][..width].copy_from_slice(new);
                    }
                }
            }
            Kept::Device { keys, values } => {
                for (kept, new) in [(keys, new_keys), (values, new_values)] {
                    let all = Tensor::cat(&[&*kept, new], 0)?;
                    let count = all.dim(0)?.min(self.slots);
                    *kept = all.narrow(0, all.dim(0)? - count, count)?.force_contiguous()?;
                }
            }
        }
        Ok(())
    }
}

/// Rows of several sequences, `rows[i]` new positions of the `i`-th: each attends to the window of its own
/// sequence, kept in its [`WindowKv`], which the new positions update. `q` and the result are
/// `[sum of rows, heads * head_dim]`, `k` and `v` `[sum of rows, kv_heads * head_dim]`, where consecutive heads share
/// keys and values; the scale `1 / sqrt(head_dim)` is applied inside.
///
/// # Errors
/// Shapes do not fit.
pub fn windowed(
    [q, k, v]: [&Tensor; 3],
    heads: usize,
    window: Window,
    rows: &[usize],
    states: &mut [&mut WindowKv],
) -> Result<Tensor> {
    let (total, width) = q.dims2()?;
    let kv_width = k.dim(1)?;
    let fits = |state: &&mut WindowKv| state.width == kv_width && state.slots + 1 == window.positions;
    if k.dims() != [total, kv_width] || v.dims() != k.dims() || rows.len() != states.len() {
        bail!("window attention: {:?} {:?} {:?}, {} sequences", q.dims(), k.dims(), v.dims(), states.len())
    }
    if rows.iter().sum::<usize>() != total || !states.iter().all(fits) {
        bail!("window attention: {total} rows of {width} do not fit {rows:?} or {window:?}")
    }
    let view = view(width, kv_width, heads, window)?;
    let (k, v) = (k.contiguous()?, v.contiguous()?);
    let y = if q.device().is_cpu() {
        let states: Vec<&WindowKv> = states.iter().map(|state| &**state).collect();
        on_cpu([q, &k, &v], view, rows, &states)?
    } else {
        let mut parts = Vec::with_capacity(rows.len());
        let mut start = 0;
        for (&rows, state) in rows.iter().zip(states.iter()) {
            let [q, k, v] = [q, &k, &v].map(|x| x.narrow(0, start, rows));
            parts.push(composite([&q?, &k?, &v?], view, state)?);
            start += rows;
        }
        Tensor::cat(&parts, 0)?
    };
    let mut start = 0;
    for (&rows, state) in rows.iter().zip(states) {
        state.push(&k.narrow(0, start, rows)?, &v.narrow(0, start, rows)?)?;
        start += rows;
    }
    Ok(y)
}

/// Causal attention of one sequence from its first position on, without a window: `q`, `k`, `v` and the answer are
/// `[rows, heads * head_dim]`.
///
/// # Errors
/// Shapes do not fit.
pub fn causal([q, k, v]: [&Tensor; 3], heads: usize) -> Result<Tensor> {
    let (rows, width) = q.dims2()?;
    if k.dims() != q.dims() || v.dims() != q.dims() {
        bail!("causal attention: {:?} {:?} {:?}, {heads} heads", q.dims(), k.dims(), v.dims())
    }
    let view = view(width, width, heads, Window::new(rows.max(1)))?;
    let none = WindowKv::new(0, width, q.device())?;
    if q.device().is_cpu() {
        on_cpu([q, k, v], view, &[rows], &[&none])
    } else {
        composite([q, k, v], view, &none)
    }
}

/// The view of rows of `width` of queries and `kv_width` of keys.
fn view(width: usize, kv_width: usize, heads: usize, window: Window) -> Result<WindowShape> {
    let head_dim = width.checked_div(heads).unwrap_or(0).max(1);
    let (kv_heads, Window { positions, step }) = (kv_width / head_dim, window);
    if heads * head_dim != width
        || kv_heads * head_dim != kv_width
        || kv_heads == 0
        || !heads.is_multiple_of(kv_heads)
    {
        bail!("window attention: {width} and {kv_width} channels are not {heads} heads of one width")
    }
    if step == 0 || positions < step {
        bail!("window attention: {window:?} is shorter than its step")
    }
    Ok(WindowShape { heads, kv_heads, window: positions, step })
}

fn on_cpu(qkv: [&Tensor; 3], view: WindowShape, rows: &[usize], states: &[&WindowKv]) -> Result<Tensor> {
    let width = qkv[1].dim(1)?;
    let y = crate::slices::with_slices(qkv, |[q, k, v]| {
        let mut start = 0;
        let mut stretches = Vec::with_capacity(rows.len());
        for (&rows, state) in rows.iter().zip(states) {
            let new = start * width..(start + rows) * width;
            let (ring_keys, ring_values) = match &state.kept {
                Kept::Cpu { keys, values } => (&keys[..], &values[..]),
                Kept::Device { .. } => bail!("window attention: the state is on another device"),
            };
            let (new_keys, new_values) = (&k[new.clone()], &v[new]);
            let start_position = state.positions;
            stretches.push(WindowRows {
                rows,
                start: start_position,
                ring_keys,
                ring_values,
                new_keys,
                new_values,
            });
            start += rows;
        }
        let mut y = vec![0f32; q.len()];
        sliding_window_attention(q, &stretches, view, &mut y);
        Ok(y)
    })??;
    Tensor::from_vec(y, qkv[0].dims(), qkv[0].device())
}

/// One sequence with candle's operations.
fn composite([q, k, v]: [&Tensor; 3], view: WindowShape, state: &WindowKv) -> Result<Tensor> {
    let (rows, q_width) = q.dims2()?;
    let (width, head_dim) = (k.dim(1)?, q_width / view.heads);
    let (old_keys, old_values) = match &state.kept {
        Kept::Device { keys, values } => (keys.clone(), values.clone()),
        Kept::Cpu { keys, values } => {
            let held = state.positions.min(state.slots);
            let order = (state.positions - held..state.positions).map(|p| p % state.slots);
            let order: Vec<usize> = order.collect();
            let rows = |kept: &[f32]| -> Vec<f32> {
                order.iter().flat_map(|&slot| kept[slot * width..][..width].to_vec()).collect()
            };
            let shape = (held, width);
            let tensor = |kept| Tensor::from_vec(rows(kept), shape, q.device());
            (tensor(keys)?, tensor(values)?)
        }
    };
    let by_head = |x: &Tensor| x.reshape((x.dim(0)?, (), head_dim))?.transpose(0, 1)?.contiguous();
    let repeated = |x: Tensor| {
        let (kv_heads, rows, head_dim) = x.dims3()?;
        let shape = (kv_heads, view.heads / kv_heads, rows, head_dim);
        x.unsqueeze(1)?.broadcast_as(shape)?.reshape((view.heads, rows, head_dim))
    };
    let joined = |old: &Tensor, new: &Tensor| {
        repeated(if old.dim(0)? == 0 { by_head(new)? } else { by_head(&Tensor::cat(&[old, new], 0)?)? })
    };
    let (keys, values) = (joined(&old_keys, k)?, joined(&old_values, v)?); // [heads, held + rows, head_dim]
    let held = keys.dim(1)? - rows;
    let first = state.positions - held;
    let hidden = |row: usize, key: usize| !view.of(state.positions + row).contains(&(first + key));
    let mask: Vec<f32> = (0..rows)
        .flat_map(|row| {
            (0..held + rows).map(move |key| if hidden(row, key) { f32::NEG_INFINITY } else { 0.0 })
        })
        .collect();
    let mask = Tensor::from_vec(mask, (1, rows, held + rows), q.device())?;
    let scale = 1.0 / (head_dim as f64).sqrt();
    let scores = (by_head(q)?.matmul(&keys.transpose(1, 2)?.contiguous()?)? * scale)?;
    let weights = candle_nn::ops::softmax_last_dim(&scores.broadcast_add(&mask)?)?;
    weights.matmul(&values)?.transpose(0, 1)?.reshape((rows, q_width))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn random(rows: usize, width: usize) -> Tensor {
        Tensor::randn(0f32, 1.0, (rows, width), &Device::Cpu).unwrap()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]

        #[test]
        fn chunks_equal_the_whole_to_the_bit(
            positions in 2usize..12,
            step in 1usize..3,
            kv_heads in 1usize..3,
            head_dim in prop::sample::select(vec![5usize, 16, 70]),
            cuts in prop::collection::vec(1usize..20, 1..6),
        ) {
            let (heads, total) = (2, cuts.iter().sum());
            let (width, window) = (kv_heads * head_dim, Window { positions, step });
            let q = random(total, heads * head_dim);
            let [k, v] = [0; 2].map(|_| random(total, width));
            let mut state = WindowKv::new(positions - 1, width, &Device::Cpu).unwrap();
            let mut whole_state = state.clone();
            let view = view(heads * head_dim, width, heads, window).unwrap();
            let whole = windowed([&q, &k, &v], heads, window, &[total], &mut [&mut whole_state]).unwrap();
            let whole = whole.to_vec2::<f32>().unwrap();
            let mut start = 0;
            for rows in cuts {
                let [q, k, v] = [&q, &k, &v].map(|x| x.narrow(0, start, rows).unwrap());
                let near = composite([&q, &k, &v], view, &state).unwrap();
                let mut other = state.clone();
                let states = &mut [&mut state, &mut other];
                let twice = [&q, &k, &v].map(|x| Tensor::cat(&[x, x], 0).unwrap());
                let [q, k, v] = &twice;
                let y = windowed([q, k, v], heads, window, &[rows, rows], states).unwrap();
                let off = (&y.narrow(0, 0, rows).unwrap() - near).unwrap().abs().unwrap();
                prop_assert!(off.max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
                let y = y.to_vec2::<f32>().unwrap();
                prop_assert_eq!(&y[..rows], &whole[start..start + rows]);
                prop_assert_eq!(&y[rows..], &whole[start..start + rows]);
                start += rows;
            }
            prop_assert_eq!(state.positions(), total);
        }
    }

    #[test]
    fn a_window_as_long_as_the_sequence_is_full_attention() {
        let [q, k, v] = [0; 3].map(|_| random(40, 24));
        let mut state = WindowKv::new(39, 24, &Device::Cpu).unwrap();
        let windowed = windowed([&q, &k, &v], 3, Window::new(40), &[40], &mut [&mut state]).unwrap();
        let causal = causal([&q, &k, &v], 3).unwrap();
        assert_eq!(causal.to_vec2::<f32>().unwrap(), windowed.to_vec2::<f32>().unwrap());
    }
    #[test]
    fn a_step_shares_its_first_position_and_bad_shapes_are_errors() {
        let view = WindowShape { heads: 1, kv_heads: 1, window: 6, step: 2 };
        assert_eq!([0, 1, 5, 6, 7, 8].map(|at| view.of(at)), [0..1, 0..2, 0..6, 2..7, 2..8, 4..9]);
        let plain = WindowShape { step: 1, ..view };
        assert_eq!([0, 5, 6].map(|at| plain.of(at)), [0..1, 0..6, 1..7]);
        let [q, k] = [random(4, 24), random(4, 16)];
        let mut state = WindowKv::new(5, 16, &Device::Cpu).unwrap();
        assert!(windowed([&q, &k, &k], 3, Window::new(6), &[4], &mut [&mut state]).is_err());
        let long = Window { positions: 6, step: 7 };
        assert!(windowed([&k, &k, &k], 2, long, &[4], &mut [&mut state]).is_err());
        assert!(windowed([&k, &k, &k], 2, Window::new(6), &[4], &mut [&mut state]).is_ok());
    }
}
