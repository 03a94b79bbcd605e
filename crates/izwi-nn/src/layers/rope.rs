//! Rotary position embedding in the half-split layout: element `i` of a head is rotated with element `i + head_dim / 2`.

use std::sync::{Arc, OnceLock};

use candle_core::{Device, Result, Tensor, bail};
use candle_nn::rotary_emb::rope_thd;

use crate::layers::RmsNorm;
use crate::slices::with_rows;
use izwi_kernels::elementwise::{self, apply_rope};

/// Positions per page of cosines and sines.
const PAGE: usize = 64;
/// Pages cached; later positions are computed on each call.
const PAGES: usize = 512;

/// The positions of a step's rows, with what candle's operations need of them on a device, uploaded once.
#[derive(Debug, Clone)]
pub struct RopeRows {
    positions: Vec<u32>,
    /// Cosines and sines, `[2, rows, head_dim / 2]`. Computed on the CPU: shaders round the sines of large angles.
    turns: Option<Tensor>,
}

impl RopeRows {
    /// Cosines and sines, `[2, rows, head_dim / 2]`, off the CPU.
    pub(crate) fn turns(&self) -> Option<&Tensor> {
        self.turns.as_ref()
    }
}

/// Rotation of heads by their positions. <https://arxiv.org/abs/2104.09864>.
///
/// Cosines and sines are computed once per position and cached; a clone shares them. A row's result is the same bits in
/// any batch.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f32>,              // [head_dim / 2]
    pages: Arc<[OnceLock<Box<[f32]>>]>, // of [64, head_dim]: see `cos_sin`
}

impl Rope {
    /// For heads of `head_dim` (even), with wavelengths from 2π to 2π `theta`.
    pub fn new(head_dim: usize, theta: f64) -> Self {
        // In f32 like the reference: angles of far positions depend on the rounding.
        let frequency = |i: usize| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32);
        Self {
            frequencies: (0..head_dim / 2).map(frequency).collect(),
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Rows at `positions` for the layers of a step on `device`.
    ///
    /// # Errors
    /// The device is out of memory.
    pub fn rows(&self, positions: Vec<u32>, device: &Device) -> Result<RopeRows> {
        let turns = if device.is_cpu() || positions.is_empty() {
            None
        } else {
            Some(self.turns(&positions, device)?)
        };
        Ok(RopeRows { positions, turns })
    }

    fn turns(&self, positions: &[u32], device: &Device) -> Result<Tensor> {
        let half = self.frequencies.len();
        let all: Vec<_> = positions.iter().map(|&at| self.cos_sin(at)).collect();
        let part = |part: usize| all.iter().flat_map(move |turn| turn[part * half..][..half].to_vec());
        let turns: Vec<f32> = part(0).chain(part(1)).collect();
        Tensor::from_vec(turns, (2, positions.len(), half), device)
    }

    /// Rotates every head of `x` `[rows, heads * head_dim]` by its row's position.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, rows: &RopeRows) -> Result<Tensor> {
        self.check(x, &rows.positions)?;
        match &rows.turns {
            Some(turns) => self.composite(x, turns),
            None => self.on_cpu(x, &rows.positions, None),
        }
    }

    /// Normalises every head of `x` `[rows, heads * head_dim]`, then rotates it by its row's position.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_normed(&self, x: &Tensor, rows: &RopeRows, norm: &RmsNorm) -> Result<Tensor> {
        self.check(x, &rows.positions)?;
        if norm.width() != 2 * self.frequencies.len() {
            bail!("rope: a norm of {} for heads of {}", norm.width(), 2 * self.frequencies.len())
        }
        match &rows.turns {
            Some(turns) => self.composite(&norm.forward(x)?, turns),
            None => norm.with(|norm| self.on_cpu(x, &rows.positions, Some(norm))),
        }
    }

    fn check(&self, x: &Tensor, positions: &[u32]) -> Result<()> {
        let (rows, width) = x.dims2()?;
        let half = self.frequencies.len();
        if rows != positions.len() || half == 0 || !width.is_multiple_of(2 * half) {
            bail!("rope: {:?} for {} positions and heads of {}", x.dims(), positions.len(), 2 * half)
        }
        Ok(())
    }

    fn on_cpu(
        &self,
        x: &Tensor,
        positions: &[u32],
        norm: Option<elementwise::RmsNorm<'_>>,
    ) -> Result<Tensor> {
        let head = 2 * self.frequencies.len();
        let far = PAGE * PAGES;
        let far: Vec<_> =
            positions.iter().filter(|&&at| at as usize >= far).map(|&at| self.cos_sin(at)).collect();
        let mut far = far.iter();
        let turns = positions.iter().map(|&position| {
            let (page, at) = (position as usize / PAGE, position as usize % PAGE);
            match self.pages.get(page) {
                Some(kept) => &kept.get_or_init(|| self.page(page))[at * head..][..head],
                None => far.next().map_or(&[][..], |turn| turn),
            }
        });
        let turns: Vec<&[f32]> = turns.collect();
        let mut y = vec![0f32; x.elem_count()];
        with_rows(x, |rows| apply_rope(rows, x.dims()[1], &turns, norm, &mut y))?;
        Tensor::from_vec(y, x.dims(), x.device())
    }

    fn page(&self, page: usize) -> Box<[f32]> {
        (page * PAGE..(page + 1) * PAGE).flat_map(|position| self.cos_sin(position as u32)).collect()
    }

    /// Cosines, then sines of a position's angles: `[head_dim]`.
    pub(crate) fn cos_sin(&self, position: u32) -> Vec<f32> {
        let angles = || self.frequencies.iter().map(|frequency| position as f32 * frequency);
        angles().map(f32::cos).chain(angles().map(f32::sin)).collect()
    }

    /// With `turns` as of [`RopeRows`].
    fn composite(&self, x: &Tensor, turns: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let head = 2 * self.frequencies.len();
        let heads = x.contiguous()?.reshape((1, rows, width / head, head))?;
        rope_thd(&heads, &turns.get(0)?, &turns.get(1)?)?.reshape((rows, width))
    }
}

