//! Parity of text, voices, codec and flow network with the official implementation.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use izwi_audio::resample::Resampler;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;

use super::codec::end_on_pause;
use super::flow::{TimeEmbedder, embedder};
use super::generation::{FLOW, Generated, NoObserver, Pass, StepInput};
use super::golden_set::{
    TOLERANCE, assert_same, by_rows, compare, device, json, model, root, tensors, values, variants,
};
use super::noise::Noise;
use super::voice::Voice;
use super::{PocketTts, text};
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::kv_pool::KvPool;
use izwi_nn::layers::half_split_of_interleaved;
use izwi_types::{Precision, VoiceRecording, VoiceReference};

const BLOCK: usize = 4;
const BLOCKS: usize = 64;

#[derive(Deserialize)]
struct Texts {
    long: String,
    chunks: Vec<String>,
    chunk_ids: Vec<Vec<u32>>,
    cases: Vec<TextCase>,
}

#[derive(Deserialize)]
struct TextCase {
    text: String,
    #[serde(default)]
    prepared: Option<String>,
    #[serde(default)]
    frames_after_eos_guess: usize,
    #[serde(default)]
    ids: Vec<u32>,
}

#[test]
fn pocket_tts_golden_texts_are_prepared_split_and_tokenised() {
    for variant in variants() {
        let PocketTts { config, tokenizer, .. } = model(&variant, Precision::F32);
        let golden: Texts = json(&format!("{variant}.text"));
        for case in golden.cases {
            let ours = text::prepare(&case.text, &config);
            assert_eq!(ours.as_ref().map(|ours| &ours.text), case.prepared.as_ref(), "{variant}");
            if let Some(ours) = ours {
                assert_eq!(ours.frames_after_eos_guess, case.frames_after_eos_guess, "{}", case.text);
                assert_eq!(tokenizer.encode(&ours.text), case.ids, "{variant}: {:?}", ours.text);
            }
        }
        let chunks = text::split(&golden.long, &config, &tokenizer).unwrap();
        assert_eq!(chunks, golden.chunks, "{variant}");
        let ids: Vec<_> = chunks.iter().map(|chunk| tokenizer.encode(chunk)).collect();
        assert_eq!(ids, golden.chunk_ids, "{variant}");
        assert!(text::split(" \n ", &config, &tokenizer).is_none());
    }
}

/// The recording of a variant.
pub(super) fn recording(variant: &str) -> VoiceRecording {
    let samples = values(&tensors(&format!("{variant}.voice"))["wav"]);
    VoiceRecording { samples: samples.into(), text: None, timbre_only: true }
}

/// The voice of a variant's recording.
pub(super) fn voice(model: &PocketTts, variant: &str) -> Arc<Voice> {
    model.voices.choose(None, Some(&VoiceReference::Recording(recording(variant)))).unwrap()
}

/// Keys and values of a voice in a pool, `[positions, kv_heads, head_dim]` for each layer, after one step over it.
fn computed(model: &PocketTts, voice: Arc<Voice>) -> Vec<[Tensor; 2]> {
    let layout = model.generator.kv_layout();
    let mut kv = KvPool::new(Some(layout), BLOCKS, BLOCK, &device()).unwrap();
    let table: Vec<u32> = (0..BLOCKS as u32).rev().collect();
    let (mut generated, end) = (Generated::default(), voice.positions());
    let noise = Noise::new(0);
    let pass = Pass { voice, tokens: vec![1], temperature: 0.0, noise, frames_after_eos: 0 };
    // In two steps, of which one cuts a block.
    for (start, end) in [(0, 2), (2, end)] {
        let input = StepInput { pass: &pass, generated: &mut generated, start, end, block_table: &table };
        model.generator.step(&mut kv, &mut [input], &mut NoObserver).unwrap();
    }
    let slots = kv.slots(&table, 0, end);
    (0..layout.layers).map(|layer| kv.gather(layer, &slots).unwrap().into()).collect()
}

/// A golden state's keys and values of each layer, keys in the half-split layout.
fn state(golden: &HashMap<String, Tensor>) -> Vec<[Tensor; 2]> {
    let caches =
        (0..).map_while(|layer| golden.get(&format!("state.transformer.layers.{layer}.self_attn.cache")));
    let layer = |cache: &Tensor| {
        let [keys, values] = [0, 1].map(|part| cache.get(part).unwrap().get(0).unwrap());
        let (dims, dim) = (keys.dims().to_vec(), keys.dim(2).unwrap());
        let keys = half_split_of_interleaved(&keys.flatten_all().unwrap(), dim).unwrap();
        [keys.reshape(dims).unwrap(), values]
    };
    caches.map(layer).collect()
}

