//! The end of a turn with real weights: probabilities of the published graph, for parts of recordings.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use izwi_audio::decode::{DecodeLimits, decode};
use izwi_audio::wav;
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, Precision};
use serde_json::Value;

const RATE_HZ: u32 = 16_000;
/// Samples after each part: 200 ms.
const SILENCE: usize = 3_200;
/// The most that probabilities differ, with weights of 32 bits and as they are by default.
const PRECISIONS: [(Precision, f32); 2] = [(Precision::F32, 0.001), (Precision::Auto, 0.1)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[tokio::test]
async fn smart_turn_golden_probabilities_of_recordings() {
    let home = std::env::var_os("IZWI_HOME").map_or(root().join("target/izwi-home"), PathBuf::from);
    let golden = std::fs::read_to_string(root().join("tests/golden/smart_turn/clips.json")).unwrap();
    let clips: Vec<Value> = serde_json::from_str(&golden).unwrap();
    for (dtype, most) in PRECISIONS {
        let config = EngineCoreConfig {
            model: "smart-turn".to_owned(),
            home: Some(home.clone()),
            dtype,
            num_threads: 2,
            admission: false,
            ..Default::default()
        };
        let engine = Engine::new(config).expect("run `cargo xtask pull`");
        engine.ready().await.unwrap();
        let mut worst = 0f32;
        for clip in &clips {
            let (name, samples) =
                (clip["name"].as_str().unwrap(), clip["samples"].as_u64().unwrap() as usize);
            // Without the rounding between layers.
            let exact = clip["exact"].as_f64().unwrap() as f32;
            let path = root().join("assets/speech").join(format!("{name}.wav"));
            let limits = DecodeLimits { max_bytes: 1 << 20, max_duration: Duration::from_secs(30) };
            let mut heard =
                decode(std::fs::read(path).unwrap(), RATE_HZ, &limits).unwrap()[..samples].to_vec();
            heard.extend([0.0; SILENCE]);
            let file = wav::to_bytes(&heard, RATE_HZ).unwrap();
            let output = engine.generate(EngineCoreRequest::end_of_turn(file)).await.unwrap();
            let told = output.transcript.unwrap().segments[0].end_of_turn.unwrap();
            println!(
                "{dtype:?} {name} {samples}: {told:.4} of {exact:.4}, {:?}",
                output.stats.generation_time
            );
            worst = worst.max((told - exact).abs());
            assert_eq!(told >= 0.5, exact >= 0.5, "{name} to {samples}: {told} of {exact}");
        }
        println!("{dtype:?}: within {worst}");
        assert!(worst <= most, "{dtype:?}: {worst}");
    }
}
