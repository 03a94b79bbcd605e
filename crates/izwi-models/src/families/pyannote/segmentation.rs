//! Who speaks in each frame of a window of 10 s, up to three speakers and two at once: band-pass filters, convolutions,
//! recurrent layers in both directions, and a class for each set of speakers.
//!
//! Source of the architecture: `PyanNet` and `SincNet` of the Python package `pyannote.audio` 4.0, and the powerset classes of
//! <https://arxiv.org/abs/2310.13025>.

use std::ops::Range;

use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

use super::config::Sizes;
use izwi_kernels::elementwise::{Activated, instance_norm};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::conv::{Conv1d, Padding};
use izwi_nn::layers::{BiLstm, Linear, PackedRows};
use izwi_nn::slices::with_slices;
use izwi_nn::yielding::yield_point;
use izwi_types::Precision;

/// Samples of a window.
pub(super) const WINDOW: usize = 160_000;
/// Samples from one band-pass value to the next, and rows of values that are pooled.
const STRIDE: usize = 10;
const POOL: usize = 3;
/// Frames of a window.
pub(super) const FRAMES: usize = 589;
/// Speakers of a window.
pub(super) const SPEAKERS: usize = 3;
/// The speakers of each class, a bit for each.
const CLASSES: [u8; 7] = [0b000, 0b001, 0b010, 0b100, 0b011, 0b101, 0b110];
/// Of the band-pass filters: the lowest frequency and the narrowest band, and the highest frequency, in Hz.
const LEAST_HZ: f64 = 50.0;
const HIGHEST_HZ: f64 = 8_000.0;
const SLOPE: f64 = 0.01;
const EPS: f32 = 1e-5;
/// Windows that are computed in parallel, from one yield point to the next.
const PARALLEL_WINDOWS: usize = 4;

/// The weights, on the CPU.
#[derive(Debug)]
pub(super) struct Segmentation {
    wave: Norm,
    convs: Vec<(Conv1d, Norm)>,
    lstm: Vec<BiLstm>,
    linear: Vec<Linear>,
    classifier: Linear,
}

/// Scale less 1 and shift of a normalisation over the window.
#[derive(Debug)]
struct Norm {
    scale: Vec<f32>,
    shift: Vec<f32>,
}

impl Norm {
    fn load(from: &mut Checkpoint, name: &str, channels: usize) -> std::result::Result<Self, Error> {
        let scale = (from.take(&format!("{name}.weight"), &[channels])? - 1.0)?.to_vec1()?;
        Ok(Self { scale, shift: from.take(&format!("{name}.bias"), &[channels])?.to_vec1()? })
    }

    /// `x` `[rows, channels]`, with a slope below 0.
    fn forward(&self, x: &[f32]) -> Result<Tensor> {
        let mut y = vec![0f32; x.len()];
        let activated = Activated::LeakyRelu(SLOPE as f32);
        instance_norm(x, [&self.scale, &self.shift], EPS, activated, &mut y);
        Tensor::from_vec(y, (x.len() / self.scale.len(), self.scale.len()), &Device::Cpu)
    }
}

impl Segmentation {
    /// Takes all of a checkpoint.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(super) fn load(from: &mut Checkpoint, sizes: &Sizes) -> std::result::Result<Self, Error> {
        let wave = Norm::load(from, "sincnet.wav_norm1d", 1)?;
        let filters = filters(from, sizes)?;
        let mut convs = Vec::new();
        let mut inputs = 2 * sizes.bands;
        convs.push((filters, Norm::load(from, "sincnet.norm1d.0", inputs)?));
        for (layer, &[outputs, taps]) in (1..).zip(&sizes.convs) {
            let weight = from.take(&format!("sincnet.conv1d.{layer}.weight"), &[outputs, inputs, taps])?;
            let bias = from.take(&format!("sincnet.conv1d.{layer}.bias"), &[outputs])?;
            let norm = Norm::load(from, &format!("sincnet.norm1d.{layer}"), outputs)?;
            convs.push((Conv1d::new(&weight, Some(bias), 1)?, norm));
            inputs = outputs;
        }
        let mut lstm = Vec::new();
        for layer in 0..sizes.lstm_layers {
            lstm.push(BiLstm::load(from, "lstm", layer, (inputs, sizes.hidden), Precision::F32)?);
            inputs = 2 * sizes.hidden;
        }
        let mut linear = Vec::new();
        for (layer, &outputs) in sizes.linear.iter().enumerate() {
            let name = format!("linear.{layer}");
            linear.push(Linear::load_with_precision(from, &name, (inputs, outputs), true, Precision::F32)?);
            inputs = outputs;
        }
        let classes = (inputs, CLASSES.len());
        let classifier = Linear::load_with_precision(from, "classifier", classes, true, Precision::F32)?;
        Ok(Self { wave, convs, lstm, linear, classifier })
    }

    /// The speakers of each frame of windows of [`WINDOW`] samples, a bit for each.
    ///
    /// # Errors
    /// A window has another length.
    pub(super) fn speakers(&self, windows: &[&[f32]]) -> Result<Vec<Vec<u8>>> {
        let scores = self.scores(windows)?;
        let class = |scores: &[f32]| {
            // The first of equals.
            let best = (0..CLASSES.len()).rev().max_by(|&a, &b| scores[a].total_cmp(&scores[b]));
            CLASSES[best.unwrap_or(0)]
        };
        with_slices([&scores], |[scores]| {
            let windows = scores.chunks_exact(FRAMES * CLASSES.len());
            windows.map(|window| window.chunks_exact(CLASSES.len()).map(class).collect()).collect()
        })
    }

    /// The score of each class in each frame, `[windows * FRAMES, classes]`.
    pub(super) fn scores(&self, windows: &[&[f32]]) -> Result<Tensor> {
        let mut rows = Vec::with_capacity(windows.len());
        for windows in windows.chunks(PARALLEL_WINDOWS) {
            yield_point();
            rows.extend(windows.par_iter().map(|window| self.rows(window)).collect::<Result<Vec<_>>>()?);
        }
        let mut x = Tensor::cat(&rows, 0)?; // [windows * FRAMES, channels]
        let packed = PackedRows::dense(&vec![FRAMES; windows.len()], &Device::Cpu)?;
        for lstm in &self.lstm {
            yield_point();
            x = lstm.forward(&x, &packed)?;
        }
        for linear in &self.linear {
            x = candle_nn::ops::leaky_relu(&linear.forward(&x)?, SLOPE)?;
        }
        self.classifier.forward(&x)
    }

    /// A window before the recurrent layers, `[FRAMES, channels]`.
    fn rows(&self, window: &[f32]) -> Result<Tensor> {
        let window = self.normalised(window);
        let mut x = Tensor::from_vec(window, (WINDOW / STRIDE, STRIDE), &Device::Cpu)?;
        for (layer, (conv, norm)) in self.convs.iter().enumerate() {
            let y = conv.forward_padded(&x, (Padding::Zero, [0, 0]), 1, None)?;
            let pooled = with_slices([&y], |[y]| pooled(y, conv.outputs(), layer == 0))?;
            x = norm.forward(&pooled)?;
        }
        Ok(x)
    }

    /// Samples of mean 0 and variance 1, scaled and shifted.
    fn normalised(&self, window: &[f32]) -> Vec<f32> {
        let count = window.len().max(1) as f64;
        let mean = window.iter().map(|&x| f64::from(x)).sum::<f64>() / count;
        let variance = window.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / count;
        let scale = f64::from(1.0 + self.wave.scale[0]) / (variance + f64::from(EPS)).sqrt();
        let shift = f64::from(self.wave.shift[0]);
        window.iter().map(|&x| ((f64::from(x) - mean) * scale + shift) as f32).collect()
    }
}

