//! The real `openai` package for Node.js against the real server. `cargo xtask test` installs it.

use anyhow::{Result, ensure};

use super::{node, openai};

#[tokio::test(flavor = "multi_thread")]
async fn the_openai_package_for_node_runs_speech_and_transcription() -> Result<()> {
    let (server, _voices) = openai::server().await?;
    let arguments = openai::arguments(&server)?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let stdout = node("openai_client.mjs", &arguments).await?;
    ensure!(stdout.contains("passed: errors map to the package's exceptions"), "{stdout}");
    Ok(())
}
