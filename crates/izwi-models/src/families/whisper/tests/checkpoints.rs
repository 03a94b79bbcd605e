//! What checkpoints must hold, and the sizes that are told of them.

use super::*;

#[test]
fn declared_sizes_are_near_those_that_are_held() {
    let packed =
        Whisper::load(&checkpoint_folder("whisper-tiny.en"), &kept_as(Precision::Q8), SHORT).unwrap();
    // The embedding is the largest weight: half of the model.
    for model in [&packed, &TINY] {
        let (declared, embedding) = (model.info.weight_bytes, model.decoder.embedding_bytes());
        assert!((embedding..4 * embedding).contains(&declared), "{declared}, of them {embedding}");
    }
    // 9 of 32 bits, or 16 where there are no kernels for 8.
    let share = if rounds_activations() { 1.9 } else { 3.0 };
    assert!((packed.info.weight_bytes as f64) < TINY.info.weight_bytes as f64 / share);
    // A pass of the decoder is short: the engine's pool need not hold max_seq_len positions for each.
    assert_eq!(SpeechModel::max_positions(&packed), Some(448));
    let window = 2 * 4 * 1_500 * 384 * size_of::<u16>();
    assert_eq!(packed.info.state_bytes, window, "keys and values of four layers over 30 s");
}

#[test]
fn a_checkpoint_that_does_not_fit_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let from = checkpoint_folder("whisper-tiny.en");
    for file in ["model.safetensors", "tokenizer.json"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let wider = config.replace("\"encoder_layers\": 4", "\"encoder_layers\": 3");
    assert_ne!(config, wider);
    std::fs::write(folder.path().join("config.json"), wider).unwrap();
    let error = Whisper::load(folder.path(), &kept_as(Precision::F32), SHORT).unwrap_err().to_string();
    assert!(error.contains("model.encoder.layers.3.fc1.weight: unknown"), "{error}");
}

#[test]
fn a_head_that_repeats_the_embedding_is_taken_and_another_refused() {
    let folder = tempfile::tempdir().unwrap();
    let from = checkpoint_folder("whisper-tiny.en");
    for file in ["config.json", "tokenizer.json"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let mut tensors = candle_core::safetensors::load(from.join("model.safetensors"), &Device::Cpu).unwrap();
    let head = tensors["model.decoder.embed_tokens.weight"].clone();
    let mut load = |head: candle_core::Tensor| {
        tensors.insert(decoder::HEAD.to_owned(), head);
        candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
        Whisper::load(folder.path(), &kept_as(Precision::F32), SHORT).map(|_| ())
    };
    load(head.clone()).unwrap();
    let error = load((head * 2.0).unwrap()).unwrap_err().to_string();
    assert!(error.contains("proj_out.weight: differs"), "{error}");
}
