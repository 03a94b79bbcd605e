//! Phonemes of words outside the lexicon: a character transformer with CTC decoding.
//!
//! Owns the network's shape and weights. Tensor names: `oov.onnx` in the package of the default voice.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Result, Tensor};
use serde::Deserialize;

use super::json_file::read_json;
use super::phonemes::UnknownWords;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::layers::{EncoderConfig, EncoderLayer, LayerNorm, Linear, PackedRows};

const WIDTH: usize = 128;
const LAYERS: usize = 4;
/// Limit of the output steps for each letter.
const MAX_SLOTS: usize = 64;
const LAYER: EncoderConfig = EncoderConfig { width: WIDTH, heads: 4, hidden: 384 };

/// `oov.json`: the alphabets and two sizes.
#[derive(Debug, Deserialize)]
struct Alphabets {
    #[serde(rename = "in")]
    letters: Vec<char>,
    #[serde(rename = "out")]
    phonemes: Vec<char>,
    /// Output steps for each letter.
    slots: usize,
    #[serde(rename = "maxlen")]
    max_letters: usize,
}

/// The network. It runs on the CPU: words come one at a time from many threads.
#[derive(Debug)]
pub(crate) struct UnknownWordNet {
    letters: HashMap<char, u32>,
    phonemes: Vec<char>,
    slots: usize,
    max_letters: usize,
    embedding: Tensor, // [letters + 1, WIDTH]
    positions: Tensor, // [max_letters, WIDTH]
    layers: Vec<EncoderLayer>,
    norm: LayerNorm,
    head: Linear,
}

impl UnknownWordNet {
    /// Reads `oov.json` and `oov.safetensors`.
    pub(crate) fn load(folder: &Path) -> std::result::Result<Self, Error> {
        let path = folder.join("oov.json");
        let Alphabets { letters, phonemes, slots, max_letters } = read_json(&path)?;
        if !(1..=MAX_SLOTS).contains(&slots) || max_letters == 0 {
            let message =
                format!("slots {slots} must be 1 to {MAX_SLOTS}, and maxlen {max_letters} at least 1");
            return Err(Error::File { path: path.display().to_string(), message });
        }
        let mut from = Checkpoint::open(&folder.join("oov.safetensors"), &Device::Cpu)?;
        let classes = slots * (phonemes.len() + 1);
        let net = Self {
            embedding: from.take("m.emb.weight", &[letters.len() + 1, WIDTH])?,
            positions: from.take("m.pos", &[max_letters, WIDTH])?,
            layers: (0..LAYERS)
                .map(|index| EncoderLayer::load(&mut from, &format!("m.layers.{index}"), LAYER))
                .collect::<std::result::Result<_, _>>()?,
            norm: LayerNorm::load(&mut from, "m.norm", WIDTH)?,
            head: Linear::load(&mut from, "m.head", WIDTH, classes)?,
            letters: letters.into_iter().zip(1..).collect(),
            phonemes,
            slots,
            max_letters,
        };
        from.finish()?;
        Ok(net)
    }

    fn read(&self, ids: &[u32]) -> Result<String> {
        let packed = PackedRows::new(&[ids.len()], 0, &Device::Cpu)?;
        let rows = packed.gather(&self.embedding, packed.fill(|_, at| ids[at]))?;
        let places = packed.gather(&self.positions, packed.fill(|_, at| at as u32))?;
        let mut x = (rows + places)?; // [rows, WIDTH]
        for layer in &self.layers {
            x = layer.forward(&x, &packed)?;
        }
        let logits = self.head.forward(&self.norm.forward(&x)?)?.narrow(0, 0, ids.len())?;
        let steps = logits.reshape((ids.len() * self.slots, self.phonemes.len() + 1))?;
        let best = steps.argmax(1)?.to_vec1::<u32>()?;
        let mut read = String::new();
        let mut before = 0;
        for id in best {
            if id != 0 && id != before {
                read.extend(self.phonemes.get(id as usize - 1));
            }
            before = id;
        }
        Ok(read)
    }
}

impl UnknownWords for UnknownWordNet {
    fn phonemes(&self, word: &str) -> Option<String> {
        let ids: Vec<u32> = word.chars().filter_map(|c| self.letters.get(&c).copied()).collect();
        let mut read = String::new();
        for part in ids.chunks(self.max_letters) {
            match self.read(part) {
                Ok(phonemes) => read.push_str(&phonemes),
                Err(error) => tracing::warn!(%error, "the network for unknown words failed on a word"),
            }
        }
        (!read.is_empty()).then_some(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_word_can_be_read_with_are_refused() {
        for (slots, max_letters) in [(0, 24), (MAX_SLOTS + 1, 24), (usize::MAX, 24), (4, 0)] {
            let folder = tempfile::tempdir().unwrap();
            let text = format!(r#"{{"in":["A"],"out":["a"],"slots":{slots},"maxlen":{max_letters}}}"#);
            std::fs::write(folder.path().join("oov.json"), text).unwrap();
            let error = UnknownWordNet::load(folder.path()).unwrap_err().to_string();
            assert!(error.contains(&format!("slots {slots} must be 1 to 64")), "{error}");
        }
    }
}
