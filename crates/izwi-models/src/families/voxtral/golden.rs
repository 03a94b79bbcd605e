//! Parity with transformers and mistral-common, and the adapter's promises, on the golden set.

use serde::Deserialize;

use super::super::golden_set::{self, GoldenSet};
use super::*;
use crate::model::{BatchEntry, SequenceState};
use izwi_nn::kv_pool::KvPool;
use izwi_types::{Precision, PrepareLimits, Prepared, TranscriptionOptions, Work};

const SET: GoldenSet = GoldenSet { name: "voxtral", variable: "IZWI_GOLDEN_VOXTRAL" };
/// candle-transformers approximates GELU by tanh after the convolutions.
const TOLERANCE: f32 = 1e-2;
/// Seconds of the clip of the set.
const CLIP_S: usize = 4;
const LIMITS: PrepareLimits = PrepareLimits { max_tokens_per_step: 512, max_positions: 4096 };

#[derive(Debug, Deserialize)]
struct Case {
    prompt: Vec<u32>,
    generated: Vec<u32>,
}

fn model() -> Voxtral {
    Voxtral::load(&SET.root(), &LoadOptions::new(golden_set::device(), Precision::F32)).unwrap()
}

fn clip() -> Arc<[f32]> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../assets/speech/jfk.wav");
    let bytes = std::fs::read(path).unwrap();
    let data = bytes.windows(4).position(|tag| tag == b"data").unwrap();
    let samples = bytes[data + 8..].as_chunks().0.iter().take(CLIP_S * SAMPLE_RATE_HZ);
    samples.map(|bytes| f32::from(i16::from_le_bytes(*bytes)) / 32768.0).collect()
}

fn whole(model: &Voxtral, language: Option<&str>) -> Recording {
    let samples = clip();
    let region = regions::whole(&samples).remove(0);
    let stretches = vec![model.stretch(&samples, region, language)];
    Recording { stretches, language: None, sampling: SamplingParams::GREEDY, seed: 0 }
}

/// What a request came to.
#[derive(Debug, Default, PartialEq)]
struct Ran {
    text: String,
    segments: Vec<Segment>,
    generated: usize,
    passes: usize,
}

/// Runs requests together, a unit of each in a step, as the scheduler does.
fn run<'a>(model: &dyn SpeechModel, requests: &'a [Prepared]) -> Vec<Ran> {
    struct Running<'a> {
        prepared: &'a Prepared,
        place: usize,
        state: SequenceState,
        work: Work,
        next: usize,
    }
    let mut ran: Vec<Ran> = requests.iter().map(|_| Ran { passes: 1, ..Ran::default() }).collect();
    let begin = |(place, prepared): (usize, &'a Prepared)| {
        let (state, work) = (model.start(prepared), prepared.work.clone());
        Running { prepared, place, state, work, next: 0 }
    };
    let mut running: Vec<Running<'_>> = requests.iter().enumerate().map(begin).collect();
    let mut kv = KvPool::new(None, 1, 8, &golden_set::device()).unwrap();
    while !running.is_empty() {
        let entries = running.iter_mut().map(|one| {
            let Work::Units(units) = &one.work else { panic!("{:?}", one.work) };
            BatchEntry {
                prepared: one.prepared,
                state: &mut one.state,
                start: one.next,
                begins: one.next == 0,
                num_tokens: units[one.next],
                block_table: &[],
                branch_tables: &[],
            }
        });
        let outputs = model.forward(&mut kv, &mut entries.collect::<Vec<_>>()).unwrap();
        let mut finished = Vec::new();
        for (one, output) in running.iter_mut().zip(outputs) {
            let (output, ran) = (output.unwrap(), &mut ran[one.place]);
            ran.text.push_str(&output.text);
            ran.segments.extend(output.segments);
            ran.generated += output.generated_tokens;
            one.next += 1;
            if let Some(work) = output.next_pass {
                (one.work, one.next) = (work, 0);
                ran.passes += 1;
            }
            finished.push(output.finished);
        }
        let mut finished = finished.into_iter();
        running.retain(|_| !finished.next().unwrap());
    }
    ran
}

#[test]
fn voxtral_golden_network_and_prompts_equal_the_reference() {
    let model = model();
    let theirs = SET.tensors("network");
    let cases: std::collections::HashMap<String, Case> = SET.json("generate");
    for (name, language) in [("any", None), ("en", Some("en"))] {
        let recording = whole(&model, language);
        let (stretch, case) = (&recording.stretches[0], &cases[name]);
        assert_eq!(stretch.prompt, case.prompt, "{name}");
        let bins = model.config.audio_config.num_mel_bins;
        let mel = Tensor::from_slice(&stretch.mel, (model.window_frames(), bins), &Device::Cpu).unwrap();
        let rows = mel.t().unwrap().contiguous().unwrap();
        let spoken = rows.narrow(1, 0, CLIP_S * 100).unwrap().to_vec2::<f32>().unwrap();
        let shown: Vec<f32> = spoken.iter().flat_map(|row| row.iter().step_by(7).copied()).collect();
        golden_set::compare(
            "features",
            &shown,
            &golden_set::values(&theirs["features"]),
            golden_set::TOLERANCE,
        );
        let input = rows.unsqueeze(0).unwrap().to_device(&model.device).unwrap();
        let rows = model.network.get_audio_embeds(&input).unwrap();
        let rows: Vec<Tensor> =
            (0..rows.dim(0).unwrap()).step_by(25).map(|row| rows.get(row).unwrap()).collect();
        let ours = golden_set::values(&Tensor::stack(&rows, 0).unwrap());
        golden_set::compare("audio", &ours, &golden_set::values(&theirs["audio"]), TOLERANCE);
        let tokens = Tensor::new(case.prompt.as_slice(), &model.device).unwrap().unsqueeze(0).unwrap();
        let logits = model.network.forward(&tokens, Some(&input), &mut model.empty_cache.clone(), 0).unwrap();
        let expected = golden_set::values(&theirs[&format!("logits.{name}")]);
        golden_set::compare("logits", &golden_set::values(&logits), &expected, TOLERANCE);
        let mut pass = model.begin(&recording, 0).unwrap();
        for _ in &case.generated {
            model.step(&recording, &mut pass).unwrap();
        }
        assert_eq!(pass.tokens, case.generated, "{name}");
    }
}

