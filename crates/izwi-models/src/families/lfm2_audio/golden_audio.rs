//! Parity of front end, encoder, detokenizer and codec with the reference; streaming against offline decoding.

use std::collections::HashMap;

use candle_core::{DType, Tensor};
use proptest::prelude::*;

use super::super::golden_set::rounds_activations;
use super::codec::load_mimi;
use super::conformer::AudioEncoder;
use super::detokenizer::{self, Detokenizer};
use super::golden_set::{
    TOLERANCE, assert_same, by_rows, codes, compare, device, ids, json, root, tensors, values,
};
use super::mel;
use crate::conformer::{FrontEnd, Mel};
use crate::families::LoadOptions;
use izwi_nn::Error;
use izwi_nn::checkpoint::Checkpoint;
use izwi_nn::codec::mimi::{self, Mimi};
use izwi_types::Precision;

/// Heads and window of the small codec, which its file does not tell: `scripts/golden/lfm2_audio.py`.
const MIMI: (usize, usize) = (4, 16);
/// Name of the codec's file.
const MIMI_FILE: &str = "tokenizer-e351c8d8-checkpoint125.safetensors";

fn part<T: serde::de::DeserializeOwned>(name: &str) -> T {
    let text = std::fs::read_to_string(root().join("config.json")).unwrap();
    let config: serde_json::Value = serde_json::from_str(&text).unwrap();
    serde_json::from_value(config[name].clone()).unwrap()
}

fn front_end() -> FrontEnd {
    let config: mel::Config = part("preprocessor");
    config.check().unwrap();
    config.front_end()
}

fn encoder_in(precision: Precision) -> AudioEncoder {
    let config: super::conformer::Config = part("encoder");
    config.check(part::<mel::Config>("preprocessor").features).unwrap();
    let hidden = part::<serde_json::Value>("lfm")["hidden_size"].as_u64().unwrap() as usize;
    let mut from = Checkpoint::open_folder(&root(), &device()).unwrap();
    let encoder = AudioEncoder::load(&mut from, &config, hidden, precision).unwrap();
    // Nothing of the two parts may be left over or missing; the rest is the language model's.
    from.skip(|name| !name.starts_with("conformer.") && !name.starts_with("audio_adapter."));
    from.finish().unwrap();
    encoder
}

fn encoder() -> AudioEncoder {
    encoder_in(Precision::F32)
}

/// The recordings of a case as the official model got them.
fn recordings(golden: &HashMap<String, Tensor>) -> Vec<Mel> {
    let mut start = 0;
    let mut recordings = Vec::new();
    for frames in ids(&golden["in.audio_in_lens"]).into_iter().map(|frames| frames as usize) {
        let mel = golden["in.audio_in"].narrow(1, start, frames).unwrap();
        recordings.push(Mel { values: values(&mel.t().unwrap().contiguous().unwrap()), frames });
        start += frames;
    }
    recordings
}

fn all(recordings: &[Mel]) -> Vec<&Mel> {
    recordings.iter().collect()
}

fn file_exists(name: &str) -> bool {
    root().join("goldens").join(format!("{name}.safetensors")).exists()
}

/// Power of `theirs` over that of what `ours` is off, in dB.
fn ratio_db(ours: &[f32], theirs: &[f32]) -> f64 {
    let power = |samples: &mut dyn Iterator<Item = f32>| samples.map(|s| f64::from(s * s)).sum::<f64>();
    let noise = power(&mut ours.iter().zip(theirs).map(|(a, b)| a - b));
    10.0 * (power(&mut theirs.iter().copied()) / noise.max(1e-30)).log10()
}

#[test]
fn lfm2_audio_golden_mel() {
    let (front_end, golden) = (front_end(), tensors("mel"));
    for (samples, mel) in [("w1", "mel1"), ("w24_resampled_16k", "mel24")] {
        let ours = front_end.frames(&values(&golden[samples]));
        let theirs = by_rows(&golden[mel]);
        assert_eq!(ours.frames, theirs.dim(0).unwrap());
        compare(mel, &ours.values, &values(&theirs), TOLERANCE);
    }
    let history = recordings(&tensors("chat2"));
    for (mel, samples) in history.iter().zip(["w1", "w2"]) {
        let ours = front_end.frames(&values(&golden[samples]));
        assert_eq!(ours.frames, mel.frames);
        compare(samples, &ours.values, &mel.values, TOLERANCE);
    }
}

