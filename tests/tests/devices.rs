//! A model with replicas on several devices, behind the real server.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use izwi_core::engine::{EngineCoreConfig, Precision};
use izwi_tests::{TestServer, eventually, guarded};
use serde_json::{Value, json};

const MODEL: &str = "pocket-tts-english-cloning";
const TEXT: &str = "Hello there, how are you today?";
const LISTENERS: u64 = 6;

/// A server with two replicas of a tiny checkpoint.
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
    TestServer::with_replicas(config, folder.path(), 2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_are_spread_over_replicas_and_hear_what_one_alone_hears() -> Result<()> {
    let server = serve().await?;
    let whole = async |seed: u64| {
        let body = json!({"model": "tts-1", "input": TEXT, "seed": seed, "response_format": "pcm", "max_tokens": 12});
        let response = server.speech(&body).await?;
        ensure!(response.status() == 200, "{}", response.text().await?);
        Ok(guarded(response.bytes()).await??.to_vec())
    };
    let listen = async |seed: u64| {
        let mut session = server.session().await?;
        session.send(json!({"type": "session.config", "seed": seed, "max_tokens": 12})).await?;
        let utterance = session.speak(TEXT).await?;
        Ok::<_, anyhow::Error>(utterance.chunks.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<u8>>())
    };
    // Listeners who happen to come one after another are all served where the first was.
    eventually("both replicas to have worked", async || {
        let heard = futures::future::join_all((0..LISTENERS).map(listen)).await;
        for (seed, heard) in (0..LISTENERS).zip(heard) {
            ensure!(heard? == whole(seed).await?, "seed {seed} differs on another replica");
        }
        let health: Value = server.get("/health").await?.json().await?;
        let replicas = health["models"][MODEL]["replicas"].as_array().context("no replicas")?;
        Ok(replicas.iter().all(|replica| replica["steps"].as_u64() > Some(0)))
    })
    .await?;

    let health: Value = server.get("/health").await?.json().await?;
    let model = &health["models"][MODEL];
    ensure!(model["device"] == "cpu,cpu", "{model}");
    let replicas = model["replicas"].as_array().context("no replicas")?;
    ensure!(replicas.len() == 2, "{model}");
    for replica in replicas {
        ensure!(replica["state"] == "ready" && replica["device"] == "cpu", "{replica}");
    }
    ensure!(model["steps"] == json!(replicas.iter().filter_map(|one| one["steps"].as_u64()).sum::<u64>()));
    let taken = server.metric("izwi_replica_requests_total", &[&format!("model=\"{MODEL}\"")]).await?;
    ensure!(taken >= 2.0 * LISTENERS as f64, "{taken} requests are counted");
    let up = server.metric("izwi_replica_up", &["device=\"cpu\"", &format!("model=\"{MODEL}\"")]).await?;
    ensure!(up == 1.0);
    server.assert_balanced().await
}
