//! Replicas on Metal and on the CPU at once: runs where `IZWI_TEST_DEVICE` names Metal, also an emulated one:
//! `cargo xtask metal-emulate -- -p izwi-core -E 'test(/engine_devices/)'`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::path::Path;

use izwi_core::engine::{
    DeviceChoice, Engine, EngineCoreConfig, EngineCoreRequest, EngineState, GenerationParams, Precision,
};

use crate::{soon, states};

const MODEL: &str = "pocket-tts-english-cloning";
const REQUESTS: u64 = 6;

fn config(models: &Path, devices: &[DeviceChoice]) -> EngineCoreConfig {
    EngineCoreConfig {
        model: MODEL.to_owned(),
        home: Some(models.to_path_buf()),
        models_dir: Some(models.to_path_buf()),
        dtype: Precision::F32,
        max_blocks: 512,
        num_threads: 1,
        devices: devices.to_vec(),
        ..EngineCoreConfig::default()
    }
}

fn request(seed: u64) -> EngineCoreRequest {
    let params = GenerationParams { seed: Some(seed), max_tokens: 6, ..Default::default() };
    EngineCoreRequest::tts("Hello there.").with_params(params)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metal_and_the_cpu_share_the_requests_and_speak_alike() {
    if !std::env::var("IZWI_TEST_DEVICE").is_ok_and(|device| device.starts_with("metal")) {
        return;
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/pocket_tts/pointwise");
    let models = tempfile::tempdir().unwrap();
    let folder = models.path().join(MODEL);
    std::fs::create_dir_all(folder.join("embeddings")).unwrap();
    for file in ["config.yaml", "tokenizer.model", "model.safetensors"] {
        std::fs::copy(golden.join(file), folder.join(file)).unwrap();
    }
    std::fs::copy(golden.join("voice.safetensors"), folder.join("embeddings/alba.safetensors")).unwrap();

    let alone = Engine::new(config(models.path(), &[DeviceChoice::Cpu])).unwrap();
    let both = Engine::new(config(models.path(), &[DeviceChoice::Metal(0), DeviceChoice::Cpu])).unwrap();
    both.ready().await.unwrap();
    let is_ready = |replica: &izwi_core::engine::ReplicaStatus| replica.engine.state == EngineState::Ready;
    soon("both devices are warm", || states(&both).iter().all(is_ready)).await;
    assert_eq!(both.profile().device, "metal:0,cpu");
    let outputs = futures::future::join_all((0..REQUESTS).map(|seed| both.generate(request(seed)))).await;
    for (seed, output) in (0..REQUESTS).zip(outputs) {
        let (expected, heard) = (alone.generate(request(seed)).await.unwrap().audio, output.unwrap().audio);
        assert_eq!(heard.samples.len(), expected.samples.len(), "seed {seed}");
        let energy = |samples: &mut dyn Iterator<Item = f32>| samples.map(|s| f64::from(s * s)).sum::<f64>();
        let pairs = heard.samples.iter().zip(&expected.samples);
        let error = energy(&mut pairs.map(|(a, b)| a - b)) / energy(&mut expected.samples.iter().copied());
        assert!(error < 1e-6, "seed {seed}: the error has {error} of the energy");
    }
    let replicas = states(&both);
    assert!(replicas.iter().all(|replica| replica.engine.steps > 0), "{replicas:?}");
}
