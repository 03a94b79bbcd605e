//! Rotary position embedding in the half-split layout: element `i` of a head is rotated with element `i + head_dim / 2`.

use std::sync::{Arc, OnceLock};

use candle_core::{Result, Tensor, bail};

use crate::layers::RmsNorm;
use crate::slices::with_rows;
use izwi_kernels::elementwise::{self, apply_rope};

/// Positions whose turns are computed together.
const PAGE: usize = 64;
/// Pages kept; the turns of positions beyond are computed each time.
const PAGES: usize = 512;

/// Rotation of heads by their positions. <https://arxiv.org/abs/2104.09864>.
///
/// Turns are computed once a position and kept, a copy shares them; a row's result is the same bits whatever other rows
/// there are.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f32>,              // [head_dim / 2]
    pages: Arc<[OnceLock<Box<[f32]>>]>, // of [64, head_dim]: see `turn`
}

impl Rope {
    /// Of heads of `head_dim` (even), with wave lengths from 2π up to 2π `theta`.
    pub fn new(head_dim: usize, theta: f64) -> Self {
        // In f32 like the reference: angles of far positions depend on the rounding.
        let frequency = |i: usize| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32);
        Self {
            frequencies: (0..head_dim / 2).map(frequency).collect(),
            pages: (0..PAGES).map(|_| OnceLock::new()).collect(),
        }
    }

    /// Rotates every head of `x` `[rows, heads * head_dim]` by its row's position.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        self.check(x, positions)?;
        if x.device().is_cpu() { self.on_cpu(x, positions, None) } else { self.composite(x, positions) }
    }

    /// Normalises every head of `x` `[rows, heads * head_dim]` by itself, then rotates it by its row's position.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward_normed(&self, x: &Tensor, positions: &[u32], norm: &RmsNorm) -> Result<Tensor> {
        self.check(x, positions)?;
        if norm.width() != 2 * self.frequencies.len() {
            bail!("rope: a norm of {} for heads of {}", norm.width(), 2 * self.frequencies.len())
        }
        if x.device().is_cpu() {
            norm.with(|norm| self.on_cpu(x, positions, Some(norm)))
        } else {
            self.composite(&norm.forward(x)?, positions)
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
            positions.iter().filter(|&&at| at as usize >= far).map(|&at| self.turn(at)).collect();
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
        (page * PAGE..(page + 1) * PAGE).flat_map(|position| self.turn(position as u32)).collect()
    }

    /// Cosines and then sines of a position's angles.
    fn turn(&self, position: u32) -> Vec<f32> {
        let angles = || self.frequencies.iter().map(|frequency| position as f32 * frequency);
        angles().map(f32::cos).chain(angles().map(f32::sin)).collect()
    }

    fn composite(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let half = self.frequencies.len();
        let angles = positions.iter().flat_map(|&p| self.frequencies.iter().map(move |f| p as f32 * f));
        let angles = Tensor::from_vec(angles.collect::<Vec<f32>>(), (rows, 1, half), x.device())?;
        let (sin, cos) = (angles.sin()?, angles.cos()?);
        let x = x.reshape((rows, width / (2 * half), 2 * half))?;
        let (first, second) = (x.narrow(2, 0, half)?, x.narrow(2, half, half)?);
        let rotated = [
            (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
            (second.broadcast_mul(&cos)? + first.broadcast_mul(&sin)?)?,
        ];
        Tensor::cat(&rotated, 2)?.reshape((rows, width))
    }
}

/// The outputs of a projection `[heads * head_dim, inputs]`, or a norm's weight `[heads * head_dim]`, in the order in
/// which [`Rope`] turns what a rotation of neighbouring elements `2i` and `2i + 1` would: the even ones of each head and
/// then the odd ones. Products of queries and keys of that order are the same.
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
    use candle_core::Device;

    use super::*;

    #[test]
    fn the_fused_form_equals_the_composite() {
        let rope = Rope::new(32, 1e6);
        let x = Tensor::randn(0f32, 1.0, (5, 96), &Device::Cpu).unwrap();
        let positions = [0, 1, 17, 900, 4000];
        let off = (rope.forward(&x, &positions).unwrap() - rope.composite(&x, &positions).unwrap()).unwrap();
        assert!(off.abs().unwrap().max_all().unwrap().to_scalar::<f32>().unwrap() < 1e-5);
        assert!(rope.forward(&x, &[0]).is_err());
    }

    #[test]
    fn normed_rows_are_normed_and_turned_and_the_same_bits_alone() {
        let rope = Rope::new(24, 1e4);
        let norm = RmsNorm::new(Tensor::randn(0f32, 1.0, 24, &Device::Cpu).unwrap(), 1e-6);
        let wide = Tensor::randn(0f32, 1.0, (200, 5 * 24), &Device::Cpu).unwrap();
        let x = wide.narrow(1, 24, 72).unwrap();
        let positions: Vec<u32> = (0..200).map(|row| row * row * 2).collect();
        let y = rope.forward_normed(&x, &positions, &norm).unwrap();
        let apart = rope.forward(&norm.forward(&x).unwrap(), &positions).unwrap();
        assert_eq!(y.to_vec2::<f32>().unwrap(), apart.to_vec2::<f32>().unwrap());
        for row in [0, 3, 150, 199] {
            let alone = x.narrow(0, row, 1).unwrap();
            let alone = rope.forward_normed(&alone, &positions[row..=row], &norm).unwrap();
            assert_eq!(alone.to_vec2::<f32>().unwrap()[0], y.to_vec2::<f32>().unwrap()[row]);
        }
        assert!(Rope::new(12, 1e4).forward_normed(&x, &positions, &norm).is_err());
    }
    #[test]
    fn halves_of_pairs_turn_as_neighbours_do() {
        let (head_dim, heads, positions) = (6, 2, [3u32, 50]);
        let weight = Tensor::randn(0f32, 1.0, (heads * head_dim, 5), &Device::Cpu).unwrap();
        let x = Tensor::randn(0f32, 1.0, (2, 5), &Device::Cpu).unwrap();
        let halves = x.matmul(&half_split_of_interleaved(&weight, head_dim).unwrap().t().unwrap()).unwrap();
        let rope = Rope::new(head_dim, 1e4);
        let ours = rope.forward(&halves, &positions).unwrap().to_vec2::<f32>().unwrap();
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
