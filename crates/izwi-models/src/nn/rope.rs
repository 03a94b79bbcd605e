//! Rotary position embedding in the half-split layout: element `i` of a head is rotated with element `i + head_dim / 2`.

use candle_core::{Result, Tensor, bail};

use super::slices::with_slices;

/// Rotation of heads by their positions. <https://arxiv.org/abs/2104.09864>.
#[derive(Debug, Clone)]
pub struct Rope {
    frequencies: Vec<f32>, // [head_dim / 2]
}

impl Rope {
    /// Of heads of `head_dim` (even), with wave lengths from 2π up to 2π `theta`.
    pub fn new(head_dim: usize, theta: f64) -> Self {
        // In f32 like the reference: angles of far positions depend on the rounding.
        let frequency = |i: usize| 1.0 / (theta as f32).powf((2 * i) as f32 / head_dim as f32);
        Self { frequencies: (0..head_dim / 2).map(frequency).collect() }
    }

    /// Rotates every head of `x` `[rows, heads * head_dim]` by its row's position.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, positions: &[u32]) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        let half = self.frequencies.len();
        if rows != positions.len() || half == 0 || !width.is_multiple_of(2 * half) {
            bail!("rope: {:?} for {} positions and heads of {}", x.dims(), positions.len(), 2 * half)
        }
        if !x.device().is_cpu() {
            return self.composite(x, positions);
        }
        let y = with_slices([x], |[x]| {
            let mut y = vec![0f32; x.len()];
            for ((x, y), &position) in x.chunks_exact(width).zip(y.chunks_exact_mut(width)).zip(positions) {
                let turns: Vec<(f32, f32)> = self
                    .frequencies
                    .iter()
                    .map(|frequency| (position as f32 * frequency).sin_cos())
                    .collect();
                for (x, y) in x.chunks_exact(2 * half).zip(y.chunks_exact_mut(2 * half)) {
                    for (i, (sin, cos)) in turns.iter().enumerate() {
                        y[i] = x[i] * cos - x[i + half] * sin;
                        y[i + half] = x[i + half] * cos + x[i] * sin;
                    }
                }
            }
            y
        })?;
        Tensor::from_vec(y, x.dims(), x.device())
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
}
