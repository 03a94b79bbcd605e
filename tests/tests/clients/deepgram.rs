//! The real `deepgram-sdk` package against the real server, with real weights and a key.

use anyhow::{Context, Result, ensure};

use super::{RECORDING, WORD, python, real_server, root};

const KEY: &str = "0123456789abcdef";

#[tokio::test(flavor = "multi_thread")]
async fn the_deepgram_package_speaks_and_transcribes() -> Result<()> {
    let server = real_server(|config| config.api_key = Some(KEY.to_owned())).await?;
    let recording = root().join(RECORDING);
    let recording = recording.to_str().context("the path is not UTF-8")?;
    let url = format!("http://{}", server.address);
    let stdout = python("deepgram_client.py", &[&url, KEY, recording, WORD]).await?;
    ensure!(stdout.contains("passed: keys as tokens"), "{stdout}");
    Ok(())
}
