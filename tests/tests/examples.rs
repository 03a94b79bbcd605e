//! The clients of `assets/examples/` against the server, where Python with `websockets`, or Node, is installed.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use izwi_tests::Setup;

/// Whether a program runs with these arguments.
fn runs(program: &str, arguments: &[&str]) -> bool {
    let command = Command::new(program).args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    command.is_ok_and(|status| status.success())
}

async fn check(program: &str, options: &[&str], example: &str) -> Result<()> {
    let mut setup = Setup::units(&format!("example-{example}"));
    // Long enough that the interruption finds the answer unheard.
    setup.model.samples_per_token = 2_400;
    let server = setup.start().await?;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/examples").join(example);
    let mut client = Command::new(program);
    client.args(options).arg(path).arg(format!("ws://{}/v1/audio/speech/stream", server.address));
    client.stdin(Stdio::null());
    let output =
        tokio::task::spawn_blocking(move || client.output()).await?.context("the example does not start")?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    ensure!(stdout.contains("resumed at sample ") && stdout.contains("not heard: "), "{stdout}");
    assert_eq!(server.metric("izwi_session_resumes_total", &["outcome=\"resumed\""]).await?, 1.0);
    assert_eq!(server.metric("izwi_interrupts_total", &["task=\"tts\""]).await?, 1.0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_acknowledges_resumes_and_interrupts() -> Result<()> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/venv/bin/python");
    let candidates = [own.to_string_lossy().into_owned(), "python3".to_owned()];
    let Some(python) = candidates.iter().find(|python| runs(python, &["-c", "import websockets"])) else {
        println!("skipped: no Python with the package websockets");
        return Ok(());
    };
    check(python, &[], "barge_in.py").await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_client_acknowledges_resumes_and_interrupts() -> Result<()> {
    let options = ["--experimental-websocket"];
    if !runs("node", &[options[0], "-e", "new WebSocket('ws://127.0.0.1:1').onerror = () => process.exit(0)"])
    {
        println!("skipped: no Node with WebSocket");
        return Ok(());
    }
    check("node", &options, "barge_in.mjs").await
}
