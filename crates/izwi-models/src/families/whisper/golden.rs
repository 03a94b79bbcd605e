//! Parity with the reference: data made by `scripts/golden/whisper.py`, weights pulled by `cargo xtask pull`.

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::super::golden_set::device;
use super::context::Context;
use super::decoder::Span;
use super::encoder::WindowMel;
use super::tests::{LIMITS, asking, greedy, kept_as, model, unabridged, with_words, words};
use super::*;
use crate::log_mel::FrontEnd;
use crate::regions::WINDOW_FRAMES;
use izwi_nn::sampling::argmax;
use izwi_types::Precision;

const MODELS: [&str; 2] = ["whisper-base", "whisper-tiny.en"];
const MEL_TOLERANCE: f32 = 1e-4;
/// Of the largest value of a clip.
const ENCODER_TOLERANCE: f32 = 1e-4;
/// The keys and values of a window are kept at f16; at f32 the logits lie within 1e-3.
const LOGITS_TOLERANCE: f32 = 2e-2;
/// candle-transformers computes GELU by its tanh approximation.
const CANDLE_TOLERANCE: f32 = 0.3;
/// Two encoder positions.
const WORD_TOLERANCE_S: f64 = 0.0401;
/// At punctuation and pauses one position may decide how a rule applies to a word.
const MIN_AGREEING_TIMES: f64 = 0.9;

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A checkpoint folder under `$IZWI_HOME`.
pub(super) fn checkpoint_folder(name: &str) -> PathBuf {
    let home =
        std::env::var_os("IZWI_HOME").map_or_else(|| workspace().join("target/izwi-home"), PathBuf::from);
    let folder = home.join("models").join(name);
    let complete = folder.join("model.safetensors").exists() && folder.join("tokenizer.json").exists();
    assert!(complete, "{} holds no checkpoint: run `cargo xtask pull`", folder.display());
    folder
}

/// Mono samples at 16 kHz of a clip of real speech.
pub(super) fn clip(name: &str) -> Vec<f32> {
    let path = workspace().join("assets/speech").join(format!("{name}.wav"));
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let data = bytes.windows(4).position(|tag| tag == b"data").unwrap();
    let samples = bytes[data + 8..].as_chunks().0.iter();
    samples.map(|bytes| f32::from(i16::from_le_bytes(*bytes)) / 32768.0).collect()
}

/// The clips with their reference texts.
pub(super) fn clips() -> Vec<(Vec<f32>, String)> {
    let path = workspace().join("assets/speech/transcription.txt");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let expected = |line: &str| {
        let (expected, name) = line.trim_end_matches(')').rsplit_once(" (").unwrap();
        let expected = expected.trim_start_matches("<s>").trim_end_matches("</s>").trim();
        (clip(name), expected.to_owned())
    };
    text.lines().map(expected).collect()
}

