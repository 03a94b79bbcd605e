//! Every command of README.md and of the book in `docs/` runs as it stands, and so does every program in Python and JavaScript.
//!
//! A page is one script of bash: its blocks run in order, in a folder of their own. `izwi serve` goes to the background until
//! the next one or the end of the page. Addresses with the default ports stand for ports that are free. `cargo` builds nothing:
//! its arguments are checked instead. Blocks with a mark are not run, but their commands must parse.

#![cfg(target_os = "linux")]

mod blocks;
mod folder;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use blocks::{Block, Language};
use folder::repository;

/// What a script begins with: failures name their line, `izwi serve` runs in the background, and `cargo` does nothing.
const PRELUDE: &str = r#"
set -u -o pipefail
server=
stop() { [ -z "$server" ] || { kill "$server"; wait "$server" || true; } 2> /dev/null; server=; }
trap stop EXIT
check() { [ "$1" = 0 ] || { echo "FAILED with $1: $at"; [ ! -f server.log ] || tail -n 5 server.log; exit 1; } >&2; }
cargo() { :; }
izwi() {
    if [ "${1-}" != serve ]; then command izwi "$@"; return; fi
    stop
    command izwi "$@" > server.log 2>&1 &
    server=$!
    local tries=0
    until curl -q -sf "http://127.0.0.1:$IZWI_PORT/readyz" > /dev/null; do
        kill -0 "$server" && [ $((tries += 1)) -lt 1000 ] || return 1
        sleep 0.1
    done
}
"#;

/// One test for each page with commands, with parts of what it prints.
macro_rules! pages {
    ($($name:ident: $page:literal => [$($part:literal),*];)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(
            #[test]
            fn $name() {
                run($page, &[$($part),*]);
            }
        )*
    };
}

pages! {
    readme: "README.md" => ["transcript: Nothing that you say here leaves your desk."];
    choosing: "docs/choosing.md" => ["whisper-large-v3-turbo", "amiable himself"];
    conversations: "docs/conversations.md" => [];
    deepgram: "docs/deepgram.md" => ["\"transcript\":\"Hello"];
    diarization: "docs/diarization.md" => [];
    dictating: "docs/dictating.md" => ["for your country", "session.done"];
    elevenlabs: "docs/elevenlabs.md" => [];
    home_assistant: "docs/home-assistant.md" => ["samples"];
    installation: "docs/installation.md" => [];
    jobs_page: "docs/jobs.md" => ["job.completed", "00:00"];
    lexicons: "docs/lexicons.md" => ["brands", "texts that name it", "lexicon.deleted"];
    livekit: "docs/livekit.md" => ["axi waits outside"];
    listening: "docs/listening.md" => ["my fellow Americans", "amiable himself"];
    mcp: "docs/mcp.md" => ["s of speech are in", "your country"];
    meetings: "docs/meetings.md" => ["## Transcript"];
    models: "docs/models.md" => ["whisper-base", "hibari is installed"];
    obs: "docs/obs.md" => [];
    ollama: "docs/ollama.md" => ["samples of speech"];
    openai: "docs/openai.md" => ["Hello"];
    open_webui: "docs/open-webui.md" => ["axi waits outside"];
    openai_agents: "docs/openai-agents.md" => ["fellow Americans"];
    operations: "docs/operations.md" => ["ready", "alive", "# HELP izwi_"];
    page: "docs/page.md" => [];
    pipecat: "docs/pipecat.md" => ["axi waits outside"];
    planning: "docs/planning.md" => ["10000 listeners of hibari", "SESSIONS", "large"];
    quick_start: "docs/quick-start.md" => ["Nothing that you say here leaves your desk."];
    replicas_page: "docs/replicas.md" => ["x-izwi-instance: izwi-0"];
    ray: "docs/ray.md" => [];
    raspberry_pi: "docs/raspberry-pi.md" => ["small computer"];
    samples: "docs/samples.md" => [];
    reading_page: "docs/reading.md" => ["1 of 9 paragraphs spoken", "LUFS"];
    realtime: "docs/realtime.md" => ["my fellow Americans"];
    screen_readers: "docs/screen-readers.md" => [];
    server: "docs/server.md" => ["hibari", "4800 samples"];
    service: "docs/service.md" => [];
    sillytavern: "docs/sillytavern.md" => ["ell met"];
    speaking: "docs/speaking.md" => [
        "and is not spoken: <emphasis>",
        "cannot pronounce '你好'",
        "the text has Chinese, which hibari does not speak"
    ];
    tray: "docs/tray.md" => [];
    troubleshooting: "docs/troubleshooting.md" => [];
    vscode: "docs/vscode.md" => [];
    voices: "docs/voices.md" => ["anna"];
}

/// README.md and the pages of the book.
fn all_pages() -> Vec<String> {
    let docs = fs::read_dir(repository().join("docs")).unwrap();
    let names = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().to_string_lossy()));
    names.filter(|name| name.ends_with(".md")).chain(["README.md".to_owned()]).collect()
}

