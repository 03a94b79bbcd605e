//! What the codecs and the encoder ask of an emulated Metal device, with the published layer counts and small widths.

use candle_core::DType;
use serde_json::json;

use super::conformer::{self, AudioEncoder};
use super::detokenizer::{self, Detokenizer};
use super::golden_set::device;
use crate::conformer::Mel;
use crate::families::golden_set::metal_device;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::mimi::{self, Mimi};
use izwi_nn::emulated_metal::{Counts, counts, reset, text};
use izwi_types::Precision;

/// Frames of 8 codes.
fn frames(count: usize) -> Vec<Vec<u32>> {
    (0..count as u32).map(|frame| vec![5 * frame % 64; 8]).collect()
}

/// Counts of the second of two runs.
fn second(what: &str, mut run: impl FnMut()) -> Counts {
    run();
    reset();
    run();
    println!("{}", text(what));
    counts()
}

#[test]
fn a_mimi_chunk_is_within_its_budget_for_any_batch() {
    if metal_device().is_none() {
        return;
    }
    let small = mimi::Config {
        width: 64,
        codebook_width: 16,
        entries: 64,
        feed_forward: 128,
        filters: 4,
        ..mimi::Config::published()
    };
    let mut weights = Checkpoint::random(&device(), DType::F32);
    let mimi = Mimi::from_checkpoint(&mut weights, 8, &small, Precision::F32).unwrap();
    for (batch, count) in [(1, 1), (1, 4), (8, 1)] {
        let frames = frames(count);
        let mut states: Vec<_> = (0..batch).map(|_| mimi.start()).collect();
        let counts = second(&format!("{batch} streams, {count} frames"), || {
            let mut streams: Vec<_> = states.iter_mut().map(|state| (state, &frames[..])).collect();
            mimi.decode(&mut streams).unwrap();
        });
        assert!(counts.dispatches <= 65, "{batch} {count}: {} dispatches", counts.dispatches);
        assert!(counts.uploads <= 3 && counts.waits <= 1, "{batch} {count}: {counts:?}");
    }
}

#[test]
fn a_detokenizer_chunk_is_within_its_budget_for_any_batch() {
    if metal_device().is_none() {
        return;
    }
    let kind = |layer: usize| if layer % 2 == 0 { "conv" } else { "sliding_attention" };
    let config = json!({
        "hidden_size": 64, "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 128, "block_auto_adjust_ff_dim": false, "conv_L_cache": 3, "norm_eps": 1e-5,
        "rope_theta": 1e6, "sliding_window": 30, "layer_types": (0..8).map(kind).collect::<Vec<_>>(),
    });
    let config: detokenizer::Config = serde_json::from_value(config).unwrap();
    let mut weights = Checkpoint::random(&device(), DType::F32);
    let detokenizer = Detokenizer::from_checkpoint(&mut weights, &config, Precision::F32).unwrap();
    for (batch, count) in [(1, 1), (1, 4), (8, 1)] {
        let frames = frames(count);
        let mut states: Vec<_> = (0..batch).map(|_| detokenizer.start()).collect();
        let counts = second(&format!("{batch} streams, {count} frames"), || {
            let mut streams: Vec<_> = states.iter_mut().map(|state| (state, &frames[..])).collect();
            detokenizer.decode(&mut streams).unwrap();
        });
        assert!(counts.dispatches <= 60, "{batch} {count}: {} dispatches", counts.dispatches);
        assert!(counts.uploads <= 3 && counts.waits <= 1, "{batch} {count}: {counts:?}");
    }
}

#[test]
fn encoding_recordings_is_within_its_budget_for_any_batch() {
    if metal_device().is_none() {
        return;
    }
    let mut config: serde_json::Value = serde_json::from_str(include_str!("shapes/1.5b.json")).unwrap();
    config["encoder"]["d_model"] = json!(64);
    config["encoder"]["n_heads"] = json!(4);
    config["encoder"]["subsampling_conv_channels"] = json!(16);
    let config: conformer::Config = serde_json::from_value(config["encoder"].clone()).unwrap();
    let mut weights = Checkpoint::random(&device(), DType::F32);
    let encoder = AudioEncoder::load(&mut weights, &config, 32, Precision::F32).unwrap();
    let mel = Mel { values: vec![0.1; 100 * 128], frames: 100 };
    for batch in [1, 4] {
        let recordings = vec![&mel; batch];
        let counts = second(&format!("{batch} recordings"), || {
            encoder.forward(&recordings).unwrap();
        });
        assert!(
            counts.dispatches <= 17 * 12 + 20 * batch as u64,
            "{batch}: {} dispatches",
            counts.dispatches
        );
    }
}
