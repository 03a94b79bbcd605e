//! Budgets of a step on Metal, with the layers of the base model and narrow random weights: counted by the emulated device,
//! the same at any width.

use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::config::Config;
use super::decoder::{Decoder, Span};
use super::encoder::{Encoder, WindowMel};
use crate::families::golden_set::metal_device;
use izwi_nn::attention::CrossKv;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::device::KernelCosts;
use izwi_nn::emulated_metal::{Counts, counts, most_flop_of_a_command_buffer, reset, text};
use izwi_nn::kv_pool::KvPool;
use izwi_types::Precision;

const BLOCK: usize = 16;
const LAYERS: usize = 6;
const WIDTH: usize = 128;

fn config() -> Config {
    serde_json::from_value(json!({
        "num_mel_bins": 80, "max_source_positions": 1500, "max_target_positions": 448, "d_model": WIDTH,
        "encoder_layers": LAYERS, "encoder_attention_heads": 2, "encoder_ffn_dim": 256,
        "decoder_layers": LAYERS, "decoder_attention_heads": 2, "decoder_ffn_dim": 256, "vocab_size": 3000,
    }))
    .unwrap()
}

/// Costs of the prompt's pass and of the token after it.
fn costs(decoder: &Decoder, device: &Device, sequences: usize) -> [Counts; 2] {
    let mut kv = KvPool::new(Some(decoder.kv_layout()), 2 * sequences, BLOCK, device).unwrap();
    let encoded = Tensor::randn(0f32, 1.0, (70, WIDTH), device).unwrap();
    let windows: Vec<Vec<CrossKv>> = decoder.windows(&vec![encoded; sequences]).unwrap();
    let tables: Vec<[u32; 1]> = (0..sequences as u32).rev().map(|block| [block]).collect();
    let mut step = |tokens: &[u32], start: usize| {
        let spans = windows.iter().zip(&tables).map(|(window, table)| Span {
            tokens: tokens.into(),
            start,
            block_table: table,
            branch_tables: &[],
            window,
            heads: vec![tokens.len() - 1],
            record_cross_weights: false,
        });
        let spans: Vec<Span<'_>> = spans.collect();
        device.synchronize().unwrap();
        reset();
        let outputs = decoder.forward(&mut kv, &spans).unwrap();
        assert!(outputs.iter().all(|output| output.logits[0].iter().all(|logit| logit.is_finite())));
        counts()
    };
    [step(&[1, 2, 3, 4], 0), step(&[5], 4)]
}

#[test]
fn a_token_stays_within_its_budget_at_any_batch() {
    let Some(device) = metal_device() else { return };
    let mut weights = Checkpoint::random(&device, DType::F16);
    let decoder = Decoder::load(&mut weights, &config(), &[], false, Precision::Q8).unwrap();
    for sequences in [1, 8] {
        let [prompt, token] = costs(&decoder, &device, sequences);
        println!("{sequences}: prompt {prompt:?}\n{sequences}: {}", text("token"));
        assert!(token.dispatches <= 60, "{} dispatches", token.dispatches);
        assert!(token.uploads <= 4, "{} uploads", token.uploads);
        assert_eq!(token.waits, 1);
        assert!(prompt.dispatches <= 70, "prompt: {} dispatches", prompt.dispatches);
    }
}

#[test]
fn a_layer_of_the_encoder_is_five_kernels() {
    let Some(device) = metal_device() else { return };
    let mut weights = Checkpoint::random(&device, DType::F16);
    let encoder = Encoder::load(&mut weights, &config(), Precision::Q8).unwrap();
    let windows = |count: usize| {
        let window = |_| WindowMel { values: vec![0.5; 80 * 2 * 40], positions: 40 };
        (0..count).map(window).collect::<Vec<_>>()
    };
    let dispatches = [1, 3].map(|count| {
        device.synchronize().unwrap();
        reset();
        encoder.encode(windows(count)).unwrap();
        device.synchronize().unwrap();
        println!("{count}: {}", text("windows"));
        counts().dispatches as usize
    });
    // Layers run once for all windows, the convolutions before them for each.
    let of_window = (dispatches[1] - dispatches[0]) / 2;
    let others = dispatches[0] - of_window;
    assert!(others <= 5 * LAYERS + 3, "{others} beside the {of_window} of each window");
}

/// Run with EMU_SKIP by the test below, which executes no kernel: a window of large-v3 at its published size, of whose equal
/// layers four are computed eight times.
#[test]
fn a_window_of_large_v3_is_encoded() {
    let Some(device) = metal_device().filter(|_| std::env::var("EMU_SKIP").is_ok()) else { return };
    let config: Config = serde_json::from_value(json!({
        "num_mel_bins": 128, "max_source_positions": 1500, "max_target_positions": 448, "d_model": 1280,
        "encoder_layers": 4, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120,
        "decoder_layers": 32, "decoder_attention_heads": 20, "decoder_ffn_dim": 5120, "vocab_size": 51866,
    }))
    .unwrap();
    let mut weights = Checkpoint::random(&device, DType::F16);
    let encoder = Encoder::load(&mut weights, &config, Precision::Q8).unwrap();
    device.synchronize().unwrap();
    reset();
    let before = KernelCosts::so_far();
    for _ in 0..8 {
        encoder.encode(vec![WindowMel { values: vec![0.5; 128 * 2 * 1500], positions: 1500 }]).unwrap();
    }
    device.synchronize().unwrap();
    let flop = KernelCosts::since(before).flop;
    println!("flop {flop} of {} buffers, at most {} each", counts().commits, most_flop_of_a_command_buffer());
}

#[test]
fn no_command_buffer_is_long_enough_for_the_watchdog() {
    if std::env::var_os("EMU_OUT").is_none() {
        return;
    }
    let mut tests = std::process::Command::new(std::env::current_exe().unwrap());
    let name = format!("{}::a_window_of_large_v3_is_encoded", module_path!().split_once("::").unwrap().1);
    let output = tests.args(["--exact", &name, "--nocapture"]).env("EMU_SKIP", "").output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let line = output.lines().find(|line| line.starts_with("flop ")).unwrap_or_else(|| panic!("{output}"));
    let number = |word: usize| line.split(' ').nth(word).unwrap().parse::<f64>().unwrap();
    let (flop, buffers, most) = (number(1), number(3), number(7));
    println!("{line}");
    assert!((2.2e12..2.6e12).contains(&flop), "{line}");
    assert!(most <= 0.2e12 && buffers <= 60.0, "{line}");
}
