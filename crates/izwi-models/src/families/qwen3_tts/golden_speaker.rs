//! The speaker encoder and the codes of references compared with the reference implementation.

use serde_json::Value;

use super::codec::Codec;
use super::golden_set::{TOLERANCE, assert_same, by_rows, codes, compare, device, root, tensors, values};
use super::speaker::{SpeakerConfig, SpeakerEncoder};
use crate::families::LoadOptions;
use izwi_nn::checkpoint::Checkpoint;
use izwi_types::Precision;

fn config() -> SpeakerConfig {
    let config = std::fs::read(root().join("base17/config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    serde_json::from_value(config["speaker_encoder_config"].clone()).unwrap()
}

fn encoder() -> SpeakerEncoder {
    let mut from = Checkpoint::open(&root().join("base17/model.safetensors"), &device()).unwrap();
    let encoder = SpeakerEncoder::load(&mut from, &config()).unwrap();
    let left = from.finish().unwrap_err().to_string();
    assert!(!left.contains("speaker_encoder"), "{left}");
    encoder
}

#[test]
fn qwen3_tts_golden_speaker() {
    let (encoder, golden) = (encoder(), tensors("base17.speaker"));
    let (embedding, taps) = encoder.embed_taps(&values(&golden["inputs.ref24"]));
    for (name, ours) in &taps {
        compare(name, &values(ours), &values(&by_rows(&golden[name])), TOLERANCE);
    }
    let theirs = golden.keys().filter(|name| name.starts_with("spk.")).count();
    assert_eq!(taps.len(), theirs + 1);
    compare("embedding", &values(&embedding), &values(&golden["embedding"]), TOLERANCE);
    let again = encoder.embed(&values(&golden["inputs.ref24"])).unwrap();
    assert_same("again", &again, &values(&embedding));
    let other = encoder.embed(&values(&golden["ref16_resampled_24k"])).unwrap();
    compare("embedding_ref16", &other, &values(&golden["embedding_ref16"]), TOLERANCE);
}

#[test]
fn qwen3_tts_golden_reference_codes() {
    let golden = tensors("base17.speaker");
    let options = LoadOptions::new(device(), Precision::F32);
    let codec = Codec::load(&root().join("base17/speech_tokenizer"), &options).unwrap();
    for (input, expected) in [("inputs.ref24", "ref_code24"), ("ref16_resampled_24k", "ref_code16")] {
        assert_eq!(codec.encode(&values(&golden[input])).unwrap(), codes(&golden[expected]), "{input}");
    }
}

#[test]
fn qwen3_tts_golden_speaker_refuses_what_it_cannot_compute() {
    let encoder = encoder();
    for samples in [0, 384, 600] {
        let error = encoder.embed(&vec![0.1; samples]).unwrap_err().to_string();
        assert!(error.contains("too few"), "{error}");
    }
    let mut from = Checkpoint::open(&root().join("base17/model.safetensors"), &device()).unwrap();
    let mut config = config();
    config.sample_rate = 16_000;
    let error = SpeakerEncoder::load(&mut from, &config).unwrap_err().to_string();
    assert!(error.contains("16000"), "{error}");
}
