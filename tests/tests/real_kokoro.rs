//! Kokoro with its real weights: what it says is understood, with the weights of its export at 8 bits and in f32.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, Precision, SpeechOptions};
use izwi_tests::wer::compare;

const TEXT: &str = "The quick brown fox jumps over the lazy dog, and then it sleeps under a large tree.";

fn engine(model: &str, dtype: Precision) -> Engine {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let home = std::env::var_os("IZWI_HOME").map_or(root.join("target/izwi-home"), PathBuf::from);
    let config = EngineCoreConfig {
        model: model.to_owned(),
        home: Some(home),
        admission: false,
        dtype,
        ..EngineCoreConfig::default()
    };
    Engine::new(config).expect("a model is missing; run `cargo xtask pull`")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn voices_are_understood_at_both_precisions() -> Result<()> {
    let asr = engine("whisper-base", Precision::Auto);
    let cases: [(_, &[&str]); 2] =
        [(Precision::Auto, &["af_heart", "bm_george", "af_heart+am_adam"]), (Precision::F32, &["af_heart"])];
    for (dtype, voices) in cases {
        let kokoro = engine("kokoro-82m", dtype);
        for &voice in voices {
            let options = SpeechOptions { seed: Some(3), ..SpeechOptions::default() };
            let request = EngineCoreRequest::tts(TEXT).with_voice(voice);
            let request = request.with_options(options);
            let spoken = kokoro.generate(request).await?.audio;
            let wav = izwi_audio::wav::to_bytes(&spoken.samples, spoken.sample_rate)?;
            let heard = asr.generate(EngineCoreRequest::asr(wav)).await?.text.unwrap_or_default();
            let errors = compare(TEXT, &heard).score().errors;
            ensure!(errors <= 1, "{voice} at {dtype:?}: {errors} errors in {heard}");
        }
    }
    Ok(())
}
