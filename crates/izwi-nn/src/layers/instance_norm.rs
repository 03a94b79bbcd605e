//! Adaptive instance norm over packed rows: each channel of a sequence is normalised over the sequence's rows. Has no weight
//! of its own: scale and shift come from a style. <https://arxiv.org/abs/1703.06868>.

use candle_core::{Result, Tensor, bail};

use super::PackedRows;
use super::activation::snake;
use crate::slices::with_slices;
use izwi_kernels::elementwise::{Activated, instance_norm, instance_norm_q8};
use izwi_kernels::quantised_rows::QuantisedRows;
pub use izwi_metal::NormActivation;

/// PyTorch's default: <https://docs.pytorch.org/docs/stable/generated/torch.nn.InstanceNorm1d.html>.
const EPS: f32 = 1e-5;

/// `activation((1 + scale) normalised(x) + shift)`.
#[derive(Debug, Clone)]
pub struct InstanceNorm {
    scale: Tensor,
    shift: Tensor,
}

impl InstanceNorm {
    /// From the scales and shifts of every sequence, `[sequences, channels]` each.
    pub fn new(scale: Tensor, shift: Tensor) -> Self {
        Self { scale, shift }
    }

    /// `x` `[rows, channels]` to the same, gaps zero. A sequence gives the same bits alongside any others.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, packed: &PackedRows, activation: NormActivation<'_>) -> Result<Tensor> {
        let (rows, channels) = x.dims2()?;
        self.check(x, packed, activation)?;
        if x.device().is_metal() {
            let styles = [&self.scale, &self.shift];
            return izwi_metal::instance_norm(x, styles, EPS, activation, packed.spans());
        }
        if !x.device().is_cpu() {
            return self.composite(x, packed, activation);
        }
        let y = self.on_cpu(x, activation, |x, styles, activated| {
            let mut y = vec![0f32; x.len()];
            for (sequence, span) in packed.spans().iter().enumerate() {
                let part = span.start * channels..span.end * channels;
                let style = styles.map(|all| &all[sequence * channels..][..channels]);
                instance_norm(&x[part.clone()], style, EPS, activated, &mut y[part]);
            }
            y
        })?;
        Tensor::from_vec(y, (rows, channels), x.device())
    }

    /// As [`Self::forward`] on the CPU, at 8 bits, with `pads` rows of zeros before and after.
    pub(crate) fn forward_q8(
        &self,
        x: &Tensor,
        packed: &PackedRows,
        activation: NormActivation<'_>,
        [before, behind]: [usize; 2],
    ) -> Result<QuantisedRows> {
        let (rows, channels) = x.dims2()?;
        self.check(x, packed, activation)?;
        self.on_cpu(x, activation, |x, styles, activated| {
            let mut y = QuantisedRows::zeros(before + rows + behind, channels);
            for (sequence, span) in packed.spans().iter().enumerate() {
                let x = &x[span.start * channels..span.end * channels];
                let style = styles.map(|all| &all[sequence * channels..][..channels]);
                instance_norm_q8(x, style, EPS, activated, (&mut y, before + span.start));
            }
            y
        })
    }

    fn check(&self, x: &Tensor, packed: &PackedRows, activation: NormActivation<'_>) -> Result<()> {
        let (rows, channels) = x.dims2()?;
        let styles = [packed.spans().len(), channels];
        let activated = match activation {
            NormActivation::LeakyRelu(_) => true,
            NormActivation::Snake { frequency, amplitude } => {
                frequency.dims() == [channels] && amplitude.dims() == [channels]
            }
        };
        let fits = self.scale.dims() == styles && self.shift.dims() == styles && activated;
        if !fits || rows != packed.rows() || channels == 0 {
            let (scale, spans) = (self.scale.dims(), packed.spans().len());
            bail!("instance norm: {:?} does not fit {spans} sequences with scales {scale:?}", x.dims())
        }
        Ok(())
    }

    /// Runs `work` on the values of `x`, the scales and shifts, and the activation.
    fn on_cpu<T>(
        &self,
        x: &Tensor,
        activation: NormActivation<'_>,
        work: impl FnOnce(&[f32], [&[f32]; 2], Activated<'_>) -> T,
    ) -> Result<T> {
        let (a, b) = match activation {
            NormActivation::LeakyRelu(_) => (&self.scale, &self.scale),
            NormActivation::Snake { frequency, amplitude } => (frequency, amplitude),
        };
        with_slices([x, &self.scale, &self.shift, a, b], |[x, scale, shift, a, b]| {
            let activated = match activation {
                NormActivation::LeakyRelu(slope) => Activated::LeakyRelu(slope),
                NormActivation::Snake { .. } => Activated::Snake(a, b),
            };
            work(x, [scale, shift], activated)
        })
    }

    fn composite(&self, x: &Tensor, packed: &PackedRows, activation: NormActivation<'_>) -> Result<Tensor> {
        let mut parts = Vec::with_capacity(packed.spans().len());
        let ends = packed.spans().iter().skip(1).map(|next| next.start).chain([packed.rows()]);
        for (sequence, (span, end)) in packed.spans().iter().zip(ends).enumerate() {
            let part = x.narrow(0, span.start, span.len())?;
            let centred = part.broadcast_sub(&part.mean_keepdim(0)?)?;
            let deviation = (centred.sqr()?.mean_keepdim(0)? + f64::from(EPS))?.sqrt()?;
            let scale = (self.scale.narrow(0, sequence, 1)? + 1.0)?.div(&deviation)?;
            let y = centred.broadcast_mul(&scale)?.broadcast_add(&self.shift.narrow(0, sequence, 1)?)?;
            let y = match activation {
                NormActivation::LeakyRelu(slope) => y.maximum(&(&y * f64::from(slope))?)?,
                NormActivation::Snake { frequency, amplitude } => snake(&y, frequency, amplitude)?,
            };
            parts.push(y.pad_with_zeros(0, 0, end - span.end)?);
        }
        Tensor::cat(&parts, 0)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn random(shape: impl Into<candle_core::Shape>) -> Tensor {
        Tensor::randn(0f32, 1.0, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn sequences_are_normalised_alone_and_gaps_are_zero() {
        let channels = 20;
        let packed = PackedRows::new(&[30, 1, 300], 3, &Device::Cpu).unwrap();
        let x = (random((packed.rows(), channels)) * 4.0).unwrap();
        let norm = InstanceNorm::new(random((3, channels)), random((3, channels)));
        let (frequency, amplitude) = (random(channels), random(channels));
        let snake = NormActivation::Snake { frequency: &frequency, amplitude: &amplitude };
        for activation in [NormActivation::LeakyRelu(0.2), snake] {
            let y = norm.forward(&x, &packed, activation).unwrap();
            let reference = norm.composite(&x, &packed, activation).unwrap();
            let off = (&y - reference).unwrap().abs().unwrap().max_all().unwrap();
            assert!(off.to_scalar::<f32>().unwrap() < 1e-4);
            let alone = PackedRows::new(&[300], 3, &Device::Cpu).unwrap();
            let styles = [&norm.scale, &norm.shift].map(|all| all.narrow(0, 2, 1).unwrap());
            let [scale, shift] = styles;
            let part = x.narrow(0, packed.spans()[2].start, alone.rows()).unwrap();
            let own = InstanceNorm::new(scale, shift).forward(&part, &alone, activation).unwrap();
            let part = y.narrow(0, packed.spans()[2].start, alone.rows()).unwrap();
            assert_eq!(own.to_vec2::<f32>().unwrap(), part.to_vec2::<f32>().unwrap());
        }
        assert!(
            norm.forward(&x, &packed, NormActivation::Snake { frequency: &random(3), amplitude: &random(3) })
                .is_err()
        );
    }
}
