//! The acoustic network: phoneme ids to durations, pitch and five spectral heads per frame.
//!
//! Owns the architecture and its weights. Knows no text, no voice and no waveform.
//! Tensor names and sizes: hibari-tts 0.2.1.

use candle_core::{Device, Result, Tensor};

use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::activation::bias_gelu;
use izwi_nn::layers::conv::DenseConv;
use izwi_nn::layers::{
    ConvNeXtBlock, ConvNeXtConfig, EncoderConfig, EncoderLayer, LayerNorm, Linear, PackedRows,
};
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Entries of the phoneme embedding.
pub(super) const SYMBOLS: usize = 178;
/// Bins of a spectral head: half of the 1200-point transform and one.
pub(super) const BINS: usize = 601;
/// Values of a frame: the heads lh, θ, ln, lr and φ one after another.
pub(super) const HEAD_VALUES: usize = 5 * BINS;
/// Frames of the finest rate in a second.
pub(super) const FRAMES_PER_SECOND: usize = 80;
/// Limit of a unit's frames, applied to predicted durations.
pub(super) const MAX_UNIT_FRAMES: usize = 60 * FRAMES_PER_SECOND;

const ACOUSTIC_WIDTH: usize = 128;
const PROSODY_WIDTH: usize = 192;
const DECODER_WIDTH: usize = 256;
const ATTENTION_HEADS: usize = 2;
const PROSODY_DILATIONS: [usize; 6] = [1, 2, 4, 8, 1, 2];
const DECODER_BLOCKS: usize = 8;
/// Half width of the widest kernel of each stage, in rows.
const PHONEME_REACH: usize = 2;
const PROSODY_REACH: usize = 24;
const DECODER_REACH: usize = 3;

/// One sequence to compute.
#[derive(Debug, Clone, Copy)]
pub(super) struct Utterance<'a> {
    /// Phoneme ids, below [`SYMBOLS`].
    pub(super) ids: &'a [u32],
    /// Tempo.
    pub(super) speed: f32,
}

/// Network output for one sequence.
#[derive(Debug, Clone)]
pub(super) struct Acoustics {
    /// Length of each phoneme in frames of 25 ms.
    pub(super) durations: Vec<usize>,
    /// Pitch in Hz of each frame of 12.5 ms; low or negative means unvoiced.
    pub(super) pitch_hz: Vec<f32>,
    /// `[frames, HEAD_VALUES]`, on the CPU.
    pub(super) heads: Tensor,
}

/// The whole network.
#[derive(Debug)]
pub(super) struct Network {
    device: Device,
    acoustic_text: TextEncoder,
    prosody: Prosody,
    decoder: Decoder,
}

impl Network {
    /// With the decoder's large weights kept in `precision`; the layers that predict durations and pitch stay exact.
    pub(super) fn load(from: &mut Checkpoint, precision: Precision) -> std::result::Result<Self, Error> {
        Ok(Self {
            device: from.device().clone(),
            acoustic_text: TextEncoder::load(from, "m.text", ACOUSTIC_WIDTH, 4)?,
            prosody: Prosody::load(from)?,
            decoder: Decoder::load(from, precision)?,
        })
    }

