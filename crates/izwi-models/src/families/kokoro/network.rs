//! The whole network: phoneme ids and styles to the spectra of speech, all sequences of a batch in one pass per layer.
//!
//! Owns the order of the parts and the packing of sequences. Knows no text. Tensor names: the package `kokoro` 0.9.4.

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::bert::Bert;
use super::config::{Config, STYLE};
use super::decoder::Decoder;
use super::generator::Generator;
use super::prosody::{Contour, Prosody};
use super::style::ConvPrecision;
use super::text::TextEncoder;
use super::voices::VALUES;
use super::waveform::{HARMONICS, Waveform};
use crate::families::LoadOptions;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::PackedRows;
use izwi_nn::slices::with_slices;

/// Half width of the widest convolution over frames, in rows.
const FRAME_REACH: usize = 1;
/// Frames that the generator computes at once; it needs the most memory.
const GENERATOR_FRAMES: usize = 1_600;

/// One sequence to compute.
#[derive(Debug, Clone)]
pub(super) struct Utterance<'a> {
    /// Phoneme ids, at least one.
    pub(super) ids: &'a [u32],
    /// Tempo.
    pub(super) speed: f32,
    /// `[VALUES]`.
    pub(super) style: Vec<f32>,
}

/// One sequence on its way to the generator.
#[derive(Debug)]
pub(super) struct Features {
    /// Length of each phoneme in frames.
    pub(super) durations: Vec<usize>,
    pub(super) contour: Contour,
    /// `[2 * frames, channels]`.
    pub(super) decoded: Tensor,
    /// `[1, STYLE]`.
    style: Tensor,
}

/// The network.
#[derive(Debug)]
pub(super) struct Network {
    device: Device,
    /// The most frames of a sequence.
    max_frames: usize,
    text_reach: usize,
    pub(super) bert: Bert,
    pub(super) text: TextEncoder,
    pub(super) prosody: Prosody,
    decoder: Decoder,
    generator: Generator,
    pub(super) waveform: Waveform,
}

impl Network {
    /// At most `max_frames` frames of a sequence are computed.
    pub(super) fn load(
        from: &mut Checkpoint,
        config: &Config,
        options: &LoadOptions,
        max_frames: usize,
    ) -> std::result::Result<Self, Error> {
        let linear = options.weight_precision();
        let conv =
            ConvPrecision { normed: options.normed_conv_precision(), plain: options.codec_precision() };
        let mixer = "decoder.generator.m_source.l_linear";
        let weights = from.take(&format!("{mixer}.weight"), &[1, HARMONICS])?.flatten_all()?;
        let mut mix = [0.0; HARMONICS];
        mix.iter_mut().zip(weights.to_vec1::<f32>()?).for_each(|(mix, weight)| *mix = weight);
        let bias = from.take(&format!("{mixer}.bias"), &[1])?.get(0)?.to_scalar()?;
        Ok(Self {
            device: from.device().clone(),
            max_frames,
            text_reach: config.text_encoder_kernel_size / 2,
            bert: Bert::load(from, config, linear)?,
            text: TextEncoder::load(from, config, linear)?,
            prosody: Prosody::load(from, config)?,
            decoder: Decoder::load(from, config, conv)?,
            generator: Generator::load(from, config, conv)?,
            waveform: Waveform::new(&config.istftnet, mix, bias),
        })
    }

