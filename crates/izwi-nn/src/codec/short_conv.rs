//! The gated short convolution of LFM2 in streams. Knows no codec.

use candle_core::{Result, Tensor};

use super::stream::{StreamShape, Streams, TailPlace};
use crate::Error;
use crate::checkpoint::Checkpoint;
use crate::layers::conv::{ShortConv, ShortConvShape};
use crate::layers::{Fused, Norm};

/// A [`ShortConv`] whose state is the tail of a stream, behind a norm and around a residual.
#[derive(Debug, Clone)]
pub struct StreamedShortConv {
    conv: ShortConv,
    tail: TailPlace,
}

impl StreamedShortConv {
    /// As [`ShortConv::load`].
    ///
    /// # Errors
    /// As [`ShortConv::load`].
    pub fn load(
        from: &mut Checkpoint,
        name: &str,
        sizes: ShortConvShape,
        shape: &mut StreamShape,
    ) -> std::result::Result<Self, Error> {
        let conv = ShortConv::load(from, name, sizes)?;
        Ok(Self { conv, tail: shape.tail(sizes.taps.saturating_sub(1), sizes.width) })
    }

    /// `x + conv(norm(x))` of new rows `[rows, width]` of each sequence.
    ///
    /// # Errors
    /// Shapes do not fit.
    pub fn forward(&self, x: &Tensor, norm: Norm<'_>, streams: &mut Streams<'_>) -> Result<Tensor> {
        let [input, output] = self.conv.linears();
        let mixed = input.forward_fused(x, Fused { norm: Some(norm), ..Fused::default() })?;
        let added = Fused { residual: Some(x), ..Fused::default() };
        if let Some(table) = streams.sequence_table(Some(self.tail), 1)? {
            let weight = self.conv.weight();
            let (taps, width) = weight.dims2()?;
            let conv = izwi_metal::Depthwise {
                weight,
                bias: None,
                inputs: width,
                dilation: 1,
                before: taps - 1,
                form: izwi_metal::DepthwiseForm::Gated,
                activation: None,
            };
            return output.forward_fused(&conv.run(&mixed, &table)?, added);
        }
        let rows = streams.rows().to_vec();
        let y = self.conv.convolve(&mixed, &rows, &mut streams.tails(self.tail))?;
        output.forward_fused(&y, added)
    }
}
