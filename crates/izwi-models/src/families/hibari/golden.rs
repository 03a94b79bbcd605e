//! Parity with the reference: data made by `scripts/golden/hibari.py`, weights pulled by `cargo xtask pull`.

use std::path::PathBuf;

use serde::Deserialize;

use super::super::golden_set::device;
use super::network::{BINS, HEAD_VALUES, Utterance};
use super::*;
use crate::text::phonemes::UnknownWords;
use crate::text::unknown_word_net::UnknownWordNet;
use izwi_types::Precision;

const HEADS_TOLERANCE: f32 = 1e-3;
const PITCH_TOLERANCE_HZ: f32 = 0.01;
const WAVEFORM_TOLERANCE: f32 = 1e-4;
/// Sentences of `sentences.tsv` that must read as in hibari's own front end; it tags parts of speech with another
/// model than `misaki-rs`, so a few differ.
const MIN_AGREEING_SENTENCES: usize = 35;

fn workspace() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The checkpoint folder under `$IZWI_HOME`.
pub(super) fn checkpoint_folder() -> PathBuf {
    let home =
        std::env::var_os("IZWI_HOME").map_or_else(|| workspace().join("target/izwi-home"), PathBuf::from);
    let folder = home.join("models/hibari");
    let complete = folder.join("model.safetensors").exists() && folder.join("oov.safetensors").exists();
    assert!(complete, "{} holds no checkpoint: run `cargo xtask pull`", folder.display());
    folder
}

/// The device of tests, weights kept in `precision`.
pub(super) fn kept_as(precision: Precision) -> LoadOptions {
    LoadOptions::new(device(), precision)
}

