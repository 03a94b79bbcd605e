//! The server under test, a process of its own, and what the system tells about it.
//!
//! Must not know what clients do.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use izwi_benches::clips;
use serde::Serialize;
use serde_json::Value;
use tokio::process::{Child, Command};

/// Models with tiny random weights: name, and folder of the golden checkpoint.
const TINY: [(&str, &str); 2] =
    [("qwen3-tts-0.6b-customvoice", "qwen3_tts/cv06"), ("lfm2-audio-1.5b", "lfm2_audio")];

/// A running server. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) client: reqwest::Client,
    process: Child,
    pid: u32,
    _models: tempfile::TempDir,
}

/// What the system tells about the process.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Sample {
    pub(crate) at_s: f64,
    pub(crate) rss_mib: f64,
    pub(crate) handles: usize,
    pub(crate) threads: usize,
}

impl Server {
    /// Starts the program with small models, and waits until they are loaded. Models that are no default ones are unloaded
    /// after some seconds without a request.
    pub(crate) async fn start(program: &Path, home: &Path) -> Result<Self> {
        let models = tempfile::tempdir()?;
        for (name, folder) in TINY {
            let golden = clips::root().join("tests/golden").join(folder);
            izwi_tests::copy(&golden, &models.path().join(name))?;
        }
        let address = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = std::fs::File::create(std::env::temp_dir().join("izwi-soak.log"))?;
        let process = Command::new(program)
            .arg("serve")
            .args(["--port", &address.port().to_string(), "--model", "hibari"])
            .args(["--asr-model", "whisper-tiny.en", "--no-pull", "--model-ttl-s", "5"])
            .args(["--log-level", "error", "--device", "cpu", "--dtype", "f32"])
            // Lost clients are many here.
            .args(["--resume-window-s", "10", "--max-blocks", "512"])
            .arg("--home")
            .arg(home)
            .arg("--models-dir")
            .arg(models.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let pid = process.id().context("the server ended at once")?;
        izwi_tests::provide_tls();
        let client = reqwest::Client::builder().timeout(Duration::from_secs(120)).build()?;
        let server = Self { address, client, process, pid, _models: models };
        for _ in 0..600 {
            let ready = server.client.get(server.url("/readyz")).send().await;
            if ready.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(server);
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::bail!("the server is not ready within two minutes; see izwi-soak.log")
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn socket(&self, path: &str) -> String {
        format!("ws://{}{path}", self.address)
    }

    /// What the system tells now; an error once the process has ended.
    pub(crate) fn sample(&self, at: Duration) -> Result<Sample> {
        let folder = PathBuf::from(format!("/proc/{}", self.pid));
        let status = std::fs::read_to_string(folder.join("status")).context("the server has ended")?;
        let value = |name: &str| -> Result<f64> {
            let line = status.lines().find(|line| line.starts_with(name));
            let word =
                line.and_then(|line| line.split_whitespace().nth(1)).with_context(|| name.to_owned())?;
            Ok(word.parse()?)
        };
        Ok(Sample {
            at_s: at.as_secs_f64(),
            rss_mib: value("VmRSS:")? / 1024.0,
            handles: std::fs::read_dir(folder.join("fd"))?.count(),
            threads: value("Threads:")? as usize,
        })
    }

    /// Waits until nothing runs; returns the blocks that are in use then.
    pub(crate) async fn rest(&self) -> Result<f64> {
        for _ in 0..150 {
            let health: Value = self.client.get(self.url("/health")).send().await?.json().await?;
            let metrics = self.metrics().await?;
            let busy =
                sum(&metrics, "izwi_num_requests_running") + sum(&metrics, "izwi_num_requests_waiting");
            if health["sessions_open"] == 0 && busy == 0.0 {
                let used = metrics.lines().filter(|line| line.starts_with("izwi_kv_cache_blocks{"));
                let used = used.filter(|line| line.contains("state=\"used\""));
                return Ok(used.filter_map(value_of).sum());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        anyhow::bail!("requests or sessions are left 30 seconds after the last client")
    }

    /// Requests that ended with a fault of the server.
    pub(crate) async fn failed(&self) -> Result<f64> {
        let metrics = self.metrics().await?;
        let requests = metrics.lines().filter(|line| line.starts_with("izwi_requests_total{"));
        Ok(requests.filter(|line| line.contains("finish_reason=\"error\"")).filter_map(value_of).sum())
    }

    async fn metrics(&self) -> Result<String> {
        let answer = self.client.get(self.url("/metrics")).send().await?;
        ensure!(answer.status().is_success(), "/metrics answers {}", answer.status());
        Ok(answer.text().await?)
    }

    /// Ends it as a user does, and returns whether it said goodbye.
    pub(crate) async fn stop(mut self) -> Result<bool> {
        let _ = Command::new("kill").arg(self.pid.to_string()).status().await?;
        let ended = tokio::time::timeout(Duration::from_secs(60), self.process.wait()).await;
        Ok(ended.context("the server does not end")??.success())
    }
}

/// The sum of a metric over all its labels.
fn sum(metrics: &str, name: &str) -> f64 {
    let of = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    metrics.lines().filter(of).filter_map(value_of).sum()
}

fn value_of(line: &str) -> Option<f64> {
    line.rsplit(' ').next()?.parse().ok()
}
