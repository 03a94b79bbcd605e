//! The client packages of `assets/clients/` against the real server over simulated models.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use izwi_tests::{Setup, TestServer};

use super::{RECORDING, python_program, root, run};

const KEY: &str = "open-sesame-1234";
/// No subprotocol of a WebSocket may have its characters.
const SLASHED_KEY: &str = "open/sesame=1234";

struct Servers {
    tts: TestServer,
    asr: TestServer,
    keyed: TestServer,
    slashed: TestServer,
}

impl Servers {
    async fn start(name: &str) -> Result<Self> {
        let keyed = |label: &str, key: &str| {
            let key = Some(key.to_owned());
            Setup::units(&format!("{name}-{label}")).server(|server| server.api_key = key).start()
        };
        let mut tts = Setup::units(&format!("{name}-tts"));
        // Long enough that an interruption finds speech unheard.
        tts.model.samples_per_token = 1_200;
        Ok(Self {
            tts: tts.start().await?,
            asr: Setup::listener(&format!("{name}-asr")).start().await?,
            keyed: keyed("keyed", KEY).await?,
            slashed: keyed("slashed", SLASHED_KEY).await?,
        })
    }

    /// The interruptions and reports of the client arrived, and it left no session.
    async fn assert_used(&self) -> Result<()> {
        ensure!(self.tts.metric("izwi_interrupts_total", &["task=\"tts\""]).await? > 0.0, "no interruption");
        for server in [&self.tts, &self.asr, &self.keyed, &self.slashed] {
            server.assert_no_sessions().await?;
        }
        Ok(())
    }
}

fn recording() -> Result<String> {
    let path = root().join(RECORDING);
    Ok(path.to_str().context("the path is not UTF-8")?.to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_package_speaks_and_transcribes() -> Result<()> {
    let servers = Servers::start("izwi-python").await?;
    let mut client = Command::new(python_program()?);
    client.env("PYTHONPATH", root().join("assets/clients/python/src"));
    let [tts, asr, keyed] = [&servers.tts, &servers.asr, &servers.keyed].map(|server| server.url(""));
    let stdout = run(client, "izwi_client.py", &[&tts, &asr, &keyed, KEY, &recording()?]).await?;
    ensure!(stdout.contains("passed: the client for asyncio"), "{stdout}");
    servers.assert_used().await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_package_speaks_and_transcribes() -> Result<()> {
    let servers = Servers::start("izwi-node").await?;
    let mut client = Command::new("node");
    // Node.js 20 has its WebSocket behind the flag; later ones accept it.
    client.args(["--experimental-websocket", "--test", "--test-reporter", "spec"]);
    client.env("IZWI_RECORDING", recording()?).env("IZWI_KEY", KEY).env("IZWI_SLASHED_KEY", SLASHED_KEY);
    for (name, server) in [
        ("IZWI_TTS_URL", &servers.tts),
        ("IZWI_ASR_URL", &servers.asr),
        ("IZWI_KEYED_URL", &servers.keyed),
        ("IZWI_SLASHED_URL", &servers.slashed),
    ] {
        client.env(name, server.url(""));
    }
    let stdout = run(client, "../../assets/clients/node/test/client.test.js", &[]).await?;
    ensure!(stdout.contains("fail 0"), "{stdout}");
    servers.assert_used().await
}