#[test]
fn lfm2_audio_golden_encoder() {
    let encoder = encoder();
    let mut compared = 0;
    for case in ["asr", "asr24", "chat1", "chat2"] {
        let golden = tensors(case);
        let recordings = recordings(&golden);
        let taps = encoder.taps(&all(&recordings));
        for (name, ours) in &taps {
            let Some(theirs) = golden.get(&format!("enc.{name}")) else { continue };
            for (index, ours) in ours.iter().enumerate() {
                let theirs = theirs.get(index).unwrap().narrow(0, 0, ours.dim(0).unwrap()).unwrap();
                assert_eq!(ours.dims(), theirs.dims());
                compare(&format!("{case} {name} {index}"), &values(ours), &values(&theirs), TOLERANCE);
                compared += 1;
            }
        }
        let (_, rows) = taps.last().unwrap();
        let ours: Vec<f32> = rows.iter().flat_map(values).collect();
        // Where they stand in the prompt.
        let prompt = golden["prefill.in_emb"].squeeze(0).unwrap();
        let flags = ids(&golden["in.modality_flag"]);
        let places = flags.iter().enumerate().filter(|(_, flag)| **flag == 2).map(|(at, _)| at as u32);
        let places = Tensor::from_iter(places, prompt.device()).unwrap();
        let theirs = prompt.index_select(&places, 0).unwrap();
        compare(&format!("{case} prompt"), &ours, &values(&theirs), TOLERANCE);
        if let Some(theirs) = golden.get("adapter") {
            compare(&format!("{case} adapter"), &ours, &values(theirs), TOLERANCE);
        }
    }
    assert!(compared > 0);
}

#[test]
fn lfm2_audio_golden_encoder_is_near_the_reference_in_every_precision() {
    let (golden, samples) = (tensors("asr"), values(&tensors("mel")["w1"]));
    let mel = front_end().frames(&samples);
    let theirs = values(&golden["adapter"]);
    let bf16_db = if rounds_activations() { 40.0 } else { 80.0 };
    for (precision, least_db) in [(Precision::F32, 80.0), (Precision::Bf16, bf16_db), (Precision::Q8, 25.0)] {
        let rows = encoder_in(precision).forward(&[&mel]).unwrap().remove(0);
        let ratio = ratio_db(&values(&rows), &theirs);
        println!("{precision}: {ratio:.1} dB");
        assert!(ratio > least_db, "{precision}: {ratio} dB");
    }
}

/// Mel frames of a deterministic recording.
fn recording_of(frames: usize, seed: usize) -> Mel {
    let bins = part::<mel::Config>("preprocessor").features;
    let value = |n: usize| ((n * n * 31 + n * 17 + seed * 7919) % 2003) as f32 / 1000.0 - 1.0;
    Mel { values: (0..frames * bins).map(value).collect(), frames }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    #[test]
    fn lfm2_audio_golden_encoding_in_a_batch_equals_each_alone(
        lengths in prop::collection::vec(9usize..400, 1..5),
        precision in prop::sample::select(vec![Precision::F32, Precision::Q8]),
    ) {
        let encoder = encoder_in(precision);
        let recordings: Vec<Mel> =
            lengths.iter().enumerate().map(|(seed, &frames)| recording_of(frames, seed)).collect();
        let together = encoder.forward(&all(&recordings)).unwrap();
        for (mel, together) in recordings.iter().zip(together) {
            let alone = encoder.forward(&[mel]).unwrap().remove(0);
            prop_assert_eq!(alone.dim(0).unwrap(), mel.frames.div_ceil(8));
            assert_same("among others", &values(&together), &values(&alone));
        }
    }
}

#[test]
fn lfm2_audio_golden_an_empty_batch_encodes_to_nothing() {
    assert!(encoder().forward(&[]).unwrap().is_empty());
}

/// The common interface of both decoders.
trait Decoding {
    type State: Default;
    fn decode(&self, batch: &mut [(&mut Self::State, &[Vec<u32>])]) -> Result<Vec<Vec<f32>>, Error>;
    fn finish(&self, state: &mut Self::State) -> Vec<f32>;
    /// Entries of a codebook, bytes of a state, samples of a frame, samples held back.
    fn sizes(&self) -> (usize, usize, usize, usize);
    fn bytes(state: &Self::State) -> usize;

