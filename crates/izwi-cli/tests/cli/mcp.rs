//! The Model Context Protocol, spoken by its published Python package with `izwi mcp` and with a server.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use super::sound::{clip, install};
use super::{Izwi, refused};

const KEY: &str = "a-key-of-16-characters";

#[test]
fn agents_speak_and_listen() {
    let izwi = Izwi::with_models();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let python = root.join("target/venv/bin/python");
    assert!(python.exists(), "{} is missing: run `cargo xtask test` once", python.display());
    // A pause ends the turn; the microphone goes on.
    fs::write(izwi.path("clip.raw"), [clip(), vec![0; 6 * 32_000]].concat()).unwrap();
    let folder = izwi.path("").display().to_string();
    install(&izwi, "arecord", &format!("/bin/cat '{folder}/clip.raw'\nexec /bin/sleep 60"));
    install(&izwi, "aplay", &format!("exec /bin/cat >> '{folder}/played.raw'"));

    let served = ["serve", "--port", "0", "--no-pull", "--api-key", KEY];
    let mut server = izwi.command(&served).spawn().unwrap();
    let mut stderr = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    stderr.read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("izwi serves on ").unwrap().to_owned();
    let log = std::thread::spawn(move || stderr.lines().map_while(Result::ok).collect::<Vec<_>>());

    let program = izwi.command(&[]);
    let mut client = Command::new(python);
    client.arg(root.join("tests/clients/mcp_client.py")).arg(program.get_program());
    client.args([&url, KEY, &folder]).arg(root.join("assets/speech/jfk.wav")).args(["country", "Americans"]);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => client.env(name, value),
            None => client.env_remove(name),
        };
    }
    // No server runs on the configured port.
    client.env("IZWI_PORT", "1").env("IZWI_API_KEY", KEY);
    let done = client.env("PATH", izwi.path("bin")).current_dir(izwi.path("")).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(told.contains("passed: garbage is skipped"), "{told}\n{}", log.join().unwrap().join("\n"));
}

/// Every program that a configuration of the page names answers as a server of the protocol.
#[test]
fn the_configurations_of_the_page_work() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let page = fs::read_to_string(root.join("docs/mcp.md")).unwrap();
    let blocks = page.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let initialize = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",
        "capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
    let izwi = Izwi::alone();
    let (mut programs, mut addresses) = (0, 0);
    for block in blocks {
        let configuration: serde_json::Value = serde_json::from_str(block).unwrap();
        // The member that has the servers differs from client to client.
        let servers = configuration.as_object().unwrap().values().next().unwrap().as_object().unwrap();
        for server in servers.values() {
            if let Some(url) = server["url"].as_str() {
                assert_eq!(url, "http://127.0.0.1:8080/mcp");
                addresses += 1;
                continue;
            }
            assert_eq!(server["command"], "izwi", "{block}");
            let arguments: Vec<&str> =
                server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect();
            let mut child =
                izwi.command(&arguments).env("IZWI_PORT", "1").stdin(Stdio::piped()).spawn().unwrap();
            let line = initialize.replace('\n', " ") + "\n";
            child.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
            let output = child.wait_with_output().unwrap();
            let answer: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            assert_eq!(answer["result"]["serverInfo"]["name"], "izwi", "{block}");
            programs += 1;
        }
    }
    assert!(programs >= 3 && addresses >= 2, "{programs} programs, {addresses} addresses");
}

#[test]
fn wrong_servers_are_refused() {
    let izwi = Izwi::alone();
    refused(&izwi.run(&["mcp", "--server", "localhost:80"]), 2, &["--server", "http://127.0.0.1:8080"]);
    refused(&izwi.run(&["mcp", "--model", "nothing"]), 1, &["nothing"]);
}