#[test]
fn pocket_tts_golden_recordings_become_voices() {
    for variant in variants() {
        let (model, golden) = (model(&variant, Precision::F32), tensors(&format!("{variant}.voice")));
        let wav = values(&golden["wav"]);
        let ended = end_on_pause(&wav, model.config.mimi.sample_rate);
        compare("end", &ended, &values(&golden["end_on_pause"]), 1e-6);
        let (taps, frames, rows) = model.voices.encode_taps(&ended);
        for name in ["enc.seanet", "enc.transformer"] {
            let pieces: Vec<_> = taps.iter().filter(|(tap, _)| tap == name).map(|(_, x)| x).collect();
            let ours = Tensor::cat(&pieces, 0).unwrap();
            compare(name, &values(&ours), &values(&by_rows(&golden[name])), TOLERANCE);
        }
        compare("frames", &values(&frames), &values(&golden["latents"]), TOLERANCE);
        compare("conditioning", &values(&rows), &values(&golden["conditioning"]), TOLERANCE);
        let (ours, theirs) = (computed(&model, voice(&model, &variant)), state(&golden));
        assert_eq!(ours.len(), theirs.len(), "{variant}");
        for (layer, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            for (ours, theirs) in ours.iter().zip(theirs) {
                compare(&format!("{variant} layer {layer}"), &values(ours), &values(theirs), TOLERANCE);
            }
        }
        let (from, to) = (values(&golden["w16"]), values(&golden["w16_to_24k"]));
        let (mut resampler, mut ours) = (Resampler::new(16_000, 24_000).unwrap(), Vec::new());
        resampler.push(&from, &mut ours).unwrap();
        resampler.finish(&mut ours).unwrap();
        // Another filter: the same signal, but for its highest frequencies.
        let power = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x * x)).sum::<f64>();
        let off = power(&mut ours.iter().zip(&to).map(|(a, b)| a - b)) / power(&mut to.iter().copied());
        assert!(ours.len().abs_diff(to.len()) <= 1 && off < 0.02, "{variant}: {off}");
    }
}

/// The file of a published voice with its offsets as older files have them.
fn with_current_end(file: &[u8]) -> Vec<u8> {
    let tensors = SafeTensors::deserialize(file).unwrap();
    let bytes = vec![0; 4096];
    let older = tensors.iter().filter(|(name, _)| !name.ends_with("/pad")).map(|(name, view)| {
        match name.strip_suffix("/offset") {
            None => (name.to_owned(), view),
            Some(layer) => {
                let length = i64::from_le_bytes(view.data().try_into().unwrap()) as usize;
                let end = TensorView::new(Dtype::F32, vec![length], &bytes[..4 * length]).unwrap();
                (format!("{layer}/current_end"), end)
            }
        }
    });
    safetensors::serialize(older.collect::<Vec<_>>(), None).unwrap()
}

#[test]
fn pocket_tts_golden_published_voices_are_their_states() {
    for variant in variants() {
        let (model, golden) = (model(&variant, Precision::F32), tensors(&format!("{variant}.voice")));
        let path = root().join(&variant).join("voice.safetensors");
        let folder = tempfile::tempdir().unwrap();
        let older = folder.path().join("older.safetensors");
        std::fs::write(&older, with_current_end(&std::fs::read(&path).unwrap())).unwrap();
        for path in [path, older] {
            let voice = model.voices.of_file(&path).unwrap();
            let ours = computed(&model, Arc::new(voice));
            for (ours, theirs) in ours.iter().flatten().zip(state(&golden).iter().flatten()) {
                assert_same("state", &values(ours), &values(theirs));
            }
        }
    }
}

/// Name, type, shape and bytes.
type StoredTensor = (String, Dtype, Vec<usize>, Vec<u8>);

