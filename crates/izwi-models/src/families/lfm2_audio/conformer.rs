//! The audio encoder and its adapter: mel frames of several recordings to rows of the language model.
//!
//! Source: the Python package `liquid-audio` 1.3.0 (pip).

mod config;

use candle_core::Tensor;

pub(crate) use self::config::Config;
use crate::conformer::{Encoder, Mel};
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
#[cfg(test)]
use izwi_nn::layers::PackedRows;
use izwi_nn::layers::{Epilogue, Fused, LayerNorm, Linear, Norm};
use izwi_types::Precision;

type Loaded<T> = Result<T, Error>;

/// The encoder and the adapter.
#[derive(Debug)]
pub(crate) struct AudioEncoder {
    encoder: Encoder,
    adapter: Adapter,
}

impl AudioEncoder {
    /// Takes `conformer.*` and `audio_adapter.*`; `hidden` is the width of the language model's rows. Large weights are
    /// kept in `precision`.
    ///
    /// # Errors
    /// As [`Checkpoint::take`].
    pub(crate) fn load(
        from: &mut Checkpoint,
        config: &Config,
        hidden: usize,
        precision: Precision,
    ) -> Loaded<Self> {
        let shape = config.shape();
        Ok(Self {
            encoder: Encoder::load(from, "conformer", shape, precision)?,
            adapter: Adapter::load(from, "audio_adapter.model", (shape.width, hidden), precision)?,
        })
    }

    /// Encodes each recording, which has a frame at least: `[ceil(frames / 8), hidden]`. On the CPU a recording's result
    /// is the same bits whatever others there are.
    ///
    /// # Errors
    /// Out of device memory.
    pub(crate) fn forward(&self, recordings: &[&Mel]) -> Loaded<Vec<Tensor>> {
        if recordings.is_empty() {
            return Ok(Vec::new());
        }
        self.adapt(recordings, &self.encoder.forward(recordings)?)
    }

    fn adapt(&self, recordings: &[&Mel], x: &Tensor) -> Loaded<Vec<Tensor>> {
        let y = self.adapter.forward(x)?;
        let mut start = 0;
        let mut encoded = Vec::with_capacity(recordings.len());
        for mel in recordings {
            encoded.push(y.narrow(0, start, mel.rows())?);
            start += mel.rows();
        }
        Ok(encoded)
    }
}

/// A norm and two linear layers with GELU between: the encoder's rows to the language model's.
#[derive(Debug)]
struct Adapter {
    norm: LayerNorm,
    fc1: Linear,
    output: Linear,
}

impl Adapter {
    fn load(
        from: &mut Checkpoint,
        name: &str,
        (width, hidden): (usize, usize),
        precision: Precision,
    ) -> Loaded<Self> {
        let fc1 = format!("{name}.1");
        Ok(Self {
            norm: LayerNorm::load(from, &format!("{name}.0"), width)?,
            fc1: Linear::load_with_precision(from, &fc1, (width, hidden), true, precision)?,
            output: Linear::load_with_precision(
                from,
                &format!("{name}.3"),
                (hidden, hidden),
                true,
                precision,
            )?,
        })
    }

    fn forward(&self, x: &Tensor) -> Loaded<Tensor> {
        let gelu =
            Fused { norm: Some(Norm::Layer(&self.norm)), epilogue: Epilogue::Gelu, ..Fused::default() };
        Ok(self.output.forward(&self.fc1.forward_fused(x, gelu)?)?)
    }
}

/// For tests: intermediate results, recording by recording.
#[cfg(test)]
impl AudioEncoder {
    /// The output of each layer for each recording, with its name.
    pub(super) fn taps(&self, recordings: &[&Mel]) -> Vec<(String, Vec<Tensor>)> {
        let mut taps = Vec::new();
        let keep = |name: &str, x: &Tensor, packed: &PackedRows| {
            let rows = packed.spans().iter().map(|span| x.narrow(0, span.start, span.len()).unwrap());
            taps.push((name.to_owned(), rows.collect()));
            Ok(())
        };
        let rows = self.encoder.forward_tapped(recordings, keep).unwrap();
        taps.push(("adapter".to_owned(), self.adapt(recordings, &rows).unwrap()));
        taps
    }
}
