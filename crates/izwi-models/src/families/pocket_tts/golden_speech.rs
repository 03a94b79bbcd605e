//! Parity of generation with the official implementation, from a text to latents and samples.

use std::sync::Arc;

use candle_core::Tensor;
use serde::Deserialize;

use super::codec::Latent;
use super::config::FlowKind;
use super::generation::{Generated, Observer, Outcome, Pass, StepInput};
use super::golden::{recording, voice};
use super::golden_set::{
    TOLERANCE, cases, compare, device, ids, json, model_with, tensors, values, variants,
};
use super::noise::Noise;
use super::plan::MORE_FRAMES;
use super::{PocketTts, text};
use crate::frame_driver::{FrameCodec, FrameDriver};
use crate::mini_engine;
use izwi_nn::kv_pool::KvPool;
use izwi_types::{Precision, PrepareLimits, SamplingParams, SpeakInput, VoiceReference};

/// Tolerance of samples after a feedback loop that amplifies rounding.
const LOOP_TOLERANCE: f32 = 2e-3;
const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 1024 };
const BLOCK: usize = 4;
const BLOCKS: usize = 64;

/// Arguments and facts of a case.
#[derive(Deserialize)]
struct Case {
    text: String,
    prepared: String,
    frames_after_eos: usize,
    frames: usize,
    steps: usize,
    max_gen_len: usize,
    temp: f32,
    eos_threshold: f32,
    overrides: Overrides,
}

#[derive(Deserialize)]
struct Overrides {
    sampler_decode_steps: Option<usize>,
}

fn load(variant: &str, case: &Case) -> PocketTts {
    model_with(variant, Precision::F32, |config| {
        config.sampler_decode_steps = case.overrides.sampler_decode_steps;
    })
}

/// Noise of the frames: the first row belongs to the prompt.
fn noise(golden: &Tensor) -> Noise {
    let rows = golden.dim(0).unwrap();
    Noise::recorded(values(&golden.narrow(0, 1, rows - 1).unwrap()).into())
}

#[derive(Default)]
struct Record {
    z: Vec<Tensor>,
    rows: Vec<Vec<f32>>,
}

impl Observer for Record {
    fn decided(&mut self, z: &Tensor, rows: &[Vec<f32>]) {
        self.z.push(z.clone());
        self.rows.extend_from_slice(rows);
    }
}

#[test]
fn pocket_tts_golden_latents_follow_the_reference() {
    for variant in variants() {
        for name in cases(&variant) {
            let (case, golden): (Case, _) = (json(&name), tensors(&name));
            let model = load(&variant, &case);
            assert_eq!(model.generator.eos_threshold, case.eos_threshold, "{name}");
            let prepared = text::prepare(&case.text, &model.config).unwrap();
            let tokens = model.tokenizer.encode(&prepared.text);
            assert_eq!((&prepared.text, &tokens), (&case.prepared, &ids(&golden["text_ids"])), "{name}");
            assert_eq!(prepared.frames_after_eos_guess + MORE_FRAMES, case.frames_after_eos, "{name}");
            let pass = Pass {
                voice: voice(&model, &variant),
                tokens,
                temperature: case.temp,
                noise: noise(&golden["noise"]),
                frames_after_eos: case.frames_after_eos,
            };
            let theirs: Vec<Vec<f32>> = golden["latents_all"].squeeze(0).unwrap().to_vec2().unwrap();
            assert_eq!(theirs.len(), case.steps);
            let (record, frames) = forced(&model, &pass, &theirs);
            assert_eq!(frames, case.frames.min(case.steps), "{name}: frames");
            let z = Tensor::cat(&record.z, 0).unwrap();
            // One row for each call of the head: those of the prompt, then those of each step.
            let calls = golden["cond"].dim(0).unwrap() / (case.steps + 1);
            let cond: Vec<Vec<f32>> = golden["cond"].to_vec2().unwrap();
            let cond: Vec<f32> = cond.into_iter().step_by(calls).skip(1).flatten().collect();
            compare(&format!("{name} z"), &values(&z), &cond, TOLERANCE);
            let logits: Vec<f32> = record.rows.iter().filter_map(|row| row.last().copied()).collect();
            compare(&format!("{name} end"), &logits, &values(&golden["eos_logits"]), TOLERANCE);
            let latents: Vec<f32> =
                record.rows.iter().flat_map(|row| row[..row.len() - 1].iter().copied()).collect();
            compare(&format!("{name} latents"), &latents, &theirs.concat(), TOLERANCE);
            let kept: Vec<Latent> =
                theirs[..case.frames].iter().map(|latent| latent.as_slice().into()).collect();
            let mut stream = super::Stream::default();
            let samples = model.codec.decode(&mut [(&mut stream, &kept)]).unwrap().remove(0);
            compare(&format!("{name} samples"), &samples, &values(&golden["wav"]), TOLERANCE);
        }
    }
}

/// Generates as many latents as the reference did, each from the reference's own latents before it, and returns what was
/// decided and the number of frames.
fn forced(model: &PocketTts, pass: &Pass, theirs: &[Vec<f32>]) -> (Record, usize) {
    let mut kv = KvPool::new(Some(model.generator.kv_layout()), BLOCKS, BLOCK, &device()).unwrap();
    let table: Vec<u32> = (0..BLOCKS as u32).rev().collect();
    let (mut record, mut generated, mut frames) = (Record::default(), Generated::default(), 0);
    let (mut start, prompt) = (0, pass.prompt_len());
    for (step, latent) in theirs.iter().enumerate() {
        let end = prompt + step;
        let input = StepInput { pass, generated: &mut generated, start, end, block_table: &table };
        let outcome = model.generator.step(&mut kv, &mut [input], &mut record).unwrap().remove(0);
        start = end;
        match outcome {
            Outcome::Frame(_) => frames += 1,
            Outcome::End => assert_eq!(step + 1, theirs.len(), "the reference ends here"),
            Outcome::Pending => panic!("the prompt is complete"),
        }
        if let Some(last) = generated.latents.get_mut(step) {
            *last = Arc::from(latent.as_slice());
        }
    }
    (record, frames)
}

#[test]
fn pocket_tts_golden_speech_from_text_to_samples() {
    for variant in variants() {
        for name in cases(&variant) {
            let (case, golden): (Case, _) = (json(&name), tensors(&name));
            let model = load(&variant, &case);
            let input = SpeakInput {
                reference: Some(VoiceReference::Recording(recording(&variant))),
                sampling: SamplingParams { temperature: case.temp, ..SamplingParams::GREEDY },
                ..SpeakInput::plain(&case.text)
            };
            let mut plan = model.plan_speech(&input, &LIMITS).unwrap();
            assert_eq!(plan.passes.len(), 1, "{name}");
            plan.passes[0].pass.noise = noise(&golden["noise"]);
            plan.passes[0].max_positions = Some(case.max_gen_len);
            let amplifies = model.config.flow_lm.flow.kind == FlowKind::Drifting;
            let driver = FrameDriver::new(model, &device());
            let spoken = mini_engine::alone(&driver, &FrameDriver::<PocketTts>::prepared(plan), usize::MAX);
            assert!(spoken.finished);
            let theirs = values(&golden["wav"]);
            assert_eq!(spoken.samples.len(), theirs.len(), "{name}");
            assert_eq!(spoken.runaway, case.frames == case.max_gen_len, "{name}");
            // Drifting heads of random weights make errors grow without bound; their steps are compared one by one above.
            if !amplifies {
                compare(&name, &spoken.samples, &theirs, LOOP_TOLERANCE);
            }
        }
    }
}
