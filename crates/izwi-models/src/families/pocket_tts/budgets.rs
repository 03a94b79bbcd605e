//! Budgets of a step on Metal, with the layers of the published model and narrow random weights: counted by the emulated
//! device, the same at any width.

use std::sync::Arc;

use candle_core::{DType, Device};
use serde_json::{Value, json};

use super::config::Config;
use super::generation::{Generated, Generator, NoObserver, Outcome, PARTS, Pass, StepInput};
use super::noise::Noise;
use super::voice::Voices;
use crate::families::golden_set::metal_device;
use crate::families::metal_budget::StepBudget;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::device::KernelCosts;
use izwi_nn::emulated_metal::{Counts, counts, reset, text};
use izwi_nn::kv_pool::KvPool;
use izwi_types::{PartTimes, Precision};
use sha2::{Digest, Sha256};

const BLOCK: usize = 16;
const BLOCKS: usize = 12;

/// The published shape with narrow layers: the language model, and a voice of rows.
fn model(device: &Device) -> (Generator, Voices) {
    let mut config: Value = serde_json::from_str(include_str!("shapes/100m.json")).unwrap();
    let lm = &mut config["flow_lm"];
    lm["flow"]["dim"] = json!(64);
    lm["transformer"]["d_model"] = json!(64);
    lm["transformer"]["num_heads"] = json!(2);
    lm["lookup_table"]["dim"] = json!(64);
    let config = Config::parse(&config.to_string(), false).unwrap();
    let mut weights = Checkpoint::random(device, DType::F32);
    let mut generator =
        Generator::load(&mut weights, &config, Precision::Q8, PartTimes::new(&PARTS)).unwrap();
    generator.eos_threshold = f32::INFINITY;
    (generator, Voices::load(&mut weights, &config, None, Sha256::new()).unwrap())
}

/// Costs of a prefill without its last position, and of the third frame after it.
fn costs(
    (generator, voices): &(Generator, Voices),
    device: &Device,
    sequences: usize,
) -> [(Counts, KernelCosts); 2] {
    let layout = generator.kv_layout();
    let mut kv = KvPool::new(Some(layout), sequences * BLOCKS, BLOCK, device).unwrap();
    let tables: Vec<Vec<u32>> =
        (0..sequences).map(|n| (0..BLOCKS).map(|block| (block * sequences + n) as u32).collect()).collect();
    let voice = voices.choose(None, None).unwrap();
    let pass = |seed: u64| {
        let (voice, noise) = (Arc::clone(&voice), Noise::new(seed));
        Pass { voice, tokens: (1..40).collect(), temperature: 0.5, noise, frames_after_eos: 0 }
    };
    let passes: Vec<Pass> = (0..sequences as u64).map(pass).collect();
    let prompt = passes[0].prompt_len();
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
    let (_, counts, own) = step(0, prompt - 1);
    let mut costs = [(counts, own); 2];
    for frame in 0..3 {
        let (outcomes, counts, own) = step(prompt - 1 + frame, prompt + frame);
        assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Frame(_))), "{outcomes:?}");
        costs[1] = (counts, own);
    }
    println!("{}", text(&format!("frame of {sequences}")));
    costs
}

#[test]
fn a_frame_and_a_prefill_stay_within_their_budgets() {
    let Some(device) = metal_device() else { return };
    let model = model(&device);
    let budget = StepBudget { prefill: 100, frame: 150, buffers: 8, weight_bytes: model.0.frame_bytes() };
    budget.check(|sequences| costs(&model, &device, sequences));
}
