//! The speaker encoder: a recording to one vector, by ECAPA-TDNN over mel frames.
//! <https://arxiv.org/abs/2005.07143>; what is peculiar here follows the Python package `qwen-tts` 0.1.1 (pip).

use candle_core::{Device, Result, Tensor, bail};
use serde::Deserialize;

use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::mel::{MelShape, MelSpectrum};
use izwi_nn::layers::activation::Activation;
use izwi_nn::layers::conv::{Conv1d, Padding};
use izwi_nn::yielding::yield_point;

/// Rate of the recordings, in Hz: the mel filters are made for it.
const SAMPLE_RATE_HZ: usize = 24_000;
/// Variances are at least this.
const MIN_VARIANCE: f64 = 1e-12;

type Loaded<T> = std::result::Result<T, Error>;

/// `speaker_encoder_config` of a checkpoint. Published files name the first two fields; the defaults of the others are
/// the reference's own.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SpeakerConfig {
    /// Channels of the embedding.
    pub(crate) enc_dim: usize,
    /// Rate of the recordings, in Hz.
    pub(crate) sample_rate: usize,
    #[serde(default = "default_mel")]
    mel_dim: usize,
    #[serde(default = "default_channels")]
    enc_channels: Vec<usize>,
    #[serde(default = "default_kernels")]
    enc_kernel_sizes: Vec<usize>,
    #[serde(default = "default_dilations")]
    enc_dilations: Vec<usize>,
    #[serde(default = "default_attention")]
    enc_attention_channels: usize,
    #[serde(default = "default_scale")]
    enc_res2net_scale: usize,
    #[serde(default = "default_attention")]
    enc_se_channels: usize,
}

fn default_mel() -> usize {
    128
}

fn default_channels() -> Vec<usize> {
    vec![512, 512, 512, 512, 1536]
}

fn default_kernels() -> Vec<usize> {
    vec![5, 3, 3, 3, 1]
}

fn default_dilations() -> Vec<usize> {
    vec![1, 2, 3, 4, 1]
}

fn default_attention() -> usize {
    128
}

fn default_scale() -> usize {
    8
}

impl SpeakerConfig {
    fn check(&self) -> std::result::Result<(), String> {
        let layers = self.enc_channels.len();
        if self.sample_rate != SAMPLE_RATE_HZ {
            return Err(format!("sample_rate {} is not supported, only {SAMPLE_RATE_HZ}", self.sample_rate));
        }
        if layers < 3 || self.enc_kernel_sizes.len() != layers || self.enc_dilations.len() != layers {
            return Err("enc_channels, enc_kernel_sizes and enc_dilations do not fit each other".to_owned());
        }
        if self.enc_kernel_sizes.iter().any(|kernel| kernel % 2 == 0) {
            return Err(format!("enc_kernel_sizes {:?}: only odd ones are supported", self.enc_kernel_sizes));
        }
        let inner = &self.enc_channels[..layers - 1];
        if inner.iter().any(|&channels| channels != inner[0]) {
            return Err(format!("enc_channels {:?}: only the last may differ", self.enc_channels));
        }
        let scale = self.enc_res2net_scale;
        if scale < 2 || !inner[0].is_multiple_of(scale) || inner[0] == 0 {
            return Err(format!("enc_res2net_scale {scale} does not divide {} channels", inner[0]));
        }
        Ok(())
    }
}

/// A convolution that mirrors its input at both ends, so that rows stay as many.
#[derive(Debug)]
struct MirroredConv {
    conv: Conv1d,
}

