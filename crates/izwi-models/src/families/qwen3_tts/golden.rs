//! Parity of the language model with the official implementation: tokens, prompts, talker, code predictor, sampling.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde::Deserialize;

use super::super::golden_set::rounds_activations;
use super::config::{Kind, Settings};
use super::generation::{
    Generated, Generator, NoObserver, Observer, Outcome, PARTS, Pass, StepInput, limits,
};
use super::golden_set::{TOLERANCE, compare, device, ids, json, root, tensors, values};
use super::lookup;
use super::prompt::{Codec, Frame, Prompt, PromptSpec, ReferenceSpeech};
use super::tokens::Vocabulary;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::StackRows;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::{Draws, probabilities};
use izwi_types::PartTimes;
use izwi_types::Precision;
use izwi_types::SamplingParams;

/// Tokens in a KV block: few, so that block tables are long.
const BLOCK: usize = 4;
const BLOCKS: usize = 64;

/// Arguments of the reference's call.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Arguments {
    pub(super) text: String,
    pub(super) language: Option<String>,
    pub(super) speaker: Option<String>,
    pub(super) instruct: Option<String>,
    pub(super) ref_text: Option<String>,
    pub(super) x_vector_only_mode: Option<bool>,
    pub(super) non_streaming_mode: Option<bool>,
    #[serde(default = "yes")]
    pub(super) do_sample: bool,
    max_new_tokens: usize,
}

fn yes() -> bool {
    true
}

#[derive(Debug, Deserialize)]
struct Case {
    #[serde(default)]
    args: serde_json::Value,
}

/// Cases of single sequences at f32, with the checkpoint each is of.
pub(super) fn cases() -> Vec<(String, String, Arguments)> {
    let files = std::fs::read_dir(root().join("goldens")).unwrap();
    let names = files.filter_map(|file| {
        let name = file.unwrap().file_name().into_string().unwrap();
        name.strip_suffix(".json").map(str::to_owned)
    });
    let cases = names.filter_map(|name| {
        let checkpoint = name.split('.').next()?.to_owned();
        let is_case = root().join(&checkpoint).is_dir()
            && root().join("goldens").join(format!("{name}.safetensors")).exists();
        let case: Case = is_case.then(|| json(&name))?;
        // Batches and other types have tests of their own.
        let arguments: Arguments = serde_json::from_value(case.args).ok()?;
        Some((name, checkpoint, arguments))
    });
    let mut cases: Vec<_> = cases.collect();
    cases.sort_by(|a, b| a.0.cmp(&b.0));
    assert!(!cases.is_empty(), "{} holds no case", root().display());
    cases
}

/// The language model of a checkpoint.
pub(super) struct Loaded {
    pub(super) settings: Settings,
    vocabulary: Vocabulary,
    pub(super) generator: Generator,
}

fn load(checkpoint: &str, precision: Precision) -> Loaded {
    let folder = root().join(checkpoint);
    let settings = Settings::load(&folder).unwrap();
    let vocabulary = Vocabulary::load(&folder, settings.config.talker_config.text_vocab_size).unwrap();
    let mut weights = Checkpoint::open(&folder.join("model.safetensors"), &device()).unwrap();
    let generator = Generator::load(&mut weights, &settings, precision, PartTimes::new(&PARTS)).unwrap();
    Loaded { settings, vocabulary, generator }
}

impl Loaded {
    /// The reference's prompt, the voice of a recording taken from its own dumps.
    fn prompt_spec(&self, arguments: &Arguments) -> PromptSpec {
        let config = &self.settings.config;
        let voice = lookup::voice(config, arguments.speaker.as_deref()).unwrap();
        let voice = voice.filter(|_| arguments.speaker.is_some());
        let (mut speaker, mut reference) = (voice.map(|(_, id)| Codec::Token(id)), None);
        if let Some(timbre_only) = arguments.x_vector_only_mode {
            let recording = tensors("base17.speaker");
            speaker = Some(Codec::Speaker(values(&recording["embedding"]).into()));
            if !timbre_only {
                let body =
                    self.vocabulary.tokenize_reference(arguments.ref_text.as_deref().unwrap()).unwrap();
                reference =
                    Some(Arc::new(ReferenceSpeech { body, frames: frames(&recording["ref_code24"]) }));
            }
        }
        let instruct =
            arguments.instruct.as_deref().filter(|text| config.takes_instructions() && !text.is_empty());
        let whole = arguments.non_streaming_mode.unwrap_or(config.kind != Kind::Base);
        PromptSpec {
            text: self.vocabulary.tokenize(&arguments.text).unwrap(),
            instructions: instruct.map(|text| self.vocabulary.instructions(text)).unwrap_or_default(),
            language: lookup::language(config, arguments.language.as_deref(), voice.map(|(name, _)| name))
                .unwrap(),
            speaker,
            reference,
            streams_text: !whole,
        }
    }

