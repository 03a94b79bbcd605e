//! Parity of the language model with the official implementation: prompts, layers, both modes of generation, sampling.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use serde::Deserialize;

use super::backbone::Row;
use super::config::Config;
use super::depthformer::DepthObserver;
use super::generation::{Generated, Generator, NoObserver, Observer, Outcome, PARTS, Pass, StepInput};
use super::golden_set::{TOLERANCE, compare, device, ids, json, root, tensors, values};
use super::modality::Mode;
use super::prompt::{Position, Prompt, Recording};
use super::tokens::{Role, Vocabulary};
use crate::conformer::FrontEnd;
use izwi_nn::attention::PagedSpan;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::decoder_stack::StackRows;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::sampling::Draws;
use izwi_types::PartTimes;
use izwi_types::Precision;
use izwi_types::{Emission, SamplingParams};

/// Tokens in a KV block: few, so that block tables are long.
const BLOCK: usize = 4;
const BLOCKS: usize = 48;
/// Kinds of positions as the reference numbers them.
const TEXT: u32 = 1;
const AUDIO_IN: u32 = 2;
const AUDIO_OUT: u32 = 3;

/// Arguments of the reference's call.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Arguments {
    pub(super) mode: String,
    pub(super) max_new_tokens: usize,
    #[serde(default)]
    audio_temperature: f32,
    #[serde(default)]
    audio_top_k: usize,
    #[serde(default)]
    text_temperature: f32,
    #[serde(default)]
    text_top_k: usize,
}

#[derive(Deserialize)]
struct Called {
    args: Arguments,
}

/// The golden cases of the language model.
pub(super) const CASES: [&str; 6] = ["asr", "asr24", "tts", "chat1", "chat2", "chat_sampled"];

pub(super) fn arguments(name: &str) -> Arguments {
    json::<Called>(name).args
}

/// The recordings of the golden set at the encoder's rate.
pub(super) fn recording(name: &str) -> Arc<[f32]> {
    values(&tensors("mel")[name]).into()
}

struct Loaded {
    config: Config,
    vocabulary: Vocabulary,
    generator: Generator,
}

fn load(precision: Precision) -> Loaded {
    let config = Config::load(&root()).unwrap();
    let vocabulary = Vocabulary::load(&root(), config.lfm.vocab_size).unwrap();
    let mut weights = Checkpoint::open_folder(&root(), &device()).unwrap();
    let generator = Generator::load(&mut weights, &config, precision, PartTimes::new(&PARTS)).unwrap();
    Loaded { config, vocabulary, generator }
}

/// What the reference emitted.
pub(super) fn emitted(golden: &HashMap<String, Tensor>) -> Vec<Emission> {
    let mut text = ids(&golden["out.text"]).into_iter();
    let frames = golden["out.audio"].t().unwrap().contiguous().unwrap(); // [frames, codebooks]
    let codebooks = frames.dim(1).unwrap();
    let frames = ids(&frames);
    let mut frames = frames.chunks_exact(codebooks);
    let emission = |kind| match kind {
        TEXT => Emission::Token(text.next().unwrap()),
        _ => Emission::Frame(frames.next().unwrap().into()),
    };
    let Some(kinds) = golden.get("out.modality") else { return text.map(Emission::Token).collect() };
    ids(kinds).into_iter().map(emission).collect()
}

/// The prompts that `scripts/golden/lfm2_audio.py` writes.
fn prompt(vocabulary: &Vocabulary, front_end: &FrontEnd, name: &str) -> Prompt {
    let instructions = match name {
        "tts" => "Perform TTS. Use the UK male voice.",
        name if name.starts_with("asr") => "Perform ASR.",
        _ => "Respond with interleaved text and audio.",
    };
    let mut prompt = Prompt::begin(vocabulary, instructions);
    prompt.turn(vocabulary, Role::User);
    match name {
        "tts" => prompt.text(vocabulary, "Hello world, this is a test."),
        "asr24" => prompt.recording(Recording::new(&recording("w24_resampled_16k"), front_end)),
        _ => prompt.recording(Recording::new(&recording("w1"), front_end)),
    }
    prompt.end(vocabulary);
    prompt.turn(vocabulary, Role::Assistant);
    if name == "chat2" {
        prompt.emissions(&emitted(&tensors("chat1")));
        prompt.end(vocabulary);
        prompt.turn(vocabulary, Role::User);
        prompt.text(vocabulary, "Please speak slowly.");
        prompt.recording(Recording::new(&recording("w2"), front_end));
        prompt.end(vocabulary);
        prompt.turn(vocabulary, Role::Assistant);
    }
    prompt
}

