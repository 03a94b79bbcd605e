//! Budgets of a step on Metal, with the layers of the published model and narrow random weights: counted by the emulated
//! device, the same at any width.

use candle_core::{DType, Device};
use serde_json::{Value, json};

use super::config::Settings;
use super::generation::{Generated, Generator, NoObserver, Outcome, PARTS, Pass, StepInput};
use super::prompt::{Codec, Position, Prompt};
use crate::families::golden_set::metal_device;
use crate::families::metal_budget::StepBudget;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::device::KernelCosts;
use izwi_nn::emulated_metal::{Counts, counts, reset, text};
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::Draws;
use izwi_types::{PartTimes, Precision, SamplingParams};

const BLOCK: usize = 16;
const BLOCKS: usize = 10;
const PROMPT: usize = 130;

/// The published shape with narrow layers.
fn generator(device: &Device) -> Generator {
    let mut config: Value = serde_json::from_str(include_str!("shapes/0.6b.json")).unwrap();
    let talker = &mut config["talker_config"];
    talker["text_hidden_size"] = json!(64);
    let narrow = |stack: &mut Value| {
        for (name, value) in [
            ("hidden_size", 64),
            ("intermediate_size", 96),
            ("num_attention_heads", 4),
            ("num_key_value_heads", 2),
            ("head_dim", 32),
        ] {
            stack[name] = json!(value);
        }
    };
    narrow(talker);
    narrow(&mut talker["code_predictor_config"]);
    talker["rope_scaling"]["mrope_section"] = json!([6, 5, 5]);
    let settings = Settings::from_texts(&config.to_string(), include_str!("shapes/generation.json")).unwrap();
    let mut weights = Checkpoint::random(device, DType::BF16);
    Generator::load(&mut weights, &settings, Precision::Q8, PartTimes::new(&PARTS)).unwrap()
}

fn pass(seed: u64) -> Pass {
    let position = |n: usize| Position { text: 1000 + n as u32, codec: Codec::None };
    let sampling = SamplingParams { temperature: 0.9, top_k: 50, ..SamplingParams::repeating(1.05) };
    Pass {
        prompt: Prompt { positions: (0..PROMPT).map(position).collect(), trailing: Vec::new() },
        open_text: None,
        sampling,
        residual_sampling: sampling,
        draws: Draws::new(seed),
    }
}

/// Costs of a prefill without its last position, and of the third frame after it.
fn costs(generator: &Generator, device: &Device, sequences: usize) -> [(Counts, KernelCosts); 2] {
    let layout = generator.talker.kv_layout();
    let mut kv = KvPool::new(Some(layout), sequences * BLOCKS, BLOCK, device).unwrap();
    let tables: Vec<Vec<u32>> =
        (0..sequences).map(|n| (0..BLOCKS).map(|block| (block * sequences + n) as u32).collect()).collect();
    let passes: Vec<Pass> = (0..sequences as u64).map(pass).collect();
    let mut generated = vec![Generated::default(); sequences];
    let mut step = |start: usize, end: usize| {
        let inputs = passes.iter().zip(&mut generated).zip(&tables);
        let inputs = inputs.map(|((pass, generated), table)| StepInput {
            pass,
            generated,
            start,
            end,
            block_table: table,
        });
        let mut inputs: Vec<StepInput<'_>> = inputs.collect();
        device.synchronize().unwrap();
        reset();
        let before = KernelCosts::so_far();
        let outcomes = generator.step(&mut kv, &mut inputs, &mut NoObserver).unwrap();
        (outcomes, counts(), KernelCosts::since(before))
    };
    let (_, counts, own) = step(0, PROMPT - 1);
    let mut costs = [(counts, own); 2];
    for frame in 0..3 {
        let (outcomes, counts, own) = step(PROMPT - 1 + frame, PROMPT + frame);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Frame(_))), "{outcomes:?}");
        costs[1] = (counts, own);
    }
    println!("{}", text(&format!("frame of {sequences}")));
    costs
}

#[test]
fn a_frame_and_a_prefill_stay_within_their_budgets() {
    let Some(device) = metal_device() else { return };
    let generator = generator(&device);
    let budget = StepBudget { prefill: 400, frame: 700, buffers: 3, weight_bytes: generator.frame_bytes() };
    budget.check(|sequences| costs(&generator, &device, sequences));
}
