//! Kokoro with its real weights: what it says is understood, with the weights of its export at 8 bits and in f32.
#![allow(clippy::expect_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use izwi_core::engine::{Engine, EngineCoreConfig, EngineCoreRequest, Precision, SpeechOptions};
use izwi_tests::wer::compare;
use izwi_tests::{Completion, Llm};
use serde_json::json;

use super::pipelines::{connect, create, deltas, done, respond, said, serve_with};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_voice_and_the_speed_of_a_pipeline_are_chosen() -> Result<()> {
    let llm = Llm::start(|_, _| Completion::text(&[TEXT])).await?;
    let kokoro = engine("kokoro-82m", Precision::Auto);
    kokoro.ready().await?;
    let server = serve_with("pipeline-voice", &llm, kokoro, |_| {}).await?;
    let mut session = connect(&server, "pipeline-voice", json!({})).await?;
    for (output, param) in [
        (json!({"voice": "nobody"}), "session.audio.output.voice"),
        (json!({"speed": 2.0}), "session.audio.output.speed"),
    ] {
        let update = json!({"type": "realtime", "audio": {"output": output}});
        session.send(json!({"type": "session.update", "session": update})).await?;
        ensure!(session.expect("error").await?["error"]["param"] == param, "{param}");
    }
    let mut lengths = Vec::new();
    for (voice, speed) in [("af_heart", 1.0), ("af_heart", 1.0), ("bm_george", 1.0), ("af_heart", 1.5)] {
        create(&mut session, said("Hello.")).await?;
        session.until("conversation.item.done").await?;
        let output = json!({"voice": voice, "speed": speed});
        let events = respond(&mut session, json!({"audio": {"output": output}})).await?;
        ensure!(done(&events)["audio"]["output"]["voice"] == voice, "{:?}", done(&events));
        lengths.push(deltas(&events, "response.output_audio.delta").len());
    }
    // What a voice says has one length, whatever its noise.
    ensure!(lengths[0] == lengths[1] && lengths[0] != lengths[2], "{lengths:?}");
    ensure!(lengths[3] * 5 < lengths[0] * 4, "{lengths:?}");
    Ok(())
}