    /// All samples of a fresh stream.
    fn whole(&self, frames: &[Vec<u32>]) -> Vec<f32> {
        let mut state = Self::State::default();
        let mut samples = self.decode(&mut [(&mut state, frames)]).unwrap().remove(0);
        samples.extend(self.finish(&mut state));
        samples
    }
}

impl Decoding for Mimi {
    type State = mimi::DecoderState;
    fn decode(&self, batch: &mut [(&mut Self::State, &[Vec<u32>])]) -> Result<Vec<Vec<f32>>, Error> {
        self.decode(batch)
    }
    fn finish(&self, state: &mut Self::State) -> Vec<f32> {
        *state = self.start();
        Vec::new()
    }
    fn sizes(&self) -> (usize, usize, usize, usize) {
        (self.codebook_size(), self.state_bytes(), self.samples_per_frame(), 0)
    }
    fn bytes(state: &Self::State) -> usize {
        state.bytes()
    }
}

impl Decoding for Detokenizer {
    type State = detokenizer::DecoderState;
    fn decode(&self, batch: &mut [(&mut Self::State, &[Vec<u32>])]) -> Result<Vec<Vec<f32>>, Error> {
        self.decode(batch)
    }
    fn finish(&self, state: &mut Self::State) -> Vec<f32> {
        self.finish(state)
    }
    fn sizes(&self) -> (usize, usize, usize, usize) {
        (self.codebook_size(), self.state_bytes(), self.samples_per_frame(), self.held_back())
    }
    fn bytes(state: &Self::State) -> usize {
        state.bytes()
    }
}

fn mimi_in(precision: Precision) -> Mimi {
    mimi_with_step(2, precision)
}

/// The small codec with so many positions that enter the window together.
fn mimi_with_step(step: usize, precision: Precision) -> Mimi {
    let mut from = Checkpoint::open(&root().join(MIMI_FILE), &device()).unwrap();
    let (heads, context) = MIMI;
    let config = mimi::Config { heads, context, step, ..mimi::Config::of(&from) };
    let codec = Mimi::from_checkpoint(&mut from, 8, &config, precision).unwrap();
    from.finish().unwrap();
    codec
}

fn detokenizer_in(precision: Precision) -> Detokenizer {
    Detokenizer::load(&root().join("audio_detokenizer"), &LoadOptions::new(device(), precision)).unwrap()
}

/// Frames of golden codes `[1, codebooks, frames]`.
fn golden_frames(x: &Tensor) -> Vec<Vec<u32>> {
    codes(&x.to_dtype(DType::U32).unwrap().squeeze(0).unwrap().t().unwrap().contiguous().unwrap())
}

#[test]
fn lfm2_audio_golden_detokenizer() {
    let (detokenizer, golden) = (detokenizer_in(Precision::F32), tensors("detok"));
    let frames = golden_frames(&golden["codes"]);
    let mut compared = 0;
    for (name, ours) in detokenizer.decode_taps(&frames) {
        let theirs = golden[&name].squeeze(0).unwrap();
        assert_eq!(ours.dims(), theirs.dims(), "{name}");
        compare(&name, &values(&ours), &values(&theirs), TOLERANCE);
        compared += 1;
    }
    assert!(compared > 3);
    compare("wav", &detokenizer.whole(&frames), &values(&golden["wav"]), TOLERANCE);
    let prefix = values(&golden["wav_first11"]);
    let count = prefix.len() / detokenizer.samples_per_frame();
    compare("prefix", &detokenizer.whole(&frames[..count]), &prefix, TOLERANCE);
    // What a stream gives before its end is final.
    let early = detokenizer.decode(&mut [(&mut detokenizer.start(), &frames[..count])]).unwrap().remove(0);
    assert_eq!(early.len(), prefix.len() - detokenizer.held_back());
    compare("early", &early, &values(&golden["wav"])[..early.len()], TOLERANCE);
    if file_exists("detok_tts") {
        let golden = tensors("detok_tts");
        let frames = golden_frames(&golden["codes"]);
        compare("tts", &detokenizer.whole(&frames), &values(&golden["wav"]), TOLERANCE);
    }
    assert_eq!(detokenizer.sample_rate() as u64, json::<serde_json::Value>("detok")["sample_rate"]);
    assert!(detokenizer.bytes() > 0);
}

