//! Tests of the binary: exit codes, output streams, and files that appear whole or not at all.
//!
//! They use no network. Tests of synthesis use the model in `IZWI_HOME`, which `cargo xtask pull` installs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed preparation fails the test")]

mod align;
mod book;
mod desktop;
mod diarize;
#[cfg(unix)]
mod faults;
mod formats;
#[cfg(unix)]
mod hostile;
#[cfg(unix)]
mod hub;
#[cfg(unix)]
mod mcp;
mod meeting;
mod plan;
mod reading;
mod remote;
#[cfg(target_os = "linux")]
mod replicas;
#[cfg(unix)]
mod service;
#[cfg(unix)]
mod sound;
#[cfg(unix)]
mod speaking;
mod speech_dispatcher;
#[cfg(target_os = "linux")]
mod systemd;
mod voices;
mod wyoming;

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// `izwi` in an empty folder with its own environment.
struct Izwi {
    folder: tempfile::TempDir,
    home: Option<PathBuf>,
}

impl Izwi {
    fn alone() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), home: None }
    }

    fn with_models() -> Self {
        let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let home =
            std::env::var_os("IZWI_HOME").map_or_else(|| workspace.join("target/izwi-home"), PathBuf::from);
        let izwi = Self { home: Some(home), ..Self::alone() };
        let listed = izwi.run(&["list", "--json"]);
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        let installed = listed.as_array().unwrap().iter().any(|model| {
            model["installed"] == true && model["default_for"].as_array().unwrap().contains(&"tts".into())
        });
        assert!(installed, "the default model is not installed: run `cargo xtask pull`");
        izwi
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_izwi"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("IZWI_") {
                command.env_remove(name);
            }
        }
        let home = self.home.clone().unwrap_or_else(|| self.path("home"));
        command.args(arguments).current_dir(self.folder.path()).env("IZWI_HOME", home);
        command.env("HOME", self.folder.path()).env("XDG_CONFIG_HOME", self.path("config"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(arguments).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        child.wait_with_output().unwrap()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

/// Checks the exit code and the error message.
#[track_caller]
fn refused(output: &Output, code: i32, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stderr}");
    assert!(stderr.starts_with("error: "), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "'{part}' is not in: {stderr}");
    }
}

#[test]
fn wrong_usage_exits_with_2_and_names_the_remedy() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["lst"]), 2, &["list"]);
    refused(&izwi.run(&["say", "hello"]), 2, &["no destination of the audio", "help: "]);
    refused(&izwi.run(&["say", "hello", "-o", "a.aac"]), 2, &["asks for aac"]);
    refused(&izwi.run(&["say", "-o", "a.wav"]), 2, &["empty"]);
    refused(&izwi.run(&["say", "hello", "-o", "a.wav", "--threads", "0"]), 2, &["--threads", "1 to 1024"]);
    refused(&izwi.run(&["serve", "--port", "65536"]), 2, &["--port"]);
    refused(&izwi.run(&["rm", "x"]), 2, &["--yes"]);
    let bad = izwi.run_with_input(&["say", "-o", "a.wav", "-"], b"ab\xff");
    refused(&bad, 2, &["not UTF-8 (byte 2)"]);
    refused(&izwi.run(&["chat", "hello", "-o", "-"]), 2, &["standard output has the text"]);
    refused(&izwi.run(&["chat", "hello", "-o", "a.aac"]), 2, &["asks for aac"]);
    refused(&izwi.run(&["transcribe"]), 2, &["FILE"]);
    refused(&izwi.run(&["transcribe", "a.wav", "--words"]), 2, &["--words", "help: add --format json"]);
    refused(&izwi.run(&["transcribe", "a.wav", "b.wav", "-f", "srt"]), 2, &["cannot share", "--output"]);
    refused(&izwi.run(&["transcribe", "-", "-"]), 2, &["given twice"]);
    refused(&izwi.run(&["transcribe", "a/x.wav", "b/x.mp3", "-o", "out"]), 2, &["out/x.txt", "two runs"]);
    assert_eq!(fs::read_dir(izwi.folder.path()).unwrap().count(), 0, "nothing was written");
}

