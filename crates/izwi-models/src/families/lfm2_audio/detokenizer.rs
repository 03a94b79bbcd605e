//! The detokenizer of `audio_detokenizer/`: frames of codes to samples by way of spectra, in streams of constant memory.
//!
//! Owns reading the folder and what a stream holds back. Source: the Python package `liquid-audio` 1.3.0 (pip;
//! `detokenizer.py`).

mod config;
mod stack;

use std::path::Path;

use candle_core::{Device, Result, Tensor, bail};
use rayon::prelude::*;
use realfft::num_complex::Complex32;

use self::stack::Stack;
use crate::families::LoadOptions;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::istft::{InverseStft, Overlap};
use izwi_nn::codec::stream::{Pieces, StreamShape, StreamState, Streams};
use izwi_nn::layers::{Embedding, Linear};
use izwi_types::Precision;

pub(crate) use self::config::Config;

/// Rate of the samples, in Hz.
const SAMPLE_RATE_HZ: usize = 24_000;
/// Codes of a frame.
const CODEBOOKS: usize = 8;
/// Entries of a codebook: one less than in the language model, which has a code for the end of audio.
const ENTRIES: usize = 2048;
/// Spectra of a frame.
const SPECTRA_PER_FRAME: usize = 6;
/// Samples from one spectrum to the next.
const HOP: usize = 320;
/// Samples of a transform.
const TRANSFORM: usize = 1280;
/// Magnitudes of a spectrum, and phases.
const BINS: usize = TRANSFORM / 2 + 1;
/// Frames of one sequence in one pass.
const PIECE_FRAMES: usize = 8;

type Loaded<T> = std::result::Result<T, Error>;

/// The detokenizer.
#[derive(Debug)]
pub(crate) struct Detokenizer {
    device: Device,
    shape: StreamShape,
    codebooks: Embedding,
    stack: Stack,
    output: Linear,
    inverse: InverseStft,
    weight_bytes: usize,
}

/// State of one stream of frames; a fresh one holds nothing, any other the same number of bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct DecoderState {
    stream: StreamState,
    overlap: Overlap,
}

impl DecoderState {
    /// Bytes held.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> usize {
        self.stream.bytes() + self.overlap.bytes()
    }
}

impl Detokenizer {
    /// Reads the folder `audio_detokenizer` of a checkpoint.
    ///
    /// # Errors
    /// A file is absent, the configuration lacks a field or asks for what is not computed, or the tensors are not
    /// exactly those it implies.
    pub(crate) fn load(folder: &Path, options: &LoadOptions) -> Loaded<Self> {
        let config = Config::load(folder)?;
        let from = Checkpoint::open(&folder.join("model.safetensors"), &options.device)?;
        let mut from = options.cached(from, options.precision);
        let detokenizer = Self::from_checkpoint(&mut from, &config, options.precision)?;
        from.finish()?;
        Ok(detokenizer)
    }