#[test]
fn lfm2_audio_golden_mimi_offline() {
    let codec = mimi_with_step(1, Precision::F32);
    let golden = tensors("mimi");
    let frames = golden_frames(&golden["codes"]);
    let taps: HashMap<String, Tensor> = codec.decode_taps(&frames).unwrap().into_iter().collect();
    for (ours, theirs) in [
        ("latent", "dec.latent"),
        ("upsample", "dec.upsample"),
        ("transformer", "dec.transformer"),
        ("first", "dec.conv0"),
    ] {
        let theirs = by_rows(&golden[theirs]);
        assert_eq!(taps[ours].dims(), theirs.dims(), "{ours}");
        compare(ours, &values(&taps[ours]), &values(&theirs), TOLERANCE);
    }
    compare("decoded", &codec.whole(&frames), &values(&golden["decoded"]), TOLERANCE);
}

#[test]
fn lfm2_audio_golden_mimi_streaming() {
    let (codec, golden) = (mimi_in(Precision::F32), tensors("mimi"));
    let frames = golden_frames(&golden["codes"]);
    let ours = codec.whole(&frames);
    compare("streaming", &ours, &values(&golden["decoded_streaming"]), TOLERANCE);
    // Until the window is full nothing has left it.
    let same = MIMI.1 / 2 * codec.samples_per_frame();
    compare("offline", &ours[..same], &values(&golden["decoded"])[..same], TOLERANCE);
}

#[test]
fn lfm2_audio_golden_codecs_are_near_the_reference_in_every_precision() {
    let golden = tensors("mimi");
    let frames = golden_frames(&golden["codes"]);
    let ratio = ratio_db(&mimi_in(Precision::Bf16).whole(&frames), &values(&golden["decoded_streaming"]));
    println!("mimi: {ratio:.1} dB");
    assert!(ratio > 30.0, "{ratio} dB");
    let golden = tensors("detok");
    let frames = golden_frames(&golden["codes"]);
    let bf16_db = if rounds_activations() { 30.0 } else { 60.0 };
    for (precision, least_db) in [(Precision::Bf16, bf16_db), (Precision::Q8, 10.0)] {
        let ratio = ratio_db(&detokenizer_in(precision).whole(&frames), &values(&golden["wav"]));
        println!("detokenizer {precision}: {ratio:.1} dB");
        assert!(ratio > least_db, "{precision}: {ratio} dB");
    }
}

#[test]
fn lfm2_audio_golden_the_mimi_file_is_read_strictly() {
    let file = root().join(MIMI_FILE);
    let options = LoadOptions::new(device(), Precision::F32);
    let codec = load_mimi(&file, 8, &options).unwrap();
    assert_eq!((codec.sample_rate(), codec.samples_per_frame(), codec.codebook_size()), (24_000, 1920, 2048));
    assert!(codec.bytes() > 0);
    let mut tensors = candle_core::safetensors::load(&file, &candle_core::Device::Cpu).unwrap();
    let one = Tensor::ones(1, DType::F32, &candle_core::Device::Cpu).unwrap();
    tensors.insert("decoder.model.99.conv.conv.weight".to_owned(), one.clone());
    tensors.insert("encoder.model.0.conv.conv.scale".to_owned(), one);
    tensors.remove("decoder.model.0.conv.conv.bias").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let changed = folder.path().join("codec.safetensors");
    candle_core::safetensors::save(&tensors, &changed).unwrap();
    let error = load_mimi(&changed, 8, &options).unwrap_err().to_string();
    for line in [
        "decoder.model.99.conv.conv.weight: unknown",
        "encoder.model.0.conv.conv.scale: unknown",
        "decoder.model.0.conv.conv.bias: missing",
    ] {
        assert!(error.contains(line), "{error}");
    }
}

/// Frames of deterministic codes.
fn frames(entries: usize, count: usize, seed: usize) -> Vec<Vec<u32>> {
    let code =
        |frame: usize, codebook: usize| frame * 131 + codebook * 29 + seed * 7919 + frame * codebook * 17;
    (0..count)
        .map(|frame| (0..8).map(|codebook| (code(frame, codebook) % entries) as u32).collect())
        .collect()
}

