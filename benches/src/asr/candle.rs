//! candle-transformers' Whisper as its example uses it, greedy: the plain library on the same work.
//! <https://github.com/huggingface/candle/blob/main/candle-examples/examples/whisper/main.rs>
//!
//! In its favour: no fallback to higher temperatures, no timestamps, the language is given, and windows that hold
//! only the padding its front end adds are left out.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::{D, Device, IndexOp as _, Tensor};
use candle_nn::VarBuilder;
use candle_nn::ops::softmax;
use candle_transformers::models::whisper::model::Whisper;
use candle_transformers::models::whisper::{self, Config, audio};
use tokenizers::Tokenizer;

/// The model with the state of its example.
pub(crate) struct Transcriber {
    model: Whisper,
    config: Config,
    tokenizer: Tokenizer,
    filters: Vec<f32>,
    /// Minus infinity for tokens that are never chosen.
    suppressed: Tensor,
    prompt: Vec<u32>,
    end: u32,
}

impl Transcriber {
    /// Loads a model's folder, weights widened to f32.
    pub(crate) fn load(folder: &Path) -> Result<Self> {
        let config: Config = serde_json::from_slice(&std::fs::read(folder.join("config.json"))?)?;
        let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json")).map_err(anyhow::Error::msg)?;
        let weights = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu)?;
        let model =
            Whisper::load(&VarBuilder::from_tensors(weights, whisper::DTYPE, &Device::Cpu), config.clone())?;
        let token = |text: &str| tokenizer.token_to_id(text).with_context(|| format!("no token {text}"));
        let mut prompt = vec![token(whisper::SOT_TOKEN)?];
        // Only multilingual models take a language token.
        prompt.extend(tokenizer.token_to_id("<|en|>").filter(|_| config.vocab_size > 51_864));
        prompt.extend([token(whisper::TRANSCRIBE_TOKEN)?, token(whisper::NO_TIMESTAMPS_TOKEN)?]);
        let suppressed = (0..config.vocab_size as u32)
            .map(|id| if config.suppress_tokens.contains(&id) { f32::NEG_INFINITY } else { 0.0 })
            .collect::<Vec<f32>>();
        let suppressed = Tensor::new(suppressed, &Device::Cpu)?;
        let end = token(whisper::EOT_TOKEN)?;
        let filters = mel_filters(config.num_mel_bins);
        Ok(Self { model, config, tokenizer, filters, suppressed, prompt, end })
    }

    /// The text of a recording at 16 kHz, window after window.
    pub(crate) fn transcribe(&mut self, samples: &[f32]) -> Result<String> {
        let mel = audio::pcm_to_mel(&self.config, samples, &self.filters);
        let frames = mel.len() / self.config.num_mel_bins;
        let mel = Tensor::from_vec(mel, (1, self.config.num_mel_bins, frames), &Device::Cpu)?; // [1, mel, T]
        let mut text = String::new();
        for start in (0..samples.len() / whisper::HOP_LENGTH).step_by(whisper::N_FRAMES) {
            let window = mel.narrow(2, start, whisper::N_FRAMES.min(frames - start))?;
            text.push_str(&self.window(&window)?);
        }
        Ok(text.trim().to_owned())
    }

    fn window(&mut self, mel: &Tensor) -> Result<String> {
        let audio = self.model.encoder.forward(mel, true)?; // [1, T/2, C]
        let mut tokens = self.prompt.clone();
        let mut log_probability = 0.0;
        for step in 0..self.config.max_target_positions / 2 {
            let input = Tensor::new(tokens.as_slice(), &Device::Cpu)?.unsqueeze(0)?; // [1, N]
            let hidden = self.model.decoder.forward(&input, &audio, step == 0)?; // [1, N, C]
            if step == 0 {
                // The example looks at the probability of silence here.
                softmax(&self.model.decoder.final_linear(&hidden.i(..1)?)?.i(0)?.i(0)?, 0)?;
            }
            let last = hidden.i((..1, tokens.len() - 1..))?;
            let logits = self.model.decoder.final_linear(&last)?.i(0)?.i(0)?; // [V]
            let logits = logits.broadcast_add(&self.suppressed)?;
            let next = logits.argmax(D::Minus1)?.to_scalar::<u32>()?;
            let probability = softmax(&logits, D::Minus1)?.i(next as usize)?.to_scalar::<f32>()?;
            tokens.push(next);
            if next == self.end || tokens.len() > self.config.max_target_positions {
                break;
            }
            log_probability += probability.ln();
        }
        // As the example reports it.
        std::hint::black_box(log_probability / tokens.len() as f32);
        self.tokenizer.decode(&tokens, true).map_err(anyhow::Error::msg)
    }
}

/// Slaney's filters over the 201 bins of a 400-point transform at 16 kHz, as librosa makes them; row after row.
/// <https://librosa.org/doc/main/generated/librosa.filters.mel.html>
fn mel_filters(count: usize) -> Vec<f32> {
    const HZ_PER_MEL: f64 = 200.0 / 3.0;
    const LINEAR_TO_HZ: f64 = 1_000.0;
    const LINEAR_TO_MEL: f64 = LINEAR_TO_HZ / HZ_PER_MEL;
    let step = 6.4_f64.ln() / 27.0;
    let rate = whisper::SAMPLE_RATE as f64;
    let bins = whisper::N_FFT / 2 + 1;
    let top = LINEAR_TO_MEL + (rate / 2.0 / LINEAR_TO_HZ).ln() / step;
    let hz = |mel: f64| match mel {
        mel if mel < LINEAR_TO_MEL => mel * HZ_PER_MEL,
        mel => LINEAR_TO_HZ * ((mel - LINEAR_TO_MEL) * step).exp(),
    };
    let edges: Vec<f64> = (0..count + 2).map(|i| hz(top * i as f64 / (count + 1) as f64)).collect();
    let mut filters = Vec::with_capacity(count * bins);
    for edge in edges.windows(3) {
        let (low, middle, high) = (edge[0], edge[1], edge[2]);
        for bin in 0..bins {
            let frequency = bin as f64 * rate / whisper::N_FFT as f64;
            let slope = ((frequency - low) / (middle - low)).min((high - frequency) / (high - middle));
            filters.push((slope.max(0.0) * 2.0 / (high - low)) as f32);
        }
    }
    filters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_librosas() {
        let filters = mel_filters(80);
        assert_eq!(filters.len(), 80 * 201);
        // librosa.filters.mel(sr=16000, n_fft=400, n_mels=80)
        for (mel, bin, expected) in [(0, 1, 0.024_862_6), (40, 43, 0.014_735_6), (79, 199, 0.000_448_8)] {
            let found = filters[mel * 201 + bin];
            assert!((found - expected).abs() < 1e-6, "{mel}, {bin}: {found}");
        }
    }
}