fn golden(name: &str) -> Vec<u8> {
    let path = workspace().join("tests/golden/hibari").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn golden_floats(name: &str) -> Vec<f32> {
    golden(name).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn golden_pairs(name: &str) -> Vec<(String, String)> {
    let text = String::from_utf8(golden(name)).unwrap();
    let pairs = text.lines().map(|line| line.split_once('\t').unwrap());
    pairs.map(|(written, spoken)| (written.to_owned(), spoken.to_owned())).collect()
}

fn worst(ours: &[f32], theirs: &[f32]) -> f32 {
    assert_eq!(ours.len(), theirs.len());
    ours.iter().zip(theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[derive(Deserialize)]
struct NetworkGolden {
    frame_step: usize,
    bin_step: usize,
    cases: Vec<NetworkCase>,
}

#[derive(Deserialize)]
struct NetworkCase {
    ids: Vec<u32>,
    speed: f32,
    durations: Vec<usize>,
    pitch_hz: Vec<f32>,
}

#[test]
fn hibari_golden_network() {
    let model = Hibari::load(&checkpoint_folder(), &kept_as(Precision::F32)).unwrap();
    let golden: NetworkGolden = serde_json::from_slice(&golden("network.json")).unwrap();
    let mut heads = golden_floats("network.f32").into_iter();
    let batch: Vec<_> =
        golden.cases.iter().map(|case| Utterance { ids: &case.ids, speed: case.speed }).collect();
    let acoustics = model.network.forward(&batch).unwrap();
    for (case, ours) in golden.cases.iter().zip(acoustics) {
        assert_eq!(ours.durations, case.durations);
        let pitch = worst(&ours.pitch_hz, &case.pitch_hz);
        assert!(pitch <= PITCH_TOLERANCE_HZ, "pitch differs by {pitch} Hz");
        let values = ours.heads.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let frames = values.chunks(HEAD_VALUES).step_by(golden.frame_step);
        let sampled: Vec<f32> = frames
            .flat_map(|frame| frame.chunks(BINS).flat_map(|head| head.iter().step_by(golden.bin_step)))
            .copied()
            .collect();
        let theirs: Vec<f32> = heads.by_ref().take(sampled.len()).collect();
        let difference = worst(&sampled, &theirs);
        assert!(difference <= HEADS_TOLERANCE, "heads differ by {difference}");
        println!("{} ids: pitch within {pitch} Hz, heads within {difference}", case.ids.len());
    }
    assert_eq!(heads.next(), None);
}

/// Cost of 8-bit weights: none in durations and pitch, little in the waveform.
#[test]
fn hibari_golden_quantised() {
    let golden: NetworkGolden = serde_json::from_slice(&golden("network.json")).unwrap();
    let batch: Vec<_> =
        golden.cases.iter().map(|case| Utterance { ids: &case.ids, speed: case.speed }).collect();
    let [exact, rounded] = [Precision::F32, Precision::Q8].map(|precision| {
        let model = Hibari::load(&checkpoint_folder(), &kept_as(precision)).unwrap();
        let acoustics = model.network.forward(&batch).unwrap();
        let spoken = acoustics.iter().map(|acoustics| {
            let heads = acoustics.heads.flatten_all().unwrap().to_vec1::<f32>().unwrap();
            let noise = Noise::new(7, 0);
            let fill = |frame, parts: [&mut [f32]; 2]| noise.fill(frame, parts);
            model.synthesiser.synthesise(&heads, &acoustics.pitch_hz, fill).unwrap()
        });
        let spoken: Vec<_> = spoken.collect();
        (acoustics, spoken)
    });
    for (at, (exact, rounded)) in exact.0.iter().zip(&rounded.0).enumerate() {
        assert_eq!((&exact.durations, &exact.pitch_hz), (&rounded.durations, &rounded.pitch_hz), "case {at}");
    }
    let (signal, noise) = exact
        .1
        .iter()
        .flatten()
        .zip(rounded.1.iter().flatten())
        .fold((0f64, 0f64), |(signal, noise), (a, b)| {
            (signal + f64::from(a * a), noise + f64::from((a - b) * (a - b)))
        });
    let decibels = 10.0 * (signal / noise).log10();
    println!("8 bits: {decibels:.1} dB between audio and difference");
    assert!(decibels.is_finite() && decibels > 20.0, "{decibels}");
}

#[derive(Deserialize)]
struct WaveformGolden {
    frames: usize,
    sample_step: usize,
}

/// The inputs that `waveform()` of the script builds by the same formulas.
#[test]
fn hibari_golden_waveform() {
    let golden: WaveformGolden = serde_json::from_slice(&golden("waveform.json")).unwrap();
    let wave = |frame: usize, bin: usize, a: usize, b: usize, m: usize| ((frame * a + bin * b) % m) as f32;
    let mut heads = Vec::new();
    for frame in 0..golden.frames {
        heads.extend((0..BINS).map(|bin| wave(frame, bin, 3, 5, 33) / 16.0 - 2.0));
        heads.extend((0..BINS).map(|bin| wave(frame, bin, 7, 2, 65) / 32.0 - 1.0));
        heads.extend((0..BINS).map(|bin| wave(frame, bin, 5, 3, 17) / 8.0 - 5.0));
        heads.extend((0..BINS).map(|bin| wave(frame, bin, 11, 7, 29) / 8.0 - 6.0));
        heads.extend((0..BINS).map(|bin| wave(frame, bin, 2, 13, 97) / 16.0 - 3.0));
    }
    let pitch: Vec<f32> =
        (0..golden.frames).map(|k| if k % 11 == 10 { 0.0 } else { (90 + k * 13 % 160) as f32 }).collect();
    let noise = |frame: usize, parts: [&mut [f32]; 2]| {
        for (part, (a, b)) in parts.into_iter().zip([(31, 17), (13, 29)]) {
            part.iter_mut().enumerate().for_each(|(bin, x)| *x = wave(frame, bin, a, b, 64) / 32.0 - 1.0);
        }
    };
    let samples = Synthesiser::new().synthesise(&heads, &pitch, noise).unwrap();
    let sampled: Vec<f32> = samples.iter().step_by(golden.sample_step).copied().collect();
    let difference = worst(&sampled, &golden_floats("waveform.f32"));
    println!("waveform within {difference}");
    assert!(difference <= WAVEFORM_TOLERANCE, "samples differ by {difference}");
}

#[test]
fn hibari_golden_unknown_words() {
    let net = UnknownWordNet::load(&checkpoint_folder()).unwrap();
    for (word, expected) in golden_pairs("oov.tsv") {
        assert_eq!(net.phonemes(&word).unwrap_or_default(), expected, "{word}");
    }
}

#[test]
fn hibari_golden_sentences() {
    let front_end = EnglishFrontEnd::new(unknown_words(&checkpoint_folder()).unwrap()).unwrap();
    let pairs = golden_pairs("sentences.tsv");
    let mut agreeing = 0;
    for (sentence, expected) in &pairs {
        let ours =
            front_end.sentences(sentence).into_iter().map(|sentence| sentence.phonemes).collect::<Vec<_>>();
        let ours = ours.join(" ");
        if ours == *expected {
            agreeing += 1;
        } else {
            println!("{sentence}\n  ours   {ours}\n  theirs {expected}");
        }
    }
    println!("{agreeing} of {} sentences agree", pairs.len());
    assert!(agreeing >= MIN_AGREEING_SENTENCES, "only {agreeing} of {} sentences agree", pairs.len());
}