fn golden(name: &str) -> Vec<u8> {
    let path = workspace().join("tests/golden/whisper").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden_floats(name: &str) -> Vec<f32> {
    golden(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn golden_json<T: DeserializeOwned>(name: &str) -> T {
    serde_json::from_slice(&golden(name)).unwrap()
}

fn worst(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[derive(Deserialize)]
struct MelGolden {
    clips: Vec<String>,
    bin_step: usize,
    frame_step: usize,
    bins: usize,
    frames: usize,
}

#[derive(Deserialize)]
struct ModelGolden {
    prompt: Vec<u32>,
    encoder_frame_step: usize,
    encoder_channel_step: usize,
    logits_step: usize,
    clips: Vec<ClipGolden>,
    long: LongGolden,
}

#[derive(Deserialize)]
struct ClipGolden {
    clip: String,
    tokens: Vec<u32>,
    positions: usize,
    avg_logprob: f32,
    compression_ratio: f32,
    no_speech_prob: f32,
    languages: Option<Vec<(String, f32)>>,
    openai_words: Option<Vec<SegmentGolden>>,
}

#[derive(Deserialize)]
struct LongGolden {
    clips: Vec<String>,
    gap_s: f64,
    text: String,
}

#[derive(Deserialize)]
struct SegmentGolden {
    words: Vec<(String, f64, f64)>,
}

/// The network input of a clip, padded to 30 s.
fn padded(front_end: &FrontEnd, samples: &[f32]) -> WindowMel {
    let mel = front_end.frames(samples, 0..WINDOW_FRAMES);
    let values = mel.network_input(0..WINDOW_FRAMES, WINDOW_FRAMES, mel.peak());
    WindowMel { values, positions: WINDOW_FRAMES / crate::mel_encoder::FRAMES_PER_POSITION }
}

#[test]
fn whisper_golden_mel() {
    let golden: MelGolden = golden_json("mel.json");
    let front_end = FrontEnd::new(golden.bins);
    assert_eq!(golden.frames, WINDOW_FRAMES);
    let mut theirs = golden_floats("mel.f32").into_iter();
    for name in &golden.clips {
        let ours = padded(&front_end, &clip(name)).values; // [frames, bins]
        for bin in (0..golden.bins).step_by(golden.bin_step) {
            let ours: Vec<f32> =
                ours.iter().skip(bin).step_by(golden.bins).step_by(golden.frame_step).copied().collect();
            let theirs: Vec<f32> = theirs.by_ref().take(ours.len()).collect();
            let difference = worst(&ours, &theirs);
            assert!(difference <= MEL_TOLERANCE, "{name}, bin {bin}: {difference}");
        }
    }
    assert_eq!(theirs.next(), None);
}

/// Raw logits after each of `tokens`, in one pass.
pub(super) fn logits(model: &Whisper, encoded: &Tensor, tokens: &[u32]) -> Vec<Vec<f32>> {
    let mut kv = KvPool::new(model.kv_layout(), 32, 16, &device()).unwrap();
    let window = model.decoder.windows(std::slice::from_ref(encoded)).unwrap().remove(0);
    let block_table: Vec<u32> = (0..32).rev().collect();
    let span = Span {
        tokens: tokens.into(),
        start: 0,
        block_table: &block_table,
        branch_tables: &[],
        window: &window,
        heads: (0..tokens.len()).collect(),
        record_cross_weights: false,
    };
    model.decoder.forward(&mut kv, &[span]).unwrap().remove(0).logits
}

#[test]
fn whisper_golden_network() {
    for name in MODELS {
        let model = model(name, Context::Full);
        let golden: ModelGolden = golden_json(&format!("{name}.json"));
        let mut encoder = golden_floats(&format!("{name}.encoder.f32")).into_iter();
        let mut heads = golden_floats(&format!("{name}.logits.f32")).into_iter();
        for case in &golden.clips {
            let mel = padded(&model.front_end, &clip(&case.clip));
            let encoded = model.encoder.encode(vec![mel]).unwrap().remove(0);
            let rows = encoded.to_vec2::<f32>().unwrap();
            let ours: Vec<f32> = rows
                .iter()
                .step_by(golden.encoder_frame_step)
                .flat_map(|row| row.iter().step_by(golden.encoder_channel_step))
                .copied()
                .collect();
            let theirs: Vec<f32> = encoder.by_ref().take(ours.len()).collect();
            let largest = theirs.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let encoder_off = worst(&ours, &theirs) / largest;
            assert!(encoder_off <= ENCODER_TOLERANCE, "{name}, {}: encoder off by {encoder_off}", case.clip);

            let mut tokens = golden.prompt.clone();
            tokens.extend(&case.tokens[..case.tokens.len() - 1]);
            let all = logits(&model, &encoded, &tokens);
            let first = golden.prompt.len() - 1;
            let ours = all[first..first + case.positions].iter();
            let ours: Vec<f32> =
                ours.flat_map(|row| row.iter().step_by(golden.logits_step)).copied().collect();
            let theirs: Vec<f32> = heads.by_ref().take(ours.len()).collect();
            let logits_off = worst(&ours, &theirs);
            assert!(logits_off <= LOGITS_TOLERANCE, "{name}, {}: logits off by {logits_off}", case.clip);
            println!("{name}, {}: encoder within {encoder_off}, logits within {logits_off}", case.clip);

            for (at, &token) in case.tokens.iter().enumerate() {
                let mut logits = all[first + at].clone();
                model.window_decoder.rules.apply(&mut logits, &case.tokens[..at]);
                assert_eq!(argmax(&logits) as u32, token, "{name}, {}: token {at}", case.clip);
            }
            languages(&model, &encoded, case);
        }
        assert_eq!((encoder.next(), heads.next()), (None, None));
    }
}

/// Cost of quantised weights, in nats: the divergence of the next token's distribution from that of
/// exact weights, in the mean over every token of the clips.
#[test]
fn whisper_golden_quantised() {
    for (precision, name, most) in [
        (Precision::Bf16, "whisper-tiny.en", 2e-3),
        (Precision::Q8, "whisper-tiny.en", 5e-3),
        (Precision::Q8, "whisper-base", 5e-3),
    ] {
        let folder = checkpoint_folder(name);
        let rounded = Whisper::load(&folder, &kept_as(precision), Context::Full).unwrap();
        let exact = model(name, Context::Full);
        let golden: ModelGolden = golden_json(&format!("{name}.json"));
        let (mut divergence, mut positions, mut same) = (0.0, 0, 0);
        // Every other clip: the mean over their positions is as steady.
        for case in golden.clips.iter().step_by(2) {
            let mel = || padded(&exact.front_end, &clip(&case.clip));
            let mut tokens = golden.prompt.clone();
            tokens.extend(&case.tokens[..case.tokens.len() - 1]);
            let behind = |model: &Whisper| {
                logits(model, &model.encoder.encode(vec![mel()]).unwrap().remove(0), &tokens)
            };
            let first = golden.prompt.len() - 1;
            for (ours, exact) in behind(&rounded)[first..].iter().zip(&behind(&exact)[first..]) {
                divergence += kl(exact, ours);
                positions += 1;
                same += usize::from(argmax(ours) == argmax(exact));
            }
        }
        let mean = divergence / positions as f64;
        println!("{name} {precision}: KL {mean:.2e}, {same} of {positions} best tokens the same");
        assert!(mean > 0.0 && mean < most, "{name} {precision}: {mean}");
    }
}

/// Kullback-Leibler divergence of the distribution of `q` from that of `p`, both logits.
fn kl(p: &[f32], q: &[f32]) -> f64 {
    let log_sum = |logits: &[f32]| {
        let largest = logits.iter().fold(f32::MIN, |a, &b| a.max(b));
        logits.iter().map(|&logit| f64::from(logit - largest).exp()).sum::<f64>().ln() + f64::from(largest)
    };
    let (of_p, of_q) = (log_sum(p), log_sum(q));
    let terms = p.iter().zip(q).map(|(&p, &q)| {
        let (p, q) = (f64::from(p) - of_p, f64::from(q) - of_q);
        p.exp() * (p - q)
    });
    terms.sum()
}

/// candle-transformers' own model of the same weights, as a second opinion on every logit of a clip.
#[test]
fn whisper_golden_candle() {
    let (name, samples) = ("whisper-tiny.en", clip("jfk"));
    let folder = checkpoint_folder(name);
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).unwrap();
    let weights = candle_nn::VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu);
    let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let mut theirs = candle_transformers::models::whisper::model::Whisper::load(&weights, config).unwrap();
    let ours = model(name, Context::Full);

    let mel = padded(&ours.front_end, &samples);
    let bins = mel.values.len() / WINDOW_FRAMES;
    let input = Tensor::from_slice(&mel.values, (1, WINDOW_FRAMES, bins), &Device::Cpu).unwrap();
    let input = input.transpose(1, 2).unwrap().contiguous().unwrap(); // [1, bins, frames]
    let golden: ModelGolden = golden_json(&format!("{name}.json"));
    let case = golden.clips.iter().find(|case| case.clip == "jfk").unwrap();
    let tokens = [golden.prompt.clone(), case.tokens.clone()].concat();

    let encoded = theirs.encoder.forward(&input, true).unwrap();
    let ids = Tensor::new(tokens.as_slice(), &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let hidden = theirs.decoder.forward(&ids, &encoded, true).unwrap();
    let expected = theirs.decoder.final_linear(&hidden).unwrap().squeeze(0).unwrap();
    let expected: Vec<f32> = expected.flatten_all().unwrap().to_vec1().unwrap();

    let encoded = ours.encoder.encode(vec![mel]).unwrap().remove(0);
    let logits = logits(&ours, &encoded, &tokens);
    let difference = worst(&logits.concat(), &expected);
    println!("logits within {difference}");
    assert!(difference <= CANDLE_TOLERANCE, "logits differ by {difference}");
    for (ours, theirs) in logits.iter().zip(expected.chunks(logits[0].len())) {
        assert_eq!(argmax(ours), argmax(theirs));
    }
}

/// The detected language and its probability.
fn languages(model: &Whisper, encoded: &Tensor, case: &ClipGolden) {
    let vocabulary = &model.window_decoder.vocabulary;
    let Some(golden) = &case.languages else { return };
    let logits = logits(model, encoded, &[vocabulary.start]).remove(0);
    let weights: Vec<f32> = vocabulary.languages.iter().map(|(_, id)| logits[*id as usize]).collect();
    let (code, expected) = &golden[0];
    let at = argmax(&weights);
    assert_eq!(&vocabulary.languages[at].0, code);
    assert!((sampling::probability(&weights, at as u32) - expected).abs() < 1e-3);
}

/// A recording in English.
fn in_english(input: ListenInput) -> ListenInput {
    asking(input, |options| options.language = Some("en".to_owned()))
}

#[test]
fn whisper_golden_transcripts() {
    for name in MODELS {
        let model = model(name, Context::Full);
        let golden: ModelGolden = golden_json(&format!("{name}.json"));
        let end = model.window_decoder.vocabulary.end;
        for case in &golden.clips {
            let transcript = unabridged(&model, in_english(greedy(&clip(&case.clip))));
            let mut tokens: Vec<u32> =
                transcript.segments.iter().flat_map(|segment| segment.tokens.clone()).collect();
            tokens.push(end);
            assert_eq!(tokens, case.tokens, "{name}, {}: {}", case.clip, transcript.text);
            let segment = &transcript.segments[0];
            assert!((segment.avg_logprob - case.avg_logprob).abs() < 1e-3, "{segment:?}");
            assert!((segment.no_speech_prob - case.no_speech_prob).abs() < 1e-3, "{segment:?}");
            // Deflate leaves its encoder some choice; Python's makes another.
            assert!((segment.compression_ratio - case.compression_ratio).abs() < 0.1, "{segment:?}");
        }
    }
}

#[derive(Deserialize)]
struct BeamsGolden {
    beam_size: u64,
    cases: Vec<BeamCase>,
}

#[derive(Deserialize)]
struct BeamCase {
    model: String,
    clip: String,
    patience: Option<f32>,
    length_penalty: Option<f32>,
    tokens: Vec<u32>,
    avg_logprob: f32,
}

#[test]
fn whisper_golden_beams() {
    let golden: BeamsGolden = golden_json("beams.json");
    for name in MODELS {
        let model = model(name, Context::Full);
        for case in golden.cases.iter().filter(|case| case.model == name) {
            let BeamCase { patience, length_penalty, .. } = *case;
            let input = asking(in_english(greedy(&clip(&case.clip))), |options| {
                options.beam_size = Some(golden.beam_size);
                (options.patience, options.length_penalty) = (patience, length_penalty);
            });
            let transcript = unabridged(&model, input);
            let tokens: Vec<u32> =
                transcript.segments.iter().flat_map(|segment| segment.tokens.clone()).collect();
            assert_eq!(tokens, case.tokens, "{name}, {}, {patience:?}: {}", case.clip, transcript.text);
            let difference = (transcript.segments[0].avg_logprob - case.avg_logprob).abs();
            assert!(difference < 1e-3, "{name}, {}: off by {difference}", case.clip);
        }
    }
    assert_eq!(golden.cases.len(), 24);
}

#[derive(Deserialize)]
struct LayoutGolden {
    encoder_frame_step: usize,
    logits_step: usize,
    languages: usize,
    clips: Vec<LayoutClip>,
}

#[derive(Deserialize)]
struct LayoutClip {
    clip: String,
    encoder: Vec<f32>,
    language: String,
    probability: f32,
    tasks: Vec<TaskGolden>,
}

#[derive(Deserialize)]
struct TaskGolden {
    task: String,
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// Tiny random checkpoints in the layouts of larger models: more mel bins and languages, decoders of few layers and heads.
#[test]
fn whisper_golden_layouts() {
    for name in ["large-v3", "turbo", "distil"] {
        let folder = workspace().join("tests/golden/whisper/layouts").join(name);
        let model = Whisper::load(&folder, &kept_as(Precision::F32), Context::Full).unwrap();
        let golden: LayoutGolden = golden_json(&format!("layouts/{name}/golden.json"));
        assert_eq!(model.info.languages.len(), golden.languages);
        let detect = |encoded: &Tensor| {
            let vocabulary = &model.window_decoder.vocabulary;
            let logits = logits(&model, encoded, &[vocabulary.start]).remove(0);
            let weights: Vec<f32> = vocabulary.languages.iter().map(|(_, id)| logits[*id as usize]).collect();
            let best = argmax(&weights);
            (vocabulary.languages[best].0.clone(), sampling::probability(&weights, best as u32))
        };
        for case in &golden.clips {
            let samples = clip(&case.clip);
            let encoded = model.encoder.encode(vec![padded(&model.front_end, &samples)]).unwrap().remove(0);
            let rows = encoded.to_vec2::<f32>().unwrap();
            let ours: Vec<f32> = rows.iter().step_by(golden.encoder_frame_step).flatten().copied().collect();
            let largest = case.encoder.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let off = worst(&ours, &case.encoder) / largest;
            assert!(off <= 10.0 * ENCODER_TOLERANCE, "{name}, {}: encoder off by {off}", case.clip);
            let (language, probability) = detect(&encoded);
            assert_eq!(language, case.language, "{name}, {}", case.clip);
            assert!((probability - case.probability).abs() < 2e-3, "{name}: {probability}");
            for task in &case.tasks {
                let input = asking(greedy(&samples), |options| {
                    options.language = Some(language.clone());
                    options.translate = task.task == "translate";
                });
                let options = model.decoding_options(&input, &LIMITS).unwrap();
                let recording = model.record(&samples, regions::whole(&samples), options);
                let (state, _) = model.window_decoder.begin(&recording).unwrap();
                assert_eq!(state.pass.tokens, task.prompt, "{name}, {}", task.task);
                let tokens = [&task.prompt[..], &task.tokens[..task.tokens.len() - 1]].concat();
                let all = logits(&model, &encoded, &tokens);
                for (at, &token) in task.tokens.iter().enumerate() {
                    let mut row = all[task.prompt.len() - 1 + at].clone();
                    let ours: Vec<f32> = row.iter().step_by(golden.logits_step).copied().collect();
                    let off = worst(&ours, &task.logits[at]);
                    assert!(off <= LOGITS_TOLERANCE, "{name}, {}: token {at} off by {off}", task.task);
                    model.window_decoder.rules.apply(&mut row, &task.tokens[..at]);
                    assert_eq!(argmax(&row) as u32, token, "{name}, {}: token {at}", task.task);
                }
            }
        }
    }
}

#[test]
fn whisper_golden_words() {
    for name in MODELS {
        let model = model(name, Context::Full);
        let golden: ModelGolden = golden_json(&format!("{name}.json"));
        for case in &golden.clips {
            let Some(segments) = &case.openai_words else { continue };
            let transcript = unabridged(&model, with_words(in_english(greedy(&clip(&case.clip)))));
            let ours: Vec<_> = transcript.segments.iter().flat_map(|segment| &segment.words).collect();
            let theirs: Vec<_> = segments.iter().flat_map(|segment| &segment.words).collect();
            assert_eq!(ours.len(), theirs.len(), "{}", transcript.text);
            let mut agreeing = 0;
            for (ours, (text, start_s, end_s)) in ours.iter().zip(&theirs) {
                assert_eq!(words(&ours.text), words(text));
                for (ours, theirs) in [(ours.start_s, start_s), (ours.end_s, end_s)] {
                    agreeing += usize::from((ours - theirs).abs() <= WORD_TOLERANCE_S);
                }
            }
            let share = agreeing as f64 / (2 * theirs.len()) as f64;
            println!("{name}, {}: {share:.3} of the times agree", case.clip);
            assert!(share >= MIN_AGREEING_TIMES, "{name}, {}: {share}\n{ours:#?}", case.clip);
        }
    }
}

#[test]
fn whisper_golden_long() {
    for name in MODELS {
        let model = model(name, Context::Full);
        let LongGolden { clips, gap_s, text } = golden_json::<ModelGolden>(&format!("{name}.json")).long;
        let gap = vec![0f32; (gap_s * SAMPLE_RATE_HZ as f64) as usize];
        let samples: Vec<f32> = clips.iter().flat_map(|name| [clip(name), gap.clone()].concat()).collect();
        let transcript = unabridged(&model, in_english(greedy(&samples)));
        let (ours, theirs) = (words(&transcript.text), words(&text));
        let wrong = tests::errors(&ours, &theirs);
        println!("{name}: {wrong} words of {} differ: {}", theirs.len(), transcript.text);
        assert!(wrong <= 2, "{name}: {}\n{text}", transcript.text);
    }
}

#[derive(Deserialize)]
struct AlignmentGolden {
    cases: Vec<AlignmentCase>,
}

#[derive(Deserialize)]
struct AlignmentCase {
    filter_width: usize,
    matrix: Vec<Vec<f32>>,
    filtered: Vec<Vec<f32>>,
    text_indices: Vec<usize>,
    time_indices: Vec<usize>,
}

#[test]
fn whisper_golden_alignment() {
    for case in golden_json::<AlignmentGolden>("alignment.json").cases {
        let filtered: Vec<Vec<f32>> =
            case.matrix.iter().map(|row| alignment::median(row, case.filter_width).collect()).collect();
        assert_eq!(filtered, case.filtered);
        let columns = case.matrix[0].len();
        let begins = alignment::warp(&case.matrix.concat(), columns);
        let expected: Vec<usize> = (0..case.matrix.len())
            .map(|row| {
                let at = case.text_indices.iter().position(|&index| index == row).unwrap();
                case.time_indices[at]
            })
            .collect();
        assert_eq!(begins, expected);
    }
}
