//! Pocket TTS end to end: the real executor on a tiny checkpoint, behind the real server.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::{EngineCoreConfig, Precision};
use izwi_tests::{TestServer, base64, guarded};
use serde_json::{Value, json};

const MODEL: &str = "pocket-tts-english-cloning";
const RATE: usize = 24_000;
/// PCM bytes of one frame.
const FRAME: usize = 1_920 * 2;
const FRAMES: usize = 12;

/// A server with the variant of the golden set that has every feature of the small models, and its voice as "alba".
async fn serve() -> Result<TestServer> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/pocket_tts/pointwise");
    let folder = tempfile::tempdir()?;
    std::fs::create_dir(folder.path().join("embeddings"))?;
    for file in ["config.yaml", "tokenizer.model", "model.safetensors"] {
        std::fs::copy(golden.join(file), folder.path().join(file))?;
    }
    std::fs::copy(golden.join("voice.safetensors"), folder.path().join("embeddings/alba.safetensors"))?;
    let (model, dtype) = (MODEL.to_owned(), Precision::F32);
    let config = EngineCoreConfig { model, dtype, max_blocks: 512, ..Default::default() };
    TestServer::with_weights(config, folder.path()).await
}

fn body(extra: &Value) -> Value {
    let mut body = json!({"model": "tts-1", "input": "Hello there, how are you today?", "seed": 5,
                          "response_format": "pcm", "max_tokens": FRAMES});
    if let (Some(body), Some(extra)) = (body.as_object_mut(), extra.as_object()) {
        body.extend(extra.clone());
    }
    body
}

/// The audio of a request with `extra`.
async fn spoken(server: &TestServer, extra: Value) -> Result<Vec<u8>> {
    let response = server.speech(&body(&extra)).await?;
    let status = response.status();
    let bytes = guarded(response.bytes()).await??;
    ensure!(status == 200, "{extra}: {status} {}", String::from_utf8_lossy(&bytes));
    ensure!(!bytes.is_empty() && bytes.len().is_multiple_of(FRAME), "{extra}: {} bytes", bytes.len());
    Ok(bytes.to_vec())
}

/// A recording.
fn clip(seconds: f64) -> Result<String> {
    let sample = |n: usize| {
        let t = n as f32 / RATE as f32;
        0.2 * (700.0 * t + 300.0 * t * t).sin() + 0.1 * (2_000.0 * t).sin() * (9.0 * t).sin()
    };
    let samples: Vec<f32> = (0..(seconds * RATE as f64) as usize).map(sample).collect();
    Ok(base64(&izwi_audio::wav::to_bytes(&samples, RATE as u32)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn published_and_cloned_voices_speak_alone_and_together() -> Result<()> {
    let server = serve().await?;
    let once = spoken(&server, json!({})).await?;
    let recording = clip(1.5)?;
    let cloned = spoken(&server, json!({"ref_audio": recording})).await?;
    assert!(once != cloned && once != spoken(&server, json!({"seed": 6})).await?);
    // Side by side, from the blocks of the same voice: the same bytes.
    let (first, second, third) = tokio::join!(
        spoken(&server, json!({})),
        spoken(&server, json!({"voice": "alba"})),
        spoken(&server, json!({"ref_audio": recording}))
    );
    assert!(first? == once && second? == once && third? == cloned);
    for (extra, status, param) in [
        (json!({"voice": "nobody"}), 404, "voice"),
        (json!({"speed": 1.5}), 400, "speed"),
        (json!({"ref_audio": clip(0.01)?}), 400, "ref_audio"),
    ] {
        let response = server.speech(&body(&extra)).await?;
        let found = response.status();
        let refusal: Value = response.json().await?;
        ensure!(found == status && refusal["error"]["param"] == param, "{extra}: {found} {refusal}");
        refusal["error"]["message"].as_str().context("a message")?;
    }
    server.assert_balanced().await
}