/// Streams in pieces and in a batch against each alone in one piece.
fn pieces_equal_the_whole<D: Decoding>(decoder: &D, cuts: &[Vec<usize>]) {
    let (entries, _, per_frame, _) = decoder.sizes();
    let counts = cuts.iter().map(|cuts| cuts.iter().sum::<usize>());
    let inputs: Vec<_> = counts.enumerate().map(|(seed, count)| frames(entries, count, seed)).collect();
    let mut states: Vec<D::State> = inputs.iter().map(|_| D::State::default()).collect();
    let mut streamed = vec![Vec::new(); inputs.len()];
    let mut starts = vec![0; inputs.len()];
    for step in 0..cuts.iter().map(Vec::len).max().unwrap_or(0) {
        let (mut owners, mut batch) = (Vec::new(), Vec::new());
        for (owner, state) in states.iter_mut().enumerate() {
            if let Some(&count) = cuts[owner].get(step) {
                batch.push((state, &inputs[owner][starts[owner]..starts[owner] + count]));
                starts[owner] += count;
                owners.push(owner);
            }
        }
        for (owner, samples) in owners.into_iter().zip(decoder.decode(&mut batch).unwrap()) {
            streamed[owner].extend(samples);
        }
    }
    for (state, samples) in states.iter_mut().zip(&mut streamed) {
        samples.extend(decoder.finish(state));
    }
    for (input, streamed) in inputs.iter().zip(streamed) {
        let alone = decoder.whole(input);
        assert_eq!(alone.len(), input.len() * per_frame);
        assert_same("streamed", &streamed, &alone);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn lfm2_audio_golden_streaming_equals_offline_and_batch_equals_alone(
        cuts in prop::collection::vec(prop::collection::vec(0usize..9, 1..9), 1..4),
        precision in prop::sample::select(vec![Precision::F32, Precision::Bf16]),
    ) {
        pieces_equal_the_whole(&mimi_in(precision), &cuts);
        pieces_equal_the_whole(&detokenizer_in(precision), &cuts);
    }
}

fn check_state_size<D: Decoding>(decoder: &D) {
    let (entries, bytes, per_frame, held_back) = decoder.sizes();
    let input = frames(entries, 700, 1);
    let mut state = D::State::default();
    assert_eq!(D::bytes(&state), 0);
    assert!(decoder.finish(&mut state).is_empty());
    let first = decoder.decode(&mut [(&mut state, &input[..2])]).unwrap().remove(0);
    assert_eq!((first.len(), D::bytes(&state)), (2 * per_frame - held_back, bytes));
    for piece in input[2..].chunks(101) {
        let samples = decoder.decode(&mut [(&mut state, piece)]).unwrap().remove(0);
        assert_eq!((samples.len(), D::bytes(&state)), (piece.len() * per_frame, bytes));
    }
    assert_eq!(decoder.finish(&mut state).len(), held_back);
    assert_same("fresh", &decoder.decode(&mut [(&mut state, &input[..2])]).unwrap()[0], &first);
}

#[test]
fn lfm2_audio_golden_states_have_constant_size_and_fresh_ones_are_empty() {
    check_state_size(&mimi_in(Precision::F32));
    check_state_size(&detokenizer_in(Precision::F32));
}

fn check_invalid_codes<D: Decoding>(decoder: &D) {
    let (entries, ..) = decoder.sizes();
    let mut input = frames(entries, 1, 1);
    input[0][3] = entries as u32;
    let decode = |frames: &[Vec<u32>]| decoder.decode(&mut [(&mut D::State::default(), frames)]);
    let error = decode(&input).unwrap_err().to_string();
    assert!(
        error.contains(&format!("code {entries} is out of range for a codebook of {entries}")),
        "{error}"
    );
    input[0].pop();
    assert!(decode(&input).is_err());
    assert!(decode(&[vec![]]).is_err());
    assert!(decoder.decode(&mut []).unwrap().is_empty());
}

#[test]
fn lfm2_audio_golden_invalid_codes_are_errors() {
    check_invalid_codes(&mimi_in(Precision::F32));
    check_invalid_codes(&detokenizer_in(Precision::F32));
}
