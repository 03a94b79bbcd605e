//! Faults of files and processes: a killed pull, a disk without room, a store that cannot be written, a model that is
//! removed while it is used. Afterwards everything works, and nothing half-written is taken as whole.

mod jobs;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

use crate::hub::{Hub, noise};
use crate::{Izwi, copy, get, refused, signal};

/// An id without rights, where the tests run with all.
const NOBODY: u32 = 65_534;

fn is_installed(izwi: &Izwi, model: &str) -> bool {
    let listed = izwi.run(&["list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let found = listed.as_array().unwrap().iter().find(|entry| entry["name"] == model).unwrap();
    found["installed"] == true
}

/// The default TTS model.
fn default_model(izwi: &Izwi) -> String {
    let listed = izwi.run(&["list", "--json"]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let is_default =
        |entry: &&serde_json::Value| entry["default_for"].as_array().unwrap().contains(&"tts".into());
    listed.as_array().unwrap().iter().find(is_default).unwrap()["name"].as_str().unwrap().to_owned()
}

/// Checks the failure of a command that told its progress before.
#[track_caller]
fn failed(output: &Output, parts: &[&str]) {
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    for part in parts {
        assert!(stderr.contains(part), "'{part}' is not in: {stderr}");
    }
}

/// Whether a file below `folder` is partly downloaded.
fn has_part(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.into_iter().any(|path| match path.is_dir() {
        true => has_part(&path),
        false => {
            path.extension().is_some_and(|extension| extension == "part")
                && path.metadata().is_ok_and(|file| file.len() > 0)
        }
    })
}

fn files() -> Vec<(String, Vec<u8>)> {
    (0..3).map(|at| (format!("file-{at}.bin"), noise(300_000, at))).collect()
}

#[test]
fn a_killed_pull_leaves_nothing_half_installed_and_continues() {
    let izwi = Izwi::alone();
    let hub = Hub::start(files(), true);
    hub.offer(&izwi);
    let pull = || {
        let mut command = izwi.command(&["pull", "lark"]);
        command.env("HF_ENDPOINT", &hub.url);
        command
    };
    for _ in files() {
        let mut child = pull().spawn().unwrap();
        hub.stopped.recv_timeout(Duration::from_secs(60)).unwrap();
        while !has_part(&izwi.path("home/models/.partial")) && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SIGKILL.
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!is_installed(&izwi, "lark"));
        assert!(!izwi.path("home/models/lark").exists());
        refused(
            &izwi.run(&["say", "hi", "-o", "a.wav", "--model", "lark", "--no-pull"]),
            1,
            &["not installed"],
        );
    }
    let output = pull().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for (name, contents) in files() {
        assert!(fs::read(izwi.path("home/models/lark").join(name)).unwrap() == contents);
    }
    let resumed = hub.starts().iter().filter(|start| **start > 0).count();
    assert!(resumed > 0, "no download was continued: {:?}", hub.starts());
    assert!(is_installed(&izwi, "lark"));
}

#[test]
fn a_pull_without_room_names_the_remedy_and_continues_later() {
    let izwi = Izwi::alone();
    let hub = Hub::start(files(), false);
    hub.offer(&izwi);
    // The limit of a file's size, in blocks of 512 or 1024 bytes, stands for a full disk.
    let script = "trap '' XFSZ; ulimit -f 100; exec \"$0\" pull lark";
    let mut command = Command::new("sh");
    let full = izwi.command(&[]);
    command.args(["-c", script, env!("CARGO_BIN_EXE_izwi")]).current_dir(izwi.path(""));
    command.envs(full.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = command.env("HF_ENDPOINT", &hub.url).output().unwrap();
    failed(&output, &["cannot write", "set IZWI_HOME to another disk"]);
    assert!(!is_installed(&izwi, "lark") && !izwi.path("home/models/lark").exists());
    let output = izwi.command(&["pull", "lark"]).env("HF_ENDPOINT", &hub.url).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(hub.starts().iter().any(|start| *start > 0), "the written part is used: {:?}", hub.starts());
}

/// Takes every right to write below `folder`, or gives it back.
fn writable(folder: &Path, yes: bool) {
    fs::set_permissions(folder, fs::Permissions::from_mode(if yes { 0o755 } else { 0o555 })).unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            writable(&path, yes);
        }
    }
}

#[test]
fn a_read_only_store_can_be_read_and_names_what_it_refuses() {
    let izwi = Izwi::alone();
    let hub = Hub::start(files(), false);
    hub.offer(&izwi);
    assert!(izwi.command(&["pull", "lark"]).env("HF_ENDPOINT", &hub.url).status().unwrap().success());
    fs::create_dir_all(izwi.path("home/voices")).unwrap();
    fs::write(izwi.path("home/voices/anna.safetensors"), crate::pack()).unwrap();
    fs::set_permissions(izwi.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    writable(&izwi.path("home"), false);
    let run = |arguments: &[&str]| {
        let mut command = izwi.command(arguments);
        if fs::metadata(izwi.path("home")).unwrap().uid() == 0 {
            command.uid(NOBODY).gid(NOBODY);
        }
        command.env("HF_ENDPOINT", &hub.url).output().unwrap()
    };
    for reading in [&["list"][..], &["pull", "lark"], &["voices"], &["voices", "show", "anna"]] {
        let output = run(reading);
        assert!(output.status.success(), "{reading:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let other = default_model(&izwi);
    for writing in [&["rm", "--yes", "lark"][..], &["voices", "rm", "anna"], &["pull", &other]] {
        failed(&run(writing), &["home/", "no permission", "set IZWI_HOME to another folder"]);
    }
    writable(&izwi.path("home"), true);
    assert!(is_installed(&izwi, "lark"));
}

/// A running `izwi serve`; dropping it kills it.
struct Serving {
    child: Child,
    address: String,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn serve(izwi: &Izwi) -> Serving {
    let mut command =
        izwi.command(&["serve", "--no-pull", "--port", "0", "--asr-model", "none", "--threads", "2"]);
    let mut child = command.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("izwi serves on http://").unwrap().to_owned();
    std::thread::spawn(move || stderr.read_to_string(&mut String::new()));
    let begun = Instant::now();
    while !get(&address, "/readyz").starts_with("HTTP/1.1 200") {
        assert!(begun.elapsed() < Duration::from_secs(120), "the server is not ready");
        std::thread::sleep(Duration::from_millis(50));
    }
    Serving { child, address }
}

/// Status and body of a speech request.
fn speech(serving: &Serving) -> (String, Vec<u8>) {
    let body = r#"{"model": "tts-1", "input": "Hello there.", "seed": 5, "response_format": "wav"}"#;
    let mut stream = std::net::TcpStream::connect(&serving.address).unwrap();
    let head = "POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json";
    write!(stream, "{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    (head.lines().next().unwrap().to_owned(), answer[end + 4..].to_vec())
}

#[test]
fn a_model_that_is_removed_while_it_is_used_is_used_to_the_end() {
    let models = Izwi::with_models();
    let home = models.home.clone().unwrap();
    for by_command in [true, false] {
        let izwi = Izwi::alone();
        let model = default_model(&izwi);
        let installed = izwi.path("home/models").join(&model);
        copy(&home.join("models").join(&model), &installed);
        let serving = serve(&izwi);
        let (status, before) = speech(&serving);
        assert_eq!(status, "HTTP/1.1 200 OK", "{}", String::from_utf8_lossy(&before));
        if by_command {
            assert!(izwi.run(&["rm", "--yes", &model]).status.success());
        } else {
            fs::remove_dir_all(izwi.path("home/models")).unwrap();
        }
        assert!(!installed.exists());
        let (status, after) = speech(&serving);
        assert_eq!(status, "HTTP/1.1 200 OK");
        assert!(after == before, "the loaded model speaks on, with the same bytes");
        assert!(get(&serving.address, "/livez").starts_with("HTTP/1.1 200"));
        // It is loaded from nowhere afterwards.
        refused(&izwi.run(&["say", "hi", "-o", "a.wav", "--no-pull"]), 1, &["not installed", "izwi pull"]);
        signal(serving.child.id(), "TERM");
        drop(serving);
    }
}
