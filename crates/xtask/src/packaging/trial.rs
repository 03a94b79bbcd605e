//! A trial of each way of installation that this machine allows: the wheel in a fresh environment, the package for Node.js in
//! a fresh folder, the installer with a release that is served from this machine.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::{NODE_CLIENT, PYTHON_CLIENT, TOOLS, archive, folder, release, tool, version};
use crate::process;
use crate::steps::Steps;
use crate::{suite, venv};

const TEXT: &str = "The package speaks, and reads what it spoke.";
/// A word of [`TEXT`] that a transcript has.
const WORD: &str = "package";
/// The default TTS model, and the smallest ASR model.
const MODELS: [&str; 2] = ["hibari", "whisper-tiny.en"];

/// Builds all packages for this machine in release mode, installs each into a fresh folder, and uses it.
pub(crate) fn run(root: &Path, steps: &mut Steps) -> Result<()> {
    let out = folder(root);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("cannot empty {}", out.display()))?;
    }
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    archive::make(root, steps)?;
    let tools = venv::make(root, steps, TOOLS)?;
    let mut wheel = Command::new(tool(&tools, "maturin"));
    wheel.current_dir(root.join(PYTHON_CLIENT)).args(["build", "--release", "--locked", "--out"]).arg(&out);
    process::forget_cargo_run(&mut wheel);
    steps.run("wheel", &mut wheel)?;
    let mut pack = npm(&root.join(NODE_CLIENT), &["pack", "--pack-destination"]);
    steps.run("npm pack", pack.arg(&out))?;
    release::write_sums(&out)?;

    let (python, program) = install_wheel(&out, steps)?;
    let mut pull = Command::new(&program);
    let home = suite::home(root);
    pull.arg("pull").args(MODELS).env("IZWI_HOME", &home).env("HF_HUB_OFFLINE", "1");
    steps.run("pull", &mut pull)?;
    let server = Server::start(&program, &home)?;
    let script = format!("{PYTHON_TRIAL}\ntry_client('{}', {TEXT:?}, '{WORD}')", server.url);
    steps.run("wheel's client", Command::new(&python).args(["-c", &script]).current_dir(&out))?;
    use_node_package(root, &out, &server.url, steps)?;
    drop(server);
    use_installer(root, &out, steps)
}

/// The environment's Python and the program that the wheel brought.
fn install_wheel(out: &Path, steps: &mut Steps) -> Result<(PathBuf, PathBuf)> {
    let environment = out.join("venv");
    let mut create = Command::new("python3");
    steps.run("fresh environment", create.args(["-m", "venv"]).arg(&environment))?;
    let python = environment.join("bin/python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet"]).arg(one(out, "whl")?);
    steps.run("install the wheel", &mut install)?;
    let program = environment.join("bin/izwi");
    process::run(Command::new(&program).arg("--version"))?;
    Ok((python, program))
}

fn use_node_package(root: &Path, out: &Path, url: &str, steps: &mut Steps) -> Result<()> {
    let fresh = out.join("node");
    fs::create_dir_all(&fresh).with_context(|| format!("cannot make {}", fresh.display()))?;
    fs::write(fresh.join("package.json"), "{\"private\": true, \"type\": \"module\"}\n")?;
    let package = out.join(format!("izwi-{}.tgz", version(root)?));
    let mut install = npm(&fresh, &["install", "--no-audit", "--no-fund"]);
    steps.run("install the npm package", install.arg(package))?;
    let script = format!("{NODE_TRIAL}\nawait tryClient('{url}', {TEXT:?}, '{WORD}');");
    fs::write(fresh.join("trial.js"), script)?;
    let mut node = Command::new("node");
    node.args(["--experimental-websocket", "trial.js"]).current_dir(&fresh);
    steps.run("npm package's client", &mut node)
}

/// Installs the archive over HTTP, runs what was installed, and removes it.
fn use_installer(root: &Path, out: &Path, steps: &mut Steps) -> Result<()> {
    let port = free_port()?;
    let mut serve = Command::new("python3");
    serve.args(["-m", "http.server", "--bind", "127.0.0.1", &port.to_string()]).current_dir(out);
    let _files = Running(serve.stderr(Stdio::null()).spawn().context("python3 does not start")?);
    wait_for(port)?;
    let prefix = out.join("prefix");
    let installer = |argument: &[&str]| {
        let mut command = Command::new("sh");
        command.arg(root.join("scripts/install.sh")).arg("--prefix").arg(&prefix).args(argument);
        command
    };
    let from = format!("http://127.0.0.1:{port}");
    steps.run("install.sh", &mut installer(&["--from", &from]))?;
    process::run(Command::new(prefix.join("bin/izwi")).arg("--version"))?;
    ensure!(prefix.join("share/man/man1/izwi-say.1").is_file(), "install.sh brought no manual pages");
    steps.run("install.sh --uninstall", &mut installer(&["--uninstall"]))?;
    ensure!(!prefix.join("bin/izwi").exists(), "install.sh --uninstall left the program");
    Ok(())
}

/// A server of an installed program.
struct Server {
    url: String,
    _running: Running,
}

impl Server {
    fn start(program: &Path, home: &Path) -> Result<Self> {
        let port = free_port()?;
        let mut serve = Command::new(program);
        serve.args(["serve", "--port", &port.to_string(), "--asr-model", MODELS[1]]).env("IZWI_HOME", home);
        let running = Running(serve.spawn().context("the installed izwi does not start")?);
        wait_for(port)?;
        Ok(Self { url: format!("http://127.0.0.1:{port}"), _running: running })
    }
}

/// A child that ends with its owner.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

/// Waits until something accepts connections on a port.
fn wait_for(port: u16) -> Result<()> {
    for _ in 0..300 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    anyhow::bail!("nothing listens on port {port} after 30 s")
}

fn npm(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.current_dir(folder).args(["--loglevel", "error"]).args(arguments);
    command
}

/// The one file with an extension.
fn one(folder: &Path, extension: &str) -> Result<PathBuf> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut found = entries.flatten().map(|entry| entry.path());
    let found = found.find(|path| path.extension().is_some_and(|end| end == extension));
    found.with_context(|| format!("{} has no .{extension}", folder.display()))
}

const PYTHON_TRIAL: &str = "
import time, izwi
def try_client(url, text, word):
    client = izwi.Client(url)
    while not all(model.state == 'ready' for model in client.models() if model.default):
        time.sleep(0.1)
    with client.stream(text) as chunks:
        samples = sum(chunk.samples for chunk in chunks)
    transcript = client.transcribe(client.speak(text)).text
    print(izwi.__version__, samples, 'samples:', transcript)
    assert word in transcript and samples > 0
";

const NODE_TRIAL: &str = "
import { Client } from 'izwi';
async function tryClient(baseUrl, text, word) {
  const client = new Client({ baseUrl });
  let samples = 0;
  for await (const chunk of client.stream(text)) samples += chunk.samples;
  const transcript = await client.transcribe(await client.speak(text));
  console.log(samples, 'samples:', transcript.text);
  if (!transcript.text.includes(word) || !samples) throw new Error('the transcript lacks a word');
}
";