/// The largest of each [`POOL`] rows, in magnitude for the first layer; what is left over is dropped.
fn pooled(x: &[f32], channels: usize, is_absolute: bool) -> Vec<f32> {
    if is_absolute { largest(x, channels, f32::abs) } else { largest(x, channels, |x| x) }
}

fn largest(x: &[f32], channels: usize, value: impl Fn(f32) -> f32) -> Vec<f32> {
    let most = |one: f32, other: f32| if one > other { one } else { other };
    let mut pooled = Vec::with_capacity(x.len() / POOL + channels);
    for rows in x.chunks_exact(POOL * channels) {
        let (first, rest) = rows.split_at(channels);
        let start = pooled.len();
        pooled.extend(first.iter().map(|&x| value(x)));
        for row in rest.chunks_exact(channels) {
            pooled[start..].iter_mut().zip(row).for_each(|(largest, &x)| *largest = most(*largest, value(x)));
        }
    }
    pooled
}

/// The band-pass filters as a convolution over rows of [`STRIDE`] samples.
fn filters(from: &mut Checkpoint, sizes: &Sizes) -> std::result::Result<Conv1d, Error> {
    let Sizes { bands, half, .. } = *sizes;
    let mut take = |part: &str, shape: &[usize]| {
        let tensor = from.take(&format!("sincnet.conv1d.0.filterbank.{part}"), shape)?;
        Ok::<_, Error>(tensor.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f64::from).collect::<Vec<_>>())
    };
    let (low, band) = (take("low_hz_", &[bands, 1])?, take("band_hz_", &[bands, 1])?);
    let (window, times) = (take("window_", &[half])?, take("n_", &[1, half])?);
    let edges: Vec<Range<f64>> = low
        .iter()
        .zip(&band)
        .map(|(low, band)| {
            let low = LEAST_HZ + low.abs();
            low..(low + LEAST_HZ + band.abs()).clamp(LEAST_HZ, HIGHEST_HZ)
        })
        .collect();
    let taps = (2 * half + 1).div_ceil(STRIDE);
    // [2 * bands, STRIDE, taps]
    let mut weight = vec![0f32; 2 * bands * STRIDE * taps];
    for (filter, weight) in weight.chunks_exact_mut(STRIDE * taps).enumerate() {
        let Range { start: low, end: high } = edges[filter % bands];
        let is_odd = filter >= bands;
        let width = high - low;
        let mut set = |at: usize, value: f64| weight[at % STRIDE * taps + at / STRIDE] = value as f32;
        for (at, (time, window)) in times.iter().zip(&window).enumerate() {
            let [low, high] = [low * time, high * time];
            let wave = if is_odd { low.cos() - high.cos() } else { high.sin() - low.sin() };
            let value = wave / (time / 2.0) * window / (2.0 * width);
            set(at, value);
            set(2 * half - at, if is_odd { -value } else { value });
        }
        set(half, if is_odd { 0.0 } else { 1.0 });
    }
    let weight = Tensor::from_vec(weight, (2 * bands, STRIDE, taps), &Device::Cpu)?;
    Ok(Conv1d::new(&weight, None, 1)?)
}