    fn pass(&self, arguments: &Arguments, uniforms: Option<&Tensor>) -> Pass {
        let recorded = |uniforms: &Tensor| Draws::recorded(uniforms.to_vec1::<f64>().unwrap().into());
        let draws = uniforms.map_or_else(|| Draws::new(0), recorded);
        let greedy = |sampling: SamplingParams| {
            let temperature = if arguments.do_sample { sampling.temperature } else { 0.0 };
            SamplingParams { temperature, ..sampling }
        };
        Pass {
            prompt: self.prompt_spec(arguments).prompt(&self.settings.config),
            open_text: None,
            sampling: greedy(self.settings.sampling),
            residual_sampling: greedy(self.settings.residual_sampling),
            draws,
        }
    }

    pub(super) fn pool(&self, blocks: usize) -> KvPool {
        KvPool::new(Some(self.generator.talker.kv_layout()), blocks, BLOCK, &device()).unwrap()
    }
}

/// Rows of codes as frames.
pub(super) fn frames(codes: &Tensor) -> Vec<Frame> {
    let width = codes.dims().last().copied().unwrap();
    ids(codes).chunks_exact(width).map(Arc::from).collect()
}

/// Records intermediate results.
#[derive(Default)]
struct Record {
    logits: Vec<Vec<Vec<f32>>>,
    hidden: Vec<Tensor>,
    codebooks: Vec<Tensor>,
    embedded: Vec<Tensor>,
}

impl Observer for Record {
    fn embedded(&mut self, x: &Tensor) {
        self.embedded.push(x.clone());
    }

    fn decided(&mut self, hidden: &Tensor, logits: &Tensor) {
        self.hidden.push(hidden.clone());
        self.logits.push(logits.to_vec2().unwrap());
    }

    fn codebook(&mut self, logits: &Tensor) {
        self.codebooks.push(logits.clone());
    }
}

/// Runs passes together, prompts in chunks of at most `chunk` positions, until each has ended or has generated
/// `most` frames.
fn run(
    loaded: &Loaded,
    passes: &[Pass],
    most: usize,
    chunk: usize,
    observer: &mut dyn Observer,
) -> Vec<(Vec<Frame>, bool)> {
    let mut kv = loaded.pool(BLOCKS * passes.len());
    // Scattered over the pool.
    let tables: Vec<Vec<u32>> = (0..passes.len())
        .map(|n| (0..BLOCKS).rev().map(|block| (block * passes.len() + n) as u32).collect())
        .collect();
    let mut generated = vec![Generated::default(); passes.len()];
    let mut starts = vec![0usize; passes.len()];
    let mut ended = vec![false; passes.len()];
    while (0..passes.len()).any(|n| !ended[n] && generated[n].frames.len() < most) {
        let mut places = Vec::new();
        let mut inputs = Vec::new();
        for (n, generated) in generated
            .iter_mut()
            .enumerate()
            .filter(|(n, generated)| !ended[*n] && generated.frames.len() < most)
        {
            let known = passes[n].prompt.positions.len() + generated.frames.len();
            let end = known.min(starts[n].saturating_add(chunk));
            places.push(n);
            inputs.push(StepInput {
                pass: &passes[n],
                generated,
                start: starts[n],
                end,
                block_table: &tables[n],
            });
            starts[n] = end;
        }
        let outcomes = loaded.generator.step(&mut kv, &mut inputs, observer).unwrap();
        places.iter().zip(outcomes).for_each(|(&n, outcome)| ended[n] = outcome == Outcome::End);
    }
    generated.into_iter().zip(ended).map(|(generated, ended)| (generated.frames, ended)).collect()
}

#[test]
fn golden_tokens_match_the_reference() {
    #[derive(Deserialize)]
    struct Row {
        text: String,
        ids: Vec<u32>,
    }
    let rows: Vec<Row> = json("tokenizer");
    let folder = root().join("cv06");
    let vocabulary = Vocabulary::load(&folder, usize::MAX).unwrap();
    // The older pair of files, as published checkpoints have it.
    let pair = tempfile::tempdir().unwrap();
    for file in ["vocab.json", "merges.txt", "tokenizer_config.json"] {
        std::fs::copy(folder.join(file), pair.path().join(file)).unwrap();
    }
    let from_pair = Vocabulary::load(pair.path(), usize::MAX).unwrap();
    for row in rows {
        assert_eq!(vocabulary.encode(&row.text), row.ids, "{}", row.text);
        assert_eq!(from_pair.encode(&row.text), row.ids, "{}", row.text);
    }
}