    /// The packing and the ids of phonemes.
    pub(super) fn phonemes(&self, batch: &[Utterance<'_>]) -> Result<(PackedRows, Tensor)> {
        let lengths: Vec<usize> = batch.iter().map(|utterance| utterance.ids.len()).collect();
        let packed = PackedRows::new(&lengths, self.text_reach, &self.device)?;
        let ids = packed.fill(|sequence, position| batch[sequence].ids[position]);
        let ids = Tensor::from_vec(ids, packed.rows(), &self.device)?;
        Ok((packed, ids))
    }

    /// The styles of the decoder and of prosody, `[sequences, STYLE]` each.
    pub(super) fn styles(&self, batch: &[Utterance<'_>]) -> Result<[Tensor; 2]> {
        let values: Vec<f32> = batch.iter().flat_map(|utterance| &utterance.style).copied().collect();
        let both = Tensor::from_vec(values, (batch.len(), VALUES), &self.device)?;
        Ok([both.narrow(1, 0, STYLE)?.contiguous()?, both.narrow(1, STYLE, STYLE)?.contiguous()?])
    }

    /// All utterances up to the generator.
    pub(super) fn features(&self, batch: &[Utterance<'_>]) -> Result<Vec<Features>> {
        let (phonemes, ids) = self.phonemes(batch)?;
        let [style, prosodic_style] = self.styles(batch)?;
        let context = self.bert.project(&self.bert.forward(&ids, &phonemes)?, &phonemes)?;
        let features = self.prosody.features(&context, &phonemes, &prosodic_style)?;
        let durations = self.prosody.durations(&features, &phonemes)?;
        let durations: Vec<Vec<usize>> = durations
            .iter()
            .zip(batch)
            .map(|(frames, utterance)| whole_frames(frames, utterance.speed, self.max_frames))
            .collect();
        let sources = frame_sources(&phonemes, &durations);

        let lengths: Vec<usize> = sources.iter().map(Vec::len).collect();
        let coarse = PackedRows::new(&lengths, FRAME_REACH, &self.device)?;
        let doubled: Vec<usize> = lengths.iter().map(|length| 2 * length).collect();
        let fine = PackedRows::new(&doubled, FRAME_REACH, &self.device)?;
        let rows = || coarse.fill(|sequence, frame| sources[sequence][frame]);
        let expanded = coarse.gather(&features, rows())?;
        let contours = self.prosody.contours(&expanded, [&coarse, &fine], &prosodic_style)?;
        let sounds = coarse.gather(&self.text.forward(&ids, &phonemes)?, rows())?;
        let decoded = self.decoder.forward(&sounds, &contours, [&coarse, &fine], &style)?;
        let pieces = durations.into_iter().zip(contours).zip(fine.spans()).enumerate();
        let pieces = pieces.map(|(sequence, ((durations, contour), span))| {
            let decoded = decoded.narrow(0, span.start, span.len())?;
            Ok(Features { durations, contour, decoded, style: style.narrow(0, sequence, 1)? })
        });
        pieces.collect()
    }

    /// The samples of each sequence; `noise` has the noise of each of its source's samples.
    pub(super) fn samples(&self, features: &[Features], noise: &[Vec<f32>]) -> Result<Vec<Vec<f32>>> {
        let mut samples = Vec::with_capacity(features.len());
        let mut rest = features;
        while !rest.is_empty() {
            let mut frames = 0;
            let fits = rest.iter().take_while(|features| {
                frames += features.contour.pitch_hz.len() / 2;
                frames <= GENERATOR_FRAMES
            });
            let (group, others) = rest.split_at(fits.count().max(1));
            let noise = &noise[features.len() - rest.len()..][..group.len()];
            let (spectra, packed) = self.spectra(group, &self.sources(group, noise))?;
            let values = 2 * self.waveform.bins();
            let group: Vec<Vec<f32>> = with_slices([&spectra], |[spectra]| {
                let spans = packed.spans().par_iter();
                let spectra = spans.map(|span| &spectra[span.start * values..span.end * values]);
                spectra.map(|spectra| self.waveform.synthesise(spectra)).collect()
            })?;
            samples.extend(group);
            rest = others;
        }
        Ok(samples)
    }

    /// The spectra of each sequence's source.
    fn sources(&self, group: &[Features], noise: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let sequences = group.par_iter().zip(noise);
        let source = |features: &Features, noise| self.waveform.source(&features.contour.pitch_hz, noise);
        sequences.map(|(features, noise)| self.waveform.spectra(&source(features, noise))).collect()
    }

    /// The generator's spectra of a group with these spectra of sources, on the CPU, and their packing.
    pub(super) fn spectra(&self, group: &[Features], sources: &[Vec<f32>]) -> Result<(Tensor, PackedRows)> {
        let lengths: Vec<usize> = group.iter().map(|features| features.contour.pitch_hz.len()).collect();
        let packed = PackedRows::new(&lengths, FRAME_REACH, &self.device)?;
        let decoded: Vec<&Tensor> = group.iter().map(|features| &features.decoded).collect();
        let starts: Vec<usize> = lengths
            .iter()
            .scan(0, |next, length| {
                *next += length;
                Some(*next - length)
            })
            .collect();
        let rows = packed.fill(|sequence, row| (starts[sequence] + row) as u32);
        let x = packed.gather(&Tensor::cat(&decoded, 0)?, rows)?;
        let styles: Vec<&Tensor> = group.iter().map(|features| &features.style).collect();
        let style = Tensor::cat(&styles, 0)?;
        let spectra = self.generator.spectra(&lengths, &x)?;
        let values = 2 * self.waveform.bins();
        let mut source = vec![0f32; spectra.rows() * values];
        for (span, own) in spectra.spans().iter().zip(sources) {
            source[span.start * values..span.end * values].copy_from_slice(own);
        }
        let source = Tensor::from_vec(source, (spectra.rows(), values), &self.device)?;
        let y = self.generator.forward(&x, &source, [&packed, &spectra], &style)?;
        Ok((y.to_device(&Device::Cpu)?, spectra))
    }
}

/// For each frame of each sequence, the packed row of its phoneme.
fn frame_sources(phonemes: &PackedRows, durations: &[Vec<usize>]) -> Vec<Vec<u32>> {
    let sequences = phonemes.spans().iter().zip(durations);
    sequences
        .map(|(span, durations)| {
            let rows = span.clone().zip(durations);
            rows.flat_map(|(row, &count)| std::iter::repeat_n(row as u32, count)).collect()
        })
        .collect()
}

/// Durations at normal speed to whole frames: at least one each, scaled down to `limit` in all.
fn whole_frames(durations: &[f32], speed: f32, limit: usize) -> Vec<usize> {
    let frames = durations.iter().map(|frames| {
        let frames = (frames / speed).round_ties_even();
        if frames >= 1.0 { (frames as usize).min(limit) } else { 1 }
    });
    let mut frames: Vec<usize> = frames.collect();
    let total: usize = frames.iter().sum();
    if total > limit {
        tracing::warn!(frames = total, limit, "durations exceed the limit of a unit and were scaled down");
        frames.iter_mut().for_each(|frames| *frames = (*frames * limit / total).max(1));
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_positive_and_bounded() {
        assert_eq!(whole_frames(&[0.2, 5.0, 2.5, 3.5], 1.0, 99), [1, 5, 2, 4]);
        assert_eq!(whole_frames(&[8.0], 2.0, 99), [4]);
        assert_eq!(whole_frames(&[f32::NAN, f32::NEG_INFINITY], 1.0, 99), [1, 1]);
        let runaway = whole_frames(&[f32::INFINITY, 80.0, 1.0], 0.25, 100);
        assert!(runaway.iter().sum::<usize>() <= 103, "{runaway:?}");
    }
}
