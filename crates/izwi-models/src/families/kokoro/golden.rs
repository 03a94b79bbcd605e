//! Parity with the reference: data made by `scripts/golden/kokoro.py`, tiny random weights in `tests/golden/kokoro/`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::super::golden_set::{GoldenSet, TOLERANCE, compare, device, values};
use super::*;
use izwi_types::Precision;

/// Of samples and spectra: the source's phase is summed in f32 by the reference, in f64 here.
const WAVEFORM_TOLERANCE: f32 = 2e-3;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    ids: Vec<u32>,
    speed: f32,
    voice: String,
}

/// The noise of the script, mixed as the network mixes its harmonics.
fn script_noise(model: &Kokoro, folder: &Path, samples: usize) -> Vec<f32> {
    let mut from = Checkpoint::open(&folder.join("model.safetensors"), &candle_core::Device::Cpu).unwrap();
    from.rename(published_name);
    let weights = from.take("decoder.generator.m_source.l_linear.weight", &[1, 9]).unwrap();
    let weights = values(&weights);
    assert!(
        (weights.iter().map(|w| w * w).sum::<f32>().sqrt() - model.network.waveform.noise_gain()).abs()
            < 1e-6
    );
    let value = |sample: usize, harmonic: usize| ((sample * 31 + harmonic * 17) % 64) as f32 / 32.0 - 1.0;
    let mixed = |sample| weights.iter().enumerate().map(|(at, weight)| weight * value(sample, at)).sum();
    (0..samples).map(mixed).collect()
}

/// Every stage of every case of `set`, computed as one batch from the checkpoint in `folder`.
fn check(set: GoldenSet, folder: &Path, precision: Precision, tolerances: [f32; 2]) {
    let model = Kokoro::load(folder, &LoadOptions::new(device(), precision)).unwrap();
    let (golden, tensors) = (set.json::<Golden>("network"), set.tensors("network"));
    let batch: Vec<_> = golden
        .cases
        .iter()
        .map(|case| {
            let voice = model.voices.find(Some(&case.voice)).unwrap();
            let style = model.voices.style(&voice, case.ids.len() - 2);
            Utterance { ids: &case.ids, speed: case.speed, style }
        })
        .collect();
    let network = &model.network;
    let (packed, ids) = network.phonemes(&batch).unwrap();
    let [_, style] = network.styles(&batch).unwrap();
    let bert = network.bert.forward(&ids, &packed).unwrap();
    let context = network.bert.project(&bert, &packed).unwrap();
    let prosodic = network.prosody.features(&context, &packed, &style).unwrap();
    let text = network.text.forward(&ids, &packed).unwrap();
    let features = network.features(&batch).unwrap();
    let frame = model.frame_samples / CONTOUR_FRAMES;
    let noises = features.iter().map(|one| script_noise(&model, folder, one.contour.pitch_hz.len() * frame));
    let noises: Vec<Vec<f32>> = noises.collect();
    let (spectra, spectra_rows) = network.spectra(&features, &noises).unwrap();
    let samples = network.samples(&features, &noises).unwrap();
    let [near, far] = tolerances;
    for (at, span) in packed.spans().iter().enumerate() {
        let theirs = |name: &str| values(&tensors[&format!("{at}.{name}")]);
        let rows = |x: &candle_core::Tensor| values(&x.narrow(0, span.start, span.len()).unwrap());
        let named = |name: &str| format!("{at}.{name}");
        compare(&named("style"), &batch[at].style, &theirs("style"), 1e-6);
        compare(&named("bert"), &rows(&bert), &theirs("bert"), near);
        compare(&named("features"), &rows(&prosodic), &theirs("duration_features"), near);
        compare(&named("text"), &rows(&text), &theirs("text"), near);
        let one = &features[at];
        let durations: Vec<f32> = one.durations.iter().map(|&frames| frames as f32).collect();
        assert_eq!(durations, theirs("durations"), "{at}");
        compare(&named("pitch"), &one.contour.pitch_hz, &theirs("pitch"), near);
        compare(&named("energy"), &one.contour.energy, &theirs("energy"), near);
        compare(&named("decoded"), &values(&one.decoded), &theirs("decoded"), near);
        let source = network.waveform.source(&one.contour.pitch_hz, &noises[at]);
        compare(&named("source"), &source, &theirs("source"), far);
        let span = &spectra_rows.spans()[at];
        let own = values(&spectra.narrow(0, span.start, span.len()).unwrap());
        compare(&named("spectrum"), &own, &theirs("spectrum"), far);
        compare(&named("samples"), &samples[at], &theirs("samples"), far);
    }
}

#[test]
fn kokoro_golden_network() {
    check(golden_set(), &golden_set().root(), Precision::F32, [TOLERANCE, WAVEFORM_TOLERANCE]);
}

/// Real weights, if a set was made from them: `IZWI_GOLDEN_KOKORO_WEIGHTS` is the set's folder, which has a link `model` to
/// the installed model's.
#[test]
fn kokoro_golden_weights() {
    let set = GoldenSet { name: "kokoro", variable: "IZWI_GOLDEN_KOKORO_WEIGHTS" };
    let Some(root) = std::env::var_os(set.variable).map(PathBuf::from) else { return };
    check(set, &root.join("model"), Precision::F32, [1e-3, 0.02]);
}
