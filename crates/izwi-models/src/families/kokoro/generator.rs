//! Features, the spectrum of a source and a style to the spectra of speech: the network of iSTFTNet.
//! <https://arxiv.org/abs/2203.02395>. Knows no pitch and no samples.

use candle_core::{Result, Tensor, bail};

use super::config::{Config, GeneratorConfig};
use super::style::{AdaIn, ConvPrecision, leaky_relu};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::activation::residual;
use izwi_nn::layers::conv::{Conv1dShape, SameConv, UpsamplingConv};
use izwi_nn::layers::{NormActivation, PackedRows};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

const SLOPE: f64 = 0.1;
const LAST_SLOPE: f64 = 0.01;
const OUT_TAPS: usize = 7;
/// Dilations and taps of the blocks over the source.
const SOURCE_DILATIONS: [usize; 3] = [1, 3, 5];
const SOURCE_TAPS: usize = 7;
const LAST_SOURCE_TAPS: usize = 11;

/// The generator.
#[derive(Debug)]
pub(super) struct Generator {
    stages: Vec<Stage>,
    out: SameConv,
    /// Half width of the widest convolution, in rows.
    reach: usize,
}

/// Upsampling, the source at the stage's rate, and blocks of several widths.
#[derive(Debug)]
struct Stage {
    up: UpsamplingConv,
    rate: usize,
    source: SameConv,
    /// Rows of the source's spectrum for each row of this stage.
    source_stride: usize,
    source_block: Block,
    blocks: Vec<Block>,
}

impl Generator {
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        precision: ConvPrecision,
    ) -> std::result::Result<Self, Error> {
        let config = &config.istftnet;
        let values = config.gen_istft_n_fft + 2;
        let stages = config.upsample_rates.len();
        let loaded = (0..stages).map(|at| Stage::load(from, config, at, precision));
        let loaded = loaded.collect::<std::result::Result<Vec<_>, _>>()?;
        let sizes = [OUT_TAPS, config.channels(stages), values];
        let shape = Conv1dShape { sizes, dilation: 1, precision: Precision::F32 };
        let own = config.resblock_kernel_sizes.iter().zip(&config.resblock_dilation_sizes);
        let reaches =
            own.flat_map(|(taps, dilations)| dilations.iter().map(move |dilation| taps / 2 * dilation));
        let source = LAST_SOURCE_TAPS / 2 * SOURCE_DILATIONS[2];
        Ok(Self {
            stages: loaded,
            out: SameConv::load(from, "decoder.generator.conv_post", shape, true)?,
            reach: reaches.fold(source, usize::max),
        })
    }

    /// The packing of the spectra for sequences of `lengths` rows of input: one more than the input times all rates.
    pub(super) fn spectra(&self, lengths: &[usize], like: &Tensor) -> Result<PackedRows> {
        let rate: usize = self.stages.iter().map(|stage| stage.rate).product();
        let lengths: Vec<usize> = lengths.iter().map(|length| length * rate + 1).collect();
        PackedRows::new(&lengths, self.reach, like.device())
    }

    /// `x` `[rows, channels]` with zero gaps and the source's spectra `[rows of spectra, n_fft + 2]` to the same shape of
    /// log magnitudes and phases; gap rows are undefined.
    pub(super) fn forward(
        &self,
        x: &Tensor,
        source: &Tensor,
        [packed, spectra]: [&PackedRows; 2],
        style: &Tensor,
    ) -> Result<Tensor> {
        let mut x = x.clone();
        let mut packed = packed.clone();
        for (at, stage) in self.stages.iter().enumerate() {
            yield_point();
            let is_last = at + 1 == self.stages.len();
            let target = if is_last {
                spectra.clone()
            } else {
                let lengths: Vec<usize> = packed.spans().iter().map(|span| span.len() * stage.rate).collect();
                PackedRows::new(&lengths, self.reach, x.device())?
            };
            x = stage.forward(&x, source, [&packed, &target, spectra], style)?;
            packed = target;
        }
        self.out.forward(&packed.clear_gaps(&leaky_relu(&x, LAST_SLOPE)?)?)
    }
}