#[test]
fn every_page_with_commands_is_run() {
    let found: BTreeSet<String> = all_pages().into_iter().filter(|page| !read(page).is_empty()).collect();
    let listed: BTreeSet<String> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    assert_eq!(found, listed, "give each page with commands a line in `pages!`");
}

#[test]
fn commands_within_the_text_parse() {
    let pages = all_pages();
    let texts = pages.iter().map(|page| (page, fs::read_to_string(repository().join(page)).unwrap()));
    let commands: BTreeMap<String, &String> = texts
        .flat_map(|(page, text)| blocks::within_text(&text).into_iter().map(move |command| (command, page)))
        .collect();
    assert!(commands.contains_key("izwi doctor"), "{commands:?}");
    for (text, page) in commands {
        let block = Block { line: 1, language: Language::Shell, text, runs: false };
        shell(page, &block);
    }
}

#[test]
fn stated_downloads_are_those_of_the_manifests() {
    let izwi = crate::Izwi::alone();
    let output = izwi.run(&["list", "--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    let megabytes = |bytes: &serde_json::Value| format!("{:.1} MB", bytes.as_f64().unwrap() / 1e6);
    let flat = |page: &str| {
        let text = fs::read_to_string(repository().join(page)).unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for name in ["hibari", "whisper-base"] {
        let model = listed.iter().find(|model| model["name"] == name).unwrap();
        let (hub, mirror) = (megabytes(&model["download_bytes"]), megabytes(&model["mirror_bytes"]));
        let stated = format!("({hub} from the hub, or {mirror} from a mirror)");
        for page in ["README.md", "docs/quick-start.md"] {
            assert!(flat(page).contains(&stated), "{page} does not say {stated} of {name}");
        }
    }
}

#[test]
fn every_whisper_has_a_pinned_size_and_languages() {
    let output = crate::Izwi::alone().run(&["list", "--json"]);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    for (name, megabytes, languages) in [
        ("whisper-tiny.en", 100..200, 1),
        ("whisper-base", 280..300, 99),
        ("whisper-small", 900..1000, 99),
        ("whisper-medium", 3000..3100, 99),
        ("whisper-large-v3-turbo", 1600..1700, 100),
        ("whisper-large-v3", 3000..3100, 100),
        ("distil-large-v3.5", 3000..3100, 1),
    ] {
        let model = listed.iter().find(|model| model["name"] == name).unwrap();
        assert_eq!(model["languages"].as_array().unwrap().len(), languages, "{name}");
        let bytes = model["download_bytes"].as_u64().unwrap();
        assert!(megabytes.contains(&(bytes / 1_000_000)), "{name}: {bytes}");
    }
}

fn read(page: &str) -> Vec<Block> {
    let text = fs::read_to_string(repository().join(page)).unwrap();
    blocks::blocks(&text).map_err(|fault| format!("{page}: {fault}")).unwrap()
}

/// Runs a page; the output has each of `parts`, where nothing was left out for want of Python's clients or Node.js.
#[allow(clippy::print_stdout, reason = "tells what was left out")]
fn run(page: &str, parts: &[&str]) {
    let blocks = read(page);
    let folder = folder::make();
    let tools = Tools::find();
    let mut script = PRELUDE.to_owned();
    for block in &blocks {
        script.push_str(&match block.language {
            Language::Shell => shell(page, block),
            Language::Python => tools.python(page, block, folder.path()),
            Language::JavaScript => tools.java_script(page, block, folder.path()),
        });
    }
    // Addresses of a server on this machine get a port of this test.
    let ports = [("8080", free_port()), ("10200", free_port())];
    for (port, free) in &ports {
        script = script.replace(&format!(":{port}"), &format!(":{free}"));
    }
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).stdin(Stdio::null());
    set_environment(&mut bash, folder.path(), &ports[0].1);
    let output = bash.output().expect("the commands of pages run in bash");
    let text =
        [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(output.status.success(), "{page}:\n{text}");
    if blocks.iter().any(|block| !tools.run(block.language)) {
        println!("{page}: programs were not run: `cargo xtask test` installs what they need");
        return;
    }
    for part in parts {
        assert!(text.contains(part), "{page}: '{part}' is not in:\n{text}");
    }
}

/// The part of the script for a block of commands; for one that is not run, the commands are only parsed.
fn shell(page: &str, block: &Block) -> String {
    let commands = blocks::commands(block).map_err(|fault| format!("{page}: {fault}")).unwrap();
    let mut script = String::new();
    for command in commands {
        let at = format!("{page}:{}", command.line);
        for call in command.calls() {
            match call[0] {
                "izwi" if !block.runs => parses(&at, &call[1..]),
                "cargo" => check_cargo(&at, &call[1..]),
                _ => {}
            }
        }
        if block.runs {
            script.push_str(&format!("at='{at}'\n{}check $?\n", command.text));
        }
    }
    script
}

/// Whether `izwi` knows these arguments: it refuses unknown ones before it prints the help.
#[track_caller]
fn parses(at: &str, arguments: &[&str]) {
    let izwi = crate::Izwi::alone();
    let output = izwi.run(&[arguments, &["--help"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    // A text may name an option without its value.
    assert!(output.status.success() || stderr.contains("a value is required for"), "{at}: {stderr}");
}

/// Fails for a chore, a package or a folder that the repository has not.
#[track_caller]
fn check_cargo(at: &str, arguments: &[&str]) {
    if let ["xtask", chore, ..] = arguments {
        let usage = fs::read_to_string(repository().join("crates/xtask/src/main.rs")).unwrap();
        let known = usage.lines().any(|line| line.trim_start().split(' ').next() == Some(chore));
        assert!(known, "{at}: cargo xtask has no chore '{chore}'");
    }
    for pair in arguments.windows(2) {
        let folder = match pair {
            ["-p", "izwi-tests"] => "tests".to_owned(),
            ["-p", "izwi-fuzz"] => "tests/fuzz".to_owned(),
            ["-p", "izwi-benches"] => "benches".to_owned(),
            ["-p", package] => format!("crates/{package}"),
            ["--path" | "--manifest-path", path] => (*path).to_owned(),
            _ => continue,
        };
        assert!(repository().join(&folder).join("Cargo.toml").is_file(), "{at}: no package in {folder}");
    }
}

/// The programs that run blocks in other languages, where they are installed.
struct Tools {
    /// Has the published clients: `cargo xtask test` makes it.
    python: Option<String>,
    has_node: bool,
}

impl Tools {
    fn find() -> Self {
        let python = repository().join("target/venv/bin/python").to_string_lossy().into_owned();
        // Looked up, not imported: that would take ten seconds on every page.
        let has_clients = succeeds(
            &python,
            &[
                "-c",
                "import importlib.util, sys; \
                 packages = 'agents deepgram elevenlabs litellm livekit openai pipecat websockets'.split(); \
                 sys.exit(not all(map(importlib.util.find_spec, packages)))",
            ],
        );
        Self {
            python: has_clients.then_some(python),
            has_node: succeeds(
                "node",
                &["--experimental-websocket", "-e", "new WebSocket('ws://127.0.0.1:1').onerror = () => {}"],
            ),
        }
    }

    /// Whether blocks of this language are run.
    fn run(&self, language: Language) -> bool {
        match language {
            Language::Shell => true,
            Language::Python => self.python.is_some(),
            Language::JavaScript => self.has_node,
        }
    }

    fn python(&self, page: &str, block: &Block, folder: &Path) -> String {
        match &self.python {
            Some(python) if block.runs => program(page, block, &folder.join("block.py"), python),
            _ => program(page, block, &folder.join("block.py"), "python3 -m py_compile"),
        }
    }

    fn java_script(&self, page: &str, block: &Block, folder: &Path) -> String {
        let file = folder.join("block.mjs");
        match (self.has_node, block.runs) {
            (true, true) => program(page, block, &file, "node --experimental-websocket --no-warnings"),
            (true, false) => program(page, block, &file, "node --check"),
            (false, _) => String::new(),
        }
    }
}

/// The part of the script that writes a program into a file and runs it.
fn program(page: &str, block: &Block, file: &Path, runner: &str) -> String {
    let file = file.display();
    format!(
        "at='{page}:{}'\ncat > '{file}' <<'END_OF_BLOCK'\n{}END_OF_BLOCK\n{runner} '{file}'\ncheck $?\n",
        block.line, block.text
    )
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

fn free_port() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port().to_string()
}

/// The environment of a user with empty settings, without a way to a hub or a package registry.
fn set_environment(bash: &mut Command, folder: &Path, port: &str) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("IZWI_") {
            bash.env_remove(name);
        }
    }
    let izwi = Path::new(env!("CARGO_BIN_EXE_izwi")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    bash.current_dir(folder).env("HOME", folder);
    bash.env("PATH", format!("{}:{}:{path}", folder.join("bin").display(), izwi.display()));
    bash.env("IZWI_HOME", folder.join("home")).env("IZWI_MODELS_DIR", folder.join("own-models"));
    bash.env("IZWI_PORT", port).env("ALSA_CONFIG_PATH", folder.join("asound.conf"));
    // litellm asks for prices over the network otherwise, and waits.
    bash.env("CURL_HOME", folder).env("LITELLM_LOCAL_MODEL_COST_MAP", "True");
    for kind in ["CONFIG", "DATA", "CACHE", "STATE"] {
        bash.env(format!("XDG_{kind}_HOME"), folder.join(kind));
    }
    for registry in ["HF_ENDPOINT", "PIP_INDEX_URL", "npm_config_registry"] {
        bash.env(registry, "http://127.0.0.1:1");
    }
    bash.env("PYTHONPATH", repository().join("assets/clients/python/src"));
}