#[test]
fn golden_prompts_and_layers_match_the_reference() {
    for (name, checkpoint, arguments) in cases() {
        let loaded = load(&checkpoint, Precision::F32);
        let golden = tensors(&name);
        check_tokens(&loaded, &arguments, &golden);
        let Prompt { positions, trailing } = loaded.prompt_spec(&arguments).prompt(&loaded.settings.config);
        let talker = &loaded.generator.talker;
        let x = talker.embed(&positions.iter().collect::<Vec<_>>()).unwrap();
        compare(&format!("{name} prompt"), &values(&x), &values(&golden["prefill.inputs_embeds"]), TOLERANCE);
        if !trailing.is_empty() {
            let text = |&text: &u32| super::prompt::Position { text, codec: Codec::None };
            let trailing: Vec<_> = trailing.iter().map(text).collect();
            let read = talker.embed(&trailing.iter().collect::<Vec<_>>()).unwrap();
            compare(
                &format!("{name} trailing"),
                &values(&read),
                &values(&golden["trailing_text_hidden"]),
                TOLERANCE,
            );
        }
        let mut kv = loaded.pool(BLOCKS);
        let table: Vec<u32> = (0..BLOCKS as u32).rev().collect();
        let span = PagedSpan { start: 0, num_tokens: positions.len(), block_table: &table };
        let mut rows = StackRows::new(&kv, vec![span]);
        let mut layers = Vec::new();
        let y = talker.stack.forward(x, &mut kv, &mut rows, |x| layers.push(x.clone())).unwrap();
        for (layer, x) in layers.iter().enumerate() {
            if let Some(theirs) = golden.get(&format!("prefill.layer{layer}")) {
                compare(&format!("{name} layer {layer}"), &values(x), &values(theirs), TOLERANCE);
            }
        }
        compare(
            &format!("{name} norm"),
            &values(&talker.stack.norm(&y).unwrap()),
            &values(&golden["prefill.norm"]),
            TOLERANCE,
        );
    }
}

fn check_tokens(loaded: &Loaded, arguments: &Arguments, golden: &HashMap<String, Tensor>) {
    let vocabulary = &loaded.vocabulary;
    let text = format!("<|im_start|>assistant\n{}<|im_end|>\n<|im_start|>assistant\n", arguments.text);
    assert_eq!(vocabulary.encode(&text), ids(&golden["ids.input0"]));
    let instruct = arguments.instruct.as_ref().filter(|text| !text.is_empty());
    if let (Some(theirs), Some(instruct)) = (golden.get("ids.instruct0"), instruct) {
        assert_eq!(vocabulary.instructions(instruct), ids(theirs));
    }
    if let (Some(theirs), Some(text)) = (golden.get("ids.ref0"), &arguments.ref_text) {
        assert_eq!(vocabulary.encode(&format!("<|im_start|>assistant\n{text}<|im_end|>\n")), ids(theirs));
    }
}

#[test]
fn golden_frames_and_logits_match_the_reference() {
    for (name, checkpoint, arguments) in cases() {
        let loaded = load(&checkpoint, Precision::F32);
        let golden = tensors(&name);
        let pass = loaded.pass(&arguments, golden.get("uniforms"));
        let expected = frames(&golden["codes"]);
        let mut record = Record::default();
        // The reference decides one token more than it has frames: the end, or the one its limit cuts off.
        let generated =
            run(&loaded, std::slice::from_ref(&pass), expected.len() + 1, usize::MAX, &mut record);
        let (generated, ended) = &generated[0];
        assert_eq!(generated[..expected.len()], expected, "{name}");
        assert_eq!(*ended, expected.len() + 1 < arguments.max_new_tokens, "{name}");
        let logits: Vec<f32> = record.logits.iter().flatten().flatten().copied().collect();
        compare(&format!("{name} logits"), &logits, &values(&golden["logits"]), TOLERANCE);
        let codebooks = golden["cp.logits"].elem_count() / golden["cp.logits"].dims().last().unwrap();
        let ours: Vec<f32> = record.codebooks[..codebooks].iter().flat_map(values).collect();
        compare(&format!("{name} codebooks"), &ours, &values(&golden["cp.logits"]), TOLERANCE);
        let steps = golden["steps.norm"].dim(1).unwrap();
        let hidden = Tensor::cat(&record.hidden[1..=steps], 0).unwrap();
        compare(&format!("{name} steps"), &values(&hidden), &values(&golden["steps.norm"]), TOLERANCE);
        let embedded = Tensor::cat(&record.embedded[1..=steps], 0).unwrap();
        compare(
            &format!("{name} inputs"),
            &values(&embedded),
            &values(&golden["steps.inputs_embeds"]),
            TOLERANCE,
        );
        let chunked = run(&loaded, &[pass], expected.len(), 5, &mut NoObserver);
        assert_eq!(chunked[0].0, expected, "{name} in chunks");
    }
}

