//! What transformer encoders over log-mel frames share: the input layers, and the names of tensors in the transformers library.
//! Source: <https://arxiv.org/abs/2212.04356> (section 2.2).

use candle_core::{Device, Tensor};

use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::EncoderNames;
use izwi_nn::layers::conv::StridedConv;

/// Mel frames of a position: the stride of the second convolution.
pub(crate) const FRAMES_PER_POSITION: usize = 2;
/// Kernel width of both convolutions.
const TAPS: usize = 3;

/// Names of a layer's parts.
pub(crate) const LAYER_NAMES: EncoderNames = EncoderNames {
    attention_norm: "self_attn_layer_norm",
    qkv: [("self_attn.q_proj", true), ("self_attn.k_proj", false), ("self_attn.v_proj", true)],
    output: "self_attn.out_proj",
    feed_forward_norm: "final_layer_norm",
    feed_forward: ["fc1", "fc2"],
};

/// The input layers: two convolutions and the position embedding.
#[derive(Debug)]
pub(crate) struct InputLayers {
    convs: [StridedConv; 2],
    positions: Tensor, // [max positions, width]
    bins: usize,
    device: Device,
}

impl InputLayers {
    /// Takes `conv1`, `conv2` and `embed_positions` under `name`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(crate) fn load(
        from: &mut Checkpoint,
        name: &str,
        bins: usize,
        (positions, width): (usize, usize),
    ) -> Result<Self, Error> {
        let mut conv = |part: &str, inputs: usize, stride: usize| -> Result<StridedConv, Error> {
            let weight = from.take(&format!("{name}.{part}.weight"), &[width, inputs, TAPS])?;
            let bias = from.take(&format!("{name}.{part}.bias"), &[width])?;
            Ok(StridedConv::new(&weight, bias, stride)?)
        };
        let convs = [conv("conv1", bins, 1)?, conv("conv2", width, FRAMES_PER_POSITION)?];
        let positions = from.take(&format!("{name}.embed_positions.weight"), &[positions, width])?;
        Ok(Self { convs, positions, bins, device: from.device().clone() })
    }

    /// Number of mel bins.
    pub(crate) fn bins(&self) -> usize {
        self.bins
    }

    /// Log-mel values `[positions * FRAMES_PER_POSITION, bins]` to rows `[positions, width]`.
    ///
    /// # Errors
    /// There are too many positions, or the device is out of memory.
    pub(crate) fn forward(&self, mel: &[f32], positions: usize) -> Result<Tensor, Error> {
        let mel = Tensor::from_slice(mel, (positions * FRAMES_PER_POSITION, self.bins), &self.device)?;
        let [conv1, conv2] = &self.convs;
        let x = conv1.forward_gelu(&mel)?; // [frames, width]
        let x = conv2.forward_gelu(&x)?; // [positions, width]
        Ok((x + self.positions.narrow(0, 0, positions)?)?)
    }
}