#[test]
fn missing_things_exit_with_1_and_name_the_remedy() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["say", "hello", "-o", "a.wav", "--no-pull"]), 1, &["not installed", "izwi pull"]);
    refused(&izwi.run(&["say", "hello", "-o", "no/a.wav"]), 1, &["no/a.wav", "create the folder"]);
    refused(&izwi.run(&["transcribe", "*.ogg"]), 1, &["no file matches '*.ogg'", "help: "]);
    refused(&izwi.run(&["transcribe", "a.wav", "--no-pull"]), 1, &["not installed", "izwi pull"]);
    refused(&izwi.run(&["pull", "no-such-model"]), 1, &["no-such-model"]);
    refused(&izwi.run(&["serve", "--host", "0.0.0.0", "--port", "0"]), 1, &["api key", "--insecure"]);
    let short_key = izwi.run(&["serve", "--port", "0", "--api-key", "x"]);
    refused(&short_key, 2, &["--api-key", "at least 16", "openssl rand -hex 16"]);
    refused(&izwi.run(&["config", "check", "no.toml"]), 1, &["no.toml"]);
    refused(
        &izwi.command(&["say", "x", "-o", "a.wav", "--play"]).env("PATH", "").output().unwrap(),
        1,
        &["player"],
    );
}

#[test]
fn a_port_in_use_is_named() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = holder.local_addr().unwrap().port().to_string();
    refused(&Izwi::alone().run(&["serve", "--port", &port]), 1, &["is in use", "--port"]);
}

#[cfg(target_os = "linux")]
#[test]
fn limits_that_are_too_low_for_a_server_are_named() {
    let izwi = Izwi::alone();
    let serve = |limit: &str| {
        let command = izwi.command(&["serve", "--port", "0"]);
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit {limit} && exec \"$@\""), "sh"]);
        shell.arg(command.get_program()).args(command.get_args()).current_dir(izwi.folder.path());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        shell.output().unwrap()
    };
    refused(&serve("-n 100"), 1, &["may open 100 files", "ulimit -n"]);
    // With less than this the process would be ended by the first allocation that fails.
    refused(&serve("-v 600000"), 1, &["585 MiB of address space", "ulimit -v"]);
}

#[test]
fn settings_come_from_flag_variable_and_file() {
    let izwi = Izwi::alone();
    fs::write(izwi.path("c.toml"), "[server]\nport = 1\nhost = \"::1\"\napi_key = \"top-secret-of-16\"\n")
        .unwrap();
    let mut command = izwi.command(&["config", "show", "--json", "--config", "c.toml", "--threads", "3"]);
    let output = command.env("IZWI_PORT", "2").env("IZWI_PROT", "2").output().unwrap();
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| (shown[key]["value"].to_string(), shown[key]["origin"].as_str().unwrap().to_owned());
    assert_eq!(of("engine.threads"), ("3".into(), "flag".into()));
    assert_eq!(of("server.port"), ("2".into(), "environment".into()));
    assert_eq!(of("server.host"), ("\"::1\"".into(), "file".into()));
    assert_eq!(of("engine.device"), ("\"auto\"".into(), "default".into()));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("top-secret-of-16"));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("IZWI_PROT sets nothing: did you mean IZWI_PORT?")
    );
}

#[test]
fn errors_in_the_file_are_reported_by_line() {
    let izwi = Izwi::alone();
    fs::write(izwi.path("c.toml"), "[server]\nprot = 1\n").unwrap();
    for arguments in [["config", "check", "c.toml"], ["list", "--config", "c.toml"]] {
        refused(&izwi.run(&arguments), 1, &["c.toml:2: unknown key 'prot': did you mean port?"]);
    }
    fs::write(izwi.path("c.toml"), "[server]\nport = 1\n").unwrap();
    assert!(izwi.run(&["config", "check", "c.toml"]).status.success());
}