/// A case ready to run: its pass, and the recordings as the reference encoded them.
struct Case {
    name: &'static str,
    golden: HashMap<String, Tensor>,
    pass: Pass,
    encoded: Vec<Option<Tensor>>,
    most: usize,
}

fn case(loaded: &Loaded, name: &'static str) -> Case {
    let golden = tensors(name);
    let arguments = arguments(name);
    let front_end = loaded.config.preprocessor.front_end();
    let prompt = prompt(&loaded.vocabulary, &front_end, name);
    let embedded = golden["prefill.in_emb"].squeeze(0).unwrap().to_device(&device()).unwrap();
    let first = |wanted: usize| {
        let is_first = |position: &Position| *position == Position::Encoded { recording: wanted, row: 0 };
        prompt.positions.iter().position(is_first).unwrap()
    };
    let recordings = prompt.recordings.iter().enumerate();
    let encoded =
        recordings.map(|(at, recording)| embedded.narrow(0, first(at), recording.rows()).map(Some).unwrap());
    let encoded = encoded.collect();
    let sampling = |temperature, top_k| SamplingParams { temperature, top_k, ..SamplingParams::GREEDY };
    let mut draws = Draws::new(0);
    if arguments.audio_temperature > 0.0 {
        draws = Draws::recorded(tensors("uniforms")["u"].to_vec1::<f64>().unwrap().into());
    }
    let mode = match arguments.mode.as_str() {
        "interleaved" => Mode::Interleaved {
            text: loaded.config.interleaved_n_text as i64,
            audio: loaded.config.interleaved_n_audio as i64,
        },
        _ => Mode::Sequential,
    };
    let pass = Pass {
        prompt,
        window: None,
        mode,
        text_sampling: sampling(arguments.text_temperature, arguments.text_top_k),
        audio_sampling: sampling(arguments.audio_temperature, arguments.audio_top_k),
        draws,
    };
    Case { name, golden, pass, encoded, most: arguments.max_new_tokens }
}

/// Records intermediate results.
#[derive(Default)]
struct Record {
    embedded: Vec<Tensor>,
    hidden: Vec<Tensor>,
    text: Vec<Tensor>,
    split: Vec<Tensor>,
    codebooks: Vec<Tensor>,
}

impl DepthObserver for Record {
    fn split(&mut self, parts: &Tensor) {
        self.split.push(parts.clone());
    }

    fn codebook(&mut self, logits: &Tensor) {
        self.codebooks.push(logits.clone());
    }
}

impl Observer for Record {
    fn embedded(&mut self, x: &Tensor) {
        self.embedded.push(x.clone());
    }

    fn decided(&mut self, hidden: &Tensor) {
        self.hidden.push(hidden.clone());
    }

    fn text(&mut self, logits: &Tensor) {
        self.text.push(logits.clone());
    }
}