    /// All utterances in one pass per layer.
    pub(super) fn forward(&self, batch: &[Utterance<'_>]) -> Result<Vec<Acoustics>> {
        let lengths: Vec<usize> = batch.iter().map(|utterance| utterance.ids.len()).collect();
        let phonemes = PackedRows::new(&lengths, PHONEME_REACH, &self.device)?;
        let ids = phonemes.fill(|sequence, position| batch[sequence].ids[position]);
        let ids = Tensor::from_vec(ids, phonemes.rows(), &self.device)?;

        let acoustic = self.acoustic_text.forward(&ids, &phonemes)?; // [rows, ACOUSTIC_WIDTH]
        let prosodic = self.prosody.text.forward(&ids, &phonemes)?; // [rows, PROSODY_WIDTH]
        let durations = self.prosody.durations(&prosodic, &phonemes, batch)?;
        let sources = frame_sources(&phonemes, &durations);

        let lengths: Vec<usize> = sources.iter().map(Vec::len).collect();
        let coarse = PackedRows::new(&lengths, PROSODY_REACH, &self.device)?;
        let expanded = coarse.gather(&prosodic, coarse.fill(|sequence, frame| sources[sequence][frame]))?;
        let contours = self.prosody.contours(&expanded, &coarse)?;

        let lengths: Vec<usize> = lengths.iter().map(|length| 2 * length).collect();
        let fine = PackedRows::new(&lengths, DECODER_REACH, &self.device)?;
        let expanded = fine.gather(&acoustic, fine.fill(|sequence, frame| sources[sequence][frame / 2]))?;
        let heads = self.decoder.forward(&expanded, &contours, &fine)?.to_device(&Device::Cpu)?;

        let pieces = durations.into_iter().zip(contours).zip(fine.spans());
        let cut = pieces.map(|((durations, contour), span)| {
            let heads = heads.narrow(0, span.start, span.len())?;
            Ok(Acoustics { durations, pitch_hz: contour.pitch_hz, heads })
        });
        cut.collect()
    }
}

/// For each 25 ms frame of each sequence, the packed row of its phoneme.
fn frame_sources(phonemes: &PackedRows, durations: &[Vec<usize>]) -> Vec<Vec<u32>> {
    let sequences = phonemes.spans().iter().zip(durations);
    sequences
        .map(|(span, durations)| {
            let rows = span.clone().zip(durations);
            rows.flat_map(|(row, &count)| std::iter::repeat_n(row as u32, count)).collect()
        })
        .collect()
}

/// Embedding, two ConvNeXt blocks, one attention layer applied several times.
#[derive(Debug)]
struct TextEncoder {
    embedding: Tensor, // [SYMBOLS, width]
    convs: Vec<ConvNeXtBlock>,
    layer: EncoderLayer,
    loops: usize,
    norm: LayerNorm,
}

impl TextEncoder {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        width: usize,
        loops: usize,
    ) -> std::result::Result<Self, Error> {
        let hidden = 2 * width;
        let conv = ConvNeXtConfig { width, hidden, taps: 5, dilation: 1 };
        let layer = EncoderConfig { width, heads: ATTENTION_HEADS, hidden };
        Ok(Self {
            embedding: from.take(&format!("{name}.emb.weight"), &[SYMBOLS, width])?,
            convs: (0..2)
                .map(|index| {
                    ConvNeXtBlock::load(from, &format!("{name}.convs.{index}"), conv, Precision::F32)
                })
                .collect::<std::result::Result<_, _>>()?,
            layer: EncoderLayer::load(from, &format!("{name}.attn"), layer)?,
            loops,
            norm: LayerNorm::load(from, &format!("{name}.norm"), width)?,
        })
    }

    /// `[rows]` ids to `[rows, width]`, gaps zero.
    fn forward(&self, ids: &Tensor, packed: &PackedRows) -> Result<Tensor> {
        let mut x = packed.clear_gaps(&self.embedding.index_select(ids, 0)?)?;
        for conv in &self.convs {
            x = conv.forward(&x, packed)?;
        }
        for _ in 0..self.loops {
            x = self.layer.forward(&x, packed)?;
        }
        packed.clear_gaps(&self.norm.forward(&x)?)
    }
}

/// Pitch and energy of one sequence, one value per 12.5 ms frame.
#[derive(Debug)]
struct Contour {
    pitch_hz: Vec<f32>,
    energy: Vec<f32>,
}

#[derive(Debug)]
struct Prosody {
    text: TextEncoder,
    duration_hidden: DenseConv,
    duration: DenseConv,
    contour_in: DenseConv,
    contour_blocks: Vec<ConvNeXtBlock>,
    contour_out: DenseConv,
}

impl Prosody {
    fn load(from: &mut Checkpoint) -> std::result::Result<Self, Error> {
        let width = PROSODY_WIDTH;
        let block = |dilation| ConvNeXtConfig { width, hidden: 2 * width, taps: 7, dilation };
        Ok(Self {
            text: TextEncoder::load(from, "pn.text", width, 6)?,
            duration_hidden: DenseConv::load(from, "pn.dur.0", width, width, 3)?,
            duration: DenseConv::load(from, "pn.dur.2", width, 1, 1)?,
            contour_in: DenseConv::load(from, "pn.pro_in", width, width, 1)?,
            contour_blocks: PROSODY_DILATIONS
                .iter()
                .enumerate()
                .map(|(index, &dilation)| {
                    ConvNeXtBlock::load(from, &format!("pn.pro.{index}"), block(dilation), Precision::F32)
                })
                .collect::<std::result::Result<_, _>>()?,
            contour_out: DenseConv::load(from, "pn.pro_out", width, 4, 1)?,
        })
    }