#[test]
fn pocket_tts_golden_damaged_voices_are_refused() {
    let variant = &variants()[0];
    let model = model(variant, Precision::F32);
    let file = std::fs::read(root().join(variant).join("voice.safetensors")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let refused = |change: &dyn Fn(&str, &[u8]) -> Option<StoredTensor>| {
        let tensors = SafeTensors::deserialize(&file).unwrap();
        let changed: Vec<_> = tensors
            .iter()
            .filter_map(|(name, view)| {
                let (dtype, shape, data) = (view.dtype(), view.shape().to_vec(), view.data().to_vec());
                if name.contains("layers.0") {
                    change(name, &data)
                } else {
                    Some((name.to_owned(), dtype, shape, data))
                }
                .map(|(name, _, _, changed)| (name, dtype, view.shape().to_vec(), changed))
            })
            .collect();
        let views = changed
            .iter()
            .map(|(name, dtype, shape, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
        let path = folder.path().join("changed.safetensors");
        std::fs::write(&path, safetensors::serialize(views.collect::<Vec<_>>(), None).unwrap()).unwrap();
        model.voices.of_file(&path).unwrap_err().to_string()
    };
    let same = |name: &str, data: &[u8]| Some((name.to_owned(), Dtype::F32, Vec::new(), data.to_vec()));
    let error = refused(&|name, data| if name.ends_with("cache") { None } else { same(name, data) });
    assert!(error.contains("cache: missing"), "{error}");
    let error = refused(&|name, data| {
        let far = 1000i64.to_le_bytes();
        same(name, if name.ends_with("offset") { &far } else { data })
    });
    assert!(error.contains("does not fit") || error.contains("positions"), "{error}");
    let error = refused(&|name, data| same(&name.replace("cache", "other"), data));
    assert!(error.contains("missing"), "{error}");
    let error = refused(&|name, data| {
        let mut data = data.to_vec();
        if name.ends_with("cache") {
            data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
        }
        same(name, &data)
    });
    assert!(error.contains("no numbers"), "{error}");
    std::fs::write(folder.path().join("short"), &file[..file.len() / 2]).unwrap();
    assert!(model.voices.of_file(&folder.path().join("short")).is_err());
}

#[test]
fn pocket_tts_golden_codec_decodes_at_once_and_frame_by_frame() {
    for variant in variants() {
        let (model, golden) = (model(&variant, Precision::F32), tensors(&format!("{variant}.mimi_decode")));
        let rows = golden["latents"].squeeze(0).unwrap().to_device(&device()).unwrap();
        let mut taps = HashMap::new();
        let whole = model.codec.decode_rows(&rows, usize::MAX, |name, x| drop(taps.insert(name, values(&x))));
        for name in ["quantizer", "upsample", "dec.transformer"] {
            let theirs = values(&by_rows(&golden[name]));
            compare(&format!("{variant} {name}"), &taps[name], &theirs, TOLERANCE);
        }
        compare(&variant, &whole, &values(&golden["wav"]), TOLERANCE);
        compare(&variant, &whole, &values(&golden["wav_stream"]), TOLERANCE);
        for piece in [1, 3] {
            assert_same(&variant, &model.codec.decode_rows(&rows, piece, |_, _| ()), &whole);
        }
    }
}

#[test]
fn pocket_tts_golden_flow_network() {
    for variant in variants() {
        let file = format!("{variant}.flow_net");
        if !root().join("goldens").join(format!("{file}.safetensors")).exists() {
            continue;
        }
        let (model, golden) = (model(&variant, Precision::F32), tensors(&file));
        let path = root().join(&variant).join("model.safetensors");
        let mut from = Checkpoint::open(&path, &device()).unwrap();
        let dim = model.config.flow_lm.flow.dim;
        let times: Vec<Tensor> = ["s", "t"]
            .iter()
            .enumerate()
            .map(|(index, name)| {
                let times = values(&golden[*name]);
                let embedder = TimeEmbedder::load(&mut from, &embedder(FLOW, index), dim).unwrap();
                let rows = times.iter().flat_map(|&time| embedder.embed(time, &from).unwrap());
                let rows: Vec<f32> = rows.collect();
                compare(name, &rows, &values(&golden[&format!("emb_{name}")]), TOLERANCE);
                Tensor::from_vec(rows, (times.len(), dim), &Device::Cpu).unwrap()
            })
            .collect();
        let time = ((&times[0] + &times[1]).unwrap() * 0.5).unwrap().to_device(&device()).unwrap();
        let on = |name: &str| golden[name].to_dtype(DType::F32).unwrap().to_device(&device()).unwrap();
        let head = &model.generator.head;
        let ours = head.velocity(&head.condition(&on("c")), Some(&time), &on("x")).unwrap();
        compare("flow", &values(&ours), &values(&golden["out"]), TOLERANCE);
    }
}
