//! What a chunk of the codec asks of an emulated Metal device, with the published layer counts and small widths.

use candle_core::DType;
use serde_json::json;

use super::codec::{Codec, Config, DecoderState};
use super::golden_set::device;
use crate::frame_driver::FrameCodec;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::emulated_metal::{Counts, counts, reset, text};
use izwi_types::Precision;

/// The published configuration with small widths.
fn small() -> Config {
    let mut config: serde_json::Value = serde_json::from_str(include_str!("shapes/codec.json")).unwrap();
    let mut set = |part: &str, sizes: serde_json::Value| {
        for (name, size) in sizes.as_object().unwrap() {
            config[part][name] = size.clone();
        }
    };
    set(
        "decoder_config",
        json!({
            "codebook_dim": 32, "codebook_size": 64, "latent_dim": 32, "hidden_size": 32, "head_dim": 16,
            "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 64, "decoder_dim": 64
        }),
    );
    set(
        "encoder_config",
        json!({
            "codebook_dim": 16, "codebook_size": 64, "hidden_size": 32, "head_dim": 8, "num_filters": 4,
            "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 64,
            "vector_quantization_hidden_dimension": 16
        }),
    );
    Config::parse(&config.to_string()).unwrap()
}

/// The second chunk of `frames` frames of each of `batch` streams.
fn chunk(codec: &Codec, batch: usize, frames: usize) -> Counts {
    let codes: Vec<Vec<u32>> =
        (0..frames as u32).map(|frame| vec![7 * frame % 64; codec.codebooks()]).collect();
    let mut states: Vec<DecoderState> = (0..batch).map(|_| codec.start()).collect();
    for _ in 0..2 {
        reset();
        let mut streams: Vec<_> = states.iter_mut().map(|state| (state, &codes[..])).collect();
        let samples = codec.decode(&mut streams).unwrap();
        assert!(samples.iter().all(|samples| samples.len() == frames * codec.samples_per_frame()));
    }
    println!("{}", text(&format!("{batch} streams, {frames} frames")));
    counts()
}

#[test]
fn a_codec_chunk_is_within_its_budget_for_any_batch() {
    if !device().is_metal() {
        return;
    }
    let mut weights = Checkpoint::random(&device(), DType::F32);
    let codec = Codec::from_checkpoint(&mut weights, &small(), Precision::F32).unwrap();
    for (batch, frames) in [(1, 1), (1, 4), (8, 1), (8, 4)] {
        let counts = chunk(&codec, batch, frames);
        assert!(counts.dispatches <= 90, "{batch} {frames}: {} dispatches", counts.dispatches);
        assert!(counts.uploads <= 3, "{batch} {frames}: {} uploads", counts.uploads);
        assert!(counts.waits <= 1, "{batch} {frames}: {} waits", counts.waits);
    }
}

#[test]
fn encoding_a_second_of_a_recording_is_within_its_budget() {
    if !device().is_metal() {
        return;
    }
    let mut weights = Checkpoint::random(&device(), DType::F32);
    let codec = Codec::from_checkpoint(&mut weights, &small(), Precision::F32).unwrap();
    let samples: Vec<f32> = (0..24_000).map(|at| (at as f32 * 0.05).sin()).collect();
    codec.encode(&samples).unwrap();
    reset();
    codec.encode(&samples).unwrap();
    println!("{}", text("a second"));
    // Two pieces of 14 convolutions, 8 layers of 6 kernels, and the quantisers.
    assert!(counts().dispatches <= 100, "{} dispatches", counts().dispatches);
    assert!(counts().waits <= 2, "{} waits", counts().waits);
}