/// Runs cases together, prompts in chunks of at most `chunk` positions, each until it has ended or has generated
/// as much as the reference was allowed to. With `recompute`, everything is freed and computed again now and then.
fn run(
    loaded: &Loaded,
    cases: &[Case],
    chunk: usize,
    recompute: bool,
    observer: &mut dyn Observer,
) -> Vec<Vec<Emission>> {
    let layout = loaded.generator.backbone.kv_layout();
    let mut kv = KvPool::new(Some(layout), BLOCKS * cases.len(), BLOCK, &device()).unwrap();
    // Scattered over the pool.
    let tables: Vec<Vec<u32>> = (0..cases.len())
        .map(|n| (0..BLOCKS).rev().map(|block| (block * cases.len() + n) as u32).collect())
        .collect();
    let mut generated: Vec<Generated> = cases.iter().map(|case| Generated::new(case.pass.mode)).collect();
    let mut starts = vec![0usize; cases.len()];
    let mut ended = vec![false; cases.len()];
    for step in 0.. {
        let (mut places, mut inputs) = (Vec::new(), Vec::new());
        for (n, generated) in generated.iter_mut().enumerate() {
            let case = &cases[n];
            if ended[n] || generated.emissions.len() >= case.most {
                continue;
            }
            if recompute && step < 80 && step % 13 == n {
                starts[n] = 0;
            }
            let known = case.pass.prompt.positions.len() + generated.emissions.len();
            let (start, end) = (starts[n], known.min(starts[n].saturating_add(chunk)));
            places.push(n);
            inputs.push(StepInput {
                pass: &case.pass,
                generated,
                encoded: &case.encoded,
                start,
                end,
                begins: start == 0,
                block_table: &tables[n],
            });
            starts[n] = end;
        }
        if inputs.is_empty() {
            break;
        }
        let outcomes = loaded.generator.step(&mut kv, &mut inputs, observer).unwrap();
        for (n, outcome) in places.into_iter().zip(outcomes) {
            ended[n] = matches!(outcome, Outcome::End | Outcome::Last(_));
        }
    }
    generated.into_iter().map(|generated| generated.emissions).collect()
}

#[test]
fn golden_prompts_match_the_reference() {
    let loaded = load(Precision::F32);
    for name in CASES {
        let case = case(&loaded, name);
        let (mut kinds, mut text, mut codes) = (Vec::new(), Vec::new(), Vec::new());
        for position in &case.pass.prompt.positions {
            kinds.push(match position {
                Position::Emission(Emission::Token(id)) => {
                    text.push(*id);
                    TEXT
                }
                Position::Emission(Emission::Frame(frame)) => {
                    codes.extend_from_slice(frame);
                    AUDIO_OUT
                }
                Position::Encoded { .. } => AUDIO_IN,
                Position::Emission(other) => panic!("{other:?} is none of this model's"),
            });
        }
        assert_eq!(kinds, ids(&case.golden["in.modality_flag"]), "{name}");
        assert_eq!(text, ids(&case.golden["in.text"]), "{name}");
        let frames = case.golden["in.audio_out"].t().unwrap().contiguous().unwrap();
        assert_eq!(codes, ids(&frames), "{name}");
    }
}

#[test]
fn golden_layers_match_the_reference() {
    let loaded = load(Precision::F32);
    let backbone = &loaded.generator.backbone;
    for name in CASES {
        let case = case(&loaded, name);
        let rows = case.pass.prompt.positions.iter().map(|position| match position {
            Position::Emission(Emission::Token(id)) => Row::Token(*id),
            Position::Emission(Emission::Frame(codes)) => Row::Frame(codes),
            Position::Encoded { recording, row } => {
                Row::Encoded(case.encoded[*recording].as_ref().unwrap(), *row)
            }
            Position::Emission(other) => panic!("{other:?} is none of this model's"),
        });
        let x = backbone.embed(&rows.collect::<Vec<_>>()).unwrap();
        let golden = &case.golden;
        compare(&format!("{name} prompt"), &values(&x), &values(&golden["prefill.in_emb"]), TOLERANCE);
        let mut kv = KvPool::new(Some(backbone.kv_layout()), BLOCKS, BLOCK, &device()).unwrap();
        let table: Vec<u32> = (0..BLOCKS as u32).rev().collect();
        let span = PagedSpan { start: 0, num_tokens: x.dim(0).unwrap(), block_table: &table };
        let mut state = backbone.stack.begin(&device()).unwrap();
        let mut rows = StackRows::with_states(&kv, vec![span], vec![&mut state]);
        let mut layers = Vec::new();
        let y = backbone.stack.forward(x, &mut kv, &mut rows, |x| layers.push(x.clone())).unwrap();
        for (layer, x) in layers.iter().enumerate() {
            if let Some(theirs) = golden.get(&format!("prefill.layer{layer}")) {
                compare(&format!("{name} layer {layer}"), &values(x), &values(theirs), TOLERANCE);
            }
        }
        let normed = backbone.stack.norm(&y).unwrap();
        compare(&format!("{name} norm"), &values(&normed), &values(&golden["prefill.out"]), TOLERANCE);
    }
}

