//! The real `wyoming` package against the real server, with real weights, as Home Assistant talks to it.

use anyhow::{Context, Result, ensure};

use super::{RECORDING, WORD, python, real_server, root};

#[tokio::test(flavor = "multi_thread")]
async fn the_wyoming_package_speaks_and_transcribes() -> Result<()> {
    let server = real_server(|_| {}).await?;
    let recording = root().join(RECORDING);
    let recording = recording.to_str().context("the path is not UTF-8")?;
    let (host, port) = (server.wyoming.ip().to_string(), server.wyoming.port().to_string());
    let url = format!("http://{}", server.address);
    let stdout = python("wyoming_client.py", &[&url, &host, &port, recording, WORD]).await?;
    ensure!(stdout.contains("passed: errors are reported"), "{stdout}");
    Ok(())
}