/// Reorders a projection `[heads * head_dim, inputs]` or a norm's weight `[heads * head_dim]` from the interleaved layout,
/// which rotates elements `2i` and `2i + 1`, to the half-split layout of [`Rope`]: the even elements of each head, then the
/// odd ones. Products of queries and keys do not change.
///
/// # Errors
/// Shapes do not fit.
pub fn half_split_of_interleaved(weight: &Tensor, head_dim: usize) -> Result<Tensor> {
    let outputs = weight.dim(0)?;
    if head_dim == 0 || !head_dim.is_multiple_of(2) || !outputs.is_multiple_of(head_dim) {
        bail!("rope: {outputs} outputs are not heads of {head_dim}")
    }
    let pairs = weight.reshape((outputs / head_dim, head_dim / 2, 2, weight.elem_count() / outputs))?;
    pairs.transpose(1, 2)?.contiguous()?.reshape(weight.dims())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(rope: &Rope, positions: &[u32]) -> RopeRows {
        rope.rows(positions.to_vec(), &Device::Cpu).unwrap()
    }

    #[test]
    fn the_fused_form_equals_the_composite() {
        let rope = Rope::new(32, 1e6);
        let x = Tensor::randn(0f32, 1.0, (5, 96), &Device::Cpu).unwrap();
        let positions = [0, 1, 17, 900, 4000];
        let composite = rope.composite(&x, &rope.turns(&positions, &Device::Cpu).unwrap()).unwrap();
        let off = (rope.forward(&x, &rows(&rope, &positions)).unwrap() - composite).unwrap();
        assert!(off.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
        assert!(rope.forward(&x, &rows(&rope, &[0])).is_err());
    }

    #[test]
    fn fused_norm_and_rotation_equal_both_steps_and_each_row_alone() {
        let rope = Rope::new(24, 1e4);
        let norm = RmsNorm::new(Tensor::randn(0f32, 1.0, 24, &Device::Cpu).unwrap(), 1e-6);
        let wide = Tensor::randn(0f32, 1.0, (200, 5 * 24), &Device::Cpu).unwrap();
        let x = wide.narrow(1, 24, 72).unwrap();
        let positions: Vec<u32> = (0..200).map(|row| row * row * 2).collect();
        let all = rows(&rope, &positions);
        let y = rope.forward_normed(&x, &all, &norm).unwrap();
        let apart = rope.forward(&norm.forward(&x).unwrap(), &all).unwrap();
        assert_eq!(y.to_vec2::<f32>().unwrap(), apart.to_vec2::<f32>().unwrap());
        for row in [0, 3, 150, 199] {
            let alone = x.narrow(0, row, 1).unwrap();
            let alone = rope.forward_normed(&alone, &rows(&rope, &positions[row..=row]), &norm).unwrap();
            assert_eq!(alone.to_vec2::<f32>().unwrap()[0], y.to_vec2::<f32>().unwrap()[row]);
        }
        assert!(Rope::new(12, 1e4).forward_normed(&x, &all, &norm).is_err());
    }
    #[test]
    fn half_split_rotation_equals_interleaved_rotation() {
        let (head_dim, heads, positions) = (6, 2, [3u32, 50]);
        let weight = Tensor::randn(0f32, 1.0, (heads * head_dim, 5), &Device::Cpu).unwrap();
        let x = Tensor::randn(0f32, 1.0, (2, 5), &Device::Cpu).unwrap();
        let halves = x.matmul(&half_split_of_interleaved(&weight, head_dim).unwrap().t().unwrap()).unwrap();
        let rope = Rope::new(head_dim, 1e4);
        let ours = rope.forward(&halves, &rows(&rope, &positions)).unwrap().to_vec2::<f32>().unwrap();
        let neighbours = x.matmul(&weight.t().unwrap()).unwrap().to_vec2::<f32>().unwrap();
        for (row, position) in positions.into_iter().enumerate() {
            for at in 0..heads * head_dim / 2 {
                let (head, pair) = (at / (head_dim / 2), at % (head_dim / 2));
                let (sin, cos) =
                    (position as f32 * 1e4f32.powf(-2.0 * pair as f32 / head_dim as f32)).sin_cos();
                let [a, b] = [0, 1].map(|part| neighbours[row][2 * at + part]);
                let first = head * head_dim + pair;
                assert!((ours[row][first] - (a * cos - b * sin)).abs() < 1e-5);
                assert!((ours[row][first + head_dim / 2] - (a * sin + b * cos)).abs() < 1e-5);
            }
        }
        let norm = Tensor::arange(0f32, 4.0, &Device::Cpu).unwrap();
        assert_eq!(
            half_split_of_interleaved(&norm, 4).unwrap().to_vec1::<f32>().unwrap(),
            [0.0, 2.0, 1.0, 3.0]
        );
        assert!(half_split_of_interleaved(&norm, 3).is_err());
    }
}