impl Stage {
    fn load(
        from: &mut Checkpoint,
        config: &GeneratorConfig,
        at: usize,
        precision: ConvPrecision,
    ) -> std::result::Result<Self, Error> {
        let name = |part: &str, at: usize| format!("decoder.generator.{part}.{at}");
        let (rate, inputs, outputs) =
            (config.upsample_rates[at], config.channels(at), config.channels(at + 1));
        let shape = |sizes| Conv1dShape { sizes, dilation: 1, precision: precision.plain };
        let source_stride: usize = config.upsample_rates[at + 1..].iter().product();
        let is_last = at + 1 == config.upsample_rates.len();
        let (taps, source_taps) =
            if is_last { (1, LAST_SOURCE_TAPS) } else { (2 * source_stride, SOURCE_TAPS) };
        let values = config.gen_istft_n_fft + 2;
        let exact = Conv1dShape { precision: Precision::F32, ..shape([taps, values, outputs]) };
        let count = config.resblock_kernel_sizes.len();
        let kernels = config.resblock_kernel_sizes.iter().zip(&config.resblock_dilation_sizes);
        let up = UpsamplingConv::load(from, &name("ups", at), shape([rate, inputs, outputs]))?;
        let source = SameConv::load(from, &name("noise_convs", at), exact, true)?;
        let source_sizes = (outputs, source_taps, &SOURCE_DILATIONS[..]);
        let source_block = Block::load(from, &name("noise_res", at), source_sizes, precision)?;
        let mut blocks = Vec::with_capacity(count);
        for (index, (taps, dilations)) in kernels.enumerate() {
            let sizes = (outputs, *taps, &dilations[..]);
            blocks.push(Block::load(from, &name("resblocks", at * count + index), sizes, precision)?);
        }
        Ok(Self { up, rate, source, source_stride, source_block, blocks })
    }

    fn forward(
        &self,
        x: &Tensor,
        source: &Tensor,
        [packed, target, spectra]: [&PackedRows; 3],
        style: &Tensor,
    ) -> Result<Tensor> {
        let source = if self.source_stride == 1 {
            self.source.forward(source)?
        } else {
            let place = [self.source_stride, self.source_stride.div_ceil(2)];
            self.source.forward_strided(source, spectra, target, place)?
        };
        let source = self.source_block.forward(&source, target, style)?;
        let x = packed.clear_gaps(&leaky_relu(x, SLOPE)?)?;
        let x = residual(&source, self.up.forward(&x, packed, target)?)?;
        let mut sum: Option<Tensor> = None;
        for block in &self.blocks {
            yield_point();
            let y = block.forward(&x, target, style)?;
            sum = Some(match sum {
                Some(sum) => residual(&sum, y)?,
                None => y,
            });
        }
        match sum {
            Some(sum) => sum / self.blocks.len() as f64,
            None => bail!("generator: a stage has no block"),
        }
    }
}

/// Pairs of convolutions with adaptive norms, each pair with a residual.
#[derive(Debug)]
struct Block(Vec<[Half; 2]>);

/// A norm, a snake activation and a convolution.
#[derive(Debug)]
struct Half {
    norm: AdaIn,
    frequency: Tensor, // [channels]
    amplitude: Tensor, // [channels]
    conv: SameConv,
}

impl Block {
    /// `sizes` are channels, taps and dilations.
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (channels, taps, dilations): (usize, usize, &[usize]),
        precision: ConvPrecision,
    ) -> std::result::Result<Self, Error> {
        let mut half = |half: usize, at: usize, dilation: usize| {
            let frequency = from.take(&format!("{name}.alpha{half}.{at}"), &[1, channels, 1])?;
            let frequency = frequency.flatten_all()?;
            let shape =
                Conv1dShape { sizes: [taps, channels, channels], dilation, precision: precision.normed };
            Ok::<_, Error>(Half {
                norm: AdaIn::load(from, &format!("{name}.adain{half}.{at}"), channels)?,
                amplitude: frequency.recip()?,
                frequency,
                conv: SameConv::load(from, &format!("{name}.convs{half}.{at}"), shape, true)?,
            })
        };
        let pairs = dilations.iter().enumerate();
        let pairs = pairs.map(|(at, dilation)| Ok([half(1, at, *dilation)?, half(2, at, 1)?]));
        Ok(Self(pairs.collect::<std::result::Result<_, Error>>()?))
    }

    /// `[rows, channels]` to the same; gap rows are undefined.
    fn forward(&self, x: &Tensor, packed: &PackedRows, style: &Tensor) -> Result<Tensor> {
        let mut x = x.clone();
        for [first, second] in &self.0 {
            let change = first.forward(&x, packed, style, None)?;
            x = second.forward(&change, packed, style, Some(&x))?;
        }
        Ok(x)
    }
}

impl Half {
    fn forward(
        &self,
        x: &Tensor,
        packed: &PackedRows,
        style: &Tensor,
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let Self { norm, frequency, amplitude, conv } = self;
        let activation = NormActivation::Snake { frequency, amplitude };
        conv.forward_normed(x, packed, (&norm.of(style)?, activation), residual)
    }
}
