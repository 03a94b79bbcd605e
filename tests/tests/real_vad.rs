//! Voice activity with real weights: the published network's scores, and no words from noise and music.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::vad::{StreamingVad, StreamingVadOptions, VadEvent, VadModel, VadOptions};
use izwi_audio::wav;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest};
use izwi_tests::synthetic::{RATE_HZ, mixed, music, noise, wordless as wordless_of};

const SECONDS: usize = 6;
const CLIPS: [&str; 2] = ["jfk", "sense_and_sensibility_01_austen_64kb-0880"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn home() -> PathBuf {
    std::env::var_os("IZWI_HOME").map_or(root().join("target/izwi-home"), PathBuf::from)
}

fn silero() -> VadModel {
    let file = home().join("models/silero-vad/silero_vad_16k.safetensors");
    let model = VadModel::open(&file).unwrap();
    assert!(!model.is_small(), "{} is missing: run `cargo xtask pull`", file.display());
    model
}

fn clip(name: &str) -> Vec<f32> {
    let path = root().join("assets/speech").join(format!("{name}.wav"));
    let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
    decode(std::fs::read(path).unwrap(), RATE_HZ as u32, &limits).unwrap()
}

/// Sounds without words, each of some seconds, by name.
fn wordless() -> Vec<(String, Vec<f32>)> {
    let tune = music(SECONDS, 0.05);
    let mut sounds = vec![("music and noise".to_owned(), mixed(&tune, &noise(SECONDS, 0.02)))];
    for rms in [0.000_1, 0.001, 0.01, 0.05, 0.2] {
        sounds.extend(
            wordless_of(SECONDS, rms).into_iter().map(|(name, sound)| (format!("{name} {rms}"), sound)),
        );
    }
    sounds
}

#[test]
fn silero_vad_golden_scores_of_recordings() {
    let model = silero();
    for name in CLIPS {
        let golden =
            std::fs::read_to_string(root().join(format!("tests/golden/silero_vad/{name}.txt"))).unwrap();
        let golden: Vec<f32> = golden.lines().map(|line| line.parse().unwrap()).collect();
        let ours = model.scores(&clip(name), 1.0);
        assert_eq!(ours.len(), golden.len());
        let worst = ours.iter().zip(&golden).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-3, "{name}: {worst}");
    }
}

#[test]
fn noise_and_music_are_no_speech_and_speech_over_them_is() {
    let model = silero();
    let begins = |samples: &[f32]| {
        let mut events = Vec::new();
        StreamingVad::new(&model, &StreamingVadOptions::default()).push(samples, &mut events);
        events.iter().filter(|event| matches!(event, VadEvent::Started { .. })).count()
    };
    for (name, sound) in wordless() {
        let spans = model.speech_spans(&sound, &VadOptions::default());
        assert!(spans.is_empty(), "{name}: {spans:?}");
        assert_eq!(begins(&sound), 0, "{name}");
    }
    for name in CLIPS {
        let speech = clip(name);
        let clean: usize =
            model.speech_spans(&speech, &VadOptions::default()).iter().map(ExactSizeIterator::len).sum();
        for background in [noise(4, 0.01), music(4, 0.02)] {
            let mix = mixed(&speech, &background);
            let found: usize =
                model.speech_spans(&mix, &VadOptions::default()).iter().map(ExactSizeIterator::len).sum();
            assert!(found * 10 > clean * 8, "{name}: {found} of {clean}");
            assert!(begins(&mix) > 0, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn noise_and_music_become_no_text() {
    let config = EngineCoreConfig {
        model: "whisper-tiny.en".to_owned(),
        home: Some(home()),
        admission: false,
        ..Default::default()
    };
    let engine = Engine::new(config).expect("whisper-tiny.en is missing; run `cargo xtask pull`");
    let text = async |samples: &[f32]| {
        let file = wav::to_bytes(samples, RATE_HZ as u32).unwrap();
        let output = engine.generate(EngineCoreRequest::asr(file)).await.unwrap();
        output.text.unwrap_or_default()
    };
    for (name, sound) in wordless() {
        assert_eq!(text(&sound).await, "", "{name}");
    }
    let between = [music(3, 0.05), clip("jfk"), music(3, 0.05)].concat();
    let alone = text(&clip("jfk")).await;
    // A comma more or less is no other text.
    let words = |text: &str| text.replace(',', "").trim().to_owned();
    assert_eq!(words(&text(&between).await), words(&alone));
}