#[test]
fn doctor_without_the_model_exits_with_1() {
    let output = Izwi::alone().run(&["doctor", "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let broken: Vec<&serde_json::Value> = report["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|finding| finding["verdict"] == "broken")
        .collect();
    assert_eq!(broken.len(), 1, "{report}");
    assert!(broken[0]["remedy"].as_str().unwrap().starts_with("izwi pull "), "{report}");
}

#[cfg(unix)]
#[test]
fn a_closed_standard_output_is_no_failure() {
    let mut child = Izwi::alone().command(&["completions", "bash"]).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[cfg(unix)]
#[test]
fn a_closed_log_is_no_failure() {
    let izwi = Izwi::with_models();
    let mut child = izwi.command(&["say", "Hello.", "-o", "a.wav", "--log-level", "debug"]).spawn().unwrap();
    drop(child.stderr.take());
    assert!(child.wait().unwrap().success());
}

#[test]
fn speech_is_written_to_a_file() {
    let izwi = Izwi::with_models();
    let output = izwi.run(&["say", "Hello there.", "-o", "a.wav", "--seed", "1", "--no-pull"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("RTF"), "{stderr}");
    assert_eq!(output.stdout, b"");
    let wav = fs::read(izwi.path("a.wav")).unwrap();
    assert_eq!(&wav[..4], b"RIFF");
    assert!(wav.len() > 20_000, "{} bytes", wav.len());

    let output = izwi.run_with_input(&["say", "-o", "-", "--seed", "1"], b"Hello there.");
    assert!(output.stdout == wav, "the same seed gives the same bytes on standard output");
    let output = izwi.run_with_input(&["say", "-o", "-", "--stream", "--seed", "1"], b"Hello there.");
    assert!(output.stdout[44..] == wav[44..], "a stream has the same samples after its header");
    let output = izwi.run(&["say", "Hello there.", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["file"], &report["finish_reason"]), (&"izwi.wav".into(), &"stop".into()));
}

/// The name of the smallest installed ASR model.
fn asr_model(izwi: &Izwi) -> String {
    let listed: serde_json::Value = serde_json::from_slice(&izwi.run(&["list", "--json"]).stdout).unwrap();
    let models = listed.as_array().unwrap().iter();
    let asr_models = models.filter(|model| {
        model["installed"] == true && model["tasks"].as_array().unwrap().contains(&"asr".into())
    });
    let smallest = asr_models.min_by_key(|model| model["bytes"].as_u64());
    smallest.expect("no ASR model is installed: run `cargo xtask pull`")["name"].as_str().unwrap().to_owned()
}

/// The text without punctuation and case.
fn plain(text: &str) -> String {
    text.to_lowercase()
        .chars()
        .filter(|c| c.is_alphanumeric() || c.is_whitespace())
        .collect::<String>()
        .trim()
        .to_owned()
}

#[test]
fn recordings_are_transcribed() {
    const TEXT: &str = "The quick brown fox jumps over the lazy dog.";
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    for (text, file) in [(TEXT, "a.wav"), ("Good morning, everyone.", "b.wav")] {
        assert!(izwi.run(&["say", text, "-o", file, "--seed", "1"]).status.success());
    }
    let transcribe = |more: &[&str]| {
        let mut command = izwi.command(&["transcribe", "--no-pull", "--model", &model]);
        command.args(more).output().unwrap()
    };
    let output = transcribe(&["a.wav"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.starts_with("a.wav: ") && stderr.contains("RTF"), "{stderr}");
    assert_eq!(plain(&String::from_utf8_lossy(&output.stdout)), plain(TEXT));

    let output = transcribe(&["a.wav", "-f", "json", "--words", "-o", "-"]);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (plain(json["text"].as_str().unwrap()), json["words"].as_array().unwrap().len()),
        (plain(TEXT), 9)
    );

    let output = transcribe(&["*.wav", "-f", "srt", "-o", "out/"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(fs::read_to_string(izwi.path("out/b.srt")).unwrap().starts_with("1\n00:00:00,"));
    assert_eq!(fs::read_dir(izwi.path("out")).unwrap().count(), 2);

    let wav = fs::read(izwi.path("a.wav")).unwrap();
    let output = izwi.run_with_input(&["transcribe", "--model", &model, "-"], &wav);
    assert_eq!(plain(&String::from_utf8_lossy(&output.stdout)), plain(TEXT));
}

#[test]
fn a_recording_that_fails_is_named_and_the_others_continue() {
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    assert!(izwi.run(&["say", "Good morning.", "-o", "a.wav", "--seed", "1"]).status.success());
    fs::write(izwi.path("noise.mp3"), "this is not audio").unwrap();
    let output = izwi.run(&["transcribe", "--model", &model, "noise.mp3", "no.wav", "a.wav"]);
    refused(
        &output,
        1,
        &["cannot transcribe noise.mp3", "cannot transcribe no.wav", "no such file", "help: "],
    );
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (name, transcript) = text.split_once('\n').unwrap();
    assert_eq!((name, plain(transcript).as_str()), ("== a.wav", "good morning"));
    let listed: serde_json::Value = serde_json::from_slice(&izwi.run(&["list", "--json"]).stdout).unwrap();
    let voice =
        listed.as_array().unwrap().iter().find(|model| model["tasks"] == serde_json::json!(["tts"])).unwrap();
    let voice = voice["name"].as_str().unwrap();
    refused(&izwi.run(&["transcribe", "a.wav", "--model", voice]), 2, &["cannot transcribe", "--model"]);
}

#[cfg(unix)]
#[test]
fn an_interrupted_transcription_leaves_no_file() {
    let izwi = Izwi::with_models();
    let model = asr_model(&izwi);
    assert!(izwi.run(&["say", &"It goes on and on. ".repeat(60), "-o", "long.wav"]).status.success());
    let arguments =
        ["transcribe", "long.wav", "-o", "long.txt", "--model", &model, "--log-level", "izwi=debug"];
    let mut child = izwi.command(&arguments).spawn().unwrap();
    // The log starts after the signal handlers are installed.
    child.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    signal(child.id(), "INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    assert!(!izwi.path("long.txt").exists());
}

#[cfg(unix)]
#[test]
fn an_interrupt_leaves_no_file() {
    let izwi = Izwi::with_models();
    let text = "It goes on and on for quite a while. ".repeat(1_500);
    fs::write(izwi.path("text"), text).unwrap();
    let input = fs::File::open(izwi.path("text")).unwrap();
    let mut child =
        izwi.command(&["say", "-o", "a.wav", "--log-level", "izwi=debug"]).stdin(input).spawn().unwrap();
    // The log starts after the signal handlers are installed.
    child.stderr.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    signal(child.id(), "INT");
    assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
    let left: Vec<_> =
        fs::read_dir(izwi.folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["text"]);
}

#[cfg(unix)]
#[test]
fn the_server_gets_ready_and_shuts_down() {
    let izwi = Izwi::with_models();
    let mut child = izwi
        .command(&["serve", "--port", "0", "--asr-model", "none", "--log-format", "json"])
        .spawn()
        .unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    let address = line.trim().strip_prefix("izwi serves on http://").unwrap().to_owned();
    let begun = std::time::Instant::now();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(begun.elapsed().as_secs() < 120, "the server is not ready");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    signal(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    assert!(log.contains("\"message\":\"shutting down\""), "{log}");
}

#[cfg(unix)]
#[test]
fn a_server_leaves_out_a_device_on_which_the_model_does_not_load() {
    let izwi = Izwi::with_models();
    refused(&izwi.run(&["serve", "--devices", "cpu,cpu"]), 1, &["devices = cpu", "named twice"]);
    refused(&izwi.run(&["serve", "--devices", "cpu,gpu"]), 2, &["--devices", "'gpu' is unknown", "cuda:N"]);
    let mut child = izwi
        .command(&["serve", "--port", "0", "--asr-model", "none", "--devices", "cuda:99, cpu"])
        .spawn()
        .unwrap();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut stderr, &mut line).unwrap();
    let address = line.trim().strip_prefix("izwi serves on http://").unwrap().to_owned();
    let begun = std::time::Instant::now();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(begun.elapsed().as_secs() < 120, "the server is not ready");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(get(&address, "/health").contains("\"device\":\"cpu\""));
    signal(child.id(), "TERM");
    assert!(child.wait().unwrap().success());
    let mut log = String::new();
    stderr.read_to_string(&mut log).unwrap();
    assert!(log.contains("left out") && log.contains("cuda:99"), "{log}");
}

#[cfg(unix)]
fn get(address: &str, path: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[cfg(unix)]
fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status().unwrap();
    assert!(sent.success());
}

#[cfg(unix)]
#[test]
fn players_receive_the_file_or_the_stream() {
    use std::os::unix::fs::PermissionsExt as _;
    let izwi = Izwi::with_models();
    // A player writes into its own folder: it does not run in the working folder.
    let script = "#!/bin/sh\ncase \"$*\" in *raw*) /bin/cat > played.raw ;; *) for last; do :; done; /bin/cp \"$last\" played.wav ;; esac\n";
    fs::create_dir(izwi.path("bin")).unwrap();
    let name = if cfg!(target_os = "macos") { "ffplay" } else { "aplay" };
    fs::write(izwi.path("bin").join(name), script).unwrap();
    fs::set_permissions(izwi.path("bin").join(name), fs::Permissions::from_mode(0o755)).unwrap();
    let say = |more: &[&str]| {
        let mut command = izwi.command(&["say", "Hello there.", "--play", "--seed", "1"]);
        let output = command.args(more).env("PATH", izwi.path("bin")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    say(&["-o", "a.wav"]);
    let wav = fs::read(izwi.path("a.wav")).unwrap();
    assert!(fs::read(izwi.path("bin/played.wav")).unwrap() == wav);
    if cfg!(target_os = "linux") {
        say(&["--stream"]);
        assert!(fs::read(izwi.path("bin/played.raw")).unwrap() == wav[44..]);
    }
}

/// A voice pack of no model, which can be listed.
fn pack() -> Vec<u8> {
    let head = br#"{"__metadata__":{"format":"izwi-voice-1","model":"abc","family":"bird","created":"2026-01-01T00:00:00Z","made_by":"lark"},"speaker":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    [&(head.len() as u64).to_le_bytes()[..], head, &[7]].concat()
}

#[test]
fn saved_voices_are_listed_shown_and_removed() {
    let izwi = Izwi::alone();
    let output = izwi.run(&["voices"]);
    assert!(output.status.success() && output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("izwi voices add"));
    fs::create_dir_all(izwi.path("home/voices")).unwrap();
    fs::write(izwi.path("home/voices/anna.safetensors"), pack()).unwrap();
    fs::write(izwi.path("home/voices/bad.safetensors"), "no pack").unwrap();
    let output = izwi.run(&["voices", "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1, "unreadable packs are skipped");
    assert_eq!((listed[0]["name"].as_str(), listed[0]["made_by"].as_str()), (Some("anna"), Some("lark")));
    assert!(String::from_utf8_lossy(&izwi.run(&["voices"]).stdout).contains("anna"));
    let shown = String::from_utf8(izwi.run(&["voices", "show", "anna"]).stdout).unwrap();
    assert!(shown.contains("lark") && shown.contains("abc"), "{shown}");

    refused(&izwi.run(&["voices", "show", "ana"]), 1, &["no voice 'ana'", "did you mean 'anna'"]);
    refused(&izwi.run(&["voices", "show", "bad"]), 1, &["not a safetensors file"]);
    refused(&izwi.run(&["voices", "rm", "../voices/anna"]), 1, &["must be 1 to 64"]);
    refused(&izwi.run(&["voices", "add", "anna", "clip.wav"]), 1, &["saved already", "--force"]);
    refused(&izwi.run(&["voices", "add", "Anna", "clip.wav"]), 1, &["must be 1 to 64"]);
    refused(&izwi.run(&["voices", "add", "bella", "no.wav"]), 1, &["no.wav"]);
    refused(
        &izwi.run(&["voices", "add", "bella", "home/voices/bad.safetensors"]),
        2,
        &["--model with one of"],
    );
    assert!(izwi.run(&["voices", "rm", "anna", "bad"]).status.success());
    refused(&izwi.run(&["voices", "rm", "anna"]), 1, &["there are no voices yet"]);
}

#[test]
fn contradicting_voice_options_are_refused() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["say", "hello", "-o", "a.wav", "--ref-text", "x"]), 2, &["--ref-audio"]);
    let both = ["say", "hello", "-o", "a.wav", "--voice", "a", "--ref-audio", "b.wav"];
    refused(&izwi.run(&both), 2, &["--voice"]);
    refused(&izwi.run(&["say", "hello", "-o", "a.wav", "--dtype", "q5"]), 2, &["--dtype", "q8"]);
    let output = izwi.run(&["say", "hello", "-o", "a.wav", "--dtype", "q4", "--no-pull"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("warning: 4-bit weights harm"));
    fs::write(izwi.path("c.toml"), "[engine]\ndtype = \"bf16\"\n").unwrap();
    let output = izwi.run(&["config", "show", "--json", "--config", "c.toml"]);
    let shown: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(shown["engine.dtype"]["value"], "bf16");
}

#[test]
fn a_model_without_voice_cloning_refuses_recordings() {
    let izwi = Izwi::with_models();
    fs::write(izwi.path("clip.wav"), izwi_audio::wav::to_bytes(&[0.1; 24_000], 24_000).unwrap()).unwrap();
    // No voice is saved, also in a shared home.
    let add = ["voices", "add", "never-saved", "clip.wav"];
    let shown = izwi.run(&["config", "show", "--json"]).stdout;
    let shown: serde_json::Value = serde_json::from_slice(&shown).unwrap();
    let default = shown["engine.model"]["value"].as_str().unwrap();
    refused(
        &izwi.run(&[&add[..], &["--model", default]].concat()),
        2,
        &["does not support voice cloning", "--model"],
    );
    let say = ["say", "Hello.", "-o", "a.wav", "--ref-audio", "clip.wav"];
    refused(&izwi.run(&say), 1, &["does not support voice cloning"]);
    refused(
        &izwi.run(&["say", "Hello.", "-o", "a.wav", "--voice", "nobody"]),
        1,
        &["'nobody'", "izwi voices"],
    );
    refused(&izwi.run(&["say", "Hello.", "-o", "a.wav", "--instructions", "softly"]), 2, &["style prompt"]);
    assert!(!izwi.path("a.wav").exists());
}

/// Installs the tiny chat checkpoint in a folder of models under the name of a chat model.
fn install_chat_model(izwi: &Izwi) -> String {
    let listed = izwi.run(&["list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let has_chat = |model: &&serde_json::Value| model["tasks"].as_array().unwrap().contains(&"chat".into());
    let model = listed.as_array().unwrap().iter().find(has_chat).unwrap();
    let name = model["name"].as_str().unwrap().to_owned();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().join("tests/golden");
    let tiny = fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).find(|folder| {
        fs::read_to_string(folder.join("config.json")).is_ok_and(|config| config.contains("interleaved"))
    });
    copy(&tiny.unwrap(), &izwi.path("models").join(&name));
    name
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let name = entry.unwrap().file_name();
        let (from, to) = (from.join(&name), to.join(&name));
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(from, to).unwrap();
        }
    }
}

#[test]
fn lines_are_answered_with_text_and_audio() {
    let izwi = Izwi::alone();
    let name = install_chat_model(&izwi);
    let other = izwi.run(&["list", "--json"]);
    let other: serde_json::Value = serde_json::from_slice(&other.stdout).unwrap();
    let has_no_chat =
        |model: &&serde_json::Value| !model["tasks"].as_array().unwrap().contains(&"chat".into());
    let other =
        other.as_array().unwrap().iter().find(has_no_chat).unwrap()["name"].as_str().unwrap().to_owned();
    refused(&izwi.run(&["chat", "hello", "--model", &other]), 2, &["does not support chat", &name]);
    refused(&izwi.run(&["chat", "hello"]), 1, &["no chat model is installed", &name]);
    let clip = izwi.path("clip.wav");
    let samples: Vec<f32> = (0..22_050).map(|at| (at as f32 * 0.05).sin() * 0.4).collect();
    izwi_audio::wav::write_file(&clip, &samples, 22_050).unwrap();
    let chat = |more: &[&str], input: &str| {
        let given = ["chat", "--models-dir", "models", "--dtype", "f32", "--max-blocks", "256", "--no-pull"];
        let given = [&given[..], &["--seed", "3", "--temperature", "1", "--text-temperature", "1"]].concat();
        let output = izwi.run_with_input(&[&given[..], more].concat(), input.as_bytes());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let spoken =
        chat(&["--max-tokens", "40", "--recording", "clip.wav", "-o", "a.wav"], "First.\n\nSecond.\n");
    assert_eq!(spoken.1.lines().filter(|line| line.contains("RTF")).count(), 3, "{}", spoken.1);
    let length = fs::read(izwi.path("a.wav")).unwrap().len();
    let again = chat(&["--max-tokens", "40", "--recording", "clip.wav", "-o", "b.wav"], "First.\nSecond.\n");
    assert_eq!((again.0, fs::read(izwi.path("b.wav")).unwrap().len()), (spoken.0.clone(), length));
    let one = chat(&["--max-tokens", "40", "--model", &name, "First."], "");
    assert!(!one.0.is_empty() && !spoken.0.starts_with(&one.0), "the recording has no effect");
}
