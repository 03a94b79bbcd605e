//! Parity with the reference: data made by `scripts/golden/kokoro.py`, tiny random weights in `tests/golden/kokoro/`.

use std::path::Path;

use serde::Deserialize;

use super::super::golden_set::{GoldenSet, TOLERANCE, compare, device, values};
use super::*;
use izwi_types::Precision;

/// Of samples and spectra. The source's phase is summed in f32 by the reference, in f64 here.
const WAVEFORM_TOLERANCE: f32 = 1e-3;

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
    let sources: Vec<_> =
        (0..batch.len()).map(|at| values(&tensors[&format!("{at}.source_spectra")])).collect();
    // Bins of hardly any magnitude have any phase: the generator gets the reference's.
    let (spectra, spectra_rows) = network.spectra(&features, &sources).unwrap();
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
        compare(&named("samples"), &network.waveform.synthesise(&own), &theirs("samples"), far);
        let bins = network.waveform.bins();
        let parts = |spectra: &[f32]| -> Vec<f32> {
            let parts = spectra.chunks_exact(2 * bins).flat_map(|spectrum| {
                let (magnitudes, phases) = spectrum.split_at(bins);
                let parts = |(m, p): (&f32, &f32)| [m * p.cos(), m * p.sin()];
                magnitudes.iter().zip(phases).flat_map(parts).collect::<Vec<_>>()
            });
            parts.collect()
        };
        let own = network.waveform.spectra(&theirs("source"));
        compare(&named("source_spectra"), &parts(&own), &parts(&sources[at]), 1e-5);
    }
}

/// A set of real weights, which `IZWI_GOLDEN_KOKORO` may name, has a link `model` to the folder of the installed model.
#[test]
fn kokoro_golden_network() {
    let (root, real) = (golden_set().root(), golden_set().root().join("model"));
    let folder = if real.exists() { &real } else { &root };
    check(golden_set(), folder, Precision::F32, [TOLERANCE, WAVEFORM_TOLERANCE]);
}