#[test]
fn golden_batches_match_the_reference_and_each_sequence_alone() {
    #[derive(Deserialize)]
    struct Batch {
        text: Vec<String>,
        language: Vec<String>,
        speaker: Vec<String>,
        non_streaming_mode: bool,
        max_new_tokens: usize,
    }
    let loaded = load("cv06", Precision::F32);
    let golden = tensors("cv06.batch2");
    let case: Case = json("cv06.batch2");
    let batch: Batch = serde_json::from_value(case.args).unwrap();
    let passes: Vec<Pass> = (0..batch.text.len())
        .map(|n| {
            let arguments = Arguments {
                text: batch.text[n].clone(),
                language: Some(batch.language[n].clone()),
                speaker: Some(batch.speaker[n].clone()),
                instruct: None,
                ref_text: None,
                x_vector_only_mode: None,
                non_streaming_mode: Some(batch.non_streaming_mode),
                do_sample: false,
                max_new_tokens: batch.max_new_tokens,
            };
            loaded.pass(&arguments, None)
        })
        .collect();
    let lengths = ids(&golden["codes_len"]);
    let most = golden["codes"].dim(1).unwrap();
    let together = run(&loaded, &passes, most, 7, &mut NoObserver);
    for (n, (generated, _)) in together.iter().enumerate() {
        let expected = frames(&golden["codes"].get(n).unwrap());
        assert_eq!(generated[..], expected[..lengths[n] as usize], "{n}");
        let alone = run(&loaded, &passes[n..=n], most, usize::MAX, &mut NoObserver);
        assert_eq!(alone[0].0, *generated, "{n} alone");
    }
}

#[test]
fn golden_bf16_weights_are_within_the_rounding_of_the_reference() {
    let (golden, exact) = (tensors("cv06.nonstream_bf16"), tensors("cv06.nonstream"));
    let case: Case = json("cv06.nonstream");
    let arguments: Arguments = serde_json::from_value(case.args).unwrap();
    let loaded = load("cv06", Precision::Bf16);
    let pass = loaded.pass(&arguments, None);
    let mut record = Record::default();
    let expected = frames(&golden["codes"]);
    let generated = run(&loaded, &[pass], expected.len(), usize::MAX, &mut record);
    if rounds_activations() {
        return assert_eq!(generated[0].0[0][0], expected[0][0]);
    }
    if frames(&exact["codes"]) == expected {
        assert_eq!(generated[0].0, expected);
    }
    // What the reference loses by computing in bf16; Izwi keeps weights in bf16 and computes in f32.
    let off = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let theirs = off(&values(&golden["logits"]), &values(&exact["logits"]));
    let logits: Vec<f32> = record.logits.iter().flatten().flatten().copied().collect();
    let reference = values(&golden["logits"]);
    let ours = off(&logits, &reference[..logits.len()]);
    assert!(ours <= 1.5 * theirs, "off by {ours}, the reference by {theirs}");
}

#[test]
fn golden_probabilities_match_the_reference() {
    #[derive(Deserialize)]
    struct Rules {
        eos: usize,
        settings: HashMap<String, Knobs>,
    }
    #[derive(Deserialize)]
    struct Knobs {
        repetition_penalty: f32,
        temperature: f32,
        top_k: usize,
        top_p: f32,
    }
    let rules: Rules = json("sampling");
    let golden = tensors("sampling");
    let raw = golden["raw"].to_dtype(DType::F32).unwrap().to_vec2::<f32>().unwrap();
    let history = golden["history"].to_vec2::<i64>().unwrap();
    let mut compared = 0;
    for (name, theirs) in &golden {
        let Some((setting, length)) = name.strip_prefix("probs.").and_then(|name| name.split_once(".hist"))
        else {
            continue;
        };
        let (knobs, length): (_, usize) = (&rules.settings[setting], length.parse().unwrap());
        let sampling = SamplingParams {
            temperature: knobs.temperature,
            top_p: knobs.top_p,
            top_k: knobs.top_k,
            ..SamplingParams::repeating(knobs.repetition_penalty)
        };
        for (row, theirs) in theirs.to_vec2::<f32>().unwrap().iter().enumerate() {
            let drawn: Vec<u32> = history[row][..length].iter().map(|&id| id as u32).collect();
            let mut logits = raw[row].clone();
            let ids = (logits.len(), rules.eos as u32);
            limits(&drawn, ids, knobs.repetition_penalty).apply(&mut logits, &drawn);
            compare(&format!("{name} {row}"), &probabilities(&logits, &sampling), theirs, TOLERANCE);
            compared += 1;
        }
    }
    assert!(compared > 0);
}