#[test]
fn golden_emissions_and_logits_match_the_reference() {
    let loaded = load(Precision::F32);
    for name in CASES {
        let case = case(&loaded, name);
        let expected = emitted(&case.golden);
        let mut record = Record::default();
        let cases = [case];
        let generated = run(&loaded, &cases, usize::MAX, false, &mut record).remove(0);
        let golden = &cases[0].golden;
        assert_eq!(generated, expected, "{name}");
        let together = |tensors: &[Tensor]| tensors.iter().flat_map(values).collect::<Vec<f32>>();
        let check = |what: &str, ours: &[Tensor], theirs: &str| {
            let Some(theirs) = golden.get(theirs) else { return };
            // The first frames alone are in the set.
            let ours = &together(ours)[..];
            let theirs = values(theirs);
            assert!(ours.len() >= theirs.len(), "{name} {what}");
            if !theirs.is_empty() {
                compare(&format!("{name} {what}"), &ours[..theirs.len()], &theirs, TOLERANCE);
            }
        };
        check("inputs", &record.embedded[1..], "steps.in_emb");
        check("hidden", &record.hidden, "steps.out");
        check("text", &record.text, "text_logits");
        check("parts", &record.split, "depth_linear");
        check("codebooks", &record.codebooks, "depth_logits");
        assert_eq!(together(&record.text).len(), values(&golden["text_logits"]).len(), "{name}");
        assert_eq!(record.hidden.len(), golden["steps.out"].dim(1).unwrap(), "{name}");
    }
}

#[test]
fn golden_batches_chunked_and_recomputed_match_the_reference() {
    let loaded = load(Precision::F32);
    let cases: Vec<Case> = CASES.into_iter().map(|name| case(&loaded, name)).collect();
    for (chunk, recompute) in [(usize::MAX, false), (5, false), (9, true)] {
        let generated = run(&loaded, &cases, chunk, recompute, &mut NoObserver);
        for (case, generated) in cases.iter().zip(generated) {
            assert_eq!(generated, emitted(&case.golden), "{} in chunks of {chunk}", case.name);
        }
    }
}

#[test]
fn golden_bf16_weights_are_within_the_rounding_of_the_reference() {
    let (golden, exact) = (tensors("asr_bf16"), tensors("asr"));
    let loaded = load(Precision::Bf16);
    let case = case(&loaded, "asr");
    let mut record = Record::default();
    let generated = run(&loaded, &[case], usize::MAX, false, &mut record).remove(0);
    // Rows after the same history: up to where one of the three first says something else.
    let generated =
        generated.iter().map(|emission| if let Emission::Token(id) = emission { *id } else { u32::MAX });
    let (theirs, exact_text) = (ids(&golden["out.text"]), ids(&exact["out.text"]));
    let same = generated.zip(&theirs).zip(&exact_text).take_while(|((a, b), c)| a == *b && b == c).count();
    let rows = (same + 1).min(theirs.len()).min(exact_text.len()).min(record.text.len());
    let rows_of = |logits: &[f32], width: usize| logits[..rows * width].to_vec();
    let width = golden["text_logits"].dim(1).unwrap();
    let reference = rows_of(&values(&golden["text_logits"].to_dtype(DType::F32).unwrap()), width);
    let exact = rows_of(&values(&exact["text_logits"]), width);
    let ours = rows_of(&record.text.iter().flat_map(values).collect::<Vec<f32>>(), width);
    // What the reference loses by computing in bf16; Izwi keeps weights in bf16 and computes in f32.
    let off = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let (lost, off) = (off(&reference, &exact), off(&ours, &reference));
    assert!(off <= 1.5 * lost, "off by {off}, the reference by {lost}");
    if same < rows {
        let mut last = exact[exact.len() - width..].to_vec();
        last.sort_unstable_by(|a, b| b.total_cmp(a));
        assert!(last[0] - last[1] <= 2.0 * lost, "token {same} is another, and was not close");
    }
}
