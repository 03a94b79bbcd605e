//! The replicas: real processes with a tiny checkpoint.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Stdio};

use super::eventually;
use crate::Izwi;

/// A checkpoint of `tests/golden/`, and the model that it stands in for.
type Tiny = (&'static str, &'static str);
/// A model with voices of its own.
pub(super) const SPEAKS: Tiny = ("qwen3_tts/cv06", "qwen3-tts-0.6b-customvoice");
/// A model that clones voices.
pub(super) const CLONES: Tiny = ("qwen3_tts/base17", "qwen3-tts-0.6b-base");

/// A text that the random weights of the checkpoint speak for more than a minute.
pub(super) const TEXT: &str =
    "Nobody else hears what you say about the weather, today or tomorrow, at your desk or at theirs.";

/// How [`TEXT`] is spoken: in so many bytes that they cannot all wait in sockets.
pub(super) fn options() -> serde_json::Value {
    serde_json::json!({
        "seed": 7, "top_k": 3, "temperature": 0.3, "max_tokens": 800,
        "response_format": "pcm_f32", "sample_rate": 48_000,
    })
}
/// Bytes of a sample.
pub(super) const SAMPLE: usize = 4;
/// Bytes of 20 s: the audio is longer.
pub(super) const LONG: usize = 20 * 48_000 * SAMPLE;

/// A server.
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) port: u16,
    process: Child,
    log: std::path::PathBuf,
    has_ended: bool,
}

/// The replicas and their folder.
pub(super) struct Replicas {
    _izwi: Izwi,
    pub(super) all: Vec<Replica>,
}

/// A port that is free now.
pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Replicas {
    /// Starts the replicas `izwi-0` and so on with one folder of saved voices, and waits until they are ready.
    pub(super) fn start(count: usize, tiny: Tiny) -> Self {
        let izwi = Izwi::alone();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        crate::copy(&root.join("tests/golden").join(tiny.0), &izwi.path("own-models").join(tiny.1));
        let mut all: Vec<Replica> = (0..count).map(|number| Replica::start(&izwi, number, tiny.1)).collect();
        for replica in &mut all {
            eventually("a replica to be ready", || replica.is_ready());
        }
        Self { _izwi: izwi, all }
    }

    pub(super) fn named(&mut self, name: &str) -> &mut Replica {
        self.all.iter_mut().find(|replica| replica.name == name).unwrap()
    }

    pub(super) fn first(&self) -> &Replica {
        &self.all[0]
    }
}

impl Replica {
    fn start(izwi: &Izwi, number: usize, model: &str) -> Self {
        let (name, port) = (format!("izwi-{number}"), free_port());
        let port_text = port.to_string();
        let log = std::fs::File::create(izwi.path(&format!("{name}.log"))).unwrap();
        let mut command = izwi.command(&["serve", "--no-pull", "--asr-model", "none", "--port", &port_text]);
        command.args(["--models-dir", "own-models", "--model", model, "--dtype", "f32", "--threads", "1"]);
        command.args([
            "--weight-cache=false",
            "--admission=false",
            "--max-blocks",
            "512",
            "--instance",
            &name,
        ]);
        // Listeners pause for as long as the test needs.
        command.args(["--resume-window-s", "40", "--drain-timeout-s", "300", "--send-timeout-s", "600"]);
        command.args(["--slow-client-timeout-s", "600", "--idle-timeout-s", "600"]);
        let process = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let log = izwi.path(&format!("{name}.log"));
        Self { name, port, process, log, has_ended: false }
    }

    /// The answer to a GET, with its head; empty if there is none.
    fn get(&self, path: &str) -> String {
        String::from_utf8_lossy(&self.ask("GET", path, "application/json", b"")).into_owned()
    }

    /// The answer to a request, with its head; empty if there is none.
    pub(super) fn ask(&self, method: &str, path: &str, kind: &str, body: &[u8]) -> Vec<u8> {
        let ask = || {
            let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
            let length = body.len();
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {kind}\r\n\
                 Content-Length: {length}\r\n\r\n"
            )?;
            stream.write_all(body)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        ask().unwrap_or_default()
    }

    /// Sum of the series of a metric.
    pub(super) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics");
        let lines = page
            .lines()
            .filter(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum()
    }

    pub(super) fn is_ready(&mut self) -> bool {
        let ended = self.process.try_wait().unwrap();
        let log = || std::fs::read_to_string(&self.log).unwrap_or_default();
        assert!(ended.is_none(), "{} ended: {}", self.name, log());
        self.get("/readyz").starts_with("HTTP/1.1 200")
    }

    /// Requests that the engine has not ended.
    pub(super) fn open_requests(&self) -> u64 {
        let answer = self.get("/health");
        let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
        let health: serde_json::Value = serde_json::from_str(body).unwrap();
        health["requests_open"].as_u64().unwrap()
    }

    pub(super) fn is_draining(&self) -> bool {
        self.get("/readyz").contains("draining")
    }

    /// Sends SIGTERM.
    pub(super) fn terminate(&self) {
        let kill = std::process::Command::new("kill").arg(self.process.id().to_string()).status();
        assert!(kill.unwrap().success());
    }

    /// Sends SIGKILL.
    pub(super) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.has_ended = true;
    }

    /// Waits until the process has ended; whether it succeeded.
    pub(super) fn ended(&mut self) -> bool {
        let mut status = None;
        eventually("the process to end", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        self.has_ended = true;
        status.is_some_and(|status| status.success())
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        if !self.has_ended {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}
