//! Nine clients of six dialects at once on one engine, with real weights: each gets what it gets alone.

use anyhow::{Context, Result, ensure};

use super::{RECORDING, WORD, python, real_server, root};

#[tokio::test(flavor = "multi_thread")]
async fn nine_clients_of_six_dialects_get_what_they_get_alone() -> Result<()> {
    let server = real_server(|_| {}).await?;
    let recording = root().join(RECORDING);
    let recording = recording.to_str().context("the path is not UTF-8")?;
    let (host, port) = (server.wyoming.ip().to_string(), server.wyoming.port().to_string());
    let url = format!("http://{}", server.address);
    let stdout = python("together_client.py", &[&url, &host, &port, recording, WORD]).await?;
    ensure!(stdout.contains("passed: nine clients of six dialects"), "{stdout}");
    server.assert_no_sessions().await
}