    /// Takes everything; the caller finishes the checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(crate) fn from_checkpoint(
        from: &mut Checkpoint,
        config: &Config,
        precision: Precision,
    ) -> Loaded<Self> {
        // An embedding of text tokens, unused in inference.
        from.skip(|name| name == "lfm.embed_tokens.weight");
        let before = from.taken();
        let width = config.hidden_size;
        let mut shape = StreamShape::default();
        let codebooks = Embedding::load(from, "emb.emb", CODEBOOKS * ENTRIES, width)?;
        let stack = Stack::load(from, "lfm", config, precision, &mut shape)?;
        let output = Linear::load_with_precision(from, "lin", (width, 2 * BINS), true, precision)?;
        let window = from.take("istft.window", &[TRANSFORM])?.to_device(&Device::Cpu)?.to_vec1()?;
        let large = (from.taken() - before).saturating_sub(CODEBOOKS * ENTRIES * width);
        Ok(Self {
            device: from.device().clone(),
            weight_bytes: codebooks.bytes() + large * bytes_per_weight(precision),
            codebooks,
            stack,
            output,
            inverse: InverseStft::new(window, HOP).map_err(Error::Checkpoint)?,
            shape,
        })
    }

    /// Samples of one frame.
    pub(crate) fn samples_per_frame(&self) -> usize {
        SPECTRA_PER_FRAME * HOP
    }

    /// Samples that a stream holds back until [`Self::finish`].
    pub(crate) fn held_back(&self) -> usize {
        self.inverse.held_back()
    }

    /// Rate of the samples, in Hz.
    pub(crate) fn sample_rate(&self) -> usize {
        SAMPLE_RATE_HZ
    }

    /// Entries of a codebook: every code is below.
    pub(crate) fn codebook_size(&self) -> usize {
        ENTRIES
    }

    /// Bytes of the weights, nearly.
    pub(crate) fn bytes(&self) -> usize {
        self.weight_bytes
    }

    /// Bytes of a state once it has seen a frame.
    pub(crate) fn state_bytes(&self) -> usize {
        self.shape.bytes() + self.inverse.state_bytes()
    }

    /// The state of a new stream.
    pub(crate) fn start(&self) -> DecoderState {
        DecoderState::default()
    }

    /// New frames of several streams to the samples that no later frame changes: [`Self::samples_per_frame`] for each
    /// frame, less [`Self::held_back`] for a stream's first. All streams go through each layer together; on the CPU what
    /// a stream gets is the same to the bit alone, among others and however its frames are split.
    ///
    /// # Errors
    /// A frame has another number of codes or a code that is too large. The states are then undefined and must be
    /// dropped.
    pub(crate) fn decode(&self, batch: &mut [(&mut DecoderState, &[Vec<u32>])]) -> Loaded<Vec<Vec<f32>>> {
        let pieces = Pieces { shape: &self.shape, device: &self.device, frames: PIECE_FRAMES };
        let mut streams: Vec<_> =
            batch.iter_mut().map(|(state, frames)| (&mut state.stream, *frames)).collect();
        let spectra = pieces.run(&mut streams, |frames, streams| self.forward(frames, streams))?;
        let overlaps: Vec<_> = batch.iter_mut().map(|(state, _)| &mut state.overlap).collect();
        let samples = overlaps.into_par_iter().zip(spectra).map(|(overlap, spectra)| {
            let count = spectra.len() / (2 * BINS);
            let mut samples = Vec::with_capacity(count * HOP);
            let spectrum = |frame: usize, to: &mut [Complex32]| {
                let (magnitudes, phases) = spectra[frame * 2 * BINS..][..2 * BINS].split_at(BINS);
                for (to, (magnitude, &phase)) in to.iter_mut().zip(magnitudes.iter().zip(phases)) {
                    *to = Complex32::from_polar(magnitude.exp(), phase);
                }
            };
            if count > 0 {
                self.inverse.push(overlap, count, spectrum, &mut samples);
            }
            samples
        });
        Ok(samples.collect())
    }

    /// The samples a stream holds back, none where it had no frame; the state is then that of a new stream.
    pub(crate) fn finish(&self, state: &mut DecoderState) -> Vec<f32> {
        let mut state = std::mem::take(state);
        self.inverse.finish(&mut state.overlap)
    }

    /// New frames of every stream, one after another, to logarithms of magnitudes and phases
    /// `[SPECTRA_PER_FRAME * frames, 2 * BINS]` in the same order.
    fn forward(&self, frames: &[&Vec<u32>], streams: &mut Streams<'_>) -> Result<Tensor> {
        let mut ids = Vec::with_capacity(frames.len() * CODEBOOKS);
        for codes in frames {
            if codes.len() != CODEBOOKS {
                bail!("codes: {} for {CODEBOOKS} codebooks", codes.len())
            }
            for (codebook, &code) in codes.iter().enumerate() {
                if code as usize >= ENTRIES {
                    bail!("code {code} is out of range for a codebook of {ENTRIES}")
                }
                ids.push((codebook * ENTRIES) as u32 + code);
            }
        }
        let x = self.codebooks.forward(&ids)?;
        let (count, width) = (frames.len(), x.dim(1)?);
        let x = (x.reshape((count, CODEBOOKS, width))?.sum(1)? * (1.0 / CODEBOOKS as f64))?; // [frames, width]
        streams.tap(|| "emb".to_owned(), &x);
        streams.multiply(SPECTRA_PER_FRAME);
        let repeated = x.unsqueeze(1)?.broadcast_as((count, SPECTRA_PER_FRAME, width))?;
        let x = repeated.contiguous()?.reshape((count * SPECTRA_PER_FRAME, width))?;
        let x = self.stack.forward(&x, streams)?;
        streams.tap(|| "lfm".to_owned(), &x);
        let y = self.output.forward(&x)?;
        streams.tap(|| "lin".to_owned(), &y);
        Ok(y)
    }
}

fn bytes_per_weight(precision: Precision) -> usize {
    match precision {
        Precision::F32 => size_of::<f32>(),
        Precision::Bf16 | Precision::F16 => 2,
        Precision::Auto | Precision::Q8 | Precision::Q4 => 1,
    }
}

/// For tests: intermediate results.
#[cfg(test)]
impl Detokenizer {
    /// Decodes a fresh stream in one piece and answers every intermediate result.
    pub(super) fn decode_taps(&self, frames: &[Vec<u32>]) -> Vec<(String, Tensor)> {
        let mut state = self.start();
        let mut streams =
            Streams::new(&self.shape, vec![&mut state.stream], vec![frames.len()], &self.device).unwrap();
        streams.record();
        self.forward(&frames.iter().collect::<Vec<_>>(), &mut streams).unwrap();
        streams.take_taps()
    }
}