impl MirroredConv {
    /// Takes `{name}.weight` `[outputs, inputs, taps]` and `{name}.bias`.
    fn load(from: &mut Checkpoint, name: &str, shape: [usize; 3], dilation: usize) -> Loaded<Self> {
        let weight = from.take(&format!("{name}.weight"), &shape)?;
        let bias = from.take(&format!("{name}.bias"), &[shape[0]])?;
        Ok(Self { conv: Conv1d::new(&weight, Some(bias), dilation)? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, None)
    }

    fn forward_relu(&self, x: &Tensor) -> Result<Tensor> {
        self.apply(x, Some(Activation::Relu))
    }

    fn apply(&self, x: &Tensor, activation: Option<Activation<'_>>) -> Result<Tensor> {
        let (rows, pad) = (x.dim(0)?, self.conv.reach() / 2);
        if pad >= rows {
            bail!("speaker encoder: {rows} mel frames are too few")
        }
        self.conv.forward_padded(x, (Padding::Mirror, [pad; 2]), 1, activation)
    }
}

/// A residual block of convolutions of several reaches, gated by channel.
#[derive(Debug)]
struct Res2Block {
    enter: MirroredConv,
    scales: Vec<MirroredConv>,
    leave: MirroredConv,
    squeeze: MirroredConv,
    excite: MirroredConv,
}

impl Res2Block {
    fn load(from: &mut Checkpoint, name: &str, config: &SpeakerConfig, layer: usize) -> Loaded<Self> {
        let (channels, inner) = (config.enc_channels[layer], config.enc_se_channels);
        let part = channels / config.enc_res2net_scale;
        let (kernel, dilation) = (config.enc_kernel_sizes[layer], config.enc_dilations[layer]);
        let scales = (0..config.enc_res2net_scale - 1).map(|i| {
            let name = format!("{name}.res2net_block.blocks.{i}.conv");
            MirroredConv::load(from, &name, [part, part, kernel], dilation)
        });
        let scales = scales.collect::<Loaded<_>>()?;
        let mut point = |part: &str, outputs: usize, inputs: usize| {
            MirroredConv::load(from, &format!("{name}.{part}"), [outputs, inputs, 1], 1)
        };
        Ok(Self {
            enter: point("tdnn1.conv", channels, channels)?,
            scales,
            leave: point("tdnn2.conv", channels, channels)?,
            squeeze: point("se_block.conv1", inner, channels)?,
            excite: point("se_block.conv2", channels, inner)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.enter.forward_relu(x)?;
        let width = y.dim(1)? / (self.scales.len() + 1);
        let mut parts = vec![y.narrow(1, 0, width)?.contiguous()?];
        for (i, conv) in self.scales.iter().enumerate() {
            let own = y.narrow(1, (i + 1) * width, width)?;
            let input = if i == 0 { own.contiguous()? } else { (own + &parts[i])? };
            parts.push(conv.forward_relu(&input)?);
        }
        let y = self.leave.forward_relu(&Tensor::cat(&parts, 1)?)?;
        let gate = self.squeeze.forward_relu(&y.mean_keepdim(0)?)?;
        let gate = candle_nn::ops::sigmoid(&self.excite.forward(&gate)?)?; // [1, channels]
        x + y.broadcast_mul(&gate)?
    }
}

/// The encoder; all of it is f32.
#[derive(Debug)]
pub(crate) struct SpeakerEncoder {
    mel: MelSpectrum,
    mel_bins: usize,
    device: Device,
    first: MirroredConv,
    blocks: Vec<Res2Block>,
    merge: MirroredConv,
    attention: [MirroredConv; 2],
    last: MirroredConv,
}

impl SpeakerEncoder {
    /// Takes `speaker_encoder.*`.
    ///
    /// # Errors
    /// The configuration asks for what is not computed, or as [`Checkpoint::take`].
    pub(crate) fn load(from: &mut Checkpoint, config: &SpeakerConfig) -> Loaded<Self> {
        config.check().map_err(|why| Error::Checkpoint(format!("speaker_encoder_config: {why}")))?;
        let name = "speaker_encoder";
        let (inner, layers) = (config.enc_channels[0], config.enc_channels.len());
        let (wide, attention) = (config.enc_channels[layers - 1], config.enc_attention_channels);
        let first = [inner, config.mel_dim, config.enc_kernel_sizes[0]];
        let first =
            MirroredConv::load(from, &format!("{name}.blocks.0.conv"), first, config.enc_dilations[0])?;
        let blocks = (1..layers - 1).map(|i| Res2Block::load(from, &format!("{name}.blocks.{i}"), config, i));
        let blocks = blocks.collect::<Loaded<_>>()?;
        let merge = [wide, inner * (layers - 2), config.enc_kernel_sizes[layers - 1]];
        let merge_dilation = config.enc_dilations[layers - 1];
        Ok(Self {
            mel: MelSpectrum::new(MelShape {
                sample_rate_hz: SAMPLE_RATE_HZ,
                transform: 1024,
                hop: 256,
                bins: config.mel_dim,
                top_hz: SAMPLE_RATE_HZ as f64 / 2.0,
                under_root: 1e-9,
                floor: 1e-5,
            }),
            mel_bins: config.mel_dim,
            device: from.device().clone(),
            first,
            blocks,
            merge: MirroredConv::load(from, &format!("{name}.mfa.conv"), merge, merge_dilation)?,
            attention: [
                MirroredConv::load(from, &format!("{name}.asp.tdnn.conv"), [attention, 3 * wide, 1], 1)?,
                MirroredConv::load(from, &format!("{name}.asp.conv"), [wide, attention, 1], 1)?,
            ],
            last: MirroredConv::load(from, &format!("{name}.fc"), [config.enc_dim, 2 * wide, 1], 1)?,
        })
    }

    /// Samples at 24 kHz to an embedding of `enc_dim` channels.
    ///
    /// # Errors
    /// There are too few samples for the convolutions to mirror.
    pub(crate) fn embed(&self, samples_24k: &[f32]) -> Loaded<Vec<f32>> {
        let mel = self.mel.frames(samples_24k);
        if mel.is_empty() {
            let (count, least) = (samples_24k.len(), self.mel.min_samples());
            return Err(candle_core::Error::Msg(format!(
                "speaker encoder: {count} samples are too few, it takes {least} at least"
            ))
            .into());
        }
        let mel = Tensor::from_vec(mel.clone(), (mel.len() / self.mel_bins, self.mel_bins), &self.device)?;
        Ok(self.forward(&mel, |_, _| {})?.flatten_all()?.to_vec1()?)
    }

    /// Mel frames `[frames, bins]` to an embedding `[1, enc_dim]`; `tap` gets intermediate results by name.
    fn forward(&self, mel: &Tensor, mut tap: impl FnMut(String, &Tensor)) -> Result<Tensor> {
        tap("mel".to_owned(), mel);
        let mut x = self.first.forward_relu(mel)?;
        tap("spk.block0".to_owned(), &x);
        let mut outputs = Vec::with_capacity(self.blocks.len());
        for (i, block) in self.blocks.iter().enumerate() {
            yield_point();
            x = block.forward(&x)?;
            tap(format!("spk.block{}", i + 1), &x);
            outputs.push(x.clone());
        }
        let x = self.merge.forward_relu(&Tensor::cat(&outputs, 1)?)?; // [frames, wide]
        tap("spk.mfa".to_owned(), &x);
        let (mean, deviation) = statistics(&x, &x.ones_like()?.affine(1.0 / x.dim(0)? as f64, 0.0)?)?;
        let beside = [x.clone(), mean.broadcast_as(x.shape())?, deviation.broadcast_as(x.shape())?];
        let scores = self.attention[0].forward_relu(&Tensor::cat(&beside, 1)?)?.tanh()?;
        let weights = candle_nn::ops::softmax(&self.attention[1].forward(&scores)?, 0)?;
        let (mean, deviation) = statistics(&x, &weights)?;
        let pooled = Tensor::cat(&[mean, deviation], 1)?; // [1, 2 * wide]
        tap("spk.asp".to_owned(), &pooled);
        self.last.forward(&pooled)
    }

    /// For tests: the embedding and every intermediate result.
    #[cfg(test)]
    pub(super) fn embed_taps(&self, samples_24k: &[f32]) -> (Tensor, Vec<(String, Tensor)>) {
        let mel = self.mel.frames(samples_24k);
        let frames = mel.len() / self.mel_bins;
        let mel = Tensor::from_vec(mel, (frames, self.mel_bins), &self.device).unwrap();
        let mut taps = Vec::new();
        let embedding = self.forward(&mel, |name, x| taps.push((name, x.clone()))).unwrap();
        (embedding, taps)
    }
}

/// Mean and standard deviation over time, `[1, channels]` each, of `x` under `weights` `[frames, channels]` that sum
/// to 1.
fn statistics(x: &Tensor, weights: &Tensor) -> Result<(Tensor, Tensor)> {
    let mean = (x * weights)?.sum_keepdim(0)?;
    let variance = (x.broadcast_sub(&mean)?.sqr()? * weights)?.sum_keepdim(0)?;
    Ok((mean, variance.maximum(MIN_VARIANCE)?.sqrt()?))
}