    /// Frames of 25 ms for each phoneme of each sequence.
    fn durations(
        &self,
        text: &Tensor,
        packed: &PackedRows,
        batch: &[Utterance<'_>],
    ) -> Result<Vec<Vec<usize>>> {
        let hidden = self.duration_hidden.forward(text)?;
        let hidden = bias_gelu(&hidden, &Tensor::zeros(PROSODY_WIDTH, hidden.dtype(), hidden.device())?)?;
        let logs = self.duration.forward(&hidden)?.flatten_all()?.to_vec1::<f32>()?; // [rows]
        let sequences = packed.spans().iter().zip(batch);
        Ok(sequences.map(|(span, utterance)| whole_frames(&logs[span.clone()], utterance.speed)).collect())
    }

    /// `[rows, PROSODY_WIDTH]` to the contours of each sequence.
    fn contours(&self, expanded: &Tensor, packed: &PackedRows) -> Result<Vec<Contour>> {
        let mut x = packed.clear_gaps(&self.contour_in.forward(expanded)?)?;
        for block in &self.contour_blocks {
            yield_point();
            x = block.forward(&x, packed)?;
        }
        let rows = self.contour_out.forward(&x)?.to_vec2::<f32>()?; // [rows, 4]: two pitches, two energies
        let contour = |span: &std::ops::Range<usize>| {
            let rows = &rows[span.clone()];
            Contour {
                pitch_hz: rows.iter().flat_map(|row| [row[0] * 100.0, row[1] * 100.0]).collect(),
                energy: rows.iter().flat_map(|row| [row[2] * 5.0, row[3] * 5.0]).collect(),
            }
        };
        Ok(packed.spans().iter().map(contour).collect())
    }
}

/// Log durations to whole frames of 25 ms: at least one each, scaled down to the limit of a unit.
fn whole_frames(logs: &[f32], speed: f32) -> Vec<usize> {
    let limit = MAX_UNIT_FRAMES / 2;
    let frames = logs.iter().map(|log| {
        let frames = ((log.exp() - 1.0) / speed).round_ties_even();
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

#[derive(Debug)]
struct Decoder {
    input: DenseConv,
    blocks: Vec<ConvNeXtBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl Decoder {
    fn load(from: &mut Checkpoint, precision: Precision) -> std::result::Result<Self, Error> {
        let width = DECODER_WIDTH;
        let block = ConvNeXtConfig { width, hidden: 3 * width, taps: 7, dilation: 1 };
        Ok(Self {
            input: DenseConv::load(from, "m.dec_in", ACOUSTIC_WIDTH + 2, width, 7)?,
            blocks: (0..DECODER_BLOCKS)
                .map(|index| ConvNeXtBlock::load(from, &format!("m.dec.{index}"), block, precision))
                .collect::<std::result::Result<_, _>>()?,
            norm: LayerNorm::load(from, "m.dec_norm", width)?,
            head: Linear::load_with_precision(from, "m.head", (width, HEAD_VALUES), true, precision)?,
        })
    }

    /// `[rows, ACOUSTIC_WIDTH]` and contours to `[rows, HEAD_VALUES]`.
    fn forward(&self, text: &Tensor, contours: &[Contour], packed: &PackedRows) -> Result<Tensor> {
        let features = packed.fill(|sequence, frame| {
            let Contour { pitch_hz, energy } = &contours[sequence];
            [(1.0 + pitch_hz[frame].max(0.0)).ln() / 5.0, energy[frame] / 5.0]
        });
        let features = Tensor::from_vec(features.into_flattened(), (packed.rows(), 2), text.device())?;
        let x = Tensor::cat(&[text, &features], 1)?; // [rows, ACOUSTIC_WIDTH + 2]
        let mut x = packed.clear_gaps(&self.input.forward(&x)?)?;
        for block in &self.blocks {
            yield_point();
            x = block.forward(&x, packed)?;
        }
        self.head.forward(&self.norm.forward(&x)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_whole_positive_and_bounded() {
        assert_eq!(whole_frames(&[0.0, (6.0f32).ln(), -3.0, (3.5f32).ln()], 1.0), [1, 5, 1, 2]);
        assert_eq!(whole_frames(&[(9.0f32).ln()], 2.0), [4]);
        assert_eq!(whole_frames(&[f32::NAN, f32::NEG_INFINITY], 1.0), [1, 1]);
        let runaway = whole_frames(&[f32::INFINITY, 80.0, 1.0], 0.25);
        assert!(runaway.iter().sum::<usize>() <= MAX_UNIT_FRAMES / 2 + runaway.len(), "{runaway:?}");
    }
}
