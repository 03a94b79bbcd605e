//! The budget of a sentence on Metal, with the published layers and narrow random weights: counted by the emulated device, the
//! same at any width.

use candle_core::{DType, Device};
use serde_json::json;

use super::CONTOUR_FRAMES;
use super::config::Config;
use super::network::{Network, Utterance};
use super::voices::VALUES;
use crate::families::LoadOptions;
use crate::families::golden_set::metal_device;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::emulated_metal::{Counts, counts, reset, text};
use izwi_types::Precision;

fn config() -> Config {
    let dilations = [1, 3, 5];
    serde_json::from_value(json!({
        "istftnet": {
            "upsample_kernel_sizes": [20, 12], "upsample_rates": [10, 6], "gen_istft_hop_size": 5,
            "gen_istft_n_fft": 20, "resblock_dilation_sizes": [dilations, dilations, dilations],
            "resblock_kernel_sizes": [3, 7, 11], "upsample_initial_channel": 16,
        },
        "hidden_dim": 32, "style_dim": 128, "n_layer": 3, "n_token": 178, "max_dur": 3,
        "text_encoder_kernel_size": 5, "decoder_dim": 32, "asr_res_dim": 16, "vocab": {},
        "plbert": {
            "hidden_size": 48, "embedding_size": 16, "num_attention_heads": 12, "intermediate_size": 64,
            "max_position_embeddings": 512, "num_hidden_layers": 12,
        },
    }))
    .unwrap()
}

/// Costs of sentences of so many phonemes.
fn costs(network: &Network, config: &Config, device: &Device, lengths: &[usize]) -> Counts {
    let ids: Vec<Vec<u32>> = lengths.iter().map(|&length| (0..length as u32).collect()).collect();
    let utterance = |ids| Utterance { ids, speed: 1.0, style: vec![0.1; VALUES] };
    let batch: Vec<_> = ids.iter().map(|ids| utterance(ids)).collect();
    device.synchronize().unwrap();
    reset();
    let features = network.features(&batch).unwrap();
    let frame = config.istftnet.samples_per_contour_frame();
    assert_eq!(CONTOUR_FRAMES, 2);
    let noises: Vec<_> = features.iter().map(|one| vec![0.1; one.contour.pitch_hz.len() * frame]).collect();
    let samples = network.samples(&features, &noises).unwrap();
    assert!(samples.iter().flatten().all(|sample| sample.is_finite()));
    let costs = counts();
    println!("{lengths:?}: {costs:?}\n{}", text("sentence"));
    costs
}

#[test]
fn a_sentence_stays_within_its_budget_at_any_length_and_batch() {
    let Some(device) = metal_device() else { return };
    let config = config();
    let mut weights = Checkpoint::random(&device, DType::F32);
    let options = LoadOptions::new(device.clone(), Precision::Auto);
    let network = Network::load(&mut weights, &config, &options, 200).unwrap();
    let [short, long] = [[8], [24]].map(|lengths| costs(&network, &config, &device, &lengths));
    assert!(short.dispatches <= 600, "{} dispatches", short.dispatches);
    assert!(long.dispatches <= short.dispatches + 8, "{} dispatches of more phonemes", long.dispatches);
    let batch = costs(&network, &config, &device, &[8, 24, 5, 9]);
    assert!(batch.dispatches <= 4 * short.dispatches, "{} dispatches of four", batch.dispatches);
}