#[test]
fn a_recording_in_parts_becomes_segments_and_a_batch_equals_each_alone() {
    let model = Sequential(Voxtral { max_tokens: 12, ..model() });
    let pause = vec![0.0; 4 * SAMPLE_RATE_HZ];
    let samples: Arc<[f32]> = [&clip()[..], &pause, &clip()[..]].concat().into();
    let input = |seed, temperature| {
        let options =
            TranscriptionOptions { seed: Some(seed), temperature: Some(temperature), ..Default::default() };
        Input::Listen(ListenInput { options, ..ListenInput::plain(Arc::clone(&samples)) })
    };
    let prepared: Vec<_> = [(1, 0.0), (2, 1.0), (2, 1.0), (3, 1.0)]
        .map(|(seed, temperature)| model.prepare(&input(seed, temperature), &LIMITS).unwrap())
        .into();
    let alone: Vec<_> = prepared.iter().flat_map(|one| run(&model, std::slice::from_ref(one))).collect();
    assert_eq!(run(&model, &prepared), alone, "a batch");
    for ran in &alone {
        assert!(ran.passes == 2 && ran.generated > 2);
        assert_eq!(ran.text, ran.segments.iter().map(|segment| segment.text.as_str()).collect::<String>());
        assert!(
            ran.segments.iter().all(|segment| segment.start_s < segment.end_s && segment.avg_logprob < 0.0)
        );
    }
    assert_eq!(alone[1], alone[2], "the same seed");
    assert_ne!(alone[1].text, alone[3].text, "another seed");
}

#[test]
fn what_the_network_lacks_is_refused_and_silence_has_no_text() {
    let model = Sequential(model());
    let none = TranscriptionOptions::default;
    let refused = [
        ("language", TranscriptionOptions { language: Some("ja".to_owned()), ..none() }),
        ("model", TranscriptionOptions { translate: true, ..none() }),
        ("timestamp_granularities", none().with_words()),
        ("include", none().with_logprobs()),
        ("beam_size", TranscriptionOptions { beam_size: Some(5), ..none() }),
        ("prompt", TranscriptionOptions { prompt: Some("names".to_owned()), ..none() }),
        ("keywords", TranscriptionOptions { keywords: vec!["name".to_owned()], ..none() }),
    ];
    for (param, options) in refused {
        let input = ListenInput { options, ..ListenInput::plain(clip()) };
        let error = model.prepare(&Input::Listen(input), &LIMITS).unwrap_err();
        assert_eq!(error.param, param, "{}", error.message);
    }
    let silence = ListenInput::plain(vec![0.0; SAMPLE_RATE_HZ].into());
    let prepared = model.prepare(&Input::Listen(silence), &LIMITS).unwrap();
    assert_eq!(run(&model, &[prepared]), [Ran { passes: 1, ..Ran::default() }]);
}

#[test]
fn a_checkpoint_that_does_not_fit_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["config.json", "tekken.json", "model.safetensors"] {
        std::fs::copy(SET.root().join(name), folder.path().join(name)).unwrap();
    }
    let load = || {
        let options = LoadOptions::new(Device::Cpu, Precision::F32);
        Voxtral::load(folder.path(), &options).map(|_| ()).map_err(|error| error.to_string())
    };
    assert_eq!(load(), Ok(()));
    let path = folder.path().join("config.json");
    let good = std::fs::read_to_string(&path).unwrap();
    let faults = [
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3", "layers.2"),
        ("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 0", "num_key_value_heads"),
        ("\"hidden_size\": 48", "\"hidden_size\": 50", "expected"),
        ("\"intermediate_size\": 128", "\"intermediate_size\": 127", "multiple"),
        ("\"audio_token_id\": 24", "\"audio_token_id\": 99999", "audio_token_id"),
        ("\"vocab_size\": 308", "\"vocab_size\": 30", "308"),
        ("{", "", "config.json"),
    ];
    for (from, to, told) in faults {
        assert!(good.contains(from), "{from}");
        std::fs::write(&path, good.replace(from, to)).unwrap();
        let error = load().unwrap_err();
        assert!(error.contains(told), "{to}: {error}");
    }
}
